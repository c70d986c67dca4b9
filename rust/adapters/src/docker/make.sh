# make.sh IMAGE SIZE BYTES_NEEDED MKFS [ARGUMENT...]
# Writes an image file, attaches a loop device to it and makes a file system there.
image=$1 size=$2 needed=$3
shift 3
set_free() { free=$(($1 * $2)); }
set_free $(stat -f -c '%a %S' "$(dirname "$image")")
if [ "$free" -lt "$needed" ]; then
    echo "free=$free"
    exit 71
fi
zeros() {
    dd if=/dev/zero of="$image" bs=4M count="$size" iflag=count_bytes conv=fsync status=none "$@"
}
# Not every file system that may hold the image has direct I/O.
zeros oflag=direct 2>/dev/null || zeros
# A loop device that the kernel adds has a node only where /dev is the kernel's own.
free_loop=$(losetup -f)
[ -b "$free_loop" ] || mknod -m 0600 "$free_loop" b 7 "${free_loop#/dev/loop}"
loop=$(losetup -f --show --nooverlap --direct-io=on "$image")
echo "loop_device=$loop"
echo "mkfs_command=$* $loop"
echo "mkfs_version=$("$1" -V 2>&1 | head -n 1)"
"$@" "$loop" 1>&2
