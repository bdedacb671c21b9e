//! The slow pool: threads that wait for slow devices so that nobody else has to.
//!
//! A request that has to wait goes on here. Threads are started when all others are
//! busy, up to a limit, and end after idling. The queue is bounded: what does not fit is refused.
//!
//! Users take turns, and none has all threads or all places: a program that asks for a thousand things
//! of a store that hangs holds up its own user.
//!
//! Owns: the threads and the queues of both urgencies. Must not know: what a job does.
//!
//! # Invariants (tests of this file)
//! - Background work never takes the last quarter of the threads: a demand finds one also while
//!   background jobs hang.
//! - No user has the last eighth of the threads or more than three quarters of the places. Root and
//!   the daemon itself are not counted.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

type Job = Box<dyn FnOnce() + Send>;

/// How urgent a job is: demand before background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Nobody does.
    Background,
}

/// A job that the pool did not take: its queue is full or it is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

/// Who asked for a job; nobody is the daemon itself, and root.
type User = Option<u32>;

/// Jobs that somebody waits for.
#[derive(Default)]
struct Demands {
    waiting: HashMap<User, VecDeque<Job>>,
    /// Those of whom something waits, in the order of their turns.
    turns: VecDeque<User>,
    running: HashMap<User, usize>,
    count: usize,
}

impl Demands {
    fn push(&mut self, user: User, job: Job) {
        let jobs = self.waiting.entry(user).or_default();
        if jobs.is_empty() {
            self.turns.push_back(user);
        }
        jobs.push_back(job);
        self.count += 1;
    }

    fn waiting_of(&self, user: User) -> usize {
        self.waiting.get(&user).map_or(0, VecDeque::len)
    }

    /// The job of the next user who has fewer than `most` threads. It is to be ended by
    /// [`Demands::end`].
    fn begin(&mut self, most: usize) -> Option<(User, Job)> {
        let may = |user: &User| {
            user.is_none() || self.running.get(user).is_none_or(|running| *running < most)
        };
        let at = self.turns.iter().position(may)?;
        let user = self.turns.remove(at)?;
        let jobs = self.waiting.get_mut(&user)?;
        let job = jobs.pop_front()?;
        match jobs.is_empty() {
            true => drop(self.waiting.remove(&user)),
            false => self.turns.push_back(user),
        }
        self.count -= 1;
        *self.running.entry(user).or_default() += 1;
        Some((user, job))
    }

    fn end(&mut self, user: User) {
        if let Some(running) = self.running.get_mut(&user) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&user);
            }
        }
    }
}

struct Queues {
    demand: Demands,
    background: VecDeque<Job>,
    threads: usize,
    idle: usize,
    background_running: usize,
    closed: bool,
}

struct PoolState {
    queues: Mutex<Queues>,
    wake: Condvar,
    ended: Condvar,
    most_threads: usize,
    most_queued: usize,
}

/// A bounded pool of threads. Clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<PoolState>,
}

/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

impl Pool {
    /// A pool of at most `threads` threads with room for `queued` waiting jobs of each urgency.
    pub fn new(threads: usize, queued: usize) -> Self {
        let queues = Queues {
            demand: Demands::default(),
            background: VecDeque::new(),
            threads: 0,
            idle: 0,
            background_running: 0,
            closed: false,
        };
        let shared = PoolState {
            queues: Mutex::new(queues),
            wake: Condvar::new(),
            ended: Condvar::new(),
            most_threads: threads.max(2),
            most_queued: queued,
        };
        Pool { shared: Arc::new(shared) }
    }

    /// Hands `job` over.
    ///
    /// # Errors
    /// [`Refused`] when the queue is full or the pool is closed; the job is dropped.
    pub fn run(
        &self,
        urgency: Urgency,
        job: impl FnOnce() + Send + 'static,
    ) -> Result<(), Refused> {
        self.take(urgency, None, Box::new(job))
    }

    /// Hands over a job that a program of this user waits for.
    ///
    /// # Errors
    /// [`Refused`] as for [`Pool::run`], or as three quarters of the queue are this user's.
    pub fn run_for(&self, uid: u32, job: impl FnOnce() + Send + 'static) -> Result<(), Refused> {
        self.take(Urgency::Demand, (uid != 0).then_some(uid), Box::new(job))
    }

