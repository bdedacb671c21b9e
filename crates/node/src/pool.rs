//! The slow pool: threads that wait for slow devices so that nobody else has to.
//!
//! A request that would have to wait is tried again here. Threads are started when all others are
//! busy, up to a limit, and end after idling. The queue is bounded: what does not fit is refused.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

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

struct Queues {
    demand: VecDeque<Job>,
    background: VecDeque<Job>,
    threads: usize,
    idle: usize,
    background_running: usize,
    closed: bool,
}

struct Shared {
    queues: Mutex<Queues>,
    wake: Condvar,
    ended: Condvar,
    most_threads: usize,
    most_queued: usize,
}

/// A bounded pool of threads. Clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

impl Pool {
    /// A pool of at most `threads` threads with room for `queued` waiting jobs of each urgency.
    pub fn new(threads: usize, queued: usize) -> Self {
        let queues = Queues {
            demand: VecDeque::new(),
            background: VecDeque::new(),
            threads: 0,
            idle: 0,
            background_running: 0,
            closed: false,
        };
        let shared = Shared {
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
        let mut queues = self.shared.queues.lock();
        let closed = queues.closed;
        let queue = match urgency {
            Urgency::Demand => &mut queues.demand,
            Urgency::Background => &mut queues.background,
        };
        if closed || queue.len() >= self.shared.most_queued {
            return Err(Refused);
        }
        queue.push_back(Box::new(job));
        if queues.idle > 0 {
            self.shared.wake.notify_one();
        } else if queues.threads < self.shared.most_threads {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("slow".into()).spawn(move || shared.serve());
            match started {
                Ok(_) => queues.threads += 1,
                Err(error) => tracing::warn!(%error, "no further thread for slow devices"),
            }
        }
        Ok(())
    }

    /// Jobs that wait for a thread.
    pub fn queued(&self) -> usize {
        let queues = self.shared.queues.lock();
        queues.demand.len() + queues.background.len()
    }

    /// Jobs of one urgency that wait for a thread.
    pub fn queued_as(&self, urgency: Urgency) -> usize {
        let queues = self.shared.queues.lock();
        match urgency {
            Urgency::Demand => queues.demand.len(),
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
        self.demand.is_empty() && self.background.is_empty() && self.idle == self.threads
    }
}

impl Shared {
    fn serve(&self) {
        let mut queues = self.queues.lock();
        loop {
            // Background work never takes the last quarter of the threads: a demand that comes
            // while the backing store hangs must find one.
            let room = queues.background_running < (self.most_threads * 3 / 4).max(1);
            let (job, background) = match queues.demand.pop_front() {
                Some(job) => (Some(job), false),
                None if room => (queues.background.pop_front(), true),
                None => (None, false),
            };
            if let Some(job) = job {
                queues.background_running += usize::from(background);
                // A defect in a job does not cost the pool a thread; the panic was reported.
                parking_lot::MutexGuard::unlocked(&mut queues, || {
                    drop(catch_unwind(AssertUnwindSafe(job)));
                });
                queues.background_running -= usize::from(background);
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
            if timed_out && queues.demand.is_empty() && queues.background.is_empty() {
                break;
            }
        }
        queues.threads -= 1;
        self.ended.notify_all();
    }
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
