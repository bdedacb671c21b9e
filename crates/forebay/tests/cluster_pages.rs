//! What the kernels of several nodes keep of files: files that they read and write by themselves, and
//! pages that stay over opens. An open anywhere has to show what was closed before, however it is read.

mod ring;
mod site;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use ring::{Random, Ring, can_cluster};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::Signal;
use site::{alive, signal, wait_for};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// The bytes of a file, mapped for reading.
struct Mapping {
    at: *mut std::ffi::c_void,
    len: usize,
}

impl Mapping {
    fn new(file: &File) -> Option<Mapping> {
        let len = file.metadata().ok()?.len() as usize;
        if len == 0 {
            return None;
        }
        // SAFETY: a new mapping, which only this value knows.
        let at =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Some(Mapping { at: at.ok()?, len })
    }

    /// What is there now; an error where a program would get SIGBUS.
    fn bytes(&self) -> Result<Vec<u8>, Error> {
        let copy = File::from(memfd_create("copy", MemfdFlags::CLOEXEC)?);
        // SAFETY: the mapping lives as long as `self`. The kernel alone looks at it, and fails with
        // EFAULT where there is nothing.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.len) };
        copy.write_all_at(bytes, 0)?;
        let mut found = vec![0; self.len];
        copy.read_exact_at(&mut found, 0)?;
        Ok(found)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody else has it.
        unsafe { munmap(self.at, self.len) }.unwrap();
    }
}

fn whole(file: &File) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        match file.read_at(&mut part, bytes.len() as u64)? {
            0 => return Ok(bytes),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

/// A file that stays open for reading.
struct Kept {
    file: File,
    mapping: Option<Mapping>,
    of: usize,
    /// The version that was there at the open.
    since: usize,
    said: String,
}

/// What all nodes must show: names, and every version that their files have had.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    versions: Vec<Vec<Vec<u8>>>,
}

impl Model {
    fn now(&self, name: &str) -> Option<&Vec<u8>> {
        self.names.get(name).and_then(|of| self.versions[*of].last())
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let of = *self.names.entry(name.to_owned()).or_insert_with(|| {
            self.versions.push(vec![Vec::new()]);
            self.versions.len() - 1
        });
        let mut bytes = self.versions[of].last().cloned().unwrap();
        change(&mut bytes);
        self.versions[of].push(bytes);
    }
}

/// One run of random operations, each over before the next begins.
struct Run<'a> {
    ring: &'a Ring,
    random: Random,
    model: Model,
    kept: Vec<Kept>,
}

