//! What a program and others have put where, and what of it must be there at the end.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::os::Errno;

/// So long after a deed of others it may be the reason of an error. Longer than attributes are believed.
const RIGHT_AFTER: Duration = Duration::from_secs(5);

/// The bytes of a block.
pub const BLOCK: usize = 4096;

/// A version of a file: all its blocks say which one it is, and how many there are of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    pub tag: u64,
    pub blocks: usize,
}

impl Version {
    /// Its bytes.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.blocks).flat_map(|block| self.block(block)).collect()
    }

    fn block(self, block: usize) -> Vec<u8> {
        let line = format!("{}/{}:{block}\n", self.tag, self.blocks);
        line.bytes().cycle().take(BLOCK).collect()
    }

    /// Which version some bytes are; nothing of an empty file.
    ///
    /// # Errors
    /// If they are not one whole version.
    pub fn of(bytes: &[u8]) -> Result<Option<Self>, String> {
        let mut found = None;
        for (at, block) in bytes.chunks(BLOCK).enumerate() {
            let here = Self::of_block(block, at)
                .ok_or_else(|| format!("block {at} is none of any version: {:?}", start(block)))?;
            match found {
                None => found = Some(here),
                Some(first) if first == here => {}
                Some(first) => return Err(format!("{first:?}, and from block {at} on {here:?}")),
            }
        }
        match found {
            Some(version) if bytes.len() != version.blocks * BLOCK => {
                Err(format!("{version:?} with {} bytes", bytes.len()))
            }
            found => Ok(found),
        }
    }

    /// As [`Version::of`], where zeros may stand for what is gone, and the end may be missing.
    ///
    /// # Errors
    /// If there are parts of two versions.
    pub fn of_what_is_left(bytes: &[u8]) -> Result<(), String> {
        let blocks = bytes.chunks(BLOCK).enumerate();
        let left = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
        let mut versions = left.map(|(at, block)| Self::of_block(block, at));
        let Some(first) = versions.next() else { return Ok(()) };
        let is_one = first.is_some() && versions.all(|other| other == first);
        if is_one { Ok(()) } else { Err(format!("more than {first:?} and zeros")) }
    }

    fn of_block(block: &[u8], at: usize) -> Option<Self> {
        let text = std::str::from_utf8(block).ok()?;
        let (tag, rest) = text.lines().next()?.split_once('/')?;
        let (blocks, _) = rest.split_once(':')?;
        let version = Self { tag: tag.parse().ok()?, blocks: blocks.parse().ok()? };
        (version.block(at) == block).then_some(version)
    }
}

fn start(block: &[u8]) -> String {
    String::from_utf8_lossy(&block[..block.len().min(24)]).into_owned()
}

/// What a program knows of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This version is there.
    Version(Version),
    /// Others have a part in it.
    Unsure,
}

/// All of it.
#[derive(Default)]
pub struct Ledger {
    /// What the program has put where.
    at: HashMap<String, Known>,
    /// What was acknowledged, and where it was put.
    acknowledged: HashMap<Version, String>,
    /// What others have put where, durably and as a whole.
    of_others: HashMap<Version, String>,
    /// What nobody needs to keep any more.
    given_up: HashSet<Version>,
    /// When others last did something to a path, or to a version.
    deeds: HashMap<String, Instant>,
    met: HashMap<Version, Instant>,
    last_of_directories: Option<Instant>,
    /// When the program last changed what a path leads to, and which ones it is changing now.
    changed: HashMap<String, Instant>,
    changing: HashSet<String>,
}

impl Ledger {
    /// What a path has, as far as the program knows.
    pub fn at(&self, path: &str) -> Option<Known> {
        self.at.get(path).copied()
    }

    /// The program begins to change what paths lead to.
    pub fn begin(&mut self, paths: &[&str]) {
        for path in paths {
            self.changing.insert((*path).to_owned());
            self.changed.insert((*path).to_owned(), Instant::now());
            self.of_others.retain(|_, at| at != path && !is_below(at, path));
        }
    }

    /// It has ended with that.
    pub fn end(&mut self, paths: &[&str]) {
        for path in paths {
            self.changing.remove(*path);
            self.changed.insert((*path).to_owned(), Instant::now());
        }
    }

    /// What the program had at a path is its no more.
    pub fn give_up(&mut self, path: &str) {
        if let Some(Known::Version(version)) = self.at.remove(path) {
            self.given_up.insert(version);
        }
        let there: Vec<Version> = self.acknowledged_at(path);
        self.given_up.extend(there);
    }

    fn acknowledged_at(&self, path: &str) -> Vec<Version> {
        let there = self.acknowledged.iter().filter(|(_, at)| *at == path);
        there.map(|(version, _)| *version).collect()
    }

