//! The texts of the manual: `forebay --help`, `forebay COMMAND --help` and the man pages.

use std::sync::LazyLock;

use crate::error::Exit;

/// What Forebay is.
pub const OVERVIEW: &str = "\
Forebay puts fast local storage (a RAM disk, an NVMe device: the tiers) in front of a large, slow \
directory (the backing store: Lustre, GPFS, NFS, a hard disk). Programs use the mount point as \
they would use the slow directory and notice nothing but speed.

In the backing store every file stands under its own path as a plain file. After `forebay umount` \
or `forebay sync` everything written through the mount is there, readable without Forebay.";

/// The short hint below `-h`.
pub const SEE_ALSO: &str = "\
`forebay --help` and `forebay COMMAND --help` tell more, with examples, units and exit codes.";

/// Examples, units, environment and exit codes.
pub static EPILOGUE: LazyLock<String> = LazyLock::new(|| {
    let mut text = String::from(
        "\
Examples:
  forebay mount /lustre/project /mnt/project --tier /dev/shm/f=8G
      Cache /lustre/project in 8 GiB of memory.
  forebay mount /nfs/data /data --tier /dev/shm/f=4G --tier /nvme/f=80%
      Two tiers, fastest first.
  forebay status /data
      What is resident, what is not yet in the backing store.
  forebay umount /data
      Write everything back and end.

Units:
  Sizes: 4096, 512K, 512KiB, 4G, 1.5T; all units count in steps of 1024. 80% where said so.
  Times: 200ms, 5s, 2min, 1h; a unit is needed.

Environment:
  FOREBAY_<SETTING>     Each setting of `mount`, such as FOREBAY_POLICY or FOREBAY_LOG_LEVEL.
                        A flag beats the variable, the variable beats the file.
                        FOREBAY_TIER takes several tiers separated by commas.
  FOREBAY_CONFIG        The configuration file.
  FOREBAY_RUNTIME_DIR   Where control sockets are: else /run/forebay for root,
                        $XDG_RUNTIME_DIR/forebay or /tmp/forebay-UID for others.
  NO_COLOR              If set, no colours.

Exit codes:
",
    );
    for (exit, meaning) in Exit::TABLE {
        text.push_str(&format!("  {}  {meaning}\n", exit.code()));
    }
    text
});

/// `mount`.
pub const MOUNT: &str = "\
Mounts a cache in front of BACKING at MOUNTPOINT. Returns when the mount can be used and leaves a \
daemon behind, which logs to forebay.log in the state directory; with --foreground it stays and \
logs to standard error.

Tiers that an earlier mount used are taken up again with everything on them: what was resident is \
resident, and what had not reached the backing store yet is written back, also after a crash.

On SIGTERM or SIGINT the daemon writes everything back and unmounts; a second signal makes it \
leave at once with the rest safe on the tiers.";

/// Examples of `mount`.
pub const MOUNT_EXAMPLES: &str = "\
Examples:
  forebay mount /lustre/project /mnt/project --tier /dev/shm/forebay=8G
  forebay mount /nfs/data /data --tier /nvme/forebay=80% --writeback close --policy sieve
  forebay mount --config /etc/forebay/data.toml
  mount -t forebay /nfs/data /data -o tier=/nvme/forebay=80%,policy=sieve

fstab(5):
  /nfs/data  /data  forebay  tier=/nvme/forebay=800G,_netdev,nofail  0  0

Exit codes: 0 mounted; 1 failed; 2 wrong arguments, nothing was touched; 5 a privilege or kernel \
feature is missing; 6 the state on a tier is unusable (see `forebay fsck`); 7 another daemon uses \
a tier or the mount point.";

/// `umount`.
pub const UMOUNT: &str = "\
Writes everything that is not yet in the backing store there, with a progress bar, then unmounts, \
and returns when the daemon is gone. If the time limit passes first, it prints what remains and \
leaves the mount as it is. Interrupting it is safe and leaves the mount as it is.

If the daemon is dead, the mount is removed; what was not written back is safe on the tiers.";

/// Examples of `umount`.
pub const UMOUNT_EXAMPLES: &str = "\
Examples:
  forebay umount /data
  forebay umount /data --timeout 10min
  forebay umount /data --no-drain      leave dirty files on the tiers for the next mount

