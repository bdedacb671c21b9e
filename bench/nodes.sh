#!/bin/bash
# Several nodes on one machine (tests/testbed.sh): what they read from each other and from the backing store, what their
# writes cost the network, metadata on several servers, and GlusterFS beside Forebay.
#
#   bench/nodes.sh [peer|dataset|traffic|redundancy|shards|gluster]...     all if not said
#
#   peer     a file that another node has, read through a mount, with TLS and without, against a plain TCP copy between
#            the same namespaces; at full speed and at 1 Gb/s
#   dataset  eight nodes read one data set on a slow disk: together, each with a cache of its own, without a cache
#   traffic  bytes on the network while a node writes
#   redundancy  a file that is written and synced, without copies, with one elsewhere, with fragments on two nodes:
#            with tiers in memory, where the processors that all nodes share are the bound, and on disks of DISK_MB a
#            second each, as nodes of their own have them
#   shards   creates a second straight to the metadata engine, on 1, 2 and 4 servers
#   gluster  creates and blocks of 1 MiB through a mount of three nodes and through GlusterFS on the same nodes
#
# Environment: ROUNDS (3), ROUNDS_REDUNDANCY (5), DISK_MB (200), MIB of the file for `peer`, `traffic` and `redundancy` (256), NODES for `dataset` (8), SECONDS_EACH for
# `shards` (1), FILES for `gluster` (300), WORK_DIR (a new directory in /dev/shm), SKIP_BUILD, FOREBAY and FOREBAY_BENCH
# as in the other scripts. Results: bench/results/nodes-PART.csv, .json and .svg; a row `CPU` is what all of the machine
# worked meanwhile, so that nothing else may run. `peer`, `dataset` and `gluster` need root.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

