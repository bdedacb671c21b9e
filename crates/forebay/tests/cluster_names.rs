//! Names and attributes that the kernels of several nodes keep while their node has the lease of a
//! directory: no request for what is known, and what is done by any node is seen by all at once.

mod ring;
mod site;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ring::{Ring, can_cluster};

/// A number for each call: xorshift (Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Look-ups and questions for attributes that a node was asked by its kernel.
fn asked(ring: &Ring, node: usize) -> u64 {
    let (code, text) = ring.site.run(&["debug", "metrics", &ring.site.text(&format!("mnt{node}"))]);
    assert_eq!(code, 0, "{text}");
    let count = |op: &str| -> u64 {
        let wanted = format!("forebay_op_seconds_count{{op=\"{op}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&wanted));
        line.map_or(0, |count| count.parse().unwrap())
    };
    count("lookup") + count("getattr")
}

#[test]
fn names_when_looked_at_again_in_a_leased_directory_then_cost_no_request_and_others_changes_show() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "1s"]);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    let paths: Vec<PathBuf> = (0..20).map(|n| ring.at(0, &format!("dir/f{n}"))).collect();
    for path in &paths {
        fs::write(path, b"12345").unwrap();
    }
    let look = |rounds: usize| {
        for _ in 0..rounds {
            for path in &paths {
                assert_eq!(fs::metadata(path).unwrap().len(), 5);
                assert!(fs::metadata(path.with_extension("not")).is_err());
            }
        }
    };
    // Leases are taken by looking, and what a kernel keeps is asked for again now and then.
    let begun = Instant::now();
    let few = loop {
        let before = asked(&ring, 0);
        look(50);
        let few = asked(&ring, 0) - before;
        if few < 40 || begun.elapsed() > Duration::from_secs(30) {
            break few;
        }
    };
    assert!(few < 40, "{few} requests for 1,000 looks at names, and 1,000 at what is not there");
    // The other node changes what this one's kernel keeps.
    fs::set_permissions(ring.at(1, "dir/f3"), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(&paths[3]).unwrap().mode() & 0o777, 0o600);
    look(2);
    fs::rename(ring.at(1, "dir/f4"), ring.at(1, "dir/f5.not")).unwrap();
    assert!(fs::metadata(&paths[4]).is_err());
    assert_eq!(fs::metadata(paths[5].with_extension("not")).unwrap().len(), 5);
    fs::remove_file(ring.at(1, "dir/f6")).unwrap();
    assert!(fs::metadata(&paths[6]).is_err());
    ring.umount_all();
}

#[test]
fn daemon_when_killed_while_its_kernel_keeps_names_then_others_changes_show_all_the_same() {
    if !can_cluster() {
        return;
    }
    let mut ring = Ring::talking(2);
    ring.supervised = true;
    ring.mount_all(&["--writeback", "1s"]);
    fs::create_dir(ring.at(0, "dir")).unwrap();
    let paths: Vec<PathBuf> = (0..20).map(|n| ring.at(0, &format!("dir/f{n}"))).collect();
    for path in &paths {
        fs::write(path, b"12345").unwrap();
    }
    let begun = Instant::now();
    loop {
        let before = asked(&ring, 0);
        for path in paths.iter().cycle().take(400) {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o644);
        }
        if asked(&ring, 0) - before < 40 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is kept");
    }
    let pid = ring.daemon(0);
    site::signal(pid, rustix::process::Signal::KILL);
    // Served by the kernel alone, or by the next daemon.
    for path in &paths {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o644);
    }
    for n in 0..10 {
        let path = ring.at(1, &format!("dir/f{n}"));
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }
    for (n, path) in paths.iter().enumerate() {
        let expected = if n < 10 { 0o600 } else { 0o644 };
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, expected, "{n}");
    }
    assert!(site::wait_for(Duration::from_secs(60), || !site::alive(pid)));
    ring.umount_all();
}

/// Has the lease of a directory taken, and looks at a name in it until the kernel answers by itself.
fn have_kept(ring: &Ring, node: usize, dir: &Path, name: &str) {
    // Not through directories above, which others look at.
    let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(dir).unwrap();
    let here = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    work_in(dir);
    let is_kept = site::wait_for(Duration::from_secs(60), || {
        let before = asked(ring, node);
        for _ in 0..50 {
            fs::metadata(here.join(name)).unwrap();
        }
        asked(ring, node) - before < 10
    });
    assert!(is_kept, "{name} in {}", dir.display());
}

fn work_in(dir: &Path) {
    for n in 0..20 {
        let path = dir.join(format!("other{n}"));
        fs::write(&path, b"2").unwrap();
        fs::remove_file(&path).unwrap();
    }
}

