//! Power cuts: the disks below tiers, state and backing store fail at once, with all that was written
//! and not synced, each alone or several together. Afterwards the mount starts, and everything that
//! was acknowledged is there.
//!
//! A cut is the shutdown of a file system that forgets what its log does not have yet. So bytes,
//! names, attributes and lengths are lost independently, as far as the file system lets them.

mod cases;
mod found;
mod oracle;
mod points;
mod product;
mod seen;
mod site;
mod trees;
mod work;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cases::{Case, When};
use oracle::{BLOCK, Below, Oracle};
use points::{Stand, Stood};
use seen::Seen;
pub use site::Kinds;
use site::{Layout, MountSettings, Site};
use work::{Held, LARGE_BLOCKS, Op};

use crate::failure::{Failure, Outcome};
use crate::os;
use crate::process::{Child, End, eventually};
use crate::random::Random;

const WORKERS: usize = 3;
/// More steps than a worker gets through before a cut.
const STEPS: usize = 400;
const WORKER_LIMIT: Duration = Duration::from_secs(30);
/// After so many cuts all is drained and compared with the backing store.
const CUTS_BETWEEN_DRAINS: usize = 12;
/// How often a case is tried that must be cut in the middle of something.
const ATTEMPTS: usize = 10;
/// Why it is tried again.
const TOO_FAST: &str = "was written back too fast to be cut then";
/// After one in so many cuts, too, by `forebay sync`.
const CUTS_BETWEEN_SYNCS: u64 = 4;
/// So many more cuts at a point that every load comes to, where the daemon did not come to those drawn.
const SURE_CUTS: usize = 3;
/// A run with more findings than this is not worth its time.
const MAX_FINDINGS: usize = 25;

/// Of so many steps a worker tells the number of the directory that it has made.
const NUMBERED: usize = 2 * STEPS;
/// One cut in so many comes late enough for the backing store to have some of the names.
const LATE_ONE_IN: u64 = 3;

/// Steps begun and done, and the directories made, written by workers and read after their end.
struct Progress(std::os::fd::OwnedFd);

impl Progress {
    fn new() -> Outcome<Self> {
        let memory = rustix::fs::memfd_create("progress", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, 8 * Self::number(WORKERS, 0) as u64)?;
        Ok(Self(memory))
    }

    fn get(&self, at: usize) -> u64 {
        let bytes = os::read_at(&self.0, 8 * at as u64, 8).unwrap_or_default();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    fn set(&self, at: usize, value: u64) {
        os::write_at(&self.0, 8 * at as u64, &value.to_le_bytes())
            .expect("memory of fixed size takes a number");
    }

    /// Where the number of the directory is that a worker has made in a step.
    const fn number(worker: usize, step: usize) -> usize {
        1 + 2 * WORKERS + worker * NUMBERED + step
    }

    /// From now on nothing counts as acknowledged.
    fn end(&self) {
        self.set(0, 1);
    }

    fn has_ended(&self) -> bool {
        self.get(0) != 0
    }
}

/// What a run found.
#[derive(Default)]
struct Tally {
    cuts: usize,
    steps: u64,
    wrong: Vec<String>,
    conflicts: usize,
    /// What only the backing store had.
    strangers: usize,
    /// Cases that this kernel is too old for.
    impossible: usize,
    /// What was cut, of late.
    cut_lately: std::collections::VecDeque<String>,
    stood: Stood,
}

/// All that outlasts a cut.
struct Run {
    site: Site,
    random: Random,
    oracles: Vec<Oracle>,
    stamp: u64,
    settings: MountSettings,
    layout: Layout,
    kinds: Kinds,
    /// The fail points at one of which the daemon is to stand when the power fails; none: at any time.
    points: Vec<String>,
    /// At one of them that it comes to for certain.
    is_sure: bool,
    /// What programs may do.
    mixes: &'static [work::Mix],
    tally: Tally,
}

/// Where directories are asked about: what is in none goes on meanwhile.
const TREES: [work::Mix; 5] = {
    use work::Mix::{Bytes, Names, Trees};
    [Trees, Trees, Trees, Bytes, Names]
};

/// Which of the directed cases are tried.
#[derive(Clone, Debug)]
pub struct Choice {
    /// As many, drawn by the seed, besides those that are tried each time.
    pub most: usize,
    /// Only those whose description contains all of these words, each of them, and no others.
    pub only: Vec<String>,
    /// On what disks.
    pub kinds: Kinds,
    /// Of those that are drawn or asked for: after one of the steps, which the seed says, the daemon is
    /// killed, and another one goes on.
    pub killed: bool,
}

/// How the power is cut at random times.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// As often.
    pub count: usize,
    /// While the daemon stands at a fail point, as far as it comes to the one that is drawn.
    pub at_points: bool,
    /// Most of what programs do is about directories.
    pub trees: bool,
    /// Below what disks.
    pub kinds: Kinds,
}

