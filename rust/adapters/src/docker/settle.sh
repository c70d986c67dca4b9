# settle.sh AT_MOST_MS [LOOP_DEVICE...]
# Waits until the devices under /volume have been idle for a second.
at_most=$1
shift
sync -f /volume
stats=
if [ $# -eq 0 ]; then
    stats=/sys/dev/block/$(stat -c '%Hd:%Ld' /volume)/stat
fi
for loop; do stats="$stats /sys/block/${loop#/dev/}/stat"; done
for stat in $stats; do
    if [ ! -r "$stat" ]; then
        echo unseen
        exit 0
    fi
done
quiet=0 last=
deadline=$(($(date +%s%N) + at_most * 1000000))
while [ "$(date +%s%N)" -lt "$deadline" ]; do
    # Sectors written and requests in flight are the 7th and the 9th field.
    now=$(awk '{ written += $7; in_flight += $9 } END { print written, in_flight }' $stats)
    if [ "${now#* }" = 0 ] && [ "$now" = "$last" ]; then
        quiet=$((quiet + 1))
    else
        quiet=0 last=$now
    fi
    if [ "$quiet" -ge 10 ]; then
        echo idle
        exit 0
    fi
    sleep 0.1
done
echo busy
