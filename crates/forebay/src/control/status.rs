//! What a daemon tells about itself: plain records that travel as JSON.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::printable::is_hidden;

/// A path that survives JSON: a string where it is UTF-8, else `{"bytes": [..]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WirePath(pub PathBuf);

impl WirePath {
    /// The path itself.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl<T: Into<PathBuf>> From<T> for WirePath {
    fn from(path: T) -> Self {
        Self(path.into())
    }
}

impl std::fmt::Display for WirePath {
    /// Hidden characters are escaped, so that a file name can't play tricks on a terminal.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for chunk in self.0.as_os_str().as_bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_hidden(c) {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathForm {
    Text(String),
    Raw { bytes: Vec<u8> },
}

impl Serialize for WirePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => PathForm::Raw { bytes: self.0.as_os_str().as_bytes().to_vec() }
                .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WirePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match PathForm::deserialize(deserializer)? {
            PathForm::Text(text) => Self(text.into()),
            PathForm::Raw { bytes } => Self(OsStr::from_bytes(&bytes).into()),
        })
    }
}

/// A snapshot of one mount. Lists are bounded; the counts beside them are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Where it is mounted.
    pub mountpoint: WirePath,
    /// The directory that holds everything as plain files.
    pub backing: WirePath,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// User id of the daemon.
    pub uid: u32,
    /// Seconds since the mount.
    pub uptime_s: u64,
    /// The tiers, fastest first.
    pub tiers: Vec<TierStatus>,
    /// What is not yet in the backing store: data.
    pub dirty: Dirty,
    /// What is not yet in the backing store in any way: data, names or attributes.
    pub backlog: Backlog,
    /// Opens that found the whole file resident.
    pub hits: u64,
    /// Opens that found a part of it, or nothing.
    pub misses: u64,
    /// Bytes moved for programs since the mount, by where they came from or went to.
    pub bytes: BytesBySource,
    /// Files that programs opened most often lately, busiest first.
    pub busiest: Vec<BusyFile>,
    /// How requests come from the kernel: `uring` or `classic`.
    pub transport: String,
    /// State of kernel passthrough.
    pub passthrough: Passthrough,
    /// Files that were changed on both sides; nothing of them was overwritten. The latest.
    pub conflicts: Vec<Conflict>,
    /// How many there are that nobody has resolved or forgotten.
    pub conflict_count: u64,
    /// What the backing store can't have, and is kept here.
    pub refused: Vec<RefusedFile>,
    /// What has ended a daemon by a defect of Forebay, and is not tried again.
    #[serde(default)]
    pub defects: Vec<SetAsideWork>,
    /// What is at the path of the backing store, if it is not the directory that was there at the mount.
    #[serde(default)]
    pub displaced: Option<String>,
    /// Files that were written and of which nothing is left: their paths. They read as errors and stay
    /// dirty until they are removed or given up.
    pub lost: Named,
    /// Files of which the start could not look at what there is: their paths. They read as errors until a
    /// later mount can look.
    #[serde(default)]
    pub unseen: Named,
    /// Changes of names and attributes that were acknowledged and are lost.
    #[serde(default)]
    pub lost_changes: LostChanges,
    /// What could not be used and may be the only copy of something: where it was moved to.
    pub set_aside: Named,
    /// Operations that wait longer than they should, mostly on the backing store.
    pub stuck: Vec<StuckOperation>,
    /// What commands do on files now, oldest first.
    pub works: Vec<WorkStatus>,
    /// Errors given to programs since the mount.
    pub errors: u64,
    /// What the policy says about itself.
    pub policy: PolicySnapshot,
    /// Resident memory of the daemon in bytes.
    pub rss_bytes: u64,
    /// Bytes that may be fetched ahead along hints and not be used yet.
    pub prefetch_budget_bytes: u64,
    /// The jobs that have given reference sequences, oldest first.
    pub hints: Vec<HintStatus>,
    /// Files that are played; nothing on a mount without streams.
    pub streams: Option<Streams>,
    /// Other nodes of the cluster; empty on a single node.
    pub peers: Vec<Peer>,
}

impl Status {
    /// Hits per hundred opens, or nothing before the first open.
    pub fn hit_percent(&self) -> Option<f64> {
        let opens = self.hits + self.misses;
        (opens > 0).then(|| self.hits as f64 * 100.0 / opens as f64)
    }

    /// Whether everything that programs wrote is in the backing store.
    pub fn is_drained(&self) -> bool {
        self.dirty.files == 0
            && self.backlog.entries == 0
            && self.lost.files == 0
            && self.unseen.files == 0
    }
}

/// One tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierStatus {
    /// Its directory.
    pub dir: WirePath,
    /// Its configured size in bytes.
    pub size_bytes: u64,
    /// Bytes that resident files take.
    pub used_bytes: u64,
    /// Bytes promised to writers.
    pub reserved_bytes: u64,
    /// Bytes of it that are not yet in the backing store.
    pub dirty_bytes: u64,
    /// Bytes that may not be evicted because somebody pinned them.
    pub pinned_bytes: u64,
    /// Number of resident files.
    pub objects: u64,
    /// Bytes that its file system still has free.
    pub fs_free_bytes: u64,
    /// What its file system says if it has failed as a whole: nothing goes there any more.
    #[serde(default)]
    pub failed: Option<String>,
}

