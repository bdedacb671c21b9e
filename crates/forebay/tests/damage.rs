//! Every file that Forebay keeps, damaged in every way, and then every command: no dirty byte is
//! unlinked, and every refusal names a command that works.
//!
//! A part of the matrix in each run; all of it with `FOREBAY_DAMAGE=all`, a part of that with another
//! value, which the names of cases contain.

mod site;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use site::*;

/// Ways of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Deleted,
    Halved,
    Flipped,
    /// The same for the header in the extended attribute.
    HeaderDeleted,
    HeaderFlipped,
    HeaderNewer,
}

const ALL: [Damage; 6] = [
    Damage::Deleted,
    Damage::Halved,
    Damage::Flipped,
    Damage::HeaderDeleted,
    Damage::HeaderFlipped,
    Damage::HeaderNewer,
];

/// What is done first with what was damaged.
const FIRST: [&str; 4] = ["mount", "fsck", "--repair", "--rebuild"];

/// Cases that are tried at the same time.
const LANES: usize = 3;

const HEADER: &str = "user.forebay";

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}

/// A pattern by which the bytes of each file are found wherever they lie.
fn pattern(name: &str, block: usize) -> Vec<u8> {
    let line = format!("{name}:{block:06}\n");
    line.bytes().cycle().take(4096).collect()
}

struct Case {
    site: Site,
    /// The dirty files: name, blocks.
    dirty: Vec<(&'static str, usize)>,
}

impl Case {
    fn tier(&self) -> String {
        format!("{}=2M", self.site.text("tier"))
    }

    fn mount(&self) -> (i32, String) {
        let (backing, mnt, tier) = (self.site.text("backing"), self.site.text("mnt"), self.tier());
        let args = ["mount", &backing, &mnt, "--tier", &tier, "--writeback", "evict"];
        self.site.run(&[&args[..], &["--extent-size", "64K"]].concat())
    }

    fn fsck(&self, how: &str) -> (i32, String) {
        let (backing, tier) = (self.site.text("backing"), self.site.text("tier"));
        let how: &[&str] = if how == "fsck" { &[] } else { &[how] };
        self.site.run(&[&["fsck", "--backing", &backing], how, &[&tier]].concat())
    }

    /// Dirty files of every kind: whole, partly resident over a published version, in the spill area
    /// with and without a map.
    fn new() -> Self {
        let case = Case {
            site: Site::new(),
            dirty: vec![
                ("small", 2),
                ("over", 4),
                ("large", 600),
                ("last", 8),
                ("through", 3),
                ("beyond", 3),
            ],
        };
        // The last is larger than the tier.
        for (name, blocks) in [("over", 175), ("through", 175), ("beyond", 600)] {
            let old: Vec<u8> = (0..blocks).flat_map(|block| pattern("old", block)).collect();
            fs::write(case.site.path("backing").join(name), old).unwrap();
        }
        let (code, text) = case.mount();
        assert_eq!(code, 0, "{text}");
        for (name, blocks) in &case.dirty {
            let path = case.site.path("mnt").join(name);
            let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
            let file = file.unwrap();
            for block in 0..*blocks {
                file.write_all_at(&pattern(name, block), block as u64 * 4096).unwrap();
            }
            file.sync_all().unwrap();
        }
        let (code, text) = case.site.run(&["umount", "--no-drain", &case.site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
        case
    }

    /// All files that Forebay keeps, relative to the site.
    fn kept(&self) -> Vec<PathBuf> {
        let root = self.site.path("");
        let mut kept = files_below(&self.site.path("tier"));
        kept.extend(files_below(&self.site.path("backing/.forebay")));
        kept.retain(|path| !path.ends_with("lock") && !path.ends_with("forebay.log"));
        kept.into_iter().map(|path| path.strip_prefix(&root).unwrap().to_owned()).collect()
    }

    /// The blocks of dirty files that can be found somewhere.
    fn findable(&self) -> Vec<(&'static str, usize)> {
        let mut bytes = Vec::new();
        for dir in ["tier/objects", "tier/lost", "tier/aside", "backing"] {
            for path in files_below(&self.site.path(dir)) {
                bytes.push(fs::read(path).unwrap_or_default());
            }
        }
        let all = self.dirty.iter().flat_map(|(name, n)| (0..*n).map(move |block| (*name, block)));
        let holds = |found: &[u8], wanted: &[u8]| found.chunks(4096).any(|part| part == wanted);
        all.filter(|(name, block)| {
            let wanted = pattern(name, *block);
            bytes.iter().any(|found| holds(found, &wanted))
        })
        .collect()
    }

    fn damage(&self, path: &Path, how: Damage) -> bool {
        let path = self.site.path("").join(path);
        let len = fs::metadata(&path).unwrap().len();
        let header = || {
            let mut header = vec![0; 4096];
            let len = rustix::fs::getxattr(&path, HEADER, &mut header[..]).ok()?;
            header.truncate(len);
            Some(header)
        };
        let set = |header: &[u8]| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, HEADER, header, flags).unwrap();
            true
        };
        match how {
            Damage::Deleted => fs::remove_file(&path).is_ok(),
            Damage::Halved if len > 1 => {
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(len / 2).is_ok()
            }
            Damage::Flipped if len > 0 => {
                let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
                let mut byte = [0];
                let at = (len / 2).min(9);
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 2], at).is_ok()
            }
            Damage::HeaderDeleted => rustix::fs::removexattr(&path, HEADER).is_ok(),
            Damage::HeaderFlipped => header().is_some_and(|mut header| {
                header[20] ^= 8;
                set(&header)
            }),
            Damage::HeaderNewer => header().is_some_and(|mut header| {
                header[8] = 9;
                set(&header)
            }),
            Damage::Halved | Damage::Flipped => false,
        }
    }

    /// Goes on by what the refusals say until it is mounted; the commands and what they said.
    fn go_on(&self, first: &str) -> String {
        let mut told = String::new();
        let mut next = first.to_owned();
        for _ in 0..6 {
            let (code, text) = if next == "mount" { self.mount() } else { self.fsck(&next) };
            told += &format!("$ {next}: {code}\n{text}");
            assert!([0, 2, 6].contains(&code), "{told}");
            if next == "mount" && code == 0 {
                return told;
            }
            let named = ["--repair", "--rebuild", "--accept-loss"];
            // The mount first: it may work as it is.
            next = match (next.as_str(), code) {
                ("mount", _) => named
                    .into_iter()
                    .find(|how| text.contains(&format!("fsck {how}")))
                    .unwrap_or_else(|| panic!("a refusal without a way on: {told}"))
                    .to_owned(),
                _ => "mount".into(),
            };
        }
        panic!("it does not end: {told}");
    }

    /// Whether nothing that was there right after the damage is gone, and the mount can be used.
    fn check(&self, what: &str, first: &str) {
        let before = self.findable();
        let told = self.go_on(first);
        let mnt = self.site.path("mnt");
        for (name, _) in &self.dirty {
            // It may be lost; nothing hangs, and nothing ends the daemon.
            drop(fs::read(mnt.join(name)));
        }
        fs::write(mnt.join("fresh"), "fresh").unwrap();
        assert_eq!(fs::read(mnt.join("fresh")).unwrap(), b"fresh", "{told}");
        let (code, text) = self.site.run(&["umount", "--timeout", "15s", &self.site.text("mnt")]);
        if code != 0 {
            let told = format!("{what}: {told}\n{text}");
            assert!(text.contains("fsck --repair") && text.contains("--accept-loss"), "{told}");
            let args = ["umount", "--no-drain", &self.site.text("mnt")];
            let (code, text) = self.site.run(&args);
            let log = fs::read_to_string(self.site.path("tier/state/forebay.log"));
            assert_eq!(code, 0, "{told}{text}\n{}", log.unwrap_or_default());
        }
        let after = self.findable();
        let gone: Vec<_> = before.iter().filter(|block| !after.contains(block)).take(5).collect();
        assert!(gone.is_empty(), "{what}, {first} first: gone are {gone:?}\n{told}");
    }
}

