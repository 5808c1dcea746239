#!/usr/bin/env bash
# Collectives and the services of a page each across two hosts: two members on each.
#
#   benches/netns/services.sh
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. Prints what rank 0 prints; ends with
# 1 if a member failed. Needs root; where it can't run it says so, and that is no failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

TAG=mv$$
NET=10.231.79

source benches/netns/network.sh
needs timeout awk
LAB=${CARGO_TARGET_DIR:-target}/release/lab
[[ -x $LAB ]] || cargo build --release -p midplane-benches


add_pair
printf '%s\n' 10.231.79.1:7000 10.231.79.2:7001 10.231.79.1:7002 10.231.79.2:7003 >"$FOLDER/peers"

FAILED=0

# run EXAMPLE [FLAGS]: ranks 0 and 2 on A, 1 and 3 on B.
run() {
    local pids=() rank space
    for rank in 3 2 1 0; do
        space=$TAG-$((rank % 2 + 1))
        ip netns exec "$space" timeout 60 "$LAB" "$@" --fabric udp --rank $rank \
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