Exit codes: 0 unmounted; 1 files are open; 3 not a Forebay mount; 4 not everything could be \
written back in time.";

/// `upgrade`.
pub const UPGRADE: &str = "\
Starts the new program, has it take the mount over from the running daemon, and ends that one. \
Programs notice nothing but a pause of some milliseconds: open files stay open, also removed ones, \
with their locks and mappings. Settings stay as they are.

If the new program can't go on where the old one ends, or fails, the running daemon serves on, and \
nothing has changed. So it is if the running daemon does not come to rest within the time limit, \
because requests wait for the backing store or a large file is just being written back.";

/// Examples of `upgrade`.
pub const UPGRADE_EXAMPLES: &str = "\
Examples:
  forebay upgrade /data
  forebay upgrade /data --program /opt/forebay-2/bin/forebay
  forebay upgrade /data --json | jq .pause_us

Exit codes: 0 taken over; 1 not, the old daemon serves on; 3 not a Forebay mount; 5 the new program \
can't read the state of the old one.";

/// `status`.
pub const STATUS: &str = "\
Answers four questions, for one mount or all: is it fast (opens that found their file on a tier, and \
whether the kernel serves them itself), what is not yet safe (exactly what is not in the backing store: \
dirty files and the backlog of names and attributes), how full are the tiers, and is there any trouble \
(conflicts with changes behind the mount's back, what was lost or refused, operations that are stuck).";

/// Examples of `status`.
pub const STATUS_EXAMPLES: &str = "\
Examples:
  forebay status
  forebay status /data --verbose
  forebay status /data --json | jq '.dirty.files'

Exit codes: 0 answered; 3 not a Forebay mount, or its daemon does not answer.";

/// `where`.
pub const WHERE: &str = "\
Shows for each path whether it is resident (whole, partial, absent), on which tier, whether the \
tier has a newer version than the backing store, whether it is pinned, and its place in the \
backing store.";

/// `warm`.
pub const WARM: &str = "\
Brings files into the tiers, directories with everything below them, as far as there is room. \
Interrupting it is safe: what has been brought in stays.";

/// Examples of `warm`.
pub const WARM_EXAMPLES: &str = "\
Examples:
  forebay warm /data/train
  forebay warm --background /data/train /data/labels
  forebay status /data                 how far it is

Exit codes: 0 all of it is on a tier; 1 some of it is not, and is named.";

/// `refresh`.
pub const REFRESH: &str = "\
Compares files, and directories with everything that is known below them, with the backing store now, \
and takes over what others changed there. A mount does so by itself, when a file or directory is used \
and what is known of it is older than --attr-timeout; one with --coherence exclusive never does, and \
needs this after others have changed something.";

/// `conflicts`.
pub const CONFLICTS: &str = "\
A file that was changed through the mount and, before that reached the backing store, by others there \
is a conflict. Nothing is overwritten: the name of the file shows the version of the others, and what was \
written through the mount stands beside it as NAME.forebay-conflict-HOST-TIME. The list is kept until \
conflicts are resolved (by these commands, or with mv and rm) or forgotten.";

/// `conflicts resolve`.
pub const CONFLICTS_RESOLVE: &str = "\
With `--keep ours` the version of this mount takes the name of the file, and that of the others is gone; \
with `--keep theirs` the version of this mount is removed. Neither can be undone.";

/// `evict`.
pub const EVICT: &str = "\
Removes files from the tiers. Dirty ones are written to the backing store first; open and pinned \
ones stay. Nothing is lost: the backing store has everything.";

/// `pin`.
pub const PIN: &str = "\
Brings files in and keeps them resident until `forebay unpin`, also over an unmount. Pinned files \
and the tiers' reserve can't together exceed a tier; what does not fit is reported.";

/// `sync`.
pub const SYNC: &str = "\
Writes dirty files, and the changes of names and attributes that they need, to the backing store \
now and waits for it. With a mount point as PATH, everything. On a node of a cluster it is about what \
this node has; of files that other nodes have not written back it says how many there are.";

/// `hint`.
pub const HINT: &str = "\
Tells which files a job will use, in which order: its reference sequence. Files are fetched ahead of \
their use within a budget (`mount --prefetch`), what is needed sooner is never given up for what is \
needed later, and with `mount --policy min` what stays on the tiers is decided by the sequence, which \
is as good as can be.