impl Run<'_> {
    fn step(&mut self, step: usize) {
        let node = self.random.pick(3);
        let name = format!("f{}", self.random.pick(4));
        let path = self.ring.at(node, &name);
        let what = self.random.pick(12);
        let said = format!("step {step}: node {node}, {name}, operation {what}");
        if std::env::var_os("FOREBAY_TEST_STEPS").is_some() {
            eprintln!("{said}");
        }
        let size = [10, 3_000, 90_000, 600_000, 1_200_000][self.random.pick(5)];
        let fill = step as u8;
        match what {
            0 | 1 => {
                fs::write(&path, vec![fill; size]).unwrap_or_else(|e| panic!("{said}: {e}"));
                self.model.change(&name, |bytes| *bytes = vec![fill; size]);
            }
            2 => {
                let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
                file.write_all(&vec![fill; 999]).unwrap_or_else(|e| panic!("{said}: {e}"));
                self.model.change(&name, |bytes| bytes.extend(vec![fill; 999]));
            }
            3..=5 => self.change(&path, &name, fill, &said),
            6 => {
                let other = format!("f{}", self.random.pick(4));
                let done = fs::rename(&path, self.ring.at(node, &other));
                let of = self.model.names.get(&name).copied();
                assert_eq!(done.is_ok(), of.is_some(), "{said}: {done:?}");
                if let Some(of) = of {
                    self.model.names.remove(&name);
                    self.model.names.insert(other, of);
                }
            }
            7 => {
                let done = fs::remove_file(&path);
                assert_eq!(done.is_ok(), self.model.names.remove(&name).is_some(), "{said}");
            }
            8..=10 => self.keep(&path, &name, said.clone()),
            _ => {
                let which = self.random.pick(self.kept.len().max(1));
                self.kept.truncate(which);
            }
        }
        self.check(&said);
    }

    /// Writes into the middle, or cuts.
    fn change(&mut self, path: &Path, name: &str, fill: u8, said: &str) {
        let Some(len) = self.model.now(name).map(Vec::len).filter(|len| *len > 100) else { return };
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.unwrap_or_else(|e| panic!("{said}: {e}"));
        if self.random.pick(4) == 0 {
            let to = self.random.pick(len + 2_000);
            file.set_len(to as u64).unwrap_or_else(|e| panic!("{said}: {e}"));
            self.model.change(name, |bytes| bytes.resize(to, 0));
            return;
        }
        let at = self.random.pick(len - 50);
        file.write_all_at(&[fill; 50], at as u64).unwrap_or_else(|e| panic!("{said}: {e}"));
        self.model.change(name, |bytes| bytes[at..at + 50].fill(fill));
    }

    fn keep(&mut self, path: &Path, name: &str, said: String) {
        let Some(&of) = self.model.names.get(name) else { return };
        let file = File::open(path).unwrap_or_else(|e| panic!("{said}: {e}"));
        let mapping = Mapping::new(&file).filter(|_| self.random.pick(2) == 0);
        let since = self.model.versions[of].len() - 1;
        self.kept.push(Kept { file, mapping, of, since, said });
    }

    /// Some node opens some file anew, and those that are open are looked at.
    fn check(&mut self, said: &str) {
        let (node, name) = (self.random.pick(3), format!("f{}", self.random.pick(4)));
        let (path, said) = (self.ring.at(node, &name), format!("{said}; {name} on {node}"));
        let Some(expected) = self.model.now(&name) else {
            assert!(fs::metadata(path).is_err(), "{said}: is there");
            return;
        };
        let file = File::open(&path).unwrap_or_else(|e| panic!("{said}: open: {e}"));
        let inode = fs::metadata(&path).unwrap().ino();
        assert_eq!(file.metadata().unwrap().ino(), inode, "{said}: inode number");
        let found = whole(&file).unwrap_or_else(|e| panic!("{said}: read: {e}"));
        same(&found, expected, &format!("{said}: read"));
        if let Some(mapping) = Mapping::new(&file) {
            let found = mapping.bytes().unwrap_or_else(|e| panic!("{said}: mapping: {e}"));
            same(&found, expected, &format!("{said}: mapping"));
        }
        for kept in &self.kept {
            let (versions, of) = (&self.model.versions[kept.of][kept.since..], &kept.said);
            let shown =
                [whole(&kept.file), kept.mapping.as_ref().map_or(Ok(vec![]), Mapping::bytes)];
            for found in shown {
                match found {
                    Ok(found) => assert!(
                        is_since(&found, versions),
                        "{said}; open since {of}: {}",
                        describe(&found, &self.model.versions[kept.of], kept.since)
                    ),
                    Err(e) => assert!(
                        matches!(e.raw_os_error(), Some(libc::ESTALE | libc::EFAULT)),
                        "{said}; open since {of}: {e}"
                    ),
                }
            }
        }
    }
}

/// Whether an open file shows nothing older than what was there at its open. Its length is that of
/// now, so that it may be cut, and what was not in the kernel's cache yet may be newer.
fn is_since(found: &[u8], versions: &[Vec<u8>]) -> bool {
    let of = |at: usize| versions.iter().any(|v| v.get(at).copied().unwrap_or(0) == found[at]);
    (0..found.len()).all(of)
}

/// What a file shows that it should not.
fn describe(found: &[u8], versions: &[Vec<u8>], since: usize) -> String {
    let differs = |of: &Vec<u8>| (0..of.len().min(found.len())).find(|at| of[*at] != found[*at]);
    let each = versions.iter().enumerate().map(|(number, of)| (number, of.len(), differs(of)));
    format!("{} bytes; since {since} of {:?}", found.len(), each.collect::<Vec<_>>())
}

fn same(found: &[u8], expected: &[u8], said: &str) {
    assert_eq!(found.len(), expected.len(), "{said}: length");
    let differs = (0..found.len()).find(|at| found[*at] != expected[*at]);
    assert_eq!(differs, None, "{said}");
}