    fn take(&self, urgency: Urgency, user: User, job: Job) -> Result<(), Refused> {
        let mut queues = self.shared.queues.lock();
        let most = self.shared.most_queued;
        let waiting = match urgency {
            Urgency::Demand => queues.demand.count,
            Urgency::Background => queues.background.len(),
        };
        let too_many = user.is_some() && queues.demand.waiting_of(user) >= (most * 3 / 4).max(1);
        if queues.closed || waiting >= most || too_many {
            return Err(Refused);
        }
        match urgency {
            Urgency::Demand => queues.demand.push(user, job),
            Urgency::Background => queues.background.push_back(job),
        }
        self.shared.wake.notify_one();
        // One that idles may be on its way to another job.
        let waiting = queues.demand.count + queues.background.len();
        if waiting > queues.idle && queues.threads < self.shared.most_threads {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("slow".into()).spawn(move || shared.serve());
            match started {
                Ok(_) => queues.threads += 1,
                Err(error) => tracing::warn!(
                    %error,
                    "no further thread for requests that wait for slow devices: they take longer. \
                     Raise the limit of threads"
                ),
            }
        }
        Ok(())
    }

    /// Jobs that wait for a thread.
    pub fn queued(&self) -> usize {
        let queues = self.shared.queues.lock();
        queues.demand.count + queues.background.len()
    }

    /// Jobs of one urgency that wait for a thread.
    pub fn queued_as(&self, urgency: Urgency) -> usize {
        let queues = self.shared.queues.lock();
        match urgency {
            Urgency::Demand => queues.demand.count,
            Urgency::Background => queues.background.len(),
        }
    }

    /// Waits up to `limit` for a moment at which nothing is queued or under way; says whether it
    /// came. Jobs are taken as before.
    pub fn rest(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut queues = self.shared.queues.lock();
        while !queues.is_at_rest() {
            if self.shared.ended.wait_until(&mut queues, until).timed_out() {
                return queues.is_at_rest();
            }
        }
        true
    }

    /// Whether nothing is queued or under way.
    pub fn is_at_rest(&self) -> bool {
        self.shared.queues.lock().is_at_rest()
    }

    /// Takes no more jobs and waits up to `limit` for those under way. Says whether all ended.
    pub fn close(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut queues = self.shared.queues.lock();
        queues.closed = true;
        queues.background.clear();
        self.shared.wake.notify_all();
        while queues.threads > 0 {
            if self.shared.ended.wait_until(&mut queues, until).timed_out() {
                return queues.threads == 0;
            }
        }
        true
    }
}

impl Queues {
    fn is_at_rest(&self) -> bool {
        self.demand.count == 0 && self.background.is_empty() && self.idle == self.threads
    }
}

impl PoolState {
    fn serve(&self) {
        let mut queues = self.queues.lock();
        loop {
            // Background work never takes the last quarter of the threads: a demand that comes
            // while the backing store hangs must find one.
            let room = queues.background_running < (self.most_threads * 3 / 4).max(1);
            // No user's jobs take the last eighth.
            let of_one = self.most_threads - self.most_threads / 8;
            if let Some((user, job)) = queues.demand.begin(of_one) {
                do_unlocked(&mut queues, job);
                queues.demand.end(user);
                continue;
            }
            if room && let Some(job) = queues.background.pop_front() {
                queues.background_running += 1;
                do_unlocked(&mut queues, job);
                queues.background_running -= 1;
                continue;
            }
            if queues.closed {
                break;
            }
            queues.idle += 1;
            if queues.is_at_rest() {
                self.ended.notify_all();
            }
            let timed_out = self.wake.wait_for(&mut queues, IDLE).timed_out();
            queues.idle -= 1;
            if timed_out && queues.demand.count == 0 && queues.background.is_empty() {
                break;
            }
        }
        queues.threads -= 1;
        self.ended.notify_all();
    }
}

