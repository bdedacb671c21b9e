#!/bin/bash
# A mount in a cluster beside one without, on one machine and over memory: what the cluster's metadata
# cost a node that works alone. The metadata servers are one Redis on this machine.
#
#   bench/cluster.sh [local|creates]...     both if not said
#
# local:   new files and files that are there, in blocks of 1 MiB and less
# creates: names, by four processes; the metadata servers with each way to write their log
#
# Environment: WORK_DIR (a new directory in /dev/shm), ROUNDS (5), FILES (2000), PROCS (4 for
# creates, 1 for local), FSYNC (the ways, "always everysec no"), SKIP_BUILD, FOREBAY, FOREBAY_BENCH.
# Ratios are those of "cluster" to "single", by round. Writes bench/results/cluster-*.{csv,json,svg}.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-cluster.XXXXXX)}
RESULTS=$ROOT/bench/results
read -ra WAYS <<<"${FSYNC:-always everysec no}"
[ $# -gt 0 ] || set -- local creates

clean() {
    trap - EXIT INT TERM
    clear_mount "$DIR/single/mnt"
    clear_mount "$DIR/cluster/mnt"
    [ ! -e "$DIR/servers/address" ] || timeout 60 "$FOREBAY" cluster stop "$DIR/servers" >/dev/null || true
    for _ in 1 2 3 4 5; do rm -rf --one-file-system "$DIR" 2>/dev/null && break; sleep 1; done
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

need fusermount3 fuse3
need redis-server redis-server
need redis-cli redis-tools
build
export FOREBAY_RUNTIME_DIR=$DIR/run
mkdir -p "$RESULTS" "$DIR"/{run,servers} "$DIR"/{single,cluster}/{backing,mnt}
(umask 077 && head -c 32 /dev/urandom >"$DIR/secret")
timeout 90 "$FOREBAY" cluster init "$DIR/servers" --bind 127.0.0.1 >/dev/null
timeout 60 "$FOREBAY" mount "$DIR/single/backing" "$DIR/single/mnt" --tier "$DIR/single/tier=4G"
timeout 60 "$FOREBAY" mount "$DIR/cluster/backing" "$DIR/cluster/mnt" --tier "$DIR/cluster/tier=4G" \
    --cluster "file:$DIR/servers/address" --cluster-listen 127.0.0.1:0 --cluster-secret "$DIR/secret"
subjects=("single=$DIR/single/mnt" "cluster=$DIR/cluster/mnt")

# How the metadata servers bring their log to the disk: log_by always|everysec|no
log_by() {
    local address login host
    address=$(sed 's|^redis://||; s|[/,].*||' "$DIR/servers/address")
    login=${address%@*} host=${address##*@}
    REDISCLI_AUTH=${login#*:} redis-cli -h "${host%:*}" -p "${host##*:}" config set appendfsync "$1" >/dev/null
}

for what in "$@"; do
    case $what in
    local)
        log_by always
        for test in newfile hit; do
            "$BENCH" "$test" "${subjects[@]}" --rounds "${ROUNDS:-5}" --procs "${PROCS:-1}" \
                --out "$RESULTS/cluster-$test"
        done
        ;;
    creates)
        for way in "${WAYS[@]}"; do
            say "appendfsync $way"
            log_by "$way"
            "$BENCH" meta "${subjects[@]}" --rounds "${ROUNDS:-5}" --procs "${PROCS:-4}" \
                --files "${FILES:-2000}" --entries 2000 --out "$RESULTS/cluster-creates-$way"
        done
        ;;
    *)
        say "unknown benchmark $what"
        exit 2
        ;;
    esac
done
"$FOREBAY" umount "$DIR/cluster/mnt"
"$FOREBAY" umount "$DIR/single/mnt"
