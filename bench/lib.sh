# Shared by the scripts of this directory; sourced, not run.

say() { echo "== $*" >&2; }

# Installs Debian packages for commands that are missing: need COMMAND PACKAGE...
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null && return
    [ "$(id -u)" = 0 ] || { say "$command is missing: install $*"; exit 5; }
    say "installing $*"
    { apt-get install -y --no-install-recommends "$@" ||
        { apt-get update && apt-get install -y --no-install-recommends "$@"; }; } >/dev/null
}

# Where PostgreSQL's programs lie, which no PATH has; nothing if it is not installed.
postgres_programs() {
    ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1
}

drop_caches() {
    sync
    echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
}

# Seconds that a command takes: seconds COMMAND...
seconds() {
    local start end
    start=$(date +%s%N)
    "$@" >/dev/null
    end=$(date +%s%N)
    awk "BEGIN { printf \"%.4f\", ($end - $start) / 1e9 }"
}

# Ends a mount whatever its state, and Forebay's daemon with it; only for cleaning up after a
# failure: what is dirty stays on the tiers.
clear_mount() {
    mountpoint -q "$1" 2>/dev/null || return 0
    local pid
    if pid=$(timeout 5 "$FOREBAY" debug pid "$1" 2>/dev/null); then
        timeout 40 "$FOREBAY" umount --no-drain --detach --quiet "$1" 2>/dev/null || kill -9 "$pid" 2>/dev/null || true
    fi
    mountpoint -q "$1" 2>/dev/null || return 0
    fusermount3 -uz "$1" 2>/dev/null || umount -l "$1" 2>/dev/null || true
}

# What a script makes: mount points, slow disks and directories, which go at its end, however that comes, in this order.
# Before them `stop` of the script is called, and `after` after the mounts have gone, if it has such.
MOUNTS=() DISKS=() DIRS=()
clean() {
    trap - EXIT INT TERM
    local path
    ! declare -F stop >/dev/null || stop || true
    for path in "${MOUNTS[@]}"; do clear_mount "$path"; done
    ! declare -F after >/dev/null || after || true
    for path in "${DISKS[@]}"; do "$ROOT/bench/slowdisk.sh" down "$path" || true; done
    # Daemons that end may still write.
    for _ in 1 2 3 4 5; do rm -rf --one-file-system "${DIRS[@]}" && break; sleep 1; done
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
FOREBAY=${FOREBAY:-$TARGET/release/forebay}
BENCH=${FOREBAY_BENCH:-$TARGET/release/forebay-bench}
# It is said to this script, and the program knows no such setting.
export -n FOREBAY_BENCH

build() {
    [ -n "${SKIP_BUILD:-}" ] || (cd "$ROOT" && cargo build --release -p forebay -p forebay-bench)
}
