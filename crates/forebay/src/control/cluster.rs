//! What a daemon tells about its cluster, and does for it.

use serde::{Deserialize, Serialize};

use super::WirePath;

/// What a daemon is asked about its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum ClusterRequest {
    /// Who is in it. Answer: [`ClusterReply::Status`].
    Status,
    /// A node shall write everything back and leave. Answer, at once: [`ClusterReply::Done`].
    Drain {
        /// Its number.
        node: u16,
    },
    /// Copies shall move to nodes with more room. Answer, at once: [`ClusterReply::Rebalancing`].
    Rebalance,
    /// What a dead node had is given up. Answer: [`ClusterReply::Forgotten`].
    Forget {
        /// Its number.
        node: u16,
        /// Whether to do it, or only to say what would be lost.
        really: bool,
    },
    /// What was migrated by itself. Answer: [`ClusterReply::Migrations`].
    Migrations,
    /// Another node shall get ready for a task. Answer: [`ClusterReply::Host`].
    Host {
        /// Its number.
        node: u16,
    },
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "body", rename_all = "kebab-case")]
pub enum ClusterReply {
    /// To [`ClusterRequest::Status`].
    Status(ClusterStatus),
    /// To [`ClusterRequest::Drain`].
    Done,
    /// To [`ClusterRequest::Rebalance`]: so many nodes were told.
    Rebalancing(usize),
    /// To [`ClusterRequest::Forget`].
    Forgotten(Forgotten),
    /// To [`ClusterRequest::Migrations`].
    Migrations(AutoMigrations),
    /// To [`ClusterRequest::Host`].
    Host(TaskHost),
}

/// Where a node waits for a task, and how it is talked to there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskHost {
    /// `host:port`.
    pub at: String,
    /// Whoever brings the task says this.
    pub token: String,
    /// The file with the secret by which nodes know each other, on this machine.
    pub secret: WirePath,
    /// The file with another secret that is believed, too.
    pub other_secret: Option<WirePath>,
}

/// The nodes of a cluster, as one of them sees the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// The number of the node that answers.
    pub this: u16,
    /// All that have ever joined, by number.
    pub nodes: Vec<ClusterNode>,
    /// How safe is what the node that answers has, and what it does for others.
    pub safety: Option<Safety>,
}

/// How safe is what a node has, and what it does for others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Safety {
    /// Files of its own that have copies on other nodes.
    pub copied_files: u64,
    /// Of these, files with fewer copies than they should have.
    pub lacking_files: u64,
    /// Bytes of the copies that are missing.
    pub missing_bytes: u64,
    /// Files that wait for their copies, for which nobody waits.
    pub waiting_files: u64,
    /// How long the first of them has waited, in milliseconds.
    pub lag_ms: u64,
    /// Copies that it has for other nodes.
    pub held_files: u64,
    /// Bytes that they take on its tiers.
    pub held_bytes: u64,
    /// Files that other nodes have taken over from it, of which it keeps what it had aside.
    pub aside_files: u64,
    /// Bytes that they take on its tiers.
    pub aside_bytes: u64,
    /// Copies of its own files that are about to move to nodes with more room.
    pub moving_files: u64,
    /// Their bytes.
    pub moving_bytes: u64,
    /// Other nodes that it takes to keep what is written as the mount asks for.
    pub wanted_nodes: u64,
    /// Other nodes that can be given something to keep.
    pub able_nodes: u64,
}

/// How a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It lives.
    #[default]
    Up,
    /// It lives, and is to leave.
    Leaving,
    /// It has shown no sign of life for so long that it counts as dead.
    Dead,
    /// It has shown no sign of life while it was looked at, for some seconds.
    Silent,
    /// It has left, with nothing to write back.
    Left,
}

