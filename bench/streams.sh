#!/bin/bash
# Streams from a slow disk without a glitch: `forebay stream serve` against plain threads with the
# kernel's readahead and against nginx, at equal memory; start-up times at given loads; and whether
# admission tells the truth. `emulated` has the service alone, on a disk that is a model and needs no
# privileges.
#
#   bench/streams.sh [maximum|startup|truth|emulated]...     all if not said
#   bench/streams.sh comparison                  start-up at each load, and between which loads the
#                                                maximum is, for each size of memory: 15 minutes
#   bench/streams.sh versus                      the service, by both ways of admission, and nginx in turns
#                                                at the same numbers of players, ROUNDS times: 10 minutes
#   bench/streams.sh long [emulated|throttled]   the admitted maximum for LONG seconds, best-effort
#                                                reads beside it: no glitch is expected. 11 to 13 minutes
#   bench/streams.sh cpu                         processor time of the service for each stream: 2 minutes
#
# Environment: QUICK=1 (small and short, less than 5 minutes: shows that it works, the figures say
# little; all of it takes about three hours), WORK_DIR (a new directory in /var/tmp; with one below
# /dev/shm no disk is needed: titles are zeros, which take no room), MEMORY
# ("16 64 256", in MB), RATE (bytes a second of a stream, 1000000), TITLES (120), LENGTH (seconds that
# each plays, 30), LONG (600, of 20 with QUICK), BUDGET (seconds: to search for each maximum, none; for
# all of a comparison, 780), NOISE (best-effort readers beside a long run, 4), MOST (streams to try at
# most, TITLES), APART (milliseconds between starts, 200), LOADS ("50 80 95 105", in % of what the
# service admits), ROUNDS (2), EXTRA (MB for programs themselves beside what is read ahead, 64; 16 for
# versus), REFINE (loads more that comparison tries between the highest that everybody played at
# and the lowest that somebody did not, 1), ASSURANCE (deterministic or statistical), SLOW_BPS,
# SLOW_IOPS (see slowdisk.sh), SKIP_BUILD. Players gather a second before they begin and have run dry
# when nothing is left of what they gathered. Long runs are for a machine with nothing else to do.
# Results: streams.csv, .json, and .svg with the maxima in RESULTS (bench/results); LOAD of a figure is `-50%`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

if [ -n "${QUICK:-}" ]; then
    : "${MEMORY=16}" "${TITLES=20}" "${LENGTH=4}" "${APART=50}" "${LOADS=80 105}" "${SLOW_BPS=15000000}"
    : "${PROFILE_TIME=5s}" "${STEPS=5}"
