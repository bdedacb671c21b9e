#!/bin/bash
# HyCache's section 7 on real mounts, with fio in place of IOzone: the bare slow disk, the fast device itself and Forebay
# over both, in turns in one run.
#
#   bench/hycache.sh [table2|blocks|procs|ram|copy|sort|tpch|swap]...     all if not said
#
#   table2  random writes of 4 KiB a second, O_DIRECT, by 1 and by 12 processes                          (about 4 minutes)
#   blocks  figures 12 and 13: one process, blocks of 4 KiB to 16 MiB, beside a plain FUSE file system (about 5 minutes)
#   procs   figures 9 and 14: blocks of 4 and 64 KiB by 1 to 12 processes                                (about 6 minutes)
#   ram     figures 8 and 15: all over a RAM disk, beside a plain FUSE file system                       (about 7 minutes)
#   copy    table 3: a file of 1 GB copied to the RAM disk, as it was from HDFS                          (about 3 minutes)
#   sort    table 3: GNU sort of lineitem with its temporary directory there, as Hadoop's sort had       (about 6 minutes)
#   tpch    figure 17: MariaDB (MyISAM) loads lineitem of TPC-H and runs query 1                         (about 9 minutes)
#   swap    HyCache+ figures 5, 6 and 8: 1, 2 and 4 mounts, each with a disk of its own of 20 MB/s and a cache of
#           256 MiB in memory: writing to the disks, within the caches, and with the caches full          (about 4 minutes)
#
# What is what:
#   disk       ext4 on a device throttled to 100 MB/s and 200 operations a second (bench/slowdisk.sh)
#   ssd        ext4 on a device throttled to SSD_MB a second (676, as the paper's SSD), operations as many as it does:
#              no SSD is needed, as both devices lie in memory
#   ram        the RAM disk (tmpfs)
#   forebay    a mount with its backing store on a disk of its own and its tier on an SSD of its own; its settings are
#              the usual ones
#   forebay-ram  the same with its tier on the RAM disk
#   fuse-disk, fuse-ram  bindfs of Debian over disk and ram, which only hands on
# Reads are of files that are there (resident in Forebay) and cold: the page cache is dropped before each, but for ram.
# Writes make new files, or write files that are there again in place (IOzone's rewrite), and end with fsync. Needs root.
#
# Environment: ROUNDS (5; 3 for sort and tpch), SCALE of TPC-H (1: 6,000,000 rows, 0.7 GB of text), SORT_MB of memory for
# sort and Forebay together with their page cache (512), SSD_MB, WORK_DIR (a new directory in /dev/shm), SKIP_BUILD, FOREBAY and FOREBAY_BENCH as in the
# other scripts. Results: bench/results/hycache-*.csv, .json and .svg.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

