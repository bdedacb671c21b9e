//! The handler: requests in, answers out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_node::metrics::ErrorClass;
use forebay_node::{Cluster, Context, Node, NodeError, OpenHandle, Result, Waiter};
use fusewire::{Connection, Handler, Header, Operation, Reply, Request};

use crate::answer::Answer;
use crate::dataset::Dataset;
use crate::deferred::{Deferred, Stuck, Watch};
use crate::errno::{errno, error_class};
use crate::fiber::{Pause, Refusal, Step, Verdict};
use crate::in_request;
use crate::kernel::Notifier;
use crate::listings::{Held, Listings};
use crate::locks;
use crate::names::class;
use crate::orphans::{self, Orphans};
use crate::recovery_journal::{Before, Noted, RecoveryJournal};
use crate::replayed_requests;
use crate::request_log::Followed;
use crate::serve::Serve;
use crate::turn::{Ended, Turn, UnderWay, Wait};
use crate::under_way::InReaders;
use crate::wire::CachePolicy;

/// Serves a node to the kernel.
pub struct Front(Arc<FrontState>);

/// What the threads of a front have in common.
pub struct FrontState {
    pub node: Arc<Node>,
    cache_policy: CachePolicy,
    watch: Arc<Watch>,
    under_way: InReaders,
    notifier: OnceLock<Arc<Notifier>>,
    /// What a supervisor keeps for the next daemon, and what the last one left there.
    recovery: OnceLock<Recovery>,
    orphans: Arc<Orphans>,
    listings: Listings,
    dataset: Option<Dataset>,
    complaints: Complaints,
}

/// The recovery journal, and what the last daemon left in it.
struct Recovery {
    journal: Arc<RecoveryJournal>,
    before: Before,
}

impl Front {
    pub fn new(node: Arc<Node>) -> std::io::Result<Self> {
        let config = node.config();
        let cache_policy = CachePolicy::new(config);
        let counted = Arc::clone(&node);
        let told = Arc::clone(&node);
        let on_give_up = move |header: &Header| told.give_up_request(header.unique);
        let watch = Watch::new(config.backing_timeout, on_give_up, move |header, waiting| {
            let metrics = counted.metrics();
            metrics.op_seconds.of(class(header.opcode)).observe(waiting);
            metrics.errors.of(ErrorClass::BackingTimeout).inc();
        })?;
        let complaints = Complaints::new();
        let dataset = config.dataset.then(|| Dataset::new(Arc::clone(&node)));
        Ok(Front(Arc::new(FrontState {
            node,
            cache_policy,
            watch,
            under_way: InReaders::new(),
            notifier: OnceLock::new(),
            recovery: OnceLock::new(),
            orphans: Arc::default(),
            listings: Listings::new(cache_policy.listing_valid()),
            dataset,
            complaints,
        })))
    }

    /// Keeps a journal for the next daemon. Before the first request.
    pub fn keep(&self, journal: Arc<RecoveryJournal>, before: Before) {
        if self.0.recovery.set(Recovery { journal, before }).is_err() {
            tracing::error!("a second journal was given; it is ignored");
        }
    }

    /// Lets the kernel keep listings, where these opens of directories are all that may use what an
    /// earlier daemon had it keep.
    pub fn let_listings_be_kept(&self, held: &[Held]) {
        self.0.listings.begin(held);
    }

    /// Opens of directories that may use what the kernel keeps, if they are known.
    pub fn held_listings(&self) -> Option<Vec<Held>> {
        self.0.listings.held()
    }

    /// Closes the files that no program has asked to open, before the node is handed on.
    pub fn close_unasked(&self) {
        if let Some(dataset) = &self.0.dataset {
            dataset.close_all();
        }
    }

    /// Closes those of the handles that nobody has open any more.
    pub fn look_after(
        &self,
        handles: &[OpenHandle],
        connection: &Connection,
    ) -> std::io::Result<()> {
        let journal = self.0.recovery.get().map(|recovery| Arc::clone(&recovery.journal));
        self.0.orphans.suspect(handles);
        orphans::look_after(&self.0.orphans, &self.0.node, journal, connection.clone())
    }

