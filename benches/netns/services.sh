#!/usr/bin/env bash
# Collectives and the services of a page each across two hosts: two members on each.
#
#   benches/netns/services.sh
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. Prints what rank 0 prints; ends with
# 1 if a member failed. Needs root; where it can't run it says so, and that is no failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "skipped: $*"
    exit 0
}

[[ $(uname) == Linux ]] || skip "it needs Linux"
[[ $(id -u) == 0 ]] || skip "it needs root"
for tool in ip timeout; do
    command -v $tool >/dev/null || skip "it needs $tool"
done
EXAMPLES=${CARGO_TARGET_DIR:-target}/release/examples
[[ -x $EXAMPLES/collectives ]] || cargo build --release --examples

A=ms$$-a
B=ms$$-b
FOLDER=$(mktemp -d)
trap 'ip netns del $A 2>/dev/null; ip netns del $B 2>/dev/null; rm -rf "$FOLDER"' EXIT

ip netns add $A && ip netns add $B
ip link add eth0 netns $A type veth peer name eth0 netns $B
for host in 1 2; do
    space=$A
    [[ $host == 2 ]] && space=$B
    ip -n $space link set lo up
    ip -n $space link set eth0 up
    ip -n $space address add 10.231.79.$host/24 dev eth0
done
printf '%s\n' 10.231.79.1:7000 10.231.79.2:7001 10.231.79.1:7002 10.231.79.2:7003 >"$FOLDER/peers"

FAILED=0

# run EXAMPLE [FLAGS]: ranks 0 and 2 on A, 1 and 3 on B.
run() {
    local pids=() rank space
    for rank in 3 2 1 0; do
        space=$A
        ((rank % 2)) && space=$B
        ip netns exec $space timeout 60 "$EXAMPLES/$1" "${@:2}" --fabric udp --rank $rank \
            --peers "$FOLDER/peers" >"$FOLDER/rank$rank" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || FAILED=1
    done
    echo "== $*"
    cat "$FOLDER/rank0"
}

run collectives --rounds 200
run limiter
run quorum
run cache
exit $FAILED