/// The kernel takes what it keeps of a name along to the new one.
#[test]
fn name_when_kept_and_moved_then_what_others_do_to_the_new_name_shows() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "1s"]);
    // Into a directory that the other node works in, that this one does, that nobody does, and the
    // same one; each time others, as a lease that was recalled is not taken again for a while.
    let cases = [(Some(1), false), (Some(0), false), (None, false), (None, true)];
    for (case, (busy, same)) in cases.into_iter().cycle().take(12).enumerate() {
        let (from, to) = (format!("from{case}"), format!("to{case}"));
        let to = if same { &from } else { &to };
        for dir in [&from, to] {
            fs::create_dir_all(ring.at(0, dir)).unwrap();
        }
        fs::write(ring.at(0, &format!("{from}/file")), b"1").unwrap();
        fs::create_dir(ring.at(0, &format!("{from}/dir"))).unwrap();
        for name in ["file", "dir"] {
            have_kept(&ring, 0, &ring.at(0, &from), name);
        }
        if let Some(busy) = busy {
            work_in(&ring.at(busy, to));
        }
        for name in ["file", "dir"] {
            let new = ring.at(0, &format!("{to}/new {name}"));
            fs::rename(ring.at(0, &format!("{from}/{name}")), new).unwrap();
        }
        fs::remove_file(ring.at(1, &format!("{to}/new file"))).unwrap();
        fs::remove_dir(ring.at(1, &format!("{to}/new dir"))).unwrap();
        for name in ["file", "dir"] {
            let found = fs::metadata(ring.at(0, &format!("{to}/new {name}")));
            assert!(found.is_err(), "a {name} shows that was removed elsewhere, case {case}");
        }
    }
    ring.umount_all();
}

#[test]
fn directory_when_renamed_by_another_node_then_its_old_name_is_dropped_before_that_is_said() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "1s"]);
    fs::create_dir_all(ring.at(0, "above/old")).unwrap();
    fs::create_dir_all(ring.at(0, "above/other")).unwrap();
    let hold = |path: PathBuf| {
        let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).unwrap();
        let shown = format!("/proc/self/fd/{}", held.as_raw_fd());
        (held, PathBuf::from(shown))
    };
    let is_dropped =
        |shown: &Path| fs::read_link(shown).unwrap().to_str().unwrap().ends_with("(deleted)");
    // As a program's working directory would be.
    let (held, old) = hold(ring.at(0, "above/old"));
    let (held_other, other) = hold(ring.at(0, "above/other"));
    fs::rename(ring.at(1, "above/old"), ring.at(1, "above/new")).unwrap();
    // A look-up that was answered before, and comes late, has no effect.
    assert!(is_dropped(&old));
    assert!(!is_dropped(&other), "what was not renamed stays where it is");
    assert!(fs::metadata(ring.at(0, "above/old")).is_err());
    assert!(fs::metadata(ring.at(0, "above/new")).unwrap().is_dir());
    assert_eq!(fs::read_link(&old).unwrap(), ring.at(0, "above/new"), "where it is now");
    // Both ends of an exchange.
    let (from, to) = (ring.at(1, "above/new"), ring.at(1, "above/other"));
    let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    rustix::fs::renameat_with(here, from, here, to, flags).unwrap();
    assert!(is_dropped(&old) && is_dropped(&other));
    drop((held, held_other));
    ring.umount_all();
}

/// What a directory shows to `ls -l`: length and mode of each file by its name.
fn list(dir: &Path) -> BTreeMap<String, (u64, u32)> {
    let shown = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
        (entry.file_name().into_string().unwrap(), (found.len(), found.mode() & 0o777))
    };
    fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).map(shown).collect()
}

