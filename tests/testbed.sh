#!/bin/bash
# Nodes on one machine, for tests and benchmarks: each a network namespace with a link to a switch, and a daemon with
# a tier and a mount point of its own; metadata servers in a namespace of theirs; one backing store of all. Root only.
#
#   tests/testbed.sh check                        exit 0 if this machine can do it, else says why not
#   tests/testbed.sh up N [OPTION]... [-- MOUNT OPTIONS]
#       --rate RATE      of every link, as tc has it (1gbit); without it as fast as the machine
#       --delay TIME     of every packet that a node sends (1ms); needs tc's netem
#       --servers S, --replicas R   metadata servers, as for `forebay cluster init`
#       --slow MIB       the backing store is a throttled disk of that size (bench/slowdisk.sh)
#       --no-mount       no daemons yet
#   tests/testbed.sh mount NODE [OPTION]...       the node's daemon; options are added to those of `up`
#   tests/testbed.sh umount NODE                  writes back and ends it
#   tests/testbed.sh run NODE COMMAND...          a command in the namespace of NODE (a number, or `meta`)
#   tests/testbed.sh cut A                        nobody reaches A any more, nor A anybody
#   tests/testbed.sh cut A B                      A and B do not reach each other; others reach both
#   tests/testbed.sh heal                         all reach all
#   tests/testbed.sh slow NODE RATE [TIME]        another rate, and delay; RATE `none` for no limit
#   tests/testbed.sh kill NODE                    kill -9 of the node's daemon and of what `run` began there; `meta`
#                                                 kills all servers, `meta:PORT` one; `meta` starts them again
#   tests/testbed.sh meta                         starts the metadata servers that do not run
#   tests/testbed.sh traffic NODE                 bytes that the node has received and sent
#   tests/testbed.sh down                         takes all away, whatever has happened; also twice
#
# Everything lies in one directory: `mnt/N` (mount points), `tier/N`, `log/N`, `backing`, `meta/address`. Nothing has a
# name outside of it, so that several testbeds run side by side. Node N has the address 10.77.0.N, the metadata servers
# 10.77.1.1. Nodes talk by TLS; `up N -- --cluster-tls off` has them not.
#
# Environment: TESTBED_DIR, the directory (/tmp/forebay-testbed); FOREBAY, the binary; TIER_SIZE (256M).
# Exit codes: 0 done, 1 failed, 2 usage, 5 this machine can not.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
DIR=${TESTBED_DIR:-/tmp/forebay-testbed}
FOREBAY=${FOREBAY:-${CARGO_TARGET_DIR:-$ROOT/target}/release/forebay}
META=10.77.1.1

