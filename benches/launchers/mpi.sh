#!/usr/bin/env bash
# Unmodified MPI programs over the libfabric provider of crates/fi.
#
#   benches/launchers/mpi.sh [--quick|--json]
#
# Installs MPICH and mpi4py from the Python registry into a folder of its own (MPI_FOLDER keeps it for the next time),
# builds the provider, and runs the programs in benches/launchers/mpi on 2, 4 and 8 ranks, mpi4py's own tests on 1 to 4
# ranks, NetPIPE, and a job of which a rank is killed; then half round trips, compared with MPICH's own shared memory and
# with libfabric's tcp, in alternating rounds; then HPC Challenge and others by Open MPI. --quick leaves mpi4py's tests
# out. --json runs one round of half round trips alone, those of Open MPI over the provider and over its own transport
# included, prints one JSON document, and keeps its folder, target/mpi unless MPI_FOLDER names one. Exits with 1 if a check
# failed; parts that are not available here are skipped by name, and do not count as failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "skipped: $*"; }
failed=()
holds() { # NAME COMMAND...: runs a command, and records whether it succeeded
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "passed: $name"
    else
        failed+=("$name")
        printf 'failed: %s\n%s\n' "$name" "$(tail -20 <<<"$output")"
    fi
}

[[ $(uname) == Linux ]] || { skip "it needs Linux"; exit 0; }
for tool in python3 cc timeout; do
    command -v "$tool" >/dev/null || { skip "it needs $tool"; exit 0; }
done
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
[[ ${1:-} != --json ]] || MPI_FOLDER=${MPI_FOLDER:-$target/mpi}
folder=${MPI_FOLDER:-$(mktemp -d)}
[[ -n ${MPI_FOLDER:-} ]] || trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/provider"
if [[ ! -x $folder/python/bin/mpiexec ]]; then
    python3 -m venv "$folder/python" || { skip "python3 has no venv (Debian's package python3-venv)"; exit 0; }
    timeout 600 "$folder/python/bin/pip" install --quiet mpich==5.0.2 mpi4py==4.1.2 ||
        { skip "MPICH is not available from the Python registry"; exit 0; }
fi
export PATH=$folder/python/bin:$PATH
cargo build --release --quiet -p midplane-fi || exit 1
cp "$target/release/libmidplane_fi.so" "$folder/provider/libmidplane-fi.so"
for program in benches/launchers/mpi/*.c; do
    mpicc -O2 -Wall -pthread -o "$folder/$(basename "$program" .c)" "$program" -lm || exit 1
done

# NOLOCAL: without it, MPICH carries messages between ranks of one host itself.
over() { # PROVIDER COMMAND...
    FI_PROVIDER=$1 FI_PROVIDER_PATH=$folder/provider MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 "${@:2}"
}
# Open MPI's own transport carries messages of one host unless the matching one is asked for.
openmpi() { # RANKS COMMAND...
    FI_PROVIDER_PATH=$folder/provider openmpi_itself "$1" \
        --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include midplane "${@:2}"
}
openmpi_itself() { # RANKS COMMAND...
    timeout 300 mpirun.openmpi --allow-run-as-root --oversubscribe -n "$@"
}

if [[ ${1:-} == --json ]]; then
    runs=()
    # Adds the half round trips of a way: WAY COMMAND...
    half_round_trips() {
        local bytes us
        while read -r bytes us; do runs+=("{\"way\":\"$1\",\"bytes\":$bytes,\"us\":$us}"); done < <(
            "${@:2}" | sed -n 's/^\([0-9]*\) B: \([0-9.]*\) us.*/\1 \2/p'
        )
    }
    pair=(timeout 120 mpiexec -n 2 "$folder/pingpong")
    half_round_trips mpich-midplane over midplane "${pair[@]}"
    half_round_trips mpich-tcp over tcp "${pair[@]}"
    half_round_trips mpich env MPIR_CVAR_CH4_NETMOD=ofi "${pair[@]}"
    if command -v mpirun.openmpi mpicc.openmpi >/dev/null; then
        mpicc.openmpi -O2 -o "$folder/pingpong.openmpi" benches/launchers/mpi/pingpong.c || exit 1
        half_round_trips openmpi-midplane openmpi 2 "$folder/pingpong.openmpi"
        half_round_trips openmpi openmpi_itself 2 "$folder/pingpong.openmpi"
    else
        echo "skipped: openmpi: it is not installed (Debian's packages openmpi-bin, libopenmpi-dev)" >&2
    fi
    (IFS=, && echo "{\"runs\":[${runs[*]}]}")
    exit 0