ROUNDS=${ROUNDS:-3}
MIB=${MIB:-256}
NODES=${NODES:-8}
DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-nodes.XXXXXX)}
RESULTS=$ROOT/bench/results
BED=$ROOT/tests/testbed.sh
export TESTBED_DIR=$DIR/bed FOREBAY FOREBAY_RUNTIME_DIR=$DIR/bed/run
GLUSTER=/var/tmp/forebay-gluster.$$
CSV=
[ $# -gt 0 ] || set -- peer dataset traffic redundancy shards gluster

DIRS=("$DIR" "$GLUSTER")
MOUNTS=("$DIR/own/mnt")
stop() {
    "$BED" down
    [ ! -d "$GLUSTER" ] || stop_gluster
}

# --- Measuring

begin() { # part
    CSV=$RESULTS/nodes-$1.csv
    echo "test,subject,unit,round,value" >"$CSV"
}
add() { echo "\"$1\",\"$2\",$3,$round,$4" >>"$CSV"; }
finish() { # part title
    "$BENCH" plot "$CSV" --title "$2" --out "$RESULTS/nodes-$1"
}

# Milliseconds that all processors have worked since the start of the machine.
worked() { awk '$1 == "cpu" { printf "%d", ($2 + $3 + $4 + $7 + $8) * 10; exit }' /proc/stat; }

# Seconds and CPU of a command: measure TEST SUBJECT COMMAND...
measure() {
    local test=$1 subject=$2 before took
    shift 2
    before=$(worked)
    took=$(seconds "$@")
    add "$test" "$subject" s "$took"
    add "$test CPU" "$subject" ms $(($(worked) - before))
}

received() { "$BED" traffic "$1" | cut -d' ' -f1; }
sent() { "$BED" traffic "$1" | cut -d' ' -f2; }

# --- peer

get_plain() { "$BED" run 2 "$BENCH" tcp-get 10.77.0.1:9000 "$DIR/got"; }
read_mount() { dd if="$TESTBED_DIR/mnt/$1" of=/dev/null bs=1M status=none; }

# Reads the file at node 2 from node 1: from_peer TEST SUBJECT
from_peer() {
    local before now
    "$FOREBAY" evict "$TESTBED_DIR/mnt/2/file" >/dev/null
    # The kernel's pages stay over opens of one version.
    drop_caches
    before=$(received 2)
    measure "$1" "$2" read_mount 2/file
    now=$(received 2)
    [ $((now - before)) -ge $((MIB << 20)) ] || { say "the file did not come from the other node"; return 1; }
}

peer() {
    local tls rate round node
    begin peer
    export TIER_SIZE=$((MIB * 2))M
    for tls in on off; do
        "$BED" up 2 --no-mount
        head -c "${MIB}M" /dev/urandom >"$TESTBED_DIR/backing/file"
        for node in 1 2; do "$BED" mount $node --cluster-tls $tls; done
        "$FOREBAY" warm --quiet "$TESTBED_DIR/mnt/1/file"
        "$BED" run 1 "$BENCH" tcp-serve "$TESTBED_DIR/backing/file" --listen 10.77.0.1:9000 >/dev/null &
        for rate in none 1gbit; do
            for node in 1 2; do "$BED" slow $node $rate; done
            for round in $(seq 0 $((ROUNDS - 1))); do
                # Beside each, as the machine is not the same at all times.
                measure "$MIB MiB, rate $rate, TLS $tls" "TCP copy" get_plain
                from_peer "$MIB MiB, rate $rate, TLS $tls" peer
            done
        done
        "$BED" down
        wait
    done
    unset TIER_SIZE
    finish peer "A file from another node"
}

# --- dataset

# Everything below a directory, by direct I/O if said so: read_all DIRECTORY [iflag=direct]
read_all() { find "$1" -type f -exec dd if={} of=/dev/null bs=1M ${2:+"$2"} status=none \;; }
read_cluster() {
    local node pids=()
    for node in $(seq "$NODES"); do read_all "$TESTBED_DIR/mnt/$node/set" & pids+=($!); done
    wait "${pids[@]}"
}
read_bare() {
    local node pids=()
    for node in $(seq "$NODES"); do read_all "$SLOW/set" iflag=direct & pids+=($!); done
    wait "${pids[@]}"
}
# One after the other, caches dropped in between: nodes of one machine would share its page cache. The disk is what all
# wait for, so that they took as long at once.
read_alone() {
    local node
    for node in $(seq "$NODES"); do
        drop_caches
        mkdir -p "$DIR/own/mnt"
        "$FOREBAY" mount "$SLOW" "$DIR/own/mnt" --tier "$DIR/own/tier=512M" --no-supervisor
        read_all "$DIR/own/mnt/set"
        "$FOREBAY" umount --quiet "$DIR/own/mnt"
        rm -rf "$DIR/own/tier"
    done
}
disk_mib() { awk '{ printf "%.3f", $3 * 512 / 1048576 }' "/sys/block/$DEVICE/stat"; }

measure_set() { # subject command
    local before
    drop_caches
    before=$(disk_mib)
    measure "$NODES nodes" "$@"
    add "$NODES nodes from the disk" "$1" MiB "$(awk "BEGIN { print $(disk_mib) - $before }")"
}

dataset() {
    local round node size
    "$ROOT/bench/slowdisk.sh" check || { say "dataset is left out"; return 0; }
    begin dataset
    # The disk's image lies in memory: the throttle alone says how fast it is.
    "$BED" up "$NODES" --no-mount --slow 400
    SLOW=$TESTBED_DIR/backing
    DEVICE=$(basename "$(findmnt -n -o SOURCE "$TESTBED_DIR/disk/mnt")")
    mkdir "$SLOW/set"
    for file in $(seq 8); do head -c 16M /dev/urandom >"$SLOW/set/large$file"; done
    for file in $(seq 64); do head -c 256K /dev/urandom >"$SLOW/set/small$file"; done
    sync -f "$SLOW"
    size=$((8 * 16 + 64 / 4))
    for round in $(seq 0 $((ROUNDS - 1))); do
        add "$NODES nodes from the disk" "size of the set" MiB $size
        measure_set "no cache" read_bare
        measure_set "caches of their own" read_alone
        for node in $(seq "$NODES"); do "$BED" mount "$node"; done
        measure_set "cluster" read_cluster
        for node in $(seq "$NODES"); do
            "$BED" umount "$node"
            rm -rf "$TESTBED_DIR/tier/$node"
        done
    done
    "$BED" down
    finish dataset "$NODES nodes read $size MiB from a slow disk"
}

# --- traffic

write_file() { dd if=/dev/zero of="$TESTBED_DIR/mnt/1/$1" bs=1M count="$MIB" conv=fsync status=none; }

traffic() {
    local round before
    begin traffic
    TIER_SIZE=$((MIB * (ROUNDS + 1)))M "$BED" up 2
    export FOREBAY_RUNTIME_DIR=$TESTBED_DIR/run
    for round in $(seq 0 $((ROUNDS - 1))); do
        before=$(($(sent 1) + $(received 1)))
        write_file "file$round"
        add "a write of $MIB MiB" written MiB "$MIB"
        add "a write of $MIB MiB" "on the network" MiB \
            "$(awk "BEGIN { print ($(sent 1) + $(received 1) - $before) / 1048576 }")"
    done
    "$BED" down
    finish traffic "Bytes on the network while a node writes, without redundancy"
}

# --- redundancy

LEVELS=(none replicas=1 replicas=1,async ec=2+1 ec=2+1,async)

# Until nothing waits for its copies any more.
copied() {
    local try
    for try in $(seq 600); do
        "$FOREBAY" cluster status --json "$TESTBED_DIR/mnt/1" | grep -q '"waiting_files": *0[,}]' && return
        sleep 0.1
    done
}

measure_levels() { # test
    local level round
    for level in "${LEVELS[@]}"; do
        mkdir "$TESTBED_DIR/mnt/1/$level"
        setfattr -n user.forebay.redundancy -v "$level" "$TESTBED_DIR/mnt/1/$level"
    done
    for round in $(seq 0 $((${ROUNDS_REDUNDANCY:-5} - 1))); do
        for level in "${LEVELS[@]}"; do
            measure "$1" "$level" write_file "$level/file"
            copied
            rm "$TESTBED_DIR/mnt/1/$level/file"
            # What is gone here goes elsewhere a moment later.
            sleep 3
        done
    done
}

redundancy() {
    local node
    need setfattr attr
    begin redundancy
    export TIER_SIZE=$((MIB * 3))M
    "$BED" up 3 -- --writeback evict
    export FOREBAY_RUNTIME_DIR=$TESTBED_DIR/run
    measure_levels "$MIB MiB, tiers in memory"
    "$BED" down
    if "$ROOT/bench/slowdisk.sh" check; then
        "$BED" up 3 --no-mount -- --writeback evict
        for node in 1 2 3; do
            DISKS+=("$DIR/disk$node")
            SLOW_BPS=$((${DISK_MB:-200} * 1000000)) SLOW_IOPS=100000 \
                "$ROOT/bench/slowdisk.sh" up "$DIR/disk$node" $((MIB * 4)) >/dev/null
            ln -s "$DIR/disk$node/mnt" "$TESTBED_DIR/tier/$node"
            "$BED" mount "$node"
        done
        measure_levels "$MIB MiB, tiers of ${DISK_MB:-200} MB/s"
        "$BED" down
        for node in 1 2 3; do "$ROOT/bench/slowdisk.sh" down "$DIR/disk$node"; done
        DISKS=()
    else
        say "no tiers on disks"
    fi
    unset TIER_SIZE
    finish redundancy "A file of $MIB MiB that is written and synced, by what other nodes keep of it"
}

# --- shards

shards() {
    local round line
    begin shards
    for round in $(seq 0 $((ROUNDS - 1))); do
        (cd "$ROOT" && cargo bench -q -p forebay-meta --bench cluster -- "${SECONDS_EACH:-1}") |
            awk -v round="$round" '$3 == "primaries" {
                sub("/s", "", $6)
                printf "%s of %d threads,%d servers,op/s,%d,%s\n", $1, $4, $2, round, $6
                printf "%s of %d threads CPU of the servers for 1000,%d servers,ms,%d,%s\n", $1, $4, $2, round, $10
            }' >>"$CSV"
    done
    finish shards "Creates by metadata servers"
}

