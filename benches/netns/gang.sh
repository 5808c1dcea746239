#!/usr/bin/env bash
# Gang scheduling between two hosts: a `midplane gang daemon` on each, jobs whose messages go between them over sealed UDP.
#
#   benches/netns/gang.sh [SLICE_MS]
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. Two NAS jobs take turns in slices of SLICE_MS,
# 100 unless given; one job is saved, ended, and finished under daemons with one host; CG, FT and EP are run alone and
# preempted at the end of each slice, and the cost of that is printed; a host's daemon is killed, and nothing is left.
# Exits with 1 if a check failed. Needs root; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
SLICE=${1:-100}
TAG=mg$$
NET=10.231.81

source benches/netns/network.sh
needs timeout od awk
cargo build --release --quiet -p midplane-benches -p midplane-cli
RELEASE=$(realpath "${CARGO_TARGET_DIR:-target}")/release
LAB=$RELEASE/lab
MIDPLANE=$RELEASE/midplane
add_pair 2>"$FOLDER/why" || skip "no network namespaces here: $(tail -1 "$FOLDER/why")"
printf '1:%s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >"$FOLDER/key"
chmod 600 "$FOLDER/key"

fail() {
    echo "failed: $*" >&2
    exit 1
}

# holds WHAT FILE TEXT: reports success if a run's output has the text, and fails otherwise.
holds() {
    grep -q -- "$3" "$2" || { cat "$2" >&2; fail "$1"; }
    echo "$1: $(head -1 "$2" | cut -c1-120)"
}

# daemons NAME PORT [FLAGS]: a daemon on each host; its sockets are $FOLDER/NAME0 and NAME1, its processes in pids.
daemons() {
    local name=$1 port=$2 host
    printf '%s\n' "$NET.1:$port" "$NET.2:$port" >"$FOLDER/$name.peers"
    pids=()
    for host in 0 1; do
        ip netns exec "$TAG-$((host + 1))" "$MIDPLANE" gang daemon --peers "$FOLDER/$name.peers" --key "$FOLDER/key" \
            --host $host --slots 1 --fabric udp --socket "$FOLDER/$name$host" "${@:3}" \
            >/dev/null 2>>"$FOLDER/complaints" &
        pids+=($!)
    done
    for _ in {1..100}; do
        "$MIDPLANE" gang --socket "$FOLDER/${name}0" list 2>/dev/null | grep -q '; 2 of 2 hosts ' && return
        sleep 0.1
    done
    cat "$FOLDER/complaints" >&2
    fail "the daemons did not find each other"
}

daemons turns 24800 --slice-ms "$SLICE" --with-itself 10
turns=("${pids[@]}")
gang=("$MIDPLANE" gang --socket "$FOLDER/turns0")
"${gang[@]}" run --ranks 2 -- "$LAB" nas cg W >"$FOLDER/cg" &
first=$!
"${gang[@]}" run --ranks 2 -- "$LAB" nas ep A >"$FOLDER/ep" 2>"$FOLDER/ended" &
second=$!
saved=
for _ in {1..100}; do
    job=$("${gang[@]}" list | awk '/nas ep A/ {print $1}')
    [[ -n $job ]] && "${gang[@]}" checkpoint "$job" "$FOLDER/saved" --end >"$FOLDER/output" 2>/dev/null && saved=1 && break
    sleep 0.1
done
[[ -n $saved ]] || fail "EP could not be saved"
wait $second || [[ $? == 137 ]] || fail "EP was saved and ended"
cat "$FOLDER/output"
wait $first || fail "CG, in turns with EP"
holds "CG on two hosts, in turns with another job" "$FOLDER/cg" '"verified":true'

# One host with both slots resumes the job of two hosts.
ip netns exec "$TAG-1" "$MIDPLANE" gang daemon --slots 2 --fabric udp --socket "$FOLDER/elsewhere" >/dev/null 2>&1 &
elsewhere=$!
for _ in {1..100}; do [[ -S $FOLDER/elsewhere ]] && break || sleep 0.1; done
timeout 120 "$MIDPLANE" gang --socket "$FOLDER/elsewhere" restore "$FOLDER/saved" >"$FOLDER/restored" ||
    fail "EP elsewhere"
holds "EP, finished on one host" "$FOLDER/restored" '"verified":true'
kill $elsewhere && wait $elsewhere

daemons alone 24801 --slice-ms 3600000
alone=("${pids[@]}")
"$LAB" preempt --fabric udp --daemons "$FOLDER/alone0,$FOLDER/turns0" --ranks 2 --class W --slice-ms "$SLICE" \
    --mode resident --repeat 5 || fail "a result is not the official one"
"${gang[@]}" list | head -1

"${gang[@]}" run --ranks 2 -- sleep 600 >"$FOLDER/sleeps" 2>&1 &
client=$!
sleep 1
kill -KILL "${turns[1]}"
code=0
wait $client || code=$?
holds "a host's daemon is killed, and its job ends with $code" "$FOLDER/sleeps" 'is gone'
kill "${turns[0]}" "${alone[@]}"
wait "${turns[0]}" "${alone[@]}" || fail "a daemon failed as it ended"
sleep 0.5
[[ -z $(ip netns pids "$TAG-1"; ip netns pids "$TAG-2") ]] || fail "a process is left"
echo "nothing is left on either host"
