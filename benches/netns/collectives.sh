#!/usr/bin/env bash
# Collectives across two hosts: two members on each.
#
#   benches/netns/collectives.sh
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. Prints the output of rank 0; exits with 1 if a
# member failed. Needs root; where it can't run, it prints why, and exits with 0.
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

# Ranks 0 and 2 are on A, 1 and 3 on B.
FAILED=0
pids=()
for rank in 3 2 1 0; do
    ip netns exec "$TAG-$((rank % 2 + 1))" timeout 60 "$LAB" collectives --rounds 200 --fabric udp --rank $rank \
        --peers "$FOLDER/peers" >"$FOLDER/rank$rank" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid" || FAILED=1
done
cat "$FOLDER/rank0"
exit $FAILED
