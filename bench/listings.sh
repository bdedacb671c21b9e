#!/bin/bash
# What listings cost at full scale: `ls -lU` of one large directory, and the walk of a large tree, in
# seconds, in the daemon's processor time and in its memory, and what of that it gives back by itself
# while it stays mounted.
#
#   bench/listings.sh [ENTRIES [FILES]]      300,000 in one directory, 1,300,000 in the tree
#
# Environment: WORK_DIR (a new directory in /dev/shm, which needs an inode for each entry and file),
# FOREBAY, SKIP_BUILD. IDLE is for how long nobody asks for anything (45 s): after 30 s the daemon gives
# back what only makes answers faster. FORGET=1 also empties the kernel's caches, which needs root and is
# felt by the whole machine.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

ENTRIES=${1:-300000}
FILES=${2:-1300000}
PER_DIR=1000
DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-listings.XXXXXX)}
MNT=$DIR/mnt
CSV=$ROOT/bench/results/listings.csv
MOUNTS=("$MNT") DIRS=("$DIR")

need fusermount3 fuse3
need python3 python3
[ -n "${SKIP_BUILD:-}" ] || build
mkdir -p "$DIR/store" "$MNT" "$(dirname "$CSV")"

free_inodes=$(df --output=iavail "$DIR" | tail -1 | tr -d ' ')
if [ "$free_inodes" -gt 0 ] && [ "$free_inodes" -lt $((ENTRIES + FILES + FILES / PER_DIR)) ]; then
    say "$DIR has room for $free_inodes files only: set WORK_DIR, or list fewer"
    exit 5
fi

say "making $ENTRIES files in one directory and $FILES in a tree"
python3 - "$DIR/store" "$ENTRIES" "$FILES" "$PER_DIR" <<'PY'
import os, sys
store, entries, files, per_dir = sys.argv[1], *map(int, sys.argv[2:])
def fill(path, count):
    os.makedirs(path)
    os.chdir(path)
    for n in range(count):
        os.close(os.open(f"file-{n}", os.O_CREAT | os.O_WRONLY, 0o644))
fill(f"{store}/large", entries)
for first in range(0, files, per_dir):
    # Ten directories in each directory, as trees of people are.
    n = first // per_dir
    fill(f"{store}/tree/{n // 100}/{n // 10 % 10}/{n}", min(per_dir, files - first))
PY

echo "what,seconds,daemon_cpu_s,rss_mib,peak_mib" >"$CSV"
PID=

cpu() { # seconds of processor time that the daemon has taken
    awk -v hertz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / hertz }' "/proc/$PID/stat"
}

# One line of results: what was done, how long it took, what the daemon took for it and has now.
row() { # what seconds cpu_before
    local now
    now=$(cpu)
    awk -v what="$1" -v seconds="$2" -v before="$3" -v now="$now" '
        /^VmRSS/ { rss = $2 / 1024 } /^VmHWM/ { peak = $2 / 1024 }
        END { printf "%s,%.2f,%.2f,%.1f,%.1f\n", what, seconds, now - before, rss, peak }' \
        "/proc/$PID/status" | tee -a "$CSV"
}

native() { # what command...
    local what=$1
    shift
    echo "$what,$(seconds "$@"),0,0,0" | tee -a "$CSV"
}

# What a command takes through the mount; the peak is that of this command alone.
through() { # what command...
    local what=$1 before took
    shift
    before=$(cpu)
    echo 5 >"/proc/$PID/clear_refs" 2>/dev/null || true
    took=$(seconds "$@")
    row "$what" "$took" "$before"
}

# Nobody asks for anything.
idle() { # what
    local before
    before=$(cpu)
    echo 5 >"/proc/$PID/clear_refs" 2>/dev/null || true
    sleep "${IDLE:-45}"
    row "$1" "${IDLE:-45}" "$before"
}

forget() { # what
    [ -n "${FORGET:-}" ] || return 0
    through "$1" bash -c 'echo 2 >/proc/sys/vm/drop_caches'
}

native "native: ls -lU first" ls -lU "$DIR/store/large"
native "native: ls -lU second" ls -lU "$DIR/store/large"
native "native: ls -U" ls -U "$DIR/store/large"
native "native: walk" find "$DIR/store/tree" -size +1k

"$FOREBAY" mount "$DIR/store" "$MNT" --tier "$DIR/tier=1G"
PID=$("$FOREBAY" debug pid "$MNT")
row mounted 0 "$(cpu)"
through "ls -lU first" ls -lU "$MNT/large"
through "ls -lU second" ls -lU "$MNT/large"
through "ls -U third" ls -U "$MNT/large"
idle "idle after the directory"
through "ls -lU after that" ls -lU "$MNT/large"
through "walk first" find "$MNT/tree" -size +1k
through "walk second" find "$MNT/tree" -size +1k
idle "idle after the tree"
forget "kernel forgets all"
idle "idle after that"
through "walk after that" find "$MNT/tree" -size +1k
through "ls -lU last" ls -lU "$MNT/large"
idle "idle at the end"
"$FOREBAY" umount "$MNT" --quiet

say "summary"
awk -F, '
    NR > 1 { took[$1] = $2; rss[$1] = $4; if ($5 > most) most = $5 }
    function ratio(ours, theirs) { return theirs > 0 ? ours / theirs : 0 }
    END {
        printf "ls -lU of %d entries: %.1f s first, %.1f s again, names alone %.1f s; natively %.1f s and %.1f s\n",
            entries, took["ls -lU first"], took["ls -lU second"], took["ls -U third"],
            took["native: ls -lU first"], took["native: ls -U"]
        printf "walk of %d files: %.1f s first, %.1f s again; natively %.1f s\n",
            files, took["walk first"], took["walk second"], took["native: walk"]
        printf "memory: %.0f MiB mounted, %.0f at most, %.0f after the tree, %.0f when idle\n",
            rss["mounted"], most, rss["walk second"], rss["idle after the tree"]
    }' entries="$ENTRIES" files="$FILES" "$CSV"
