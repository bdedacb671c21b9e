//! The table of all settings, and the values that a mount has for them.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::sources::Origin;

/// The form of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// One value; carries the name shown in help.
    One(&'static str),
    /// Several values, each given by one more flag; carries the name shown in help.
    Many(&'static str),
    /// `true` or `false`, with some also `auto`; the flag alone means `true`.
    Switch,
}

/// One setting: a flag `--key`, a variable `FOREBAY_KEY`, a key in the file, an option of mount(8).
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub key: &'static str,
    /// The form of its value.
    pub kind: ValueKind,
    /// What holds where nobody said anything; nothing for settings that must be given.
    pub default: Option<&'static str>,
    /// Help: what it decides, its units, its values.
    pub help: &'static str,
    /// Only for tests and experts; not in the short help.
    pub hidden: bool,
}

impl Setting {
    /// The environment variable of this setting.
    pub fn variable(&self) -> String {
        format!("FOREBAY_{}", self.key.replace('-', "_").to_ascii_uppercase())
    }

    /// The setting with this key; `_` counts as `-`.
    pub fn find(key: &str) -> Option<&'static Setting> {
        let key = key.replace('_', "-");
        SETTINGS.iter().find(|setting| setting.key == key)
    }
}

const fn one(
    key: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting { key, kind: ValueKind::One(value), default, help, hidden: false }
}

const fn switch(key: &'static str, help: &'static str) -> Setting {
    Setting { key, kind: ValueKind::Switch, default: Some("false"), help, hidden: false }
}

/// A switch whose default depends on the machine.
const fn auto(key: &'static str, help: &'static str) -> Setting {
    Setting { key, kind: ValueKind::Switch, default: Some("auto"), help, hidden: false }
}

