#!/bin/bash
# build.sh OUT_DIR TAG
#
# Builds the storage-helper image: Debian 12 with the tools that make file systems on loop devices
# (e2fsprogs, xfsprogs, btrfs-progs, util-linux), for site `docker`. Needs mmdebstrap and a Docker daemon; the
# package mirror is the one that this machine's own apt uses.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: build.sh OUT_DIR TAG" >&2; exit 2; }
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$1
TAG=$2

MIRROR=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" | grep -m1 -E '/debian/?$')}
SECURITY=${SECURITY:-${MIRROR%/}-security}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# One date for every file, so that two builds of the same packages are the same image.
export SOURCE_DATE_EPOCH=1757670000

mkdir -p "$OUT"
rm -rf "$OUT/storage-helper"
mkdir "$OUT/storage-helper"
mmdebstrap --quiet --mode=auto --variant=minbase \
    --include=e2fsprogs,xfsprogs,btrfs-progs,util-linux,mount \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --aptopt='APT::Install-Recommends "false"' \
    --customize-hook='rm -f "$1"/var/cache/debconf/config.dat* "$1"/etc/machine-id' \
    bookworm "$OUT/storage-helper/rootfs.tar" \
    "deb [signed-by=$KEYRING] $MIRROR bookworm main" \
    "deb [signed-by=$KEYRING] $MIRROR bookworm-updates main" \
    "deb [signed-by=$KEYRING] $SECURITY bookworm-security main"
cp "$HERE/Dockerfile" "$OUT/storage-helper/Dockerfile"
# The classic builder needs no plug-in, and no image from any registry is involved.
DOCKER_BUILDKIT=0 docker build --quiet --tag "$TAG" "$OUT/storage-helper"
rm -rf "$OUT/storage-helper"
