//! A scene, and what is done and looked at in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{files_below, pattern, values};
use crate::bad_disk::BadDisk;
use crate::site::*;

/// The exit code of state that a newer version has written.
const UNSUPPORTED: i32 = 5;
/// That of damaged state.
const BAD_STATE: i32 = 6;
/// What a killed daemon, or a process that another lane has begun to start, may keep is kept no longer.
const SOON: Duration = Duration::from_secs(10);

/// Which scene it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scene {
    /// One tier with the state in it, after a clean end.
    Ended,
    /// The same; the daemon was killed with a file open.
    Killed,
    /// Two tiers and the state apart from them, with what is there only now and then; killed.
    TwoTiers,
    /// The first one, of which the index is being made anew, and that was interrupted.
    HalfRebuilt,
}

impl Scene {
    /// The directories of its tiers.
    pub fn tiers(self) -> &'static [&'static str] {
        if self == Self::TwoTiers { &["tier", "slow"] } else { &["tier"] }
    }

    /// Its state directory.
    pub fn state(self) -> &'static str {
        if self == Self::TwoTiers { "state" } else { "tier/state" }
    }

    /// In a directory of its own; on a disk of its own as well, if so wanted. Nothing where there can't
    /// be any.
    pub fn made(self, on_a_disk: bool) -> Option<Case> {
        let root = tempfile::tempdir().unwrap();
        let disk = if on_a_disk { Some(BadDisk::mounted_on(root.path())?) } else { None };
        let mut case = Case {
            site: Site::in_dir(root),
            scene: self,
            dirty: Vec::new(),
            kept: Vec::new(),
            removed: Vec::new(),
            disk,
        };
        match self {
            Self::Ended => case.fill_one_tier(),
            Self::Killed => {
                case.fill_one_tier();
                case.kill_while_open();
            }
            Self::TwoTiers => case.fill_two_tiers(),
            Self::HalfRebuilt => {
                case.fill_one_tier();
                case.interrupt_a_rebuild();
            }
        }
        Some(case)
    }
}

