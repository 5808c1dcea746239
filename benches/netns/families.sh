#!/usr/bin/env bash
# IPv4 and IPv6, directly and through the soft switch, with and without a key, between two hosts.
#
#   benches/netns/families.sh
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes, so that the system has to cut long frames. Each
# line is one run of `incast`: its goodput and loss. Exits with 1 if anything was lost. Needs root; where it can't run,
# it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

TAG=mf$$
NET=10.231.78

source benches/netns/network.sh
needs timeout od awk

build_network() {
    add_pair
    for host in 1 2; do
        ip -n "$TAG-$host" address add fd77::$host/64 dev eth0 nodad
    done
}

# value NAME: a number of the receiver's report.
value() { grep -o "\"$1\":[0-9.e+-]*" "$FOLDER/report" | head -1 | cut -d: -f2; }

FAILED=0

# run NAME A B FABRIC [FLAGS]: two senders on A, the receiver on B.
run() {
    local name=$1 a=$2 b=$3 fabric=$4
    shift 4
    printf '%s\n' "$b:7000" "$a:7001" "$a:7002" >"$FOLDER/peers"
    local flags=(--fabric "$fabric" --peers "$FOLDER/peers" --mode token --message-bytes 10240
        --seconds 0.5 --json "$@")
    if [[ $fabric == switch ]]; then
        ip netns exec "$TAG-1" timeout 30 "$MIDPLANE" switch --bind "$a:7100" --peers "$FOLDER/peers" \
            --seconds 12 --json >"$FOLDER/switch" &
        flags+=(--switch "$a:7100")
        sleep 0.3
    fi
    for rank in 1 2; do
        ip netns exec "$TAG-1" timeout 30 "$EXAMPLES/incast" --rank $rank "${flags[@]}" >/dev/null || true &
    done
    ip netns exec "$TAG-2" timeout 30 "$EXAMPLES/incast" --rank 0 "${flags[@]}" >"$FOLDER/report" || true
    wait
    if [[ -s $FOLDER/report && $(value loss) == 0.0 ]]; then
        printf '%-28s%8s Mb/s, nothing lost\n' "$name" "$(value goodput_mbps)"
    else
        printf '%-28sfailed: loss %s\n' "$name" "$(value loss || true)"
        FAILED=1
    fi
}

cargo build --release --quiet --example incast
cargo build --release --quiet -p midplane-cli
EXAMPLES=${CARGO_TARGET_DIR:-target}/release/examples
MIDPLANE=${CARGO_TARGET_DIR:-target}/release/midplane
build_network 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"
echo "1:$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >"$FOLDER/key"

for fabric in udp switch; do
    run "IPv4, $fabric" 10.231.78.1 10.231.78.2 $fabric
    run "IPv4, $fabric, sealed" 10.231.78.1 10.231.78.2 $fabric --key "$FOLDER/key"
    run "IPv6, $fabric" "[fd77::1]" "[fd77::2]" $fabric
    run "IPv6, $fabric, sealed" "[fd77::1]" "[fd77::2]" $fabric --key "$FOLDER/key"
done
exit $FAILED
