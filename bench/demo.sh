#!/bin/bash
# The demonstration: the same work on a slow disk, through Forebay cold and warm, and on the tier
# itself; then proof that the slow disk holds everything as plain files.
#
# Environment: DEMO_DIR, where the slow disk's image goes (a new directory in /var/tmp);
# TIER_DIR (/dev/shm/forebay-demo.PID); DEMO_FILES, files in the tree (2000); DEMO_LARGE_MIB, size
# of each of two large files (256); SKIP_BUILD=1 with FOREBAY and FOREBAY_BENCH set.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

FILES=${DEMO_FILES:-2000}
LARGE=${DEMO_LARGE_MIB:-256}
DIR=${DEMO_DIR:-$(mktemp -d /var/tmp/forebay-demo.XXXXXX)}
TIER=${TIER_DIR:-/dev/shm/forebay-demo.$$}
NATIVE=$TIER.native
MNT=$DIR/forebay
RESULTS=$ROOT/bench/results
CSV=$RESULTS/demo.csv

MOUNTS=("$MNT") DISKS=("$DIR/disk") DIRS=("$TIER" "$NATIVE" "$DIR")

need fusermount3 fuse3
need mkfs.ext4 e2fsprogs
need losetup util-linux
build
mkdir -p "$MNT" "$NATIVE" "$RESULTS"
echo "test,subject,unit,round,value" >"$CSV"

throttle=()
if "$ROOT/bench/slowdisk.sh" check; then
    say "making a slow disk: 100 MB/s, 200 IOPS"
    SLOW=$("$ROOT/bench/slowdisk.sh" up "$DIR/disk" $((LARGE * 6 + 1024)))
else
    say "this machine can't throttle a device: Forebay throttles its backing store itself"
    SLOW=$DIR/slow
    throttle=(--throttle 100M/200)
    mkdir -p "$SLOW"
fi

say "putting a tree of $FILES files and two files of $LARGE MiB on it"
source_dir=
for dir in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do [ ! -d "$dir" ] || source_dir=$dir; done
[ -n "$source_dir" ] || source_dir=$(rustc --print sysroot)/
mkdir "$SLOW/tree"
(cd "$source_dir" && find . -type f -size -256k | LC_ALL=C sort | awk -v n="$FILES" "NR <= n" | tar cf - -T -) |
    tar xf - -C "$SLOW/tree"
for n in 1 2; do dd if=/dev/urandom of="$SLOW/large$n" bs=1M count="$LARGE" status=none; done
cp -a "$SLOW/tree" "$SLOW/large1" "$NATIVE/"
tar cf "$NATIVE/tree.tar" -C "$SLOW" tree
drop_caches

add() { echo "$1,$2,s,0,$3" >>"$CSV"; }

# The work that programs do: work SUBJECT DIRECTORY
work() {
    drop_caches; add "grep -r" "$1" "$(seconds grep -rc unsafe "$2/tree")"
    drop_caches; add "1000 random reads" "$1" "$("$BENCH" probe "$2/large1" --reads 1000)"
}

# Without the sync the slow disk's figure would be that of the page cache.
unpack() {
    tar xf "$NATIVE/tree.tar" -C "$1"
    sync -f "$1"
}

# New files go to a directory of their own for each subject: write SUBJECT DIRECTORY
write() {
    mkdir -p "$2/out.$1"
    add "unpack $FILES files and sync" "$1" "$(seconds unpack "$2/out.$1")"
    add "checkpoint $LARGE MiB and fsync" "$1" \
        "$(seconds dd if="$NATIVE/large1" of="$2/out.$1/checkpoint" bs=1M conv=fsync status=none)"
}

if [ ${#throttle[@]} = 0 ]; then
    say "on the slow disk"
    work slow "$SLOW"
    write slow "$SLOW"
fi

say "mounting Forebay over it"
"$FOREBAY" mount "$SLOW" "$MNT" --tier "$TIER=$((LARGE * 6 + 1024))M" "${throttle[@]}"
say "through Forebay, cold"
work cold "$MNT"
write forebay "$MNT"
say "bringing the rest of the large file in"
"$FOREBAY" warm --quiet "$MNT/tree" "$MNT/large1"
say "through Forebay, warm"
work warm "$MNT"
"$FOREBAY" status "$MNT"
say "on the tier itself"
work native "$NATIVE"
write native "$NATIVE"

say "unmounting, which writes everything to the slow disk"
add "umount with drain" forebay "$(seconds "$FOREBAY" umount "$MNT")"

say "comparing the slow disk with what was written"
diff -r "$NATIVE/tree" "$SLOW/tree"
diff -r "$NATIVE/tree" "$SLOW/out.forebay/tree"
cmp "$NATIVE/large1" "$SLOW/out.forebay/checkpoint"
cmp "$NATIVE/large1" "$SLOW/large1"
extra=$(cd "$SLOW" && find . -maxdepth 1 -mindepth 1 ! -name lost+found ! -name tree ! -name 'large?' ! -name 'out.*' ! -name .forebay
    # The mark of the store stays.
    find .forebay -mindepth 1 ! -name store)
[ -z "$extra" ] || { say "left in the backing store: $extra"; exit 1; }
say "the slow disk holds $(find "$SLOW" -type f ! -path "$SLOW/.forebay/*" | wc -l) plain files, all equal to what was written"

awk -F, 'NR > 1 { if (!($1 in seen)) { seen[$1]; order[++n] = $1 } value[$1, $2] = $5 }
    function show(test, subject) { return (test, subject) in value ? sprintf("%10.3f s", value[test, subject]) : "           -" }
    BEGIN { printf "%-28s %12s %12s %12s %12s   %s\n", "", "slow disk", "cold", "Forebay", "tier itself", "Forebay against the slow disk" }
    END { for (i = 1; i <= n; i++) {
        test = order[i]
        subject = (test, "warm") in value ? "warm" : "forebay"
        times = value[test, subject] > 0 && (test, "slow") in value ? sprintf("%.1f times as fast", value[test, "slow"] / value[test, subject]) : ""
        printf "%-28s %s %s %s %s   %s\n", test, show(test, "slow"), show(test, "cold"), show(test, subject), show(test, "native"), times
    } }' "$CSV"
# Writes the CSV again, with its names quoted: the table comes first.
"$BENCH" plot "$CSV" --title "The same work: slow disk, Forebay, the tier itself" --out "$RESULTS/demo" >/dev/null
say "results: $RESULTS/demo.csv, $RESULTS/demo.svg"
