//! Tasks that one node has restored at another, and what nodes tell each other of their tasks. What that
//! takes the node does not know: it hands requests and answers on between those who serve the mounts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_peer::message::Fault;
use forebay_peer::{Body, Error as PeerError};

use super::Cluster;
use crate::error::{NodeError, Result};

/// A task shall go on here.
pub(crate) const HOST: u32 = 49;
/// Something is asked about tasks.
pub(crate) const TASKS: u32 = 50;
/// The longest answer.
const ANSWER: u32 = 64 << 10;
/// The longest one about tasks: their newest accesses.
const TASKS_ANSWER: u32 = 8 << 20;
/// How long the other node may take to get ready for it.
const WITHIN: Duration = Duration::from_secs(20);

/// Gets ready to host a task, or answers about tasks: takes the number of the node that asks and what it
/// says, gives what it is to be told.
pub type TaskHost = Arc<dyn Fn(u16, &[u8]) -> Vec<u8> + Send + Sync>;

/// Whoever gets ready for tasks of other nodes, if they are taken at all, and answers about tasks, if
/// anything is told of them.
#[derive(Default)]
pub(super) struct Hosting {
    hosts: OnceLock<TaskHost>,
    tells: OnceLock<TaskHost>,
}

impl Cluster {
    /// From now on tasks of other nodes are taken.
    pub fn take_tasks(&self, host: TaskHost) {
        // Whoever was there first stays.
        let _ = self.hosting.hosts.set(host);
    }

    /// Asks another node to get ready for a task, and returns what its [`TaskHost`] says.
    ///
    /// # Errors
    /// `Config` if that node takes no tasks, or can't be reached.
    pub fn ask_for_host(&self, node: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        let unreachable =
            || NodeError::Config(format!("node {node} does not listen for other nodes"));
        let client = self.peer(node).ok_or_else(unreachable)?;
        match client.other(HOST, &Body::Bytes(body), ANSWER, WITHIN) {
            Ok(answer) => Ok(answer.to_vec()),
            Err(PeerError::Fault(Fault::Unsupported)) => Err(NodeError::Config(format!(
                "node {node} takes no tasks of other nodes: mount it with --host-tasks on"
            ))),
            Err(error) => Err(NodeError::Config(format!("node {node}: {error}"))),
        }
    }

    /// From now on other nodes are told of tasks.
    pub fn answer_about_tasks(&self, tells: TaskHost) {
        let _ = self.hosting.tells.set(tells);
    }

    /// Asks another node about tasks.
    ///
    /// # Errors
    /// `Config` if that node tells nothing, or can't be reached.
    pub fn ask_about_tasks(&self, node: u16, body: Vec<u8>, within: Duration) -> Result<Vec<u8>> {
        let failed = |why: &dyn std::fmt::Display| NodeError::Config(format!("node {node}: {why}"));
        let client = self.peer(node).ok_or_else(|| failed(&"it does not listen"))?;
        let answer = client.other(TASKS, &Body::Bytes(body), TASKS_ANSWER, within);
        answer.map(|answer| answer.to_vec()).map_err(|error| failed(&error))
    }

    /// Another node asks about tasks.
    pub(crate) fn tell_of_tasks(&self, asker: u16, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        let tells = self.hosting.tells.get().ok_or(Fault::Unsupported)?;
        Ok(tells(asker, bytes))
    }

    /// Another node asks so.
    pub(crate) fn host_for(&self, asker: u16, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        let host = self.hosting.hosts.get().ok_or(Fault::Unsupported)?;
        Ok(host(asker, bytes))
    }
}
