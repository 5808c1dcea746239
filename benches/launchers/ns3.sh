#!/usr/bin/env bash
# Packets that a simulation of many senders and one receiver sends a second of wall time: ours compared with ns-3's.
#
#   benches/launchers/ns3.sh [ROUNDS [SECONDS]]
#
# Runs both ROUNDS times (5), in alternation, each for SECONDS of virtual time (2): 16 senders of messages of 1,000 bytes,
# links of 1 Gb/s, a port with 32 KiB to the receiver. Ours is the example `incast` as a user runs it, with NICs and their
# firmware; its time is that of the whole process. ns-3's is that of its event loop alone. Prints medians and ranges.
# Needs g++, pkg-config, python3 and ns-3 (Debian: apt-get install g++ pkg-config libns3-dev libgsl-dev libsqlite3-dev).
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=${1:-5} seconds=${2:-2}
for number in "$rounds" "$seconds"; do
    [[ $number =~ ^[1-9][0-9]{0,3}$ ]] || { echo "$number: a whole number from 1 to 9999 is expected" >&2; exit 2; }
done
for tool in g++ pkg-config python3; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed (Debian: apt-get install $tool)" >&2; exit 2; }
done
modules=(core network internet point-to-point applications traffic-control)
if ! pkg-config --exists "${modules[@]/#/ns3-}"; then
    echo "ns-3 is not installed (Debian: apt-get install libns3-dev libgsl-dev libsqlite3-dev)" >&2
    exit 2
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
read -ra flags <<<"$(pkg-config --cflags --libs "${modules[@]/#/ns3-}")"
g++ -O2 -std=c++17 -o "$folder/incast" benches/launchers/ns3/incast.cc "${flags[@]}"
cargo build --release --quiet --example incast
incast=${CARGO_TARGET_DIR:-target}/release/examples/incast

# Prints lines of: simulator, packets sent a second of wall time.
ours() {
    python3 - "$incast" --fabric sim --mode none --senders 16 --link-mbps 1000 --message-bytes 1000 \
        --buffer-bytes 32768 --seconds "$seconds" --json <<'PYTHON'
import json, subprocess, sys, time
begun = time.monotonic()
output = subprocess.run(sys.argv[1:], check=True, capture_output=True, timeout=600).stdout
wall = time.monotonic() - begun
run = json.loads(output)["runs"][0]
received = run["goodput_mbps"] * 1e6 / 8 / run["message_bytes"] * run["seconds"]
print("ours", received / (1 - run["loss"]) / wall)
PYTHON
}
theirs() {
    timeout 600 "$folder/incast" 16 1000 1000 32768 "$seconds" | awk '{ print "ns-3", $1 / $3 }'
}
for ((round = 1; round <= rounds; round++)); do
    printf '\rround %d of %d ' "$round" "$rounds" >&2
    { ours; theirs; } >>"$folder/all"
done
printf '\r%30s\r' '' >&2
python3 - "$folder/all" <<'PYTHON'
import statistics, sys
speeds = {}
for line in open(sys.argv[1]):
    simulator, speed = line.split()
    speeds.setdefault(simulator, []).append(float(speed))
print("| simulator | packets sent a second of wall time, millions | range |\n|---|---|---|")
for simulator, all in speeds.items():
    print(f"| {simulator} | {statistics.median(all) / 1e6:.3f} | {min(all) / 1e6:.3f} to {max(all) / 1e6:.3f} |")
ratios = [ours / theirs for ours, theirs in zip(*speeds.values())]
print(f"\nRatio of a round: median {statistics.median(ratios):.1f}, {min(ratios):.1f} to {max(ratios):.1f}")
PYTHON
