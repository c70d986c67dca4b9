#!/bin/bash
# Stand-in for the entrypoint of the official image: the same environment variables (those of old
# images, MYSQL_*, and the new names), the same temporary server for the first start, the same final
# exec.
set -euo pipefail

case "${1:-mysqld}" in -*) set -- mysqld "$@" ;; esac
[ $# -gt 0 ] || set -- mysqld
case "$1" in mysqld | mariadbd) ;; *) exec "$@" ;; esac

root_password=${MARIADB_ROOT_PASSWORD:-${MYSQL_ROOT_PASSWORD:-}}
root_host=${MARIADB_ROOT_HOST:-${MYSQL_ROOT_HOST:-%}}
allow_empty=${MARIADB_ALLOW_EMPTY_ROOT_PASSWORD:-${MYSQL_ALLOW_EMPTY_PASSWORD:-}}
database=${MARIADB_DATABASE:-${MYSQL_DATABASE:-}}
user=${MARIADB_USER:-${MYSQL_USER:-}}
password=${MARIADB_PASSWORD:-${MYSQL_PASSWORD:-}}

# The value that the server would use; a help line that mentions the name begins with a blank or a dash.
# Whatever is wrong with the arguments, the server itself says so here.
help=$("$@" --verbose --help 2>/dev/null) || { "$@" --verbose --help >/dev/null && exit 1 || exit; }
value_of() { awk -v name="$1" '$1 == name && /^[^ \t]/ { print $2; exit }' <<<"$help"; }
datadir=$(value_of datadir)
socket=$(value_of socket)
case "$datadir$socket" in
  /?*/?*) ;;
  *) echo "error: the server does not say where its data directory and its socket are" >&2 && exit 1 ;;
esac

if [ "$(id -u)" = 0 ]; then
  # Where the configuration of the image has the socket and the number of the process.
  install -d -m 1777 -o mysql -g mysql /run/mysqld
  mkdir -p "$datadir" "${socket%/*}"
  find "$datadir" ! -user mysql -exec chown mysql:mysql {} +
  find "${socket%/*}" -maxdepth 0 ! -user mysql -exec chown mysql:mysql {} +
  exec gosu mysql "$0" "$@"
fi

if [ ! -d "$datadir/mysql" ]; then
  if [ -z "$root_password$allow_empty" ]; then
    echo "error: MYSQL_ROOT_PASSWORD is not set (or use MYSQL_ALLOW_EMPTY_PASSWORD=1)" >&2
    exit 1
  fi
  mysql_install_db --datadir="$datadir" --auth-root-authentication-method=normal --skip-test-db \
    --rpm "${@:2}" >/dev/null
  "$@" --skip-networking --socket="$socket" &
  server=$!
  for _ in $(seq 120); do
    mysqladmin --no-defaults --user=root --socket="$socket" ping >/dev/null 2>&1 && break
    kill -0 "$server" 2>/dev/null || { wait "$server" && exit 1 || exit; }
    sleep 0.25
  done
  sql() { mysql --no-defaults --user=root --socket="$socket" "$@"; }
  quoted() { printf "'%s'" "$(sed "s/[\\\\']/\\\\&/g" <<<"$1")"; }

  if [ -z "${MARIADB_INITDB_SKIP_TZINFO:-${MYSQL_INITDB_SKIP_TZINFO:-}}" ]; then
    mysql_tzinfo_to_sql --skip-write-binlog /usr/share/zoneinfo 2>/dev/null | sql mysql
  fi
  [ -z "$database" ] || sql -e "CREATE DATABASE IF NOT EXISTS \`$database\`"
  if [ -n "$user" ]; then
    sql -e "CREATE USER $(quoted "$user")@'%' IDENTIFIED BY $(quoted "$password")"
    [ -z "$database" ] || sql -e "GRANT ALL ON \`$database\`.* TO $(quoted "$user")@'%'"
  fi
  for file in /docker-entrypoint-initdb.d/*; do
    case "$file" in
      # shellcheck disable=SC1090
      *.sh) . "$file" ;;
      *.sql) sql ${database:+"$database"} <"$file" ;;
    esac
  done
  # What the installation made for root at other hosts has no password, and would be preferred to the
  # account that has one.
  sql -N -e "SELECT CONCAT('DROP USER ', QUOTE(User), '@', QUOTE(Host), ';') FROM mysql.user
    WHERE User IN ('', 'root') AND Host <> 'localhost'" | sql
  sql <<END
CREATE USER IF NOT EXISTS 'root'@$(quoted "$root_host") IDENTIFIED BY $(quoted "$root_password");
GRANT ALL ON *.* TO 'root'@$(quoted "$root_host") WITH GRANT OPTION;
SET PASSWORD FOR 'root'@'localhost' = PASSWORD($(quoted "$root_password"));
FLUSH PRIVILEGES;
END
  kill -TERM "$server"
  wait "$server"
  printf '\nMariaDB init process done. Ready for start up.\n\n'
fi

exec "$@"