#[test]
fn listing_when_repeated_in_leased_directories_then_names_cost_no_request_and_others_changes_show()
{
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "1s"]);
    let (dir, other) = (ring.at(0, "dir"), ring.at(1, "dir"));
    for name in ["dir", "before"] {
        fs::create_dir(ring.at(0, name)).unwrap();
    }
    let mut expected = BTreeMap::new();
    for n in 0..200 {
        // What was moved here is kept where it was made.
        let made = ring.at(0, if n < 150 { "dir" } else { "before" }).join(format!("f{n}"));
        fs::write(&made, b"12345").unwrap();
        if n >= 150 {
            fs::rename(made, dir.join(format!("f{n}"))).unwrap();
        }
        expected.insert(format!("f{n}"), (5, 0o644));
    }
    // What was looked up or made is kept for 8 seconds: after that the kernel has it from listings.
    let (begun, mut asked_much) = (Instant::now(), Instant::now());
    while asked_much.elapsed() < Duration::from_secs(9) {
        let before = asked(&ring, 0);
        for _ in 0..10 {
            assert_eq!(list(&dir), expected);
        }
        let count = asked(&ring, 0) - before;
        if count >= 100 {
            asked_much = Instant::now();
        }
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "{count} requests for 10 listings of 200 files");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The other node changes what this one's kernel keeps.
    for n in [3, 160] {
        fs::set_permissions(other.join(format!("f{n}")), Permissions::from_mode(0o600)).unwrap();
        expected.insert(format!("f{n}"), (5, 0o600));
    }
    for n in [10, 170] {
        let (old, new) = (format!("f{n}"), format!("g{n}"));
        fs::rename(other.join(&old), other.join(&new)).unwrap();
        let kept = expected.remove(&old).unwrap();
        expected.insert(new, kept);
    }
    fs::remove_file(other.join("f20")).unwrap();
    expected.remove("f20");
    fs::write(other.join("f30"), b"1234567").unwrap();
    expected.insert("f30".to_string(), (7, 0o644));
    // By their names first: a listing brings the kernel up to date.
    for n in 0..200 {
        for name in [format!("f{n}"), format!("g{n}")] {
            let found = fs::symlink_metadata(dir.join(&name)).ok();
            let shown = found.map(|found| (found.len(), found.mode() & 0o777));
            assert_eq!(shown.as_ref(), expected.get(&name), "{name}");
        }
    }
    assert_eq!(list(&dir), expected);
    ring.umount_all();
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Kept {
    inode: usize,
    len: u64,
    mode: u32,
}

/// What all nodes must show.
struct Run<'a> {
    ring: &'a Ring,
    nodes: usize,
    random: Random,
    names: BTreeMap<String, Kept>,
    inodes: usize,
    /// Files that are held by a descriptor, which knows nothing of names.
    held: Vec<(File, usize)>,
    /// Under which name the second directory is now.
    second: &'static str,
}

impl Run<'_> {
    fn pick(&mut self) -> String {
        let dir = ["a", self.second][self.random.below(2)];
        format!("{dir}/f{}", self.random.below(6))
    }

    /// What a node shows of a name is what the model says.
    fn check(&self, node: usize, name: &str, said: &str) {
        let look = || {
            let found = fs::metadata(self.ring.at(node, name));
            found.map(|found| (found.len(), found.mode() & 0o777)).map_err(|error| error.kind())
        };
        let shown = look();
        let expected = self.names.get(name).map(|kept| (kept.len, kept.mode));
        if shown.ok() == expected {
            return;
        }
        let wrong = Instant::now();
        let healed = site::wait_for(Duration::from_secs(15), || look().ok() == expected);
        let time = wrong.elapsed();
        panic!(
            "{said}: {name} on node {node}: {shown:?}, not {expected:?}; healed in {time:?}: {healed}"
        );
    }

    /// As [`Run::check`] for all that a node lists of a directory, with attributes.
    fn check_list(&self, node: usize, dir: &str, said: &str) {
        let here = self.names.iter().filter_map(|(name, kept)| {
            let name = name.strip_prefix(dir)?.strip_prefix('/')?;
            Some((name.to_string(), (kept.len, kept.mode)))
        });
        let shown = list(&self.ring.at(node, dir));
        assert_eq!(shown, here.collect(), "{said}: {dir} listed on node {node}");
    }

    fn change(&mut self, node: usize, said: &str) -> Vec<String> {
        let (name, other) = (self.pick(), self.pick());
        let (path, to) = (self.ring.at(node, &name), self.ring.at(node, &other));
        match self.random.below(8) {
            0 | 1 => {
                let len = self.random.below(3000);
                fs::write(&path, vec![7; len]).unwrap_or_else(|e| panic!("{said}: {e}"));
                self.inodes += 1;
                let new = Kept { inode: self.inodes, len: 0, mode: 0o644 };
                self.names.entry(name.clone()).or_insert(new).len = len as u64;
            }
            2 | 3 => {
                let mode = [0o600, 0o640, 0o644, 0o755][self.random.below(4)];
                let done = fs::set_permissions(&path, Permissions::from_mode(mode));
                assert_eq!(done.is_ok(), self.names.contains_key(&name), "{said}: {done:?}");
                if let Some(kept) = self.names.get_mut(&name) {
                    kept.mode = mode;
                }
            }
            4 | 5 => {
                let done = fs::rename(&path, &to);
                assert_eq!(done.is_ok(), self.names.contains_key(&name), "{said}: {done:?}");
                if let Some(kept) = self.names.remove(&name) {
                    self.names.insert(other.clone(), kept);
                }
            }
            6 => {
                let done = fs::remove_file(&path);
                assert_eq!(done.is_ok(), self.names.remove(&name).is_some(), "{said}: {done:?}");
            }
            _ => {
                let now = if self.second == "b" { "c" } else { "b" };
                fs::rename(self.ring.at(node, self.second), self.ring.at(node, now)).unwrap();
                let moved = |name: &String| match name.strip_prefix(self.second) {
                    Some(rest) => format!("{now}{rest}"),
                    None => name.clone(),
                };
                self.names = self.names.iter().map(|(name, kept)| (moved(name), *kept)).collect();
                let gone = format!("{}/f0", self.second);
                self.second = now;
                return vec![gone, format!("{now}/f0")];
            }
        }
        vec![name, other]
    }

    fn step(&mut self, step: usize, seed: u64) {
        let node = self.random.below(self.nodes);
        let said = format!("step {step} by node {node} (seed {seed:#x})");
        let mut names = self.change(node, &said);
        names.push(self.pick());
        for _ in 0..2 {
            let at = self.random.below(self.nodes);
            for name in &names {
                self.check(at, name, &said);
            }
        }
        if self.random.below(3) == 0 {
            let at = self.random.below(self.nodes);
            for dir in ["a", self.second] {
                self.check_list(at, dir, &said);
            }
        }
        // A descriptor shows what its file has become, as long as that has a name.
        for (file, inode) in &self.held {
            let Some(kept) = self.names.values().find(|kept| kept.inode == *inode) else {
                continue;
            };
            let found = file.metadata().unwrap_or_else(|e| panic!("{said}: held: {e}"));
            assert_eq!((found.len(), found.mode() & 0o777), (kept.len, kept.mode), "{said}: held");
        }
        if step.is_multiple_of(7) {
            let (at, name) = (self.random.below(self.nodes), self.pick());
            if let Some(kept) = self.names.get(&name).copied() {
                let mut options = OpenOptions::new();
                let options = options.read(true).custom_flags(libc::O_PATH);
                self.held.push((options.open(self.ring.at(at, &name)).unwrap(), kept.inode));
                if self.held.len() > 4 {
                    self.held.remove(0);
                }
            }
        }
        // Somebody looks so often that his node takes the leases and his kernel keeps all.
        if step.is_multiple_of(9) {
            let at = self.random.below(self.nodes);
            for _ in 0..8 {
                for n in 0..6 {
                    self.check(at, &format!("a/f{n}"), &said);
                    self.check(at, &format!("{}/f{n}", self.second), &said);
                }
            }
        }
    }
}

