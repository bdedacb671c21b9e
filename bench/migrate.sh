#!/bin/bash
# What moving a task costs, beside what CRIU needs alone.
#
#   bench/migrate.sh sizes [MB...]   a task of 10, 100 and 1024 MB of memory with a file open on the mount goes
#                                    to another mount and back: milliseconds for which it stands still, bytes of
#                                    its image; and the same tree, without Forebay, dumped and restored by CRIU
#   bench/migrate.sh many [N]        one task is migrated N (100) times while it writes; its file, its output and
#                                    its exit code against those of a run that stays
#
# VIA=node has the task go to the other mount as to a node on another machine: its image goes over TCP and TLS, and
# another process has it there. VIA=mount (the default) has it stay with its keeper.
#
# Needs root, redis-server, python3 and CRIU 4.1 (FOREBAY_CRIU, or tests/criu.sh).
# Environment: FOREBAY, the binary; ROUNDS (3); DIR, a directory for all of it (a new one in /dev/shm).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FOREBAY=${FOREBAY:-$ROOT/target/release/forebay}
CRIU=${FOREBAY_CRIU:-criu}
ROUNDS=${ROUNDS:-3}
VIA=${VIA:-mount}
DIR=${DIR:-$(mktemp -d /dev/shm/forebay-migrate.XXXXXX)}
PORT=$((32000 + $$ % 700))
export FOREBAY_RUNTIME_DIR=$DIR/run
mkdir -p "$DIR"/{run,backing,a,b,redis,alone}

cleanup() {
    local mount
    [ -z "${RUN:-}" ] || kill "$RUN" 2>/dev/null || true
    for mount in a b; do
        timeout 60 "$FOREBAY" umount -q "$DIR/$mount" 2>/dev/null || fusermount3 -uz "$DIR/$mount" 2>/dev/null || true
    done
    [ -z "${REDIS:-}" ] || kill "$REDIS" 2>/dev/null || true
    rm -rf "$DIR"
}
trap cleanup EXIT

up() {
    local mount
    redis-server --port $PORT --bind 127.0.0.1 --save '' --appendonly yes --appendfsync always \
        --dir "$DIR/redis" >"$DIR/redis/log" 2>&1 &
    REDIS=$!
    for _ in $(seq 100); do redis-cli -p $PORT ping >/dev/null 2>&1 && break; sleep 0.1; done
    head -c 32 /dev/urandom >"$DIR/secret"
    chmod 600 "$DIR/secret"
    for mount in a b; do
        timeout 60 "$FOREBAY" mount "$DIR/backing" "$DIR/$mount" --tier "$DIR/tier-$mount=64M" \
            --cluster "redis://127.0.0.1:$PORT/bench" --cluster-listen 127.0.0.1:0 \
            --cluster-secret "$DIR/secret" --host-tasks on >/dev/null 2>&1
    done
    OTHER=$DIR/b
    [ "$VIA" = mount ] || OTHER=$("$FOREBAY" cluster status --json "$DIR/b" | field this)
}