say() { echo "testbed: $*" >&2; }
fail() { say "$@"; exit 1; }
usage() { sed -n '5,24s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }

inside() { local net=$DIR/net/$1; shift; nsenter --net="$net" "$@"; }
address() { [ "$1" = meta ] && echo $META || echo "10.77.0.$1"; }
known() { [ -e "$DIR/net/$1" ] && [ "$1" != switch ] || fail "$1: no such node"; }
nodes() { seq "$(cat "$DIR/nodes")"; }

check() {
    local tool probe
    [ "$(id -u)" = 0 ] || { say "needs root"; return 5; }
    for tool in ip:iproute2 tc:iproute2 nsenter:util-linux setsid:util-linux redis-server:redis-server; do
        command -v "${tool%%:*}" >/dev/null || { say "${tool%%:*} is missing: install ${tool##*:}"; return 5; }
    done
    [ -w /dev/fuse ] || { say "no /dev/fuse"; return 5; }
    # Not all kernels have all of it: one link with all that is needed of it.
    probe='ip link add name br0 type bridge && ip link add name p1 type veth peer name eth0 &&
        ip link set p1 master br0 up && tc qdisc add dev p1 root tbf rate 1gbit burst 256kb latency 50ms &&
        ip addr add 10.77.0.1/16 dev eth0 && ip link set eth0 up &&
        ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:01 dev eth0 nud permanent'
    unshare --net sh -c "$probe" >/dev/null 2>&1 ||
        { say "no network namespaces with bridges, veth and tbf"; return 5; }
}

# --- Processes. Only those count whose number was written down and which are in the node's namespace.

is_of() { # node pid
    [ "$(readlink "/proc/$2/ns/net" 2>/dev/null)" = "net:[$(stat -Lc %i "$DIR/net/$1" 2>/dev/null)]" ]
}

written() { # node
    if [ "$1" = meta ]; then
        cat "$DIR"/meta/*/pid 2>/dev/null || true
    fi
    cat "$DIR/pids/$1" 2>/dev/null || true
}

end() { # node pid...
    local node=$1 pid try
    shift
    for pid in "$@"; do
        is_of "$node" "$pid" || continue
        kill -9 "$pid" 2>/dev/null || true
        for try in $(seq 100); do
            is_of "$node" "$pid" || break
            sleep 0.1
        done
    done
}

kill_node() {
    local node=${1%%:*}
    known "$node"
    if [ "$node" != "$1" ]; then
        end meta "$(cat "$DIR/meta/${1#*:}/pid")"
        return
    fi
    # shellcheck disable=SC2046
    end "$node" $(written "$node")
    rm -f "$DIR/pids/$node"
    [ "$node" = meta ] || unmount_dead "$node"
}

# --- Links

shape() { # node rate delay, each may be empty
    local node=$1 rate=$2 delay=$3 parent=root
    tc_of() { inside "$1" tc qdisc "${@:2}" 2>/dev/null; }
    tc_of "$node" del dev eth0 root || true
    tc_of switch del dev "p$node" root || true
    if [ -n "$rate" ]; then
        tc_of switch add dev "p$node" root tbf rate "$rate" burst 256kb latency 50ms || fail "rate $rate: tc refuses"
        tc_of "$node" add dev eth0 root handle 1: tbf rate "$rate" burst 256kb latency 50ms
        parent="parent 1:"
    fi
    [ -z "$delay" ] || tc_of "$node" add dev eth0 $parent netem delay "$delay" ||
        { say "delay $delay: this kernel has no netem"; return 5; }
}

plug() { # node
    local net=$DIR/net/$1
    touch "$net"
    unshare --net="$net" true
    inside switch ip link add "p$1" type veth peer name eth0 netns "$net"
    inside switch ip link set "p$1" master br0 up
    inside "$1" ip addr add "$(address "$1")/16" dev eth0
    inside "$1" ip link set lo up
    inside "$1" ip link set eth0 up
}

cut_off() { # a [b]
    known "$1"
    if [ $# = 1 ]; then
        inside switch ip link set "p$1" nomaster
        return
    fi
    known "$2"
    # A station that nobody has: what is sent is lost without anybody being told.
    inside "$1" ip neigh replace "$(address "$2")" lladdr 02:00:00:00:00:01 dev eth0 nud permanent
    inside "$2" ip neigh replace "$(address "$1")" lladdr 02:00:00:00:00:01 dev eth0 nud permanent
}

heal() {
    local node
    for node in $(nodes) meta; do
        inside switch ip link set "p$node" master br0
        inside "$node" ip neigh flush nud permanent dev eth0
    done
}

traffic() {
    known "$1"
    inside "$1" awk '$1 == "eth0:" { print $2, $10 }' /proc/net/dev
}

# --- Daemons

is_mounted() { grep -qF " $DIR/mnt/$1 " /proc/self/mountinfo; }

unmount_dead() {
    ! is_mounted "$1" || fusermount3 -uz "$DIR/mnt/$1" 2>/dev/null || umount -l "$DIR/mnt/$1" 2>/dev/null || true
}

mount_node() { # node option...
    local node=$1 options pid try
    shift
    known "$node"
    mapfile -t options <"$DIR/options"
    # Not by `inside`: the process that is written down must become the daemon, which a function's does not.
    FOREBAY_RUNTIME_DIR=$DIR/run nsenter --net="$DIR/net/$node" setsid "$FOREBAY" mount "$DIR/backing" "$DIR/mnt/$node" \
        --tier "$DIR/tier/$node=${TIER_SIZE:-256M}" --cluster "file:$DIR/meta/address" \
        --cluster-listen "$(address "$node"):0" --cluster-secret "$DIR/secret" --foreground "${options[@]}" "$@" \
        </dev/null >>"$DIR/log/$node" 2>&1 &
    pid=$!
    echo "$pid" >>"$DIR/pids/$node"
    for try in $(seq 600); do
        ! is_mounted "$node" || return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    tail -5 "$DIR/log/$node" >&2
    fail "node $node is not mounted"
}

umount_node() {
    local node=$1 pid try
    known "$node"
    FOREBAY_RUNTIME_DIR=$DIR/run timeout -k 5 120 "$FOREBAY" umount --quiet "$DIR/mnt/$node"
    # The daemon ends a moment after its mount.
    for pid in $(written "$node"); do
        for try in $(seq 100); do
            is_of "$node" "$pid" || break
            sleep 0.1
        done
    done
}

start_meta() { # option...
    FOREBAY_RUNTIME_DIR=$DIR/run inside meta timeout -k 5 120 "$FOREBAY" cluster init "$DIR/meta" --bind $META "$@" </dev/null >/dev/null
}

run_in() {
    local node=$1
    shift
    known "$node"
    echo $$ >>"$DIR/pids/$node"
    export FOREBAY_RUNTIME_DIR=$DIR/run
    exec nsenter --net="$DIR/net/$node" "$@"
}

# --- All of it

down() {
    trap - EXIT INT TERM
    local node net
    [ -d "$DIR" ] || return 0
    for net in "$DIR"/net/*; do
        [ -e "$net" ] || continue
        node=${net##*/}
        # shellcheck disable=SC2046
        end "$node" $(written "$node")
        unmount_dead "$node"
        umount "$net" 2>/dev/null || true
    done
    if [ -d "$DIR/disk" ]; then
        umount -l "$DIR/backing" 2>/dev/null || true
        "$ROOT/bench/slowdisk.sh" down "$DIR/disk" || true
    fi
    rm -rf --one-file-system "$DIR"
}

