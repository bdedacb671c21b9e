#!/bin/bash
# Real programs on three directories: the tier itself, Forebay, and the bare slow disk: unpack and
# build, git clone and status, SQLite, PostgreSQL (pgbench).
#
#   bench/programs.sh [ROUNDS]              3 rounds if not said
#
# Environment: WORK_DIR (a new directory in /var/tmp), TIER_DIR (/dev/shm/forebay-programs.PID),
# PROGRAMS ("build git sqlite postgres"), SKIP_BUILD.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

ROUNDS=${1:-3}
PROGRAMS=${PROGRAMS:-build git sqlite postgres}
DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-programs.XXXXXX)}
TIER=${TIER_DIR:-/dev/shm/forebay-programs.$$}
NATIVE=$TIER.native
MNT=$DIR/forebay
RESULTS=$ROOT/bench/results
CSV=$RESULTS/programs.csv
PG=

stop_postgres() { # data directory
    [ -z "$PG" ] || su postgres -s /bin/sh -c "$PG/pg_ctl -D '$1' -m fast -w stop" >/dev/null 2>&1 || true
}

MOUNTS=("$MNT") DISKS=("$DIR/disk") DIRS=("$TIER" "$NATIVE" "$DIR")
stop() {
    local subject
    for subject in "$NATIVE" "$MNT" "$DIR/disk/mnt"; do
        [ ! -e "$subject/pg/data/postmaster.pid" ] || stop_postgres "$subject/pg/data"
    done
}

need fusermount3 fuse3
need git git
need sqlite3 sqlite3
build
"$ROOT/bench/slowdisk.sh" check
mkdir -p "$MNT" "$NATIVE" "$RESULTS"
chmod 755 "$DIR" "$NATIVE"
echo "test,subject,unit,round,value" >"$CSV"
SLOW=$("$ROOT/bench/slowdisk.sh" up "$DIR/disk" 4096)
mkdir "$SLOW/bare" "$SLOW/cached"
"$FOREBAY" mount "$SLOW/cached" "$MNT" --tier "$TIER=4G" --allow-other

# Sources that need no network: this project's own.
git -C "$ROOT" archive --format=tar HEAD >"$DIR/source.tar"
git clone -q --bare "$ROOT" "$DIR/source.git"

add() { echo "$1,$2,s,$3,$4" >>"$CSV"; }

program_build() { # directory
    mkdir "$1/build"
    tar xf "$DIR/source.tar" -C "$1/build"
    CARGO_TARGET_DIR=$1/build/target cargo build -q --offline --manifest-path "$1/build/Cargo.toml" -p forebay-core
}

program_git() {
    git clone -q "$DIR/source.git" "$1/clone"
    for _ in 1 2 3 4 5; do git -C "$1/clone" status --porcelain; done
}

program_sqlite() {
    sqlite3 "$1/bench.db" >/dev/null <<'SQL'
PRAGMA journal_mode=WAL;
CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
    INSERT INTO t SELECT i, 'row ' || i, i * 7919 % 10007 FROM n;
CREATE INDEX t_b ON t(b);
SELECT b, count(*) FROM t GROUP BY b;
UPDATE t SET a = a || 'x' WHERE b % 5 = 0;
DELETE FROM t WHERE b % 7 = 0;
VACUUM;
SQL
}

program_postgres() {
    local data=$1/pg/data port=54399
    mkdir -p "$1/pg"
    chown postgres "$1/pg"
    su postgres -s /bin/sh -c "$PG/initdb -D '$data' -A trust >/dev/null &&
        $PG/pg_ctl -D '$data' -w -l '$data/log' -o '-p $port -k /tmp -c listen_addresses=' start >/dev/null &&
        $PG/pgbench -h /tmp -p $port -q -i -s 5 postgres 2>/dev/null &&
        $PG/pgbench -h /tmp -p $port -c 4 -t 500 postgres >/dev/null 2>&1 &&
        $PG/pg_ctl -D '$data' -m fast -w stop >/dev/null"
}

case " $PROGRAMS " in *" postgres "*)
    PG=$(postgres_programs)
    if [ -z "$PG" ]; then
        need pg_lsclusters postgresql postgresql-contrib
        PG=$(postgres_programs)
    fi ;;
esac

for round in $(seq 0 $((ROUNDS - 1))); do
    for program in $PROGRAMS; do
        for subject in native:$NATIVE forebay:$MNT slow:$SLOW/bare; do
            name=${subject%%:*} place=${subject#*:}/round$round.$program
            mkdir "$place"
            chmod 755 "$place"
            drop_caches
            say "round $round: $program on $name"
            add "$program" "$name" "$round" "$(seconds "program_$program" "$place")"
            rm -rf "$place"
        done
    done
done
"$FOREBAY" umount "$MNT"
"$BENCH" plot "$CSV" --title "Programs: the tier, Forebay, the slow disk" --out "$RESULTS/programs"
