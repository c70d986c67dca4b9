#!/bin/bash
# build.sh OUT_DIR TAG BLOCK_KIB WAL_BLOCK_KIB
#
# Makes an image of PostgreSQL 13 with blocks and write-ahead log blocks of the given sizes, compiled
# from the source package of Debian 11 (13.23, the last minor), with the contract of the official image.
# Needs mmdebstrap and a Docker daemon. The package mirror is the one that this machine's own apt uses;
# MIRROR and SECURITY override it.
#
# The first build makes two images that all sizes share, `bedplate/postgres-builder:13` with the compiler
# and `bedplate/postgres-base:13` with the libraries. They may be removed when all sizes are made.
set -euo pipefail
usage='usage: build.sh OUT_DIR TAG BLOCK_KIB WAL_BLOCK_KIB'
out=${1:?$usage}
tag=${2:?$usage}
block_kib=${3:?$usage}
wal_block_kib=${4:?$usage}
here=$(cd "$(dirname "$0")" && pwd)
suite=bullseye
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
builder=bedplate/postgres-builder:13
base=bedplate/postgres-base:13

case "$block_kib" in
  1 | 2 | 4 | 8 | 16 | 32) ;;
  *) echo "error: BLOCK_KIB is \`$block_kib\`; PostgreSQL can have 1, 2, 4, 8, 16 or 32" >&2; exit 1 ;;
esac
case "$wal_block_kib" in
  1 | 2 | 4 | 8 | 16 | 32 | 64) ;;
  *) echo "error: WAL_BLOCK_KIB is \`$wal_block_kib\`; PostgreSQL can have 1, 2, 4, 8, 16, 32 or 64" >&2; exit 1 ;;
esac

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

# Fixed times, and no file that differs from build to build: two builds make equal trees.
export SOURCE_DATE_EPOCH=1757670000
mkdir -p "$out"
context=$(mktemp -d "$out/context.XXXXXX")
# The first stage's image would be left without a name, and it is large: it gets one, to be removed by.
compiled=bedplate/postgres-compiled:$block_kib-$wal_block_kib-$$
trap 'rm -rf "$context"; docker image rm "$compiled" >/dev/null 2>&1 || true' EXIT

# What the shared images were made from: this file alone, so they outlive a change of the others.
recipe=$(sha256sum <"$0" | cut -d' ' -f1)
is_current() { # is_current TAG
  [ "$(docker image inspect --format '{{ index .Config.Labels "bedplate.builder" }}' "$1" 2>/dev/null)" = "$recipe" ]
}
make_image() { # make_image TAG REPOSITORIES ARGUMENT_OF_MMDEBSTRAP...
  local image=$1 repositories=$2
  shift 2
  # By way of a file: what a failed mmdebstrap has written of a tree must not become an image.
  mmdebstrap --quiet --variant=minbase \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' \
    --aptopt='APT::Install-Recommends "false"' \
    "$@" \
    --customize-hook='rm -f "$1/var/cache/debconf/config.dat" "$1/var/cache/debconf/config.dat-old"' \
    --customize-hook='rm -f "$1/etc/apt/sources.list" "$1/etc/apt/sources.list.d/"*' \
    "$suite" "$context/rootfs.tar" - <<<"$repositories"
  # An older one would stay behind without a name.
  docker image rm "$image" >/dev/null 2>&1 || true
  docker import --change "LABEL bedplate.builder=$recipe" "$context/rootfs.tar" "$image" >/dev/null
  rm "$context/rootfs.tar"
}

if ! is_current "$builder" || ! is_current "$base"; then
  mirror=${MIRROR:-$(pick Debian debian)}
  if [ -z "$mirror" ]; then
    echo "error: apt knows no mirror of Debian here; set MIRROR" >&2
    exit 1
  fi
  security=${SECURITY:-$(pick Debian-Security debian-security)}
  security=${security:-${mirror%/}-security}
  binaries="deb [signed-by=$keyring] $mirror $suite main
deb [signed-by=$keyring] $security $suite-security main"
  sources="deb-src [signed-by=$keyring] $mirror $suite main
deb-src [signed-by=$keyring] $security $suite-security main"

  # What Debian's package is built with, less the procedural languages, LLVM, SELinux, the translations
  # and the manual. The source stays packed: patched files must be newer than what is generated from
  # them, and one date for every file would hide that from make.
  make_image "$builder" "$binaries
$sources" \
    --include=gcc,libc6-dev,make,dpkg-dev,bison,flex,pkg-config,systemtap-sdt-dev \
    --include=libicu-dev,libkrb5-dev,libldap2-dev,libpam0g-dev,libreadline-dev,libssl-dev \
    --include=libsystemd-dev,libxml2-dev,libxslt1-dev,uuid-dev,zlib1g-dev \
    --customize-hook='cd "$1/usr/src" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq -o APT::Sandbox::User=root source --download-only postgresql-13'

  # The libraries of those, and the same user and locale as the image made from Debian's packages.
  make_image "$base" "$binaries" \
    --include=gosu,locales,tzdata \
    --include=libicu67,libgssapi-krb5-2,libldap-2.4-2,libpam0g,libreadline8,libssl1.1 \
    --include=libsystemd0,libxml2,libxslt1.1,libuuid1,zlib1g \
    --essential-hook='printf "postgres:x:999:999::/var/lib/postgresql:/bin/bash\n" >> "$1/etc/passwd"; printf "postgres:x:999:\n" >> "$1/etc/group"; printf "postgres:*:19000:0:99999:7:::\n" >> "$1/etc/shadow"; [ ! -e "$1/etc/gshadow" ] || printf "postgres:*::\n" >> "$1/etc/gshadow"' \
    --customize-hook='echo "en_US.UTF-8 UTF-8" >> "$1/etc/locale.gen"; chroot "$1" locale-gen' \
    --customize-hook='mkdir -p "$1/docker-entrypoint-initdb.d" "$1/var/lib/postgresql/data"; chroot "$1" chown postgres:postgres /var/lib/postgresql /var/lib/postgresql/data'
fi

cp "$here/Dockerfile" "$here/compile.sh" "$here/docker-entrypoint.sh" "$context/"
chmod 0755 "$context/compile.sh" "$context/docker-entrypoint.sh"
# The classic builder needs no plug-in. Without --force-rm, a step that fails leaves its container behind.
# The second build finds the first stage in the cache.
build() {
  DOCKER_BUILDKIT=0 docker build --quiet --force-rm --network none --build-arg "BLOCK_KIB=$block_kib" \
    --build-arg "WAL_BLOCK_KIB=$wal_block_kib" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
    "$@" "$context"
}
build --target compiled --tag "$compiled" >/dev/null
build --tag "$tag"
