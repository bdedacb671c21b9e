//! Policies that know the past alone.

use super::Run;
use super::families::Trace;

/// A file in the cache.
#[derive(Debug, Clone, Copy)]
struct File {
    id: u64,
    size: u64,
    uses: u64,
    touched: usize,
    priority: f64,
}

fn held(files: &[File]) -> u64 {
    files.iter().map(|file| file.size).sum()
}

/// A cache from which what `victim` finds leaves until the newcomer fits.
fn cache(trace: &Trace, victim: impl Fn(&[File]) -> usize) -> Run {
    let mut run = Run::default();
    let mut files: Vec<File> = Vec::new();
    for (t, &(id, size)) in trace.requests.iter().enumerate() {
        if let Some(file) = files.iter_mut().find(|file| file.id == id) {
            (file.uses, file.touched) = (file.uses + 1, t);
            run.note(size, size);
            continue;
        }
        run.note(size, 0);
        if size > trace.capacity {
            continue;
        }
        while held(&files) + size > trace.capacity {
            files.remove(victim(&files));
        }
        files.push(File { id, size, uses: 1, touched: t, priority: 0.0 });
    }
    run
}

fn least<K: PartialOrd>(files: &[File], key: impl Fn(&File) -> K) -> usize {
    let mut least = 0;
    for at in 1..files.len() {
        if key(&files[at]) < key(&files[least]) {
            least = at;
        }
    }
    least
}

pub fn lru(trace: &Trace) -> Run {
    cache(trace, |files| least(files, |file| file.touched))
}

pub fn lfu(trace: &Trace) -> Run {
    cache(trace, |files| least(files, |file| (file.uses, file.touched)))
}

/// The newcomer is in before anything leaves, and may be the first to.
pub fn gdsf(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut files: Vec<File> = Vec::new();
    let mut inflation = 0.0;
    for (t, &(id, size)) in trace.requests.iter().enumerate() {
        let priority = |uses: u64, inflation: f64| inflation + uses as f64 * 1e6 / size as f64;
        if let Some(file) = files.iter_mut().find(|file| file.id == id) {
            file.uses += 1;
            (file.touched, file.priority) = (t, priority(file.uses, inflation));
            run.note(size, size);
            continue;
        }
        run.note(size, 0);
        if size > trace.capacity {
            continue;
        }
        files.push(File { id, size, uses: 1, touched: t, priority: priority(1, inflation) });
        while held(&files) > trace.capacity {
            let gone = files.remove(least(&files, |file| (file.priority, file.touched)));
            inflation = gone.priority;
        }
    }
    run
}

/// Newest first; the hand goes from the oldest to the newest and round.
pub fn sieve(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut files: Vec<(u64, u64, bool)> = Vec::new();
    let mut hand: Option<u64> = None;
    for &(id, size) in &trace.requests {
        if let Some(file) = files.iter_mut().find(|file| file.0 == id) {
            file.2 = true;
            run.note(size, size);
            continue;
        }
        run.note(size, 0);
        if size > trace.capacity {
            continue;
        }
        while files.iter().map(|file| file.1).sum::<u64>() + size > trace.capacity {
            let oldest = files.len() - 1;
            let mut at =
                hand.and_then(|id| files.iter().position(|file| file.0 == id)).unwrap_or(oldest);
            while files[at].2 {
                files[at].2 = false;
                at = at.checked_sub(1).unwrap_or(oldest);
            }
            hand = at.checked_sub(1).map(|newer| files[newer].0);
            files.remove(at);
        }
        files.insert(0, (id, size, false));
    }
    run
}

/// Small, main and ghost queue, each from the oldest to the newest: id, size, uses.
#[derive(Default)]
struct Queues {
    small: Vec<(u64, u64, u32)>,
    main: Vec<(u64, u64, u32)>,
    ghost: Vec<(u64, u64)>,
}

fn bytes<'a>(sizes: impl IntoIterator<Item = &'a (u64, u64, u32)>) -> u64 {
    sizes.into_iter().map(|file| file.1).sum()
}