FEWER=${ROUNDS:-3}
ROUNDS=${ROUNDS:-5}
SCALE=${SCALE:-1}
SORT_MB=${SORT_MB:-512}
SSD_BPS=$((${SSD_MB:-676} * 1000000))
DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-hycache.XXXXXX)}
RESULTS=${RESULTS:-$ROOT/bench/results}
SLOWDISK=$ROOT/bench/slowdisk.sh
[ $# -gt 0 ] || set -- table2 blocks procs ram copy sort tpch swap
declare -A PLACE

MOUNTS=("$DIR/forebay" "$DIR/forebay-ram" "$DIR/fuse-disk" "$DIR/fuse-ram")
DISKS=("$DIR/disk" "$DIR/ssd" "$DIR/below" "$DIR/tier")
DIRS=("$DIR")
GROUP=/sys/fs/cgroup/memory/forebay-hycache.$$
SQL_PID=
stop() {
    stop_sql
    leave_group
}

need fio fio
need bindfs bindfs
need fusermount3 fuse3
build
"$SLOWDISK" check
mkdir -p "$RESULTS"

# --- What is measured

slow() { SLOW_SPARSE=1 "$SLOWDISK" up "$1" 4096; }
fast() { SLOW_SPARSE=1 SLOW_BPS=$SSD_BPS SLOW_IOPS=0 "$SLOWDISK" up "$1" 4096; }

set_up() {
    local disk ssd below tier
    disk=$(slow "$DIR/disk") ssd=$(fast "$DIR/ssd") below=$(slow "$DIR/below") tier=$(fast "$DIR/tier")
    mkdir -p "$DIR"/{ram,forebay,forebay-ram,fuse-disk,fuse-ram} "$below"/{a,b}
    timeout 60 "$FOREBAY" mount "$below/a" "$DIR/forebay" --tier "$tier/t=3G"
    timeout 60 "$FOREBAY" mount "$below/b" "$DIR/forebay-ram" --tier "$DIR/ram-tier=3G"
    bindfs "$disk" "$DIR/fuse-disk"
    bindfs "$DIR/ram" "$DIR/fuse-ram"
    PLACE=([disk]=$disk [ssd]=$ssd [ram]=$DIR/ram)
    local mount
    for mount in forebay forebay-ram fuse-disk fuse-ram; do PLACE[$mount]=$DIR/$mount; done
}

# --- Measuring

begin() { echo "test,subject,unit,round,value" >"$RESULTS/hycache-$1.csv"; } # name
add() { echo "\"$2\",\"$3\",$4,$round,$5" >>"$RESULTS/hycache-$1.csv"; } # name test subject unit value
finish() { "$BENCH" plot "$RESULTS/hycache-$1.csv" --title "$2" --out "$RESULTS/hycache-$1"; } # name title

# Runs fio and prints what it moved: MB a second, or operations a second if IOPS is set. fio_rate read|write OPTION...
fio_rate() {
    local field=7 line
    [ "$1" = read ] || field=48
    [ -z "${IOPS:-}" ] || field=$((field + 1))
    shift
    line=$(timeout 300 fio --minimal --terse-version=3 --group_reporting --name=hycache --ioengine=psync \
        --filename_format='f.$jobnum' --fallocate=none --randrepeat=1 "$@" | grep '^3;')
    if [ -n "${IOPS:-}" ]; then
        cut -d ';' -f "$field" <<<"$line"
    else
        awk -F ';' -v field="$field" '{ printf "%.3f\n", $field * 1024 / 1e6 }' <<<"$line"
    fi
}

# A directory of a subject for one kind of files: at SUBJECT NAME
at() { mkdir -p "${PLACE[$1]}/$2" && echo "${PLACE[$1]}/$2"; }

# Makes the files that are read, once: lay_out SUBJECT NAME PROCESSES BYTES_EACH
lay_out() {
    local place
    place=$(at "$1" "$2")
    [ -e "$place/f.0" ] || fio_rate read --directory="$place" --rw=read --create_only=1 --numjobs="$3" --size="$4" \
        --create_fsync=1 >/dev/null || true
    sync -f "$place"
}

# Nothing of a subject in the page cache, but what lies in memory anyway.
cold() {
    case $1 in *ram*) return ;; esac
    sync -f "${PLACE[$1]}"
    echo 1 >/proc/sys/vm/drop_caches
}

# read_rate SUBJECT NAME PROCESSES BLOCK BYTES_EACH
read_rate() {
    cold "$1"
    fio_rate read --directory="$(at "$1" "$2")" --rw=read --numjobs="$3" --bs="$4" --size="$5" --invalidate=0
}

# New files, written to the device: write_rate SUBJECT PROCESSES BLOCK BYTES_EACH
write_rate() {
    local place rate
    place=$(at "$1" new)
    rate=$(fio_rate write --directory="$place" --rw=write --numjobs="$2" --bs="$3" --size="$4" --end_fsync=1)
    rm -rf "$place"
    echo "$rate"
}

# The files that are read, written again in place: rewrite_rate SUBJECT NAME BLOCK BYTES_EACH
rewrite_rate() {
    fio_rate write --directory="$(at "$1" "$2")" --rw=write --numjobs=1 --bs="$3" --size="$4" --end_fsync=1
}

