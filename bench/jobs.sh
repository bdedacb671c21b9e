#!/bin/bash
# What `forebay run` gains on one node, and what `forebay patterns` costs.
#
#   bench/jobs.sh order [DIR]      a workload of 48 jobs that share inputs, tier a third of the data, the backing
#                                  store slowed down: in the order of the list without hints, with hints in that
#                                  order, and as `forebay run` orders them; seconds and bytes of the backing store
#   bench/jobs.sh patterns [DIR]   reads of 64 KiB from a resident file, recorded and not
#
# Environment: FOREBAY, the binary; ROUNDS (3). DIR: a directory for all of it (a new one in /dev/shm).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FOREBAY=${FOREBAY:-$ROOT/target/release/forebay}
ROUNDS=${ROUNDS:-3}
what=${1:-}
DIR=${2:-$(mktemp -d /dev/shm/forebay-jobs.XXXXXX)}
export FOREBAY_RUNTIME_DIR=$DIR/run
mkdir -p "$DIR"/{run,backing,mnt}

down() { "$FOREBAY" umount -q "$DIR/mnt" 2>/dev/null || fusermount3 -uz "$DIR/mnt" 2>/dev/null || true; }
cleanup() { down; rm -rf "$DIR"; }
trap cleanup EXIT

up() { # options
    down
    rm -rf "$DIR/tier"
    "$FOREBAY" mount "$DIR/backing" "$DIR/mnt" --tier "$DIR/tier=$1" "${@:2}" >/dev/null 2>&1
}

from_backing() { # MiB
    "$FOREBAY" status --json "$DIR/mnt" |
        python3 -c 'import json,sys; b = json.load(sys.stdin)["bytes"]; print((b["backing"] + b["filled"]) >> 20)'
}

jobs() { # writes the list: job N reads its own file and one of 12 that are shared
    # Direct reads: what the kernel has in its cache says nothing of the tier.
    local at list=$DIR/jobs.json sep=
    echo '[' > "$list"
    for at in $(seq 0 47); do
        local own=own$at shared=shared$((at % 12))
        printf '%s{"name": "j%s", "command": "for f in %s %s; do dd if=$f of=/dev/null bs=1M iflag=direct 2>/dev/null; done; sleep 0.1", "inputs": ["%s", "%s"], "dir": "%s"}\n' \
            "$sep" "$at" "$shared" "$own" "$shared" "$own" "$DIR/mnt" >> "$list"
        sep=,
    done
    echo ']' >> "$list"
}

order() {
    local at way policy
    for at in $(seq 0 47); do head -c 2M /dev/urandom > "$DIR/backing/own$at"; done
    for at in $(seq 0 11); do head -c 8M /dev/urandom > "$DIR/backing/shared$at"; done
    jobs
    echo "way,policy,round,seconds,mib"
    for policy in s3fifo min; do
        for way in list run-no-hints run; do
            for round in $(seq "$ROUNDS"); do
                up 64M --policy "$policy" --throttle 100M
                local began ended
                began=$(date +%s.%N)
                case $way in
                list) # two at a time, as they stand there
                    python3 -c 'import json,sys; [print(j["command"]) for j in json.load(open(sys.argv[1]))]' "$DIR/jobs.json" |
                        (cd "$DIR/mnt" && xargs -d '\n' -P 2 -n 1 sh -c) ;;
                run-no-hints) "$FOREBAY" run --batch "$DIR/jobs.json" --use-cores 2 --quiet --no-hints ;;
                run) "$FOREBAY" run --batch "$DIR/jobs.json" --use-cores 2 --quiet ;;
                esac
                ended=$(date +%s.%N)
                echo "$way,$policy,$round,$(echo "$ended $began" | awk '{printf "%.2f", $1 - $2}'),$(from_backing)"
            done
        done
    done
}

patterns() {
    head -c 256M /dev/zero > "$DIR/backing/f"
    up 1G --passthrough off
    "$FOREBAY" warm -q "$DIR/mnt/f"
    echo "recorded,round,seconds"
    for round in $(seq "$ROUNDS"); do
        for recorded in no yes; do
            [ $recorded = no ] || "$FOREBAY" patterns "$DIR/mnt" --start
            local began ended
            began=$(date +%s.%N)
            for _ in 1 2 3 4; do dd if="$DIR/mnt/f" of=/dev/null bs=64k iflag=direct 2>/dev/null; done
            ended=$(date +%s.%N)
            echo "$recorded,$round,$(echo "$ended $began" | awk '{printf "%.3f", $1 - $2}')"
            [ $recorded = no ] || "$FOREBAY" patterns "$DIR/mnt" --stop >/dev/null
        done
    done
}

case $what in
order | patterns) "$what" ;;
*) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
