#!/usr/bin/env bash
# Unmodified MPI programs between two hosts, over the libfabric provider's sealed UDP.
#
#   MPI_FOLDER=FOLDER benches/netns/mpi.sh [--json]
#
# The hosts are network namespaces joined by a veth pair of 1500 bytes. FOLDER is the one of `benches/launchers/mpi.sh`,
# with MPICH, the provider and the programs. They run on 2 and 4 ranks; then half round trips, compared with libfabric's
# tcp, whose bytes are not sealed: in real time, since other programs that take a processor from a rank that polls cost
# more than all else. --json runs one round of half round trips alone, prints one JSON document, and uses target/mpi without
# MPI_FOLDER. Needs root; where it can't run, it prints why, and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

TAG=mf$$
NET=10.231.82

source benches/netns/network.sh
needs timeout od chrt
[[ ${1:-} != --json ]] || MPI_FOLDER=${MPI_FOLDER:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/mpi}
[[ -x ${MPI_FOLDER:-}/pingpong ]] || skip "run benches/launchers/mpi.sh with the same MPI_FOLDER before"
PATH=$MPI_FOLDER/python/bin:$PATH

add_pair
printf '1:%s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >"$FOLDER/key"
chmod 600 "$FOLDER/key"
cat >"$FOLDER/rsh" <<RSH
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec ip netns exec "$TAG-\${host##*.}" bash -c "\$*"
RSH
chmod +x "$FOLDER/rsh"

run() { # PROVIDER RANKS PROGRAM...
    FI_PROVIDER=$1 FI_PROVIDER_PATH=$MPI_FOLDER/provider FI_MIDPLANE_NETWORK=$NET.1 FI_MIDPLANE_KEY_FILE=$FOLDER/key \
        MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 ip netns exec "$TAG-1" timeout 120 mpiexec -launcher ssh \
        -launcher-exec "$FOLDER/rsh" -hosts "$NET.1,$NET.2" -n "$2" "${@:3}"
}
if [[ ${1:-} == --json ]]; then
    runs=()
    for provider in midplane tcp; do
        while read -r bytes us; do
            runs+=("{\"provider\":\"$provider\",\"bytes\":$bytes,\"us\":$us}")
        done < <(run $provider 2 chrt -r 1 "$MPI_FOLDER/pingpong" 200 | sed -n 's/^\([0-9]*\) B: \([0-9.]*\) us.*/\1 \2/p')
    done
    (IFS=, && echo "{\"runs\":[${runs[*]}]}")
    exit 0
fi
for ranks in 2 4; do
    for program in hello ring collectives onesided derived cancel threads ep cg ft; do
        run midplane $ranks "$MPI_FOLDER/$program"
    done
done
for round in 1 2 3; do
    for provider in midplane tcp; do
        echo "half round trips, round $round, $provider:"
        run $provider 2 chrt -r 1 "$MPI_FOLDER/pingpong" 200
    done
done
