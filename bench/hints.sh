#!/bin/bash
# What hints are worth: the same work over a slow disk without a cache, through rclone's cache, and
# through Forebay with several policies, each without and with hints. Measured are the time and the
# bytes that were read from the slow disk.
#
#   bench/hints.sh [loop|epochs|workflow|build]...     all if not said
#
#   loop      files read one after the other, again and again, a little more than the tier holds
#             (HyCache+, section IV-E, scaled down)
#   epochs    a training loop: all files in a new order each time, twice the tier
#   workflow  three stages, each reads what the one before has written
#   build     compiles the same sources again and again, hinted from a recorded run
#
# Environment: WORK_DIR, where the slow disk's image goes (a new directory in /var/tmp); TIER_DIR
# (/dev/shm/forebay-hints.PID); TIER_MIB (64); ROUNDS (1); PASSES over the files (4); THINK, seconds
# of computing for each file (0.01); SUBJECTS (none rclone lru heuristic min lru+hints
# heuristic+hints min+hints); SLOW_BPS, SLOW_IOPS as in slowdisk.sh; SKIP_BUILD.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-hints.XXXXXX)}
TIER=${TIER_DIR:-/dev/shm/forebay-hints.$$}
TIER_MIB=${TIER_MIB:-64}
ROUNDS=${ROUNDS:-1}
PASSES=${PASSES:-4}
THINK=${THINK:-0.01}
read -ra SUBJECTS <<<"${SUBJECTS:-none rclone lru heuristic min lru+hints heuristic+hints min+hints}"
RESULTS=$ROOT/bench/results
MNT=$DIR/mnt
[ $# -gt 0 ] || set -- loop epochs workflow build

MOUNTS=("$MNT") DISKS=("$DIR/disk") DIRS=("$TIER" "$DIR")

need fusermount3 fuse3
need mkfs.ext4 e2fsprogs
need losetup util-linux
case " ${SUBJECTS[*]} " in *" rclone "*) need rclone rclone ;; esac
case " $* " in *" build "*) need cc gcc ;; esac
build
"$ROOT/bench/slowdisk.sh" check || exit 5
mkdir -p "$MNT" "$TIER" "$RESULTS"
export SLOW_BPS=${SLOW_BPS:-104857600} SLOW_IOPS=${SLOW_IOPS:-200}
SLOW=$("$ROOT/bench/slowdisk.sh" up "$DIR/disk" $((TIER_MIB * 8 + 256)))
DEVICE=$(basename "$(findmnt -n -o SOURCE "$SLOW")")

# Bytes read from the slow disk since it was made.
read_bytes() { awk '{ printf "%.0f", $3 * 512 }' "/sys/block/$DEVICE/stat"; }

# The files of each workload, on the slow disk.
make_files() { # directory count size_kib...
    local dir=$1 count=$2 index=0
    shift 2
    local sizes=("$@")
    mkdir -p "$SLOW/$dir"
    while [ "$index" -lt "$count" ]; do
        head -c "$((sizes[index % ${#sizes[@]}] * 1024))" /dev/urandom >"$SLOW/$dir/$index"
        index=$((index + 1))
    done
}

# The order of one pass over N files, the same for every subject: order N PASS
order() { seq 0 $(($1 - 1)) | awk -v pass="$2" '{ printf "%.0f %d\n", (($1 + 1) * 2654435761 * (2 * pass + 1)) % 4294967296, $1 }' | sort -n | cut -d' ' -f2; }

read_files() { # reads the paths on standard input, computing in between
    local path
    while read -r path; do
        cat "$1/$path" >/dev/null
        sleep "$THINK"
    done
}

hint() { # job, with the list on standard input
    if [ "$HINTED" = 0 ]; then cat >/dev/null; else "$FOREBAY" hint "$MNT" --job "$1" --from - >/dev/null; fi
}

# Page caches would hide the disk: each pass starts without. What was written to the disk gets there
# first, or it would stay in memory, which is as large here as all the files together. Only the
# disk: what others write elsewhere on this machine must not count.
pass_begins() {
    sync -f "$SLOW"
    echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
}

LOOP_FILES=14
prepare_loop() { make_files loop $LOOP_FILES $((TIER_MIB * 90)) $((TIER_MIB * 60)) $((TIER_MIB * 110)); }
list_loop() { for _ in $(seq "$PASSES"); do seq 0 $((LOOP_FILES - 1)) | sed 's,^,loop/,'; done; }
run_loop() {
    list_loop | hint loop
    local pass
    for pass in $(seq "$PASSES"); do
        pass_begins
        seq 0 $((LOOP_FILES - 1)) | sed 's,^,loop/,' | read_files "$1"
    done
}

EPOCH_FILES=256
prepare_epochs() { make_files epochs $EPOCH_FILES $((TIER_MIB * 8)); }
list_epochs() { local pass; for pass in $(seq "$PASSES"); do order $EPOCH_FILES "$pass" | sed 's,^,epochs/,'; done; }
run_epochs() {
    list_epochs | hint epochs
    local pass
    for pass in $(seq "$PASSES"); do
        pass_begins
        order $EPOCH_FILES "$pass" | sed 's,^,epochs/,' | read_files "$1"
    done
}

