#!/bin/bash
# First reads from a slow disk, directly and through Forebay, and the disk against what Forebay has:
# a large file, its first byte, many small files; then random reads of files that are resident.
#
#   bench/cold.sh [cold|rand]...            both if not said
#
# Environment: WORK_DIR, where the slow disk's image goes (a new directory in /var/tmp); TIER_DIR
# (/dev/shm/forebay-cold.PID); ROUNDS (5); FIRST, files whose first byte is asked for (60);
# SLOW_BPS, SLOW_IOPS as in slowdisk.sh; SKIP_BUILD. Results: cold.* and rand.* in bench/results.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-cold.XXXXXX)}
TIER=${TIER_DIR:-/dev/shm/forebay-cold.$$}
ROUNDS=${ROUNDS:-5}
FIRST=${FIRST:-60}
RESULTS=$ROOT/bench/results
MNT=$DIR/mnt
[ $# -gt 0 ] || set -- cold rand

MOUNTS=("$MNT") DISKS=("$DIR/disk") DIRS=("$TIER" "$DIR")

need fusermount3 fuse3
need mkfs.ext4 e2fsprogs
need losetup util-linux
build
"$ROOT/bench/slowdisk.sh" check || exit 5
mkdir -p "$MNT" "$TIER" "$RESULTS"
SLOW=$("$ROOT/bench/slowdisk.sh" up "$DIR/disk" $((ROUNDS * 140 + FIRST + 1536)))


say "writing files to the slow disk"
files() { # directory count bytes
    local index
    mkdir -p "$SLOW/$1"
    for ((index = 0; index < $2; index++)); do
        head -c "$(($3 + index % 12 * ($3 < 4096 ? 1024 : 0)))" /dev/urandom >"$SLOW/$1/$index"
    done
}
arguments=()
for ((round = 0; round < ROUNDS; round++)); do
    head -c 128M /dev/urandom >"$SLOW/large$round"
    files "small$round" 400 1024
    arguments+=(--large "large$round" --small "small$round")
done
files first "$FIRST" 1048576
sync
"$FOREBAY" mount "$SLOW" "$MNT" --tier "$TIER=4G"

for what in "$@"; do
    say "$what"
    case $what in
    cold)
        "$BENCH" cold "slow=$SLOW" "forebay=$MNT" --rounds "$ROUNDS" "${arguments[@]}" \
            --first first --chill "'$FOREBAY' evict '$MNT' >/dev/null" --out "$RESULTS/cold"
        ;;
    rand)
        mkdir "$SLOW/bare" "$MNT/cached"
        "$BENCH" rand "slow=$SLOW/bare" "forebay=$MNT/cached" --rounds "$ROUNDS" --file-mib 32 --drop-caches --out "$RESULTS/rand"
        ;;
    *) say "unknown: $what"; exit 2 ;;
    esac
done
"$FOREBAY" umount "$MNT" --quiet