The sequence comes from a list with one path a line, from a recorded earlier run (--trace), from the \
permutation of a training sampler (--permutation with --files), or from files, directories and \
patterns on the command line. Paths are absolute, or relative to the mount point. Paths that the \
mount does not have, and what is no regular file, are reported and left out.

Several jobs may have sequences at once. A job may depart from its sequence: what it repeats, \
reorders or leaves out is noticed. One that does not follow it at all is not fetched for any more, so \
that a wrong hint costs little. `forebay status` shows how far each job is. Hints live as long as the \
mount, until --expires, or until the job is withdrawn.

At most 64 jobs, and 4194304 references and distinct files of them, are remembered at a time; each \
takes about 100 bytes of memory with one tier, and 50 more with each further one.";

/// Examples of `hint`.
pub const HINT_EXAMPLES: &str = "\
Examples:
  forebay hint /data --job train-7 epoch.list
  find /data/set -type f -print0 | sort -z | forebay hint /data --job scan -0 -
  forebay hint /data --job stage2 /data/stage1 '/data/ref/**/*.idx'
  forebay hint /data --job nightly --trace nightly.trace
  forebay hint /data --job train-7 --permutation epoch3.json --files set.list --append
  forebay hint /data --job train-7 --withdraw

Exit codes: 0 all paths were taken; 1 some were not, or the limits are reached; 2 wrong arguments or \
a list that can't be understood; 3 not a Forebay mount.";

/// `run`.
pub const RUN: &str = "\
Runs a command, or the jobs of a file, as processes of this machine: as many at a time as their cores \
and memory allow. With the files that each reads it asks the mount where their bytes are, and gives it \
the files of all jobs, in the order in which they will be read, as a reference sequence (see `forebay \
hint`). So what is resident is used before it has to leave, what several jobs read is read by them one \
after the other, and what comes next is fetched while jobs compute; with `mount --policy min`, what is \
still needed stays.

Jobs wait for jobs that make what they read (outputs and inputs), and for those that they name (after). \
Jobs that wait for each other begin with those that most depends on; others with those for which least \
is to be fetched. Cores and memory are what a job says; nothing keeps it from using more.

The inputs may be on any file system; what is known and hinted is about one mount: that of the first \
file that is on one, or --mount. A daemon that does not answer, or is another user's, costs the order \
and the hints, not the run.

What a single command prints goes where that of `forebay run` goes. What jobs of a file print is \
printed line by line with the name of the job in front, or written to files (--logs). Jobs have the \
variables FOREBAY_JOB, their name, and FOREBAY_RUN, the name of the run. They can't read a terminal.

With --via slurm the jobs run on the nodes of the mount's cluster. Which node each should get follows \
from where the cluster has its files, as Slurm is told by `sbatch --prefer`, so that a busy node is not \
waited for; it needs the feature forebay_NODE on each node (docs/guide/jobs.md). Jobs are handed over when \
what they wait for has ended, run again when their node is lost, and ended with the run. What they \
print is shown, and kept in the directory forebay-run-RUN (--logs), which all nodes must see.

With --migratable each job runs in namespaces of its own, so that `forebay migrate` can have it go on at \
another mount of its files. That needs root and CRIU 4.1.

SIGINT, SIGTERM, SIGHUP and SIGQUIT are handed to all jobs; those that go on are killed after --grace, \
or at once with a second signal. What a job leaves running when it ends is killed, also what it put \
into a group or session of its own, at the end of the run. If `forebay run` itself is killed, its jobs \
are killed.";

/// Examples of `run`.
pub const RUN_EXAMPLES: &str = "\
Examples:
  forebay run --input /data/set7 -- ./train --epochs 3
  forebay run --trace nightly.trace --mount /data -- ./nightly.sh
  forebay run --batch jobs.toml --retries 1 --logs logs
  snakemake -n -p > flow.txt && forebay run --snakemake flow.txt
  sqlite3 -json monitoring.db 'select * from task' > tasks.json
  forebay run --parsl tasks.json -- ./task.sh {function} {inputs}
  forebay run --batch jobs.json --dry-run

