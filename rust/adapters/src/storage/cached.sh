# cached.sh DIRECTORY
# Tells how much of its files the kernel has in memory, but for those of an ageing.
residence() {
    find "$1" -xdev -name bedplate-ageing -prune -o -type f -exec fincore --bytes --noheadings --raw --output RES,SIZE {} +
}
residence "$1" | {
    cached_bytes=0 bytes=0
    while read -r resident size; do
        cached_bytes=$((cached_bytes + resident)) bytes=$((bytes + size))
    done
    echo "cached_bytes=$cached_bytes"
    echo "bytes=$bytes"
}