# --- gluster

g() { # node command...
    local pid
    pid=$(cat "$GLUSTER/n$1/pid")
    shift
    nsenter -t "$pid" -m -n "$@"
}

start_gluster() {
    local node try
    for node in 1 2; do
        mkdir -p "$GLUSTER/n$node"/{lib,run/gluster,log/bricks,brick}
        mkdir -p /var/lib/glusterd /var/log/glusterfs
        # Two of them on one machine: each has its own state, in a mount namespace of its own.
        "$BED" run $node setsid unshare -m --propagation private sh -c "
            mount --bind '$GLUSTER/n$node/lib' /var/lib/glusterd && mount --bind '$GLUSTER/n$node/run' /run &&
                mount --bind '$GLUSTER/n$node/log' /var/log/glusterfs && echo \$\$ >'$GLUSTER/n$node/pid' &&
                exec glusterd --no-daemon" >/dev/null 2>&1 &
    done
    for try in $(seq 60); do
        [ -s "$GLUSTER/n1/pid" ] && [ -s "$GLUSTER/n2/pid" ] && g 1 gluster --mode=script peer probe 10.77.0.2 2>/dev/null && break
        sleep 0.5
    done
    for try in $(seq 60); do
        g 1 gluster peer status | grep -q 'Peer in Cluster (Connected)' && break
        sleep 0.5
    done
    g 1 gluster --mode=script volume create v0 "10.77.0.1:$GLUSTER/n1/brick" "10.77.0.2:$GLUSTER/n2/brick" force
    g 1 gluster --mode=script volume start v0
    mkdir -p "$GLUSTER/mnt"
    # This one's process ends with its mount.
    nsenter --net="$TESTBED_DIR/net/3" mount -t glusterfs -o "log-file=$GLUSTER/client.log" 10.77.0.1:/v0 "$GLUSTER/mnt"
}

