# facts.sh [IMAGE LOOP_DEVICE]
# Tells what is known of the volume at /volume and, if there is one, of the image under it.
echo "block_size_bytes=$(stat -f -c %s /volume)"
echo "mountinfo=$(awk '$5 == "/volume"' /proc/self/mountinfo | tail -n 1)"
[ $# -eq 0 ] && exit 0
image=$1 name=${2#/dev/}
echo "attached=$(losetup -n -O NAME -j "$image" | tr '\n' ' ')"
echo "image_bytes=$(stat -c %s "$image")"
echo "image_allocated_bytes=$(($(stat -c %b "$image") * $(stat -c %B "$image")))"
echo "loop_direct_io=$(cat "/sys/block/$name/loop/dio")"
echo "loop_write_cache=$(cat "/sys/block/$name/queue/write_cache")"
echo "loop_scheduler=$(cat "/sys/block/$name/queue/scheduler")"
echo "backing=$(awk '$5 == "/backing"' /proc/self/mountinfo | tail -n 1)"
