#!/bin/bash
# Names and data through Forebay and its peers, all over memory: mergerfs, rclone mount with a full
# cache, and JuiceFS if JUICEFS names its program (Redis keeps its metadata).
#
#   bench/peers.sh [meta|hit|newfile]...     meta if not said
#
# Environment: WORK_DIR (a new directory in /dev/shm), ROUNDS (5), FILES (2000), ENTRIES (100000),
# JUICEFS, SKIP_BUILD.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-peers.XXXXXX)}
RESULTS=$ROOT/bench/results
PEERS=(mergerfs rclone juicefs)
REDIS_PID=
[ $# -gt 0 ] || set -- meta

for peer in forebay "${PEERS[@]}"; do MOUNTS+=("$DIR/$peer/mnt"); done
DIRS=("$DIR")
# Its file system may need it until it is unmounted.
after() { [ -z "$REDIS_PID" ] || kill "$REDIS_PID" 2>/dev/null; }

need fusermount3 fuse3
need mergerfs mergerfs
need rclone rclone
build
mkdir -p "$RESULTS" "$DIR/native"
for peer in forebay "${PEERS[@]}"; do mkdir -p "$DIR/$peer/store" "$DIR/$peer/cache" "$DIR/$peer/mnt"; done

wait_for() { # mount point
    for _ in $(seq 100); do mountpoint -q "$1" && return; sleep 0.1; done
    say "$1 did not appear"
    return 1
}

subjects=("native=$DIR/native")
"$FOREBAY" mount "$DIR/forebay/store" "$DIR/forebay/mnt" --tier "$DIR/forebay/cache=4G"
subjects+=("forebay=$DIR/forebay/mnt")

mergerfs -o minfreespace=64M,cache.files=auto-full,cache.entry=60,cache.attr=60,cache.readdir=true \
    "$DIR/mergerfs/store" "$DIR/mergerfs/mnt"
wait_for "$DIR/mergerfs/mnt"
subjects+=("mergerfs=$DIR/mergerfs/mnt")

rclone mount "$DIR/rclone/store" "$DIR/rclone/mnt" --daemon --vfs-cache-mode full \
    --cache-dir "$DIR/rclone/cache" --attr-timeout 60s --dir-cache-time 1h
wait_for "$DIR/rclone/mnt"
subjects+=("rclone=$DIR/rclone/mnt")

if [ -n "${JUICEFS:-}" ]; then
    # Redis is the faster of its engines for one node; without durability, as all else here is in memory.
    REDIS=$DIR/juicefs/redis.sock
    META=unix://$REDIS?db=0
    need redis-server redis-server
    redis-server --port 0 --unixsocket "$REDIS" --save '' --dir "$DIR/juicefs" >/dev/null &
    REDIS_PID=$!
    for _ in $(seq 100); do [ ! -S "$REDIS" ] || break; sleep 0.1; done
    "$JUICEFS" format --storage file --bucket "$DIR/juicefs/store/" "$META" bench >/dev/null 2>&1
    "$JUICEFS" mount -d --cache-dir "$DIR/juicefs/cache" --attr-cache 60 --entry-cache 60 --dir-entry-cache 60 \
        "$META" "$DIR/juicefs/mnt" >/dev/null 2>&1
    wait_for "$DIR/juicefs/mnt"
    subjects+=("juicefs=$DIR/juicefs/mnt")
else
    say "JUICEFS is not set: without JuiceFS"
fi

for what in "$@"; do
    case $what in
    meta) more=(--files "${FILES:-2000}" --entries "${ENTRIES:-100000}") ;;
    hit | newfile) more=() ;;
    *) say "unknown benchmark $what"; exit 2 ;;
    esac
    "$BENCH" "$what" "${subjects[@]}" "${more[@]}" --rounds "${ROUNDS:-5}" --out "$RESULTS/peers-$what"
done
"$FOREBAY" umount "$DIR/forebay/mnt"