A file of jobs (in JSON the same, or only the list of jobs):
  [defaults]                      # of all jobs; each may say otherwise
  cores = 1
  memory = \"2G\"

  [[jobs]]
  name = \"index\"                  # default job-1, job-2, ...
  command = \"sort ref > ref.idx\"  # for sh -c, or a list of words
  inputs = \"ref\"                  # names, directories, patterns, @LIST
  outputs = [\"ref.idx\"]
  seconds = 60                    # how long it computes, about
  retries = 2
  dir = \"work\"
  env = { LC_ALL = \"C\" }

  [[jobs]]
  command = [\"./align\", \"ref.idx\", \"reads/1\"]
  inputs = [\"ref.idx\", \"reads/1\"]
  after = \"index\"                 # needed only where files do not say it
  cores = 4

Names of files are as seen from the job's directory, or else from the mount point.

Exit codes: of a single command its own, 128 and the number of a signal that ended it, 127 if it is \
not there, 126 if it can't be started. Of jobs of a file 0 if all have ended well, else 1. 128 and the \
number of the signal if the run was ended by one. 2 wrong arguments, nothing was started.";

/// `jobs`.
pub const JOBS: &str = "\
Shows the runs of this user on this machine that have not ended, and their jobs: which run and since \
when, which have failed and why. It reads what each `forebay run` notes in the runtime directory, in \
files that nobody else can read; of runs that have ended the last 50 are kept. Jobs of a run that was \
killed are shown as lost.";

/// Examples of `jobs`.
pub const JOBS_EXAMPLES: &str = "\
Examples:
  forebay jobs
  forebay jobs /data --all
  forebay jobs --json | jq '.[-1].jobs[] | select(.state == \"failed\")'";

/// `migrate`.
pub const MIGRATE: &str = "\
Has a running task go on somewhere else: all of its processes, with their memory and their open \
files, which are then those of the target's mount. What it prints still comes where `forebay run` \
prints, and its exit code is still that of `forebay run`.

The task must have been started with `forebay run --migratable`: it then runs in process, IPC and \
mount namespaces of its own. It is stopped, written down by CRIU and restored stopped at the target; \
there it goes on, and the stopped one where it was is killed. Whatever fails before it is restored, it \
goes on where it was. A migration never has two copies of it run; a run with --retries can, after it has \
lost a node that only stood still (docs/guide/jobs.md).

A node of the cluster takes tasks of others if it was mounted with --host-tasks on. The image goes \
there over a connection by which both sides prove that they have the cluster's secret; what comes back \
from a node is restored as root. The task sees \
its mount at the same path as before; the programs and libraries that it has in use must be there under \
the same paths, too. If the node, or the way to it, is lost, the task is lost with it.

CRIU 4.1 or newer must be installed (the package criu of Debian 13; FOREBAY_CRIU names another one), \
and both sides must be root.

Refused, with the reason: tasks with connections over the network to processes that are not part of \
them (so also MPI jobs of several nodes), with GPUs and similar devices, with terminals, with locks on \
files. To another node also those that have files open for writing that are not on the mount.";

/// Examples of `migrate`.
pub const MIGRATE_EXAMPLES: &str = "\
Examples:
  forebay run --migratable --name fit -- ./fit data/set &
  forebay migrate fit 3               go on at node 3; `forebay cluster status` shows the numbers
  forebay migrate fit node7           the same, by the name of its machine
  forebay migrate fit /mnt/b          here, with the files as the mount /mnt/b has them
  forebay migrate fit home            and back
  forebay migrate fit /mnt/b --json | jq .downtime_ms

Exit codes: 0 migrated; 1 not, the task goes on where it was; 2 no such task or target; 3 the target \
is not a Forebay mount; 5 CRIU, a privilege or a kernel feature is missing, or the task has what \
can't be migrated.";

/// `patterns`.
pub const PATTERNS: &str = "\
Records, while it is wanted, who reads and writes which pieces of which files, and shows it as access \
counting diagrams: for each task, rows of 2 MiB of a file, columns of time, counts of blocks of 64 KiB. \
A task is a job of `forebay run`, a rank of MPI, a task of Slurm, or a process; accesses belong to who \
opened the file. Of each task its newest windows of 256 accesses are kept, about a thousand; tasks that \
access the same at the same time are named (the measure of Liao, Trahay and Xiao, docs/design/profile.md).

While a mount is recorded, files that are opened are served by the daemon and not by the kernel, \
request by request, so that nothing is hidden; that costs speed. What was open before is seen as far as \
the daemon serves it. Recording takes at most 64 MiB, and nothing when it has ended. It ends with the \
daemon, also at an upgrade. Of a file that is still open, the last accesses to one row may be missing.";

/// Examples of `patterns`.
pub const PATTERNS_EXAMPLES: &str = "\
Examples:
  forebay patterns /data --for 30s
  forebay patterns /data --start
  forebay patterns /data --svg now.svg
  forebay patterns /data --stop --json > patterns.json

Exit codes: 0 done; 1 nothing is recorded, or somebody records already; 3 not a Forebay mount.";

/// `trace record`.
pub const TRACE_RECORD: &str = "\
Records which files programs open on a mount, in which order and when, until it is interrupted, asked \
to end by SIGTERM, or --seconds are over. It costs the programs next to nothing. One recording at a \
time for each mount.

The trace is a text file, one line for each open: inode number, size in bytes, nanoseconds since the \
start, read, write or create, and the path. `forebay hint --trace` gives it to a later run of the same \
job; `forebay sim cache` tries policies and tier sizes on it.";

/// Examples of `trace`.
pub const TRACE_EXAMPLES: &str = "\
Examples:
  forebay trace record /data -o nightly.trace --seconds 3600
  forebay trace show nightly.trace
  forebay hint /data --job nightly --trace nightly.trace";

/// `fsck`.
pub const FSCK: &str = "\
Checks that the index agrees with what is on the tiers. The tiers must not be mounted. Without \
--repair or --rebuild nothing is changed. With --cluster, checks the names that a cluster has on its \
metadata servers, while none of its nodes is mounted.";

/// Examples of `fsck`.
pub const FSCK_EXAMPLES: &str = "\
Examples:
  forebay fsck /nvme/forebay
  forebay fsck --rebuild --backing /lustre/project /dev/shm/f /nvme/f
  forebay fsck --config /etc/forebay/data.toml --repair
  forebay fsck --cluster file:/srv/forebay/address

Exit codes: 0 no problem, or all repaired; 6 problems remain; 7 the tiers are in use, or
a node of the cluster is mounted.";

/// `top`.
pub const TOP: &str = "\
Shows tiers, hit ratio, throughput by source, what is dirty, and the busiest files, live.

Keys: q or Esc quits, p pauses, + and - change the interval.";

/// `doctor`.
pub const DOCTOR: &str = "\
Checks the kernel, /dev/fuse, privileges, passthrough, io_uring, limits and, if named, the \
directories that are meant as tiers and backing store (extended attributes, leases, how deep their \
file systems are stacked), and says what to do about each finding. With --cluster also how the \
metadata servers are, whether they keep a log, what becomes of the names when one dies, and whether the \
backing store is that of the other nodes. Changes nothing.";

/// `cluster init`.
pub const CLUSTER_INIT: &str = "\
Starts redis-server (Redis 7) with a password and a log on disk, for tests or for the time of a \
job, and waits until it serves. DIR gets the data, the logs, the file `address`, which is what \
`mount --cluster file:DIR/address` takes, and a new `secret` for the nodes, which such a mount takes \
from there: who can read them can change everything, so all of DIR is the caller's alone. If DIR has \
servers already, those that do not run are started again. Servers of the site's own are named by \
their address in place of DIR.

With --replicas each server has copies of its data on others, one of which takes over when it dies. \
With 2 work goes on then; with 1 changes fail in the part of the dead one until it is started again, \
with the same command.

--cluster-replicas, --redundancy and --cluster-secret are stored on the servers once, for all mounts: \
who is not told otherwise does as they say, and who has another secret is refused.";

/// Examples of `cluster`.
pub const CLUSTER_EXAMPLES: &str = "\
Examples:
  forebay cluster init /shared/job/meta --bind 10.0.0.1 --replicas 2
  forebay cluster init redis://meta1,meta2/projects --cluster-replicas 1 --redundancy replicas=1
  forebay cluster status --cluster file:/shared/job/meta/address
  forebay mount /lustre/data /data --tier /nvme/f=80% --cluster file:/shared/job/meta/address
  forebay cluster status /data
  forebay umount /data
  forebay cluster stop /shared/job/meta";

/// `cluster stop`.
pub const CLUSTER_STOP: &str = "\
Ends the metadata servers of DIR. What they know stays there for the next `cluster init`. Unmount \
first: a mount without its metadata servers gives errors.";

/// `cluster status`.
pub const CLUSTER_STATUS: &str = "\
Shows all nodes that have ever joined: their numbers, whether they live, and what each has that the \
backing store lacks, as each said last. With --cluster no mount is needed: the metadata servers are \
asked, and told as well are their addresses, versions and logs, what becomes of the names when one \
dies, and what the nodes have agreed on; nodes are watched for four seconds.";

/// `cluster drain`.
pub const CLUSTER_DRAIN: &str = "\
Has a node write everything back, unmount, and leave, and waits for it. A node on which programs \
have files open stays, and says so.";

/// `cluster rebalance`.
pub const CLUSTER_REBALANCE: &str = "\
Has copies and fragments of files that are not written back move from nodes that are fuller than the \
mean by more than 5 % to those that are emptier, within --repair-rate, and waits for it. Nodes do so by \
themselves once a minute where one is fuller by a quarter. Files stay where they were written.";

/// `cluster migrations`.
pub const CLUSTER_MIGRATIONS: &str = "\
Shows which tasks that were started on this node were migrated by themselves, because of which other task, \
how many seconds that was expected to save, and what became of it. The mount must have been told to have \
tasks move (--auto-migrate on). The node with the lowest number of those plans for all, one migration a scan.";

/// `cluster forget`.
pub const CLUSTER_FORGET: &str = "\
Gives up what a dead node had and had not written back, so that the files can be used again: those \
of which the backing store has an older version show that one, all others go. Without --yes it only \
names them. A node whose tiers are still there is better mounted again. One that returns later with \
what was given up does not start.";

/// `stream serve`.
pub const STREAM_SERVE: &str = "\
Serves the files below DIR over HTTP/1.1, with ranges. A player asks for a stream with its rate \
(http://HOST:PORT/PATH?rate=2M, bits a second), or ffprobe finds the rate if it is installed. A \
stream that the device or the memory can't carry beside the others is refused with 503, \
Retry-After, the reason and the rate that would fit; one that is admitted gets its bytes in time. \
Files of unknown rate, and ?class=best-effort, get what is left over.

One address gets 64 connections, 16 streams and a quarter of what the device reads, unless you say \
otherwise; more is refused with 429. With --token-file only those are served who have a token of \
that file. There is no encryption: where others can listen put a proxy with TLS in front, and name it \
with --proxy. Media are looked at by ffprobe in a sandbox. Ends on SIGINT and SIGTERM.";

/// Examples of `stream serve`.
pub const STREAM_SERVE_EXAMPLES: &str = "\
Examples:
  forebay stream profile /srv/films -o films.json
  forebay stream serve /srv/films --profile films.json --listen 0.0.0.0:8480 --memory 1G
  ffplay 'http://localhost:8480/night.mp4?rate=4M'
  forebay stream serve /srv/films --emulate table1 --memory 16M
      Behaves as if the files lay on an old disk.";

/// `stream open`.
pub const STREAM_OPEN: &str = "\
Opens a file of a mount that serves streams (`forebay mount --stream-profile`) and writes it to \
standard output, at its rate. If the device can't carry it beside the streams that are open, it \
says why and ends with exit code 1. The rate stays with the file, as the extended attribute \
user.forebay.stream.rate (bytes a second): every program that opens the file for reading from then \
on gets a stream, or, if there is no room for it, the bytes without a guarantee.";

/// Examples of `stream open`.
pub const STREAM_OPEN_EXAMPLES: &str = "\
Examples:
  forebay stream open /mnt/films/night.mp4 --rate 4M | ffplay -
  setfattr -n user.forebay.stream.rate -v 500K /mnt/films/night.mp4
  getfattr -n user.forebay.stream.state --only-values /mnt/films/night.mp4";

/// `stream profile`.
pub const STREAM_PROFILE: &str = "\
Measures how long a device takes to get to a place, by distance, and how fast it reads there, and \
writes it as JSON. Only reads: of a directory the large files below it, at the places where they \
really lie. Measure while nothing else uses the device.";

/// Examples of `stream profile`.
pub const STREAM_PROFILE_EXAMPLES: &str = "\
Examples:
  forebay stream profile /dev/sdb -o sdb.json
  forebay stream profile /srv/films --time 30s -o films.json";
