#!/usr/bin/env bash
# Kernel UDP, kernel TCP and ours on the same congested link.
#
#   benches/netns/run.sh [seconds of each measurement]
#
# Hosts are network namespaces, joined by veth pairs to a bridge in one more. Each sender's end leaves at 100 Mb/s; so
# does the bridge's port to the receiver, which holds 32 KiB. Everything runs inside of namespaces that the script
# makes, and removes when it ends. Needs root; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

SECONDS_EACH=${1:-2}
MESSAGE=10240
TAG=mp$$
NET=10.231.77
PORT=7000

source benches/netns/network.sh
needs tc timeout awk

shape() { ip netns exec "$1" tc qdisc add dev "$2" root tbf rate 100mbit burst 3200 limit "$3"; }

build_network() {
    add_bridge
    for host in 0 1 2 3; do add_host $host; done
    for sender in 1 2 3; do shape "$TAG-$sender" eth0 400000; done
    shape "$TAG-sw" port0 32768
    # Addresses are resolved before the measurements.
    for sender in 1 2 3; do
        ip netns exec "$TAG-$sender" ping -c 1 -W 1 "$NET.10" >/dev/null 2>&1 || true
    done
}

# Fragments of lost datagrams fill a host's memory for half a minute, and datagrams that arrive then are lost as well:
# each measurement has a network of its own.
fresh() {
    remove_network
    build_network
    "$@"
}

# value NAME FILE: a number or list of a JSON document of ours.
value() { grep -o "\"$1\":\(\[[^]]*\]\|[0-9.e+-]*\)" "$2" | head -1 | cut -d: -f2 | tr -d '[]'; }

row() { printf '%-24s%8s%16s%10s%9s\n' "$@"; }

# write_peers SENDERS: writes the addresses of all nodes, in the order of ranks.
write_peers() { for ((i = 0; i <= $1; i++)); do echo "$NET.$((10 + i)):$PORT"; done >"$FOLDER/peers"; }

# kernel PROTOCOL SENDERS
kernel() {
    local protocol=$1 senders=$2 received pids=()
    local common=(--protocol "$protocol" --seconds "$SECONDS_EACH")
    ip netns exec "$TAG-0" timeout 60 "$FIDELITY" receive --senders "$senders" "${common[@]}" >"$FOLDER/received" &
    received=$!
    sleep 0.3
    for ((i = 1; i <= senders; i++)); do
        ip netns exec "$TAG-$i" timeout 60 "$FIDELITY" send "$NET.10" --index $((i - 1)) \
            --message-bytes "$MESSAGE" "${common[@]}" 2>/dev/null &
        pids+=($!)
    done
    wait "$received"
    wait "${pids[@]}" || true
    # Where no datagram has arrived whole, the receiver does not know how many were sent.
    value sender_mbps "$FOLDER/received" | awk -F, -v name="kernel ${protocol^^}" -v n="$senders" \
        -v protocol="$protocol" -v loss="$(value loss "$FOLDER/received")" '{
            for (i = 1; i <= NF; i++) { sum += $i; squares += $i * $i }
            loss = protocol == "tcp" ? "-" : sprintf("%.3f", sum ? 100 * loss : 100)
            printf "%-24s%8s%16.2f%10s%9.4f\n", name, n, sum, loss, squares ? sum * sum / (NF * squares) : 1
        }'
}

# ours MODE SENDERS
ours() {
    local mode=$1 senders=$2 pids=()
    write_peers "$senders"
    for ((i = senders; i >= 0; i--)); do
        ip netns exec "$TAG-$i" timeout 60 "$INCAST" --fabric udp --mode "$mode" --json \
            --message-bytes $MESSAGE --seconds "$SECONDS_EACH" --rank "$i" \
            --peers "$FOLDER/peers" >"$FOLDER/ours$i" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    local report=$FOLDER/ours0
    if [[ ! -s $report ]]; then
        row "midplane $mode" "$senders" failed - -
        return
    fi
    row "midplane $mode" "$senders" "$(value goodput_mbps "$report")" \
        "$(awk -v l="$(value loss "$report")" 'BEGIN {printf "%.3f", 100 * l}')" \
        "$(value jain "$report")"
}

# against_sim SENDERS: ours on these links and in virtual time, uncoordinated.
against_sim() {
    local senders=$1 real=$FOLDER/ours0 simulated=$FOLDER/simulated
    fresh ours none "$senders" >/dev/null
    timeout 60 "$INCAST" --fabric sim --mode none --senders "$senders" --message-bytes "$MESSAGE" \
        --buffer-bytes 32768 --seconds "$SECONDS_EACH" --json >"$simulated" || true
    if [[ ! -s $real || ! -s $simulated ]]; then
        row "$MESSAGE bytes" "$senders" failed - -
        return
    fi
    awk -v bytes="$MESSAGE" -v n="$senders" -v g="$(value goodput_mbps "$real")" \
        -v s="$(value goodput_mbps "$simulated")" -v l="$(value loss "$real")" \
        -v m="$(value loss "$simulated")" 'BEGIN {
            off = l > 0.001 ? sprintf("%+.1f %%", 100 * (m / l - 1)) : sprintf("%.3f", m - l)
            printf "%-12s%8s%12.2f%12.2f%10.1f%10.3f%10.3f%12s\n", bytes, n, g, s, s - g, l, m, off
        }'
}

cargo build --release --quiet --example incast
INCAST=${CARGO_TARGET_DIR:-target}/release/examples/incast
FIDELITY=${FIDELITY:-}
if [[ -z $FIDELITY ]]; then
    target=${CARGO_TARGET_DIR:-benches/simulated/target}
    cargo build --release --quiet --manifest-path benches/simulated/Cargo.toml --target-dir "$target" --bin fidelity
    FIDELITY=$target/release/fidelity
fi

build_network 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"

echo "Links of 100 Mb/s, 32 KiB at the receiver's port, messages of $MESSAGE bytes"
row what senders "goodput Mb/s" "loss %" Jain
for senders in 1 2 3; do
    fresh kernel udp $senders
    fresh kernel tcp $senders
    for mode in none token token-etr warp token-warp; do fresh ours $mode $senders; done
done

echo
echo "Uncoordinated, on these links and in sim: required are goodputs within 3 Mb/s and losses within 25 %"
printf '%-12s%8s%12s%12s%10s%10s%10s%12s\n' bytes senders "veth Mb/s" "sim Mb/s" off "veth loss" "sim loss" off
for MESSAGE in 1400 10240; do
    for senders in 1 2 3; do against_sim $senders; done
done
