//! Every file that Forebay keeps, damaged in every way, and then every command: no dirty byte is
//! unlinked, no file shows an older version without a word, and every refusal names a command that
//! works. Also of a daemon that was killed with a file open.
//!
//! A part of the matrix in each run; all of it with `FOREBAY_DAMAGE=all`, one of N shares of that with
//! `FOREBAY_DAMAGE=K/N`, and with another value those whose names contain it.

mod bad_disk;
mod site;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bad_disk::BadDisk;
use site::*;

/// Ways of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Damage {
    Deleted,
    Halved,
    Flipped,
    /// The disk can't read it.
    Unreadable,
    /// The same for the header in the extended attribute.
    HeaderDeleted,
    HeaderFlipped,
    HeaderNewer,
    HeaderUnreadable,
    /// It says that a newer Forebay wrote it.
    Newer,
}

const ALL: [Damage; 9] = [
    Damage::Deleted,
    Damage::Halved,
    Damage::Flipped,
    Damage::Unreadable,
    Damage::HeaderDeleted,
    Damage::HeaderFlipped,
    Damage::HeaderNewer,
    Damage::HeaderUnreadable,
    Damage::Newer,
];

/// What is done first with what was damaged.
const FIRST: [&str; 4] = ["mount", "fsck", "--repair", "--rebuild"];

/// Cases that are tried at the same time.
const LANES: usize = 3;

const HEADER: &str = "user.forebay";

/// The exit code of state that a newer version has written.
const UNSUPPORTED: i32 = 5;

/// Where a file says which version of its format it has: after a magic of eight bytes, or as text.
fn version_at(bytes: &[u8]) -> Option<usize> {
    let (magic, index, text) = (&b"FBAY"[..], &b"FJL"[..], &b"forebay-"[..]);
    let word = bytes.starts_with(text).then(|| bytes.iter().position(|byte| *byte == b' '));
    match word.flatten() {
        Some(end) if bytes.get(end + 1).is_some_and(u8::is_ascii_digit) => Some(end + 1),
        _ if bytes.starts_with(magic) && bytes.len() >= 12 => Some(8),
        _ if bytes.starts_with(index) && bytes.len() == 4 => Some(3),
        _ => None,
    }
}

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
    /// What all of it lies on, if a file is to be unreadable. Last: it goes when nobody uses it.
    disk: Option<BadDisk>,
}

impl Case {
    fn mount(&self) -> (i32, String) {
        self.mount_with("2M", &[])
    }

    fn mount_with(&self, size: &str, more: &[&str]) -> (i32, String) {
        let (backing, mnt) = (self.site.text("backing"), self.site.text("mnt"));
        let tier = format!("{}={size}", self.site.text("tier"));
        // What was used last stays: the tests count on what is on the tier.
        let how = ["--writeback", "evict", "--policy", "lru"];
        let args = [&["mount", &backing[..], &mnt, "--tier", &tier][..], &how].concat();
        self.site.run(&[&args[..], &["--extent-size", "64K"], more].concat())
    }

