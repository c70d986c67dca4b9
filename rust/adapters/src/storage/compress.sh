# compress.sh DIRECTORY
# Tells how much gzip leaves of the tables in a data directory: of 8 MiB from the beginnings of the eight largest files
# that hold tables of PostgreSQL or InnoDB, from each as much as its size has in that of all.
sample_bytes=8388608
largest() {
    find "$1" -type f -size +64k \( -path '*/base/*' -o -name '*.ibd' \) -printf '%s %p\n' |
        sort -rn | head -n 8
}
sample() {
    largest "$1" | {
        total=0 list=
        while read -r size file; do
            total=$((total + size)) list="$list$size $file
"
        done
        printf '%s' "$list" | while read -r size file; do
            head -c $((sample_bytes * size / total)) "$file"
        done
    }
}
echo "sample_bytes=$(sample "$1" | wc -c)"
echo "compressed_bytes=$(sample "$1" | gzip -1 | wc -c)"
