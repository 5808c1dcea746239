# Slurm with several nodes on one machine: sourced after machine.sh. Each node has a slurmd, distinguished by -N and
# port; Debian's build needs no more than that. Authentication is off: no other machine can connect.

# start_slurm COUNT [LINE...]: starts a controller and COUNT nodes, with these additional lines of configuration.
start_slurm() {
    local count=$1 node
    shift
    export SLURM_CONF=$FOLDER/slurm.conf
    {
        cat <<CONF
ClusterName=virtual
SlurmctldHost=login(10.231.80.100)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
StateSaveLocation=$FOLDER/state
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmctldPort=17000
SlurmdSpoolDir=$FOLDER/spool-%n
SlurmdPidFile=$FOLDER/slurmd-%n.pid
CONF
        for ((node = 1; node <= count; node++)); do
            echo "NodeName=node$node NodeAddr=10.231.80.$node Port=$((17000 + node)) CPUs=2"
        done
        printf '%s\n' "$@"
    } >"$SLURM_CONF"
    mkdir "$FOLDER/state"
    slurmctld -D >"$FOLDER/slurmctld.log" 2>&1 &
    for ((node = 1; node <= count; node++)); do
        slurmd -D -N "node$node" >"$FOLDER/slurmd-$node.log" 2>&1 &
    done
    wait_for 30 all_idle "$count"
}

# all_idle COUNT: COUNT nodes wait for work.
all_idle() { [[ $(timeout 5 sinfo -h -t idle -o %D 2>/dev/null) == "$1" ]]; }

# no_jobs: Slurm has no jobs.
no_jobs() { [[ -z $(timeout 5 squeue -h 2>/dev/null) ]]; }