/// Data that is not yet in the backing store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dirty {
    /// Number of files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Age of the oldest of them in seconds.
    pub oldest_s: u64,
    /// Some of them, oldest first.
    pub list: Vec<DirtyFile>,
}

/// One file that is not yet in the backing store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirtyFile {
    /// Its path below the mount point.
    pub path: WirePath,
    /// Its bytes.
    pub bytes: u64,
    /// Seconds since it became dirty.
    pub age_s: u64,
    /// Whether a program has it open for writing.
    pub open: bool,
    /// Why the last attempt to write it back failed.
    pub last_error: Option<String>,
}

/// Files, directories and links whose names, attributes or data are not yet in the backing store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backlog {
    /// Number of entries.
    pub entries: u64,
    /// Age of the oldest entry in seconds.
    pub oldest_s: u64,
    /// Paths of some of them that are not in the list of dirty files, oldest first.
    pub list: Vec<WirePath>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// Bytes by where they came from or went to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BytesBySource {
    /// Read from or written to a tier through the daemon; passthrough is not counted.
    pub tier: u64,
    /// Read from or written to the backing store for a waiting program.
    pub backing: u64,
    /// Written to the backing store because no tier had room.
    pub spill: u64,
    /// Copied from the backing store into the tiers.
    pub filled: u64,
    /// Copied from the tiers of other nodes into the tiers.
    pub peers: u64,
    /// Read and written through nodes that own files.
    pub owners: u64,
    /// Written back from the tiers to the backing store.
    pub flushed: u64,
}

/// A file and how often programs opened it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyFile {
    /// Its path below the mount point.
    pub path: WirePath,
    /// Opens.
    pub opens: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is resident.
    pub resident: bool,
}

/// State of kernel passthrough.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Passthrough {
    /// What the mount uses now: `readwrite`, `read` or `off`.
    pub mode: String,
    /// Why it is not what was asked for.
    pub reason: Option<String>,
    /// Opens that were handed to the kernel.
    pub opens: u64,
    /// Opens that the daemon had to serve itself, by reason.
    pub refusals: Vec<Refusal>,
}

/// A reason why opens were not handed to the kernel, and how many there were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// The reason, as in the metric `forebay_passthrough_refusals_total`.
    pub reason: String,
    /// Number of opens.
    pub opens: u64,
}

/// Files by number and by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    /// How many there are.
    pub files: u64,
    /// Some of them.
    pub list: Vec<WirePath>,
}

/// Changes of names and attributes that were acknowledged and are lost, as other nodes took this one
/// for dead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostChanges {
    /// How many.
    pub changes: u64,
    /// Some of the paths that they were about.
    pub paths: Vec<WirePath>,
    /// The file that they are kept in. They are named until it is removed.
    pub kept: WirePath,
}

/// A file that was changed both through the mount and behind its back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conflict {
    /// The path that both changed; the backing store keeps its version there.
    pub path: WirePath,
    /// Where the version that was written through the mount was kept.
    pub kept_as: WirePath,
    /// Seconds since it was noticed.
    pub age_s: u64,
    /// What happened.
    pub why: String,
}

impl Conflict {
    /// Whether there is a version of this mount under a name of its own.
    pub fn has_copy(&self) -> bool {
        self.kept_as != WirePath::default()
    }
}

/// Something that the backing store does not take, or that a tier does not give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedFile {
    /// The path concerned.
    pub path: WirePath,
    /// What of it.
    pub what: String,
    /// What the backing store says, or the tier.
    pub error: String,
    /// Whether it is the tier.
    pub by_tier: bool,
}

/// Work in the background that is not tried again before the next mount or upgrade.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetAsideWork {
    /// The path concerned; empty if there is none.
    pub path: WirePath,
    /// What is not done.
    pub what: String,
}

/// An operation that waits for a device longer than it should.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StuckOperation {
    /// What is being done, for example `flush`.
    pub what: String,
    /// The path concerned.
    pub path: WirePath,
    /// Seconds that it has waited.
    pub waiting_s: u64,
}

/// Work on files that a command has asked for, such as `warm`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkStatus {
    /// The command.
    pub what: String,
    /// Seconds since it began.
    pub age_s: u64,
    /// How far it is.
    pub progress: Progress,
}

/// What the policy says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicySnapshot {
    /// Its name.
    pub name: String,
    /// Named figures, in the policy's own order.
    pub figures: Vec<(String, String)>,
}

/// How much a job's reference sequence is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintState {
    /// Nothing of it has come true yet.
    #[default]
    Waiting,
    /// The job goes along it.
    Following,
    /// It has come to its end.
    Done,
    /// The job does not go along it: nothing is fetched ahead for it until it does again.
    Silent,
}