/// A node of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterNode {
    /// Its number, which stays.
    pub node: u16,
    /// The machine that it runs on.
    pub host: String,
    /// Where it listens for other nodes; empty if it does not.
    pub reach: String,
    /// How it is.
    pub state: NodeState,
    /// Its starts so far.
    pub epoch: u64,
    /// Seconds since its last sign of life, as the node that answers has seen it.
    pub silent_s: u64,
    /// Files of which it has bytes that the backing store lacks, as it said last.
    pub dirty_files: u64,
    /// Those bytes.
    pub dirty_bytes: u64,
    /// Inodes that it has to bring in line in the backing store.
    pub backlog: u64,
    /// Bytes that it keeps for other nodes, as it said last.
    pub held_bytes: u64,
    /// Bytes of its tiers.
    pub room_bytes: u64,
    /// Bytes of copies of its files that are about to move to nodes with more room.
    pub moving_bytes: u64,
    /// Changes that it acknowledged and that are lost, as others took it for dead.
    pub lost_changes: u64,
    /// Why it did not leave when it was last told to.
    pub refusal: Option<String>,
}

/// How a cluster is, seen by a process that has not joined it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterLook {
    /// Its metadata servers.
    pub servers: Vec<ClusterServer>,
    /// What its nodes agree on.
    pub terms: ClusterTerms,
    /// Its nodes.
    pub nodes: Vec<ClusterNode>,
    /// Why its names can't be used, if they can't.
    pub trouble: Option<String>,
}

/// A metadata server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterServer {
    /// Its host and port.
    pub address: String,
    /// What it is, and its version; nothing if it does not say.
    pub version: Option<String>,
    /// It is one of a cluster.
    pub in_cluster: bool,
    /// It is asked, and no replica.
    pub primary: bool,
    /// It has a part of the names.
    pub serves: bool,
    /// Replicas that follow it.
    pub replicas: u32,
    /// What it keeps on its disk, if it says so.
    pub log: Option<ServerLog>,
    /// Why it can't be used, if it can't.
    pub trouble: Option<String>,
}

/// What a metadata server keeps on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerLog {
    /// Nothing.
    Nothing,
    /// All but the last second or two.
    EverySecond,
    /// All that it has acknowledged.
    Always,
}

/// What the nodes of a cluster agree on, as far as anybody has said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterTerms {
    /// Replicas of a metadata server that must have a change before it counts.
    pub replicas: Option<u32>,
    /// What other nodes keep of what a node writes.
    pub redundancy: Option<String>,
    /// The fingerprint of the nodes' secret; `off` where they have none.
    pub secret: Option<String>,
    /// The path of the backing store.
    pub backing: Option<WirePath>,
    /// The mark of the backing store.
    pub store: Option<String>,
}

/// What was given up with a dead node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forgotten {
    /// Whether it was done, or would be lost.
    pub done: bool,
    /// Files that lose bytes; at most 10,000 are named.
    pub files: Vec<LostFile>,
    /// How many there are.
    pub files_total: u64,
    /// Other files that it could write: of what it wrote and did not close, nobody knows.
    pub uncertain: u64,
}

/// A file that loses what a dead node had of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostFile {
    /// Its path below the mount point.
    pub path: WirePath,
    /// The size that it had.
    pub size_bytes: u64,
    /// Whether an older version is in the backing store, which is shown from now on; else the file
    /// goes.
    pub has_older: bool,
}

/// What a daemon tells of migrations that nobody asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutoMigrations {
    /// Milliseconds between two scans.
    pub interval_ms: u64,
    /// Whether this node plans for all: the one with the lowest number does.
    pub plans: bool,
    /// Plans that it has made.
    pub scans: u64,
    /// Nodes that took part in the last one.
    pub nodes: u64,
    /// Migrations of tasks that were started on this node, the newest last; the last 100.
    pub migrations: Vec<AutoMigration>,
}

/// A migration that nobody asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutoMigration {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The task: run and job.
    pub task: String,
    /// From this node.
    pub from: u16,
    /// To this one.
    pub to: u16,
    /// Because of a task there.
    pub with: String,
    /// Milliseconds that are expected to be saved, less those that it costs.
    pub worth_ms: u64,
    /// What became of it; nothing while it is under way.
    pub outcome: Option<String>,
    /// Whether the task has moved.
    pub moved: bool,
}
