#!/usr/bin/env bash
# Ranks and daemons started by Slurm's srun, over four nodes (a slurmd each) of one machine.
#
#   benches/launchers/slurm.sh
#
# Starts Slurm on a machine of namespaces, has srun start the ranks of `lab collectives` (by srun's own variables, and
# by PMI-2), then a `midplane gang daemon` on each node, and jobs under those; checks their output, and that cancelling
# the step leaves nothing. Exits with 1 if a check failed. Needs root and Debian's packages slurmd, slurmctld and
# slurm-client; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
source benches/launchers/machine.sh
source benches/launchers/nodes.sh
needs timeout od pgrep:procps slurmctld:slurmctld slurmd:slurmd srun:slurm-client
if [[ -z ${FOLDER:-} ]]; then
    cargo build --release --quiet -p midplane-benches -p midplane-cli
fi
RELEASE=$(realpath "${CARGO_TARGET_DIR:-target}")/release
LAB=$RELEASE/lab
MIDPLANE=$RELEASE/midplane
enter_machine 4 "$@"
start_slurm 4 "PartitionName=all Nodes=node[1-4] Default=YES OverSubscribe=FORCE:4"

barriers=("$LAB" collectives --fabric udp --operation barrier --rounds 50 --json)
for tasks in 4 8; do
    timeout 60 srun -N 4 -n $tasks "${barriers[@]}" >"$FOLDER/output" || fail "srun -N 4 -n $tasks collectives"
    holds "srun -N 4 -n $tasks collectives" "$FOLDER/output" "\"nodes\":$tasks"
done
timeout 60 srun -N 2 -n 4 -m cyclic "${barriers[@]}" >"$FOLDER/output" || fail "srun -m cyclic collectives"
holds "srun -N 2 -n 4 -m cyclic collectives" "$FOLDER/output" '"nodes":4'
timeout 60 srun --mpi=pmi2 -N 4 -n 4 "${barriers[@]}" >"$FOLDER/output" || fail "srun --mpi=pmi2 collectives"
holds "srun --mpi=pmi2 -N 4 -n 4 collectives" "$FOLDER/output" '"nodes":4'

# One daemon per node. The nodes are one machine, so each daemon has a socket of its own.
gangd="exec '$MIDPLANE' gang daemon --key '$FOLDER/key' --slots 1 --fabric udp --slice-ms 50 \
    --socket '$FOLDER/'\$SLURM_PROCID.socket"
srun -N 4 -n 4 --job-name daemons bash -c "$gangd" >"$FOLDER/gangd.log" 2>&1 &
gang=("$MIDPLANE" gang --socket "$FOLDER/0.socket")
four_hosts() { "${gang[@]}" list | grep -q '; 4 of 4 hosts '; }
wait_for 30 four_hosts
"${gang[@]}" run --ranks 4 -- "$LAB" nas cg S >"$FOLDER/cg" &
timeout 60 "${gang[@]}" run --ranks 4 -- "$LAB" nas ft S >"$FOLDER/ft" || fail "FT under srun's daemons"
wait $! || fail "CG under srun's daemons"
holds "gang nas ft, in turns with another job, under srun's daemons" "$FOLDER/ft" '"verified":true'
holds "gang nas cg, in turns with it" "$FOLDER/cg" '"verified":true'

# The step is cancelled while a job runs: daemons and ranks exit, and their sockets are removed.
"${gang[@]}" run --ranks 4 -- sleep 600 >"$FOLDER/sleeps" 2>&1 &
wait_for 10 pgrep -x sleep
scancel --name daemons
wait_for 20 has_exited midplane
wait_for 5 has_exited sleep
wait_for 20 no_jobs
[[ -z $(ls "$FOLDER"/*.socket 2>/dev/null) ]] || fail "a socket is left"
echo "scancel: no daemon, rank or socket is left"