    /// The program has written a version.
    pub fn put(&mut self, path: &str, version: Version) {
        self.at.insert(path.to_owned(), Known::Version(version));
    }

    /// That was acknowledged.
    pub fn acknowledge(&mut self, path: &str, version: Version) {
        self.acknowledged.insert(version, path.to_owned());
    }

    /// The program has moved a file or a directory.
    pub fn moved(&mut self, from: &str, to: &str, is_sure: bool) {
        let moved = |path: &str| match path.strip_prefix(from) {
            Some("") => Some(to.to_owned()),
            Some(rest) if rest.starts_with('/') => Some(format!("{to}{rest}")),
            _ => None,
        };
        for at in self.acknowledged.values_mut() {
            *at = moved(at).unwrap_or_else(|| at.clone());
        }
        let before: Vec<String> =
            self.at.keys().filter(|at| moved(at).is_some()).cloned().collect();
        for path in before {
            if let (Some(known), Some(now)) = (self.at.remove(&path), moved(&path)) {
                self.at.insert(now, if is_sure { known } else { Known::Unsure });
            }
        }
    }

    /// Others do something to a path.
    pub fn deed(&mut self, path: &str, of_directory: bool) {
        self.deeds.insert(path.to_owned(), Instant::now());
        if of_directory {
            self.last_of_directories = Some(Instant::now());
        }
    }

    /// Others have met a version, and have replaced or removed it if so said.
    pub fn met(&mut self, version: Version, is_gone: bool) {
        self.met.insert(version, Instant::now());
        if is_gone {
            self.given_up.insert(version);
        }
    }

    /// Others have put a version under a path. It is theirs, and stays, unless the program was about to
    /// change what is there.
    pub fn put_by_others(&mut self, path: &str, version: Version) {
        let is_changed = |at: &String| at == path || is_below(path, at);
        let busy = self.changing.iter().any(is_changed);
        let lately = |(at, when): (&String, &Instant)| is_changed(at) && is_right_after(*when);
        if !busy && !self.changed.iter().any(lately) {
            self.of_others.insert(version, path.to_owned());
        }
    }

    /// Whether others may be the reason of an error or of another version.
    pub fn may_be_by_others(&self, path: &str, errno: Option<Errno>) -> bool {
        let concerns = |at: &String| at == path || is_below(path, at);
        let deeds = self.deeds.iter().filter(|(at, _)| concerns(at));
        match errno {
            Some(Errno::IO | Errno::STALE) => {
                let known = match self.at(path) {
                    Some(Known::Version(version)) => self.met.get(&version).copied(),
                    _ => None,
                };
                deeds
                    .map(|(_, when)| *when)
                    .chain(known)
                    .chain(self.last_of_directories)
                    .any(is_right_after)
            }
            _ => deeds.count() > 0,
        }
    }

    /// What must be there at the end: the version, where it was put, and whether by others.
    pub fn owed(&self) -> Vec<(Version, String, bool)> {
        let all = self.acknowledged.iter().map(|(version, at)| (*version, at.clone(), false));
        let others = self.of_others.iter().map(|(version, at)| (*version, at.clone(), true));
        all.chain(others).filter(|(version, ..)| !self.given_up.contains(version)).collect()
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn is_right_after(when: Instant) -> bool {
    when.elapsed() < RIGHT_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_two_versions_when_read_then_they_are_none() {
        let [one, two] = [1, 2].map(|tag| Version { tag, blocks: 3 });
        assert_eq!(Version::of(&one.bytes()), Ok(Some(one)));
        assert_eq!(Version::of(&[]), Ok(None));
        let mixed = [&one.bytes()[..BLOCK], &two.bytes()[BLOCK..]].concat();
        assert!(Version::of(&mixed).is_err());
        assert!(Version::of(&one.bytes()[..BLOCK]).is_err());
        assert!(Version::of(&[0; BLOCK]).is_err());
        assert!(Version::of_what_is_left(&mixed).is_err());
        let holed = [&[0; BLOCK][..], &two.bytes()[BLOCK..]].concat();
        assert_eq!(Version::of_what_is_left(&holed), Ok(()));
    }

    #[test]
    fn version_that_was_acknowledged_when_others_replace_it_then_it_is_owed_no_more() {
        let mut ledger = Ledger::default();
        let [one, two] = [1, 2].map(|tag| Version { tag, blocks: 1 });
        for (path, version) in [("d/a", one), ("d/b", two)] {
            ledger.put(path, version);
            ledger.acknowledge(path, version);
        }
        ledger.moved("d", "e", true);
        assert_eq!(ledger.at("e/b"), Some(Known::Version(two)));
        ledger.met(one, true);
        ledger.met(two, false);
        assert_eq!(ledger.owed(), [(two, "e/b".to_owned(), false)]);
        ledger.give_up("e/b");
        assert_eq!(ledger.owed(), []);
    }
}
