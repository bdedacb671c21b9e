#!/bin/bash
# Memory of the daemon with many files known, and whether it grows while it works.
#
#   bench/memory.sh [FILES]                  1,000,000 if not said
#
# Environment: WORK_DIR (a new directory in /dev/shm), MINUTES of work after all is known (5),
# SKIP_BUILD.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

FILES=${1:-1000000}
PER_DIR=1000
DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-memory.XXXXXX)}
MNT=$DIR/mnt
CSV=$ROOT/bench/results/memory.csv

MOUNTS=("$MNT") DIRS=("$DIR")

need fusermount3 fuse3
build
mkdir -p "$DIR/store" "$MNT" "$(dirname "$CSV")"
echo "when,seconds,files,rss_mib,peak_mib" >"$CSV"

say "making $FILES files in the backing store"
for dir in $(seq $((FILES / PER_DIR))); do
    mkdir "$DIR/store/$dir"
    (cd "$DIR/store/$dir" && seq "$PER_DIR" | xargs touch)
done
"$FOREBAY" mount "$DIR/store" "$MNT" --tier "$DIR/tier=2G"
PID=$("$FOREBAY" debug pid "$MNT")

mark() { # when
    awk -v when="$1" -v seconds="$SECONDS" -v files="$FILES" '
        /^VmRSS/ { rss = $2 / 1024 } /^VmHWM/ { peak = $2 / 1024 }
        END { printf "%s,%d,%d,%.1f,%.1f\n", when, seconds, files, rss, peak }' "/proc/$PID/status" |
        tee -a "$CSV"
}

mark mounted
for pass in 1 2; do
    echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
    ls -lR "$MNT" >/dev/null
    mark "listed-$pass"
done

# Small files come and go, others are read: what a long run does to a daemon.
END=$((SECONDS + ${MINUTES:-5} * 60))
MARK=0
while [ "$SECONDS" -lt "$END" ]; do
    dir=$MNT/$((RANDOM % (FILES / PER_DIR) + 1))
    for name in $(seq 200); do
        echo "$RANDOM" >"$dir/new.$name"
    done
    cat "$dir"/* >/dev/null
    mv "$dir/new.1" "$dir/moved"
    rm -f "$dir/moved" "$dir"/new.*
    if [ "$SECONDS" -ge "$MARK" ]; then
        mark working
        MARK=$((SECONDS + 30))
    fi
done
mark end
"$FOREBAY" umount "$MNT" --quiet
