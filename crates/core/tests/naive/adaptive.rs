//! ARC as figure 4 of its paper has it, line by line, for pages of one size.

use super::Run;
use super::families::Trace;

type List = Vec<u64>;

#[derive(Default)]
struct Arc {
    t1: List,
    t2: List,
    b1: List,
    b2: List,
    p: f64,
}

fn take(list: &mut List, page: u64) -> bool {
    let at = list.iter().position(|held| *held == page);
    at.map(|at| list.remove(at)).is_some()
}

impl Arc {
    fn replace(&mut self, in_b2: bool) {
        let length = self.t1.len() as f64;
        let first = !self.t1.is_empty() && ((in_b2 && length == self.p) || length > self.p);
        // The paper says nothing of an empty T2; only T1 can give then.
        if first || self.t2.is_empty() {
            self.b1.push(self.t1.remove(0));
        } else {
            self.b2.push(self.t2.remove(0));
        }
    }

    /// Whether the page was there.
    fn ask(&mut self, page: u64, c: usize) -> bool {
        if take(&mut self.t1, page) || take(&mut self.t2, page) {
            self.t2.push(page);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&page) {
            let delta = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + delta).min(c as f64);
            take(&mut self.b1, page);
            self.replace(false);
            self.t2.push(page);
            return false;
        }
        if self.b2.contains(&page) {
            let delta = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - delta).max(0.0);
            take(&mut self.b2, page);
            self.replace(true);
            self.t2.push(page);
            return false;
        }
        let l1 = self.t1.len() + self.b1.len();
        let all = l1 + self.t2.len() + self.b2.len();
        if l1 == c {
            if self.t1.len() < c {
                self.b1.remove(0);
                self.replace(false);
            } else {
                self.t1.remove(0);
            }
        } else if all >= c {
            if all == 2 * c {
                self.b2.remove(0);
            }
            self.replace(false);
        }
        self.t1.push(page);
        false
    }
}

/// All sizes are 1.
pub fn arc(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut arc = Arc::default();
    for &(page, size) in &trace.requests {
        let there = arc.ask(page, trace.capacity as usize);
        run.note(size, if there { size } else { 0 });
    }
    run
}
