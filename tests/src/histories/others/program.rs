//! The program that works on the mount.

use std::collections::HashSet;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{fsync, ftruncate, rename, rmdir, unlink};

use super::ledger::{Known, Ledger, Version};
use super::{DIRS, NAMES};
use crate::failure::Outcome;
use crate::os::{self, Errno, OFlags};
use crate::random::Random;

/// Files that it has open.
const HELD: usize = 4;

/// What it needs.
pub struct Program<'a> {
    /// The tree on the mount.
    pub tree: PathBuf,
    pub ledger: &'a Mutex<Ledger>,
    pub calm: &'a RwLock<()>,
    pub lines: &'a Mutex<Vec<String>>,
    pub random: Random,
    pub next: u64,
    /// Whether a close acknowledges.
    pub by_close: bool,
    pub held: Vec<(String, OwnedFd)>,
    /// Paths of files of which the last write failed.
    pub broken: HashSet<String>,
}

impl Program<'_> {
    /// One call or a few, and perhaps a pause.
    ///
    /// # Errors
    /// What it must not see.
    pub fn act(&mut self) -> Outcome {
        let [path, to] = [(); 2].map(|()| self.path());
        match self.random.below(40) {
            0..12 => self.write(&path),
            12..16 => self.save(&path),
            16..19 => self.remove(&path),
            19..22 => self.rename(&path, &to),
            22 => self.move_dir(),
            23 => self.make_dir(),
            24 => self.remove_dir(),
            25..32 => self.read(&path),
            32..34 => self.hold(&path),
            34..37 => self.read_held(),
            37 => {
                self.held.clear();
                Ok(())
            }
            _ => {
                std::thread::sleep(Duration::from_millis(self.random.between(1, 150)));
                Ok(())
            }
        }
    }

    fn path(&mut self) -> String {
        format!("{}/{}", self.random.pick(&DIRS), self.random.pick(&NAMES))
    }

    fn tell(&self, line: String) {
        self.lines.lock().push(line);
    }

    /// What a call may answer, if it is not what the program wanted.
    fn judge(&self, what: &str, path: &str, errno: Errno) -> Outcome {
        self.tell(format!("{what} of {path}: {errno:?}"));
        let ledger = self.ledger.lock();
        let is_usual = matches!(
            errno,
            Errno::NOENT | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY
        );
        let expected = is_usual && !matches!(ledger.at(path), Some(Known::Version(_)));
        let by_others = ledger.may_be_by_others(path, Some(errno));
        let may_be = matches!(errno, Errno::IO | Errno::STALE) || is_usual;
        ensure!(
            expected || may_be && by_others,
            "{what} of {path}: {errno:?}, which others are no reason for"
        );
        Ok(())
    }

    fn version(&mut self) -> Version {
        self.next += 2;
        Version { tag: self.next, blocks: self.random.between(1, 60) as usize }
    }

    /// Writes a version, emptied first or over what is there.
    fn write(&mut self, path: &str) -> Outcome {
        let version = self.version();
        let emptied = if self.random.one_in(2) { OFlags::TRUNC } else { OFlags::empty() };
        self.ledger.lock().begin(&[path]);
        self.ledger.lock().give_up(path);
        let flags = OFlags::WRONLY | OFlags::CREATE | emptied;
        let opened = os::open(self.tree.join(path), flags, 0o644);
        let done = opened.and_then(|file| {
            os::write_at(&file, 0, &version.bytes())?;
            ftruncate(&file, version.bytes().len() as u64)?;
            self.finish(path, version, file)
        });
        self.ledger.lock().end(&[path]);
        self.tell(format!("{version:?} into {path} {emptied:?}: {done:?}"));
        match done {
            Ok(()) => self.broken.remove(path),
            Err(_) => self.broken.insert(path.to_owned()),
        };
        done.or_else(|errno| self.judge("write", path, errno))
    }

    /// Syncs or closes.
    fn finish(&mut self, path: &str, version: Version, file: OwnedFd) -> Result<(), Errno> {
        if self.random.one_in(2) {
            fsync(&file)?;
            self.ledger.lock().acknowledge(path, version);
        }
        // SAFETY: the descriptor is this function's own, and not used after this.
        let closed = unsafe { libc::close(file.into_raw_fd()) };
        if closed != 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            return Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO)));
        }
        let mut ledger = self.ledger.lock();
        ledger.put(path, version);
        if self.by_close {
            ledger.acknowledge(path, version);
        }
        Ok(())
    }

    /// As editors save: beside it, and renamed over it.
    fn save(&mut self, path: &str) -> Outcome {
        let version = self.version();
        let beside = format!("{path}~");
        let paths = [path, &*beside];
        self.ledger.lock().begin(&paths);
        self.ledger.lock().give_up(&beside);
        let new = os::open(
            self.tree.join(&beside),
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
            0o644,
        );
        let written = new.and_then(|file| {
            os::write_at(&file, 0, &version.bytes())?;
            self.finish(&beside, version, file)
        });
        let done = written.and_then(|()| {
            let before = self.ledger.lock().at(path);
            rename(self.tree.join(&beside), self.tree.join(path))?;
            let mut ledger = self.ledger.lock();
            if before.is_some() {
                ledger.give_up(path);
            }
            ledger.moved(&beside, path, true);
            Ok(())
        });
        self.ledger.lock().end(&paths);
        self.tell(format!("{version:?} saved as {path}: {done:?}"));
        done.or_else(|errno| {
            self.judge("save", &beside, errno).or_else(|_| self.judge("save", path, errno))
        })
    }

    fn remove(&mut self, path: &str) -> Outcome {
        self.ledger.lock().begin(&[path]);
        let done = unlink(self.tree.join(path));
        if done.is_ok() {
            self.ledger.lock().give_up(path);
        }
        self.ledger.lock().end(&[path]);
        self.tell(format!("remove {path}: {done:?}"));
        done.or_else(|errno| self.judge("remove", path, errno))
    }

    fn rename(&mut self, from: &str, to: &str) -> Outcome {
        self.ledger.lock().begin(&[from, to]);
        let done = rename(self.tree.join(from), self.tree.join(to));
        if done.is_ok() && from != to {
            let mut ledger = self.ledger.lock();
            ledger.give_up(to);
            // What others do at the old name may be of this file.
            let is_sure = !ledger.may_be_by_others(from, None);
            ledger.moved(from, to, is_sure);
            if self.broken.remove(from) {
                self.broken.insert(to.to_owned());
            }
        }
        self.ledger.lock().end(&[from, to]);
        self.tell(format!("rename {from} to {to}: {done:?}"));
        done.or_else(|errno| {
            self.judge("rename", from, errno).or_else(|_| self.judge("rename", to, errno))
        })
    }

    fn move_dir(&mut self) -> Outcome {
        let [from, to] = [(); 2].map(|()| *self.random.pick(&DIRS));
        self.ledger.lock().begin(&[from, to]);
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let (cwd, paths) = (rustix::fs::CWD, [from, to].map(|dir| self.tree.join(dir)));
        let done = rustix::fs::renameat_with(cwd, &paths[0], cwd, &paths[1], flags);
        if done.is_ok() {
            self.ledger.lock().moved(from, to, false);
        }
        self.ledger.lock().end(&[from, to]);
        self.tell(format!("move directory {from} to {to}: {done:?}"));
        self.usual("move", from, done)
    }

    fn make_dir(&mut self) -> Outcome {
        let dir = *self.random.pick(&DIRS);
        let done = os::mkdir(self.tree.join(dir), 0o755);
        self.tell(format!("make directory {dir}: {done:?}"));
        self.usual("make directory", dir, done)
    }

    fn remove_dir(&mut self) -> Outcome {
        let dir = *self.random.pick(&DIRS);
        let done = rmdir(self.tree.join(dir));
        self.tell(format!("remove directory {dir}: {done:?}"));
        self.usual("remove directory", dir, done)
    }

    /// Directories are there or not: nobody keeps account of them.
    fn usual(&self, what: &str, path: &str, done: Result<(), Errno>) -> Outcome {
        match done {
            Err(errno @ (Errno::IO | Errno::STALE)) => self.judge(what, path, errno),
            _ => Ok(()),
        }
    }

    fn read(&self, path: &str) -> Outcome {
        let _calm = self.calm.read();
        let known = self.ledger.lock().at(path);
        let bytes = match os::read_all(self.tree.join(path)) {
            Ok(bytes) => bytes,
            Err(errno) => return self.judge("read", path, errno),
        };
        let found = Version::of(&bytes);
        self.tell(format!("read {path}: {found:?}"));
        let Ok(found) = found else { return self.none_of_any(path, &bytes) };
        let by_others = self.ledger.lock().may_be_by_others(path, None);
        if let (Some(Known::Version(known)), false) = (known, by_others) {
            ensure!(found == Some(known), "{path} has {found:?}, not {known:?}");
        }
        Ok(())
    }

    /// What was read is not one whole version.
    fn none_of_any(&self, path: &str, bytes: &[u8]) -> Outcome {
        let found = Version::of(bytes);
        // A write that failed half way leaves parts of both.
        let is_broken = self.broken.contains(path);
        // Zeros stand for what others took away below what was written here.
        let by_others = self.ledger.lock().may_be_by_others(path, None);
        let is_left = by_others && Version::of_what_is_left(bytes).is_ok();
        ensure!(is_broken || is_left, "{path} has parts of versions: {found:?}");
        Ok(())
    }

    fn hold(&mut self, path: &str) -> Outcome {
        let opened = os::open(self.tree.join(path), OFlags::RDONLY, 0);
        self.tell(format!("open {path}: {:?}", opened.as_ref().map(|_| ())));
        match opened {
            Ok(file) => {
                if self.held.len() == HELD {
                    self.held.remove(0);
                }
                self.held.push((path.to_owned(), file));
                Ok(())
            }
            Err(errno) => self.judge("open", path, errno),
        }
    }

    /// Reads what is open. It may be written here meanwhile, never by halves.
    fn read_held(&mut self) -> Outcome {
        let _calm = self.calm.read();
        if self.held.is_empty() {
            return Ok(());
        }
        let (path, file) = self.random.pick(&self.held);
        let bytes = os::read_at(file, 0, super::ledger::BLOCK * 100);
        let found = bytes.as_ref().map(|bytes| Version::of(bytes));
        self.tell(format!("read {path}, which is open: {found:?}"));
        match bytes {
            Ok(bytes) if Version::of(&bytes).is_err() => self.none_of_any(path, &bytes),
            Ok(_) | Err(Errno::IO | Errno::STALE) => Ok(()),
            Err(errno) => self.judge("read", path, errno),
        }
    }
}
