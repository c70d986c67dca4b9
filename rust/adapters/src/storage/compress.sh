# compress.sh DIRECTORY
# Tells how much gzip leaves of the tables in a data directory: of the first MiB of each of the eight
# largest files that hold tables of PostgreSQL or InnoDB.
largest() {
    find "$1" -type f -size +64k \( -path '*/base/*' -o -name '*.ibd' \) -printf '%s %p\n' |
        sort -rn | head -n 8 | cut -d ' ' -f 2-
}
tables() { largest "$1" | while read -r file; do head -c 1048576 "$file"; done; }
echo "sample_bytes=$(tables "$1" | wc -c)"
echo "compressed_bytes=$(tables "$1" | gzip -1 | wc -c)"