/// Every setting, in the order of the help.
pub const SETTINGS: &[Setting] = &[
    one(
        "backing",
        "DIR",
        None,
        "The backing store: the large, slow directory to put the cache in front of. After `forebay umount` it holds everything as plain files.",
    ),
    one("mountpoint", "DIR", None, "The directory where programs find the cached files."),
    Setting {
        key: "tier",
        kind: ValueKind::Many("DIR=SIZE"),
        default: None,
        help: "A directory on a fast local device and how much of it may be used: /dev/shm/f=4G, /nvme/f=800GiB, /nvme/f=80% (of the file system's size). Give it again for each further tier, fastest first. Each mount needs tier directories of its own.",
        hidden: false,
    },
    one(
        "cluster",
        "URL",
        Some(""),
        "Share the namespace with other nodes: redis://[user:password@]HOST[:PORT][,HOST...][/NAME], the metadata servers (Redis or Valkey 7), or file:PATH, a file with that address, which keeps a password out of the process list. All nodes give the same backing store. Empty means alone. See docs/reference/cluster.md for what it promises.",
    ),
    one(
        "cluster-listen",
        "ADDR",
        Some(""),
        "Talk to the other nodes of the cluster, and listen for them here: HOST:PORT (port 0 for any free one; the others must reach HOST under this name), or unix:/PATH for nodes of one machine. They then read from each other's tiers, and write through the owner of a file. `none` means not at all. Empty means not at all, too, unless `cluster init` has made a secret beside the address (--cluster file:DIR/address): then on any free port. Needs --cluster-secret, or --cluster-tls off.",
    ),
    one(
        "cluster-transport",
        "NAME",
        Some("tcp"),
        "How nodes talk to the HOST:PORT of --cluster-listen: tcp; quic (needs --cluster-secret); udp (only with --cluster-tls off); udt (needs libudt, and a build with that feature); mpi (the same, with Open MPI: started by mpirun, with --foreground, --cluster-tls off and --cluster-listen self:0). A node finds out from the others how they are reached. See docs/reference/cluster-transport.md.",
    ),
    one(
        "cluster-secret",
        "FILE",
        Some(""),
        "The file with the secret of the cluster, the same on all nodes and readable by its owner only: head -c 32 /dev/urandom > FILE. Whoever has it is believed to be a node. Empty means the file `secret` beside the address (--cluster file:DIR/address), if there is one.",
    ),
    one(
        "cluster-secret-also",
        "FILE",
        Some(""),
        "The file with a second secret: nodes that have it are believed, too, while a cluster changes its secret. See docs/reference/cluster.md.",
    ),
    one(
        "cluster-tls",
        "WHETHER",
        Some("on"),
        "Whether nodes talk by mutual TLS. `on`: they do. `off`: in plain text, and whoever reaches the address of a node can read and write all files. Only for closed networks.",
    ),
    one(
        "host-tasks",
        "WHETHER",
        Some("off"),
        "Whether running tasks of other nodes may go on here (`forebay migrate TASK NODE`). `on`: they may, and whoever has the secret of the cluster can so have processes started here as root. Needs root, CRIU and --cluster-secret. See docs/guide/jobs.md.",
    ),
    one(
        "auto-migrate",
        "WHETHER",
        Some("off"),
        "Whether tasks of `forebay run --migratable` move by themselves to the node where what they read is written. `on`: every 30 seconds it is looked whether one is to; a time, as `10s`: so often. While it is on, accesses are recorded, and files that are opened are served by the daemon, not by the kernel alone. Nodes that are to take tasks need --host-tasks on. Needs root and --cluster-secret. See docs/guide/jobs.md.",
    ),
    one(
        "cluster-replicas",
        "N",
        Some(""),
        "How many replicas of a metadata server must have a change before it counts: 0 if there are none, and else from 1 up to as many as each server has. Empty means as many as `forebay cluster init` has stored, or else 0. docs/reference/metadata-cluster.md says what each choice survives.",
    ),
    one(
        "cluster-leases",
        "WHETHER",
        Some("on"),
        "Whether a node may work alone in a directory. `on`: while this node alone works in a directory, it changes names and attributes there on its own, and tells the metadata servers a few milliseconds later; whoever else wants to look gets it at once. `off`: the servers have each change before it counts. See docs/reference/cluster.md for what it promises.",
    ),
    one(
        "redundancy",
        "LEVEL",
        Some(""),
        "What other nodes keep of what is written here, until the backing store has it. `replicas=N`: fsync and close return when N other nodes have a copy, so that the loss of N nodes loses nothing of it; where too few can take one, the file is written back at once. `ec=K+M`: K+M-1 other nodes have a fragment each, any K of which give the file back, so that the loss of M nodes loses nothing of it; takes (K+M-1)/K times the bytes. With `,async` copies or fragments follow, and nobody waits. `none`: it is there again when this node is. Directories may say otherwise: setfattr -n user.forebay.redundancy -v LEVEL DIR. Empty means what `forebay cluster init` has stored, or else `none`. Needs --cluster-listen.",
    ),
    one(
        "repair-rate",
        "BYTES/S",
        Some("64MiB"),
        "How much this node sends in a second to make copies again that were lost with other nodes.",
    ),
    one(
        "policy",
        "NAME",
        Some("s3fifo"),
        "The replacement policy, which decides what leaves a full tier. `auto` follows whichever of lru, sieve, s3fifo, arc, wtinylfu, gittins would miss fewest bytes.",
    ),
    one(
        "writeback",
        "WHEN",
        Some("5s"),
        "When a written file goes to the backing store: a duration after its last close (5s), `close` (right at the last close, in the background), `through` (close and fsync return when the backing store has it), or `evict` (only to make room, on sync and at umount).",
    ),
    one(
        "durability",
        "LEVEL",
        Some("local"),
        "What fsync promises to survive: `local` (the daemon killed, the node rebooted, if the tier is not in memory) or `backing` (everything local lost).",
    ),
    one(
        "passthrough",
        "MODE",
        Some("read"),
        "Which opens of resident files the kernel serves itself, at native speed: `read` (reading, and writing where room for the growth is set aside), `readwrite` (all; such writers can fill the tier beyond its size, and get ENOSPC when its file system is full) or `off`. Falls back to what the kernel and the privileges allow; `forebay status` says to what and why.",
    ),
    one(
        "coherence",
        "MODE",
        Some("open"),
        "Whether others change the backing store. `open`: look at the backing store when a file is opened and drop copies that others made stale. `exclusive`: nobody else changes the backing store, never look.",
    ),
    one(
        "attr-timeout",
        "TIME",
        Some("60s"),
        "How long attributes and copies count as fresh. Under --coherence open: how long the kernel may answer stat from its own memory, and how long a copy is not compared with the backing store. Under `exclusive` both hold until a change through this mount.",
    ),
    one(
        "entry-timeout",
        "TIME",
        Some("60s"),
        "How long the kernel may remember which names exist. That is under --coherence open; under `exclusive` until a change through this mount.",
    ),
    one(
        "high-mark",
        "PERCENT",
        Some("95%"),
        "Eviction starts when what files may take of a tier is fuller than this.",
    ),
    one("low-mark", "PERCENT", Some("85%"), "Eviction stops when it is emptier than this."),
    one(
        "extent-size",
        "SIZE",
        Some("1MiB"),
        "The unit in which large files become resident; a power of two from 64KiB to 64MiB.",
    ),
    one(
        "reserve",
        "SIZE",
        Some("2%"),
        "Space of each tier that files leave free, so that its file system is never filled to the brim: a size or a percentage of the tier.",
    ),
    one(
        "prefetch",
        "SIZE",
        Some("25%"),
        "How much may be fetched ahead along hints (`forebay hint`) and not be used yet: a size, a percentage of the fastest tier, or 0 for none. One job gets at most half of it.",
    ),
    one(
        "stream-profile",
        "DEVICE",
        Some(""),
        "Serve files that have a rate as streams, admitted by what the device below the backing store carries: a file of `forebay stream profile`, one of table1, disk, ssd and object, or `measure` (some seconds at the first mount, kept in the state directory). Empty means no streams. See docs/reference/streams-service.md.",
    ),
    one("stream-memory", "SIZE", Some("64M"), "Memory for what is read ahead for streams."),
    one(
        "stream-beginnings",
        "SIZE",
        Some("0"),
        "How much of the tiers may be filled with the beginnings of popular streams, so that they start at once: a size, or a percentage of the fastest tier.",
    ),
    one(
        "stream-titles",
        "SIZE",
        Some("0"),
        "How much of the tiers may be filled with popular streams as a whole, so that the device has its time for others: a size, or a percentage of the fastest tier.",
    ),
    one(
        "backing-timeout",
        "TIME",
        Some("30s"),
        "How long an operation may wait for the backing store before the program gets an error.",
    ),
    one(
        "drain-timeout",
        "TIME",
        Some("1h"),
        "How long umount and SIGTERM may take to write everything to the backing store.",
    ),
    one(
        "threads",
        "N",
        Some("0"),
        "Threads that read requests from the kernel; 0 means one for each CPU.",
    ),
    one(
        "client-memory",
        "SIZE",
        Some("0"),
        "Memory that processes may have in common for files that they have open here, such as the pages of MPI programs (docs/guide/mpiio.md): for all together; one user gets at most half of it. It takes room when it is used. 0 means none, and no socket for such programs: before Linux 6.16, users who are not trusted could keep it, and so those who wait for it, busy.",
    ),
    one(
        "transport",
        "HOW",
        Some("auto"),
        "How requests come from the kernel: `classic` (by reading /dev/fuse), `uring` (by io_uring, faster for names; Linux 6.14 with /sys/module/fuse/parameters/enable_uring set to Y) or `auto` (io_uring where that is possible and there is no supervisor, else classic). With a supervisor, `uring` means that a call can fail with ECANCELED in the moment when the daemon is killed, which `classic` rules out. Served by io_uring, a mount has a thread for every possible CPU, unless --threads is 1.",
    ),
    switch(
        "single-thread",
        "Serve one request after the other, as --transport classic --threads 1. For debugging.",
    ),
    switch(
        "read-only",
        "Refuse every change through this mount. A backing store that can't be written is mounted only so.",
    ),
    switch(
        "dataset",
        "Nothing in the backing store changes while it is mounted: the mount is read-only, and programs open files without asking the daemon, as fast as on a local file system. What they read stays in the kernel's page cache; large files that don't fit there are read faster without this. Implies --read-only, --coherence exclusive and --passthrough off; `forebay refresh` shows changes after all. Not with --cluster or --stream-profile.",
    ),
    switch(
        "create-tier",
        "Make the directories above a tier or the state directory, too, where they are missing. Without it only the last directory is made: a missing parent mostly means that a device is not mounted, and its place would be filled instead. Also begin an empty tier where this mount had another one, which is not there any more: without it that is refused, for the same reason.",
    ),
    switch(
        "require-mounted",
        "Refuse to mount while the backing store is on the root file system: its own is not mounted then. Without it only a mount whose tiers were used before notices that.",
    ),
    switch(
        "noatime",
        "Leave access times as they are when files are read. Without it they follow reads as `relatime` does.",
    ),
    auto(
        "allow-other",
        "Let other users use the mount, with the usual permission checks. Root's mounts do unless told not to; plain users need `user_allow_other` in /etc/fuse.conf.",
    ),
    auto(
        "suid",
        "Honour set-user-id and set-group-id bits and file capabilities of programs. By default as the file system of the backing store is mounted (`nosuid` there holds here too); never for mounts of plain users. As a mount option: suid, nosuid.",
    ),
    auto(
        "dev",
        "Honour device nodes. By default as the file system of the backing store is mounted; never for mounts of plain users. As a mount option: dev, nodev.",
    ),
    auto(
        "exec",
        "Let programs on the mount be executed. By default as the file system of the backing store is mounted. As a mount option: exec, noexec.",
    ),
    one(
        "state-dir",
        "DIR",
        Some(""),
        "Where the namespace index, the backlog and the log live. Empty means inside the first tier, so that it fills and moves with its data.",
    ),
    one(
        "metrics",
        "ADDR",
        Some(""),
        "Serve Prometheus metrics over HTTP at this address, for example 127.0.0.1:9464. Empty means only on the control socket (`forebay debug metrics`).",
    ),
    one(
        "log-level",
        "FILTER",
        Some("info"),
        "What to log: error, warn, info, debug or trace, also by module, as in info,forebay_store=debug.",
    ),
    one("log-format", "FORMAT", Some("text"), "`text` for people, `json` for machines."),
    one(
        "log-file",
        "FILE",
        Some(""),
        "Where the daemon logs. Empty means forebay.log in the state directory, or standard error with --foreground.",
    ),
    one(
        "event-log",
        "FILE",
        Some(""),
        "Record everything that the tiers' policy is told and decides, from the mount on, for `forebay sim replay`. For those who work on policies; ends at 1 GiB. Empty means not at all.",
    ),
    switch(
        "foreground",
        "Stay in the foreground and log to standard error. For systemd and debugging.",
    ),
    switch(
        "no-supervisor",
        "Leave no supervisor behind that restarts a daemon which dies. Without one, the death of the daemon leaves a mount that answers with errors until it is mounted again. So it is always with --foreground, unless systemd keeps what the next daemon needs (FileDescriptorStoreMax= in the unit).",
    ),
    Setting {
        key: "restart-limit",
        kind: ValueKind::One("N"),
        default: Some("5"),
        help: "How often within a minute the supervisor restarts a daemon before it gives up, 0 to 10000. More than 5 is for tests: restarts are not slowed down then.",
        hidden: true,
    },
    Setting {
        key: "stream-emulate",
        kind: ValueKind::One("DEVICE"),
        default: Some(""),
        help: "While streams are open, take as long for each read of the backing store as this device would, for tests and demonstrations: table1, disk, ssd, object or a profile.",
        hidden: true,
    },
    Setting {
        key: "throttle",
        kind: ValueKind::One("RATE"),
        default: Some(""),
        help: "Slow the backing store down, for tests and demonstrations: BYTES_PER_SECOND[/IOPS], for example 100M/200.",
        hidden: true,
    },
];

