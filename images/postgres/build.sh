#!/bin/bash
# build.sh OUT_DIR TAG
#
# Makes an image of PostgreSQL 13 from the packages of Debian 11 (13.23, the last minor), with the
# contract of the official image. Needs mmdebstrap and a Docker daemon. The package mirror is the one
# that this machine's own apt uses; MIRROR and SECURITY override it.
set -euo pipefail
out=${1:?usage: build.sh OUT_DIR TAG}
tag=${2:?usage: build.sh OUT_DIR TAG}
here=$(cd "$(dirname "$0")" && pwd)
suite=bullseye
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# Repositories of apt, one a line: label, address. Third parties' are told apart by their label; where
# apt has no lists yet there is no label, and the path of the address has to do.
repositories() {
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -F'|' '$1 == "Debian" || $1 == "" || $1 ~ /ORIGIN/ { print ($2 ~ /^Debian/ ? $2 : "") "|" $3 }'
}
pick() { # pick LABEL PATH
  local all
  all=$(repositories)
  { grep "^$1|" <<<"$all" || grep -E "^\|.*/$2/?\$" <<<"$all" || true; } | head -n 1 | cut -d'|' -f2
}

mirror=${MIRROR:-$(pick Debian debian)}
if [ -z "$mirror" ]; then
  echo "error: apt knows no mirror of Debian here; set MIRROR" >&2
  exit 1
fi
security=${SECURITY:-$(pick Debian-Security debian-security)}
security=${security:-${mirror%/}-security}

# Fixed times, and no file that differs from build to build: two builds make equal trees.
export SOURCE_DATE_EPOCH=1757670000
mkdir -p "$out"
context=$(mktemp -d "$out/context.XXXXXX")
trap 'rm -rf "$context"' EXIT

# The user is made before the package would make it, with the ids of the official image; useradd does
# not exist yet at that moment.
mmdebstrap --quiet --variant=minbase \
  --include=postgresql-13,gosu,locales \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' \
  --aptopt='APT::Install-Recommends "false"' \
  --setup-hook='mkdir -p "$1/etc/postgresql-common"; printf "create_main_cluster = false\n" > "$1/etc/postgresql-common/createcluster.conf"' \
  --essential-hook='printf "postgres:x:999:999::/var/lib/postgresql:/bin/bash\n" >> "$1/etc/passwd"; printf "postgres:x:999:\n" >> "$1/etc/group"; printf "postgres:*:19000:0:99999:7:::\n" >> "$1/etc/shadow"; [ ! -e "$1/etc/gshadow" ] || printf "postgres:*::\n" >> "$1/etc/gshadow"' \
  --customize-hook='echo "en_US.UTF-8 UTF-8" >> "$1/etc/locale.gen"; chroot "$1" locale-gen' \
  --customize-hook='mkdir -p "$1/docker-entrypoint-initdb.d" "$1/var/lib/postgresql/data"; chroot "$1" chown postgres:postgres /var/lib/postgresql /var/lib/postgresql/data' \
  --customize-hook='sed -ri "s/^#?(listen_addresses)\s*=.*/\1 = '"'*'"'/" "$1/usr/share/postgresql/13/postgresql.conf.sample"' \
  --customize-hook='rm -f "$1/etc/ssl/certs/ssl-cert-snakeoil.pem" "$1/etc/ssl/private/ssl-cert-snakeoil.key" "$1/var/cache/debconf/config.dat" "$1/var/cache/debconf/config.dat-old"' \
  --customize-hook='rm -f "$1/etc/apt/sources.list" "$1/etc/apt/sources.list.d/"*' \
  "$suite" "$context/rootfs.tar" \
  "deb [signed-by=$keyring] $mirror $suite main" \
  "deb [signed-by=$keyring] $security $suite-security main"

cp "$here/Dockerfile" "$here/docker-entrypoint.sh" "$context/"
chmod 0755 "$context/docker-entrypoint.sh"
# `docker import` cannot set STOPSIGNAL; the classic builder needs no plug-in.
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" "$context"
