#!/bin/bash
# How long programs wait while daemons change: for upgrades and for restarts after kill -9, with
# growing numbers of resident files. A program reads attributes and bytes all the time; its longest
# wait is measured beside what the daemon says of the pause.
#
#   bench/front.sh            prints CSV: change, files, round, pause_us, worst_us
#
# pause_us is empty for restarts: nobody is there to measure it.
#
# Environment: WORK_DIR (a new directory in /dev/shm); FILES, the numbers of files (100 1000 4000);
# ROUNDS of each change (10); SKIP_BUILD, FOREBAY as in the other scripts. Writes the same to
# bench/results/front.csv, and a summary to standard error.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-front.XXXXXX)}
ROUNDS=${ROUNDS:-10}
read -ra FILES <<<"${FILES:-100 1000 4000}"
RESULTS=$ROOT/bench/results/front.csv
MNT=$DIR/mnt
LOAD=

MOUNTS=("$MNT") DIRS=("$DIR")
stop() {
    touch "$DIR/stop" 2>/dev/null || true
    [ -z "$LOAD" ] || wait "$LOAD" 2>/dev/null || true
}

# Reads one file again and again; says the longest wait in microseconds when told to, and complains
# of every error. No process is started in the loop.
load() {
    local begin took worst=0 text
    while [ ! -e "$DIR/stop" ]; do
        begin=${EPOCHREALTIME/[.,]/}
        [ -s "$MNT/probe" ] && read -r text <"$MNT/probe" || echo "an error" >>"$DIR/errors"
        took=$((${EPOCHREALTIME/[.,]/} - begin))
        [ "$took" -le "$worst" ] || worst=$took
        if [ -e "$DIR/tell" ]; then
            echo "$worst" >"$DIR/worst.new"
            mv "$DIR/worst.new" "$DIR/worst"
            rm "$DIR/tell"
            worst=0
        fi
    done
}

# The longest wait since the last call.
worst() {
    rm -f "$DIR/worst"
    touch "$DIR/tell"
    for _ in $(seq 100); do
        [ ! -e "$DIR/worst" ] || { cat "$DIR/worst"; return; }
        sleep 0.05
    done
    say "the load hangs"
    exit 1
}

build
mkdir -p "$DIR"/{backing,mnt,run} "$(dirname "$RESULTS")"
export FOREBAY_RUNTIME_DIR=$DIR/run
echo "change,files,round,pause_us,worst_us" | tee "$RESULTS"
for files in "${FILES[@]}"; do
    for change in upgrade restart; do
        timeout 60 "$FOREBAY" mount "$DIR/backing" "$MNT" --tier "$DIR/tier=1G" \
            --restart-limit 10000 2>/dev/null
        echo text >"$MNT/probe"
        (cd "$MNT" && seq "$files" | sed 's/^/file/' | xargs touch)
        for index in $(seq "$files"); do echo "$index" >"$MNT/file$index"; done
        rm -f "$DIR/stop"
        load &
        LOAD=$!
        for round in $(seq "$ROUNDS"); do
            sleep 0.3
            worst >/dev/null
            pause=
            if [ "$change" = upgrade ]; then
                pause=$(timeout 120 "$FOREBAY" upgrade --json "$MNT" | sed 's/.*"pause_us":\([0-9]*\).*/\1/')
            else
                kill -9 "$(timeout 20 "$FOREBAY" debug pid "$MNT")"
                sleep 0.5
            fi
            echo "$change,$files,$round,$pause,$(worst)" | tee -a "$RESULTS"
        done
        touch "$DIR/stop"
        wait "$LOAD"
        LOAD=
        [ ! -e "$DIR/errors" ] || { say "the program saw errors"; exit 1; }
        timeout 120 "$FOREBAY" umount --quiet "$MNT"
        rm -rf "$DIR/tier" "$DIR/backing"
        mkdir "$DIR/backing"
    done
done
summary() {
    awk -F, -v change="$1" -v column="$2" '$1 == change && $column != "" { print $2, $column }' \
        "$RESULTS" | sort -n -k1,1 -k2,2 | awk '
        $1 != files { if (n) show(); files = $1; n = 0 }
        { values[n++] = $2 }
        END { if (n) show() }
        function show() {
            printf "  %d files: min %.1f, median %.1f, max %.1f ms\n", files,
                values[0] / 1000, values[int(n / 2)] / 1000, values[n - 1] / 1000 }'
}
{
    echo "pause of an upgrade:" && summary upgrade 4
    echo "longest wait of a program over an upgrade:" && summary upgrade 5
    echo "longest wait of a program over a restart:" && summary restart 5
} >&2