/// The texts that were given for one setting, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// One text, or several for settings that can be repeated.
    pub texts: Vec<OsString>,
    /// Who said so.
    pub origin: Origin,
}

/// The value of each setting, each from the first source that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// Gives a setting the texts unless a source that was asked earlier has one.
    pub fn offer(&mut self, setting: &Setting, texts: Vec<OsString>, origin: Origin) {
        self.values.entry(setting.key).or_insert(Value { texts, origin });
    }

    /// The value of a setting, if any source has one.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The settings that have values, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Setting, &Value)> {
        SETTINGS.iter().filter_map(|setting| Some((setting, self.values.get(setting.key)?)))
    }

    /// Gives every setting that nobody mentioned its default.
    pub fn fill_defaults(&mut self) {
        for setting in SETTINGS {
            if let Some(default) = setting.default {
                self.offer(setting, vec![default.into()], Origin::Default);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_when_searched_then_keys_are_unique_and_helped() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            assert!(setting.help.len() > 20 && setting.help.ends_with('.'), "{}", setting.key);
            assert!(SETTINGS[index + 1..].iter().all(|other| other.key != setting.key));
        }
        assert_eq!(
            Setting::find("attr_timeout").map(Setting::variable).as_deref(),
            Some("FOREBAY_ATTR_TIMEOUT")
        );
    }

    #[test]
    fn offer_when_two_sources_speak_then_the_first_wins() {
        let policy = Setting::find("policy").unwrap();
        let mut settings = Settings::default();
        settings.offer(policy, vec!["sieve".into()], Origin::Flag);
        settings.offer(policy, vec!["lfu".into()], Origin::Environment);
        settings.fill_defaults();
        assert_eq!(settings.get("policy").unwrap().texts, ["sieve"]);
        assert_eq!(settings.get("policy").unwrap().origin, Origin::Flag);
        assert_eq!(settings.get("writeback").unwrap().origin, Origin::Default);
    }
}
