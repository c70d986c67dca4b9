# settle.sh AT_MOST_MS
# Waits until the device under /volume has been idle for a second.
sync -f /volume
stat=/sys/dev/block/$(stat -c '%Hd:%Ld' /volume)/stat
if [ ! -r "$stat" ]; then
    echo unseen
    exit 0
fi
quiet=0 last=
deadline=$(($(date +%s%N) + $1 * 1000000))
while [ "$(date +%s%N)" -lt "$deadline" ]; do
    # Sectors written and requests in flight are the 7th and the 9th field.
    read -r _ _ _ _ _ _ written _ inflight _ <"$stat"
    if [ "$inflight" = 0 ] && [ "$written" = "$last" ]; then
        quiet=$((quiet + 1))
    else
        quiet=0 last=$written
    fi
    if [ "$quiet" -ge 10 ]; then
        echo idle
        exit 0
    fi
    sleep 0.1
done
echo busy
