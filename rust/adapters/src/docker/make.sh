# make.sh PREFIX DEVICES SIZE BYTES_NEEDED SCHEDULER READ_AHEAD_KIB MKFS [ARGUMENT...]
# Writes image files PREFIX0.img and so on, attaches a loop device to each and makes a file system of
# them.
prefix=$1 devices=$2 size=$3 needed=$4 scheduler=$5 read_ahead=$6
shift 6
set_free() { free=$(($1 * $2)); }
set_free $(stat -f -c '%a %S' "$(dirname "$prefix")")
if [ "$free" -lt "$needed" ]; then
    echo "free=$free"
    exit 71
fi
zeros() {
    dd if=/dev/zero of="$image" bs=4M count="$size" iflag=count_bytes conv=fsync status=none "$@"
}
# A container sees the kernel's settings as they are, and may not change them before this.
mount -o remount,rw /sys 2>/dev/null || true
loops=
number=0
while [ "$number" -lt "$devices" ]; do
    image=$prefix$number.img
    # Not every file system that may hold the image has direct I/O.
    zeros oflag=direct 2>/dev/null || zeros
    # A loop device that the kernel adds has a node only where /dev is the kernel's own.
    free_loop=$(losetup -f)
    [ -b "$free_loop" ] || mknod -m 0600 "$free_loop" b 7 "${free_loop#/dev/loop}"
    loop=$(losetup -f --show --nooverlap --direct-io=on "$image")
    queue=/sys/block/${loop#/dev/}/queue
    # What could not be set is seen when it is read back. A device keeps the cache that whoever had it
    # before told it to have.
    echo "write back" >"$queue/write_cache" || true
    echo "$scheduler" >"$queue/scheduler" || true
    [ -z "$read_ahead" ] || echo "$read_ahead" >"$queue/read_ahead_kb" || true
    loops="$loops $loop"
    number=$((number + 1))
done
echo "loop_devices=$loops"
echo "mkfs_command=$*$loops"
echo "mkfs_version=$("$1" -V 2>&1 | head -n 1)"
"$@" $loops 1>&2