/// A defect in a job does not cost the pool a thread; the panic was reported.
fn do_unlocked(queues: &mut MutexGuard<'_, Queues>, job: Job) {
    MutexGuard::unlocked(queues, || drop(catch_unwind(AssertUnwindSafe(job))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn jobs_all_run_when_more_than_threads() {
        let pool = Pool::new(3, 1000);
        let done = Arc::new(AtomicUsize::new(0));
        for index in 0..200 {
            let done = done.clone();
            let urgency = if index % 2 == 0 { Urgency::Demand } else { Urgency::Background };
            pool.run(urgency, move || {
                done.fetch_add(1, Ordering::SeqCst);
            })
            .expect("the queue has room");
        }
        while pool.queued() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(pool.close(Duration::from_secs(5)));
        assert_eq!(done.load(Ordering::SeqCst), 200);
    }

    #[test]
    fn a_job_that_panics_leaves_its_thread() {
        let pool = Pool::new(2, 100);
        for _ in 0..10 {
            pool.run(Urgency::Background, || panic!("a defect")).expect("room");
        }
        let (send, receive) = std::sync::mpsc::channel();
        pool.run(Urgency::Background, move || send.send(()).expect("the test waits"))
            .expect("room");
        receive.recv_timeout(Duration::from_secs(5)).expect("the pool works on");
        assert!(pool.close(Duration::from_secs(5)), "every thread is accounted for");
    }

    #[test]
    fn a_full_queue_refuses() {
        let pool = Pool::new(2, 4);
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock();
        let mut refused = 0;
        for _ in 0..20 {
            let gate = gate.clone();
            refused += usize::from(pool.run(Urgency::Demand, move || drop(gate.lock())).is_err());
        }
        assert!(refused >= 14, "2 running and 4 waiting at most, refused {refused}");
        drop(held);
        assert!(pool.close(Duration::from_secs(5)));
    }

    #[test]
    fn user_whose_jobs_hang_then_others_find_threads_and_places() {
        let pool = Pool::new(8, 40);
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock();
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..100 {
            let gate = gate.clone();
            match pool.run_for(1000, move || drop(gate.lock())) {
                Ok(()) => taken += 1,
                Err(Refused) => refused += 1,
            }
        }
        assert!((30..=37).contains(&taken), "7 threads and 30 places: {taken}, {refused} refused");
        let (send, receive) = std::sync::mpsc::channel();
        for uid in [1001, 0, 1002] {
            let send = send.clone();
            pool.run_for(uid, move || send.send(uid).expect("the test waits")).expect("a place");
        }
        for _ in 0..3 {
            receive.recv_timeout(Duration::from_secs(20)).expect("the others' jobs ran");
        }
        drop(held);
        assert!(pool.close(Duration::from_secs(20)), "all that was taken is done");
        assert_eq!(pool.queued(), 0);
    }

    #[test]
    fn jobs_when_they_come_at_once_and_one_thread_idles_then_none_waits_for_the_other() {
        let pool = Pool::new(4, 40);
        for _ in 0..20 {
            pool.run(Urgency::Demand, || ()).expect("a place");
            assert!(pool.rest(Duration::from_secs(20)), "a thread idles");
            let gate = Arc::new(Mutex::new(()));
            let held = gate.lock();
            let hangs = gate.clone();
            pool.run(Urgency::Demand, move || drop(hangs.lock())).expect("a place");
            let (send, receive) = std::sync::mpsc::channel();
            pool.run(Urgency::Demand, move || send.send(()).expect("waited for")).expect("a place");
            receive.recv_timeout(Duration::from_secs(20)).expect("another thread does it");
            drop(held);
        }
    }

    #[test]
    fn users_when_one_asks_for_much_then_they_take_turns() {
        let mut demands = Demands::default();
        for user in [Some(1), Some(1), Some(1), Some(2), None] {
            demands.push(user, Box::new(|| ()));
        }
        let mut order = Vec::new();
        while let Some((user, _)) = demands.begin(2) {
            order.push(user);
        }
        assert_eq!(order, [Some(1), Some(2), None, Some(1)], "he has two threads");
        demands.end(Some(1));
        assert_eq!(demands.begin(2).map(|(user, _)| user), Some(Some(1)));
        assert_eq!(demands.count, 0);
    }

    #[test]
    fn a_demand_finds_a_thread_when_background_jobs_hang() {
        let pool = Pool::new(4, 100);
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock();
        for _ in 0..50 {
            let gate = gate.clone();
            pool.run(Urgency::Background, move || drop(gate.lock())).expect("room");
        }
        let (send, receive) = std::sync::mpsc::channel();
        pool.run(Urgency::Demand, move || send.send(()).expect("the test waits")).expect("room");
        receive.recv_timeout(Duration::from_secs(5)).expect("the demand ran");
        drop(held);
        assert!(pool.close(Duration::from_secs(5)));
    }
}