size_name() { case $1 in *k) echo "${1%k} KiB" ;; *m) echo "${1%m} MiB" ;; esac; }

# --- Programs

# Rows of TPC-H's lineitem as dbgen separates them, by its rules for what query 1 looks at: lineitem FILE
lineitem() {
    say "making $SCALE of lineitem"
    awk -v scale="$SCALE" 'BEGIN {
        srand(1)
        split("31 28 31 30 31 30 31 31 30 31 30 31", in_month, " ")
        for (year = 1992; year <= 1998; year++)
            for (month = 1; month <= 12; month++)
                for (day = 1; day <= in_month[month] + (month == 2 && year % 4 == 0); day++)
                    date[days++] = sprintf("%d-%02d-%02d", year, month, day)
        for (today = 0; date[today] != "1995-06-17"; today++);
        split("DELIVER IN PERSON|COLLECT COD|NONE|TAKE BACK RETURN", instruct, "|")
        split("REG AIR|AIR|RAIL|SHIP|TRUCK|MAIL|FOB", mode, "|")
        words = "furiously ironic deposits sleep carefully above the slyly regular accounts final packages "
        for (i = 0; i < 1000; i++) comment[i] = substr(words words, 1 + int(rand() * 90), 10 + int(rand() * 34))
        rows = int(6000000 * scale)
        for (i = 0; i < rows; i++) {
            if (left-- <= 0) { order++; left = int(rand() * 7); line = 0; ordered = int(rand() * (days - 151)) }
            line++
            part = 1 + int(rand() * 200000 * scale)
            quantity = 1 + int(rand() * 50)
            shipped = ordered + 1 + int(rand() * 121)
            received = shipped + 1 + int(rand() * 30)
            printf "%d|%d|%d|%d|%d|%.2f|%.2f|%.2f|%s|%s|%s|%s|%s|%s|%s|%s|\n", order, part, part % 10000 + 1, line, quantity,
                quantity * (90000 + int(part / 10) % 20001 + 100 * (part % 1000)) / 100, int(rand() * 11) / 100,
                int(rand() * 9) / 100, (received <= today) ? (rand() < 0.5 ? "R" : "A") : "N", (shipped > today) ? "O" : "F",
                date[shipped], date[ordered + 30 + int(rand() * 61)], date[received], instruct[1 + int(rand() * 4)],
                mode[1 + int(rand() * 7)], comment[int(rand() * 1000)]
        }
    }' >"$1"
}

# What runs in the group has SORT_MB of memory with its page cache: less than it works on, as in the paper.
enter_group() {
    mkdir -p "$GROUP"
    echo "${SORT_MB}M" >"$GROUP/memory.limit_in_bytes"
    echo "$1" >"$GROUP/cgroup.procs"
}
leave_group() {
    [ -d "$GROUP" ] || return 0
    local pid
    while read -r pid; do echo "$pid" >"${GROUP%/*}/cgroup.procs" || true; done <"$GROUP/cgroup.procs"
    rmdir "$GROUP" || true
}

sort_lines() { # directory
    sh -c 'echo $$ >"$1/cgroup.procs" && LC_ALL=C exec sort -t "|" -k 2,2n -S 64M -T "$2" "$3"' \
        - "$GROUP" "$1" "$DIR/lineitem.tbl" | md5sum >"$DIR/sum"
}

start_sql() { # data directory
    rm -f "$DIR/sql.sock"
    mariadbd --no-defaults --user=root --datadir="$1" --socket="$DIR/sql.sock" --skip-networking --pid-file="$DIR/sql.pid" \
        --default-storage-engine=MyISAM --skip-log-bin >"$DIR/sql.log" 2>&1 &
    SQL_PID=$!
    for _ in $(seq 600); do [ ! -S "$DIR/sql.sock" ] || return 0; sleep 0.1; done
    tail -5 "$DIR/sql.log" >&2
    return 1
}
stop_sql() {
    [ -n "$SQL_PID" ] || return 0
    kill "$SQL_PID" 2>/dev/null || true
    wait "$SQL_PID" 2>/dev/null || true
    SQL_PID=
}
sql() { mariadb --no-defaults --socket="$DIR/sql.sock" -BN -e "$1" tpch; }