stop_gluster() {
    local file pid
    umount -l "$GLUSTER/mnt" 2>/dev/null || true
    for file in "$GLUSTER"/n*/pid "$GLUSTER"/n*/run/gluster/vols/*/*.pid "$GLUSTER"/n*/run/gluster/*/*.pid; do
        [ -s "$file" ] || continue
        pid=$(cat "$file")
        # Only what is Gluster's, and nothing that has got an old number.
        case $(cat "/proc/$pid/comm" 2>/dev/null) in gluster*) kill -9 "$pid" 2>/dev/null || true ;; esac
    done
    rm -rf --one-file-system "$GLUSTER"
}

beside_gluster() {
    need gluster glusterfs-server glusterfs-client
    # On a disk, as its bricks need extended attributes that a file system in memory may lack.
    TESTBED_DIR=$GLUSTER/bed FOREBAY_RUNTIME_DIR=$GLUSTER/bed/run
    mkdir -p "$GLUSTER"
    "$BED" up 3 --no-mount
    # First, so that its namespaces have no copies of Forebay's mounts.
    start_gluster
    for node in 1 2 3; do "$BED" mount $node; done
    echo probe >"$GLUSTER/mnt/probe"
    local subjects=("gluster=$GLUSTER/mnt" "forebay=$TESTBED_DIR/mnt/3")
    "$BENCH" meta "${subjects[@]}" --files "${FILES:-300}" --entries 500 --procs 1,4 --rounds "$ROUNDS" \
        --out "$RESULTS/nodes-gluster-names"
    "$BENCH" newfile "${subjects[@]}" --file-mib 32 --procs 1,4 --rounds "$ROUNDS" --out "$RESULTS/nodes-gluster-newfile"
    "$BENCH" hit "${subjects[@]}" --file-mib 32 --procs 1 --rounds "$ROUNDS" --out "$RESULTS/nodes-gluster-hit"
    for node in 1 2 3; do "$BED" umount $node; done
    "$BED" down
    stop_gluster
}

need redis-server redis-server
need fusermount3 fuse3
build
mkdir -p "$DIR" "$RESULTS"
"$BED" check
for part in "$@"; do
    say "$part"
    case $part in
    peer | dataset | traffic | redundancy | shards) $part ;;
    gluster) beside_gluster ;;
    *) say "unknown: $part"; exit 2 ;;
    esac
done