/// Which kind of file it is: one of each kind is damaged in every way.
fn kind(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        ["tier", "objects", _, name] => format!("object {}", name.ends_with(".map")),
        ["tier", "state", "meta", first, ..] => format!("meta {first}"),
        ["tier", "state", "clean-end" | "running" | "removed" | "meta.ballast"] => "note".into(),
        ["backing", ".forebay", area, name] => format!("{area} {}", name.ends_with(".map")),
        _ => text,
    }
}

/// The cases of a run.
struct Run {
    wanted: Option<String>,
    kinds: std::collections::HashMap<String, usize>,
    turn: usize,
}

impl Run {
    /// What is done first with a damage, in this run: all commands in a whole run; else one, the next
    /// for each damage of a kind of file.
    fn firsts(&mut self, path: &Path, how: Damage) -> Vec<&'static str> {
        let name = |first: &str| format!("{} {how:?} {first}", path.display());
        match &self.wanted {
            Some(all) if all == "all" => FIRST.to_vec(),
            Some(part) => FIRST.into_iter().filter(|first| name(first).contains(part)).collect(),
            None => {
                let seen = self.kinds.entry(format!("{} {how:?}", kind(path))).or_default();
                *seen += 1;
                if *seen > 1 {
                    return Vec::new();
                }
                self.turn += 1;
                vec![FIRST[self.turn % FIRST.len()]]
            }
        }
    }
}

#[test]
fn file_when_damaged_in_any_way_then_no_dirty_byte_is_unlinked_and_there_is_a_way_on() {
    if !can_mount() {
        return;
    }
    let wanted = std::env::var("FOREBAY_DAMAGE").ok();
    let mut run = Run { wanted, kinds: Default::default(), turn: 0 };
    let plan = Case::new().kept();
    let kinds: Vec<String> = plan.iter().map(|path| kind(path)).collect();
    for needed in ["spill false", "spill true", "object false", "object true", "mounts false"] {
        assert!(kinds.iter().any(|kind| kind == needed), "{needed}: {plan:?}");
    }
    let mut cases = Vec::new();
    for (at, planned) in plan.iter().enumerate() {
        for how in ALL {
            cases.extend(run.firsts(planned, how).into_iter().map(|first| (at, how, first)));
        }
    }
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some((at, how, first)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = Case::new();
                    // Names of objects and tiers differ from case to case.
                    let kept = case.kept();
                    let Some(path) = kept.get(*at) else { continue };
                    if case.damage(path, *how) {
                        let began = std::time::Instant::now();
                        case.check(&format!("{} {how:?}", path.display()), first);
                        eprintln!("{} {how:?} {first}: {:?}", path.display(), began.elapsed());
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(done.into_inner() > 20 || run.wanted.is_some());
}