# With everything on the device: load DIRECTORY
load() {
    sql "LOAD DATA INFILE '$DIR/lineitem.tbl' INTO TABLE lineitem FIELDS TERMINATED BY '|'; FLUSH TABLES"
    sync "$1"/tpch/lineitem.*
}
query_1() {
    sql "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
        sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
        avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
        FROM lineitem WHERE l_shipdate <= date '1998-12-01' - interval 90 day
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus" >"$DIR/answer"
}
TABLE="CREATE OR REPLACE TABLE lineitem (l_orderkey INT, l_partkey INT, l_suppkey INT, l_linenumber INT,
    l_quantity DECIMAL(15,2), l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2),
    l_returnflag CHAR(1), l_linestatus CHAR(1), l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE,
    l_shipinstruct CHAR(25), l_shipmode CHAR(10), l_comment VARCHAR(44)) ENGINE=MyISAM"

# All subjects must say the same: same FILE SUBJECT
same() {
    [ -e "$1.first" ] || cp "$1" "$1.first"
    cmp -s "$1" "$1.first" || { say "$2 gave another answer than the first subject"; exit 1; }
}

# --- The parts

part_table2() {
    local round procs subject
    begin table2
    for subject in disk ssd forebay ram forebay-ram; do lay_out "$subject" iops 12 32m; done
    for round in $(seq 0 $((ROUNDS - 1))); do
        for procs in 1 12; do
            for subject in disk ssd forebay ram forebay-ram; do
                say "round $round: random writes by $procs on $subject"
                add table2 "table 2: random write 4 KiB x$procs" "$subject" op/s "$(IOPS=1 fio_rate write \
                    --directory="$(at "$subject" iops)" --rw=randwrite --bs=4k --direct=1 --numjobs="$procs" --size=32m \
                    --time_based --runtime=3)"
            done
        done
    done
    finish table2 "HyCache table 2: random writes a second"
    for subject in disk ssd forebay ram forebay-ram; do rm -rf "${PLACE[$subject]}/iops"; done
}

part_blocks() {
    local round block subject subjects=(disk forebay fuse-disk ssd ram)
    begin fig12
    for subject in disk forebay ssd ram; do lay_out "$subject" blocks 1 192m; done
    for round in $(seq 0 $((ROUNDS - 1))); do
        for block in 4k 64k 16m; do
            for subject in "${subjects[@]}"; do
                say "round $round: blocks of $block on $subject"
                add fig12 "fig. 12a: read $(size_name $block)" "$subject" MB/s \
                    "$(read_rate "$subject" blocks 1 "$block" 192m)"
                add fig12 "fig. 12b: new file $(size_name $block)" "$subject" MB/s \
                    "$(write_rate "$subject" 1 "$block" 192m)"
                add fig12 "fig. 12b: rewrite $(size_name $block)" "$subject" MB/s \
                    "$(rewrite_rate "$subject" blocks "$block" 192m)"
            done
        done
    done
    finish fig12 "HyCache figures 12 and 13: one process by size of blocks"
    for subject in disk forebay ssd ram; do rm -rf "${PLACE[$subject]}/blocks"; done
}

