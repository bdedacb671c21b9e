//! What the tasks of this machine take up: memory and processors, by the variables that say whose a
//! process is.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::time::Instant;

use super::plan::label;
use crate::migrate::tree::bytes_of;

/// Bytes of an environment that are looked at.
const ENVIRONMENT: u64 = 256 << 10;

/// What a task takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Its memory.
    pub bytes: u64,
    /// Processors that it has kept busy since the last look.
    pub cpu: f64,
}

/// Looks again and again.
#[derive(Default)]
pub struct Meter {
    before: HashMap<String, (u64, Instant)>,
}

impl Meter {
    /// All tasks of runs, as they are called where accesses are recorded.
    pub fn look(&mut self) -> HashMap<String, Usage> {
        let now = Instant::now();
        let mut found: HashMap<String, (u64, u64)> = HashMap::new();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            let Some(task) = task_of(pid) else { continue };
            let (bytes, ticks) = found.entry(task).or_default();
            *bytes += bytes_of(pid);
            *ticks += ticks_of(pid);
        }
        let per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
        let usage = |(task, (bytes, ticks)): (&String, &(u64, u64))| {
            let cpu = self.before.get(task).map_or(0.0, |(before, at)| {
                let passed = now.duration_since(*at).as_secs_f64().max(1e-3);
                ticks.saturating_sub(*before) as f64 / per_second / passed
            });
            (task.clone(), Usage { bytes: *bytes, cpu })
        };
        let usages = found.iter().map(usage).collect();
        self.before = found.into_iter().map(|(task, (_, ticks))| (task, (ticks, now))).collect();
        usages
    }
}

fn task_of(pid: i32) -> Option<String> {
    let mut environment = Vec::new();
    File::open(format!("/proc/{pid}/environ"))
        .ok()?
        .take(ENVIRONMENT)
        .read_to_end(&mut environment)
        .ok()?;
    let value = |name: &[u8]| {
        let mut all = environment.split(|byte| *byte == 0);
        let value = all.find_map(|one| one.strip_prefix(name)?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok().filter(|value| !value.is_empty())
    };
    Some(label(value(b"FOREBAY_RUN")?, value(b"FOREBAY_JOB")?))
}

/// What a process has used of processors.
fn ticks_of(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return 0 };
    let fields = rest.split(' ').skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_when_it_works_then_its_memory_and_processors_are_known() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let mut child =
            command.env("FOREBAY_RUN", "r usage").env("FOREBAY_JOB", "j").spawn().unwrap();
        let mut meter = Meter::default();
        let name = label("r usage", "j");
        let first = meter.look().get(&name).copied();
        let until = Instant::now() + std::time::Duration::from_secs(20);
        let mut last = None;
        while Instant::now() < until && last.is_none_or(|usage: Usage| usage.cpu == 0.0) {
            std::thread::sleep(std::time::Duration::from_millis(200));
            last = meter.look().get(&name).copied();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(first.is_some_and(|usage| usage.bytes > 0 && usage.cpu == 0.0), "{first:?}");
        assert!(last.is_some_and(|usage| usage.cpu > 0.0 && usage.cpu < 1.5), "{last:?}");
        assert_eq!(meter.look().get(&name), None);
    }
}
