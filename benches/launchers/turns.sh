#!/usr/bin/env bash
# Two jobs of four ranks that take turns on the same four nodes: under Slurm's own gang scheduling, with the
# shortest slice that it has, and under gangd, with one of 50 ms.
#
#   benches/launchers/turns.sh [SECONDS] [--json]
#
# Ranks read the clock every 0.1 ms and record when they ran. Prints, for each scheduler, how long a slice was, how long
# no rank ran between two jobs (less than 0 is an overlap: both ran), and how far apart the ranks of a job began. A job
# runs for SECONDS of its own clock, 32 unless given. --json prints one JSON document. Needs root and Debian's packages
# slurmd, slurmctld and slurm-client; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
source benches/launchers/machine.sh
source benches/launchers/nodes.sh
needs timeout od pgrep:procps slurmctld:slurmctld slurmd:slurmd srun:slurm-client salloc:slurm-client
if [[ -z ${FOLDER:-} ]]; then
    cargo build --release --quiet -p midplane-benches -p midplane-cli
fi
RELEASE=$(realpath "${CARGO_TARGET_DIR:-target}")/release
LAB=$RELEASE/lab
MIDPLANE=$RELEASE/midplane
SECONDS_EACH=32 FORMAT=()
for argument; do
    if [[ $argument == --json ]]; then FORMAT=(--json); else SECONDS_EACH=$argument; fi
done
enter_machine 4 "$@"
exec 3>&1 >&2
mkdir "$FOLDER/turns"
ticker() { echo "exec '$LAB' --be-ticker '$FOLDER/turns' \"$1\" $SECONDS_EACH"; }

start_slurm 4 "PartitionName=all Nodes=node[1-4] Default=YES OverSubscribe=FORCE:2" "PreemptMode=GANG" \
    "SchedulerTimeSlice=5"
# srun tries a step of a suspended job again only a minute later: each step begins in a turn of its job.
runs() { [[ $(squeue -h -j "$1" -o %T) == RUNNING ]]; }
pids=()
for job in 1 2; do
    salloc --quiet --no-shell -N 4 -n 4
done
for job in 1 2; do
    wait_for 30 runs $job
    srun --quiet --jobid $job -N 4 -n 4 bash -c "$(ticker 'slurm.$SLURM_JOB_ID.$SLURM_PROCID')" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "a job under Slurm"; done
scancel 1 2
wait_for 20 no_jobs

srun -N 4 -n 4 --job-name daemons bash -c "exec '$MIDPLANE' gang daemon --key '$FOLDER/key' --slots 1 --slice-ms 50 \
    --socket '$FOLDER/'\$SLURM_PROCID.socket" >"$FOLDER/gangd.log" 2>&1 &
gang=("$MIDPLANE" gang --socket "$FOLDER/0.socket")
four_hosts() { "${gang[@]}" list | grep -q '; 4 of 4 hosts '; }
wait_for 30 four_hosts
pids=()
for job in 1 2; do
    timeout $((SECONDS_EACH * 3)) "${gang[@]}" run --ranks 4 -- \
        bash -c "$(ticker 'gangd.$GANG_JOB.$GANG_RANK')" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "a job under gangd"; done
"$LAB" preempt --turns "$FOLDER/turns" "${FORMAT[@]}" >&3
