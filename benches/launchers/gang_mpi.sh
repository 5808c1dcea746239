#!/usr/bin/env bash
# Unmodified programs under `midplane gang run`: MPI programs of MPICH without mpiexec, on this host and between two; those of
# Open MPI with its mpirun in the job; iperf3.
#
#   benches/launchers/gang_mpi.sh [ROUNDS [SECONDS]] [--json]
#
# Two jobs take turns in slices of 100 ms, each for about SECONDS of its own time, 8 unless given, and for 64
# preemptions or more; a job alone precedes them in each of ROUNDS rounds, 3 unless given. Results must equal those of
# the job alone, bit for bit. Prints how much more processor time a job's computation takes than alone (bound: 2 %), and
# how much longer the job takes in its own slices, which is meaningful only on an idle machine: the median of all
# rounds, the lowest and the highest. --json prints one JSON document of how many results were compared and differed, and
# uses target/mpi without MPI_FOLDER.
#
# Installs MPICH from the Python registry into a folder of its own (MPI_FOLDER keeps it for the next time). Two hosts
# are network namespaces, for which it needs root. Exits with 1 if a check failed; parts that are not available here are
# skipped by name.
set -uo pipefail
cd "$(dirname "$0")/../.."
JSON=
[[ ${*: -1} != --json ]] || {
    set -- "${@:1:$#-1}"
    JSON=yes MPI_FOLDER=${MPI_FOLDER:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/mpi}
}
ROUNDS=${1:-3} SECONDS_EACH=${2:-8} COMPARED=0
TAG=mm$$ NET=10.231.83
source benches/netns/network.sh

without() { echo "skipped: $*"; } # WHAT: one part; the others are run
fail() {
    echo "failed: $*" >&2
    exit 1
}
[[ $(uname) == Linux ]] || skip "it needs Linux"
for tool in python3 cc timeout awk od; do
    command -v "$tool" >/dev/null || skip "it needs $tool"
done
folder=${MPI_FOLDER:-$FOLDER/mpi}
mkdir -p "$folder/provider"
if [[ ! -x $folder/python/bin/mpiexec ]]; then
    python3 -m venv "$folder/python" || skip "python3 has no venv (Debian's package python3-venv)"
    timeout 600 "$folder/python/bin/pip" install --quiet mpich==5.0.2 || skip "MPICH is not available from the Python registry"
fi
# finish: prints the document, once all results were equal.
finish() {
    [[ -z $JSON ]] || echo "{\"compared\":$COMPARED,\"differing\":0}" >&3
    exit 0
}
[[ -z $JSON ]] || exec 3>&1 >&2
cargo build --release --quiet -p midplane-cli -p midplane-fi || exit 1
release=$(realpath "${CARGO_TARGET_DIR:-target}")/release
cp "$release/libmidplane_fi.so" "$folder/provider/libmidplane-fi.so"
programs="hello ring collectives onesided derived cancel threads ep cg ft"
for program in $programs solve; do
    "$folder/python/bin/mpicc" -O2 -Wall -pthread -o "$folder/$program" "benches/launchers/mpi/$program.c" -lm || exit 1
done

# daemon NAME [FLAGS]: starts a daemon; $daemon is its process, and "${gang[@]}" the command of its clients.
daemon() {
    "$release/midplane" gang daemon --socket "$FOLDER/$1" "${@:2}" >/dev/null 2>"$FOLDER/$1.errors" &
    daemon=$!
    gang=("$release/midplane" gang --socket "$FOLDER/$1")
    for _ in {1..50}; do
        "${gang[@]}" list >/dev/null 2>&1 && return
        sleep 0.1
    done
    cat "$FOLDER/$1.errors" >&2
    fail "the daemon $1 did not start"
}
trap 'kill ${daemon:-} 2>/dev/null; remove_network; rm -rf "$FOLDER"' EXIT

# over WAY COMMAND...: with messages over the provider, or by MPICH itself.
over() {
    case $1 in
    midplane) FI_PROVIDER=midplane FI_PROVIDER_PATH=$folder/provider MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 "${@:2}" ;;
    *) MPIR_CVAR_CH4_NETMOD=ofi "${@:2}" ;;
    esac
}

# job NAME [FLAGS] COMMAND...: runs one; its document and its output are in $FOLDER/NAME.json and NAME.out.
job() { timeout 300 "${gang[@]}" --json run "${@:2}" >"$FOLDER/$1.json" 2>"$FOLDER/$1.out"; }
bits() { grep -oE '^(solve|ep|cg|ft): [0-9a-f]*' "$FOLDER/$1.out"; }
computed() { grep -o 'for [0-9.]* s' "$FOLDER/$1.out" | cut -d' ' -f2; }

