#!/usr/bin/env bash
# Incast with tokens behind random narrow ports.
#
#   benches/netns/incast.sh [CASES] [SEED] [SECONDS OF EACH MEASUREMENT] [--json]
#
# Each case draws 3 to 16 senders, a rate of 20 to 200 Mb/s, a buffer of 16 to 64 KiB at the bridge's port to the
# receiver, and messages of 600 to 10,240 bytes, all from SEED. Hosts are network namespaces; each sender's end has the
# rate of the port. Required of tokens with early release: at least 95 % of the goodput of one sender, less than 0.1 %
# of the messages lost, and Jain's index 0.99. Exits with 1 if a case failed. --json prints one JSON document instead of
# the table. Needs root; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

JSON=
if (($#)) && [[ ${!#} == --json ]]; then
    JSON=yes
    set -- "${@:1:$#-1}"
fi
CASES=${1:-12}
SEED=${2:-1}
SECONDS_EACH=${3:-2}
for number in "$CASES" "$SEED" "$SECONDS_EACH"; do
    if [[ ! $number =~ ^[1-9][0-9]*$ ]]; then
        echo "usage: benches/netns/incast.sh [CASES] [SEED] [SECONDS OF EACH MEASUREMENT] [--json], each from 1, not $number" >&2
        exit 2
    fi
done
TAG=mi$$
NET=10.231.77
PORT=7000

source benches/netns/network.sh
needs tc timeout awk

cargo build --release --quiet --example incast
INCAST=${CARGO_TARGET_DIR:-target}/release/examples/incast

# measure SENDERS RATE BUFFER BYTES: goodput, loss and Jain's index.
measure() {
    local senders=$1 rate=$2 buffer=$3 bytes=$4 host pids=()
    remove_network
    add_bridge
    for ((host = 0; host <= senders; host++)); do
        add_host "$host"
        echo "$NET.$((10 + host)):$PORT"
    done >"$FOLDER/peers"
    for ((host = 1; host <= senders; host++)); do
        ip netns exec "$TAG-$host" tc qdisc add dev eth0 root tbf rate "${rate}mbit" burst 3200 limit 400000
        ip netns exec "$TAG-$host" ping -c 1 -W 1 "$NET.10" >/dev/null 2>&1 || true
    done
    ip netns exec "$TAG-sw" tc qdisc add dev port0 root tbf rate "${rate}mbit" burst 3200 limit "$buffer"
    for ((host = senders; host >= 0; host--)); do
        ip netns exec "$TAG-$host" timeout 60 "$INCAST" --fabric udp --mode token-etr --json --link-mbps "$rate" \
            --message-bytes "$bytes" --seconds "$SECONDS_EACH" --rank "$host" --peers "$FOLDER/peers" \
            >"$FOLDER/rank$host" 2>"$FOLDER/complaints" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    [[ -s $FOLDER/rank0 ]] || { echo "failed: $(tail -1 "$FOLDER/complaints")" >&2; echo 0 1 0; return; }
    echo "$(value goodput_mbps "$FOLDER/rank0") $(value loss "$FOLDER/rank0") $(value jain "$FOLDER/rank0")"
}

# draw LEAST MOST: sets DRAWN.
draw() { DRAWN=$(($1 + RANDOM % ($2 - $1 + 1))); }

FAILED=0
runs=
RANDOM=$SEED
[[ -n $JSON ]] ||
    printf '%8s%12s%10s%10s%12s%14s%9s%8s%8s\n' senders "rate Mb/s" buffer message "one, Mb/s" "all, Mb/s" "loss %" Jain bound
for ((case = 0; case < CASES; case++)); do
    draw 3 16 && senders=$DRAWN
    draw 20 200 && rate=$DRAWN
    draw 16 64 && buffer=$((1024 * DRAWN))
    draw 600 10240 && bytes=$DRAWN
    read -r one _ _ < <(measure 1 "$rate" "$buffer" "$bytes")
    read -r all loss jain < <(measure "$senders" "$rate" "$buffer" "$bytes")
    verdict=$(awk -v one="$one" -v all="$all" -v loss="$loss" -v jain="$jain" \
        'BEGIN {print (one > 0 && all >= 0.95 * one && loss < 0.001 && jain >= 0.99) ? "holds" : "fails"}')
    [[ $verdict == holds ]] || FAILED=1
    if [[ -n $JSON ]]; then
        ratio=$(awk -v one="$one" -v all="$all" 'BEGIN {print (one > 0 ? all / one : 0)}')
        runs+="${runs:+,}{\"senders\":$senders,\"link_mbps\":$rate,\"buffer_bytes\":$buffer,\"message_bytes\":$bytes"
        runs+=",\"goodput_of_one\":$ratio,\"loss\":$loss,\"jain\":$jain}"
        continue
    fi
    printf '%8s%12s%10s%10s%12.1f%14.1f%9.3f%8.3f%8s\n' "$senders" "$rate" "$buffer" "$bytes" "$one" "$all" \
        "$(awk -v loss="$loss" 'BEGIN {print 100 * loss}')" "$jain" "$verdict"
done
[[ -z $JSON ]] || echo "{\"runs\":[$runs]}"
exit $FAILED
