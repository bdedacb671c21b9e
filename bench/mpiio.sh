#!/bin/bash
# The programs of the paper on cooperative caching, under each MPI that is installed, by MPI-IO as it is and through
# our library (docs/guide/mpiio.md), on a slow store and on the local disk.
#
#   bench/mpiio.sh [window|btio-w|btio-a|btio-b|flash-8|flash-16]...      window, btio-a and flash-8 if not said
#
#   window    the sliding window: processes change pages that others have changed
#   btio-a    BTIO's input and output, class A (800 MiB in all); btio-b class B (3.2 GiB), btio-w class W (42 MiB)
#   flash-8   a checkpoint of FLASH I/O by HDF5, blocks of 8 x 8 x 8 cells; flash-16 of 16 x 16 x 16
#
# Subjects, in turns in each round, on the same store:
#   native    MPI-IO as it is
#   atomic    the same in atomic mode (MPICH; Open MPI 4.1 has none)
#   locks     the same with a byte-range lock around each call, as in the paper's comparison (window only)
#   paper     our library with the paper's scheme, messages of MPI
#   forebay   our library, messages of MPI
#   mount     MPI-IO as it is, on a Forebay mount over the store
#   daemon    our library on that mount, pages in the memory of its daemon
#
# Stores: `throttled`, a loop device of bench/slowdisk.sh (100 MB/s, 200 operations a second) where each write is on the
# disk before it is done, as at a server (mount option `sync`), and the kernel keeps what was read; `remote`, a file
# system in memory that stands for a server far away, with one such disk, of whose files the kernel keeps nothing
# (fusewire's example `ramfs`, 1 GiB at most); `local`, the directory WORK_DIR. The mount's tier is in WORK_DIR. The window's file is dropped from the kernel's cache first. MB/s are bytes of all processes, read and written, by the
# seconds from open to the end of close; each program then verifies every byte of its file. A program that fails, or
# finds a wrong byte, fails the script when the rest is measured.
#
# Environment: ROUNDS (3), STORES ("throttled remote local"), MPIS ("mpich openmpi"), SUBJECTS (all of them), RANKS ("4 9" for
# btio; the others have 4, or RANKS_OTHER), WINDOW_MIB (32), WINDOW_PAGE_KIB (256), LIMIT_S (600, for one program),
# WORK_DIR (a new directory in /var/tmp), SLOW_MIB (4096), SKIP_BUILD, and SLOW_BPS and SLOW_IOPS of bench/slowdisk.sh;
# FOREBAY_MPIIO_PAGE_SIZE and FOREBAY_MPIIO_POOL_SIZE reach the library.
# Results: bench/results/mpiio-STORE.csv, .json and .svg. `throttled` needs root; `remote`, `mount` and `daemon` need /dev/fuse.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

ROUNDS=${ROUNDS:-3}
STORES=${STORES:-throttled remote local}
MPIS=${MPIS:-mpich openmpi}
SUBJECTS=${SUBJECTS:-native atomic locks paper forebay mount daemon}
RANKS=${RANKS:-4 9}
RANKS_OTHER=${RANKS_OTHER:-4}
WINDOW_MIB=${WINDOW_MIB:-32}
WINDOW_PAGE_KIB=${WINDOW_PAGE_KIB:-256}
LIMIT_S=${LIMIT_S:-600}
DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-mpiio.XXXXXX)}
RESULTS=$ROOT/bench/results
MOUNTS=("$DIR/mnt" "$DIR/remote") DISKS=("$DIR/slow") DIRS=("$DIR")
PROGRAMS=$DIR/programs
export FOREBAY_RUNTIME_DIR=$DIR/run
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
[ $# -gt 0 ] || set -- window btio-a flash-8
for name in "$@"; do
    case $name in window | btio-[wab] | flash-8 | flash-16) ;; *) sed -n '2,38s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
done

