#!/bin/bash
# Stand-in for the entrypoint of the official image: the same environment variables, the same
# temporary server for the first start, the same final exec.
set -euo pipefail
: "${PGDATA:=/var/lib/postgresql/data}" "${POSTGRES_USER:=postgres}" "${POSTGRES_INITDB_ARGS:=}"
: "${POSTGRES_DB:=$POSTGRES_USER}"

case "${1:-postgres}" in -*) set -- postgres "$@" ;; esac
[ $# -gt 0 ] || set -- postgres
[ "$1" = postgres ] || exec "$@"

if [ "$(id -u)" = 0 ]; then
  install -d -m 0700 -o postgres -g postgres "$PGDATA"
  install -d -m 3775 -o postgres -g postgres /var/run/postgresql
  find "$PGDATA" ! -user postgres -exec chown postgres {} +
  exec gosu postgres "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
  if [ -z "${POSTGRES_PASSWORD:-}" ] && [ "${POSTGRES_HOST_AUTH_METHOD:-}" != trust ]; then
    echo "error: POSTGRES_PASSWORD is not set (or use POSTGRES_HOST_AUTH_METHOD=trust)" >&2
    exit 1
  fi
  # POSTGRES_INITDB_ARGS is a piece of shell in the official image too.
  eval "initdb -D \"$PGDATA\" --username=\"$POSTGRES_USER\" --pwfile=<(printf '%s\n' \"${POSTGRES_PASSWORD:-}\") $POSTGRES_INITDB_ARGS"
  printf '\nhost all all all %s\n' \
    "${POSTGRES_HOST_AUTH_METHOD:-$(postgres -D "$PGDATA" -C password_encryption)}" >>"$PGDATA/pg_hba.conf"

  # The temporary server writes to standard output through pg_ctl, the final one to standard error.
  arguments="-c listen_addresses=''"
  # With no words, printf would still print an empty one.
  [ $# -eq 1 ] || arguments="$(printf '%q ' "${@:2}")$arguments"
  PGUSER=$POSTGRES_USER pg_ctl -D "$PGDATA" -o "$arguments" -w start
  export PGPASSWORD=${POSTGRES_PASSWORD:-}
  if [ "$POSTGRES_DB" != postgres ]; then
    psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d postgres -c "CREATE DATABASE \"$POSTGRES_DB\""
  fi
  for file in /docker-entrypoint-initdb.d/*; do
    case "$file" in
      # shellcheck disable=SC1090
      *.sh) . "$file" ;;
      *.sql) psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -f "$file" ;;
    esac
  done
  unset PGPASSWORD
  pg_ctl -D "$PGDATA" -m fast -w stop
  printf '\nPostgreSQL init process complete; ready for start up.\n\n'
fi

exec "$@"