part_procs() {
    local round procs block way subject rate each total=240
    begin fig14
    begin fig9
    for procs in 1 4 12; do
        for subject in disk ssd forebay; do lay_out "$subject" "procs$procs" "$procs" $((total / procs))m; done
    done
    for round in $(seq 0 $((ROUNDS - 1))); do
        for procs in 1 4 12; do
            each=$((total / procs))m
            for block in 4k 64k; do
                for way in read write; do
                    declare -A rate=()
                    for subject in ssd disk forebay; do
                        say "round $round: $procs $way blocks of $block on $subject"
                        if [ "$way" = read ]; then
                            rate[$subject]=$(read_rate "$subject" "procs$procs" "$procs" "$block" "$each")
                        else
                            rate[$subject]=$(write_rate "$subject" "$procs" "$block" "$each")
                        fi
                    done
                    # The same figures once against the disk and once against the fast device.
                    for subject in disk forebay; do
                        add fig14 "fig. 14: $way $(size_name $block) x$procs" "$subject" MB/s "${rate[$subject]}"
                    done
                    for subject in ssd forebay disk; do
                        add fig9 "fig. 9: $way $(size_name $block) x$procs" "$subject" MB/s "${rate[$subject]}"
                    done
                done
            done
        done
    done
    finish fig14 "HyCache figure 14: processes, against the disk"
    finish fig9 "HyCache figure 9: share of the fast device"
    for subject in disk ssd forebay; do rm -rf "${PLACE[$subject]}"/procs*; done
}

part_ram() {
    local round procs block subject figure each
    begin fig15
    for procs in 1 4 12; do
        for subject in ram forebay-ram; do lay_out "$subject" "ram$procs" "$procs" $((240 / procs))m; done
    done
    for round in $(seq 0 $((ROUNDS - 1))); do
        for procs in 1 4 12; do
            each=$((240 / procs))m
            for block in 1m 64k 4k; do
                figure=15
                [ $block != 1m ] || figure=8
                for subject in ram forebay-ram fuse-ram; do
                    say "round $round: $procs with blocks of $block on $subject"
                    add fig15 "fig. $figure: read $(size_name $block) x$procs" "$subject" MB/s "$(fio_rate read \
                        --directory="$(at "$subject" "ram$procs")" --rw=read --numjobs="$procs" --bs="$block" \
                        --size="$each" --invalidate=0 --time_based --runtime=1)"
                    add fig15 "fig. $figure: write $(size_name $block) x$procs" "$subject" MB/s \
                        "$(write_rate "$subject" "$procs" "$block" "$each")"
                done
            done
        done
    done
    finish fig15 "HyCache figures 8 and 15: over a RAM disk"
    for subject in ram forebay-ram; do rm -rf "${PLACE[$subject]}"/ram[0-9]*; done
}

part_copy() {
    local round subject
    begin copy
    for subject in disk forebay ssd; do lay_out "$subject" copy 1 1000m; done
    for round in $(seq 0 $((ROUNDS - 1))); do
        for subject in disk forebay ssd; do
            say "round $round: copy from $subject"
            cold "$subject"
            add copy "table 3: copy of 1 GB" "$subject" s "$(seconds cp "$(at "$subject" copy)/f.0" "$DIR/copied")"
            rm "$DIR/copied"
        done
    done
    finish copy "HyCache table 3: a file copied to the RAM disk"
    for subject in disk forebay ssd; do rm -rf "${PLACE[$subject]}/copy"; done
}

part_sort() {
    local round subject
    begin sort
    [ -e "$DIR/lineitem.tbl" ] || lineitem "$DIR/lineitem.tbl"
    enter_group "$(timeout 10 "$FOREBAY" debug pid "$DIR/forebay")"
    for round in $(seq 0 $((FEWER - 1))); do
        for subject in disk forebay ssd; do
            say "round $round: sort on $subject"
            cold "$subject"
            add sort "table 3: sort, $SORT_MB MB of memory" "$subject" s "$(seconds sort_lines "$(at "$subject" sort)")"
            same "$DIR/sum" "$subject"
        done
    done
    leave_group
    finish sort "HyCache table 3: sort with its temporary directory"
    for subject in disk forebay ssd; do rm -rf "${PLACE[$subject]}/sort"; done
}

