#!/usr/bin/env bash
# Two commd nodes, two processes on each, one training run on real text: then everything is gone again. Nodes live in
# network namespaces of their own where root allows, else both on loopback.
#
#   demo.sh [TEXT]      COMMD_BUILD: where the programs are (default build/release)
set -euo pipefail

build=$(cd "${COMMD_BUILD:-build/release}" && pwd)
text=${1:-/usr/share/common-licenses/GPL-3}
steps=${COMMD_DEMO_STEPS:-400}
[ -r "$text" ] || { echo "demo: $text: cannot be read" >&2; exit 2; }

work=$(mktemp -d /tmp/commd-demo-XXXXXX)
tag=commd$$
processes=()
namespaces=()

cleanup() {
    trap '' INT TERM
    for process in "${processes[@]}"; do
        kill "$process" 2>/dev/null || true
    done
    for process in "${processes[@]}"; do
        wait "$process" 2>/dev/null || true
    done
    delete_namespaces
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a program in node $1's namespace, if it has one.
in_node() {
    local node=$1
    shift
    if [ ${#namespaces[@]} -gt 0 ]; then
        exec ip netns exec "$tag-$node" "$@"
    fi
    exec "$@"
}

# False where this user, or this container, may not; what was made until then is gone again.
make_namespaces() {
    local node address=1
    if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null; then
        return 1
    fi
    for node in a b; do
        ip netns add "$tag-$node" 2>/dev/null || return 1
        namespaces+=("$tag-$node")
    done
    ip -n "$tag-a" link add veth0 type veth peer name veth0 netns "$tag-b" 2>/dev/null || return 1
    for node in a b; do
        ip -n "$tag-$node" link set lo up && ip -n "$tag-$node" link set veth0 up &&
            ip -n "$tag-$node" addr add "10.97.0.$address/24" dev veth0 &&
            ip netns exec "$tag-$node" true 2>/dev/null || return 1
        address=$((address + 1))
    done
}

delete_namespaces() {
    local namespace
    for namespace in "${namespaces[@]}"; do
        ip netns del "$namespace" 2>/dev/null || true
    done
    namespaces=()
}

if make_namespaces; then
    addresses=(10.97.0.1:7400 10.97.0.2:7400)
    echo "two nodes in network namespaces of their own, joined by veth"
else
    delete_namespaces
    addresses=(127.0.0.1:7400 127.0.0.1:7401)
    echo "two nodes on loopback"
fi

"$build/commctl" pki init --dir "$work/pki" >/dev/null
for node in a b; do
    "$build/commctl" pki issue "$node" --dir "$work/pki" >/dev/null
    cat >"$work/$node.conf" <<CONF
node_name = "$node";
cluster_name = "demo";
nodes = ( { name = "a"; address = "${addresses[0]}"; }, { name = "b"; address = "${addresses[1]}"; } );
certificate = "$work/pki/$node.crt";
key = "$work/pki/$node.key";
authority = "$work/pki/ca.crt";
socket_path = "$work/$node.sock";
CONF
    (in_node "$node" "$build/commd" --config "$work/$node.conf") 2>"$work/$node.log" &
    processes+=($!)
done

ready() {
    local node
    for node in a b; do
        "$build/commctl" --socket "$work/$node.sock" status >/dev/null 2>&1 || return 1
    done
}
for _ in $(seq 100); do
    ready && break
    sleep 0.1
done
if ! ready; then
    echo "demo: the nodes did not come up:" >&2
    cat "$work"/*.log >&2
    exit 1
fi

ranks=()
rank=0
for node in a a b b; do
    COMMD_SOCKET=$work/$node.sock "$build/examples/train" --name demo --rank "$rank" --size 4 --text "$text" \
        --steps "$steps" &
    ranks+=($!)
    processes+=($!)
    rank=$((rank + 1))
done
failed=0
for process in "${ranks[@]}"; do
    wait "$process" || failed=1
done

for node in a b; do
    echo
    "$build/commctl" --socket "$work/$node.sock" status || failed=1
done
if [ $failed != 0 ]; then
    echo "demo: failed; the nodes said:" >&2
    cat "$work"/*.log >&2
fi
exit $failed
