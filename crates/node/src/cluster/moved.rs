//! Directories that were renamed here: the other nodes' kernels drop the old name before whoever
//! renamed one hears that it is done.
//!
//! What a kernel kept while its node had the lease was taken back with it ([`super::kernel_grants`]). But a
//! program whose look-up was answered before that, and which was not run since, brings the name of a
//! directory back into its kernel's cache, as that was not dropped from there: it may be somebody's
//! working directory, or something may be mounted on it. Once the directory has another name, it is.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use forebay_core::cluster::grants::Fact;
use forebay_meta::{NameIn, Renamed};
use forebay_peer::message::Fault;
use forebay_peer::{Body, Client};
use prost::Message;

use super::Cluster;

/// Names of directories mean something else than before.
pub(crate) const MOVED: u32 = 48;
/// Another node is waited for so long: beyond it, only a program there that was not run for as long
/// can see the old name, and its kernel keeps it for a few seconds.
const WITHIN: Duration = Duration::from_secs(1);
/// A kernel is waited for so long. It may not listen, as a program holds the directory's lock that
/// waits for the node whose rename this is; it is told when that has gone on.
const KERNEL_TIMEOUT: Duration = Duration::from_millis(250);
/// So many nodes are told at a time.
const AT_ONCE: usize = 16;

#[derive(Clone, PartialEq, Message)]
struct Moved {
    #[prost(message, repeated, tag = "1")]
    names: Vec<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(fixed64, tag = "1")]
    dir: u64,
    #[prost(bytes = "vec", tag = "2")]
    name: Vec<u8>,
}

impl Cluster {
    /// Tells the other nodes which names directories no longer have after a rename.
    pub(crate) fn tell_of_moved(&self, renamed: &Renamed, from: NameIn<'_>, to: NameIn<'_>) {
        let Some(peers) = self.peers.get() else { return };
        let exchanged = renamed.exchanged.as_ref().map(|record| (record, to));
        let ends = [(&renamed.moved, from)].into_iter().chain(exchanged);
        let ends = ends.filter(|(record, _)| record.is_directory());
        let names: Vec<Name> =
            ends.map(|(_, at)| Name { dir: at.dir.0, name: at.name.to_vec() }).collect();
        if names.is_empty() {
            return;
        }
        // Also those that have joined a moment ago.
        match self.meta.members() {
            Ok(members) => peers.learn(&members),
            Err(error) => tracing::debug!(%error, "who has joined is not known"),
        }
        let others = self.within_reach(peers).into_iter().filter(|node| *node != self.me.node);
        let others: Vec<Arc<Client>> = others.filter_map(|node| peers.client(node)).collect();
        let moved = Moved { names };
        let body = Body::Bytes(moved.encode_to_vec());
        let tell = |client: &Client| {
            if let Err(error) = client.other(MOVED, &body, 0, WITHIN) {
                tracing::debug!(%error, "a node does not hear that a directory was renamed");
            }
        };
        for some in others.chunks(AT_ONCE) {
            let Some((last, rest)) = some.split_last() else { continue };
            thread::scope(|scope| {
                for client in rest {
                    let told = thread::Builder::new().spawn_scoped(scope, || tell(client));
                    if told.is_err() {
                        tell(client);
                    }
                }
                tell(last);
            });
        }
    }

    /// Another node has renamed directories.
    pub(crate) fn forget_moved(&self, bytes: &[u8]) -> Result<(), Fault> {
        let moved = Moved::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        let Some(kernel) = self.kernel.get() else { return Ok(()) };
        let fact = |name: Name| Fact::Name(name.dir, name.name.into());
        let (done, heard) = sync_channel(1);
        let done = move || {
            // Nobody may wait for it any more.
            let _ = done.try_send(());
        };
        kernel.expire(moved.names.into_iter().map(fact).collect(), Box::new(done));
        if heard.recv_timeout(KERNEL_TIMEOUT).is_err() {
            tracing::debug!("the kernel has not forgotten yet where a directory was");
        }
        Ok(())
    }
}