field() { python3 -c 'import json,sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
mean() { python3 -c 'import sys; x = [float(a) for a in sys.argv[1:]]; print(round(sum(x) / len(x)))' "$@"; }
now() { date +%s%3N; }

# Fills so much memory with what can't be compressed, then changes some of it and writes a line, for ever.
TASK='
import os, sys, time
memory = bytearray()
while len(memory) < int(sys.argv[1]) << 20:
    memory += os.urandom(1 << 20)
with open(sys.argv[2], "w") as out:
    at = 0
    while True:
        memory[at * 4096 % len(memory)] ^= 1
        at += 1
        out.write("%d\n" % at)
        out.flush()
        time.sleep(0.005)
'

wait_for_file() { for _ in $(seq 600); do [ -s "$1" ] && return; sleep 0.1; done; echo "no $1" >&2; return 1; }

forebay_moves() { # MB
    local at text downs=() bytes
    timeout 600 "$FOREBAY" run --migratable --name size --mount "$DIR/a" -- \
        python3 -c "$TASK" "$1" "$DIR/a/out" >/dev/null 2>&1 &
    RUN=$!
    wait_for_file "$DIR/a/out"
    for at in $(seq "$ROUNDS"); do
        for target in "$OTHER" home; do
            text=$("$FOREBAY" migrate size "$target" --json)
            downs+=("$(field downtime_ms <<<"$text")")
            bytes=$(field bytes <<<"$text")
        done
    done
    kill $RUN
    wait $RUN 2>/dev/null || true
    RUN=
    rm -f "$DIR/a/out"
    echo "$(mean "${downs[@]}") $((bytes >> 20))"
}

criu_alone() { # MB
    local at pid from downs=() bytes
    unshare --pid --ipc --fork setsid python3 -c "$TASK" "$1" "$DIR/alone/out" </dev/null >/dev/null 2>&1 &
    wait_for_file "$DIR/alone/out"
    pid=$(pgrep -f "[p]ython3 -c .*$DIR/alone/out" | tail -n 1)
    for at in $(seq "$ROUNDS"); do
        rm -rf "$DIR/alone/image"
        mkdir "$DIR/alone/image"
        from=$(now)
        "$CRIU" dump -t "$pid" -D "$DIR/alone/image" -o dump.log --shell-job --manage-cgroups=ignore >/dev/null 2>&1
        # Who restores is the parent that is to reap it, and nothing may be left of its number.
        "$CRIU" restore -d -D "$DIR/alone/image" -o restore.log --pidfile pid --shell-job \
            --manage-cgroups=ignore >/dev/null 2>&1
        downs+=($(($(now) - from)))
        pid=$(cat "$DIR/alone/image/pid")
        bytes=$(du -sm "$DIR/alone/image" | cut -f 1)
        sleep 0.5
    done
    kill -9 "$pid"
    rm -rf "$DIR"/alone/*
    echo "$(mean "${downs[@]}") $bytes"
}

sizes() {
    local size
    up
    echo "load $(cut -d ' ' -f 1-3 /proc/loadavg), $(nproc) cores, $("$CRIU" --version | head -n 1), image in memory, by $VIA"
    echo "MB,forebay_ms,forebay_image_mib,criu_alone_ms,criu_image_mib"
    for size in "$@"; do
        echo "$size,$(forebay_moves "$size" | tr ' ' ,),$(criu_alone "$size" | tr ' ' ,)"
    done
}

# Writes lines that follow from those before, until it has written as many as the file `end` says.
COUNT='
import os, sys, time
h = at = 0
out = open(sys.argv[1], "w")
while True:
    for _ in range(50):
        h = (h * 1103515245 + at) & 0xffffffff
        at += 1
        out.write("%d %d\n" % (at, h))
    out.flush()
    print(at, h, flush=True)
    if os.path.exists(sys.argv[2]) and at >= int(open(sys.argv[2]).read() or at + 1):
        sys.exit(7)
    if len(sys.argv) < 4:
        time.sleep(0.01)
'

many() { # N
    local at code=0 target lines
    up
    timeout 1200 "$FOREBAY" run --migratable --name many --mount "$DIR/a" -- \
        python3 -c "$COUNT" "$DIR/a/out" "$DIR/a/end" >"$DIR/stdout" 2>"$DIR/stderr" &
    RUN=$!
    wait_for_file "$DIR/a/out"
    for at in $(seq "$1"); do
        target=home
        [ $((at % 2)) = 0 ] || target=$OTHER
        "$FOREBAY" migrate many "$target" --json >>"$DIR/moves"
    done
    lines=$(tail -n 1 "$DIR/stdout" | cut -d ' ' -f 1)
    echo $((lines + 500)) >"$DIR/a/end.new"
    mv "$DIR/a/end.new" "$DIR/a/end"
    wait $RUN || code=$?
    RUN=
    # The run that stays ends at the same line.
    wc -l <"$DIR/a/out" >"$DIR/alone/end"
    python3 -c "$COUNT" "$DIR/alone/out" "$DIR/alone/end" fast >"$DIR/alone/stdout" || [ $? = 7 ]
    cmp "$DIR/a/out" "$DIR/alone/out"
    cmp "$DIR/b/out" "$DIR/alone/out"
    cmp "$DIR/stdout" "$DIR/alone/stdout"
    [ "$code" = 7 ] || { echo "exit code $code" >&2; exit 1; }
    echo "$1 migrations, $(wc -l <"$DIR/a/out") lines equal, mean downtime $(mean $(field_all downtime_ms)) ms"
}

field_all() { python3 -c 'import json,sys; [print(json.loads(line)[sys.argv[1]]) for line in sys.stdin]' "$1" <"$DIR/moves"; }

case ${1:-} in
    sizes) shift; [ $# -gt 0 ] || set -- 10 100 1024; sizes "$@" ;;
    many) many "${2:-100}" ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