fi
export SLOW_BPS=${SLOW_BPS:-104857600} SLOW_IOPS=${SLOW_IOPS:-200}
DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-streams.XXXXXX)}
RESULTS=${RESULTS:-$ROOT/bench/results}
MEMORY=${MEMORY:-16 64 256}
RATE=${RATE:-1000000}
# A comparison is many runs, all of which count: short ones.
[ "${1:-}" != comparison ] || : "${LENGTH=5}" "${APART=10}" "${TITLES=100}" "${BUDGET=780}"
[ "${1:-}" != versus ] || : "${LENGTH=5}" "${APART=10}" "${TITLES=100}" "${LOADS=75 100 125}" "${EXTRA=16}"
TITLES=${TITLES:-120}
LENGTH=${LENGTH:-30}
MOST=${MOST:-$TITLES}
APART=${APART:-200}
LOADS=${LOADS:-50 80 95 105}
PORT=${PORT:-8481}
LONG=${LONG:-$([ -n "${QUICK:-}" ] && echo 20 || echo 600)}
NOISE=${NOISE:-4}
MEMCG=/sys/fs/cgroup/memory
DISK=$DIR/disk
GROUP=$MEMCG/forebay-bench-$$
[ $# -gt 0 ] || set -- maximum startup truth emulated

# By files, since servers are also started in subshells.
stop_server() {
    local file pid
    for file in "$DIR/nginx.pid" "$DIR/server.pid"; do
        [ -s "$file" ] || continue
        pid=$(cat "$file")
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        rm -f "$file"
    done
}

DISKS=("$DISK") DIRS=("$DIR")
stop() {
    stop_server
    [ ! -d "$GROUP" ] || rmdir "$GROUP"
}

need curl curl
build
mkdir -p "$RESULTS" "$DIR/run"
export FOREBAY_RUNTIME_DIR=$DIR/run

# Makes titles for the emulated disk, whose reads take the model's time: holes. holes DIR COUNT BYTES.
holes() {
    local title
    mkdir -p "$1"
    for title in $(seq -w 1 "$2"); do truncate -s "$3" "$1/t$title"; done
}

# Makes titles on the throttled disk: zeros, written so that they have blocks of the disk, of which
# then nothing is kept below it. zeros DIR COUNT BYTES.
zeros() {
    local title mib=$((($3 + 1048575) / 1048576))
    for title in $(seq -w 1 "$2"); do
        dd if=/dev/zero of="$1/t$title" bs=1M count="$mib" oflag=direct conv=fsync status=none
        fallocate --dig-holes "$DISK/disk.img"
    done
    sync
    fallocate --dig-holes "$DISK/disk.img"
}

unthrottle() { for k in read write; do for w in bps iops; do echo "$number 0" >"/sys/fs/cgroup/blkio/blkio.throttle.${k}_${w}_device"; done; done; }
throttle() { for k in read write; do
    echo "$number $SLOW_BPS" >"/sys/fs/cgroup/blkio/blkio.throttle.${k}_bps_device"
    echo "$number $SLOW_IOPS" >"/sys/fs/cgroup/blkio/blkio.throttle.${k}_iops_device"
done; }

slow_disk() {
    local bytes=$((RATE * (LENGTH + 10)))
    LIBRARY=$DISK/mnt
    [ -z "${number:-}" ] || return 0
    say "a throttled disk with $TITLES titles of $((bytes / 1000000)) MB"
    SLOW_SPARSE=1 "$ROOT/bench/slowdisk.sh" up "$DISK" $((TITLES * bytes / 1048576 * 11 / 10 + 256)) >/dev/null
    device=$(findmnt -n -o SOURCE "$LIBRARY")
    number=$(cat "/sys/block/${device#/dev/}/dev")
    unthrottle
    zeros "$LIBRARY" "$TITLES" "$bytes"
    throttle
    say "measuring the disk"
    "$FOREBAY" stream profile "$LIBRARY" --time "${PROFILE_TIME:-20s}" --quiet -o "$DIR/profile.json"
    SERVE=(--profile "$DIR/profile.json")
}

readahead() { echo "$1" >"/sys/block/${device#/dev/}/queue/read_ahead_kb"; }

# Runs a command with at most so many MB, page cache included, if the machine can limit it.
limited() { # MB command...
    local mb=$1
    shift
    if [ -w "$MEMCG/memory.limit_in_bytes" ]; then
        mkdir -p "$GROUP"
        # What a program itself needs (threads, curl) comes on top of what it reads ahead.
        echo $(((mb + ${EXTRA:-64}) * 1000000)) >"$GROUP/memory.limit_in_bytes"
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
        "${SERVE[@]}" --assurance "${ASSURANCE:-deterministic}" --log-level warn --state-dir "$DIR/run" \
        --client-connections 0 --client-streams 0 --client-rate 0 >"$DIR/server.log" 2>&1 &
    echo $! >"$DIR/server.pid"
    for _ in $(seq 50); do curl -sI "http://127.0.0.1:$PORT/x" >/dev/null && return; sleep 0.1; done
    cat "$DIR/server.log" >&2
    stop_server
    return 1
}

serve_nginx() { # MB sendfile|directio|tuned [PLAYERS]
    local mode="sendfile on;" kb
    [ "$2" = sendfile ] || mode="sendfile off; aio threads; directio 512; output_buffers 2 512k;"
    if [ "$2" = tuned ]; then
        # As large as its memory allows for so many players, two for each.
        kb=$(($1 * 1000 / 2 / ($3 > 0 ? $3 : 1) / 4 * 4))
        mode="sendfile off; aio threads; directio 512; output_buffers 2 $((kb < 32 ? 32 : kb > 2048 ? 2048 : kb))k;"
    fi
    cat >"$DIR/nginx.conf" <<CONF
daemon off; user root; worker_processes 1; pid $DIR/nginx.pid; error_log $DIR/nginx.log;
events { worker_connections 4096; }
http { access_log off; $mode server { listen 127.0.0.1:$PORT; root $LIBRARY; limit_rate $((RATE * 11 / 10)); } }
CONF
    limited "$1" nginx -c "$DIR/nginx.conf" &
    sleep 1
}

# Who is compared with the service.
others() {
    echo threads-128k threads-1024k threads-4096k
    if command -v nginx >/dev/null; then
        echo nginx-sendfile nginx-directio
    else
        say "nginx is not installed: left out"
    fi
}

# Plays from one of them: play_from NAME MB PLAYERS.
play_from() {
    local kb=${1#threads-} status=0
    if [ "$kb" != "$1" ]; then
        readahead "${kb%k}"
        LIMIT=$2 play "$3"
    else
        readahead 1024
        serve_nginx "$2" "${1#nginx-}" "$3"
        play "$3" --url http://127.0.0.1:$PORT || status=$?
        stop_server
        return $status
    fi
}

# The most players of which none runs dry.
most() { # name MB
    local name=$1 mb=$2 part=${3:-maximum} low=0 high=$MOST step n out since=$SECONDS
    step=$((MOST / ${STEPS:-16} > 0 ? MOST / ${STEPS:-16} : 1))
    while [ $((high - low)) -gt "$step" ]; do
        # What was found until then is a lower bound.
        [ -z "${BUDGET:-}" ] || [ $((SECONDS - since)) -lt "$BUDGET" ] || break
        n=$(((low + high + 1) / 2))
        out=$(play_from "$name" "$mb" "$n") || return 1
        if [ "$(echo "$out" | field disturbed)$(echo "$out" | field failed)" = 00 ]; then low=$n; else high=$n; fi
        say "$name, $mb MB, $n players: $out"
    done
    note "$part" "$name" "$mb" streams "$low"
}

note() { # part subject MB figure value
    (IFS=, && echo "$*") >>"$RESULTS/streams.csv"
}

# Plays from the service, and shows what it counted: play_forebay MB PLAYERS.
play_forebay() {
    local status=0
    serve_forebay "$1"
    play "$2" --url http://127.0.0.1:$PORT --query "?rate=$((RATE * 8))" || status=$?
    say "the service's own count: $(timeout 10 "$FOREBAY" stream status --json |
        tr -d ' \n' | grep -o '"\(glitches\|refused\)":{[^}]*}\|"memory_peak":[0-9]*' | tr '\n' ' ' || true)"
    stop_server
    return $status
}

# Admission says how many itself: all are asked for, and what it admits must not run dry.
admitted() { # part MB
    local out
    out=$(play_forebay "$2" "$MOST")
    say "forebay, $2 MB: $out"
    FITS=$(($(echo "$out" | field players) - $(echo "$out" | field refused)))
    note "$1" forebay "$2" streams "$FITS"
    note "$1" forebay "$2" disturbed "$(echo "$out" | field disturbed)"
}

maximum() {
    local mb name
    slow_disk
    for mb in $MEMORY; do
        admitted maximum "$mb"
        for name in $(others); do
            most "$name" "$mb"
        done
    done
}

# Start-up of everybody at the loads that the service's maximum gives, and his own maximum as far as
# these and REFINE more between them show it.
comparison() {
    local mb name run=0 more=0 runs count
    count=$(others | wc -w)
    # Each size of memory: what is admitted, and all loads of everybody. If time is left, more.
    runs=$(($(wc -w <<<"$MEMORY") * (1 + (1 + count) * $(wc -w <<<"$LOADS"))))
    slow_disk
    for mb in $MEMORY; do
        run=$((run + 1))
        admitted comparison "$mb"
        for name in forebay $(others); do
            compared "$name" "$mb"
        done
    done
}

# Everybody in turns, ROUNDS times, at the loads that statistical admission gives. A number of players
# counts for somebody if nobody was disturbed at it in any round, nor at a smaller one.
versus() {
    local mb load round name n ways="deterministic statistical"
    slow_disk
    need nginx nginx-light
    for mb in $MEMORY; do
        local -A fits=() most=()
        for name in $ways; do
            ASSURANCE=$name admitted "versus-$name" "$mb"
            fits[$name]=$FITS
        done
        for load in $LOADS; do
            n=$((FITS * load / 100))
            for round in $(seq "${ROUNDS:-2}"); do
                for name in $ways nginx-sendfile nginx-directio nginx-tuned; do
                    in_turn "$name" "$mb" "$n"
                done
            done
        done
        for name in $ways nginx-sendfile nginx-directio nginx-tuned; do
            n=0
            for load in $(tr ' ' '\n' <<<"${!most[*]}" | grep "^$name:" | cut -d: -f2 | sort -n); do
                [ "${most[$name:$load]}" != 0 ] || n=$load
                [ "${most[$name:$load]}" = 0 ] || { note versus "$name" "$mb" disturbed_from "$load"; break; }
            done
            note versus "$name" "$mb" streams "$n"
        done
    done
}

# One of them once: in_turn NAME MB PLAYERS. More than the service admits are not asked of it.
in_turn() {
    local name=$1 mb=$2 n=$3 out disturbed
    if [ -n "${fits[$name]:-}" ]; then
        n=$((n < fits[$name] ? n : fits[$name]))
        out=$(ASSURANCE=$name play_forebay "$mb" "$n")
    else
        out=$(play_from "$name" "$mb" "$n")
    fi
    disturbed=$(($(echo "$out" | field disturbed) + $(echo "$out" | field failed)))
    say "$((SECONDS - begun)) s: $name, $mb MB, $n players: $out"
    note versus "$name" "$mb" "disturbed_of_$n" "$disturbed"
    note versus "$name" "$mb" "glitches_of_$n" "$(echo "$out" | field glitches)"
    note versus "$name" "$mb" "startup_p99_s_of_$n" "$(echo "$out" | field startup_p99_s)"
    most[$name:$n]=$((${most[$name:$n]:-0} + disturbed))
}

# Whether BUDGET has time for one run more than those that are left, if they take as long as others.
in_time() {
    local spent=$((SECONDS - begun)) each
    each=$((spent / (run + more > 0 ? run + more : 1) + 1))
    [ -z "${BUDGET:-}" ] || [ $((spent + each * (runs - run + 1))) -lt "$BUDGET" ] || {
        say "no time for more of $name, $mb MB"
        return 1
    }
}

# One of them at all loads: compared NAME MB.
compared() {
    local name=$1 mb=$2 load n low=0 high=0 refine=${REFINE:-1}
    for load in $LOADS; do
        n=$((FITS * load / 100))
        one "$load%" $n
    done
    if [ "$name" = forebay ]; then
        # Nobody whom it admits is disturbed: what it admits is the maximum.
        [ "$high" = 0 ] || note comparison forebay "$mb" disturbed_from "$high"
        return
    fi
    # Beyond what the service admits.
    if [ "$high" = 0 ] && in_time; then one more $((FITS * 5 / 4)); fi
    while [ "$refine" -gt 0 ] && [ "$high" -gt $((low + 1)) ] && in_time; do
        refine=$((refine - 1))
        one more $(((low + high) / 2))
    done
    note comparison "$name" "$mb" streams "$low"
    [ "$high" = 0 ] || note comparison "$name" "$mb" disturbed_from "$high"
}

# One run of a comparison: one LOAD PLAYERS; notes the start-up unless it is one `more`.
one() {
    local out players
    if [ "$1" = more ]; then more=$((more + 1)); else run=$((run + 1)); fi
    [ "$2" -gt 0 ] || return 0
    say "run $run of $runs and $more more, $((SECONDS - begun)) s: $name, $mb MB, $2 players"
    if [ "$name" = forebay ]; then out=$(play_forebay "$mb" "$2"); else out=$(play_from "$name" "$mb" "$2"); fi
    [ "$1" = more ] || started comparison "$name" "$mb" "${1%\%}" "$out"
    [ "$1" != more ] || say "$name, $mb MB, $2 players: $out"
    players=$(($(echo "$out" | field players) - $(echo "$out" | field refused)))
    if [ "$(echo "$out" | field disturbed)$(echo "$out" | field failed)" = 00 ]; then
        [ "$players" -le "$low" ] || low=$players
    else
        [ "$high" != 0 ] && [ "$players" -ge "$high" ] || high=$players
    fi
}

# Start-up of so many players: started PART NAME MB LOAD OUTCOME.
started() {
    local name
    say "$2, start-up at $4 %: $5"
    for name in players startup_p50_s startup_p99_s refused disturbed; do
        note "$1" "$2-$4%" "$3" "$name" "$(echo "$5" | field $name)"
    done
}

# The same numbers of players for all.
startup() {
    local load name mb=${MEMORY##* }
    slow_disk
    [ -n "${FITS:-}" ] || admitted startup "$mb"
    for load in $LOADS; do
        started startup forebay "$mb" "$load" "$(play_forebay "$mb" $((FITS * load / 100)))"
        [ -z "${QUICK:-}" ] || continue
        for name in $(others); do
            started startup "$name" "$mb" "$load" "$(play_from "$name" "$mb" $((FITS * load / 100)))"
        done
    done
}

# Sets of several sizes: what is admitted must play. Of the sets that are refused, up to half as large
# again: how many would have played from plain threads with 4 MiB of readahead.
truth() {
    local n out wrong=0 refused=0 playable=0 mb=${MEMORY##* }
    slow_disk
    [ -n "${FITS:-}" ] || admitted truth "$mb"
    for n in $((FITS / 2)) $((FITS * 3 / 4)) "$FITS"; do
        out=$(play_forebay "$mb" "$n")
        say "truth, $n players: $out"
        [ "$(echo "$out" | field disturbed)" = 0 ] || wrong=$((wrong + 1))
    done
    note truth forebay "$mb" admitted_sets_with_a_glitch "$wrong"
    for n in $((FITS + 1)) $((FITS * 5 / 4 + 1)) $((FITS * 3 / 2 + 1)); do
        out=$(play_from threads-4096k "$mb" "$n")
        say "truth, $n players refused: $out"
        refused=$((refused + 1))
        [ "$(echo "$out" | field disturbed)" != 0 ] || playable=$((playable + 1))
    done
    note truth threads-4096k "$mb" refused_sets "$refused"
    note truth threads-4096k "$mb" refused_sets_that_played "$playable"
}

# The service on the disk of Table 1, streams of 2 Mb/s. The model is inside the service, so nobody
# else can be compared on it.
emulated() (
    RATE=250000 MOST=60 LIBRARY=$DIR/emulated
    # All of them at the same time: they come within less than they play.
    LENGTH=$((LENGTH < 10 ? 10 : LENGTH)) APART=$((APART < 100 ? APART : 100))
    SERVE=(--emulate table1)
    holes "$LIBRARY" 60 $((RATE * (LENGTH + 10)))
    for mb in $MEMORY; do
        admitted emulated "$mb"
        for load in $LOADS; do
            started emulated forebay "$mb" "$load" "$(play_forebay "$mb" $((FITS * load / 100)))"
        done
    done
)

# Processor time of the service for a stream: milliseconds in each second that it plays.
cpu() (
    LIBRARY=$DIR/emulated MOST=40 APART=20 mb=${MEMORY##* } LENGTH=$([ -n "${QUICK:-}" ] && echo 10 || echo 40)
    SERVE=(--emulate ssd)
    holes "$LIBRARY" "$MOST" $((RATE * (LENGTH + 10)))
    ticks() { awk '{ print $14 + $15 }' "/proc/$(cat "$DIR/server.pid")/stat"; }
    for n in 10 40; do
        serve_forebay "$mb"
        play "$n" --url http://127.0.0.1:$PORT --query "?rate=$((RATE * 8))" >"$DIR/played" &
        # The start of all of them is another matter.
        sleep 5
        before=$(ticks)
        sleep $((LENGTH - 8))
        after=$(ticks)
        wait $!
        stop_server
        say "cpu, $n players: $(cat "$DIR/played")"
        note cpu "$n-streams" "$mb" ms_per_stream_and_second "$(awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" \
            -v s=$((LENGTH - 8)) -v n="$n" 'BEGIN { printf "%.2f", ticks * 1000 / hz / s / n }')"
    done
)

# Reads what nobody plays, without a guarantee, until the file that it is given is gone.
noise() { # file title
    while [ -e "$1" ]; do
        timeout 30 curl -s -o /dev/null "http://127.0.0.1:$PORT/$2?class=best-effort" || sleep 0.2
    done
}

# The admitted maximum for a long time: long emulated|throttled.
long() (
    LENGTH=$LONG mb=${MEMORY%% *} on=$DIR/noise
    if [ "$1" = emulated ]; then
        RATE=250000 MOST=60 APART=100 LIBRARY=$DIR/emulated SERVE=(--emulate table1)
        holes "$LIBRARY" $((MOST + NOISE)) $((RATE * (LENGTH + 10)))
    else
        export SLOW_BPS=20000000
        MOST=24 TITLES=$((24 + NOISE))
        slow_disk
    fi
    serve_forebay "$mb"
    touch "$on"
    # So that whoever waits sees how it goes.
    (while [ -e "$on" ]; do
        for _ in $(seq 30); do [ ! -e "$on" ] || sleep 1; done
        say "$((SECONDS - begun)) s: $(timeout 10 "$FOREBAY" stream status --json 2>/dev/null | tr -d ' \n' |
            grep -o '"\(guaranteed\|glitches\|slowdown\)":\({[^}]*}\|[0-9.]*\)' | tr '\n' ' ' || true)"
    done) &
    for title in $(seq -w 1 $((MOST + NOISE)) | tail -n "$NOISE"); do
        noise "$on" "t$title" &
    done
    out=$(play "$MOST" --url http://127.0.0.1:$PORT --query "?rate=$((RATE * 8))") || out=failed
    rm -f "$on"
    counted=$(timeout 10 "$FOREBAY" stream status --json | tr -d ' \n')
    stop_server
    wait
    say "long, $1, $mb MB, $LENGTH s: $out"
    say "the service's own count: $(echo "$counted" | grep -o '"glitches":{[^}]*}')," \
        "$(echo "$counted" | field bytes_best_effort) bytes of best effort"
    # When, which stream, and by how much.
    grep glitch "$DIR/server.log" >&2 || true
    note long "$1" "$mb" seconds "$LENGTH"
    note long "$1" "$mb" streams $(($(echo "$out" | field players) - $(echo "$out" | field refused)))
    note long "$1" "$mb" disturbed "$(echo "$out" | field disturbed)"
    note long "$1" "$mb" glitches "$(echo "$counted" | grep -o '"glitches":{[^}]*}' | grep -o '[0-9]*' |
        awk '{sum += $1} END {print sum + 0}')"
    note long "$1" "$mb" best_effort_bytes "$(echo "$counted" | field bytes_best_effort)"
)

begun=$SECONDS
echo "part,subject,memory_mb,figure,value" >"$RESULTS/streams.csv"
while [ $# -gt 0 ]; do
    part=$1
    shift
    case $part in
    maximum | startup | truth | emulated | comparison | versus | cpu) $part ;;
    long)
        case ${1:-} in
        emulated | throttled) long "$1" && shift ;;
        *) long emulated ;;
        esac
        ;;
    *) say "usage: $0 [maximum|startup|truth|emulated|comparison|versus|cpu|long [emulated|throttled]]..."; exit 2 ;;
    esac
