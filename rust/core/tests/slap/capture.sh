#!/bin/bash
# Writes the captured cases beside this script anew, from the installed mysqlslap.
set -euo pipefail
cd "$(dirname "$0")"

# capture NAME ARGUMENT…: the command line, one argument a line behind `# `, then what was printed.
capture() {
  local name=$1
  shift
  {
    echo "# $(mysqlslap --version | sed 's/  */ /g')"
    printf '# %s\n' "$@"
    mysqlslap --no-defaults --only-print "$@"
  } >"$name.txt"
}

generate() {
  capture "$1" --auto-generate-sql "${@:2}"
}
small=(--auto-generate-sql-write-number=6 --auto-generate-sql-unique-write-number=3
  --auto-generate-sql-unique-query-number=3)

generate defaults
generate phoronix --number-int-cols=4 --number-char-cols=4 --auto-generate-sql-add-autoincrement \
  --auto-generate-sql-write-number=13 --auto-generate-sql-execute-number=25 --concurrency=2
generate write-guid "${small[@]}" --auto-generate-sql-guid-primary --number-char-cols=2:1 \
  --auto-generate-sql-secondary-indexes=2 --auto-generate-sql-load-type=write
generate update-none "${small[@]}" --number-int-cols=2:1 --auto-generate-sql-load-type=update
generate update-guid "${small[@]}" --number-int-cols=2 --auto-generate-sql-guid-primary \
  --auto-generate-sql-load-type=update
generate key-autoincrement "${small[@]}" --number-char-cols=0 --number-int-cols=3 \
  --auto-generate-sql-add-autoincrement --auto-generate-sql-load-type=key \
  --auto-generate-sql-secondary-indexes=1 --engine=memory:max_rows=23
generate read-autoincrement "${small[@]}" --number-int-cols=0 --iterations=2 \
  --auto-generate-sql-add-autoincrement --auto-generate-sql-load-type=read
generate commit "${small[@]}" --concurrency=2 --number-of-queries=12 --commit=3
capture custom '--delimiter=;' '--create=create table a (b int);insert into a values (1)' \
  '--query=select b from a;update a set b = b + 1' '--pre-query=set @x = 1;set @y = 2' \
  '--post-query=delete from a' --engine=innodb --concurrency=2 --iterations=2