/// Cuts the power once after each of a number of things that were once forgotten, or could be. The seed
/// chooses which, the file systems, and whether the daemon ends before the power does. Each case has disks
/// of its own.
pub fn known_cases(seed: u64, choice: &Choice) -> Outcome {
    let mut random = Random::new(seed);
    let cases = cases::all();
    let is_meant = |case: &Case| choice.only.iter().all(|word| case.told().contains(word.as_str()));
    let mut chosen: Vec<_> = cases.into_iter().filter(is_meant).collect();
    ensure!(!chosen.is_empty(), "no case has {:?}", choice.only);
    let is_asked_for = !choice.only.is_empty();
    let mut left = chosen.iter().filter(|case| is_asked_for || !case.always).count();
    let mut wanted = choice.most.min(left);
    chosen.retain(|case| {
        if case.always && !is_asked_for {
            return true;
        }
        let is_drawn = random.below(left as u64) < wanted as u64;
        left -= 1;
        wanted -= usize::from(is_drawn);
        is_drawn
    });
    println!("seed {seed}: {} cases", chosen.len());
    let mut tally = Tally::default();
    for mut case in chosen {
        if choice.killed && (is_asked_for || !case.always) {
            case.killed_somewhere(&mut random);
        }
        let began = Instant::now();
        for attempt in 1..=ATTEMPTS {
            let mut run = Run::new(&mut random, case.layout, choice.kinds)?;
            run.tally = std::mem::take(&mut tally);
            println!("{}: {}; {}", run.tally.cuts + 1, case.told(), run.site.kinds());
            let done = run.case(&case);
            let is_late = matches!(&done, Err(Failure::Skipped(why)) if why.ends_with(TOO_FAST));
            match done {
                Ok(()) => {}
                Err(Failure::Skipped(why)) if is_late && attempt < ATTEMPTS => println!("{why}"),
                Err(Failure::Skipped(why)) if !is_late => {
                    println!("not possible here: {why}");
                    run.tally.impossible += 1;
                }
                Err(failure) => run.failed(&failure),
            }
            tally = std::mem::take(&mut run.tally);
            if !is_late {
                break;
            }
        }
        println!("{:.1?}", began.elapsed());
        if tally.wrong.len() >= MAX_FINDINGS {
            break;
        }
    }
    tally.report()
}

/// Cuts the power again and again, at any time.
pub fn run(seed: u64, cuts: Cuts) -> Outcome {
    let mut random = Random::new(seed);
    // One run in four is as most mounts are.
    let layout = if random.one_in(4) { Layout::Default } else { Layout::Apart };
    let mut run = Run::new(&mut random, layout, cuts.kinds)?;
    if cuts.at_points {
        run.points = site::fail_points()?;
    }
    if cuts.trees {
        run.mixes = &TREES;
    }
    println!("seed {seed}: {}", run.site.kinds());
    let began = Instant::now();
    let mut left = cuts.count;
    let mut sure = if cuts.at_points { SURE_CUTS.min(cuts.count) } else { 0 };
    let is_to_stand = sure > 0;
    while run.tally.wrong.len() < MAX_FINDINGS {
        run.is_sure = left == 0;
        if run.is_sure {
            if sure == 0 || !run.tally.stood.never() {
                break;
            }
            (sure, left) = (sure - 1, 1);
        }
        let era = left.min(CUTS_BETWEEN_DRAINS);
        let before = run.tally.cuts;
        if let Err(failure) = run.era(era) {
            run = run.anew(&failure, &mut random)?;
        }
        left -= (run.tally.cuts - before).clamp(1, left);
    }
    println!("{:.0?}", began.elapsed());
    run.tally.report()?;
    ensure!(
        !is_to_stand || !run.tally.stood.never(),
        "the daemon stood at no point when it was cut"
    );
    Ok(())
}

