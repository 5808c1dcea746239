#!/usr/bin/env bash
# Messages there and back between two hosts: interfaces, and messages over them, compared with the kernel's TCP.
#
#   benches/netns/pingpong.sh [FLAGS OF pingpong]
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. Without flags: polled and awaited, from 64 bytes
# to 1 MiB. Needs root; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

TAG=mg$$
NET=10.231.81

source benches/netns/network.sh
needs timeout
LAB=${CARGO_TARGET_DIR:-target}/release/lab
[[ -x $LAB ]] || cargo build --release -p midplane-benches

add_pair
FLAGS=("$@")
((${#FLAGS[@]})) || FLAGS=(--layer vi,message --sizes 64,4096,32768,65536,262144,1048576)
ip netns exec "$TAG-1" timeout 300 "$LAB" pingpong --fabric udp --between $NET.1,$NET.2 \
    --launch "ip netns exec $TAG-2" "${FLAGS[@]}"