fi

uses_it() {
    MPIR_CVAR_DEBUG_SUMMARY=1 over midplane timeout 60 mpiexec -n 2 "$folder/hello" | grep '^libfabric provider: midplane'
}
holds "MPICH chooses the provider" uses_it
for ranks in 1 2 4 8; do
    for program in hello collectives ep cg ft ring onesided derived cancel threads; do
        [[ $ranks == 1 && $program == ring ]] && break # the rest needs two
        holds "$program, $ranks ranks" over midplane timeout 120 mpiexec -n $ranks "$folder/$program"
    done
done

# The launcher ends the others; each must end, and the provider leaves nothing in the file system.
killed() {
    local code=0
    over midplane timeout 60 mpiexec -n 4 "$folder/killed" || code=$?
    [[ $code != 0 && $code != 124 ]] && ! ls /dev/shm | grep -qi midplane
}
holds "a rank is killed" killed

# Left out, as MPICH fails them over its own providers too: test_mpiabi; and testDistgraphcomm, in which a probe and a receive
# from any source find different messages if the rank sends to itself.
suite() {
    (cd "$folder" && timeout 300 pip download --quiet --no-deps --no-binary mpi4py mpi4py==4.1.2 && tar xzf mpi4py-4.1.2.tar.gz)
}
if [[ ${1:-} == --quick ]]; then
    skip "mpi4py's tests: --quick"
elif [[ -d $folder/mpi4py-4.1.2 ]] || suite; then
    for ranks in 1 2 3 4; do
        holds "mpi4py's tests, $ranks ranks" over midplane timeout 1200 mpiexec -n $ranks python \
            "$folder/mpi4py-4.1.2/test/main.py" -q -e test_mpiabi -x testDistgraphcomm
    done
else
    skip "mpi4py's tests: its source is not available from the Python registry"
fi

# Debian's NetPIPE is linked with a former name of MPICH's library.
netpipe() { # PROVIDER ARGUMENT...
    mkdir -p "$folder/former"
    ln -sf ../python/lib/libmpi.so.12 "$folder/former/libmpich.so.12"
    LD_LIBRARY_PATH=$folder/former:$folder/python/lib/mpich over "$1" timeout 300 mpiexec -n 2 NPmpich2 -o "$folder/netpipe.out" "${@:2}"
}
if command -v NPmpich2 >/dev/null; then
    # -i compares each byte, and measures nothing.
    holds "NetPIPE, 1 B to 1 MiB" netpipe midplane -i -u 1048576
else
    skip "NetPIPE: it is not installed (Debian's package netpipe-mpich2)"
fi

for round in 1 2 3 4 5; do
    for way in midplane "MPICH's own shared memory" tcp; do
        echo "half round trips, round $round, $way:"
        case $way in
        midplane | tcp) over $way timeout 120 mpiexec -n 2 "$folder/pingpong" ;;
        *) MPIR_CVAR_CH4_NETMOD=ofi timeout 120 mpiexec -n 2 "$folder/pingpong" ;;
        esac || failed+=("half round trips over $way")
    done
done

# hpcc reads and writes files of fixed names.
hpcc_passes() {
    local at=$folder/hpcc
    mkdir -p "$at"
    sed 's/^1000 .*/512 Ns/; s/^2  *Ps/1 Ps/' /usr/share/doc/hpcc/examples/_hpccinf.txt >"$at/hpccinf.txt"
    rm -f "$at/hpccoutf.txt"
    (cd "$at" && OPENBLAS_NUM_THREADS=1 openmpi 2 hpcc) &&
        grep -q '^Success=1' "$at/hpccoutf.txt" && ! grep -E 'FAILED|Found [1-9][0-9]* errors' "$at/hpccoutf.txt"
}
if command -v mpirun.openmpi mpicc.openmpi >/dev/null; then
    for program in ring ep cg ft; do
        mpicc.openmpi -O2 -pthread -o "$folder/$program.openmpi" "benches/launchers/mpi/$program.c" -lm || exit 1
        for ranks in 2 4; do holds "Open MPI: $program, $ranks ranks" openmpi $ranks "$folder/$program.openmpi"; done
    done
    if command -v hpcc >/dev/null; then
        holds "Open MPI: HPC Challenge, 2 ranks" hpcc_passes
    else
        skip "HPC Challenge: it is not installed (Debian's package hpcc)"
    fi
else
    skip "Open MPI: it is not installed (Debian's packages openmpi-bin, libopenmpi-dev)"
fi

((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
