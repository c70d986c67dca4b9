#!/bin/bash
# What `make demo` does once the wheel is installed: the images, one small study, its table.
set -euo pipefail
cd "$(dirname "$0")/.."
bedplate=.venv/bin/bedplate

if docker version >/dev/null 2>&1; then
  images=(postgres mariadb)
  [ "$(id -u)" = 0 ] || images+=(storage-helper)
  "$bedplate" images get "${images[@]}"
  exec "$bedplate" run specs/quick-engines.toml
fi
if [ "$(id -u)" = 0 ]; then
  echo "There is no Docker here: the PostgreSQL of this machine is measured, on ext4 and xfs." >&2
  exec "$bedplate" run specs/quick-process.toml
fi
echo "There is neither Docker nor root here: this measures the PostgreSQL of this machine on the" \
  "file system that holds its directory, and compares no file systems." >&2
exec "$bedplate" run specs/quick-directory.toml
