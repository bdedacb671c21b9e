#!/bin/bash
# Real programs on a mount whose daemon changes under them: by upgrades, and by kill -9 under the
# supervisor. All that was acknowledged is looked for afterwards, in the mount and, after the
# unmount, in the backing store.
#
#   bench/handover.sh [upgrade|kill|both|work] [N]      both, 20 if not said
#
# Load: git, SQLite, PostgreSQL (pgbench, if it is installed and this is root), a build (make and
# cc, if they are installed) whose program must say the right thing, and the programs of
# `forebay-bench load`: appenders, mappings, locks, names, attributes. `work` kills while only
# pgbench and the build run, which must finish correctly. The first half of the changes
# happens with few files, the second with FILES more that are resident.
#
# Prints CSV and writes it to bench/results/handover.csv: change, measure, value. `pause` is what
# the daemon says (upgrade), or the time from the kill to the next answer (kill), in ms; `growth` is
# the difference of the medians of both halves, in ms for 1,000 files; `call` are the calls of the
# programs of `forebay-bench load`, in ms. Fails if anything was lost, doubled or failed.
#
# Environment: WORK_DIR (a new directory in /dev/shm), FILES (4000), APART (seconds between changes,
# 0.5), SKIP_BUILD, FOREBAY and FOREBAY_BENCH as in the other scripts.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

CHANGES=${1:-both}
N=${2:-20}
case $CHANGES in both) CHANGES="upgrade kill" ;; upgrade | kill | work) ;; *) sed -n 2,24p "$0"; exit 2 ;; esac
[ "$N" -ge 2 ] || { say "give 2 changes or more"; exit 2; }
FILES=${FILES:-4000}
APART=${APART:-0.5}
DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-handover.XXXXXX)}
RESULTS=$ROOT/bench/results/handover.csv
MNT=$DIR/mnt
PORT=54398
PG=
LOADS=()

stop_loads() {
    touch "$DIR/stop" 2>/dev/null || true
    local pid
    for pid in "${LOADS[@]}"; do
        # Long enough for the last check of each; a program that hangs is a failure by itself.
        timeout 180 tail --pid="$pid" -f /dev/null || { say "a program hangs"; return 1; }
        wait "$pid" || { say "a program failed"; return 1; }
    done
    LOADS=()
}

MOUNTS=("$MNT") DIRS=("$DIR")
stop() {
    touch "$DIR/stop" 2>/dev/null || true
    stop_postgres
    clear_mount "$MNT"
    local pid
    for pid in "${LOADS[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
}

# --- Programs. Each leaves "operations errors lost doubled" in $DIR/NAME.count.

go_on() { [ ! -e "$DIR/stop" ]; }
tally() { echo "$2 $3 $4 $5" >"$DIR/$1.count"; }
# What is too few and too many of what there is, against what was acknowledged: missing ACK FOUND
missing() { [ "$2" -ge "$1" ] && echo 0 || echo $(($1 - $2)); }

with_git() {
    local repository=$MNT/git commits=0 errors=0 found
    git init -q "$repository"
    git -C "$repository" config user.email bench@example.org
    git -C "$repository" config user.name bench
    git -C "$repository" config gc.auto 0
    while go_on; do
        { echo "$commits" >"$repository/file$((commits % 50))" &&
            git -C "$repository" add -A && git -C "$repository" commit -q -m "$commits" &&
            git -C "$repository" status --porcelain >/dev/null; } 2>>"$DIR/git.log" &&
            commits=$((commits + 1)) || errors=$((errors + 1))
    done
    git -C "$repository" fsck --strict >>"$DIR/git.log" 2>&1 || errors=$((errors + 1))
    found=$(git -C "$repository" rev-list --count HEAD)
    tally git $((commits * 3)) "$errors" "$(missing "$commits" "$found")" "$(missing "$found" "$commits")"
}

with_sqlite() {
    local database=$MNT/sqlite.db rows=0 errors=0 found distinct
    sqlite3 "$database" "PRAGMA journal_mode=DELETE; CREATE TABLE t(id INTEGER, text TEXT)" >/dev/null
    while go_on; do
        sqlite3 -bail "$database" "INSERT INTO t VALUES($rows, hex(randomblob(100)))" 2>>"$DIR/sqlite.log" &&
            rows=$((rows + 1)) || errors=$((errors + 1))
    done
    [ "$(sqlite3 "$database" "PRAGMA integrity_check")" = ok ] || errors=$((errors + 1))
    found=$(sqlite3 "$database" "SELECT count(*) FROM t")
    distinct=$(sqlite3 "$database" "SELECT count(DISTINCT id) FROM t")
    tally sqlite "$rows" "$errors" "$(missing "$rows" "$distinct")" $((found - distinct))
}