    /// Unmounts. A process that another lane has begun to start may have the files of this one open
    /// for a moment longer: this test's own process is named as their user then.
    fn umount(&self, how: &[&str]) -> (i32, String) {
        let mnt = self.site.text("mnt");
        let args = [&["umount"], how, &[&mnt]].concat();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let outcome = self.site.run(&args);
            let told = ["Device or resource busy", "in use; end them"];
            let busy = outcome.0 == 1 && told.iter().any(|told| outcome.1.contains(told));
            if !busy || std::time::Instant::now() > until {
                return outcome;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    fn fsck(&self, how: &str) -> (i32, String) {
        let (backing, tier) = (self.site.text("backing"), self.site.text("tier"));
        let how: &[&str] = if how == "fsck" { &[] } else { &[how] };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let outcome =
                self.site.run(&[&["fsck", "--backing", &backing], how, &[&tier]].concat());
            // What a killed daemon was about to start may have its locks for a moment longer.
            if !outcome.1.contains("in use by another daemon") || std::time::Instant::now() > until
            {
                return outcome;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Dirty files of every kind: whole, partly resident over a published version, in the spill area
    /// with and without a map. If so wanted, the daemon was killed, while one more was open.
    fn new(killed: bool) -> Self {
        Self::on(tempfile::tempdir().unwrap(), None, killed)
    }

    /// The same on a disk of its own. Nothing where there can't be any.
    fn on_a_disk(killed: bool) -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let disk = BadDisk::mounted_on(root.path())?;
        Some(Self::on(root, Some(disk), killed))
    }

    fn on(root: tempfile::TempDir, disk: Option<BadDisk>, killed: bool) -> Self {
        let mut case = Case {
            site: Site::in_dir(root),
            disk,
            dirty: vec![
                ("dirty-small", 2),
                ("dirty-large", 600),
                ("dirty-through", 3),
                ("dirty-beyond", 3),
                // Last: so nothing evicts them, and objects with and without a map stay on the tier.
                ("dirty-last", 8),
                ("dirty-over", 4),
            ],
        };
        // One is larger than the tier.
        for (name, blocks) in
            [("dirty-over", 175), ("dirty-through", 175), ("dirty-beyond", 600), ("dirty-held", 6)]
        {
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
        let (code, text) = case.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{text}");
        if killed {
            case.kill_while_open();
        }
        case
    }

    /// Mounts, opens a file that the backing store has, writes into it, and kills the daemon.
    fn kill_while_open(&mut self) {
        // With room for all: what is on the tier stays there, however long this takes.
        let (code, text) = self.mount_with("8M", &["--no-supervisor"]);
        assert_eq!(code, 0, "{text}");
        let path = self.site.path("mnt/dirty-held");
        // It is on the tier before it is written.
        fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        for block in 0..6 {
            file.write_all_at(&pattern("dirty-held", block), block as u64 * 4096).unwrap();
        }
        let daemon = self.site.daemon();
        signal(daemon, rustix::process::Signal::KILL);
        assert!(wait_for(std::time::Duration::from_secs(10), || !alive(daemon)));
        // A thread may outlive the first one, and with it the locks.
        let mut locks = files_below(&self.site.path("tier"));
        locks.retain(|path| path.ends_with("lock"));
        let free = |path: &PathBuf| {
            use rustix::fs::{FlockOperation, flock};
            let lock = fs::File::open(path).unwrap();
            let free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            // By name: a process that another lane starts right now has the descriptor, too.
            flock(&lock, FlockOperation::Unlock).unwrap();
            free
        };
        assert!(wait_for(std::time::Duration::from_secs(10), || locks.iter().all(free)));
        let mnt = self.site.text("mnt");
        let (code, text) = outcome(self.site.command("fusermount3").args(["-uz", &mnt]));
        assert_eq!(code, 0, "{text}");
        drop(file);
        self.dirty.push(("dirty-held", 6));
    }

    /// Makes one more dirty file, while there is room for all: it is on the tier, and nowhere else. Its
    /// name, its object, and what is in it.
    fn file_whole_on_the_tier(&mut self) -> (&'static str, PathBuf, Vec<u8>) {
        let (code, text) = self.mount_with("8M", &[]);
        assert_eq!(code, 0, "{text}");
        let bytes: Vec<u8> = (0..2).flat_map(|block| pattern("dirty-whole", block)).collect();
        let mut file = fs::File::create_new(self.site.path("mnt/dirty-whole")).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let (code, text) = self.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{text}");
        assert!(!self.site.path("backing/dirty-whole").exists());
        self.dirty.push(("dirty-whole", 2));
        let mut objects = files_below(&self.site.path("tier/objects")).into_iter();
        let has = |path: &PathBuf| fs::read(path).is_ok_and(|found| found == bytes);
        let object = objects.find(has).expect("it is on the tier");
        ("dirty-whole", object, bytes)
    }

    /// What is wrong with a file that can be read: blocks that are older than what was written.
    fn older_blocks(&self) -> Vec<(&'static str, usize)> {
        let mut older = Vec::new();
        for (name, blocks) in &self.dirty {
            let Ok(bytes) = fs::read(self.site.path("mnt").join(name)) else { continue };
            // Nothing tells a bit that was flipped in a file's bytes on a tier.
            let is_right = |block: &usize| {
                let (from, to) = (block * 4096, (block + 1) * 4096);
                let found = bytes.get(from..to).unwrap_or_default();
                let wanted = pattern(name, *block);
                let differ = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted);
                found.len() == wanted.len() && differ.count() <= 1
            };
            let wrong = (0..*blocks).find(|block| !is_right(block));
            older.extend(wrong.map(|block| (*name, block)));
        }
        older
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

    /// Whether a file has what is to be damaged.
    fn can_damage(&self, path: &Path, how: Damage) -> bool {
        let path = self.site.path("").join(path);
        let len = fs::metadata(&path).unwrap().len();
        match how {
            Damage::Deleted => true,
            Damage::Halved => len > 1,
            Damage::Flipped | Damage::Unreadable => len > 0,
            Damage::Newer => version_at(&fs::read(&path).unwrap()).is_some(),
            Damage::HeaderDeleted
            | Damage::HeaderFlipped
            | Damage::HeaderNewer
            | Damage::HeaderUnreadable => {
                rustix::fs::getxattr(&path, HEADER, &mut [0; 4096][..]).is_ok()
            }
        }
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
        // No record speaks of what was written to a file before its close: an object that is gone
        // altogether leaves nothing that could tell of it.
        let told_by_nothing_else =
            || header().is_some_and(|header| header.windows(10).any(|part| part == b"dirty-held"));
        match how {
            Damage::Deleted if told_by_nothing_else() => false,
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
            Damage::Unreadable => self.disk.as_ref().is_some_and(|disk| disk.spoil(&path)),
            Damage::HeaderDeleted => rustix::fs::removexattr(&path, HEADER).is_ok(),
            Damage::HeaderFlipped => header().is_some_and(|mut header| {
                header[20] ^= 8;
                set(&header)
            }),
            Damage::HeaderNewer => header().is_some_and(|mut header| {
                // As that version would: what is not sealed is merely damaged.
                header[8] = 9;
                header[144..152].fill(0);
                let sum = xxhash_rust::xxh3::xxh3_64(&header);
                header[144..152].copy_from_slice(&sum.to_le_bytes());
                set(&header)
            }),
            Damage::HeaderUnreadable => {
                self.disk.as_ref().is_some_and(|disk| disk.spoil_attributes(&path))
            }
            Damage::Newer => {
                let mut bytes = fs::read(&path).unwrap();
                version_at(&bytes).is_some_and(|at| {
                    // A digit, where the version is one.
                    bytes[at] = if bytes[at].is_ascii_digit() { b'9' } else { 9 };
                    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                    file.write_all_at(&bytes, 0).is_ok()
                })
            }
            Damage::Halved | Damage::Flipped => false,
        }
    }

    /// Goes on by what the refusals say until it is mounted; the commands and what they said. Ends as well,
    /// without a mount, where they say that a newer version is needed.
    fn go_on(&self, first: &str) -> (String, bool) {
        let mut told = String::new();
        let mut next = first.to_owned();
        for _ in 0..6 {
            let (code, text) = if next == "mount" { self.mount() } else { self.fsck(&next) };
            told += &format!("$ {next}: {code}\n{text}");
            if next == "mount" && code == UNSUPPORTED && text.contains("newer") {
                return (told, false);
            }
            assert!([0, 2, 6].contains(&code) || code == UNSUPPORTED && next != "mount", "{told}");
            if next == "mount" && code == 0 {
                return (told, true);
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

    /// Whether a block is in a file that was set aside and whose path was said: what lies in a spill
    /// file only has its name in the index, and none where that is lost.
    fn is_aside_and_named(&self, block: &[u8], said: &str) -> bool {
        let mut aside = files_below(&self.site.path("tier/lost"));
        aside.extend(files_below(&self.site.path("backing/.forebay/lost")));
        aside
            .iter()
            .filter(|path| said.contains(&*path.to_string_lossy()))
            .any(|path| fs::read(path).unwrap_or_default().chunks(4096).any(|part| part == block))
    }

    /// Whether nothing that was there right after the damage is gone, and the mount can be used.
    fn check(&self, what: &str, first: &str, before: &[(&'static str, usize)], undo: &dyn Fn()) {
        let (mut told, is_mounted) = self.go_on(first);
        if !is_mounted {
            // With that version all is there.
            undo();
            let (code, text) = self.mount();
            told += &text;
            assert_eq!(code, 0, "{what}: {told}");
            assert_eq!(self.older_blocks(), [], "{what}: {told}");
        }
        let mnt = self.site.path("mnt");
        // One may be lost; nothing hangs, and nothing ends the daemon.
        let older = self.older_blocks();
        let (_, status) = self.site.run(&["status", &self.site.text("mnt")]);
        for (name, block) in older {
            // That it is dirty, with a size and an age, says nothing of a loss.
            let is_loss = |line: &&str| !line.ends_with(" s)") && !is_said_to_be_well(line);
            let losses = |text: &str| text.lines().filter(is_loss).collect::<Vec<_>>().join("\n");
            let said = format!("{}\n{}", losses(&told), losses(&status));
            let named =
                said.contains(name) || self.is_aside_and_named(&pattern(name, block), &said);
            let why = "is older than what was written, and nothing says so";
            assert!(named, "{what}: block {block} of {name} {why}\n{told}\n{status}");
        }
        fs::write(mnt.join("fresh"), "fresh").unwrap();
        assert_eq!(fs::read(mnt.join("fresh")).unwrap(), b"fresh", "{told}");
        let (code, text) = self.umount(&["--timeout", "15s"]);
        if code != 0 {
            let told = format!("{what}: {told}\n{text}");
            assert!(text.contains("fsck --repair") && text.contains("--accept-loss"), "{told}");
            let (code, text) = self.umount(&["--no-drain"]);
            let log = fs::read_to_string(self.site.path("tier/state/forebay.log"));
            assert_eq!(code, 0, "{told}{text}\n{}", log.unwrap_or_default());
        }
        // What could not be read then may be all that there is.
        if let Some(disk) = &self.disk {
            disk.heal();
        }
        let after = self.findable();
        let gone: Vec<_> = before.iter().filter(|block| !after.contains(block)).take(5).collect();
        assert!(gone.is_empty(), "{what}: gone are {gone:?}\n{told}");
    }
}

/// Whether a line says of a file that all of it is under its name again: that names no loss.
fn is_said_to_be_well(line: &str) -> bool {
    line.contains("brought back") && !line.contains(".forebay-recovered-")
}

/// The kind of small files of the state, of which each says something else.
const NOTE: &str = "note";

/// Which kind of file it is: one of each kind is damaged in every way.
fn kind(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        ["tier", "objects", _, name] => format!("object {}", name.ends_with(".map")),
        ["tier", "state", "meta", first, ..] => format!("meta {first}"),
        ["tier", "state", "clean-end" | "running" | "removed" | "meta.ballast"] => NOTE.into(),
        ["backing", ".forebay", area, name] => format!("{area} {}", name.ends_with(".map")),
        _ => text,
    }
}

/// Whether files of a kind have the bytes of others, or say which of them are there.
fn holds_bytes(kind: &str) -> bool {
    ["object", "spill", NOTE].iter().any(|part| kind.starts_with(part))
}

/// A damage, and what is done first with it.
#[derive(Hash)]
struct Trial {
    /// Which kind of file, and which of them.
    kind: String,
    nth: usize,
    how: Damage,
    first: &'static str,
}

/// What came of a trial.
enum Tried {
    Damaged,
    NothingToDamage,
    /// The scene had fewer files of this kind than the one by which the trials were chosen.
    NoSuchFile,
}

impl Trial {
    /// What it is called, of a file.
    fn name(&self, path: &Path) -> String {
        format!("{} {:?} {}", path.display(), self.how, self.first)
    }

    /// Whether it is one of a share. Each is in one of them, in every run: scenes differ a little.
    fn is_in(&self, (share, of): (u64, u64)) -> bool {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish() % of == share % of
    }
}

/// Which trials are wanted.
enum Wanted {
    /// One file of each kind, and one of the commands with each; each of the notes, in one way.
    Some,
    All,
    Share(u64, u64),
    Named(String),
}

impl Wanted {
    fn from_environment() -> Self {
        let Ok(text) = std::env::var("FOREBAY_DAMAGE") else { return Self::Some };
        let share = text.split_once('/').and_then(|(share, of)| {
            let (share, of) = (share.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&share).then_some(Self::Share(share, of))
        });
        match share {
            Some(share) => share,
            None if text == "all" => Self::All,
            None => Self::Named(text),
        }
    }

    /// The trials of a run, with the files of this scene.
    fn trials(&self, case: &Case, killed: bool) -> Vec<Trial> {
        let (files, mut trials, mut turn) = (case.kept(), Vec::new(), 0);
        for (at, path) in files.iter().enumerate() {
            let kind = kind(path);
            let nth = files[..at].iter().filter(|path| self::kind(path) == kind).count();
            let ways: Vec<Damage> =
                ALL.into_iter().filter(|how| case.can_damage(path, *how)).collect();
            let way_of_note = ways.get((nth + usize::from(killed)) % ways.len().max(1)).copied();
            for how in ways {
                let one_of_these = match kind == NOTE {
                    true => way_of_note == Some(how),
                    // The end of the daemon makes no difference to others.
                    false => nth == 0 && (!killed || holds_bytes(&kind)),
                };
                turn += usize::from(one_of_these);
                for (place, first) in FIRST.into_iter().enumerate() {
                    let trial = Trial { kind: kind.clone(), nth, how, first };
                    let wanted = match self {
                        Self::Some => one_of_these && turn % FIRST.len() == place,
                        Self::All => true,
                        Self::Share(share, of) => trial.is_in((*share, *of)),
                        Self::Named(part) => trial.name(path).contains(part),
                    };
                    trials.extend(wanted.then_some(trial));
                }
            }
        }
        trials
    }
}

#[test]
fn file_when_damaged_in_any_way_then_no_dirty_byte_is_unlinked_and_there_is_a_way_on() {
    matrix(false);
}

#[test]
fn file_of_a_killed_daemon_when_damaged_then_no_older_version_is_shown_without_a_word() {
    matrix(true);
}

/// Tries all cases of this run.
fn matrix(killed: bool) {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    let wanted = Wanted::from_environment();
    let scene = Case::new(killed);
    let plan = scene.kept();
    let kinds: Vec<String> = plan.iter().map(|path| kind(path)).collect();
    for needed in ["spill false", "spill true", "object false", "object true", "mounts false"] {
        assert!(kinds.iter().any(|kind| kind == needed), "{needed}: {plan:?}");
    }
    let trials = wanted.trials(&scene, killed);
    drop(scene);
    let next = AtomicUsize::new(0);
    let (damaged, missing) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = std::sync::Mutex::new(Vec::new());
    let one_more = |count: &AtomicUsize| _ = count.fetch_add(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // All that is wrong is told, at the end.
                    match std::panic::catch_unwind(|| try_one(killed, trial)) {
                        Ok(Tried::Damaged) => one_more(&damaged),
                        Ok(Tried::NothingToDamage) => {}
                        Ok(Tried::NoSuchFile) => one_more(&missing),
                        Err(why) => {
                            let text = why.downcast_ref::<String>().cloned();
                            let text = text.unwrap_or_else(|| "a panic".into());
                            failed.lock().unwrap().push(text);
                        }
                    }
                }
            });
        }
    });
    let (failed, damaged) = (failed.into_inner().unwrap(), damaged.into_inner());
    eprintln!(
        "{} cases: {damaged} damaged, {} without the file, {} failed",
        trials.len(),
        missing.into_inner(),
        failed.len()
    );
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), trials.len(), failed.join("\n"));
    assert!(damaged > 15 || !matches!(wanted, Wanted::Some));
}

/// Makes a scene, damages the file in it, and goes on from there.
fn try_one(killed: bool, trial: &Trial) -> Tried {
    // Where bytes lie differs a little from scene to scene.
    for _ in 0..3 {
        let case = match trial.how {
            Damage::Unreadable | Damage::HeaderUnreadable => Case::on_a_disk(killed),
            _ => Some(Case::new(killed)),
        };
        let Some(case) = case else { return Tried::NothingToDamage };
        let kept = case.kept();
        let mut same_kind = kept.iter().filter(|path| kind(path) == trial.kind);
        let Some(path) = same_kind.nth(trial.nth) else { continue };
        let whole = case.findable();
        let damaged = case.site.path("").join(path);
        let bytes = fs::read(&damaged).unwrap();
        if !case.damage(path, trial.how) {
            return Tried::NothingToDamage;
        }
        let began = std::time::Instant::now();
        // What can't be read is there, and counts.
        let is_there = matches!(trial.how, Damage::Unreadable | Damage::HeaderUnreadable);
        let before = if is_there { whole } else { case.findable() };
        let name = trial.name(path);
        let undo = || fs::write(&damaged, &bytes).unwrap();
        case.check(&name, trial.first, &before, &undo);
        eprintln!("{name}: {:?}", began.elapsed());
        return Tried::Damaged;
    }
    Tried::NoSuchFile
}

#[test]
fn object_whose_header_the_disk_does_not_give_then_it_is_named_and_there_again_when_the_disk_is_well()
 {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    for first in FIRST {
        let Some(mut case) = Case::on_a_disk(false) else { return };
        let (name, object, wanted) = case.file_whole_on_the_tier();
        assert!(
            case.disk.as_ref().unwrap().spoil_attributes(&object),
            "its header is in the inode"
        );
        let unreadable = rustix::fs::getxattr(&object, HEADER, &mut [0; 4096][..]);
        assert_eq!(unreadable, Err(rustix::io::Errno::IO));
        let (told, is_mounted) = case.go_on(first);
        assert!(is_mounted, "{told}");
        let (_, status) = case.site.run(&["status", &case.site.text("mnt")]);
        assert!(
            format!("{told}{status}").contains(name),
            "{first}: it is not named: {told}{status}"
        );
        let seen = fs::read(case.site.path("mnt").join(name));
        assert!(
            seen.as_ref().map_or(true, |seen| *seen == wanted),
            "{first}: another version: {told}"
        );
        let (code, text) = case.umount(&["--no-drain"]);
        assert_eq!(code, 0, "{first}: {text}");
        case.disk.as_mut().unwrap().heal();
        // A start, or what the guide says of what was set aside.
        let mut told = told + &status;
        for how in ["mount", "--repair"] {
            if how == "--repair" {
                told += &case.fsck(how).1;
            }
            let (code, text) = case.mount();
            assert_eq!(code, 0, "{first}: {told}{text}");
            let found = fs::read(case.site.path("mnt").join(name));
            let (code, text) = case.umount(&["--no-drain"]);
            assert_eq!(code, 0, "{first}: {told}{text}");
            // The index that knew the file was replaced: it is set aside under the path that was said.
            let is_aside = || {
                let aside = files_below(&case.site.path("tier/lost"));
                let has = |path: &&PathBuf| fs::read(path).is_ok_and(|found| found == wanted);
                let path = aside.iter().find(has);
                path.is_some_and(|path| told.contains(&*path.to_string_lossy()))
            };
            if first == "--rebuild" && is_aside() {
                break;
            }
            if found.as_ref().is_ok_and(|found| *found == wanted) {
                eprintln!("{first}: there again after {how}");
                break;
            }
            assert!(how == "mount", "{first}: its bytes are not there again: {found:?}\n{told}");
        }
    }
}