# both COMMAND...: runs two jobs at once, which take turns.
both() {
    local first second
    job first "$@" & first=$!
    job second "$@" & second=$!
    wait $first && wait $second || { cat "$FOLDER"/{first,second}.out >&2; fail "two jobs: $*"; }
}

# ticks JOB: the processor time that the processes of a job have used, in ticks.
ticks() {
    local pid
    for pid in $(grep -ls "/job-$1\$" /proc/[0-9]*/cgroup | cut -d/ -f3); do
        cut -d' ' -f14,15 "/proc/$pid/stat"
    done 2>/dev/null | awk '{all += $1 + $2} END {print all + 0}'
}

# check_suspended: within ten slices of two jobs, one uses processor time and the other none.
check_suspended() {
    local before after jobs seen=0
    jobs=$("${gang[@]}" list | awk 'NR > 2 {print $1}')
    for _ in {1..40}; do
        before=$("${gang[@]}" --json list | grep -o '"switches":[0-9]*')
        after=$(for job in $jobs; do ticks "$job"; done)
        sleep 0.3
        after=$(paste <(echo "$after") <(for job in $jobs; do ticks "$job"; done) | awk '{print $1 != $2}' | sort | tr -d '\n')
        # Otherwise both have run.
        [[ $("${gang[@]}" --json list | grep -o '"switches":[0-9]*') == "$before" ]] || continue
        [[ $after == 01 ]] || fail "Open MPI: of two jobs, these used processor time (1) in a slice: $after"
        ((++seen < 10)) || return 0
    done
    fail "Open MPI: no slice was seen as a whole"
}

