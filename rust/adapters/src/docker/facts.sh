# facts.sh [PREFIX LOOP_DEVICE...]
# Tells what is known of the volume at /volume and, if there are any, of the images under it.
echo "block_size_bytes=$(stat -f -c %s /volume)"
echo "mountinfo=$(awk '$5 == "/volume"' /proc/self/mountinfo | tail -n 1)"
[ $# -eq 0 ] && exit 0
prefix=$1
shift
attached= bytes=0 allocated=0 number=0
for loop; do
    image=$prefix$number.img
    attached="$attached $(losetup -n -O NAME -j "$image" | tr '\n' ' ')"
    bytes=$((bytes + $(stat -c %s "$image")))
    allocated=$((allocated + $(stat -c %b "$image") * $(stat -c %B "$image")))
    number=$((number + 1))
done
echo "attached=$attached"
echo "image_bytes=$bytes"
echo "image_allocated_bytes=$allocated"
# What all devices have, or what each has where they differ.
of_all() {
    file=$1
    shift
    for loop; do cat "/sys/block/${loop#/dev/}/$file"; done | uniq | paste -s -d ' '
}
echo "loop_direct_io=$(of_all loop/dio "$@")"
echo "loop_write_cache=$(of_all queue/write_cache "$@")"
echo "loop_scheduler=$(of_all queue/scheduler "$@")"
# The kernel counts in KiB.
echo "loop_read_ahead_bytes=$(of_all queue/read_ahead_kb "$@" | awk '{
    for (i = 1; i <= NF; i++) $i *= 1024
    print
}')"
echo "backing=$(awk '$5 == "/backing"' /proc/self/mountinfo | tail -n 1)"
for btrfs in /sys/fs/btrfs/*/; do
    [ -e "${btrfs}devices/${1#/dev/}" ] || continue
    for what in data metadata; do
        # A profile without a block group is what mkfs started with.
        echo "${what}_profile=$(for profile in "${btrfs}allocation/$what"/*/; do
            [ "$(cat "${profile}total_bytes")" = 0 ] || basename "$profile"
        done | paste -s -d ' ')"
    done
    case $(lsattr -d /volume | cut -d ' ' -f 1) in
        *C*) echo nodatacow=true ;;
        *) echo nodatacow=false ;;
    esac
done