/// A job and how far it is along its reference sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HintStatus {
    /// Its name.
    pub job: String,
    /// How much it is believed.
    pub state: HintState,
    /// References that it was given.
    pub references: u64,
    /// Those that came true.
    pub followed: u64,
    /// Those that it has left out.
    pub skipped: u64,
    /// Those that are still ahead.
    pub ahead: u64,
    /// Paths that could not be taken: they were no regular files on the mount.
    pub refused: u64,
    /// Files fetched ahead.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Those that were opened afterwards.
    pub used: u64,
    /// Those of the used ones that were still on their way when they were opened.
    pub late: u64,
    /// Those that were fetched for nothing.
    pub wasted: u64,
    /// Their bytes.
    pub wasted_bytes: u64,
    /// Bytes fetched ahead, or being fetched, that are not used yet.
    pub outstanding_bytes: u64,
    /// Seconds until it is forgotten.
    pub expires_s: u64,
}

/// An open of a file by a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Opening {
    /// When, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The inode number.
    pub ino: u64,
    /// The file's size in bytes; 0 for one that was made by this open.
    pub size: u64,
    /// Whether it may be written to.
    pub write: bool,
    /// Its path below the mount point; empty if it has none any more.
    pub path: WirePath,
}

/// Opens that were recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// The opens in their order.
    pub opens: Vec<Opening>,
    /// Opens that were lost because nobody asked for them in time.
    pub lost: u64,
}

/// Files that are played from a mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Streams {
    /// What is played, and every glitch by its cause.
    pub service: forebay_streams::Status,
    /// The opens that got no stream lately, the latest at the end.
    pub refused: Vec<RefusedStream>,
}

/// An open that got no stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusedStream {
    /// The file.
    pub path: WirePath,
    /// Its rate, in bytes a second.
    pub rate: u64,
    /// Why, and what would help.
    pub why: forebay_streams::Rejected,
}

/// Another node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Whether it answers, and since when or since when not.
    pub state: String,
}

/// How much of a file is on the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coverage {
    /// None of it.
    #[default]
    Absent,
    /// Some extents of it.
    Partial,
    /// All of it.
    Whole,
}

/// Where the bytes of one path are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Location {
    /// The path that was asked for, below the mount point.
    pub path: WirePath,
    /// `file`, `directory`, `symlink` or another type.
    pub kind: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How much of it is resident.
    pub residency: Coverage,
    /// Bytes of it that are resident.
    pub resident_bytes: u64,
    /// The directory of the tier that has it.
    pub tier: Option<WirePath>,
    /// Whether the tier has a newer version than the backing store.
    pub dirty: bool,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Its place in the backing store, where it stands or will stand.
    pub backing: Option<WirePath>,
    /// Names of nodes that hold copies; empty on a single node.
    pub copies: Vec<String>,
    /// Numbers of the nodes of a cluster that have the whole file; empty on a single node.
    pub nodes: Vec<u16>,
}

/// How far an operation has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Files done.
    pub files_done: u64,
    /// Files known to be part of the work; may grow while directories are walked.
    pub files_total: u64,
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes known to be part of the work; may grow.
    pub bytes_total: u64,
    /// Entries of the backlog that are left.
    pub backlog_left: u64,
    /// Bytes moved: by `warm` and `pin` to the tiers; by a drain to the backing store, in the life of the
    /// daemon and parts of files included.
    pub bytes_copied: u64,
    /// What is being worked on.
    pub current: Option<WirePath>,
    /// Of a sync or a drain: the latest failure to write something back that is not made up for.
    pub last_error: Option<String>,
}

/// How an operation ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Files that were worked on.
    pub files: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Files left as they were because there was nothing to do.
    pub skipped: u64,
    /// Whether everything that was asked for is done.
    pub complete: bool,
    /// Some of the failures, each a path and a reason.
    pub failures: Vec<(WirePath, String)>,
    /// Number of all failures.
    pub failed: u64,
    /// For a drain: some of the files that are still not in the backing store.
    pub remaining: Vec<DirtyFile>,
    /// For a drain: number of such files.
    pub remaining_files: u64,
    /// For a drain: their bytes.
    pub remaining_bytes: u64,
    /// For a drain: entries of the backlog that are left.
    pub remaining_backlog: u64,
    /// For a drain: whether all that is left are files that programs may be changing.
    pub in_use: bool,
    /// For a drain: of the backlog that is left, entries that the backing store can't have. If these
    /// are all, waiting would not help.
    pub refused: u64,
    /// For a drain: requests of programs that the backing store has not answered. Whoever unmounts
    /// now leaves a daemon that can't end.
    pub hung: u64,
    /// For a sync on a node of a cluster: files that other nodes have not written back.
    pub elsewhere: u64,
    /// For a sync: files that programs may be changing. What they had when it began is written.
    #[serde(default)]
    pub written_in_use: u64,
    /// For a sync: whether it ended before everything had had its turn.
    #[serde(default)]
    pub cut_short: bool,
}
