# Functions of the scripts in this folder, which source this file. Hosts are network namespaces, named $TAG-... after
# the script and its process. All processes run inside of them; both are removed when the script ends.

# skip WHY: it can't run here, and that is no failure.
skip() {
    echo "skipped: $*"
    exit 0
}

# needs TOOL...: Linux, root, and these.
needs() {
    [[ $(uname) == Linux ]] || skip "it needs Linux"
    [[ $(id -u) == 0 ]] || skip "it needs root"
    local tool
    for tool in ip "$@"; do
        command -v "$tool" >/dev/null || skip "it needs $tool"
    done
}

# value NAME FILE: a number of the JSON document.
value() { grep -o "\"$1\":[0-9.e+-]*" "$2" | head -1 | cut -d: -f2; }

# Ends the processes in our namespaces, and removes the namespaces.
remove_network() {
    local space
    for space in $(ip netns list 2>/dev/null | awk -v tag="$TAG-" 'index($1, tag) == 1 {print $1}'); do
        ip netns pids "$space" 2>/dev/null | xargs -r kill 2>/dev/null || true
        ip netns del "$space" 2>/dev/null || true
    done
}

FOLDER=$(mktemp -d)
trap 'remove_network; rm -rf "$FOLDER"' EXIT
trap 'exit 130' INT TERM

# A bridge in a namespace of its own.
add_bridge() {
    ip netns add "$TAG-sw"
    ip -n "$TAG-sw" link add bridge0 type bridge
    ip -n "$TAG-sw" link set bridge0 up
}

# add_host INDEX: a namespace with the address $NET.(10 + INDEX), joined to the bridge.
add_host() {
    local space=$TAG-$1
    ip netns add "$space" && ip -n "$space" link set lo up
    ip link add eth0 netns "$space" type veth peer name "port$1" netns "$TAG-sw"
    ip -n "$TAG-sw" link set "port$1" master bridge0 gso_max_segs 1 up
    ip -n "$space" link set eth0 gso_max_segs 1 up
    ip -n "$space" address add "$NET.$((10 + $1))/24" dev eth0
}

# Two hosts, $TAG-1 and $TAG-2, at the ends of one line: $NET.1 and $NET.2.
add_pair() {
    local host
    ip netns add "$TAG-1" && ip netns add "$TAG-2"
    ip link add eth0 netns "$TAG-1" type veth peer name eth0 netns "$TAG-2"
    for host in 1 2; do
        ip -n "$TAG-$host" link set lo up
        ip -n "$TAG-$host" link set eth0 up
        ip -n "$TAG-$host" address add "$NET.$host/24" dev eth0
    done
}