impl Queues {
    /// Lets one file leave.
    fn evict(&mut self, small_most: u64, ghost_most: u64, capacity: u64) {
        if bytes(&self.main) > capacity - small_most || self.small.is_empty() {
            return self.evict_main();
        }
        while !self.small.is_empty() {
            let (id, size, uses) = self.small.remove(0);
            if uses >= 2 {
                self.main.push((id, size, 0));
                continue;
            }
            if size <= ghost_most {
                while self.ghost.iter().map(|file| file.1).sum::<u64>() + size > ghost_most {
                    self.ghost.remove(0);
                }
                self.ghost.push((id, size));
            }
            return;
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        loop {
            let (id, size, uses) = self.main.remove(0);
            if uses == 0 {
                return;
            }
            self.main.push((id, size, uses.min(3) - 1));
        }
    }
}

pub fn s3fifo(trace: &Trace) -> Run {
    let capacity = trace.capacity;
    let (small_most, ghost_most) = ((capacity as f64 * 0.1) as u64, (capacity as f64 * 0.9) as u64);
    let mut run = Run::default();
    let mut queues = Queues::default();
    let mut evicted = false;
    for &(id, size) in &trace.requests {
        let Queues { small, main, .. } = &mut queues;
        if let Some(file) = small.iter_mut().chain(main).find(|file| file.0 == id) {
            file.2 += 1;
            run.note(size, size);
            continue;
        }
        run.note(size, 0);
        let ghosts = queues.ghost.len();
        queues.ghost.retain(|file| file.0 != id);
        let recalled = queues.ghost.len() < ghosts;
        if size > small_most {
            continue;
        }
        while bytes(queues.small.iter().chain(&queues.main)) + size > capacity {
            queues.evict(small_most, ghost_most, capacity);
            evicted = true;
        }
        if recalled {
            queues.main.push((id, size, 0));
        } else if size < small_most {
            let spills = !evicted && bytes(&queues.small) >= small_most;
            let to = if spills { &mut queues.main } else { &mut queues.small };
            to.push((id, size, 0));
        }
    }
    run
}

/// A page of Clock2Q+'s small queue or clock: its id, the pages that had come into the small queue
/// with it, its bit.
type Page = (u64, u64, bool);

#[derive(Default)]
struct Clock2Q {
    small: Vec<Page>,
    clock: Vec<Page>,
    ghosts: Vec<u64>,
    came: u64,
}

impl Clock2Q {
    fn evict(&mut self, small_most: usize, ghosts_most: usize, capacity: usize) {
        let mut from_small = self.clock.len() <= capacity - small_most && !self.small.is_empty();
        loop {
            from_small &= !self.small.is_empty();
            if from_small {
                let (id, _, used) = self.small.remove(0);
                if used {
                    self.clock.push((id, 0, false));
                    continue;
                }
                self.ghosts.push(id);
                if self.ghosts.len() > ghosts_most {
                    self.ghosts.remove(0);
                }
                return;
            }
            let (id, _, used) = self.clock.remove(0);
            if !used {
                return;
            }
            self.clock.push((id, 0, false));
        }
    }
}

/// Clock2Q+ by its paper, for pages of one size: three lists from the oldest to the newest.
pub fn clock2q(trace: &Trace) -> Run {
    let capacity = trace.capacity as usize;
    let (small_most, ghosts_most) = (capacity / 10, capacity / 2);
    let mut run = Run::default();
    let mut pages = Clock2Q::default();
    let mut evicted = false;
    for &(id, size) in &trace.requests {
        if let Some(page) = pages.small.iter_mut().find(|page| page.0 == id) {
            page.2 |= 2 * (pages.came - page.1) >= small_most as u64;
            run.note(size, size);
            continue;
        }
        if let Some(page) = pages.clock.iter_mut().find(|page| page.0 == id) {
            page.2 = true;
            run.note(size, size);
            continue;
        }
        run.note(size, 0);
        let ghost = pages.ghosts.iter().position(|ghost| *ghost == id);
        let recalled = ghost.map(|at| pages.ghosts.remove(at)).is_some();
        while pages.small.len() + pages.clock.len() >= capacity {
            pages.evict(small_most, ghosts_most, capacity);
            evicted = true;
        }
        if recalled || (!evicted && pages.small.len() >= small_most) {
            pages.clock.push((id, 0, false));
        } else {
            pages.came += 1;
            pages.small.push((id, pages.came, false));
        }
    }
    run
}
