# undo.sh IMAGE
# Detaches every loop device of an image (found by device and inode), then removes the image.
image=$1
[ -e "$image" ] || exit 0
tries=0
while loops=$(losetup -n -O NAME -j "$image") && [ -n "$loops" ]; do
    if [ "$tries" -ge 100 ]; then
        echo "$image is still attached to $loops" >&2
        exit 72
    fi
    # In use, a device goes when its last user does.
    for loop in $loops; do
        [ -b "$loop" ] || mknod -m 0600 "$loop" b 7 "${loop#/dev/loop}"
        losetup -d "$loop" || true
    done
    tries=$((tries + 1))
    [ -z "$(losetup -n -O NAME -j "$image")" ] || sleep 0.1
done
rm -f "$image"
