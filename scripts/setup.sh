#!/bin/bash
# setup.sh build|demo|test
#
# Brings what this machine lacks on Debian 12: packages (as root, or with a sudo that asks nothing), a
# running Docker daemon where there may be one, and the virtual environment .venv. What is there
# already is left alone, so a second call takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."
level=${1:?usage: setup.sh build|demo|test}

say() { echo "setup: $*" >&2; }

as_root=()
if [ "$(id -u)" != 0 ]; then
  if sudo -n true 2>/dev/null; then as_root=(sudo -n); else as_root=(false); fi
fi
can_be_root() { [ "${as_root[0]:-}" != false ]; }

# need COMMAND PACKAGE: remembers the package when the command is not there.
missing=()
need() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }

need cc build-essential
need make make
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ "$level" != build ]; then
  need dockerd docker.io
  need docker docker.io
  need mmdebstrap mmdebstrap
  need pgrep procps
  need losetup util-linux
  need mkfs.ext4 e2fsprogs
  need mkfs.xfs xfsprogs
  need mkfs.btrfs btrfs-progs
fi
if [ "$level" = test ]; then
  # pgbench, psql and pg_dump are the peers that tests compare with; the server is what the process
  # engine starts.
  need pgbench postgresql-client-15
  [ -x /usr/lib/postgresql/15/bin/initdb ] || missing+=(postgresql-15)
  # setpriv and su run a part of the tests as an ordinary user.
  need su util-linux
  # mysqlslap is what the statements of the workload slap are compared with.
  need mysqlslap mariadb-client
  # The other peer of the bench on MariaDB.
  need sysbench sysbench
  # The ZFS that can be had without a module of the kernel.
  need zfs-fuse zfs-fuse
  # The server that the wire, the session and the process engine are tested with.
  need mariadbd mariadb-server
fi
if [ ${#missing[@]} -gt 0 ]; then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  if can_be_root && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    if [ "$level" = test ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
      # No cluster of Debian's own is wanted: the tests make theirs.
      "${as_root[@]}" install -d /etc/postgresql-common
      echo 'create_main_cluster = false' |
        "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
    fi
    if [ "$level" = test ] && [ ! -e /usr/sbin/policy-rc.d ]; then
      # Nor a MariaDB server of Debian's own: nothing is started while packages are installed.
      printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee /usr/sbin/policy-rc.d >/dev/null
      trap '"${as_root[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
      "${as_root[@]}" chmod 755 /usr/sbin/policy-rc.d
    fi
    "${as_root[@]}" apt-get -qq update || say "some package lists could not be refreshed"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
    if [[ " ${missing[*]} " == *" mariadb-server "* ]]; then
      "${as_root[@]}" systemctl --quiet disable mariadb 2>/dev/null || true
    fi
  else
    say "not installed, and this user may not install them: ${missing[*]}"
  fi
fi

if [ "$level" = test ] && can_be_root && ! PATH=$PATH:/usr/sbin zpool list >/dev/null 2>&1; then
  say "starting zfs-fuse"
  # A session of its own, out of reach of a Ctrl-C; it goes to the background by itself.
  "${as_root[@]}" setsid /usr/sbin/zfs-fuse >/dev/null 2>&1 </dev/null || say "zfs-fuse did not start"
  timeout 10 bash -c 'until PATH=$PATH:/usr/sbin zpool list >/dev/null 2>&1; do sleep 0.2; done' ||
    say "zfs-fuse does not answer"
fi

if [ "$level" != build ] && command -v dockerd >/dev/null && ! docker version >/dev/null 2>&1; then
  if can_be_root; then
    say "starting the Docker daemon"
    # A daemon that was killed leaves its files of process numbers; when a number was given to
    # another process since, the next daemon takes that for itself and refuses to start.
    lives() { pgrep --exact --runstates R,S,D,T "$1" >/dev/null; }
    lives dockerd || "${as_root[@]}" rm -f /run/docker.pid /run/docker-ssd.pid
    lives containerd || "${as_root[@]}" rm -f /run/docker/containerd/containerd.pid
    if ! "${as_root[@]}" service docker start >/dev/null 2>&1 ||
      ! timeout 20 bash -c 'until docker version >/dev/null 2>&1; do sleep 0.5; done'; then
      # No service manager that could do it: start it ourselves, detached from this shell.
      "${as_root[@]}" setsid --fork dockerd </dev/null >/tmp/bedplate-dockerd.log 2>&1 || true
      if ! timeout 60 bash -c 'until docker version >/dev/null 2>&1; do sleep 0.5; done'; then
        say "the Docker daemon does not start; the end of /tmp/bedplate-dockerd.log:"
        tail -n 5 /tmp/bedplate-dockerd.log >&2
        # What a demo can do without it, it does; the tests need it.
        [ "$level" != test ] || exit 1
      fi
    fi
  fi
fi

if [ ! -x .venv/bin/python ]; then
  say "making .venv"
  python3 -m venv .venv
fi
stamp=.venv/.bedplate-$level
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
  say "installing Python packages into .venv"
  packages=(maturin polars)
  if [ "$level" = test ]; then
    mapfile -t packages < <(.venv/bin/python scripts/requirements.py)
  fi
  .venv/bin/pip install --quiet --disable-pip-version-check "${packages[@]}"
  touch "$stamp"
fi

if [ "$level" = test ]; then
  tools=$PWD/.venv/bin
  command -v cargo-nextest >/dev/null || [ -x "$tools/cargo-nextest" ] || {
    say "building cargo-nextest (once)"
    cargo install --quiet --locked --root .venv cargo-nextest
  }
  command -v cargo-deny >/dev/null || [ -x "$tools/cargo-deny" ] || {
    say "building cargo-deny (once)"
    cargo install --quiet --locked --debug --root .venv cargo-deny
  }
fi
