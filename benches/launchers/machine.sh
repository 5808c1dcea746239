# Functions of the scripts in this folder, which source this file. Each script has a machine of its own, of namespaces:
# its host name, mounts, network and processes. All its processes end with the script, in every case; files are in
# $FOLDER, which is memory of that machine.

# skip WHY: it can't run here, and that is no failure.
skip() {
    echo "skipped: $*"
    exit 0
}

# fail WHY: it ran, and a check failed.
fail() {
    echo "failed: $*" >&2
    exit 1
}

# needs TOOL...: Linux, root, and these; Debian has them in the packages that are named after a colon.
needs() {
    local tool
    [[ $(uname) == Linux ]] || skip "it needs Linux"
    [[ $(id -u) == 0 ]] || skip "it needs root"
    for tool in unshare ip "$@"; do
        command -v "${tool%%:*}" >/dev/null || skip "it needs ${tool%%:*} (Debian's package ${tool##*:})"
    done
}

# enter_machine HOSTS [ARGUMENT...]: continues this script on a machine of its own, which is called login and has the
# addresses and names of HOSTS hosts, from node1 on; none of them can reach other hosts.
enter_machine() {
    local hosts=$1 code=0 folder
    shift
    if [[ -z ${FOLDER:-} ]]; then
        folder=$(mktemp -d)
        FOLDER=$folder unshare --uts --mount --net --pid --fork --kill-child --mount-proc "$0" "$@" || code=$?
        rmdir "$folder"
        exit $code
    fi
    mount -t tmpfs scratch "$FOLDER"
    mount -t tmpfs scratch /run
    mkdir -p /run/sshd /run/lock
    hostname login
    ip link set lo up
    # The system resolves names only if there is an interface besides loopback.
    ip link add nodes type bridge
    ip link set nodes up
    printf '127.0.0.1 localhost\n10.231.80.100 login\n' >"$FOLDER/hosts"
    ip address add 10.231.80.100/24 dev nodes
    local host
    for ((host = 1; host <= hosts; host++)); do
        ip address add "10.231.80.$host/24" dev nodes
        echo "10.231.80.$host node$host" >>"$FOLDER/hosts"
    done
    mount --bind "$FOLDER/hosts" /etc/hosts
    printf '1:%s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >"$FOLDER/key"
    chmod 600 "$FOLDER/key"
}

# wait_for SECONDS COMMAND...: waits until the command succeeds.
wait_for() {
    local left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        ((left-- > 0)) || fail "not in time: $*"
        sleep 0.1
    done
}

# holds WHAT FILE TEXT: reports success if a run's output has the text, and fails otherwise.
holds() {
    grep -q -- "$3" "$2" || { cat "$2" >&2; fail "$1"; }
    echo "$1: $(head -1 "$2" | cut -c1-120)"
}

# has_exited NAME: no process of that name is left on this machine.
has_exited() { ! pgrep -x "$1" >/dev/null; }
