#!/usr/bin/env bash
# Barriers and sums by our NICs and by our hosts, compared with those of the installed MPI, on this host.
#
#   benches/launchers/collectives.sh [REPEATS [ROUNDS [RANKS...]]]
#   benches/launchers/collectives.sh --json
#
# Repeats each measurement 5 times (REPEATS), in alternation, each of 1,000 rounds (ROUNDS) of 2 and 4 ranks (RANKS), and prints a
# table of medians and ranges in us. Needs mpicc and mpiexec (Debian's package mpich), and runs them with their default settings.
# Our ranks are tasks of one process, each with a NIC of its own over shared memory; MPI's are processes. --json measures a sum of
# 1 MiB by 8 ranks once: that of a communicator by hosts, and Open MPI's.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${1:-} == --json ]]; then
    command -v mpicc.openmpi mpirun.openmpi >/dev/null ||
        { echo "skipped: Open MPI is not installed (Debian's packages openmpi-bin, libopenmpi-dev)"; exit 0; }
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    mpicc.openmpi -O2 -o "$folder/rounds" benches/launchers/mpi/rounds.c
    cargo build --release --quiet -p midplane-benches --bin lab
    ours=$(timeout 120 "${CARGO_TARGET_DIR:-target}/release/lab" collectives --fabric shm --communicator --operation all-reduce \
        --nodes 8 --bytes 1048576 --rounds 50 --json | grep -o '"where":"host"[^}]*' | grep -o '"median_us":[0-9.]*' | cut -d: -f2)
    theirs=$(timeout 120 mpirun.openmpi --allow-run-as-root --oversubscribe -n 8 "$folder/rounds" 50 1048576 |
        awk '$1 == "all-reduce" {print $2}')
    awk -v ours="$ours" -v theirs="$theirs" 'BEGIN {
        printf "{\"runs\":[{\"what\":\"all-reduce\",\"ours_us\":%s,\"theirs_us\":%s,\"ratio\":%s}]}\n", ours, theirs, ours / theirs
    }'
    exit 0
fi

whole() { [[ $1 =~ ^[1-9][0-9]{0,5}$ ]] || { echo "$1: a whole number from 1 to 999999 is expected" >&2; exit 2; }; }
repeats=${1:-5} rounds=${2:-1000}
shift $(($# < 2 ? $# : 2))
ranks=("${@:-2}")
(($#)) || ranks=(2 4)
for number in "$repeats" "$rounds" "${ranks[@]}"; do whole "$number"; done
for tool in mpicc mpiexec python3 timeout; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed (Debian: apt-get install mpich)" >&2; exit 2; }
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mpicc -O2 -Wall -o "$folder/rounds" benches/launchers/mpi/rounds.c
cargo build --release --quiet -p midplane-benches --bin lab
lab=${CARGO_TARGET_DIR:-target}/release/lab

# Prints lines of: ranks, operation, runner, median in us.
ours() { # RANKS
    timeout 300 "$lab" collectives --fabric shm --operation barrier,all-reduce --nodes "$1" --rounds "$rounds" --json |
        python3 -c 'import json, sys
for run in json.load(sys.stdin)["runs"]:
    print(run["nodes"], run["operation"], run["where"], run["median_us"])'
}
theirs() { # RANKS
    timeout 300 mpiexec -n "$1" "$folder/rounds" "$rounds" | sed "s/^\([a-z-]*\)/$1 \1 mpi/"
}
for ((repeat = 1; repeat <= repeats; repeat++)); do
    for count in "${ranks[@]}"; do
        printf '\rrepeat %d of %d, %d ranks ' "$repeat" "$repeats" "$count" >&2
        ours "$count"
        theirs "$count"
    done
done >"$folder/times"
echo >&2

python3 - "$folder/times" <<'TABLE'
import collections, statistics, sys

times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    ranks, operation, runner, median = line.split()
    times[int(ranks), operation, runner].append(float(median))

def cell(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"

print("| operation | ranks | by NICs, us | by hosts, us | MPI, us | MPI's over the NICs' |")
print("|---|---|---|---|---|---|")
for ranks, operation in sorted({key[:2] for key in times}, key=lambda key: (key[1], key[0])):
    nic, host, mpi = (times[ranks, operation, runner] for runner in ("nic", "host", "mpi"))
    pairs = [peer / own for own, peer in zip(nic, mpi)]
    ratio = f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
    print(f"| {operation} | {ranks} | {cell(nic)} | {cell(host)} | {cell(mpi)} | {ratio} |")
TABLE