    /// Whether the node is at rest, or about to be.
    pub fn set_at_rest(&self, at_rest: bool) {
        self.0.orphans.pause(at_rest);
    }

    /// Operations that have been waiting for a device for at least `least`, longest first.
    pub fn stuck(&self, least: Duration) -> Vec<Stuck> {
        let mut stuck = self.0.watch.stuck(least);
        stuck.extend(self.0.under_way.longer_than(least));
        stuck.sort_by_key(|stuck| std::cmp::Reverse(stuck.waiting));
        stuck
    }

    /// Requests that wait for locks.
    pub fn waiting_for_locks(&self) -> usize {
        self.0.node.cluster().map_or(0, Cluster::waiting_for_locks)
    }

    /// Invalidations that the kernel was not told of yet.
    pub fn unsent_notices(&self) -> usize {
        self.0.notifier.get().map_or(0, |notifier| notifier.unsent())
    }

    /// Leaves a request that has to wait to the slow pool, which goes on with it.
    fn defer(&self, paused: UnderWay, wait: Wait, case: Case, reply: Reply) {
        let shared = Arc::clone(&self.0);
        let node = &self.0.node;
        let pool = match wait.reads {
            Some(fh) => node.pool_of_reads(fh),
            None => node.slow_pool(),
        };
        let watched = self.0.watch.enter(case.header, wait, paused, reply);
        let deferred = Arc::clone(&watched.deferred);
        let (uid, kept) = (case.header.uid, case.clone());
        let taken = pool.run_for(uid, move || {
            if let Some((paused, verdict)) = watched.deferred.begin() {
                shared.go_on(paused, verdict, &kept, &watched.deferred);
            }
        });
        if taken.is_err()
            && let Some((paused, _)) = deferred.begin()
        {
            self.0.go_on(paused, Err(Refusal::Busy), &case, &deferred);
        }
    }
}

/// What is known of a request beside itself, wherever it is.
#[derive(Clone)]
struct Case {
    header: Header,
    began: Instant,
    followed: Followed,
}

impl FrontState {
    /// Runs a request until it waits or ends. What belongs to the thread is set here, for the request
    /// may end on another one.
    fn run(&self, request: UnderWay, verdict: Verdict, case: &Case) -> Step<Wait, Ended> {
        let serving = self.recovery.get().map(|_| in_request::enter());
        let step = case.followed.scope(|| {
            let step = request.run(verdict);
            match &step {
                Step::Ended(ended, _) => case.followed.ended(&ended.outcome, case.began),
                Step::Waits(..) => case.followed.waits(case.began),
            }
            step
        });
        drop(serving);
        step
    }

    /// Goes on with a request that has waited, to its end.
    fn go_on(&self, paused: UnderWay, verdict: Verdict, case: &Case, deferred: &Deferred) {
        // It waits once: from then on it may.
        let Step::Ended(ended, stack) = self.run(paused, verdict, case) else { return };
        stack.keep();
        match deferred.reply() {
            Some(reply) => self.conclude(ended, case, reply),
            // Nobody waits any more, and nobody else would close what was opened.
            None => {
                self.node.forget_request(case.header.unique);
                self.undo(&case.header, ended.outcome);
                self.answered(ended.noted);
            }
        }
    }

    /// Answers a request, and then does what is to be done once the kernel has the answer.
    fn conclude(&self, ended: Ended, case: &Case, reply: Reply) {
        self.answer(&case.header, ended.outcome, reply, case.began);
        self.answered(ended.noted);
    }

    /// A request is answered: it does not come again, and so is not under way for the next daemon.
    fn answered(&self, noted: Option<Noted>) {
        if let Some(noted) = noted {
            self.forget(noted);
        }
    }

    /// A request that was noted does not come again, or has changed nothing yet.
    pub fn forget(&self, noted: Noted) {
        if let Some(recovery) = self.recovery.get() {
            recovery.journal.end(noted);
        }
    }

