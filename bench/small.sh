#!/bin/bash
# Small files and names, warm: real programs on the tier's own file system, on Forebay, and on mergerfs
# where it is installed, in turns. Each has the same tree: a clone of this repository, 10,000 small files
# in 200 directories, and a Python package of 500 modules.
#
#   bench/small.sh [ROUNDS]                 5 rounds if not said
#
# What only reads is run once before, and not counted. Prints what each is of the native one;
# bench/results/small.csv has every value, small.svg is drawn from it, and small-requests.csv has the
# requests of the kernel and the daemon's processor time for each.
#
# Environment: TIER_DIR (a new directory in /dev/shm), TESTS (all; else some of their names), SUBJECTS
# ("native forebay exclusive dataset mergerfs"; dataset is mounted with --dataset, and only read), OLD (another forebay program, measured beside it as `old`),
# FOREBAY, SKIP_BUILD.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

ROUNDS=${1:-5}
DIR=${TIER_DIR:-$(mktemp -d /dev/shm/forebay-small.XXXXXX)}
RESULTS=$ROOT/bench/results
CSV=$RESULTS/small.csv
REQUESTS=$RESULTS/small-requests.csv
TESTS=${TESTS:-find ls_lR git_status grep_r ls_after_reads open_read import stat create save git_clone tar_x sqlite}
SUBJECTS=${SUBJECTS:-native forebay exclusive dataset mergerfs}
[ -z "${OLD:-}" ] || SUBJECTS+=" old"
FILES=10000

MOUNTS=("$DIR/forebay/mnt" "$DIR/exclusive/mnt" "$DIR/dataset/mnt" "$DIR/old/mnt" "$DIR/mergerfs/mnt") DIRS=("$DIR")

need fusermount3 fuse3
need git git
need sqlite3 sqlite3
need python3 python3
build
mkdir -p "$RESULTS"
if ! command -v mergerfs >/dev/null; then
    say "mergerfs is not installed: it is left out"
    SUBJECTS=${SUBJECTS//mergerfs/}
fi
git clone -q --bare "$ROOT" "$DIR/source.git"
git -C "$ROOT" archive --format=tar HEAD >"$DIR/source.tar"

# What a program is run on.
place() {
    case $1 in native) echo "$DIR/native" ;; *) echo "$DIR/$1/mnt" ;; esac
}

bring_up() {
    local subject=$1 program=$FOREBAY
    local home=$DIR/$subject
    mkdir -p "$home/store" "$home/mnt"
    case $subject in
        native) mkdir -p "$home" && rmdir "$home/store" "$home/mnt" ;;
        mergerfs) mergerfs -o cache.files=off,category.create=ff "$home/store" "$home/mnt" ;;
        old) "$OLD" mount "$home/store" "$home/mnt" --tier "$home/tier=2G" ;;
        dataset)
            make_tree "$home/store"
            "$program" mount "$home/store" "$home/mnt" --tier "$home/tier=2G" --dataset
            "$program" warm --quiet "$home/mnt"
            ;;
        exclusive) "$program" mount "$home/store" "$home/mnt" --tier "$home/tier=2G" --coherence exclusive ;;
        *) "$program" mount "$home/store" "$home/mnt" --tier "$home/tier=2G" ;;
    esac
}

make_tree() { # directory
    git clone -q "$DIR/source.git" "$1/clone"
    python3 - "$1" "$FILES" <<'PY'
import os, sys
root, files = sys.argv[1], int(sys.argv[2])
for n in range(files):
    if n % 50 == 0:
        os.makedirs(f"{root}/tree/{n // 50}")
    with open(f"{root}/tree/{n // 50}/{n}", "wb") as file:
        file.write(b"some text\n" * (n % 800 + 20))
os.mkdir(f"{root}/package")
open(f"{root}/package/__init__.py", "w").close()
for n in range(500):
    with open(f"{root}/package/m{n}.py", "w") as file:
        file.write(f"def f():\n    return {n}\n")
PY
}

