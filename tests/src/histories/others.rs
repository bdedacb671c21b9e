//! Histories of a mount in whose backing store others work meanwhile: they write files in place, put others
//! in their place, remove and rename them, and make, move and remove directories.
//!
//! No bytes that were acknowledged are gone, unless the others replaced or removed the very file that had
//! them; what others have put somewhere stays there or beside it; no read shows parts of two versions; an
//! error comes only right after others had a part in it; and at the end all is written back, `fsck` finds
//! nothing, and mount and backing store are equal.

mod ledger;
mod program;
mod third;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::Settings;
use super::site::LIMIT;
use crate::failure::{Failure, Outcome};
use crate::os::{self, FileType};
use crate::process::eventually;
use crate::random::Random;
use crate::subject::{ForebayMount, MountOptions, Passthrough};
use crate::watchdog;
use ledger::{Ledger, Version};
use program::Program;
use third::Third;

/// Names of files.
const NAMES: [&str; 5] = ["f0", "f1", "f2", "f3", "f4"];
/// Directories: those in which others work, and two that are the program's own.
const DIRS: [&str; 5] = ["d0", "d1", "d0/d2", "own", "own/d3"];
const SHARED: [&str; 3] = ["d0", "d1", "d0/d2"];
/// The directory that is compared, and one in which others make what they put into it.
const TREE: &str = "tree";
const BESIDE: &str = "beside";
/// The longest that workers may take until they have nothing left to do.
const REST: Duration = Duration::from_secs(60);
/// Lines that are told of a failure.
const TOLD: usize = 400;

/// Runs the histories until one fails.
///
/// # Errors
/// What was lost or wrong, with what was done before.
pub fn run(settings: &Settings) -> Outcome {
    for at in 0..settings.histories as u64 {
        let seed = settings.seed.wrapping_add(at);
        let lines = Mutex::new(Vec::new());
        let mut mount = mounted(settings, seed)?;
        let played = play(settings, seed, &mut mount, &lines);
        if let Err(failure) = played {
            let lines = lines.into_inner();
            let told = lines[lines.len().saturating_sub(TOLD)..].join("\n");
            let (log, kept) = (mount.log_tail(), mount.keep_state());
            return Err(Failure::Failed(format!(
                "{told}\nend of the daemon's log:\n{log}\nkept in {kept:?}\nhistory of seed {seed}: {failure}"
            )));
        }
    }
    Ok(())
}

fn mounted(settings: &Settings, seed: u64) -> Outcome<ForebayMount> {
    let mut random = Random::new(seed ^ 0x6f74_6865_7273);
    let ways = [Passthrough::Off, Passthrough::Read, Passthrough::ReadWrite];
    let arguments = ["--attr-timeout", "200ms", "--entry-timeout", "200ms"];
    let mut mount = ForebayMount::prepare(MountOptions {
        tier_sizes: vec![settings.tier_bytes],
        writeback: Some(settings.writeback.clone()),
        passthrough: Some(*random.pick(&ways)),
        arguments: arguments.map(Into::into).to_vec(),
        ..MountOptions::default()
    })?;
    for dir in [TREE, BESIDE] {
        os::mkdir(mount.backing().join(dir), 0o755)?;
    }
    for dir in DIRS {
        os::mkdir(mount.backing().join(TREE).join(dir), 0o755)?;
    }
    mount.mount()?;
    Ok(mount)
}