    /// Carries a request out, on a stack of its own.
    fn carry_out(&self, request: &Request, pause: Pause<'_, Wait>) -> Ended {
        let turn = Turn::begin(self, request, pause);
        // A defect costs its request an EIO, not a thread its life.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve(request, &turn)));
        let outcome = outcome.unwrap_or_else(|_| {
            self.note_fatal(request);
            Err(NodeError::Posix(rustix::io::Errno::IO))
        });
        Ended { outcome, noted: turn.end() }
    }

    /// After a panic in a request: in a daemon that dies of panics, the next one is told not to try it
    /// again, for the kernel sends it to each.
    fn note_fatal(&self, request: &Request) {
        if let Some(recovery) = self.recovery.get() {
            recovery.journal.note_fatal(replayed_requests::number(request));
            in_request::end_after_panic();
        }
    }

    fn serve(&self, request: &Request, waiter: &dyn Waiter) -> Result<Answer> {
        let Header { uid, gid, pid, opcode, node, .. } = *request.header();
        if let Some(recovery) = self.recovery.get()
            && request.is_resent()
            && recovery.before.fatal.contains(&replayed_requests::number(request))
        {
            tracing::error!(opcode, node, pid, "a request that ended a daemon is refused");
            return Err(NodeError::Posix(rustix::io::Errno::IO));
        }
        let operation = request.operation().map_err(|error| {
            tracing::error!(opcode, %error, "a malformed request of the kernel");
            NodeError::Posix(rustix::io::Errno::IO)
        })?;
        let context = Context { uid, gid, pid, waiter: Some(waiter) };
        let notifier = self.notifier.get().map(|notifier| &**notifier);
        let (node, cache_policy, listings) = (&*self.node, &self.cache_policy, &self.listings);
        let dataset = self.dataset.as_ref();
        let serve = Serve { node, cache_policy, notifier, listings, dataset, request, context };
        match self.recovery.get() {
            None => serve.serve(operation),
            Some(recovery) => self.serve_journaled(recovery, &serve, operation),
        }
    }

    /// Notes what the next daemon must know of a request before it is answered.
    fn serve_journaled(
        &self,
        Recovery { journal, before }: &Recovery,
        serve: &Serve<'_>,
        operation: Operation<'_>,
    ) -> Result<Answer> {
        let resent = serve.request.is_resent();
        if resent && let Some(fh) = before.opened.get(&replayed_requests::number(serve.request)) {
            self.orphans.claim(*fh);
        }
        if resent && let Some(answer) = serve.serve_replayed(before, journal, &operation)? {
            return Ok(answer);
        }
        let outcome = match serve.serve(operation) {
            Err(error) if resent && serve.is_own_trace(before, &operation, &error) => {
                Ok(Answer::Done)
            }
            outcome => outcome,
        };
        if let Operation::Release { fh, .. } = operation {
            journal.note_closed(fh);
        }
        let opened = outcome.as_ref().ok().and_then(Answer::handle);
        if let Some(handle) = opened.and_then(|fh| self.node.open_handle(fh)) {
            journal.note_open(&handle, replayed_requests::number(serve.request));
        }
        outcome
    }

    /// Notes a request that must not be carried out twice, until [`FrontState::forget`].
    pub fn note(&self, request: &Request, waiter: &dyn Waiter) -> Option<Noted> {
        let Recovery { journal, before } = self.recovery.get()?;
        let number = replayed_requests::number(request);
        let operation = request.operation().ok()?;
        let call = before.calls.get(&number).filter(|_| request.is_resent()).copied();
        let Header { node, uid, gid, pid, .. } = *request.header();
        let context = Context { uid, gid, pid, waiter: Some(waiter) };
        let (about, _) = forebay_node::of_node_id(node);
        let call =
            call.or_else(|| replayed_requests::call(&self.node, &context, about, &operation))?;
        journal.begin(number, call, request.is_resent())
    }

