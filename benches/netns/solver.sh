#!/usr/bin/env bash
# Time to an answer over a network that is overloaded five times, under every control.
#
#   benches/netns/solver.sh [share of the network that background traffic takes ...]
#
# Ranks are network namespaces, joined by veth pairs to a bridge in one more. Each sends at 100 Mb/s; the bridge's port
# to it sends at 10 Mb/s and holds 32 KiB. Everything runs inside of namespaces that the script makes, and removes when
# it ends. Needs root; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

RANKS=5
TAG=ms$$
NET=10.232.77
PORT=7000

source benches/netns/network.sh
needs tc timeout awk

build_network() {
    add_bridge
    for ((host = 0; host <= RANKS; host++)); do
        add_host $host
        # The bridge's port to the host is slow.
        ip netns exec "$TAG-sw" tc qdisc add dev "port$host" root tbf rate 10mbit burst 3200 limit 32768
        echo "$NET.$((10 + host)):$PORT" >>"$FOLDER/peers"
    done
    # Addresses are resolved before the measurements.
    for ((host = 1; host <= RANKS; host++)); do
        ip netns exec "$TAG-$host" ping -c 1 -W 1 "$NET.10" >/dev/null 2>&1 || true
    done
}

# solve SHARE CONTROL BUFFER: a run, and a line of it.
solve() {
    local share=$1 control=$2 buffer=$3 pids=() last=$RANKS
    local common=(--fabric udp --line-mbps 100 --peers "$FOLDER/peers" --wait 10 --json --ranks $RANKS
        --control "$control" --buffer "$buffer" --background "$share" --tolerance 1e-10 --seconds 10)
    [[ $share == 0 ]] && last=$((RANKS - 1))
    for ((rank = last; rank >= 0; rank--)); do
        ip netns exec "$TAG-$rank" timeout 30 "$SOLVER" --rank "$rank" "${common[@]}" \
            >"$FOLDER/rank$rank" 2>/dev/null &
        pids[rank]=$!
    done
    wait "${pids[0]}" || true
    # The node of the background traffic never ends by itself.
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
    local report=$FOLDER/rank0
    printf '%-12s%-12s%8s%10.2f%10.2f%11s%12.1e%9.4f\n' "$share" "$control" "$buffer" \
        "$(value seconds "$report")" "$(value reached_seconds "$report")" \
        "$(value messages "$report")" "$(value residual "$report")" "$(value loss "$report")"
}

cargo build --release --quiet --example solver
SOLVER=${CARGO_TARGET_DIR:-target}/release/examples/solver

build_network 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"

echo "1000 unknowns on $RANKS ranks, ports of 10 Mb/s with 32 KiB, to a residual of 1e-10"
printf '%-12s%-12s%8s%10s%10s%11s%12s%9s\n' background control buffer seconds reached messages residual loss
for share in "${@:-0}"; do
    solve "$share" none 1
    for buffer in 4 8 16 32 128; do solve "$share" static $buffer; done
    solve "$share" warp 4
    solve "$share" warp+csend 4
done