backing() { # MIB, or nothing
    [ -n "$1" ] || return 0
    "$ROOT/bench/slowdisk.sh" up "$DIR/disk" "$1" >/dev/null || return
    mount --bind "$DIR/disk/mnt" "$DIR/backing"
}

up() {
    local count=$1 rate= delay= slow= mount=yes servers=() node
    shift
    [[ $count =~ ^[1-9][0-9]{0,2}$ && $count -le 250 ]] || usage
    while [ $# -gt 0 ]; do
        case $1 in
        --rate) rate=$2; shift 2 ;;
        --delay) delay=$2; shift 2 ;;
        --slow) slow=$2; shift 2 ;;
        --servers | --replicas) servers+=("$1" "$2"); shift 2 ;;
        --no-mount) mount=; shift ;;
        --) shift; break ;;
        *) usage ;;
        esac
    done
    [ ! -e "$DIR" ] || fail "$DIR exists: $0 down"
    check || exit
    mkdir -p "$DIR"/{net,pids,log,run,backing,mnt,tier}
    DIR=$(cd "$DIR" && pwd -P)
    trap down EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    echo "$count" >"$DIR/nodes"
    [ $# = 0 ] || printf '%s\n' "$@" >"$DIR/options"
    touch "$DIR/options"
    (umask 077 && head -c 32 /dev/urandom >"$DIR/secret")
    touch "$DIR/net/switch"
    unshare --net="$DIR/net/switch" true
    inside switch ip link add br0 type bridge
    inside switch ip link set br0 up
    for node in $(nodes) meta; do
        plug "$node"
        [ -z "$rate$delay" ] || shape "$node" "$rate" "$delay" || exit
    done
    backing "$slow" || exit
    start_meta "${servers[@]}" || fail "the metadata servers do not start"
    for node in $(nodes); do
        mkdir "$DIR/mnt/$node"
        [ -z "$mount" ] || mount_node "$node"
    done
    trap - EXIT INT TERM
}

[ ! -d "$DIR" ] || DIR=$(cd "$DIR" && pwd -P)
verb=${1:-}
[ $# = 0 ] || shift
case $verb in
up) [ $# -ge 1 ] || usage ;;
check | heal | meta | down) [ $# = 0 ] || usage ;;
cut) [ $# = 1 ] || [ $# = 2 ] || usage ;;
umount | kill | traffic) [ $# = 1 ] || usage ;;
mount) [ $# -ge 1 ] || usage ;;
run | slow) [ $# -ge 2 ] || usage ;;
*) usage ;;
esac
case $verb in up | check | down) ;; *) [ -e "$DIR/nodes" ] || fail "$DIR: there is no testbed" ;; esac
case $verb in
check) check ;;
up) up "$@" ;;
mount) mount_node "$@" ;;
umount) umount_node "$1" ;;
run) run_in "$@" ;;
cut) cut_off "$@" ;;
heal) heal ;;
slow) known "$1"; rate=$2; [ "$rate" != none ] || rate=; shape "$1" "$rate" "${3:-}" ;;
kill) kill_node "$1" ;;
meta) start_meta ;;
traffic) traffic "$1" ;;
down) down ;;
esac