    pub fn answer(&self, header: &Header, outcome: Result<Answer>, reply: Reply, began: Instant) {
        let metrics = self.node.metrics();
        metrics.op_seconds.of(class(header.opcode)).observe(began.elapsed());
        match outcome {
            Ok(answer) => answer.send(reply),
            Err(error) => {
                let errno = errno(&error);
                if let Some(class) = error_class(&error, self.node.config()) {
                    metrics.errors.of(class).inc();
                }
                if errno == libc::EIO {
                    self.complaints.hear(header, &error);
                }
                reply.error(errno);
            }
        }
    }

    fn undo(&self, header: &Header, outcome: Result<Answer>) {
        if let Ok(Answer::OpenedDirectory(opened)) = &outcome {
            let (dir, _) = forebay_node::of_node_id(header.node);
            self.listings.undo(dir.0, opened.fh);
        }
        let Ok(answer) = outcome else { return };
        if let Some(fh) = answer.handle() {
            self.node.release(fh);
            if let Some(recovery) = self.recovery.get() {
                recovery.journal.note_closed(fh);
            }
        }
        answer.drop_unsent();
    }
}

impl Handler for Front {
    fn init(&self, connection: &Connection) {
        let config = self.0.node.config();
        let journal = self.0.recovery.get().map(|recovery| Arc::clone(&recovery.journal));
        match Notifier::new(connection.clone(), config, journal) {
            Ok(notifier) => {
                let notifier = Arc::new(notifier);
                self.0.node.attach_kernel(notifier.clone());
                let _ = self.0.notifier.set(notifier);
            }
            Err(error) => tracing::error!(
                %error,
                "no thread for notifications to the kernel: no passthrough, and changes by others \
                 show late"
            ),
        }
    }

    fn handle(&self, request: Request, reply: Reply) {
        let began = Instant::now();
        if locks::is_lock(request.header().opcode) && self.0.node.is_clustered() {
            return locks::serve(&self.0, request, reply, began);
        }
        let header = *request.header();
        let entered = self.0.under_way.enter(&header, began);
        let case = Case { header, began, followed: Followed::of(&request) };
        let shared = Arc::clone(&self.0);
        match UnderWay::new(move |pause| shared.carry_out(&request, pause)) {
            Ok(begun) => match self.0.run(begun, Ok(()), &case) {
                Step::Ended(ended, stack) => {
                    stack.keep_here();
                    self.0.conclude(ended, &case, reply);
                }
                Step::Waits(paused, wait) => self.defer(paused, wait, case, reply),
            },
            Err(error) => self.0.answer(&header, Err(error.into()), reply, began),
        }
        drop(entered);
    }

    /// Inodes are the namespace's and live on without the kernel's references.
    fn forget(&self, _node: u64, _lookups: u64) {}

    fn interrupt(&self, unique: u64) {
        self.0.watch.interrupt(unique);
        if let Some(cluster) = self.0.node.cluster() {
            cluster.stop_waiting(replayed_requests::first(unique));
        }
    }
}

/// Failures of Forebay's own or of the stores, in the log: at most one a second.
struct Complaints {
    begin: Instant,
    /// Milliseconds since `begin` from which on the next one is heard.
    next: AtomicU64,
    silenced: AtomicU64,
}

impl Complaints {
    fn new() -> Self {
        Complaints { begin: Instant::now(), next: AtomicU64::new(0), silenced: AtomicU64::new(0) }
    }

    fn is_due(&self) -> bool {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        now >= next && self.next.compare_exchange(next, now + 1000, set, fetch).is_ok()
    }

    fn hear(&self, header: &Header, error: &NodeError) {
        if self.is_due() {
            let silenced = self.silenced.swap(0, Ordering::Relaxed);
            let Header { opcode, node, pid, .. } = *header;
            tracing::error!(opcode, node, pid, silenced, %error, "an operation failed");
        } else {
            self.silenced.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_when_many_at_once_then_one_is_heard() {
        let complaints = Complaints::new();
        let heard = (0..1000).filter(|_| complaints.is_due()).count();
        assert_eq!(heard, 1);
    }
}
