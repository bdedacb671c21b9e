#!/bin/bash
# What the transport costs: the same directory shown by fusewire (reading /dev/fuse, and by io_uring
# where the kernel has it) and by fuser, side by side, alternating.
#
#   bench/transport.sh [ROUNDS] [OPERATIONS]     5 rounds of 4000 operations of each kind and client
#
# With 1, 2 and 4 clients: attributes of an open file, create+close, open+read+close of a file that
# is passed through, attributes by name, unlink. Writes bench/results/transport.csv (server, round,
# operation, clients, operations a second, p50 and p99 in us, server's CPU in us an operation) and
# prints medians, and the rate as a multiple of fuser's in the same round.
#
# Environment: WORK_DIR (a new directory in /dev/shm), CLIENTS ("1 2 4"), SERVERS ("classic uring
# fuser"), SKIP_BUILD. As root, FUSE over io_uring is switched on while that server mounts, and then
# as it was.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

ROUNDS=${1:-5}
OPERATIONS=${2:-4000}
read -ra CLIENTS <<<"${CLIENTS:-1 2 4}"
read -ra SERVERS <<<"${SERVERS:-classic uring fuser}"
DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-transport.XXXXXX)}
RESULTS=$ROOT/bench/results/transport.csv
PROGRAM=$TARGET/release/examples/transport
SWITCH=/sys/module/fuse/parameters/enable_uring
declare -A PIDS=()

DIRS=("$DIR")
stop() {
    local server
    for server in "${!PIDS[@]}"; do
        fusermount3 -uz "$DIR/$server/mnt" 2>/dev/null || umount -l "$DIR/$server/mnt" 2>/dev/null || true
        kill "${PIDS[$server]}" 2>/dev/null || true
    done
}

start() { # server
    local was=
    if [ "$1" = uring ]; then
        was=$(cat $SWITCH 2>/dev/null || true)
        [ "$was" != N ] || echo Y 2>/dev/null >$SWITCH || true
    fi
    mkdir -p "$DIR/$1/files" "$DIR/$1/mnt"
    "$PROGRAM" serve "$1" "$DIR/$1/files" "$DIR/$1/mnt" >"$DIR/$1/out" 2>"$DIR/$1/err" &
    PIDS[$1]=$!
    for _ in $(seq 100); do
        grep -q ready "$DIR/$1/out" && break
        kill -0 "${PIDS[$1]}" 2>/dev/null || break
        sleep 0.1
    done
    [ "$was" != N ] || echo N 2>/dev/null >$SWITCH || true
    grep -q ready "$DIR/$1/out" && return
    say "without $1: $(tail -1 "$DIR/$1/err")"
    kill "${PIDS[$1]}" 2>/dev/null || true
    unset "PIDS[$1]"
    return 1
}

need fusermount3 fuse3
# Each file that the kernel knows is a descriptor of the server.
ulimit -n 1000000 2>/dev/null || ulimit -n "$(ulimit -Hn)"
[ -n "${SKIP_BUILD:-}" ] || (cd "$ROOT" && cargo build --release -p fusewire --example transport)
mkdir -p "$(dirname "$RESULTS")"
served=()
for server in "${SERVERS[@]}"; do start "$server" && served+=("$server"); done
[ ${#served[@]} -gt 0 ] || { say "nothing can be served"; exit 5; }

echo "server,round,operation,clients,per_second,p50_us,p99_us,cpu_us" >"$RESULTS"
for round in $(seq "$ROUNDS"); do
    order=("${served[@]}")
    if [ $((round % 2)) = 0 ]; then
        order=()
        for server in "${served[@]}"; do order=("$server" "${order[@]}"); done
    fi
    for clients in "${CLIENTS[@]}"; do
        for server in "${order[@]}"; do
            timeout 300 "$PROGRAM" measure "$DIR/$server/mnt" "${PIDS[$server]}" "$clients" "$OPERATIONS" |
                sed "s/^/$server,$round,/" >>"$RESULTS"
        done
    done
    say "round $round of $ROUNDS"
done

# Medians over the rounds, and min/median/max of the ratios to fuser in the same round.
awk -F, 'NR > 1 {
    key = $3 "," $4 "," $1
    if (!(key in seen)) { seen[key] = 1; order[++n] = key }
    for (i = 5; i <= 8; i++) values[key, i] = values[key, i] " " $i
    rate[$1, $2, $3, $4] = $5
    if (!($2 in rounds)) { rounds[$2] = 1; r[++m] = $2 }
}
function sorted(text, out,    count, i, j, t) {
    count = split(text, out, " ")
    for (i = 2; i <= count; i++) for (j = i; j > 1 && out[j - 1] + 0 > out[j] + 0; j--) { t = out[j]; out[j] = out[j - 1]; out[j - 1] = t }
    return count
}
function median(text,    list, count) { count = sorted(text, list); return list[int((count + 1) / 2)] }
END {
    printf "%-16s %7s %-8s %12s %9s %9s %9s  %s\n", "operation", "clients", "server", "per second", "p50 us", "p99 us", "cpu us", "rate against fuser"
    fflush()
    for (k = 1; k <= n; k++) {
        split(order[k], part, ",")
        ratios = ""
        for (i = 1; i <= m; i++) {
            base = rate["fuser", r[i], part[1], part[2]]
            if (base > 0 && part[3] != "fuser") ratios = ratios " " rate[part[3], r[i], part[1], part[2]] / base
        }
        text = ""
        if (ratios != "") { count = sorted(ratios, list); text = sprintf("%.2f/%.2f/%.2f", list[1], list[int((count + 1) / 2)], list[count]) }
        printf "%-16s %7s %-8s %12.0f %9.1f %9.1f %9.2f  %s\n", part[1], part[2], part[3], median(values[order[k], 5]), median(values[order[k], 6]), median(values[order[k], 7]), median(values[order[k], 8]), text | "sort -s -k 1,1 -k 2,2n"
    }
}' "$RESULTS"
