//! The end of a node.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::error::NodeError;
use crate::node::Node;

impl Node {
    /// Lets go of the namespace and the tiers, so that another node can take them over: nothing
    /// that this one does later changes either.
    pub(crate) fn let_go_of_state(&self) {
        self.meta.close();
        for slot in &self.residency.tiers {
            *slot.lock.lock() = None;
        }
    }

    /// Ends all work that is in hand and makes the state durable. What is not in the backing store
    /// stays on the tiers for the next start. Waits at most `limit`; says whether all ended. What did
    /// not is logged.
    pub fn stop(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.tell_cluster(Cluster::close_to_peers);
        if let Some(streams) = &self.streams {
            // Nobody plays any more; whoever waits for a turn goes on.
            streams.stop();
        }
        let unsettled = self.residency.settle_all(until).len();
        self.writeback.restamp_moved();
        // While the reconciler can still take away what they had spilled.
        self.residency.discard_removed();
        self.stopping.store(true, Ordering::Release);
        self.writeback.stop_reconciler();
        self.residency.discard_removed();
        self.residency.write_accesses();
        self.writeback.write_conflicts();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let mut ended = self.writeback.flushers.close(left(until)) & self.slow.close(left(until));
        ended &= self.streams.as_ref().is_none_or(|streams| streams.readers().close(left(until)));
        ended &= self.cluster.as_ref().is_none_or(|cluster| cluster.close(left(until)));
        for handle in self.threads.lock().drain(..) {
            // One that hangs in the backing store is left behind.
            while !handle.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            ended &= handle.is_finished();
        }
        if let Some(log) = &self.residency.event_log {
            log.write_out();
        }
        if !ended || unsettled > 0 {
            tracing::warn!(
                files_in_use = unsettled,
                threads_left = !ended,
                "the backing store did not answer in time; the next start goes on from the tiers"
            );
            ended = false;
        }
        let tidied = || {
            self.wanted_spills()?;
            Ok::<_, NodeError>(self.backing.tidy()?)
        };
        if ended && let Err(error) = tidied() {
            tracing::debug!(%error, "the private area stays in the backing store");
        }
        if let Err(error) = self
            .meta
            .sync()
            .map_err(NodeError::from)
            .and_then(|()| self.note_clean_end(ended, until))
        {
            tracing::error!(
                %error,
                "the namespace can't be synced: what was changed last may be lost if the machine \
                 goes down before the next mount"
            );
        } else if self.residency.has_tiers()
            && let Err(error) = self.note_members_at_end(ended)
        {
            tracing::warn!(
                %error,
                "can't note on the tiers how this mount ended: they count as having files that the \
                 backing store lacks"
            );
        }
        if let Some(cluster) = &self.cluster {
            cluster.end_heartbeat(left(until));
            cluster.leave(ended);
            // Nobody has to wait for what this node worked in.
            self.meta.close();
            cluster.end();
        }
        ended
    }
}
