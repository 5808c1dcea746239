#!/usr/bin/env bash
# Effects of an uncoordinated flood: tokens, two seconds of flood, tokens again, all in one network.
#
#   benches/netns/after_flood.sh [SECONDS OF EACH MEASUREMENT]
#
# Hosts are network namespaces joined to a bridge. Each leaves at 100 Mb/s, and so does the bridge's port to the
# receiver, which holds 64 KiB. Required with 3 and with 12 senders: after the flood, tokens, tokens released early and
# Warp under tokens carry at least 95 % of the payload that the port can carry, and tokens lose nothing; no host makes
# or receives an IP fragment. Exits with 1 if a check failed. Needs root; where it can't run, it prints why, and exits
# with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

SECONDS_EACH=${1:-2}
MESSAGE=10240
TAG=mf$$
NET=10.231.78
PORT=7000

source benches/netns/network.sh
needs tc timeout awk

shape() { ip netns exec "$1" tc qdisc add dev "$2" root tbf rate 100mbit burst 3200 limit "$3"; }

# build_network SENDERS
build_network() {
    local host
    remove_network
    add_bridge
    for ((host = 0; host <= $1; host++)); do add_host $host; done
    for ((host = 1; host <= $1; host++)); do shape "$TAG-$host" eth0 400000; done
    shape "$TAG-sw" port0 65536
    # Addresses are resolved before the measurements.
    for ((host = 1; host <= $1; host++)); do
        ip netns exec "$TAG-$host" ping -c 1 -W 1 "$NET.10" >/dev/null 2>&1 || true
    done
}

# fragments SENDERS: IP fragments that the hosts made, received, or failed to join.
fragments() {
    local host
    for ((host = 0; host <= $1; host++)); do
        ip netns exec "$TAG-$host" awk '/^Ip: [A-Z]/ {split($0, names)} /^Ip: [0-9]/ {
            for (i in names) if (names[i] ~ /^(ReasmReqds|ReasmFails|FragCreates)$/) sum += $i
            print sum + 0
        }' /proc/net/snmp
    done | awk '{s += $1} END {print s + 0}'
}

# measure MODE SENDERS SECONDS
measure() {
    local mode=$1 senders=$2 pids=() pid i
    for ((i = 0; i <= senders; i++)); do echo "$NET.$((10 + i)):$PORT"; done >"$FOLDER/peers"
    rm -f "$FOLDER"/report*
    for ((i = senders; i >= 0; i--)); do
        ip netns exec "$TAG-$i" timeout 60 "$INCAST" --fabric udp --mode "$mode" --json --wait 10 \
            --message-bytes $MESSAGE --seconds "$3" --buffer-bytes 65536 --rank "$i" \
            --peers "$FOLDER/peers" >"$FOLDER/report$i" 2>>"$FOLDER/complaints" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
}

FAILED=0
# row WHEN MODE SENDERS [SHARE LOSS]: prints the measurements, and checks them against the bounds, if given.
row() {
    local report=$FOLDER/report0 verdict=-
    if [[ ! -s $report ]]; then
        printf '%-14s%-12s%8s%16s\n' "$1" "$2" "$3" failed
        tail -3 "$FOLDER/complaints" >&2
        FAILED=1
        return
    fi
    if [[ -n ${4:-} ]]; then
        verdict=$(awk -v g="$(value goodput_mbps "$report")" -v l="$(value loss "$report")" -v most="$MOST" -v share="$4" \
            -v loss="$5" 'BEGIN {print (g >= share * most && l <= loss) ? "holds" : "fails"}')
        [[ $verdict == holds ]] || FAILED=1
    fi
    printf '%-14s%-12s%8s%16s%10s%12s\n' "$1" "$2" "$3" "$(value goodput_mbps "$report")" \
        "$(awk -v l="$(value loss "$report")" 'BEGIN {printf "%.3f", 100 * l}')" "$verdict"
}

INCAST=${INCAST:-${CARGO_TARGET_DIR:-target}/release/examples/incast}
[[ -x $INCAST ]] || cargo build --release --quiet --example incast

build_network 3 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"

# A message leaves as datagrams of 1,424 bytes of it, with headers of 48, 8, 20 and 14 bytes.
MOST=$(awk -v m=$MESSAGE 'BEGIN {n = int((m + 1423) / 1424); printf "%.2f", 100 * m / (m + n * 90)}')
echo "Port of 100 Mb/s with 64 KiB, messages of $MESSAGE bytes: at most $MOST Mb/s of them"
printf '%-14s%-12s%8s%16s%10s%12s\n' when mode senders "goodput Mb/s" "loss %" "bound"
for senders in 3 12; do
    build_network $senders
    measure token $senders "$SECONDS_EACH"
    row "before" token $senders 0.95 0
    measure none $senders 2
    row "flood" none $senders
    for mode in token token-etr token-warp; do
        measure $mode $senders "$SECONDS_EACH"
        row "after" $mode $senders 0.95 "$([[ $mode == token ]] && echo 0 || echo 0.001)"
    done
    count=$(fragments $senders)
    echo "IP fragments with $senders senders: $count"
    [[ $count == 0 ]] || FAILED=1
done
exit $FAILED
