#!/bin/bash
# Streams from a slow disk without a glitch: `forebay stream serve` against plain threads with the
# kernel's readahead and against nginx, at equal memory; start-up times at given loads; and whether
# admission tells the truth.
#
#   bench/streams.sh [maximum|startup|truth]...     all if not said
#
# Environment: WORK_DIR (a new directory in /var/tmp), MEMORY ("16 64 256", in MB), RATE (bytes a
# second of a stream, 1000000), TITLES (120), LENGTH (seconds that each plays, 30), MOST (streams to
# try at most, TITLES), APART (milliseconds between starts, 200), LOADS ("50 80 95 105", in %), SLOW_BPS,
# SLOW_IOPS (see slowdisk.sh), SKIP_BUILD. Long runs are for a machine with nothing else to do.
# Results: bench/results/streams.csv.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-streams.XXXXXX)}
RESULTS=$ROOT/bench/results
MEMORY=${MEMORY:-16 64 256}
RATE=${RATE:-1000000}
TITLES=${TITLES:-120}
LENGTH=${LENGTH:-30}
MOST=${MOST:-$TITLES}
APART=${APART:-200}
LOADS=${LOADS:-50 80 95 105}
PORT=${PORT:-8481}
MEMCG=/sys/fs/cgroup/memory
DISK=$DIR/disk
SERVER=
GROUP=
[ $# -gt 0 ] || set -- maximum startup truth

stop_server() {
    if [ -s "$DIR/nginx.pid" ]; then
        kill "$(cat "$DIR/nginx.pid")" 2>/dev/null || true
        for _ in $(seq 50); do [ -s "$DIR/nginx.pid" ] || break; sleep 0.1; done
    fi
    [ -z "$SERVER" ] || { kill "$SERVER" 2>/dev/null || true; wait "$SERVER" 2>/dev/null || true; }
    SERVER=
}

clean() {
    trap - EXIT INT TERM
    stop_server
    [ -z "$GROUP" ] || rmdir "$GROUP" 2>/dev/null || true
    "$ROOT/bench/slowdisk.sh" down "$DISK" 2>/dev/null || true
    rm -rf --one-file-system "$DIR"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

need curl curl
build
mkdir -p "$RESULTS" "$DIR/run"
export FOREBAY_RUNTIME_DIR=$DIR/run
BYTES=$((RATE * (LENGTH + 10)))
say "a throttled disk with $TITLES titles of $((BYTES / 1000000)) MB"
"$ROOT/bench/slowdisk.sh" up "$DISK" $((TITLES * BYTES / 1048576 * 11 / 10 + 256)) >/dev/null
LIBRARY=$DISK/mnt
device=$(findmnt -n -o SOURCE "$LIBRARY")
number=$(cat "/sys/block/${device#/dev/}/dev")
unthrottle() { for k in read write; do for w in bps iops; do echo "$number 0" >"/sys/fs/cgroup/blkio/blkio.throttle.${k}_${w}_device"; done; done; }
throttle() { for k in read write; do
    echo "$number ${SLOW_BPS:-104857600}" >"/sys/fs/cgroup/blkio/blkio.throttle.${k}_bps_device"
    echo "$number ${SLOW_IOPS:-200}" >"/sys/fs/cgroup/blkio/blkio.throttle.${k}_iops_device"
done; }
unthrottle
for title in $(seq -w 1 "$TITLES"); do
    head -c "$BYTES" </dev/urandom >"$LIBRARY/t$title"
done
sync
throttle
readahead() { echo "$1" >"/sys/block/${device#/dev/}/queue/read_ahead_kb"; }

# Runs a command with at most so many MB, page cache included, if the machine can limit it.
limited() { # MB command...
    local mb=$1
    shift
    if [ -w "$MEMCG/memory.limit_in_bytes" ]; then
        GROUP=$MEMCG/forebay-bench-$$
        mkdir -p "$GROUP"
        # What a program itself needs (threads, curl) comes on top of what it reads ahead.
        echo $(((mb + 64) * 1000000)) >"$GROUP/memory.limit_in_bytes"
        (echo "$BASHPID" >"$GROUP/cgroup.procs" && exec "$@")
    else
        say "no memory controller: $1 runs without a limit"
        "$@"
    fi
}

play() { # players, further arguments
    local players=$1
    shift
    drop_caches
    # Players of plain files read ahead on their own account, players of a server on the server's.
    local run=()
    [ -z "${LIMIT:-}" ] || run=(limited "$LIMIT")
    "${run[@]}" timeout $((LENGTH * 5 + 120)) "$BENCH" streams "$LIBRARY" --rate-bytes "$RATE" \
        --seconds "$LENGTH" --apart-ms "$APART" --players "$players" "$@"
}

field() { # name, JSON on standard input
    grep -o "\"$1\":[0-9.]*" | cut -d: -f2
}

serve_forebay() { # MB
    "$FOREBAY" stream serve "$LIBRARY" --listen 127.0.0.1:$PORT --memory "${1}000000" \
        --profile "$DIR/profile.json" --log-level warn >"$DIR/server.log" 2>&1 &
    SERVER=$!
    for _ in $(seq 50); do curl -sI "http://127.0.0.1:$PORT/x" >/dev/null && return; sleep 0.1; done
    cat "$DIR/server.log" >&2
    return 1
}

serve_nginx() { # MB sendfile|directio
    local mode="sendfile on;"
    [ "$2" = sendfile ] || mode="sendfile off; aio threads; directio 512; output_buffers 2 512k;"
    cat >"$DIR/nginx.conf" <<CONF
daemon off; user root; worker_processes 1; pid $DIR/nginx.pid; error_log $DIR/nginx.log;
events { worker_connections 4096; }
http { access_log off; $mode server { listen 127.0.0.1:$PORT; root $LIBRARY; limit_rate $((RATE * 11 / 10)); } }
CONF
    limited "$1" nginx -c "$DIR/nginx.conf" &
    SERVER=$!
    sleep 1
}

# The most players, in steps of an eighth, of which none runs dry.
most() { # name MB further arguments of play
    local name=$1 mb=$2 low=0 high=$MOST n out glitches
    shift 2
    while [ $((high - low)) -gt $((MOST / 16 > 0 ? MOST / 16 : 1)) ]; do
        n=$(((low + high + 1) / 2))
        out=$(play "$n" "$@") || return 1
        glitches=$(echo "$out" | field disturbed)
        if [ "$glitches" = 0 ] && [ "$(echo "$out" | field failed)" = 0 ]; then low=$n; else high=$n; fi
        say "$name, $mb MB, $n players: $out"
    done
    echo "maximum,$name,$mb,streams,$low" >>"$RESULTS/streams.csv"
}

# Admission says how many itself: all are asked for, and what it admits must not run dry.
admitted() { # MB
    serve_forebay "$1"
    local out
    out=$(play "$MOST" --url http://127.0.0.1:$PORT --query "?rate=$((RATE * 8))")
    say "forebay, $1 MB: $out"
    FITS=$(($(echo "$out" | field players) - $(echo "$out" | field refused)))
    echo "maximum,forebay,$1,streams,$FITS" >>"$RESULTS/streams.csv"
    echo "maximum,forebay,$1,disturbed,$(echo "$out" | field disturbed)" >>"$RESULTS/streams.csv"
    stop_server
}

maximum() {
    local mb kb
    for mb in $MEMORY; do
        admitted "$mb"
        for kb in 128 1024 4096; do
            readahead $kb
            LIMIT=$mb most "threads-${kb}k" "$mb"
        done
        if command -v nginx >/dev/null; then
            for mode in sendfile directio; do
                readahead 1024
                serve_nginx "$mb" $mode
                most "nginx-$mode" "$mb" --url http://127.0.0.1:$PORT
                stop_server
            done
        else
            say "nginx is not installed: left out"
        fi
    done
}

startup() {
    local load out mb
    mb=$(echo "$MEMORY" | tr ' ' '\n' | tail -1)
    [ -n "${FITS:-}" ] || admitted "$mb"
    for load in $LOADS; do
        serve_forebay "$mb"
        out=$(play $((FITS * load / 100)) --url http://127.0.0.1:$PORT --query "?rate=$((RATE * 8))")
        say "start-up at $load %: $out"
        for name in startup_p50_s startup_p99_s refused disturbed; do
            echo "startup,load-$load,$mb,$name,$(echo "$out" | field $name)" >>"$RESULTS/streams.csv"
        done
        stop_server
    done
}

# Sets of several sizes: what is admitted must play; of what is refused the share is told that plain
# threads with 4 MiB of readahead carry.
truth() {
    local n out wrong=0 mb
    mb=$(echo "$MEMORY" | tr ' ' '\n' | tail -1)
    [ -n "${FITS:-}" ] || admitted "$mb"
    for n in $((FITS / 2)) $((FITS * 3 / 4)) "$FITS"; do
        serve_forebay "$mb"
        out=$(play "$n" --url http://127.0.0.1:$PORT --query "?rate=$((RATE * 8))")
        [ "$(echo "$out" | field disturbed)" = 0 ] || wrong=$((wrong + 1))
        stop_server
    done
    echo "truth,forebay,$mb,admitted_sets_with_a_glitch,$wrong" >>"$RESULTS/streams.csv"
    readahead 4096
    out=$(play $((FITS * 11 / 10 + 1)))
    echo "truth,threads-4096k,$mb,disturbed_at_110_percent,$(echo "$out" | field disturbed)" >>"$RESULTS/streams.csv"
}

say "measuring the disk"
"$FOREBAY" stream profile "$LIBRARY" --time "${PROFILE_TIME:-20s}" --quiet -o "$DIR/profile.json"
echo "part,subject,memory_mb,figure,value" >"$RESULTS/streams.csv"
for part in "$@"; do
    case $part in
    maximum | startup | truth) $part ;;
    *) say "usage: $0 [maximum|startup|truth]..."; exit 2 ;;
    esac
done
cat "$RESULTS/streams.csv"
