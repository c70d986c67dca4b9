#!/bin/bash
# build.sh OUT_DIR TAG
#
# Makes an image of MariaDB 10.5 from the packages of Debian 11, with the contract of the official image.
# It is MariaDB 10.5 and nothing older: it stands in for MariaDB 10.3 only where a spec allows another
# version, and the live server says what it is. Needs mmdebstrap and a Docker daemon. The package mirror
# is the one that this machine's own apt uses; MIRROR and SECURITY override it.
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
# not exist yet at that moment. As in the official image: the server listens on every address of its
# container, its log goes to standard error, and it looks up no names.
mmdebstrap --quiet --variant=minbase \
  --include=mariadb-server-10.5,gosu,tzdata \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' \
  --dpkgopt='path-exclude=/usr/share/mysql/mysql-test/*' \
  --aptopt='APT::Install-Recommends "false"' \
  --essential-hook='printf "mysql:x:999:999::/nonexistent:/bin/false\n" >> "$1/etc/passwd"; printf "mysql:x:999:\n" >> "$1/etc/group"; printf "mysql:!:19000:0:99999:7:::\n" >> "$1/etc/shadow"; [ ! -e "$1/etc/gshadow" ] || printf "mysql:!::\n" >> "$1/etc/gshadow"' \
  --customize-hook='rm -rf "$1/var/lib/mysql"; mkdir -p "$1/var/lib/mysql" "$1/docker-entrypoint-initdb.d"; chroot "$1" chown mysql:mysql /var/lib/mysql' \
  --customize-hook='find "$1/etc/mysql" -name "*.cnf" -type f -exec sed -ri "s/^(bind-address|log|user\s)/#&/" {} +; printf "[mariadb]\nhost-cache-size=0\nskip-name-resolve\n" > "$1/etc/mysql/mariadb.conf.d/05-skipcache.cnf"' \
  --customize-hook='rm -f "$1/etc/mysql/debian.cnf" "$1/etc/ssl/certs/ssl-cert-snakeoil.pem" "$1/etc/ssl/private/ssl-cert-snakeoil.key" "$1/var/cache/debconf/config.dat" "$1/var/cache/debconf/config.dat-old"' \
  --customize-hook='rm -f "$1/etc/apt/sources.list" "$1/etc/apt/sources.list.d/"*' \
  "$suite" "$context/rootfs.tar" \
  "deb [signed-by=$keyring] $mirror $suite main" \
  "deb [signed-by=$keyring] $security $suite-security main"

cp "$here/Dockerfile" "$here/docker-entrypoint.sh" "$context/"
chmod 0755 "$context/docker-entrypoint.sh"
# The classic builder needs no plug-in.
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" "$context"
