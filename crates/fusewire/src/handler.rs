use crate::{Connection, Reply, Request};

/// What a file system implements: one method for all requests.
///
/// All methods take `&self` and are called from several reader threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Called once, before the first request, when the session's parameters are known: after
    /// INIT was negotiated, or when a live connection was adopted.
    fn init(&self, connection: &Connection) {
        let _ = connection;
    }

    /// Handles one request: any except INIT, DESTROY, FORGET, BATCH_FORGET and INTERRUPT, which
    /// the session deals with.
    ///
    /// Must not block for long, since the calling thread is one of the few readers: slow work
    /// moves `request` and `reply` to another thread. A reply dropped unanswered answers `EIO`.
    fn handle(&self, request: Request, reply: Reply);

    /// The kernel dropped `lookups` references to `node` (as counted by replies that carried an
    /// [`Entry`](crate::Entry) for it). Never answered.
    fn forget(&self, node: u64, lookups: u64);

    /// The client of request `unique` was hit by a signal. Called after the request's
    /// [`Interrupt`](crate::Interrupt) was set, so that a thread that waits on something of its
    /// own can be woken; need not do anything. `unique` is what the request's header has.
    ///
    /// Not called if the signal came before the request, and called before [`Handler::handle`] if it
    /// came at the same moment: whoever lets a request wait looks at its `Interrupt` once it can be
    /// found here.
    fn interrupt(&self, unique: u64) {
        let _ = unique;
    }

    /// The file system was unmounted; no request follows. Called once, by the last reader.
    fn destroy(&self) {}
}
