#!/usr/bin/env bash
# Midplane over the system's libfabric, as a client: tests over each provider that needs no hardware, and half round trips.
#
#   benches/launchers/ofi.sh [--quick|--json]
#
# Runs the tests of endpoints and nodes, and the conformance suite over tcp, tcp;ofi_rxm, shm, udp;ofi_rxd and the
# provider of crates/fi; then messages of 64 B and 64 KiB between two processes, compared with libfabric's own
# fi_pingpong, in alternating rounds (ROUNDS, 5), in real time where that is allowed: medians, and the lowest and
# highest ratio. --quick leaves the rounds out; --json runs one round alone, and prints one JSON document. MIDPLANE_LIBFABRIC names another library. Exits with 1 if a check
# failed; parts that are not available here are skipped by name, and do not count as failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "skipped: $*"; }
failed=()
[[ $(uname) == Linux ]] || { skip "it needs Linux"; exit 0; }
if [[ -z ${MIDPLANE_LIBFABRIC:-} ]] && ! ldconfig -p | grep -q 'libfabric\.so\.1'; then
    skip "it needs libfabric (Debian's packages libfabric1 and libfabric-bin)"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
target=${CARGO_TARGET_DIR:-target}

json= runs=()
if [[ ${1:-} == --json ]]; then
    json=yes
else
    cargo build -q -p midplane-fi || exit 1
    cp "$target/debug/libmidplane_fi.so" "$folder/libmidplane-fi.so"
    # libfabric is there: a provider that can't be opened is a failure.
    export FI_PROVIDER_PATH=$folder MIDPLANE_LIBFABRIC_TESTS=required
    cargo test -q -p midplane-ofi || failed+=("endpoints")
    cargo test -q -p midplane --features ofi --test ofi || failed+=("nodes")
    cargo test -q -p midplane --test integration -- conformance::ofi --include-ignored || failed+=("conformance")
fi

real_time=()
chrt -r 1 true 2>/dev/null && real_time=(chrt -r 1)
# Prints the microseconds of one run of fi_pingpong: PROVIDER BYTES
theirs() {
    local address=127.0.0.1 server
    timeout 60 "${real_time[@]}" fi_pingpong -p "$1" -e rdm -I 10000 -S "$2" >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    timeout 60 "${real_time[@]}" fi_pingpong -p "$1" -e rdm -I 10000 -S "$2" "$address" 2>/dev/null | awk 'END { print $7 }'
    wait "$server"
}
# Prints those of ours: PROVIDER BYTES LAYER
ours() {
    timeout 60 "${real_time[@]}" "$target/release/examples/pingpong" "$1" --bytes "$2" --layer "$3" | sed 's/.*mean_us":\([0-9.]*\).*/\1/'
}
# Compares in alternating rounds: NAME PROVIDER CHOICE BYTES LAYER
compare() {
    local round a b
    if [[ -n $json ]]; then
        a=$(ours "$3" "$4" "$5") b=$(theirs "$2" "$4")
        [[ -z $a || -z $b ]] || runs+=("$(awk -v what="${1// /-}" -v a="$a" -v b="$b" 'BEGIN {
            printf "{\"what\":\"%s\",\"ours_us\":%s,\"theirs_us\":%s,\"ratio\":%s,\"speed\":%s}", what, a, b, a / b, b / a
        }')")
        return
    fi
    for ((round = 0; round < ${ROUNDS:-5}; round++)); do
        a=$(ours "$3" "$4" "$5") b=$(theirs "$2" "$4")
        [[ -n $a && -n $b ]] && echo "$a $b"
    done | python3 -c '
import statistics, sys
rows = [tuple(map(float, line.split())) for line in sys.stdin]
ratios = [ours / theirs for ours, theirs in rows]
if rows:
    ours, theirs = (statistics.median(column) for column in zip(*rows))
    print(f"{sys.argv[1]}: ours {ours:.2f} us, fi_pingpong {theirs:.2f} us, ratio {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f}), {len(rows)} rounds")
else:
    print(f"{sys.argv[1]}: no round succeeded")' "$1"
}
if [[ ${1:-} == --quick ]]; then
    skip "half round trips: --quick"
elif ! command -v fi_pingpong >/dev/null || ! command -v python3 >/dev/null; then
    skip "half round trips: they need fi_pingpong (Debian's package libfabric-bin) and python3"
else
    cargo build -q --release -p midplane-ofi --example pingpong || exit 1
    compare "tcp, 64 B, messages through NICs" tcp tcp@127.0.0.1 64 nic
    compare "tcp, 64 B, endpoint" tcp tcp@127.0.0.1 64 endpoint
    compare "tcp, 64 KiB, endpoint" tcp tcp@127.0.0.1 65536 endpoint
    compare "shm, 64 B, endpoint" shm shm 64 endpoint
    compare "shm, 64 KiB, endpoint" shm shm 65536 endpoint
    [[ -z $json ]] || (IFS=, && echo "{\"runs\":[${runs[*]}]}")
fi

((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
