#!/usr/bin/env bash
# Ranks and daemons started by a real ssh, from a hostfile of three hosts.
#
#   benches/launchers/ssh.sh
#
# On a machine of namespaces, an sshd on a high port answers for three hosts, with keys that were made for this run. ssh
# starts the ranks of `lab collectives`, then `midplane gang daemon --hostfile ... --spread` starts a daemon on each
# host by ssh; jobs run under those, and nothing is left when the first daemon is killed, or an ssh. Exits with 1 if a
# check failed. Needs root and Debian's packages openssh-server and openssh-client; where it can't run, it prints why,
# and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
source benches/launchers/machine.sh
needs timeout od pgrep:procps sshd:openssh-server ssh:openssh-client ssh-keygen:openssh-client
if [[ -z ${FOLDER:-} ]]; then
    cargo build --release --quiet -p midplane-benches -p midplane-cli
fi
RELEASE=$(realpath "${CARGO_TARGET_DIR:-target}")/release
LAB=$RELEASE/lab
MIDPLANE=$RELEASE/midplane
enter_machine 3 "$@"

ssh-keygen -q -t ed25519 -N '' -f "$FOLDER/host_key"
ssh-keygen -q -t ed25519 -N '' -f "$FOLDER/user_key"
cat >"$FOLDER/sshd_config" <<CONF
Port 2222
HostKey $FOLDER/host_key
AuthorizedKeysFile $FOLDER/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
PidFile none
CONF
cat >"$FOLDER/ssh_config" <<CONF
Port 2222
IdentityFile $FOLDER/user_key
IdentitiesOnly yes
UserKnownHostsFile $FOLDER/known_hosts
BatchMode yes
CONF
for host in 1 2 3; do echo "[node$host]:2222 $(cut -d' ' -f1,2 "$FOLDER/host_key.pub")"; done >"$FOLDER/known_hosts"
ssh=(ssh -F "$FOLDER/ssh_config")
"$(command -v sshd)" -D -e -f "$FOLDER/sshd_config" 2>"$FOLDER/sshd.log" &
wait_for 10 "${ssh[@]}" node1 true

printf 'node%s slots=2\n' 1 2 3 >"$FOLDER/hostfile"
barriers="'$LAB' collectives --fabric udp --operation barrier --rounds 50 --json --hostfile '$FOLDER/hostfile'"
pids=()
for rank in 5 4 3 2 1 0; do
    timeout 60 "${ssh[@]}" "node$((rank / 2 + 1))" "$barriers --rank $rank" >"$FOLDER/rank$rank" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "collectives over ssh"; done
holds "six ranks of collectives over ssh" "$FOLDER/rank0" '"nodes":6'

gangd=("$MIDPLANE" gang daemon --hostfile "$FOLDER/hostfile" --key "$FOLDER/key" --spread --fabric udp --slice-ms 50
    --socket "$FOLDER/socket" --rsh "ssh -F $FOLDER/ssh_config")
gang=("$MIDPLANE" gang --socket "$FOLDER/socket")
three_hosts() { "${gang[@]}" list | grep -q '; 3 of 3 hosts are here, with 2 slots each'; }
start_daemons() {
    "${gangd[@]}" >"$FOLDER/gangd.log" 2>&1 &
    daemon=$!
    wait_for 30 three_hosts
}

start_daemons
"${gang[@]}" run --ranks 4 -- "$LAB" nas cg S >"$FOLDER/cg" &
timeout 60 "${gang[@]}" run --ranks 4 -- "$LAB" nas ft S >"$FOLDER/ft" || fail "FT under ssh's daemons"
wait $! || fail "CG under ssh's daemons"
holds "gang nas ft, in turns with another job, under ssh's daemons" "$FOLDER/ft" '"verified":true'
holds "gang nas cg, in turns with it" "$FOLDER/cg" '"verified":true'

# One ssh is killed while a job runs: its host is lost, the job ends, and its client prints the reason.
"${gang[@]}" run --ranks 6 -- sleep 600 >"$FOLDER/sleeps" 2>&1 &
client=$!
wait_for 10 pgrep -x sleep
kill -KILL "$(pgrep -n -P "$daemon" -x ssh)"
code=0
wait "$client" || code=$?
[[ $code == 137 ]] || fail "the job of a host whose ssh was killed ended with $code"
holds "an ssh is killed" "$FOLDER/sleeps" 'is gone'
wait_for 5 has_exited sleep

# The first daemon is killed while a job runs: nothing is left on any host.
kill -KILL "$daemon"
wait_for 20 has_exited midplane
start_daemons
"${gang[@]}" run --ranks 6 -- sleep 600 >"$FOLDER/sleeps" 2>&1 &
wait_for 10 pgrep -x sleep
kill -KILL "$daemon"
wait_for 20 has_exited midplane
wait_for 5 has_exited sleep
wait_for 5 has_exited ssh
[[ -z $(ls "$FOLDER"/socket* 2>/dev/null) ]] || fail "a socket is left"
echo "the first daemon is killed: no daemon, rank or socket is left"