# in_turns NAME FEW COMMAND...: ROUNDS rounds of a job alone and of two that take turns; "STEPS" stands for the steps that
# take SECONDS, of which FEW show how long one takes.
in_turns() {
    local name=$1 few=$2 round each wanted steps
    shift 2
    job alone "${@/STEPS/$few}" || { cat "$FOLDER/alone.out" >&2; fail "$name: a job"; }
    steps=$(awk -v ran="$(value run_seconds "$FOLDER/alone.json")" -v asked="$SECONDS_EACH" -v few="$few" 'BEGIN {print int(few * asked / ran) + 1}')
    : >"$FOLDER/ratios"
    for ((round = 1; round <= ROUNDS; round++)); do
        job alone "${@/STEPS/$steps}" || fail "$name: a job"
        wanted=$(bits alone)
        both "${@/STEPS/$steps}"
        if (($(value preemptions "$FOLDER/first.json") < 64 || $(value preemptions "$FOLDER/second.json") < 64)); then
            # The machine was busier while the steps were counted.
            ((round -= 1, steps *= 2))
            continue
        fi
        for each in first second; do
            [[ -n $wanted && $(bits $each) == "$wanted" ]] || fail "$name: $(bits $each) in turns, $wanted alone"
            ((COMPARED += 1))
            echo "$(value run_seconds "$FOLDER/$each.json") $(value run_seconds "$FOLDER/alone.json") $(computed $each)" \
                "$(computed alone) $(value preemptions "$FOLDER/$each.json")"
        done >>"$FOLDER/ratios"
    done
    echo "$name: $wanted in all of $((3 * ROUNDS)) jobs, preempted $(sort -nk5 "$FOLDER/ratios" | awk 'NR == 1 {print $5}') times and more"
    for each in 3 1; do
        awk -v at=$each '{print ($at / $(at + 1) - 1) * 100}' "$FOLDER/ratios" | sort -n | awk -v at=$each '
            {all[NR] = $1}
            END {printf "  %s: %+.1f %% (%+.1f to %+.1f)\n", at == 1 ? "time in their own slices" : "processor time of their computation",
                (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2, all[1], all[NR]}'
    done
}

# hpcc_of JOB: runs HPC Challenge, which reads and writes files of fixed names, and checks its verdict.
hpcc_of() {
    local at=$FOLDER/hpcc-$1
    mkdir -p "$at"
    sed 's/^1000 .*/2000 Ns/; s/^2  *Ps/1 Ps/' /usr/share/doc/hpcc/examples/_hpccinf.txt >"$at/hpccinf.txt"
    cd "$at" && job "$1" -- env OPENBLAS_NUM_THREADS=1 mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 hpcc &&
        grep -q '^Success=1' hpccoutf.txt && ! grep -qE 'FAILED|Found [1-9][0-9]* errors' hpccoutf.txt
}

daemon turns --slots 2 --slice-ms 100
for way in midplane "MPICH's own shared memory"; do
    for program in $programs; do
        over "$way" both --ranks 2 -- "$folder/$program"
    done
    echo "$programs, two jobs of each in turns, over $way: passed"
    over "$way" in_turns "solve over $way" 2000 --ranks 2 -- "$folder/solve" STEPS
done
for few in "ep S 8" "cg W 8" "ft S 20"; do
    read -r program class few <<<"$few"
    over midplane in_turns "$program over midplane" "$few" --ranks 2 -- "$folder/$program" "$class" STEPS
done

kill $daemon && wait $daemon
# A job has one rank here, and all processes that this starts: on one slot, two of them take turns.
daemon alone --slots 1 --slice-ms 100
if command -v mpirun.openmpi mpicc.openmpi >/dev/null; then
    mpicc.openmpi -O2 -pthread -o "$folder/solve.openmpi" benches/launchers/mpi/solve.c || exit 1
    openmpi=(mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 "$folder/solve.openmpi")
    in_turns "solve of Open MPI, with mpirun in the job" 2000 -- "${openmpi[@]}" STEPS
    if "$release/midplane" doctor 2>/dev/null | grep -q '^yes *control groups'; then
        kill $daemon && wait $daemon
        daemon long --slots 1 --slice-ms 1500
        job first -- "${openmpi[@]}" 1000000000 & first=$!
        job second -- "${openmpi[@]}" 1000000000 & second=$!
        sleep 4
        check_suspended
        echo "Open MPI: while a job waits, none of its processes uses processor time"
        for each in $("${gang[@]}" list | awk 'NR > 2 {print $1}'); do "${gang[@]}" kill "$each"; done
        wait $first $second
        kill $daemon && wait $daemon
        daemon short --slots 1 --slice-ms 100
    else
        without "Open MPI's processes are suspended: it needs control groups"
    fi
    if command -v hpcc >/dev/null; then
        hpcc_of first & first=$!
        hpcc_of second & second=$!
        wait $first && wait $second || { cat "$FOLDER"/{first,second}.out >&2; fail "HPC Challenge, in turns"; }
        echo "HPC Challenge of Open MPI: both jobs passed, preempted $(value preemptions "$FOLDER/first.json") and" \
            "$(value preemptions "$FOLDER/second.json") times"
    else
        without "HPC Challenge: it is not installed (Debian's package hpcc)"
    fi
else
    without "Open MPI: it is not installed (Debian's packages openmpi-bin, libopenmpi-dev)"
fi
if command -v iperf3 >/dev/null; then
    for each in 1 2; do
        job iperf$each -- bash -c "iperf3 -s -1 -p 530$each >/dev/null & sleep 0.5
            iperf3 -c 127.0.0.1 -p 530$each -t $((2 * SECONDS_EACH)) --json >$FOLDER/sent$each && wait" &
        pids[each]=$!
    done
    for each in 1 2; do
        wait ${pids[each]} || { cat "$FOLDER/iperf$each.out" "$FOLDER/sent$each" >&2; fail "iperf3"; }
        preempted=$(value preemptions "$FOLDER/iperf$each.json")
        ((preempted >= 64)) || fail "iperf3 was preempted $preempted times"
        echo "iperf3: $(awk -F: '/"sum_received"/ {its = 1} its && /"bytes"/ {printf "%.0f", $2; exit}' "$FOLDER/sent$each") bytes" \
            "over one connection that was preempted $preempted times"
    done
else
    without "iperf3: it is not installed (Debian's package iperf3)"
fi
kill $daemon && wait $daemon

# Between two hosts, over the provider's sealed UDP.
if [[ $(id -u) != 0 ]] || ! add_pair 2>"$FOLDER/why"; then
    without "two hosts: no network namespaces here"
    finish
fi
printf '1:%s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >"$FOLDER/key"
chmod 600 "$FOLDER/key"
printf '%s\n' "$NET.1:24800" "$NET.2:24800" >"$FOLDER/peers"
for host in 0 1; do
    ip netns exec "$TAG-$((host + 1))" "$release/midplane" gang daemon --peers "$FOLDER/peers" --key "$FOLDER/key" \
        --host $host --slots 1 --slice-ms 100 --socket "$FOLDER/host$host" >/dev/null 2>>"$FOLDER/complaints" &
done
gang=("$release/midplane" gang --socket "$FOLDER/host0")
for _ in {1..100}; do
    "${gang[@]}" list 2>/dev/null | grep -q '; 2 of 2 hosts ' && break
    sleep 0.1
done
for program in hello ring collectives; do
    FI_MIDPLANE_NETWORK=$NET.1 FI_MIDPLANE_KEY_FILE=$FOLDER/key over midplane both --ranks 2 -- "$folder/$program"
done
echo "hello ring collectives, two jobs of each in turns, between two hosts: passed"
finish
