#!/bin/bash
# A slow disk for tests and demonstrations: a loop device with an ext4 file system, throttled by
# the blkio controller (100 MB/s and 200 IOPS, reads and writes each).
#
#   bench/slowdisk.sh up   DIR [SIZE_MIB]   makes it and mounts it at DIR/mnt
#   bench/slowdisk.sh down DIR              removes it, also what a failed `up` left
#   bench/slowdisk.sh check                 exit 0 if this machine can do it, else says why not
#
# Environment: SLOW_BPS (104857600), SLOW_IOPS (200), SLOW_SPARSE (if set, the disk takes only the
# room that is written). Exit codes: 0 done, 1 failed, 2 usage,
# 5 this machine can not.
set -euo pipefail

BPS=${SLOW_BPS:-104857600}
IOPS=${SLOW_IOPS:-200}
BLKIO=/sys/fs/cgroup/blkio

say() { echo "slowdisk: $*" >&2; }

# The throttle of cgroup v1's root group also covers the kernel's own write-back; cgroup v2 has
# none in its root group.
can() {
    [ "$(id -u)" = 0 ] || { say "needs root"; return 5; }
    for tool in losetup mkfs.ext4 fallocate blockdev mountpoint; do
        command -v "$tool" >/dev/null || { say "$tool is missing: install util-linux and e2fsprogs"; return 5; }
    done
    [ -w "$BLKIO/blkio.throttle.read_bps_device" ] ||
        { say "no blkio throttle at $BLKIO (a kernel with cgroup v1 blkio is needed)"; return 5; }
    losetup -f >/dev/null 2>&1 || { say "no loop devices"; return 5; }
}

device_number() { cat "/sys/block/${1#/dev/}/dev"; }

throttle() { # device bps iops
    local number
    number=$(device_number "$1")
    for kind in read write; do
        echo "$number $2" >"$BLKIO/blkio.throttle.${kind}_bps_device"
        echo "$number $3" >"$BLKIO/blkio.throttle.${kind}_iops_device"
    done
}

down() {
    local dir=$1 device
    [ -d "$dir" ] || return 0
    if mountpoint -q "$dir/mnt" 2>/dev/null; then
        # Without the throttle first, or what is still in memory is written at its speed.
        for device in $(losetup -n -O NAME -j "$dir/disk.img" 2>/dev/null); do
            throttle "$device" 0 0 2>/dev/null || true
        done
        umount "$dir/mnt" || umount -l "$dir/mnt"
    fi
    for device in $(losetup -n -O NAME -j "$dir/disk.img" 2>/dev/null); do
        throttle "$device" 0 0 2>/dev/null || true
        losetup -d "$device" || say "$device is still busy"
    done
    rm -f "$dir/disk.img"
    rmdir "$dir/mnt" 2>/dev/null || true
}

up() {
    local dir=$1 mib=$2 device
    can || exit 5
    mkdir -p "$dir/mnt"
    [ ! -e "$dir/disk.img" ] || { say "$dir/disk.img exists: $0 down $dir first"; exit 1; }
    trap 'down "$dir"' EXIT
    if [ -n "${SLOW_SPARSE:-}" ]; then truncate -s "${mib}M" "$dir/disk.img"; else fallocate -l "${mib}M" "$dir/disk.img"; fi
    # Small ones would get blocks that are too short for a tier's attributes.
    mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$dir/disk.img"
    # Direct I/O: otherwise the page cache of the file below would hide the throttle.
    device=$(losetup -f --show --direct-io=on "$dir/disk.img") ||
        device=$(losetup -f --show "$dir/disk.img")
    mount -o noatime "$device" "$dir/mnt"
    # With the usual 128 KiB, 200 IOPS would allow 25 MB/s only.
    echo 1024 >"/sys/block/${device#/dev/}/queue/read_ahead_kb"
    throttle "$device" "$BPS" "$IOPS"
    trap - EXIT
    echo "$dir/mnt"
}

case "${1:-}" in
up) [ $# -ge 2 ] || { say "usage: $0 up DIR [SIZE_MIB]"; exit 2; }; up "$2" "${3:-2048}" ;;
down) [ $# = 2 ] || { say "usage: $0 down DIR"; exit 2; }; down "$2" ;;
check) can ;;
*) say "usage: $0 up DIR [SIZE_MIB] | down DIR | check"; exit 2 ;;
esac