as_postgres() { su postgres -s /bin/sh -c "$1"; }

start_postgres() {
    mkdir "$MNT/pg"
    chown postgres "$MNT/pg"
    as_postgres "$PG/initdb -D '$MNT/pg/data' -A trust >/dev/null &&
        $PG/pg_ctl -D '$MNT/pg/data' -w -l '$MNT/pg/log' -o '-p $PORT -k /tmp -c listen_addresses=' start >/dev/null &&
        $PG/pgbench -h /tmp -p $PORT -q -i -s 2 postgres 2>/dev/null"
}

stop_postgres() {
    [ -e "$MNT/pg/data/postmaster.pid" ] || return 0
    as_postgres "timeout 60 $PG/pg_ctl -D '$MNT/pg/data' -m fast -w stop" >/dev/null 2>&1 || true
}

with_postgres() {
    local done=0 errors=0 found sums
    query() { as_postgres "$PG/psql -h /tmp -p $PORT -qAt -c \"$1\" postgres"; }
    while go_on; do
        as_postgres "$PG/pgbench -h /tmp -p $PORT -n -c 2 -t 100 postgres" >"$DIR/pgbench.out" 2>>"$DIR/pgbench.log" ||
            errors=$((errors + 1))
        found=$(sed -n 's|^number of transactions actually processed: \([0-9]*\).*|\1|p' "$DIR/pgbench.out")
        done=$((done + ${found:-0}))
    done
    found=$(query "SELECT count(*) FROM pgbench_history")
    # The same money in accounts, tellers, branches and the history.
    sums=$(query "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)")
    [ "$sums" = t ] || errors=$((errors + 1))
    stop_postgres
    tally postgres "$done" "$errors" "$(missing "$done" "$found")" "$(missing "$found" "$done")"
}

with_bench() {
    "$BENCH" load "$MNT/load" --stop "$DIR/stop" >"$DIR/load.json"
    number() { sed "s/.*\"$1\":\([0-9]*\).*/\1/" "$DIR/load.json"; }
    tally load "$(number operations)" "$(number errors)" "$(number lost)" "$(number doubled)"
    for measure in p50 p99 longest; do number "${measure}_us" >"$DIR/call_$measure"; done
}

# A program of many files, and what it says when it was built elsewhere.
make_project() { # directory
    local number
    mkdir "$1"
    for number in $(seq 30); do
        echo "unsigned part$number(unsigned x) { for (int i = 0; i < 1000; i++) x = x * 1664525u + $number; return x; }" >"$1/part$number.c"
    done
    {
        echo '#include <stdio.h>'
        seq 30 | sed 's/.*/unsigned part&(unsigned);/'
        echo 'int main(void) { unsigned x = 1;'
        seq 30 | sed 's/.*/x = part&(x);/'
        echo 'printf("%u\n", x); return 0; }'
    } >"$1/main.c"
    printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\nclean:\n\trm -f *.o program\n' >"$1/Makefile"
    make -s -C "$1" && SAID=$("$1/program") && make -s -C "$1" clean
}

with_build() {
    local project=$MNT/project builds=0 errors=0
    cp -r "$DIR/project" "$project"
    while go_on; do
        { make -s -C "$project" clean && make -s -C "$project" -j2 && [ "$("$project/program")" = "$SAID" ]; } 2>>"$DIR/build.log" &&
            builds=$((builds + 1)) || errors=$((errors + 1))
    done
    say "$builds builds"
    tally build $((builds * 31)) "$errors" 0 0
}

start_loads() { # change
    rm -f "$DIR/stop" "$DIR"/*.count "$DIR"/*.log "$DIR"/call_*
    LOADS=()
    if [ -n "$PG" ]; then
        start_postgres
        with_postgres &
        LOADS+=($!)
    fi
    local program programs="with_git with_sqlite with_bench"
    [ "$1" != work ] || programs=
    if command -v make cc >/dev/null; then
        rm -rf "$DIR/project"
        make_project "$DIR/project"
        programs="$programs with_build"
    fi
    for program in $programs; do
        $program &
        LOADS+=($!)
    done
    [ ${#LOADS[@]} -gt 0 ] || { say "there is neither PostgreSQL nor a compiler"; exit 5; }
}

# --- Changes. Each prints its pause in microseconds.

do_upgrade() {
    timeout 300 "$FOREBAY" upgrade --json "$MNT" | sed 's/.*"pause_us":\([0-9]*\).*/\1/'
}

