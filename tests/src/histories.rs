//! Random histories of a mount beside a native twin: programs work on both, and every answer must be the
//! same, while workers write back, the mount is unmounted and mounted again, and its daemon is killed.
//! Then mount, backing store and twin must be equal.
//!
//! Both begin with files that have further names which the mount has not seen, with extended attributes and
//! with modes that close files and directories to their owner. A plain user can mount: the daemon and the
//! programs are his then.

pub mod others;
mod site;
mod steps;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use steps::{End, Ends, Step};

use crate::failure::{Failure, Outcome};
use crate::model::apply::World;
use crate::model::tree::Epochs;
use crate::os;
use crate::shrink::minimise;
use crate::watchdog;
use site::{LIMIT, Site};

/// What is run, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The first history; the next one has the next number.
    pub seed: u64,
    /// How many histories.
    pub histories: usize,
    /// Phases of each, between which the mount is ended or written back.
    pub phases: usize,
    /// Operations of a phase.
    pub ops: usize,
    /// How phases end.
    pub ends: Ends,
    /// The plain user who mounts and works; None is whoever runs this.
    pub user: Option<u32>,
    /// `--writeback` of the mount.
    pub writeback: String,
    /// The size of the tier in bytes.
    pub tier_bytes: u64,
    /// Shorter histories that are tried for one that failed.
    pub attempts: usize,
}

/// What was done so far, for the report of a failure.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    kept: Option<PathBuf>,
    log: String,
}

/// Runs the histories until one fails. The failure names its seed and tells what was done.
///
/// # Errors
/// A difference between mount or backing store and the twin; [`Failure::Skipped`] for a plain user if this
/// is not run by root.
pub fn run(settings: &Settings) -> Outcome {
    if settings.user.is_some() && !os::is_root() {
        return Err(Failure::Skipped("another user: needs root".into()));
    }
    for at in 0..settings.histories as u64 {
        let seed = settings.seed.wrapping_add(at);
        let steps = steps::random_steps(seed, settings);
        let mut told = Told::default();
        let Err(failure) = play(settings, seed, &steps, &mut told) else { continue };
        if matches!(failure, Failure::Skipped(_)) {
            return Err(failure);
        }
        let fails = |steps: &[Step]| play(settings, seed, steps, &mut Told::default()).is_err();
        let small = match settings.attempts {
            0 => None,
            attempts => Some(minimise(&steps, attempts, fails)),
        };
        return Err(explain(seed, &failure, &told, small.as_deref()));
    }
    Ok(())
}

fn explain(seed: u64, failure: &Failure, told: &Told, small: Option<&[Step]>) -> Failure {
    let mut text = String::new();
    for line in &told.lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
    }
    if let Some(small) = small {
        let _ = writeln!(text, "a shorter history that fails:");
        for step in small {
            let _ = writeln!(text, "  {step:?}");
        }
    }
    let _ = writeln!(text, "end of the daemon's log:\n{}", told.log);
    if let Some(kept) = &told.kept {
        let _ = writeln!(text, "kept in {}", kept.display());
    }
    let _ = write!(text, "history of seed {seed}: {failure}");
    Failure::Failed(text)
}

/// Carries out one history on a mount and a twin of its own.
fn play(settings: &Settings, seed: u64, steps: &[Step], told: &mut Told) -> Outcome {
    let _guard = watchdog::guard(LIMIT, format!("history {seed}"));
    let mut site = Site::new(settings, seed)?;
    let roots = site.roots();
    let mut world = World::of_trees(&roots, &steps::NAMES, site.known());
    let mut epochs = Epochs::start();
    let played = phases(&mut site, &mut world, &mut epochs, steps, told);
    if played.is_err() {
        told.log = site.log_tail();
        told.kept = site.keep_state();
    }
    world.close_all();
    played.and_then(|()| site.end())
}

fn phases(
    site: &mut Site,
    world: &mut World<'_>,
    epochs: &mut Epochs,
    steps: &[Step],
    told: &mut Told,
) -> Outcome {
    let mut phases = steps.split_inclusive(|step| matches!(step, Step::End(_))).enumerate();
    phases.try_for_each(|(phase, steps)| {
        let done = AtomicUsize::new(0);
        let lines = std::mem::take(&mut told.lines);
        let (worked, lines) = site.as_user(|site| {
            let mut lines = lines;
            let worked = steps.iter().try_for_each(|step| {
                done.fetch_add(1, Ordering::Relaxed);
                work(site, world, *step, &mut lines)
            });
            (worked, lines)
        });
        told.lines = lines;
        worked.map_err(|why| in_phase(phase, done.load(Ordering::Relaxed), &why))?;
        let Some(Step::End(end)) = steps.last() else { return Ok(()) };
        told.lines.push(format!("{end:?}"));
        site.finish_phase(*end, world, epochs)
            .map_err(|why| in_phase(phase, steps.len(), &Failure::at(format!("{end:?}: {why}"))))?;
        epochs.next();
        Ok(())
    })
}

fn in_phase(phase: usize, step: usize, why: &Failure) -> Failure {
    match why {
        Failure::Skipped(_) => why.clone(),
        Failure::Failed(why) => Failure::Failed(format!("phase {phase}, step {step}: {why}")),
    }
}

/// One step on both sides.
fn work(site: &Site, world: &mut World<'_>, step: Step, lines: &mut Vec<String>) -> Outcome {
    match step {
        Step::Op(op) => {
            let what = format!("{op:?} on {}", world.describe(op));
            let [got, want] = world.apply(op);
            let is_ok = want.is_ok();
            lines.push(match is_ok {
                true => what.clone(),
                false => format!("{what}: {want:?}"),
            });
            ensure!(got == want, "{what}: got {got:?}, wanted {want:?}");
        }
        Step::Pause(ms) => {
            lines.push(format!("pause of {ms} ms"));
            std::thread::sleep(std::time::Duration::from_millis(ms.into()));
        }
        Step::Evict(at) => {
            let path = world.path(at);
            lines.push(format!("evict {path}"));
            site.evict(&path)?;
        }
        Step::End(_) => {}
    }
    Ok(())
}