failed=0
JOB=
# A job that is running still has files open on what goes away. `timeout` hands the signal on.
stop() {
    [ -z "$JOB" ] || { kill "$JOB" 2>/dev/null && wait "$JOB" 2>/dev/null; } || true
}

# --- What is run

# Compiles the workloads for an MPI.
compile() { # mpi
    local name more
    for name in window btio flash; do
        more=()
        [ "$name" != flash ] || more=(-I"/usr/include/hdf5/$1" -l"hdf5_$1")
        "mpicc.$1" -O2 -Wall -Wextra -Werror -o "$PROGRAMS/$name-$1" "$ROOT/bench/mpiio/$name.c" "${more[@]}"
    done
}

prepare() {
    local mpi
    need mpirun.mpich mpich libmpich-dev
    need mpirun.openmpi openmpi-bin libopenmpi-dev
    need h5pcc.mpich libhdf5-mpich-dev
    need h5pcc.openmpi libhdf5-openmpi-dev
    need fusermount3 fuse3
    build
    [ -n "${SKIP_BUILD:-}" ] || (cd "$ROOT" && make -s mpiio && cargo build --release -p fusewire --example ramfs)
    mkdir -p "$PROGRAMS" "$FOREBAY_RUNTIME_DIR" "$RESULTS"
    for mpi in $MPIS; do
        compile "$mpi"
        [ -e "$TARGET/release/libforebay_mpiio_$mpi.so" ] || { say "make mpiio first"; exit 5; }
    done
    # MPICH polls without giving the processor away.
    cc -shared -fPIC -O2 -o "$PROGRAMS/yield.so" "$ROOT/crates/mpiio/tests/programs/yield.c" -ldl
}

# A program's words, and its name in tables: the file and the mode go between.
words() { # workload
    case $1 in
    window) echo window "$WINDOW_PAGE_KIB" "$WINDOW_MIB" ;;
    btio-w) echo btio 24 ;;
    btio-a) echo btio 64 ;;
    btio-b) echo btio 102 ;;
    flash-*) echo flash "${1#flash-}" ;;
    esac
}

# Runs a program on a directory. VALUE is MB/s.
run() { # mpi subject workload ranks
    local mpi=$1 subject=$2 ranks=$4 mode=plain preload= more=() place=$STORE code=0 program sizes
    read -r program sizes <<<"$(words "$3")"
    [ "$mpi" != mpich ] || preload=$PROGRAMS/yield.so
    case $subject in
    atomic | locks) mode=$subject ;;
    paper) more=(FOREBAY_MPIIO_SCHEME=paper) ;;
    mount | daemon) place=$DIR/mnt ;;
    esac
    case $subject in paper | forebay | daemon) preload+=" $TARGET/release/libforebay_mpiio_$mpi.so" ;; esac
    rm -f "$place/file"
    local options=(-n "$ranks")
    [ "$mpi" != openmpi ] || options+=(--oversubscribe)
    # shellcheck disable=SC2086
    timeout -k 10 "$LIMIT_S" "mpirun.$mpi" "${options[@]}" env LD_PRELOAD="$preload" "${more[@]}" \
        FOREBAY_MPIIO_STATS=1 "$PROGRAMS/$program-$mpi" "$place/file" "$mode" $sizes \
        >"$DIR/printed" 2>"$DIR/said" </dev/null &
    JOB=$!
    wait "$JOB" || code=$?
    JOB=
    if [ "$code" != 0 ]; then
        say "failed: $mpi $subject $3 with $ranks: $(tail -3 "$DIR/said")"
        return 1
    fi
    through "$subject" || { say "not as it should be: $mpi $subject $3 with $ranks: $(cat "$DIR/said")"; return 1; }
    rm -f "$place/file"
    VALUE=$(awk 'NF == 2 && $1 > 0 { printf "%.1f", $2 / $1 / 1e6 }' "$DIR/printed")
    [ -n "$VALUE" ] || { say "no result: $mpi $subject $3 with $ranks"; return 1; }
}

