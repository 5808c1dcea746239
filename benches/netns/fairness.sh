#!/usr/bin/env bash
# One stream of a node and one TCP Cubic stream of the kernel through one bottleneck: the share of each.
#
#   benches/netns/fairness.sh [ROUNDS] [RATES] [BUFFERS] [DELAY MS] [SECONDS OF EACH MEASUREMENT]
#
# RATES are in Mb/s, BUFFERS in KiB, both separated by commas; the buffer `bdp` is one product of rate and delay.
# Defaults: 4 rounds of 20,100,1000 Mb/s and 24,64,bdp at 10 ms, 8 s each. Hosts are network namespaces joined to a
# bridge, whose port to the receiver has the rate and the buffer; the receiver's packets are delayed. In every other
# round TCP starts first. `LAW=warp` measures another law, and so does `LAW=bbr`, with a program that was built with
# `--features bbr`. Required: the median of ours / TCP is between 0.5 and 2. Exits with 1 if it is not. Needs root;
# where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

ROUNDS=${1:-4}
RATES=${2:-20,100,1000}
BUFFERS=${3:-24,64,bdp}
DELAY=${4:-10}
SECONDS_EACH=${5:-8}
TAG=mq$$
NET=10.231.82
PORT=4700

source benches/netns/network.sh
needs tc timeout awk sort python3

LAB=${LAB:-${CARGO_TARGET_DIR:-target}/release/lab}
[[ -x $LAB ]] || cargo build --release --quiet -p midplane-benches

# delay_answers RATE: the receiver's packets leave by a second line, and arrive at the sender after the delay and up to
# the time of one packet at the bottleneck.
delay_answers() {
    local setting mac
    ip link add back netns "$TAG-0" type veth peer name back0 netns "$TAG-sw"
    ip -n "$TAG-sw" link set back0 up
    ip -n "$TAG-0" link set back gso_max_segs 1 up
    for setting in all back eth0; do
        ip netns exec "$TAG-0" sysctl -qw "net.ipv4.conf.$setting.rp_filter=0"
    done
    mac=$(ip netns exec "$TAG-1" cat /sys/class/net/eth0/address)
    ip -n "$TAG-0" neighbour add "$NET.11" lladdr "$mac" dev back
    ip -n "$TAG-0" route add "$NET.11/32" dev back src "$NET.10"
    ip netns exec "$TAG-sw" python3 benches/netns/delay.py back0 port1 "$DELAY" "$(awk -v rate="$1" 'BEGIN {print 12.112 / rate}')" &
}

# build_network RATE BUFFER: the buffer in bytes.
build_network() {
    remove_network
    add_bridge
    add_host 0
    add_host 1
    # From 500 Mb/s on the sender's line takes trains of 16 packets, or processors are the bottleneck.
    if (($1 >= 500)); then
        ip -n "$TAG-1" link set eth0 gso_max_segs 16
        ip -n "$TAG-sw" link set port1 gso_max_segs 16
    fi
    # The bucket holds two packets, or a tenth of a millisecond of the rate.
    local burst=$(($1 * 1000000 / 8 / 10000))
    ip netns exec "$TAG-sw" tc qdisc add dev port0 root tbf rate "$1mbit" burst $((burst > 3200 ? burst : 3200)) limit "$2"
    ((DELAY == 0)) || delay_answers "$1"
}

# measure FIRST: one round; appends both numbers to the file of rounds.
measure() {
    local receiver sender
    ip netns exec "$TAG-0" timeout 120 "$LAB" fairness --receive "$NET.10:$PORT" --seconds "$SECONDS_EACH" --json \
        >"$FOLDER/report" 2>>"$FOLDER/complaints" &
    receiver=$!
    sleep 0.3
    ip netns exec "$TAG-1" timeout 120 "$LAB" fairness --send "$NET.10:$PORT" --first "$1" ${LAW:+--law "$LAW"} \
        >/dev/null 2>>"$FOLDER/complaints" &
    sender=$!
    wait $receiver || { tail -3 "$FOLDER/complaints" >&2; exit 1; }
    kill $sender 2>/dev/null || true
    wait $sender 2>/dev/null || true
    echo "$(value ours_mbps "$FOLDER/report") $(value tcp_mbps "$FOLDER/report")" >>"$FOLDER/rounds"
}

# row RATE BUFFER: prints the medians, and the least and largest ratio.
row() {
    awk '{print $1 / ($2 > 0 ? $2 : 1e-9), $1, $2}' "$FOLDER/rounds" | sort -n | awk -v rate="$1" -v buffer="$2" '
        function median(a, n) { return (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2 }
        { ratio[NR] = $1; ours += $2; tcp += $3 }
        END {
            m = median(ratio, NR)
            printf "%8s%12s%12.1f%12.1f%10.2f%10.2f%10.2f%8s\n", rate, buffer, ours / NR, tcp / NR, m, ratio[1],
                ratio[NR], (m >= 0.5 && m <= 2) ? "holds" : "fails"
            exit !(m >= 0.5 && m <= 2)
        }'
}

build_network 100 65536 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"
FAILED=0
printf '%8s%12s%12s%12s%10s%10s%10s%8s\n' "Mb/s" "buffer B" "ours Mb/s" "TCP Mb/s" ratio least most bound
for rate in ${RATES//,/ }; do
    for buffer in ${BUFFERS//,/ }; do
        [[ $buffer == bdp ]] && bytes=$((rate * 1000000 / 8 * DELAY / 1000)) || bytes=$((buffer * 1024))
        rm -f "$FOLDER/rounds"
        for ((round = 1; round <= ROUNDS; round++)); do
            build_network "$rate" "$bytes"
            measure "$( ((round % 2)) && echo ours || echo tcp)"
        done
        row "$rate" "$bytes" || FAILED=1
    done
done
exit $FAILED
