#!/usr/bin/env bash
# Many nodes send to one through a narrow port, with receive tokens and without.
#
#   benches/netns/narrow_port.sh [SECONDS OF EACH MEASUREMENT] [ROUNDS]
#
# Hosts are network namespaces joined to a bridge. The bridge's port to the receiver sends at 100 Mb/s and holds 64 KiB;
# the senders' lines are as fast as the machine. Required with 3 and with 12 senders of bodies of 1 MB: with tokens, the
# port carries at least 85 Mb/s of bodies, shares are fair (Jain's index 0.99) and the port drops nothing after the
# senders have connected. Exits with 1 if a check failed. Needs root; where it can't run, it prints why, and exits with
# 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

SECONDS_EACH=${1:-4}
ROUNDS=${2:-3}
TAG=mn$$
NET=10.231.77
PORT=4700

source benches/netns/network.sh
needs tc timeout awk

NARROW=${NARROW:-${CARGO_TARGET_DIR:-target}/release/examples/narrow_port}
[[ -x $NARROW ]] || cargo build --release --quiet --example narrow_port

# Datagrams that the receiver's port has dropped.
dropped() { ip netns exec "$TAG-sw" tc -s qdisc show dev port0 | grep -o 'dropped [0-9]*' | head -1 | cut -d' ' -f2; }

FAILED=0
# measure TOKENS SENDERS
measure() {
    local host senders=$2 pids=() report=$FOLDER/report verdict=-
    remove_network
    add_bridge
    for ((host = 0; host <= senders; host++)); do add_host $host; done
    ip netns exec "$TAG-sw" tc qdisc add dev port0 root tbf rate 100mbit burst 3200 limit 65536
    ip netns exec "$TAG-0" timeout 60 "$NARROW" --bind "$NET.10:$PORT" --senders "$senders" --tokens "$1" \
        --seconds "$SECONDS_EACH" --json >"$report" 2>"$FOLDER/complaints" &
    pids+=($!)
    for ((host = 1; host <= senders; host++)); do
        ip netns exec "$TAG-$host" timeout 60 "$NARROW" --to "$NET.10:$PORT" >/dev/null 2>&1 &
        pids+=($!)
    done
    wait "${pids[0]}" || { cat "$FOLDER/complaints" >&2; FAILED=1; return; }
    local drops
    drops=$(dropped)
    kill "${pids[@]:1}" 2>/dev/null || true
    wait "${pids[@]:1}" 2>/dev/null || true
    if [[ $1 == on ]]; then
        verdict=$(awk -v g="$(value goodput_mbps "$report")" -v j="$(value jain "$report")" -v d="$drops" \
            'BEGIN {print (g >= 85 && j >= 0.99 && d == 0) ? "holds" : "fails"}')
        [[ $verdict == holds ]] || FAILED=1
    fi
    printf '%-8s%8s%16.1f%10.3f%10s%8s\n' "$1" "$senders" "$(value goodput_mbps "$report")" "$(value jain "$report")" \
        "$drops" "$verdict"
}

printf '%-8s%8s%16s%10s%10s%8s\n' tokens senders "goodput Mb/s" Jain dropped bound
for ((round = 1; round <= ROUNDS; round++)); do
    for senders in 3 12; do
        for tokens in off on; do measure $tokens $senders; done
    done
done
exit $FAILED