/// Random changes and looks on several nodes, each over before the next begins; beside it programs
/// of every node look at the same names all the time, so that kernels keep what they can.
fn run(nodes: usize, seed: u64) {
    let ring = Ring::talking(nodes);
    ring.mount_all(&["--writeback", "1s"]);
    for dir in ["a", "b"] {
        fs::create_dir(ring.at(0, dir)).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in 0..nodes {
            let (ring, stop) = (&ring, &stop);
            scope.spawn(move || {
                let mut random = Random(seed ^ (node as u64 + 1) << 20);
                while !stop.load(Ordering::Acquire) {
                    for _ in 0..random.below(60) {
                        let dir = ["a", "b", "c"][random.below(3)];
                        let name = format!("{dir}/f{}", random.below(6));
                        let _ = fs::metadata(ring.at(node, &name));
                    }
                    let dir = ring.at(node, ["a", "b", "c", ""][random.below(4)]);
                    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                        let _ = entry.metadata();
                    }
                    std::thread::sleep(Duration::from_millis(random.below(30) as u64));
                }
            });
        }
        let mut run = Run {
            ring: &ring,
            nodes,
            random: Random(seed),
            names: BTreeMap::new(),
            inodes: 0,
            held: Vec::new(),
            second: "b",
        };
        let begun = Instant::now();
        let steps = std::panic::AssertUnwindSafe(|| {
            let mut step = 0;
            while step < 400 && begun.elapsed() < Duration::from_secs(25) {
                step += 1;
                run.step(step, seed);
            }
            assert!(step > 20, "only {step} steps in time");
        });
        let outcome = std::panic::catch_unwind(steps);
        stop.store(true, Ordering::Release);
        if let Err(cause) = outcome {
            std::panic::resume_unwind(cause);
        }
    });
    ring.umount_all();
}

/// The usual one, or that of the environment.
fn seed(usual: u64) -> u64 {
    std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_changes_on_two_nodes_that_keep_names_then_what_one_has_done_the_other_sees() {
    if can_cluster() {
        run(2, seed(0x5eed_0021));
    }
}

#[test]
fn random_changes_on_three_nodes_that_keep_names_then_what_one_has_done_the_others_see() {
    if can_cluster() {
        run(3, seed(0x5eed_0022));
    }
}
