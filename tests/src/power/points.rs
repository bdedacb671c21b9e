//! Cuts while the daemon stands at a fail point: between the steps that must be durable one after another.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::random::Random;

/// How long a thread stands at a point: nobody else sleeps so long.
const STANDS_MS: u64 = 86_399_000;
const STANDS_S: u64 = STANDS_MS / 1000;
/// `nanosleep` and `clock_nanosleep`, and which of their arguments is the time.
const SLEEPS: [(&str, usize); 2] = [("35", 0), ("230", 2)];

/// How long the daemon may take to come to a point: it may not come by it at all.
const TO_A_POINT: Duration = Duration::from_secs(1);
/// The same of a point that it comes to for certain.
const TO_A_SURE_POINT: Duration = Duration::from_secs(30);
/// Each program makes files, and what is new has an object.
const SURE: &str = "store.create.before_header";

/// A point, and how often the daemon passes it before it stands there.
#[derive(Clone, Debug)]
pub struct Stand {
    /// The point.
    pub point: String,
    passed: u64,
    /// How long to wait for it.
    pub limit: Duration,
}

impl Stand {
    /// One of these points.
    pub fn choose(random: &mut Random, points: &[String]) -> Self {
        let most = *random.pick(&[1, 4, 30]);
        let (point, passed) = (random.pick(points).clone(), random.below(most));
        Self { point, passed, limit: TO_A_POINT }
    }

    /// One that every load comes to.
    pub fn sure() -> Self {
        Self { point: SURE.into(), passed: 0, limit: TO_A_SURE_POINT }
    }

    /// As the daemon is told.
    pub fn setting(&self) -> String {
        format!("{}={}*off->sleep({STANDS_MS})", self.point, self.passed)
    }
}

/// Whether a thread of a process stands at a point.
pub fn is_at_one(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let Ok(memory) = File::open(format!("/proc/{process}/mem")) else { return false };
    threads.flatten().any(|thread| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        time_of_sleep(&call).is_some_and(|at| {
            let mut seconds = [0; 8];
            memory.read_exact_at(&mut seconds, at).is_ok()
                && (STANDS_S - 1..=STANDS_S).contains(&u64::from_le_bytes(seconds))
        })
    })
}

/// Where the time stands for which a thread sleeps, by what the kernel says of its call.
fn time_of_sleep(call: &str) -> Option<u64> {
    let mut words = call.split_whitespace();
    let number = words.next()?;
    let (_, argument) = SLEEPS.iter().find(|(sleep, _)| *sleep == number)?;
    u64::from_str_radix(words.nth(*argument)?.trim_start_matches("0x"), 16).ok()
}

/// How often each point was tried, and how often the daemon stood there when the power failed.
#[derive(Debug, Default)]
pub struct Stood(BTreeMap<String, (u32, u32)>);

impl Stood {
    /// Counts a cut.
    pub fn count(&mut self, point: &str, stood: bool) {
        let (tried, reached) = self.0.entry(point.to_owned()).or_default();
        *tried += 1;
        *reached += u32::from(stood);
    }

    /// Whether the daemon never stood at any point.
    pub fn never(&self) -> bool {
        self.0.values().all(|(_, stood)| *stood == 0)
    }

    /// What is told at the end.
    pub fn told(&self) -> String {
        let told = self.0.iter().map(|(point, (tried, stood))| format!("{point} {stood}/{tried}"));
        told.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_when_a_thread_of_it_sleeps_as_at_a_point_then_it_stands_at_one() {
        let this = std::process::id();
        assert!(!is_at_one(this));
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(STANDS_MS)));
        let limit = std::time::Duration::from_secs(20);
        assert!(crate::process::eventually(limit, || is_at_one(this)));
    }
}
