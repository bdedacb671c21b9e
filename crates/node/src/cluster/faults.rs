//! What nodes tell each other when something can't be done.

use forebay_meta::Error as MetaError;
use forebay_peer::Call;
use forebay_peer::message::Fault;

use super::Cluster;
use crate::error::NodeError;

pub(crate) fn same_epoch(cluster: &Cluster, epoch: u64) -> Result<(), Fault> {
    match epoch == cluster.me.epoch {
        true => Ok(()),
        false => Err(Fault::WrongEpoch { epoch: cluster.me.epoch }),
    }
}

/// The number of the node that asks.
pub(crate) fn asker(call: &Call) -> Result<u16, Fault> {
    u16::try_from(call.from.node).map_err(|_| Fault::Invalid("there is no such node".into()))
}

/// What another node is told of a failure here.
pub(crate) fn fault(error: NodeError) -> Fault {
    match error {
        NodeError::Posix(errno) => Fault::Io { errno: errno.raw_os_error() },
        NodeError::Meta(MetaError::Stale(_)) => Fault::Io { errno: libc::ESTALE },
        NodeError::Busy | NodeError::ShuttingDown => Fault::Closing,
        NodeError::Store(error) => Fault::Io { errno: error.errno() },
        error => {
            tracing::warn!(%error, "what another node asked for failed here: its program gets EIO");
            Fault::Io { errno: libc::EIO }
        }
    }
}