/// Random operations on three nodes that give files to their kernels in these ways.
fn random_operations(ways: [&str; 3], seed: u64, steps: usize) {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(3);
    let delay = if seed.is_multiple_of(2) { "200ms" } else { "evict" };
    for (node, way) in ways.into_iter().enumerate() {
        ring.mount(node, &["--writeback", delay, "--passthrough", way]);
    }
    let began = Instant::now();
    let random = Random(0x5eed_0000 + seed.wrapping_mul(0x9e37_79b9));
    let mut run = Run { ring: &ring, random, model: Model::default(), kept: Vec::new() };
    eprintln!("seed {seed}");
    for step in 0..steps {
        // Not for ever on a busy machine.
        if began.elapsed() > Duration::from_secs(20) {
            break;
        }
        run.step(step);
    }
    let Run { model, kept, .. } = run;
    drop(kept);
    ring.umount_all();
    for (name, of) in &model.names {
        let found = fs::read(ring.backing(name)).unwrap();
        assert!(Some(&found) == model.versions[*of].last(), "{name} in the backing store");
    }
}

/// Seeds beside the first, for those who look for more.
fn seeds() -> u64 {
    std::env::var("FOREBAY_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1)
}

#[test]
fn random_operations_when_kernels_read_and_write_by_themselves_then_each_open_sees_the_last_close()
{
    (0..seeds()).for_each(|seed| random_operations(["readwrite"; 3], seed, 150));
}

#[test]
fn random_operations_when_kernels_keep_pages_then_each_open_sees_the_last_close() {
    (0..seeds()).for_each(|seed| random_operations(["off"; 3], seed, 150));
}

#[test]
fn random_operations_when_nodes_differ_then_each_open_sees_the_last_close() {
    (0..seeds()).for_each(|seed| random_operations(["readwrite", "off", "read"], seed, 150));
}

/// A file of which each page says which version it is of.
fn version(number: u8) -> Vec<u8> {
    vec![number; 300_000]
}

/// Writes the version over the one before.
fn rewrite(path: &Path, number: u8) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&version(number), 0).unwrap();
}

fn shown(path: &Path) -> (u8, u8) {
    let file = File::open(path).unwrap();
    let (read, mapped) = (whole(&file).unwrap(), Mapping::new(&file).unwrap().bytes().unwrap());
    assert!(read.iter().all(|byte| *byte == read[0]), "a mixture");
    assert!(mapped.iter().all(|byte| *byte == mapped[0]), "a mixture in the mapping");
    (read[0], mapped[0])
}

fn shown_below(ring: &Ring, number: u8) -> bool {
    fs::read(ring.backing("f")).is_ok_and(|found| found == version(number))
}

fn passed(ring: &Ring, node: usize) -> u64 {
    let (code, text) = ring.site.run(&["debug", "metrics", &ring.site.text(&format!("mnt{node}"))]);
    assert_eq!(code, 0, "{text}");
    let line = text.lines().find(|line| line.starts_with("forebay_passthrough_opens_total"));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn file_that_is_open_and_mapped_when_another_node_rewrites_it_then_new_opens_show_that() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "100ms"]);
    let (here, there) = (ring.at(0, "f"), ring.at(1, "f"));
    fs::write(&there, version(1)).unwrap();
    let inode = fs::metadata(&here).unwrap().ino();
    let given = || shown(&here) == (1, 1) && passed(&ring, 0) > 0;
    assert!(wait_for(LIMIT, given), "the kernel was given nothing");
    let mut open = Vec::new();
    for number in 1..6 {
        assert_eq!(shown(&here), (number, number));
        let file = File::open(&here).unwrap();
        let mapping = Mapping::new(&file).unwrap();
        assert_eq!(mapping.bytes().unwrap()[0], number);
        assert_eq!(file.metadata().unwrap().ino(), inode, "another inode number");
        open.push((number, file, mapping));
        rewrite(&there, number + 1);
        if number % 2 == 0 {
            // Also after the write-back.
            assert!(wait_for(LIMIT, || shown_below(&ring, number + 1)));
        }
    }
    for (number, file, mapping) in &open {
        for found in [whole(file).unwrap(), mapping.bytes().unwrap()] {
            assert!(found.iter().all(|byte| byte == &found[0]), "a mixture");
            assert!(found[0] >= *number, "open since {number} and shows {}", found[0]);
        }
    }
    assert_eq!(shown(&here), (6, 6));
    // From here, too, while old ones are open, and they are closed in any order.
    rewrite(&here, 7);
    assert_eq!((shown(&here), shown(&there)), ((7, 7), (7, 7)));
    drop(open.remove(1));
    rewrite(&there, 8);
    assert_eq!(shown(&here), (8, 8));
    drop(open);
    assert_eq!(shown(&here), (8, 8));
    ring.umount_all();
    assert_eq!(fs::read(ring.backing("f")).unwrap(), version(8));
}

