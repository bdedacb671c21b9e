#!/bin/bash
# What one ordinary user can take from all others of a mount: open files, attributes, locks, names,
# removed directories, requests that hang. Needs root, python3 and a user nobody.
#
#   bench/one-user.sh
#
# Environment: WORK_DIR (a new directory in /dev/shm), FOREBAY, SKIP_BUILD, NOFILE (4096), the limit
# of open files that the daemon starts with.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=${WORK_DIR:-$(mktemp -d /dev/shm/forebay-one-user.XXXXXX)}
MNT=$DIR/mnt
CSV=$ROOT/bench/results/one-user.csv
MOUNTS=("$MNT") DIRS=("$DIR")

need python3 python3
[ -n "${SKIP_BUILD:-}" ] || build
mkdir -p "$DIR/store" "$MNT" "$(dirname "$CSV")"
chmod 755 "$DIR"
chmod 777 "$DIR/store"
for n in $(seq 0 999); do echo "$n" >"$DIR/store/cold.$n"; done
(
    # The daemon raises its soft limit to the hard one.
    ulimit -n "${NOFILE:-4096}"
    "$FOREBAY" mount "$DIR/store" "$MNT" --tier "$DIR/tier=1G" --writeback 1s
)
PID=$("$FOREBAY" debug pid "$MNT")
echo "what,taken,refused_with,daemon_rss_mib,others_open,status_ms" >"$CSV"

# As another user, what a resource still gives: a file made, written and read; and how long status takes.
row() { # what taken refused
    local others=no begun ended rss
    if python3 - "$MNT" <<'PY'
import os, sys
os.setgid(65533); os.setuid(65533)
path = f"{sys.argv[1]}/other.{os.getpid()}"
with open(path, "w") as f: f.write("text")
assert open(path).read() == "text"
os.unlink(path)
PY
    then others=yes; fi
    begun=$(date +%s%N)
    timeout 30 "$FOREBAY" status "$MNT" >/dev/null || others="$others, no status"
    ended=$(date +%s%N)
    rss=$(awk '/^VmRSS/ { printf "%.1f", $2 / 1024 }' "/proc/$PID/status")
    echo "$1,$2,$3,$rss,$others,$(((ended - begun) / 1000000))" | tee -a "$CSV"
}

# Runs a program as nobody, which counts what it takes; what it has stays taken while others are asked.
hold() { # what program
    local holder reply
    rm -f "$DIR/reply" "$DIR/end"
    timeout 300 python3 - <<PY &
import errno, fcntl, os, resource, sys, time
reply = open("$DIR/reply.new", "w")
os.chdir("$MNT")
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
taken, refused = 0, "nothing"
try:
$(sed 's/^/    /' <<<"$2")
except OSError as error:
    refused = errno.errorcode[error.errno]
print(taken, refused, file=reply, flush=True)
while not os.path.exists("$DIR/end"): time.sleep(0.1)
PY
    holder=$!
    for _ in $(seq 1500); do
        [ ! -s "$DIR/reply.new" ] || break
        kill -0 "$holder" 2>/dev/null || break
        sleep 0.2
    done
    read -r reply <"$DIR/reply.new" || reply="0 failed"
    row "$1" ${reply/ / }
    touch "$DIR/end"
    wait "$holder" || true
    rm -f "$DIR/reply.new"
}

row "nothing" 0 -
hold "open files" "
kept = []
while taken < 100000:
    kept.append(os.open(f'own.{taken % 2000}', os.O_RDWR | os.O_CREAT)); taken += 1"
hold "files of 1 MiB of attributes" "
while taken < 30:
    os.close(os.open(f'attr.{taken}', os.O_RDWR | os.O_CREAT))
    for n in range(16): os.setxattr(f'attr.{taken}', f'user.{n}', b'x' * 65000)
    taken += 1"
hold "attributes of one file (64 KiB each)" "
os.close(os.open('attrs', os.O_RDWR | os.O_CREAT))
while taken < 1000:
    os.setxattr('attrs', f'user.{taken}', b'x' * 65000); taken += 1"
hold "locked ranges" "
f = os.open('locked', os.O_RDWR | os.O_CREAT)
while taken < 3000:
    fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * taken); taken += 1"
hold "names" "
os.makedirs('names')
while taken < 10000:
    os.close(os.open(f'names/{taken}', os.O_CREAT | os.O_WRONLY)); taken += 1"
hold "removed directories in use" "
kept = []
while taken < 5000:
    os.mkdir('gone'); kept.append(os.open('gone', os.O_DIRECTORY)); os.rmdir('gone'); taken += 1"
hold "processes that read cold files" "
while taken < 100:
    if os.fork() == 0:
        for n in range(1000): open(f'cold.{n}').read()
        os._exit(0)
    taken += 1"
row "all ended" 0 -
rm -rf "$MNT"/own.* "$MNT"/attr.* "$MNT"/attrs "$MNT"/names
begun=$SECONDS
"$FOREBAY" umount "$MNT" --quiet
say "drained in $((SECONDS - begun)) s"