pub struct Case {
    pub site: Site,
    pub scene: Scene,
    /// The dirty files: name, blocks.
    pub dirty: Vec<(&'static str, usize)>,
    /// Bytes that are under no name of a dirty file, and kept for somebody who looks at them.
    pub kept: Vec<(&'static str, usize)>,
    /// Names of files that were removed.
    pub removed: Vec<&'static str>,
    /// What all of it lies on, if a file is to be unreadable. Last: it goes when nobody uses it.
    pub disk: Option<BadDisk>,
}

impl Case {
    pub fn mount(&self) -> (i32, String) {
        self.mount_with("2M", &[])
    }

    pub fn mount_with(&self, size: &str, more: &[&str]) -> (i32, String) {
        let mut args = vec!["mount".to_owned(), self.site.text("backing"), self.site.text("mnt")];
        for tier in self.scene.tiers() {
            args.extend(["--tier".to_owned(), format!("{}={size}", self.site.text(tier))]);
        }
        args.extend(self.state_args());
        // What was used last stays: the tests count on what is on the tier.
        let how = ["--writeback", "evict", "--policy", "lru", "--extent-size", "64K"];
        let args: Vec<&str> = args.iter().map(String::as_str).chain(how).collect();
        self.site.run(&[&args[..], more].concat())
    }

    fn state_args(&self) -> Vec<String> {
        let is_apart = !self.scene.state().starts_with("tier/");
        let args = ["--state-dir".to_owned(), self.site.text(self.scene.state())];
        if is_apart { args.into() } else { Vec::new() }
    }

    /// Unmounts. A process that another lane has begun to start may have the files of this one open
    /// for a moment longer: this test's own process is named as their user then.
    pub fn umount(&self, how: &[&str]) -> (i32, String) {
        let mnt = self.site.text("mnt");
        let args = [&["umount"], how, &[&mnt]].concat();
        let until = Instant::now() + SOON;
        loop {
            let outcome = self.site.run(&args);
            let told = ["Device or resource busy", "in use; end them"];
            let busy = outcome.0 == 1 && told.iter().any(|told| outcome.1.contains(told));
            if !busy || Instant::now() > until {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn fsck(&self, how: &str) -> (i32, String) {
        self.fsck_with(how, "")
    }

    /// The same with fail points.
    pub fn fsck_with(&self, how: &str, fail_points: &str) -> (i32, String) {
        let mut args = vec!["fsck".to_owned(), "--backing".to_owned(), self.site.text("backing")];
        args.extend(self.state_args());
        args.extend((how != "fsck").then(|| how.to_owned()));
        args.extend(self.scene.tiers().iter().map(|tier| self.site.text(tier)));
        let until = Instant::now() + SOON;
        loop {
            let mut command = self.site.command(env!("CARGO_BIN_EXE_forebay"));
            let outcome = outcome(command.args(&args).env("FAILPOINTS", fail_points));
            // What a killed daemon was about to start may have its locks for a moment longer.
            if !outcome.1.contains("in use by another daemon") || Instant::now() > until {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Kills the daemon, which has no supervisor.
    pub fn kill(&self) {
        let daemon = self.site.daemon();
        signal(daemon, rustix::process::Signal::KILL);
        assert!(wait_for(SOON, || !alive(daemon)));
        // A thread may outlive the first one, and with it the locks.
        let places = self.scene.tiers().iter().copied().chain([self.scene.state()]);
        let mut locks: Vec<PathBuf> =
            places.flat_map(|place| files_below(&self.site.path(place))).collect();
        locks.retain(|path| path.ends_with("lock"));
        let free = |path: &PathBuf| {
            use rustix::fs::{FlockOperation, flock};
            let lock = File::open(path).unwrap();
            let free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            // By name: a process that another lane starts right now has the descriptor, too.
            flock(&lock, FlockOperation::Unlock).unwrap();
            free
        };
        assert!(wait_for(SOON, || locks.iter().all(free)));
        let mnt = self.site.text("mnt");
        let (code, text) = outcome(self.site.command("fusermount3").args(["-uz", &mnt]));
        assert_eq!(code, 0, "{text}");
    }

    /// The object on a tier that has bytes.
    pub fn object_with(&self, tier: &str, bytes: &[u8]) -> Option<PathBuf> {
        let mut objects = files_below(&self.site.path(tier).join("objects")).into_iter();
        objects.find(|path| fs::read(path).is_ok_and(|found| found == bytes))
    }

    /// What is wrong with a file that can be read: blocks that are older than what was written.
    pub fn older_blocks(&self) -> Vec<(&'static str, usize)> {
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
        // A name that was removed is older than that, too.
        let shown = self.removed.iter().filter(|name| self.site.path("mnt").join(name).exists());
        older.extend(shown.map(|name| (*name, 0)));
        older
    }

    /// How many of the dirty files the backing store lacks.
    fn not_written_back(&self) -> usize {
        let is_there = |(name, blocks): &&(&str, usize)| {
            let bytes = fs::read(self.site.path("backing").join(name)).unwrap_or_default();
            let mut all = (0..*blocks).flat_map(|block| pattern(name, block));
            bytes.len() >= blocks * 4096 && bytes.iter().zip(&mut all).all(|(is, due)| *is == due)
        };
        self.dirty.iter().filter(|file| !is_there(file)).count()
    }

    /// All that Forebay keeps: files, relative to the site, and values in the index.
    pub fn kept(&self) -> Vec<PathBuf> {
        let root = self.site.path("");
        let mut places: Vec<PathBuf> =
            self.scene.tiers().iter().map(|tier| self.site.path(tier)).collect();
        if !self.state_args().is_empty() {
            places.push(self.site.path(self.scene.state()));
        }
        places.push(self.site.path("backing/.forebay"));
        let mut kept: Vec<PathBuf> = places.iter().flat_map(|place| files_below(place)).collect();
        kept.retain(|path| !path.ends_with("lock") && !path.ends_with("forebay.log"));
        let below = |path: PathBuf| path.strip_prefix(&root).unwrap().to_owned();
        let values = if self.scene == Scene::TwoTiers { values::ALL } else { &[] };
        kept.into_iter().map(below).chain(values.iter().map(values::path)).collect()
    }

    /// The blocks of dirty files, and others that are kept, that can be found somewhere.
    pub fn findable(&self) -> Vec<(&'static str, usize)> {
        let mut bytes = Vec::new();
        for dir in ["tier", "slow", "backing"] {
            for part in if dir == "backing" { &[""][..] } else { &["objects", "lost", "aside"] } {
                for path in files_below(&self.site.path(dir).join(part)) {
                    bytes.push(fs::read(path).unwrap_or_default());
                }
            }
        }
        let all = self.dirty.iter().chain(&self.kept);
        let all = all.flat_map(|(name, n)| (0..*n).map(move |block| (*name, block)));
        let holds = |found: &[u8], wanted: &[u8]| found.chunks(4096).any(|part| part == wanted);
        all.filter(|(name, block)| {
            let wanted = pattern(name, *block);
            bytes.iter().any(|found| holds(found, &wanted))
        })
        .collect()
    }

    /// Goes on by what the refusals say until it is mounted; the commands and what they said. Ends as well,
    /// without a mount, where they say that a newer version is needed.
    pub fn go_on(&self, first: &str) -> (String, bool) {
        let mut told = String::new();
        let mut next = first.to_owned();
        for _ in 0..6 {
            let (code, text) = if next == "mount" { self.mount() } else { self.fsck(&next) };
            told += &format!("$ {next}: {code}\n{text}");
            let is_newer = text.contains("newer") && !text.contains("fsck --");
            if next == "mount" && [UNSUPPORTED, BAD_STATE].contains(&code) && is_newer {
                return (told, false);
            }
            assert!([0, 2, BAD_STATE].contains(&code) || code == UNSUPPORTED, "{told}");
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
        let mut aside = files_below(&self.site.path("backing/.forebay/lost"));
        let lost = |tier: &&str| files_below(&self.site.path(tier).join("lost"));
        aside.extend(self.scene.tiers().iter().flat_map(lost));
        let is_said = |path: &&PathBuf| said.contains(&*path.to_string_lossy());
        let holds =
            |path: &Path| fs::read(path).unwrap_or_default().chunks(4096).any(|part| part == block);
        aside.iter().filter(is_said).any(|path| holds(path))
    }

    /// Whether nothing that was there right after the damage is gone, and the mount can be used.
    pub fn check(
        &self,
        what: &str,
        first: &str,
        before: &[(&'static str, usize)],
        is_value: bool,
        undo: &dyn Fn(),
    ) {
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
            let is_newer = text.contains("newer Forebay") || is_value;
            let named = text.contains("fsck --repair") && text.contains("--accept-loss");
            assert!(named || is_newer && text.contains("--no-drain"), "{told}");
            let (code, text) = self.umount(&["--no-drain"]);
            let log = self.site.path(self.scene.state()).join("forebay.log");
            assert_eq!(code, 0, "{told}{text}\n{}", fs::read_to_string(log).unwrap_or_default());
            assert!(!is_value || self.not_written_back() <= 1, "one keeps others back: {told}");
            // With that version all is there, unless the index was made anew without it.
            let anew = self.site.path(self.scene.state()).join("meta.before-rebuild").exists();
            if is_value && !anew {
                undo();
                let (code, text) = self.mount();
                assert_eq!((code, self.older_blocks()), (0, Vec::new()), "{told}{text}");
                let (code, text) = self.umount(&[]);
                assert_eq!(code, 0, "{told}{text}");
            }
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