# Whether the library said what the subject stands for.
through() { # subject
    case $1 in
    daemon) grep -q "MPI-IO pages lie in the memory of this node's daemon" "$DIR/said" ;;
    paper | forebay) grep -q "MPI-IO pages go by messages" "$DIR/said" ;;
    *) ! grep -q "forebay: MPI-IO" "$DIR/said" ;;
    esac && case $1 in
    # Every workload writes.
    paper | forebay | daemon) grep -q "^forebay: MPI-IO: .* [1-9][0-9]* writes of [1-9]" "$DIR/said" ;;
    esac
}

# What a subject can't do.
left_out() { # mpi subject workload
    case $1-$2-$3 in
    openmpi-atomic-*) ;;
    *-locks-window) return 1 ;;
    *-locks-*) ;;
    *) return 1 ;;
    esac
}

# --- Stores

bring_up() { # store
    case $1 in
    throttled)
        STORE=$("$ROOT/bench/slowdisk.sh" up "$DIR/slow" "${SLOW_MIB:-4096}")
        mount -o remount,sync "$STORE"
        ;;
    remote)
        STORE=$DIR/remote
        mkdir -p "$STORE"
        "$TARGET/release/examples/ramfs" "$STORE" $((1000000 / ${SLOW_IOPS:-200})) "${SLOW_BPS:-104857600}" >/dev/null &
        for _ in $(seq 100); do mountpoint -q "$STORE" && break; sleep 0.1; done
        mountpoint -q "$STORE" || { say "no store $1"; exit 5; }
        ;;
    local) STORE=$DIR/local && mkdir -p "$STORE" ;;
    *) say "no store $1"; exit 2 ;;
    esac
    case " $SUBJECTS " in *" mount "* | *" daemon "*)
        mkdir -p "$STORE/below" "$DIR/mnt"
        "$FOREBAY" mount "$STORE/below" "$DIR/mnt" --tier "$DIR/tier=8G" --client-memory 4G >/dev/null
        ;;
    esac
}

take_down() { # store
    if mountpoint -q "$DIR/mnt"; then
        "$FOREBAY" umount --quiet "$DIR/mnt"
    fi
    rm -rf "$DIR/tier"
    case $1 in
    throttled) "$ROOT/bench/slowdisk.sh" down "$DIR/slow" ;;
    remote) fusermount3 -u "$STORE" ;;
    esac
}

# All of a round: from the first subject to the last, or back.
round_of() { # workload...
    local workload mpi ranks subject order=$SUBJECTS all
    [ $((round % 2)) = 0 ] || order=$(tac -s ' ' <<<"$SUBJECTS " | tr '\n' ' ')
    for workload in "$@"; do
        case $workload in btio-*) all=$RANKS ;; *) all=$RANKS_OTHER ;; esac
        for ranks in $all; do
            for mpi in $MPIS; do
                for subject in $order; do
                    ! left_out "$mpi" "$subject" "$workload" || continue
                    if run "$mpi" "$subject" "$workload" "$ranks"; then
                        echo "$workload x$ranks $mpi,$subject,MB/s,$round,$VALUE" >>"$CSV.samples"
                    else
                        failed=1
                    fi
                done
            done
        done
    done
}

prepare
for store in $STORES; do
    CSV=$RESULTS/mpiio-$store.csv
    : >"$CSV.samples"
    say "store $store"
    bring_up "$store"
    for round in $(seq 0 $((ROUNDS - 1))); do
        round_of "$@"
        say "round $((round + 1)) of $ROUNDS"
    done
    take_down "$store"
    # Subjects in one order, whichever came first in a round.
    { echo "test,subject,unit,round,value"
        for subject in $SUBJECTS; do grep ",$subject," "$CSV.samples" || true; done; } >"$CSV"
    rm "$CSV.samples"
    "$BENCH" plot "$CSV" --title "MPI-IO on the $store store" --out "$RESULTS/mpiio-$store"
done
exit "$failed"