done
# The same as JSON, and the maxima as a chart.
awk -F, 'NR > 1 { printf "%s{\"part\":\"%s\",\"subject\":\"%s\",\"memory_mb\":%s,\"figure\":\"%s\",\"value\":%s}",
    (NR > 2 ? ",\n" : "[\n"), $1, $2, $3, $4, ($5 == "" ? "null" : $5) } END { print (NR > 1 ? "\n]" : "[]") }' \
    "$RESULTS/streams.csv" >"$RESULTS/streams.json"
awk -F, '$4 == "streams" { label[++n] = $1 " " $2 ", " $3 " MB"; value[n] = $5; if ($5 > top) top = $5 }
    END {
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", 40 + 20 * n
        print "<text x=\"8\" y=\"20\">streams without a glitch</text>"
        for (i = 1; i <= n; i++) {
            y = 20 + 20 * i
            printf "<text x=\"8\" y=\"%d\">%s</text><rect x=\"280\" y=\"%d\" width=\"%.0f\" height=\"14\" fill=\"#4a7\"/><text x=\"%.0f\" y=\"%d\">%s</text>\n",
                y, label[i], y - 11, 420 * value[i] / (top > 0 ? top : 1), 286 + 420 * value[i] / (top > 0 ? top : 1), y, value[i]
        }
        print "</svg>"
    }' "$RESULTS/streams.csv" >"$RESULTS/streams.svg"
cat "$RESULTS/streams.csv"
say "took $((SECONDS - begun)) s"