impl Tally {
    fn report(&self) -> Outcome {
        let Tally { cuts, steps, wrong, conflicts, strangers, impossible, .. } = self;
        println!("{cuts} cuts, {steps} steps acknowledged; {} findings", wrong.len());
        println!("{conflicts} conflicts, {strangers} names that only the backing store had");
        println!("{impossible} cases not possible here");
        println!("{}", self.stood.told());
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

impl Run {
    fn new(random: &mut Random, layout: Layout, kinds: Kinds) -> Outcome<Self> {
        let site = Site::new(random, layout, kinds)?;
        let mut oracles = vec![Oracle::default(); WORKERS];
        let mut stamp = 1 << 12;
        for (worker, oracle) in oracles.iter_mut().enumerate() {
            let home = site.path("backing/data").join(format!("worker{worker}"));
            fs::create_dir(&home)?;
            for name in work::large_names() {
                fs::write(home.join(&name), oracle.add(&name, LARGE_BLOCKS, stamp))?;
                stamp += 1 << 12;
            }
        }
        rustix::fs::syncfs(fs::File::open(site.path("backing"))?)?;
        let mut random = Random::new(random.bits());
        let settings = MountSettings::choose(&mut random);
        Ok(Self {
            site,
            random,
            oracles,
            stamp,
            settings,
            layout,
            kinds,
            points: Vec::new(),
            is_sure: false,
            mixes: &work::Mix::FLAT,
            tally: Tally::default(),
        })
    }

    /// Nothing can be said of these disks any more.
    fn failed(&mut self, why: &Failure) {
        self.wrong(why.to_string());
        println!("{}", self.site.log());
        self.site.keep_logs(self.tally.cuts, "");
        self.tell_names();
    }

    /// Other disks, as nothing can be said of these any more.
    fn anew(mut self, why: &Failure, random: &mut Random) -> Outcome<Self> {
        self.failed(why);
        let (layout, kinds) = (self.layout, self.kinds);
        let tally = std::mem::take(&mut self.tally);
        let (points, mixes) = (std::mem::take(&mut self.points), self.mixes);
        drop(self);
        Ok(Self { tally, points, mixes, ..Self::new(random, layout, kinds)? })
    }

    /// Mounts, cuts a number of times, and drains.
    fn era(&mut self, cuts: usize) -> Outcome {
        self.settings = MountSettings::choose(&mut self.random);
        if !self.points.is_empty() {
            self.settings.tiers =
                *self.random.pick(&[["3M", "4M"], ["1M", "2M"], ["600K", "600K"]]);
        }
        self.site.mount(&self.settings)?;
        for _ in 0..cuts {
            self.tally.cuts += 1;
            self.cut()?;
        }
        self.remove_strangers()?;
        let seen = self.everything();
        self.drain()?;
        self.oracles.iter_mut().for_each(Oracle::all_written_back);
        self.compare_below(&seen);
        Ok(())
    }

    /// Where nobody looks for what is in the backing store, what was made without a sync may be there alone
    /// after a cut, until somebody asks for it.
    fn remove_strangers(&mut self) -> Outcome {
        if self.settings.coherence != "exclusive" {
            return Ok(());
        }
        self.site.refresh()?;
        for (worker, oracle) in self.oracles.iter().enumerate() {
            let home = self.site.home(worker);
            for path in oracle.strangers(&Seen::read(&home)) {
                remove(&home.join(path))?;
                self.tally.strangers += 1;
            }
        }
        Ok(())
    }

    /// Unmounts, and looks whether there is anything to repair then.
    fn drain(&mut self) -> Outcome {
        self.site.drain()?;
        match self.site.check()? {
            (false, told) if self.tally.wrong.is_empty() => {
                self.wrong(format!("fsck after a drain: {told}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares what the backing store has after a drain with what the mount showed before: it has that, and
    /// nothing else.
    fn compare_below(&mut self, seen: &[Seen]) {
        for (worker, seen) in seen.iter().enumerate() {
            let home = format!("worker{worker}");
            let below = Seen::read(&self.site.path("backing/data").join(&home));
            for (path, how) in below.differences(seen) {
                let trail = self.oracles[worker].trail_of(&path);
                self.wrong(format!("{home}/{path} after a drain: {how} seen; {trail}"));
                self.site.keep_logs(self.tally.cuts, "");
            }
        }
    }

    fn wrong(&mut self, what: String) {
        let what = format!("cut {}: {what} ({:?})", self.tally.cuts, self.settings);
        println!("{what}\nlast cuts: {:?}", self.tally.cut_lately);
        self.tally.wrong.push(what);
    }

    /// One of the directed cases.
    fn case(&mut self, case: &Case) -> Outcome {
        self.settings = case.settings.clone();
        self.site.mount(&self.settings)?;
        if self.settings.passthrough != "off"
            && let (Some(why), _) = self.site.passthrough()?
        {
            return Err(Failure::Skipped(format!("no passthrough: {why}")));
        }
        self.tally.cuts += 1;
        if !case.first.is_empty() {
            self.go_on_after_kill(&case.first)?;
        }
        let mut plans = vec![case.ops.clone()];
        plans.resize(WORKERS, Vec::new());
        self.cut_after(plans, Some(case))?;
        let seen = self.everything();
        self.drain()?;
        self.compare_below(&seen);
        Ok(())
    }

    /// Has the first worker do something, of which nothing is lost when the daemon is killed. Another one
    /// goes on.
    fn go_on_after_kill(&mut self, steps: &[Op]) -> Outcome {
        let progress = Progress::new()?;
        let home = self.site.home(0);
        let child = Child::start(|| do_steps(&home, steps, &progress, 0))?;
        let count = steps.len() as u64;
        eventually(WORKER_LIMIT, || progress.get(2) == count || child.has_ended());
        progress.end();
        match child.end(WORKER_LIMIT)? {
            End::Returned(done) => done?,
            End::Killed(signal) => return Err(Failure::at(format_args!("signal {signal}"))),
        }
        let done = progress.get(2);
        ensure!(done == count, "{done} of {count} steps are done before the kill");
        let made = |step| progress.get(Progress::number(0, step));
        self.note_steps(0, steps.to_vec(), (count, count), &made, true);
        self.site.kill();
        self.site.mount(&self.settings)
    }

    /// Waits until all of a case is done, and it is what its description says.
    fn wait_for(&self, case: &Case, progress: &Progress, child: &Child) -> Outcome {
        let last = case.ops.len() as u64;
        match &case.when {
            When::AtTheEnd => {
                let is_over = || progress.get(2) == last || child.has_ended();
                eventually(WORKER_LIMIT, is_over);
                let done = progress.get(2);
                ensure!(
                    done == last,
                    "the case ends after {done} of {last} steps: {:?}",
                    case.what
                );
            }
            When::WhileWrittenBack { name } => {
                ensure!(
                    eventually(WORKER_LIMIT, || progress.get(1) == last || child.has_ended()),
                    "the case does not come to its last step"
                );
                let file = fs::File::open(self.site.path("backing/data/worker0").join(name))?;
                let first = || os::read_at(&file, 0, BLOCK).unwrap_or_default();
                let before = first();
                let deadline = Instant::now() + WORKER_LIMIT;
                while first() == before && progress.get(2) < last {
                    ensure!(Instant::now() < deadline, "{name} is not written back in time");
                }
                self.site.freeze()?;
                if progress.get(2) >= last {
                    return Err(Failure::Skipped(format!("{name} {TOO_FAST}")));
                }
                self.site.cut(case.cut[0])?;
                rustix::fs::fsync(&file)?;
            }
        }
        if case.by_the_kernel {
            let (_, opens) = self.site.passthrough()?;
            ensure!(opens > 0, "the kernel has opened no file past the daemon: no such case");
        }
        Ok(())
    }

    /// Another daemon goes on, which stands at a fail point when it comes there.
    fn draw_point(&mut self) -> Outcome {
        if self.points.is_empty() {
            return Ok(());
        }
        let stand = match self.is_sure {
            true => Stand::sure(),
            false => Stand::choose(&mut self.random, &self.points),
        };
        self.site.kill();
        self.site.mount_to_stand(&self.settings, stand)
    }

    /// Waits until the daemon stands at its point, if it comes there soon, and lets it do nothing more then.
    /// Whether it does.
    fn freeze_at_point(&mut self) -> Outcome<bool> {
        let Some(stand) = self.site.take_stand() else { return Ok(false) };
        let stood = eventually(stand.limit, || self.site.is_at_point());
        self.tally.stood.count(&stand.point, stood);
        if stood {
            // What does not need what the point holds goes on.
            std::thread::sleep(Duration::from_millis(self.random.below(60)));
            self.site.freeze()?;
            self.tally.cut_lately.push_back(format!("{stand:?}"));
        }
        Ok(stood)
    }

    /// One cut, and what is left.
    fn cut(&mut self) -> Outcome {
        self.draw_point()?;
        let mut plans = Vec::new();
        for oracle in &self.oracles {
            let mix = *self.random.pick(self.mixes);
            plans.push(work::plan(&mut self.random, mix, oracle, &mut self.stamp, STEPS));
        }
        self.cut_after(plans, None)?;
        if self.random.one_in(CUTS_BETWEEN_SYNCS) {
            self.remove_strangers()?;
            let seen = self.everything();
            self.site.sync()?;
            self.oracles.iter_mut().for_each(Oracle::all_written_back);
            self.compare_below(&seen);
        }
        Ok(())
    }

    /// A cut of a case's disks when it is ready, or of any at any time.
    fn cut_after(&mut self, plans: Vec<Vec<Op>>, case: Option<&Case>) -> Outcome {
        let progress = Progress::new()?;
        let mut children = Vec::new();
        for (worker, plan) in plans.iter().enumerate() {
            let (home, progress) = (self.site.home(worker), &progress);
            children.push(Child::start(move || do_steps(&home, plan, progress, worker))?);
        }
        let (mut came_to_be, mut is_frozen, mut is_at_point) = (Ok(()), false, false);
        let disks = match case {
            Some(case) => {
                came_to_be = self.wait_for(case, &progress, &children[0]);
                is_frozen = case.when != When::AtTheEnd;
                case.cut.to_vec()
            }
            None => {
                is_at_point = self.freeze_at_point()?;
                if !is_at_point {
                    std::thread::sleep(self.draw_moment());
                }
                self.choose_disks()
            }
        };
        // A frozen daemon does nothing any more.
        let killed_first = self.random.one_in(2) && !is_frozen || is_at_point;
        progress.end();
        if killed_first {
            self.site.kill();
        }
        for disk in disks.iter().skip(usize::from(is_frozen && came_to_be.is_ok())) {
            self.site.cut(disk)?;
        }
        if !killed_first {
            std::thread::sleep(Duration::from_millis(self.random.below(20)));
            self.site.kill();
        }
        for child in children {
            match child.end(WORKER_LIMIT)? {
                End::Returned(Ok(())) | End::Killed(libc::SIGBUS) => {}
                End::Returned(Err(failure)) => self.wrong(failure.to_string()),
                End::Killed(signal) => self.wrong(format!("a worker died by signal {signal}")),
            }
        }
        came_to_be?;
        let mut done_by = Vec::new();
        for (worker, plan) in plans.into_iter().enumerate() {
            let counts = (progress.get(1 + 2 * worker), progress.get(2 + 2 * worker));
            let made = |step| progress.get(Progress::number(worker, step));
            done_by.push(self.note_steps(worker, plan, counts, &made, killed_first));
        }
        self.site.halt()?;
        self.site.boot()?;
        let below = self.below();
        let when = if killed_first { "after" } else { "before" };
        let how = format!("{} cut {when} the daemon's end", disks.join(" "));
        self.tally.cut_lately.push_back(format!("{} {how}", self.tally.cuts));
        if self.tally.cut_lately.len() > CUTS_BETWEEN_DRAINS {
            self.tally.cut_lately.pop_front();
        }
        self.look(&how, &done_by, &below)
    }

    /// Mounts after a cut, and looks what is there.
    fn look(&mut self, how: &str, done_by: &[(u64, Vec<Op>)], below: &[Below]) -> Outcome {
        if let Err(failure) = self.site.mount(&self.settings) {
            let (_, checked) = self.site.check()?;
            return Err(Failure::at(format_args!("{how}: {failure}\nfsck: {checked}")));
        }
        let before = self.tally.wrong.len();
        if let Some(lost) = self.site.lost()? {
            self.wrong(format!("{how}: {lost}"));
        }
        self.compare(how, done_by, below)?;
        if self.tally.wrong.len() > before {
            println!("{}", self.site.log());
            self.site.keep_logs(self.tally.cuts, &format!("{done_by:#?}"));
            self.tell_names();
        }
        Ok(())
    }

    /// What a worker has done of its plan, as it told.
    fn note_steps(
        &mut self,
        worker: usize,
        plan: Vec<Op>,
        (begun, done): (u64, u64),
        made: &dyn Fn(usize) -> u64,
        killed_first: bool,
    ) -> (u64, Vec<Op>) {
        for (number, op) in (0..begun).zip(&plan) {
            self.oracles[worker].carried_out(self.tally.cuts, op, number < done);
            if let (Op::MakeDir { name }, true) = (op, number < done) {
                self.oracles[worker].is_made(name, made(number as usize));
            }
            if number >= done && !killed_first {
                self.oracles[worker].doubt(op);
            }
        }
        self.tally.steps += done;
        (done, plan.into_iter().take(begun as usize).collect())
    }

    /// What the mount and the backing store have in the workers' directories, and under which inodes.
    fn tell_names(&self) {
        for below in ["mnt", "backing/data"] {
            for worker in 0..WORKERS {
                let dir = self.site.path(below).join(format!("worker{worker}"));
                let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
                let told = entries.map(|entry| match entry.metadata() {
                    Ok(found) => format!("{:?} {} {}", entry.file_name(), found.ino(), found.len()),
                    Err(error) => format!("{:?} {error}", entry.file_name()),
                });
                println!("{}: {}", dir.display(), told.collect::<Vec<_>>().join(", "));
            }
        }
    }

    /// When the power is to fail.
    fn draw_moment(&mut self) -> Duration {
        let is_late = self.mixes.contains(&work::Mix::Trees) && self.random.one_in(LATE_ONE_IN);
        let (least, most) = if is_late { (900, 1600) } else { (10, 250) };
        Duration::from_millis(self.random.between(least, most))
    }

    fn choose_disks(&mut self) -> Vec<&'static str> {
        let all = self.layout.disks();
        if self.layout == Layout::Default {
            return match self.random.below(4) {
                0 | 1 => all.to_vec(),
                _ => vec![*self.random.pick(all)],
            };
        }
        match self.random.below(8) {
            0..=2 => all.to_vec(),
            3 => vec!["tier0", "tier1"],
            4 => vec!["tier0", "tier1", "state"],
            one => vec![*self.random.pick(&all[..if one == 5 { 4 } else { 2 }])],
        }
    }

    /// What the backing store has of each worker's files.
    fn below(&self) -> Vec<Below> {
        let backing = self.site.path("backing/data");
        let read = |(worker, oracle): (usize, &Oracle)| {
            let home = backing.join(format!("worker{worker}"));
            let names = oracle.names().into_iter();
            let bytes = |name: &String| fs::read(home.join(oracle.path(name)?)).ok();
            names.filter_map(|name| Some((name.clone(), bytes(&name)?))).collect()
        };
        self.oracles.iter().enumerate().map(read).collect()
    }

    fn compare(&mut self, how: &str, done_by: &[(u64, Vec<Op>)], below: &[Below]) -> Outcome {
        for (worker, ((done, _), below)) in done_by.iter().zip(below).enumerate() {
            let home = self.site.home(worker);
            let found = self.oracles[worker].compare(&Seen::read(&home), below);
            for why in found.wrong {
                self.wrong(format!("{how}: worker{worker}/{why} ({done} done)"));
            }
            for path in found.remove {
                remove(&home.join(path))?;
            }
            self.tally.conflicts += found.conflicts;
        }
        Ok(())
    }

    /// All that each worker sees now.
    fn everything(&self) -> Vec<Seen> {
        (0..WORKERS).map(|worker| Seen::read(&self.site.home(worker))).collect()
    }
}

fn remove(path: &Path) -> Outcome {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path)?,
        false => fs::remove_file(path)?,
    }
    Ok(())
}

fn do_steps(home: &Path, plan: &[Op], progress: &Progress, worker: usize) -> Outcome {
    let mut held = Held::new();
    for (number, op) in plan.iter().enumerate() {
        if progress.has_ended() {
            return Ok(());
        }
        progress.set(1 + 2 * worker, number as u64 + 1);
        let done = work::carry_out(home, op, &mut held, &|| progress.has_ended());
        if progress.has_ended() {
            return Ok(());
        }
        if let Err(failure) = done {
            return Err(Failure::at(format_args!("step {number} {op:?}: {failure}")));
        }
        if let Op::MakeDir { name } = op {
            let ino = fs::metadata(home.join(name)).map_or(0, |found| found.ino());
            progress.set(Progress::number(worker, number), ino);
        }
        progress.set(2 + 2 * worker, number as u64 + 1);
    }
    // What is held stays open until the power fails.
    if !held.is_empty() {
        eventually(WORKER_LIMIT, || progress.has_ended());
    }
    Ok(())
}
