//! The third party: works in the backing store below the mount.

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{CWD, RenameFlags, renameat_with, rmdir, unlink};

use super::ledger::{Ledger, Version};
use super::{DIRS, NAMES, SHARED};
use crate::os::{self, Errno, OFlags};
use crate::random::Random;

/// What a thread of it needs.
pub struct Third<'a> {
    /// The tree in the backing store, and a directory beside it.
    pub tree: PathBuf,
    pub beside: PathBuf,
    pub ledger: &'a Mutex<Ledger>,
    /// Held while a file is neither the one nor the other version.
    pub calm: &'a RwLock<()>,
    pub lines: &'a Mutex<Vec<String>>,
    pub random: Random,
    pub next: u64,
}

impl Third<'_> {
    /// One deed, and a pause.
    pub fn act(&mut self) {
        let path = self.path();
        let done = match self.random.below(20) {
            0..6 => self.write_in_place(&path),
            6..12 => self.replace(&path),
            12..15 => self.remove(&path),
            15..17 => self.rename(&path),
            17 => self.rename_dir(),
            18 => self.make_dir(),
            _ => self.remove_dir(),
        };
        if let Err(errno) = done {
            self.tell(format!("others: not {path}: {errno:?}"));
        }
        std::thread::sleep(Duration::from_millis(self.random.between(1, 60)));
    }

    fn path(&mut self) -> String {
        format!("{}/{}", self.random.pick(&SHARED), self.random.pick(&NAMES))
    }

    fn tell(&self, line: String) {
        self.lines.lock().push(line);
    }

    fn version(&mut self) -> Version {
        self.next += 2;
        Version { tag: self.next, blocks: self.random.between(1, 60) as usize }
    }

    /// What is in a file that nobody but workers of the mount changes.
    fn meet(&self, bytes: &[u8], is_gone: bool) -> Option<Version> {
        let met = Version::of(bytes).ok().flatten();
        if let Some(met) = met {
            self.ledger.lock().met(met, is_gone);
        }
        met
    }

    fn write_in_place(&mut self, path: &str) -> Result<(), Errno> {
        let version = self.version();
        let full = self.tree.join(path);
        let _nobody_reads = self.calm.write();
        self.ledger.lock().deed(path, false);
        let file = os::open(full, OFlags::RDWR, 0)?;
        let met = self.meet(&os::read_to_end(&file)?, true);
        self.tell(format!("others: {version:?} in place into {path}, which had {met:?}"));
        let written = os::write_at(&file, 0, &version.bytes())
            .and_then(|()| rustix::fs::ftruncate(&file, version.bytes().len() as u64));
        self.ledger.lock().deed(path, false);
        written
    }

    /// Puts another file in its place, or a new one.
    fn replace(&mut self, path: &str) -> Result<(), Errno> {
        let (version, full) = (self.version(), self.tree.join(path));
        let new = self.beside.join("new");
        os::write_file(&new, &version.bytes())?;
        self.ledger.lock().deed(path, false);
        let exchanged = renameat_with(CWD, &new, CWD, &full, RenameFlags::EXCHANGE);
        let met = match exchanged {
            Ok(()) => {
                let bytes = os::read_all(&new)?;
                unlink(&new)?;
                self.meet(&bytes, true)
            }
            Err(Errno::NOENT) => {
                renameat_with(CWD, &new, CWD, &full, RenameFlags::NOREPLACE)?;
                None
            }
            Err(errno) => return Err(errno),
        };
        let mut ledger = self.ledger.lock();
        ledger.deed(path, false);
        ledger.put_by_others(path, version);
        drop(ledger);
        self.tell(format!("others: {version:?} in the place of {met:?} at {path}"));
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), Errno> {
        let aside = self.beside.join("removed");
        self.ledger.lock().deed(path, false);
        os_rename(&self.tree.join(path), &aside)?;
        let met = self.meet(&os::read_all(&aside)?, true);
        self.ledger.lock().deed(path, false);
        self.tell(format!("others: {path} is removed, which had {met:?}"));
        unlink(&aside)
    }

    fn rename(&mut self, path: &str) -> Result<(), Errno> {
        let to = self.path();
        let mut ledger = self.ledger.lock();
        ledger.deed(path, false);
        ledger.deed(&to, false);
        drop(ledger);
        os_rename(&self.tree.join(path), &self.tree.join(&to))?;
        let met = os::read_all(self.tree.join(&to)).ok().and_then(|bytes| self.meet(&bytes, false));
        self.tell(format!("others: {path} is now {to}, with {met:?}"));
        Ok(())
    }

    fn rename_dir(&mut self) -> Result<(), Errno> {
        let [from, to] = [(); 2].map(|()| *self.random.pick(&SHARED));
        let mut ledger = self.ledger.lock();
        ledger.deed(from, true);
        ledger.deed(to, true);
        drop(ledger);
        os_rename(&self.tree.join(from), &self.tree.join(to))?;
        for name in os::names(self.tree.join(to)).unwrap_or_default() {
            let bytes = os::read_all(self.tree.join(to).join(name)).unwrap_or_default();
            self.meet(&bytes, false);
        }
        self.ledger.lock().deed(to, true);
        self.tell(format!("others: directory {from} is now {to}"));
        Ok(())
    }

    fn make_dir(&mut self) -> Result<(), Errno> {
        let dir = *self.random.pick(&DIRS);
        self.ledger.lock().deed(dir, true);
        self.tell(format!("others: directory {dir} is made"));
        os::mkdir(self.tree.join(dir), 0o755)
    }

    fn remove_dir(&mut self) -> Result<(), Errno> {
        let dir = *self.random.pick(&SHARED);
        self.ledger.lock().deed(dir, true);
        rmdir(self.tree.join(dir))?;
        self.tell(format!("others: directory {dir} is removed"));
        Ok(())
    }
}

fn os_rename(from: &Path, to: &Path) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}
