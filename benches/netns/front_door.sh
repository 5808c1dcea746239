#!/usr/bin/env bash
# axum, tonic and calls over nodes between two hosts, compared with tokio's TCP in alternating rounds.
#
#   benches/netns/front_door.sh [FLAGS OF benches/services]
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. TRANSPORT=udp or tcp has nodes use UDP or TCP
# alone, instead of UDP with long streams over TCP.
# Without flags: 4 MiB bodies and small answers of an axum service. Needs root; where it can't run, it prints why, and
# exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

TAG=mf$$
NET=10.231.76

source benches/netns/network.sh
needs awk
SERVICES=${SERVICES:-benches/services/target/release/midplane-services}
[[ -x $SERVICES ]] || cargo build --release --quiet --manifest-path benches/services/Cargo.toml

(($#)) || set -- --what axum_hello,axum_4mib
add_pair
"$SERVICES" --transport "${TRANSPORT:-net}" --namespaces "$TAG-1@$NET.1,$TAG-2@$NET.2" "$@"