fn play(
    settings: &Settings,
    seed: u64,
    mount: &mut ForebayMount,
    lines: &Mutex<Vec<String>>,
) -> Outcome {
    let _guard = watchdog::guard(LIMIT, format!("history {seed}"));
    let (ledger, calm, ended) = (Mutex::default(), RwLock::new(()), AtomicBool::new(false));
    let mut third = Third {
        tree: mount.backing().join(TREE),
        beside: mount.backing().join(BESIDE),
        ledger: &ledger,
        calm: &calm,
        lines,
        random: Random::new(!seed),
        next: 1,
    };
    let mut program = Program {
        tree: mount.mountpoint().join(TREE),
        ledger: &ledger,
        calm: &calm,
        lines,
        random: Random::new(seed),
        next: 2,
        by_close: settings.writeback == "close",
        held: Vec::new(),
        broken: HashSet::new(),
    };
    std::thread::scope(|scope| {
        let ended = &ended;
        scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                third.act();
            }
        });
        let done: Outcome = (0..settings.phases).try_for_each(|phase| {
            (0..settings.ops).try_for_each(|_| program.act())?;
            if phase + 1 < settings.phases {
                between(mount, program.random.below(3), lines)?;
            }
            Ok(())
        });
        ended.store(true, Ordering::Relaxed);
        done
    })?;
    drop(program);
    end(mount, &ledger.into_inner())
}

/// Workers get on meanwhile, or all is written back or evicted.
fn between(mount: &ForebayMount, how: u64, lines: &Mutex<Vec<String>>) -> Outcome {
    lines.lock().push(format!("between phases: {how}"));
    match how {
        0 => std::thread::sleep(Duration::from_millis(500)),
        // Others may keep it from having an end in time; the last one must.
        1 => drop(mount.sync(mount.mountpoint())),
        _ => mount.evict(&mount.mountpoint().join(TREE))?,
    }
    Ok(())
}

/// What must hold when nobody works any more.
fn end(mount: &mut ForebayMount, ledger: &Ledger) -> Outcome {
    mount.sync(mount.mountpoint())?;
    let at_rest = || {
        let status = mount.status().unwrap_or_default();
        status["backlog"]["entries"] == 0 && status["dirty"]["files"] == 0
    };
    ensure!(eventually(REST, at_rest), "not all is written back: {}", mount.status()?);
    let [here, below] = [mount.mountpoint(), mount.backing()].map(|dir| dir.join(TREE));
    let mut equal = Ok(());
    // What others did last is seen after the attributes' time.
    eventually(Duration::from_secs(10), || {
        equal = scan(&here).and_then(|here| Ok((here, scan(&below)?))).and_then(|(here, below)| {
            for path in here.keys().chain(below.keys()) {
                let (here, below) = (here.get(path), below.get(path));
                let path = path.display();
                ensure!(here == below, "{path}: {here:?} on the mount, {below:?} below");
            }
            Ok(())
        });
        equal.is_ok()
    });
    equal?;
    mount.unmount()?;
    mount.fsck_tiers()?;
    let private = mount.backing().join(".forebay");
    for name in os::names(&private)? {
        // What others changed while it was on its way out is kept for them.
        ensure!(name == "store" || name == "lost", ".forebay/{} is left", name.display());
    }
    let mut there = scan(&below)?;
    if os::exists(private.join("lost"))? {
        there.extend(scan(&private.join("lost"))?);
    }
    for (version, path, of_others) in ledger.owed() {
        let is_there = there.values().any(|found| *found == Some(Ok(Some(version))));
        let whose = if of_others { "others have" } else { "the program has" };
        ensure!(is_there, "{version:?} is gone, which {whose} put at {path}: {there:#?}");
    }
    Ok(())
}

/// Each path with the version that is there; none of a directory.
type Found = BTreeMap<PathBuf, Option<Result<Option<Version>, String>>>;

fn scan(root: &Path) -> Outcome<Found> {
    let (mut found, mut pending) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(dir) = pending.pop() {
        for name in os::names(root.join(&dir))? {
            let path = dir.join(name);
            if os::file_type(root.join(&path))? == FileType::Directory {
                pending.push(path.clone());
                found.insert(path, None);
            } else {
                let version = Version::of(&os::read_all(root.join(&path))?);
                found.insert(path, Some(version));
            }
        }
    }
    Ok(found)
}
