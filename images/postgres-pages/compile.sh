#!/bin/bash
# compile.sh BLOCK_KIB WAL_BLOCK_KIB DESTINATION
#
# Runs in the builder: compiles PostgreSQL 13 with the flags and paths of Debian's package (its
# debian/rules), less what the builder lacks, and installs it below DESTINATION.
set -euo pipefail
block_kib=$1
wal_block_kib=$2
destination=$3

# Niceness does not reach what the daemon starts, and someone may be measuring on this machine.
renice -n 19 -p $$ >/dev/null

source=/tmp/source
dpkg-source --no-check --extract /usr/src/postgresql-13_*.dsc "$source" >/dev/null
cd "$source"
version=$(dpkg-parsechangelog --show-field Version)
multiarch=$(dpkg-architecture --query DEB_HOST_MULTIARCH)
# Debian's flags, without the debugging symbols that it would strip.
export DEB_BUILD_MAINT_OPTIONS=hardening=+all DEB_CFLAGS_STRIP=-g
eval "$(dpkg-buildflags --export=sh)"
[ "$(dpkg-architecture --query DEB_HOST_ARCH)" != amd64 ] || CFLAGS+=' -fno-omit-frame-pointer'

mkdir build
cd build
../configure --quiet \
  --with-blocksize="$block_kib" \
  --with-wal-blocksize="$wal_block_kib" \
  --with-extra-version=" (compiled from Debian $version)" \
  --prefix=/usr \
  --datarootdir=/usr/share/ \
  --datadir=/usr/share/postgresql/13 \
  --sysconfdir=/etc/postgresql-common \
  --bindir=/usr/lib/postgresql/13/bin \
  --libdir="/usr/lib/$multiarch/" \
  --libexecdir=/usr/lib/postgresql/ \
  --includedir=/usr/include/postgresql/ \
  --with-system-tzdata=/usr/share/zoneinfo \
  --enable-thread-safety --enable-dtrace --disable-rpath --with-gnu-ld --with-pgport=5432 \
  --with-uuid=e2fs --with-icu --with-pam --with-openssl --with-libxml --with-libxslt \
  --with-gssapi --with-ldap --with-systemd \
  CFLAGS="$CFLAGS" LDFLAGS="$LDFLAGS"
# The server, its tools and PL/pgSQL; neither ECPG nor the regression tests nor contrib.
parts=(
  src/common src/port src/timezone src/backend src/backend/utils/mb/conversion_procs
  src/backend/snowball src/interfaces/libpq src/fe_utils src/bin src/pl/plpgsql
)
for part in "${parts[@]}"; do
  make --silent -j"$(nproc)" -C "$part" all
  make --silent -C "$part" install DESTDIR="$destination"
done
cd /
rm -rf "$source"

# What one compiles against the server with. Debian has that in packages of its own.
rm -rf "$destination/usr/include" "$destination/usr/share/doc" "$destination/usr/lib/postgresql/13/lib/pgxs"
find "$destination" \( -name '*.a' -o -name libpq.so -o -name pkgconfig -o -name 'libecpg*' -o -name 'libpgtypes*' \
  -o -name ecpg \) -prune -exec rm -rf {} +
find "$destination" -type f \( -path '*/bin/*' -o -name '*.so*' \) -exec strip --strip-unneeded {} +
sed -ri "s/^#?(listen_addresses)\s*=.*/\1 = '*'/" "$destination/usr/share/postgresql/13/postgresql.conf.sample"
find "$destination" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