#[test]
fn file_of_several_versions_when_daemons_change_or_die_then_each_open_shows_the_right_one() {
    if !can_cluster() {
        return;
    }
    let mut ring = Ring::talking(2);
    ring.supervised = true;
    ring.mount_all(&["--writeback", "100ms", "--restart-limit", "10000"]);
    let (here, there) = (ring.at(0, "f"), ring.at(1, "f"));
    fs::write(&there, version(1)).unwrap();
    let mut open = Vec::new();
    for number in 1..7 {
        let file = File::open(&here).unwrap();
        let mapping = Mapping::new(&file).unwrap();
        assert_eq!(mapping.bytes().unwrap(), version(number));
        open.push((number, file, mapping));
        let daemon = ring.daemon(0);
        match number % 3 {
            0 => rewrite(&there, number + 1),
            1 => {
                rewrite(&there, number + 1);
                let (code, text) = ring.site.run(&["upgrade", &ring.site.text("mnt0")]);
                assert_eq!(code, 0, "{text}");
            }
            _ => {
                signal(daemon, Signal::KILL);
                assert!(wait_for(LIMIT, || !alive(daemon)));
                rewrite(&there, number + 1);
            }
        }
        assert_eq!(shown(&here), (number + 1, number + 1), "after {number}");
        for (number, file, mapping) in &open {
            assert!(mapping.bytes().unwrap()[0] >= *number);
            match whole(file) {
                Ok(found) => assert!(found[0] >= *number && found.len() == version(0).len()),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
            }
        }
    }
    // What is written here by the kernel itself is neither lost with a daemon nor with old versions.
    let file = OpenOptions::new().read(true).write(true).open(&here).unwrap();
    file.write_all_at(&version(100), 0).unwrap();
    let daemon = ring.daemon(0);
    signal(daemon, Signal::KILL);
    assert!(wait_for(LIMIT, || !alive(daemon)));
    file.write_all_at(&version(101), 0).unwrap();
    drop((open, file));
    assert_eq!((shown(&there), shown(&here)), ((101, 101), (101, 101)));
    ring.umount_all();
    assert_eq!(fs::read(ring.backing("f")).unwrap(), version(101));
}

#[test]
fn file_when_read_again_and_unchanged_then_its_pages_stay() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "100ms", "--passthrough", "off"]);
    // The kernel may take back a few pages of its own accord, when memory is short; at an open that
    // does not tell it to keep them all go.
    let most = version(1).len() as u64 / 4;
    let before = || ring.bytes(0, "tier");
    let served = |before: u64| ring.bytes(0, "tier") - before;
    fs::write(ring.at(0, "f"), version(1)).unwrap();
    assert_eq!(fs::read(ring.at(0, "f")).unwrap(), version(1));
    let first = before();
    assert_eq!(fs::read(ring.at(0, "f")).unwrap(), version(1));
    assert!(served(first) < most, "read again from the daemon: {}", served(first));
    // The write-back changes nothing of that.
    assert!(wait_for(LIMIT, || shown_below(&ring, 1)));
    let clean = || ring.status(0)["dirty_files"].as_u64().is_none_or(|dirty| dirty == 0);
    assert!(wait_for(LIMIT, clean));
    let second = before();
    assert_eq!(fs::read(ring.at(0, "f")).unwrap(), version(1));
    assert!(served(second) < most, "read again after the write-back: {}", served(second));
    let mut kept = File::open(ring.at(0, "f")).unwrap();
    rewrite(&ring.at(1, "f"), 2);
    assert_eq!(fs::read(ring.at(0, "f")).unwrap(), version(2));
    let mut start = [0];
    if kept.read(&mut start).is_ok() {
        assert!(start[0] >= 1);
    }
    drop(kept);
    ring.umount_all();
}
