#!/usr/bin/env bash
# The kernel's UDP and TCP behind narrow ports, and the same in virtual time.
#
#   benches/netns/fidelity.sh [CASES] [SEED] [SECONDS OF EACH MEASUREMENT] [RESULTS]
#
# Each case draws 2 to 12 senders, a rate of 10 to 200 Mb/s, a buffer of 8 to 128 KiB at the port to the receiver, and
# messages of 200 to 10,240 bytes (half of them below 1,431), all from SEED. Hosts are network namespaces; a packet
# counts as on Ethernet, with preamble, checksum and gap. Cases of more than 60,000 packets per second in all are drawn
# again: two cores can't send more. Both sides run the same code (`benches/simulated/src/bin/fidelity`). RESULTS gets a
# line of JSON for each measurement. Bounds on the error of the goodput: 3 % in the median and 10 % at most for UDP, 10
# % and 25 % for TCP. Exits with 1 if an error is larger. Needs root; where it can't run, it prints why, and exits with
# 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

CASES=${1:-40}
SEED=${2:-1}
SECONDS_EACH=${3:-3}
TAG=mf$$
NET=10.231.83

for number in "$CASES" "$SEED" "$SECONDS_EACH"; do
    if [[ ! $number =~ ^[1-9][0-9]*$ ]]; then
        echo "usage: benches/netns/fidelity.sh [CASES] [SEED] [SECONDS OF EACH MEASUREMENT] [RESULTS], each from 1, not $number" >&2
        exit 2
    fi
done

source benches/netns/network.sh
needs tc timeout sysctl awk
RESULTS=${4:-$FOLDER/results}

FIDELITY=${FIDELITY:-}
if [[ -z $FIDELITY ]]; then
    target=${CARGO_TARGET_DIR:-benches/simulated/target}
    cargo build --release --quiet --manifest-path benches/simulated/Cargo.toml --target-dir "$target" --bin fidelity
    FIDELITY=$target/release/fidelity
fi

# shape SPACE DEVICE RATE LIMIT: the bucket holds two packets, or a tenth of a millisecond of the rate.
shape() {
    local burst=$(($3 * 1000000 / 8 / 10000))
    ip netns exec "$1" tc qdisc add dev "$2" root stab overhead 24 mpu 84 linklayer ethernet \
        tbf rate "${3}mbit" burst $((burst > 3200 ? burst : 3200)) limit "$4"
}

# build_network SENDERS RATE BUFFER: host 0 receives, the last one probes.
build_network() {
    local host
    remove_network
    add_bridge
    for ((host = 0; host <= $1 + 1; host++)); do
        add_host "$host"
        ip netns exec "$TAG-$host" sysctl -qw net.ipv4.tcp_congestion_control=cubic
    done
    for ((host = 1; host <= $1 + 1; host++)); do
        shape "$TAG-$host" eth0 "$2" 400000
        ip netns exec "$TAG-$host" ping -c 1 -W 1 "$NET.10" >/dev/null 2>&1 || true
    done
    shape "$TAG-sw" port0 "$2" "$3"
}

# measure PROTOCOL SENDERS RATE BUFFER BYTES: prints the receiver's JSON.
measure() {
    local host pids=() receiver common=(--seconds "$SECONDS_EACH")
    build_network "$2" "$3" "$4"
    ip netns exec "$TAG-0" timeout 60 "$FIDELITY" receive --protocol "$1" --senders "$2" "${common[@]}" &
    receiver=$!
    sleep 0.1
    for ((host = 1; host <= $2; host++)); do
        ip netns exec "$TAG-$host" timeout 60 "$FIDELITY" send "$NET.10" --index $((host - 1)) \
            --message-bytes "$5" --protocol "$1" "${common[@]}" 2>>"$FOLDER/complaints" &
        pids+=($!)
    done
    ip netns exec "$TAG-$host" timeout 60 "$FIDELITY" probe "$NET.10" "${common[@]}" 2>>"$FOLDER/complaints" &
    pids+=($!)
    wait $receiver
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
}

# draw LEAST MOST: sets DRAWN.
draw() { DRAWN=$(($1 + RANDOM % ($2 - $1 + 1))); }

build_network 1 10 65536 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"
RANDOM=$SEED
: >"$RESULTS"
for ((case = 0; case < CASES; case++)); do
    while true; do
        draw 2 12 && senders=$DRAWN
        draw 10 200 && rate=$DRAWN
        draw 8 128 && buffer=$((1024 * DRAWN))
        draw 0 1000 && bytes=$(awk -v part="$DRAWN" 'BEGIN {printf "%d", 200 * 51.2 ^ (part / 1000)}')
        packet=$((bytes < 1472 ? bytes + 66 : 1538))
        ((senders * rate * 1000000 / 8 / packet > 60000)) || break
    done
    for protocol in udp tcp; do
        setting=(--senders "$senders" --link-mbps "$rate" --buffer-bytes "$buffer" --message-bytes "$bytes")
        kernel=$(measure $protocol "$senders" "$rate" "$buffer" "$bytes")
        sim=$("$FIDELITY" simulate --protocol $protocol "${setting[@]}" --seconds "$SECONDS_EACH")
        printf '{"senders":%d,"link_mbps":%d,"buffer_bytes":%d,"message_bytes":%d,"protocol":"%s","kernel":%s,"sim":%s}\n' \
            "$senders" "$rate" "$buffer" "$bytes" $protocol "$kernel" "$sim" >>"$RESULTS"
        echo "case $((case + 1)) of $CASES: $senders senders, $rate Mb/s, $buffer B, messages of $bytes B, $protocol" >&2
    done
done
"$FIDELITY" table "$RESULTS"
