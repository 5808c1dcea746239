#!/usr/bin/env bash
# An MPI job that feeds a Rust service through the C header of crates/c.
#
#   benches/launchers/bridge.sh
#
# Compiles crates/c/examples/feed.c with mpicc, starts the service `collect`, runs the job with 4 ranks, and compares
# the sum that the service prints. Exits with 1 if a check failed. Without an MPI library it is skipped, and exits with
# 0.
set -uo pipefail
cd "$(dirname "$0")/../.."

for tool in mpicc mpirun; do
    command -v "$tool" >/dev/null || { echo "skipped: it needs $tool (Debian's package openmpi-bin)"; exit 0; }
done
cargo build -q -p midplane-c --lib --example collect || exit 1
folder=$(mktemp -d)
target=$(cd "${CARGO_TARGET_DIR:-target}/debug" && pwd)
export MIDPLANE_CLUSTER=bridge-$$
"$target/examples/collect" 4 >"$folder/sum" &
service=$!
trap 'kill "$service" 2>/dev/null; rm -rf "$folder"' EXIT

mpicc -O2 -Wall -Icrates/c/include -o "$folder/feed" crates/c/examples/feed.c -L"$target" -lmidplane_c -Wl,-rpath,"$target" || exit 1
run=(mpirun -n 4)
# Open MPI refuses to run as root, or with more ranks than processors, without these options.
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    run+=(--oversubscribe)
    ((EUID != 0)) || run+=(--allow-run-as-root)
fi
timeout 120 "${run[@]}" "$folder/feed" || { echo "failed: the job"; exit 1; }
wait "$service"
expected="400000 samples, sum 1000000"
[[ $(<"$folder/sum") == "$expected" ]] || { echo "failed: the service has $(<"$folder/sum"), not $expected"; exit 1; }
echo "passed: 4 ranks fed the service: $expected"