part_tpch() {
    local round subject data
    need mariadbd mariadb-server
    begin tpch
    [ -e "$DIR/lineitem.tbl" ] || lineitem "$DIR/lineitem.tbl"
    for subject in disk forebay ssd; do
        mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=normal --skip-test-db \
            --datadir="$(at "$subject" sql)" >"$DIR/sql.log" 2>&1
        mkdir "${PLACE[$subject]}/sql/tpch"
    done
    for round in $(seq 0 $((FEWER - 1))); do
        for subject in disk forebay ssd; do
            say "round $round: TPC-H on $subject"
            data=$(at "$subject" sql)
            start_sql "$data"
            sql "$TABLE"
            add tpch "fig. 17: load lineitem, scale $SCALE" "$subject" s "$(seconds load "$data")"
            cold "$subject"
            add tpch "fig. 17: query 1, scale $SCALE" "$subject" s "$(seconds query_1)"
            same "$DIR/answer" "$subject"
            stop_sql
        done
    done
    finish tpch "HyCache figure 17: TPC-H on MariaDB (MyISAM)"
    for subject in disk forebay ssd; do rm -rf "${PLACE[$subject]}/sql"; done
}

# The directories of so many nodes for one kind of files, as fio wants them: of_nodes COUNT PREFIX NAME
of_nodes() {
    local node list=
    for node in $(seq "$1"); do
        mkdir -p "$DIR/$2$node/$3"
        list+=:$DIR/$2$node/$3
    done
    echo "${list#:}"
}

# Each node writes a file: nodes_write COUNT PREFIX NAME SIZE [FIO OPTION]...
nodes_write() {
    local where
    where=$(of_nodes "$1" "$2" "$3")
    fio_rate write --directory="$where" --rw=write --numjobs="$1" --bs=1m --size="$4" --end_fsync=1 "${@:5}"
}

part_swap() {
    local round nodes node test
    begin swap
    for node in 1 2 3 4; do
        DISKS+=("$DIR/disk-of-$node")
        MOUNTS+=("$DIR/node$node")
        SLOW_SPARSE=1 SLOW_BPS=20000000 "$SLOWDISK" up "$DIR/disk-of-$node" 2048 >/dev/null
        mkdir -p "$DIR/node$node" "$DIR/disk-of-$node/mnt"/{bare,cached}
        ln -s "disk-of-$node/mnt/bare" "$DIR/bare$node"
        timeout 60 "$FOREBAY" mount "$DIR/disk-of-$node/mnt/cached" "$DIR/node$node" --tier "$DIR/tier-of-$node=256M"
    done
    for round in $(seq 0 $((ROUNDS - 1))); do
        for nodes in 1 2 4; do
            test="HyCache+ fig. 5, 6, 8: nodes x$nodes"
            say "round $round: $nodes nodes"
            add swap "$test" disk MB/s "$(nodes_write "$nodes" bare disk 64m)"
            add swap "$test" cached MB/s "$(nodes_write "$nodes" node cached 128m --loops=4)"
            # What is dirty fills the caches now, so that there is only as much room as the disks take.
            nodes_write "$nodes" node cached 256m >/dev/null
            add swap "$test" swapping MB/s "$(nodes_write "$nodes" node swap 96m)"
            rm -rf "$DIR"/node?/{cached,swap} "$DIR"/bare?/disk
        done
    done
    finish swap "HyCache+ figures 5, 6 and 8: nodes with a disk and a cache each"
    for node in 1 2 3 4; do
        timeout 300 "$FOREBAY" umount "$DIR/node$node" || say "$DIR/node$node did not end in order"
    done
}

for part in "$@"; do
    declare -F "part_$part" >/dev/null || { say "unknown part $part"; exit 2; }
done
set_up
for part in "$@"; do "part_$part"; done
for mount in forebay forebay-ram; do
    # Fails where another mount namespace has a copy of it; the results are there.
    timeout 300 "$FOREBAY" umount "$DIR/$mount" || say "$DIR/$mount did not end in order"
done