TASKS=48
prepare_workflow() { make_files workflow/in $TASKS $((TIER_MIB * 16)); make_files workflow/shared 4 $((TIER_MIB * 32)); }
# What a stage reads: each task its input and one of the shared files.
list_stage() { local task; for task in $(order $TASKS 1); do echo "workflow/shared/$((task % 4))"; echo "$1/$task"; done; }
run_workflow() {
    local from=workflow/in stage task
    for stage in 1 2 3; do
        pass_begins
        mkdir -p "$1/workflow/out.$2/$stage"
        list_stage "$from" | hint "stage$stage"
        for task in $(order $TASKS 1); do
            cat "$1/workflow/shared/$((task % 4))" >/dev/null
            cat "$1/$from/$task" >"$1/workflow/out.$2/$stage/$task"
            sleep "$THINK"
        done
        from=workflow/out.$2/$stage
    done
}

SOURCES=60
prepare_build() {
    mkdir -p "$SLOW/build"
    local n
    for n in $(seq 0 $((SOURCES - 1))); do
        {
            echo "/*"
            head -c $((TIER_MIB * 18 * 1024)) /dev/urandom | base64
            echo "*/"
            echo "#define VALUE$n $n"
        } >"$SLOW/build/t$n.h"
        printf '#include "t%d.h"\n#include "t%d.h"\nint f%d(void) { return VALUE%d; }\n' "$n" $(((n + 1) % SOURCES)) "$n" "$n" >"$SLOW/build/s$n.c"
    done
}
compile() { # directory
    local n
    for n in $(seq 0 $((SOURCES - 1))); do cc -fsyntax-only "$1/build/s$n.c"; done
}
run_build() {
    if [ "$HINTED" = 1 ]; then
        "$FOREBAY" trace record "$MNT" -o "$DIR/build.trace" --seconds 3600 >/dev/null &
        local recorder=$!
        sleep 0.5
    fi
    local pass
    for pass in $(seq "$PASSES"); do
        pass_begins
        if [ "$HINTED" = 1 ] && [ "$pass" -gt 1 ]; then
            "$FOREBAY" hint "$MNT" --job build --trace "$DIR/build.trace" >/dev/null || true
        fi
        compile "$1"
        if [ "$HINTED" = 1 ] && [ "$pass" = 1 ]; then
            kill -TERM "$recorder"
            wait "$recorder"
        fi
    done
}

mount_subject() { # subject; sets PLACE and HINTED
    local policy=${1%+hints}
    HINTED=0
    [ "$policy" = "$1" ] || HINTED=1
    PLACE=$MNT
    case $1 in
    none) PLACE=$SLOW ;;
    rclone)
        rclone mount "$SLOW" "$MNT" --daemon --vfs-cache-mode full --cache-dir "$TIER/rclone" \
            --vfs-cache-max-size "${TIER_MIB}M" --vfs-cache-poll-interval 1s --attr-timeout 60s --dir-cache-time 1h
        ;;
    *)
        "$FOREBAY" mount "$SLOW" "$MNT" --tier "$TIER/forebay=${TIER_MIB}M" --policy "$policy" --coherence exclusive
        ;;
    esac
}

end_subject() {
    case $1 in
    none) return ;;
    rclone) fusermount3 -u "$MNT" || fusermount3 -uz "$MNT"; sleep 1 ;;
    *) "$FOREBAY" umount --quiet "$MNT" ;;
    esac
    rm -rf --one-file-system "${TIER:?}"/*
}

for name in hints hints-read; do echo "test,subject,unit,round,value" >"$RESULTS/$name.csv"; done
for work in "$@"; do
    say "files for $work"
    "prepare_$work"
    sync
    for round in $(seq 0 $((ROUNDS - 1))); do
        for subject in "${SUBJECTS[@]}"; do
            mount_subject "$subject"
            drop_caches
            before=$(read_bytes)
            taken=$(seconds "run_$work" "$PLACE" "$subject.$round")
            bytes=$(($(read_bytes) - before))
            if [ "$HINTED" = 1 ]; then
                "$FOREBAY" status --json "$MNT" | sed 's/.*"hints":\(\[[^]]*\]\).*/\1/' >&2
            fi
            end_subject "$subject"
            rm -rf "$SLOW/workflow/out.$subject.$round"
            say "$work, $subject: $taken s, $((bytes >> 20)) MiB read"
            echo "$work,$subject,s,$round,$taken" >>"$RESULTS/hints.csv"
            mib=$(awk "BEGIN { printf \"%.2f\", $bytes / 1048576 }")
            echo "$work,$subject,MiB,$round,$mib" >>"$RESULTS/hints-read.csv"
        done
    done
    rm -rf "${SLOW:?}/$work"
done

# Writes the CSVs again, with their names quoted, and table and plot.
"$BENCH" plot "$RESULTS/hints.csv" --title "With and without hints: seconds" --out "$RESULTS/hints"
"$BENCH" plot "$RESULTS/hints-read.csv" --title "With and without hints: read from the slow disk" --out "$RESULTS/hints-read"
say "results: $RESULTS/hints.csv, hints.svg, hints-read.csv, hints-read.svg"
