//! Death at fail points: each point that the daemon was built with kills it in the middle of a
//! mixed load, and everything is checked after the next mount.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::failure::{Failure, Outcome};
use crate::os;
use crate::process::eventually;
use crate::random::Random;
use crate::subject::{ForebayMount, MountOptions, Subject, run_checked, run_command};
use crate::watchdog;

use super::{Load, ROUND_LIMIT, Snapshot, WRITERS, cold, drained, large_writers, recover};

/// How long the load runs when it does not reach the point.
const LONGEST_LOAD: Duration = Duration::from_secs(5);

/// The fail points that the binary was built with, by its own word; empty without any.
pub fn fail_points(mount: &ForebayMount) -> Outcome<Vec<String>> {
    let text = run_checked(mount.command("debug").arg("failpoints"), ROUND_LIMIT)?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Lets the daemon die at one fail point under load and checks everything after the next mount.
/// True if it died there; else it was killed, and the round was a plain crash round.
///
/// The daemon must be built so that a panic aborts it.
pub fn fail_point_round(options: MountOptions, point: &str, seed: u64) -> Outcome<bool> {
    let mut random = Random::new(seed);
    let most = *random.pick(&[1, 20, 400]);
    let skip = random.below(most);
    let fired = one_round(options.clone(), point, skip, seed)?;
    // Rarely reached: at the first time, then.
    if fired || skip == 0 { Ok(fired) } else { one_round(options, point, 0, seed) }
}

fn one_round(options: MountOptions, point: &str, skip: u64, seed: u64) -> Outcome<bool> {
    let mut options = options;
    options.environment.push(("FAILPOINTS".into(), format!("{point}={skip}*off->panic")));
    let mut mount = ForebayMount::new(options)?;
    let _guard = watchdog::guard(ROUND_LIMIT, format!("fail point {point}"));
    let large = large_writers(mount.options_mut());
    let cold = (large > 0).then_some("cold");
    if let Some(dir) = cold {
        cold::lay(&mount.backing().join(dir))?;
    }
    let dir = mount.dir().join("round");
    if let Err(error) = os::mkdir(&dir, 0o755) {
        ensure!(!mount.daemon_runs(), "mkdir: {error}");
    }
    let told = |why: Failure| {
        Failure::Failed(format!("fail point {point} after {skip} times, seed {seed}: {why}"))
    };
    let mut load = match Load::start(&dir, seed, WRITERS, large) {
        Err(_) if !mount.daemon_runs() => {
            // The point was reached before the load began.
            mount.kill_daemon();
            disarm(&mut mount);
            mount.fsck_tiers()?;
            mount.mount()?;
            mount.unmount()?;
            return Ok(true);
        }
        started => started?,
    };
    load.expect_death();
    if let Some(dir) = cold {
        // What is known to be used again, a policy may keep a part of. The daemon may die of it.
        let mut hint = mount.command("hint");
        hint.arg(mount.dir()).args(["--job", "cold"]).args(cold::sequence(dir));
        drop(run_command(&mut hint, ROUND_LIMIT)?);
        load.read_cold(mount.dir().join(dir), seed)?;
    }
    let fired = eventually(LONGEST_LOAD, || !mount.daemon_runs());
    mount.kill_daemon();
    load.wait().map_err(told)?;
    disarm(&mut mount);
    let settled = recover(&mut mount, &load, &Snapshot::new()).map_err(told)?;
    drained(&mut mount, &settled).map_err(told)?;
    Ok(fired)
}

fn disarm(mount: &mut ForebayMount) {
    mount.options_mut().environment.retain(|(name, _)| name != "FAILPOINTS");
}

/// How often each point killed the daemon.
#[derive(Debug, Default)]
pub struct Tally {
    fired: BTreeMap<String, u32>,
}

impl Tally {
    /// Counts a round.
    pub fn count(&mut self, point: &str, fired: bool) {
        *self.fired.entry(point.to_owned()).or_default() += u32::from(fired);
    }

    /// The points that had a round and never killed the daemon.
    pub fn never(&self) -> Vec<&str> {
        self.fired.iter().filter(|(_, times)| **times == 0).map(|(name, _)| &**name).collect()
    }

    /// Points that had a round.
    pub fn len(&self) -> usize {
        self.fired.len()
    }

    /// Whether no point had a round.
    pub fn is_empty(&self) -> bool {
        self.fired.is_empty()
    }
}