do_kill() {
    local pid begin
    pid=$(timeout 60 "$FOREBAY" debug pid "$MNT")
    begin=${EPOCHREALTIME/[.,]/}
    kill -9 "$pid"
    # Asks the file system, not the kernel's cache.
    timeout 120 stat --cached=never "$MNT" >/dev/null
    echo $((${EPOCHREALTIME/[.,]/} - begin))
}

do_work() { do_kill; }

# Minimum, median and maximum of the numbers on standard input, divided by 1,000.
spread() {
    sort -n | awk '{ v[n++] = $1 } END { printf "%.1f %.1f %.1f", v[0] / 1000, v[int(n / 2)] / 1000, v[n - 1] / 1000 }'
}

sums() { (cd "$1" && find . -type f ! -path './pg/*' ! -path './.forebay/*' -print0 | sort -z | xargs -0 sha256sum); }

measure() { # change
    local round few more measure calls
    mkdir -p "$DIR/backing" "$MNT" "$DIR/run"
    timeout 60 "$FOREBAY" mount "$DIR/backing" "$MNT" --tier "$DIR/tier=4G" --transport classic \
        --restart-limit 10000 --allow-other 2>/dev/null
    start_loads "$1"
    : >"$DIR/few"
    : >"$DIR/more"
    for round in $(seq "$N"); do
        if [ "$round" = $((N / 2 + 1)) ]; then
            mkdir "$MNT/files"
            for file in $(seq "$FILES"); do echo "$file" >"$MNT/files/$file"; done
        fi
        sleep "$APART"
        "do_$1" >>"$DIR/$([ "$round" -le $((N / 2)) ] && echo few || echo more)"
        say "$1 $round: $(tail -qn 1 "$DIR/few" "$DIR/more" | tail -1) us"
    done
    sleep "$APART"
    stop_loads
    sums "$MNT" >"$DIR/sums.mount"
    timeout 300 "$FOREBAY" umount --quiet "$MNT"
    timeout 120 "$FOREBAY" fsck "$DIR/tier" >/dev/null || { say "fsck finds something"; echo "0 1 0 0" >"$DIR/fsck.count"; }
    sums "$DIR/backing" >"$DIR/sums.backing"
    read -r ops errors lost doubled < <(cat "$DIR"/*.count |
        awk '{ for (i = 1; i <= 4; i++) s[i] += $i } END { print s[1], s[2], s[3], s[4] }')
    cmp -s "$DIR/sums.mount" "$DIR/sums.backing" || { say "the backing store differs"; lost=$((lost + 1)); }
    calls=()
    for measure in p50 p99 longest; do
        [ ! -e "$DIR/call_$measure" ] || calls+=("call_${measure}_ms" "$(awk '{ printf "%.3f", $1 / 1000 }' "$DIR/call_$measure")")
    done
    read -r low median high < <(cat "$DIR/few" "$DIR/more" | spread; echo)
    few=$(spread <"$DIR/few" | cut -d ' ' -f 2)
    more=$(spread <"$DIR/more" | cut -d ' ' -f 2)
    {
        printf "$1,%s,%s\n" changes "$N" operations "$ops" errors "$errors" lost "$lost" doubled "$doubled" \
            pause_min_ms "$low" pause_median_ms "$median" pause_max_ms "$high" \
            growth_ms_per_1000_files "$(awk "BEGIN { printf \"%.1f\", ($more - $few) * 1000 / $FILES }")" \
            "${calls[@]}"
    } | tee -a "$RESULTS"
    if [ "$errors$lost$doubled" != 000 ]; then
        grep -h '' "$DIR"/*.count >&2 || true
        cat "$DIR/load.json" "$DIR"/*.log >&2 2>/dev/null || true
        return 1
    fi
    rm -rf --one-file-system "$DIR/tier" "$DIR/backing"
}

need fusermount3 fuse3
need git git
need sqlite3 sqlite3
build
chmod 755 "$DIR"
mkdir -p "$(dirname "$RESULTS")"
export FOREBAY_RUNTIME_DIR=$DIR/run
if [ "$(id -u)" = 0 ]; then PG=$(postgres_programs); fi
[ -n "$PG" ] || say "without PostgreSQL"
echo "change,measure,value" | tee "$RESULTS"
for change in $CHANGES; do measure "$change"; done