# The tests, each in a directory as `place` says.
test_find() { find tree -size +1000k; }
test_ls_lR() { ls -lR tree; }
test_git_status() { git -C clone status --porcelain; }
test_grep_r() { grep -r "no such text" tree || true; }
test_ls_after_reads() { ls -l tree/*; }
test_open_read() {
    python3 - "$FILES" <<'PY'
import os, random, sys
files = list(range(int(sys.argv[1])))
random.Random(7).shuffle(files)
for n in files:
    fd = os.open(f"tree/{n // 50}/{n}", os.O_RDONLY)
    os.read(fd, 8192)
    os.close(fd)
PY
}
test_import() {
    PYTHONDONTWRITEBYTECODE=1 python3 -c 'import importlib
for n in range(500): importlib.import_module(f"package.m{n}")'
}
test_stat() {
    python3 -c 'import os
for n in range('"$FILES"'): os.stat(f"tree/{n // 50}/{n}")'
}
test_create() {
    python3 -c 'import os
os.mkdir("new")
for n in range(2000): os.close(os.open(f"new/{n}", os.O_CREAT | os.O_WRONLY))'
}
test_save() {
    python3 -c 'import os
os.mkdir("saved")
for n in range(1500):
    name = f"saved/{n % 300}"
    with open(name + ".new", "wb") as file:
        file.write(b"some text\n" * 400)
    os.rename(name + ".new", name)'
}
test_git_clone() { git clone -q "$DIR/source.git" cloned; }
test_tar_x() { mkdir unpacked && tar xf "$DIR/source.tar" -C unpacked; }
test_sqlite() {
    sqlite3 small.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(a, b);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
        INSERT INTO t SELECT i, i * 7 FROM n; SELECT sum(b) FROM t;'
}

# Requests that a mount of Forebay has answered, and the processor time of its daemon in ms.
used() { # subject
    local pid
    case $1 in native | mergerfs) echo "0 0"; return ;; esac
    pid=$("$FOREBAY" debug pid "$DIR/$1/mnt")
    awk -v hertz="$(getconf CLK_TCK)" -v ops="$("$FOREBAY" debug metrics "$DIR/$1/mnt" | awk '/^forebay_op_seconds_count/ { sum += $2 } END { print sum + 0 }')" \
        '{ sub(/.*\) /, ""); print ops, ($12 + $13) * 1000 / hertz }' "/proc/$pid/stat"
}

for subject in $SUBJECTS; do
    say "making the tree on $subject"
    bring_up "$subject"
    [ "$subject" = dataset ] || make_tree "$(place "$subject")"
done
for subject in $SUBJECTS; do
    case $subject in native | mergerfs | dataset) ;; *) "$FOREBAY" sync "$DIR/$subject/mnt" ;; esac
done

echo "test,subject,unit,round,value" >"$CSV"
echo "test,subject,round,requests,daemon_ms" >"$REQUESTS"
for round in $(seq 0 $((ROUNDS - 1))); do
    for name in $TESTS; do
        for subject in $SUBJECTS; do
            case $subject-$name in dataset-create | dataset-save | dataset-git_clone | dataset-tar_x | dataset-sqlite) continue ;; esac
            cd "$(place "$subject")"
            case $name in create | save | git_clone | tar_x | sqlite) ;; *) "test_$name" >/dev/null ;; esac
            before=$(used "$subject")
            took=$(seconds "test_$name")
            after=$(used "$subject")
            cd /
            echo "$name,$subject,s,$round,$took" >>"$CSV"
            case $subject in native | mergerfs) ;; *)
                echo "$name $subject $round $before $after" |
                    awk '{ printf "%s,%s,%d,%d,%d\n", $1, $2, $3, $6 - $4, $7 - $5 }' >>"$REQUESTS" ;;
            esac
        done
        for subject in $SUBJECTS; do
            (cd "$(place "$subject")" && rm -rf new saved cloned unpacked small.db*)
        done
    done
    say "round $((round + 1)) of $ROUNDS"
done
for subject in $SUBJECTS; do
    case $subject in
        native) ;;
        mergerfs) fusermount3 -u "$DIR/mergerfs/mnt" ;;
        *) "$FOREBAY" umount --quiet "$DIR/$subject/mnt" ;;
    esac
done

"$BENCH" plot "$CSV" --title "Small files and names, warm" --out "$RESULTS/small"
python3 - "$REQUESTS" <<'PY'
import csv, statistics, sys
used = {}
for row in csv.DictReader(open(sys.argv[1])):
    used.setdefault((row["test"], row["subject"]), []).append((int(row["requests"]), int(row["daemon_ms"])))
print(f"{'medians':<30}{'requests':>10}{'daemon ms':>11}")
for (test, subject), rows in used.items():
    requests, daemon = (statistics.median(column) for column in zip(*rows))
    print(f"{test:<16}{subject:<14}{requests:>10.0f}{daemon:>11.0f}")
PY
