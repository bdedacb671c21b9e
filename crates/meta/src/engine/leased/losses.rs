//! What was acknowledged under leases and is lost, as others took this process for dead: until the
//! programs have been told, by calls that fail, and people have looked at what is kept of it.
//!
//! A program is told by the next change and by the next sync of each inode that something was lost
//! of, once each. What nobody was told yet outlives the process, in a file beside the journal.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use prost::Message;

use super::journal::REFUSED;
use crate::engine::Write;
use crate::keys;

const FILE: &str = "losses";
/// Inodes that are told apart. With more, the next change and the next sync of any inode fail.
const MAX_INODES: usize = 1 << 16;
/// Names that are kept of a directory.
const MAX_NAMES: usize = 16;

/// What a program does that is told of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Teller {
    /// It changes a name or an attribute.
    Change,
    /// It asks for what was done before to be durable.
    Sync,
}

/// What is lost of one inode: of a directory, changes of its entries.
#[derive(Clone, PartialEq, Message)]
struct Loss {
    #[prost(uint64, tag = "1")]
    inode: u64,
    /// How many writes; 0 once people have seen to it.
    #[prost(uint64, tag = "2")]
    changes: u64,
    /// Names in it that were made or removed, some of them.
    #[prost(bytes = "vec", repeated, tag = "3")]
    names: Vec<Vec<u8>>,
    /// The next change fails.
    #[prost(bool, tag = "4")]
    change_to_tell: bool,
    /// The next sync fails.
    #[prost(bool, tag = "5")]
    sync_to_tell: bool,
}

impl Loss {
    fn flag(&mut self, teller: Teller) -> &mut bool {
        match teller {
            Teller::Change => &mut self.change_to_tell,
            Teller::Sync => &mut self.sync_to_tell,
        }
    }
}

/// All of it, as it is kept.
#[derive(Clone, PartialEq, Message)]
struct PbLosses {
    #[prost(message, repeated, tag = "1")]
    losses: Vec<Loss>,
    #[prost(uint64, tag = "2")]
    changes: u64,
    /// Of inodes beyond those.
    #[prost(message, optional, tag = "3")]
    others: Option<Loss>,
}

/// What a process has lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossReport {
    /// Transactions.
    pub changes: u64,
    /// Of which inodes, as far as they are told apart, and some names in each.
    pub losses: Vec<(u64, Vec<Vec<u8>>)>,
    /// Where what is lost is kept.
    pub kept: Option<PathBuf>,
}

#[derive(Default)]
struct State {
    changes: u64,
    losses: BTreeMap<u64, Loss>,
    others: Loss,
}

/// See the module's documentation.
pub struct Losses {
    /// Beside the journal, if there is one.
    dir: Option<PathBuf>,
    state: Mutex<State>,
    /// Somebody has to be told.
    any: AtomicBool,
}

impl Losses {
    /// With what an earlier process has left in `dir`.
    pub(super) fn open(dir: Option<&Path>) -> Self {
        let dir = dir.map(Path::to_path_buf);
        let mut state = State::default();
        if let Some(dir) = &dir {
            match read(&dir.join(FILE)) {
                Ok(kept) => {
                    state.changes = kept.changes;
                    state.others = kept.others.unwrap_or_default();
                    state.losses = kept.losses.into_iter().map(|loss| (loss.inode, loss)).collect();
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::error!(%error, "can't read which changes were lost earlier: nobody is told of them");
                }
            }
        }
        let losses = Losses { dir, any: AtomicBool::new(false), state: Mutex::new(state) };
        losses.note_any(&losses.state.lock());
        losses
    }

    /// So many transactions, with these writes, were acknowledged and are lost.
    pub(super) fn note(&self, count: usize, transactions: &[Vec<Write>]) {
        let mut state = self.state.lock();
        state.changes += count as u64;
        for writes in transactions {
            for (inode, name) in writes.iter().filter_map(concerned) {
                state.note(inode, name);
            }
        }
        self.note_any(&state);
        self.keep(&state);
    }

    /// Whether a call on an inode has to fail, as somebody has to be told: from now on he is.
    pub(crate) fn tell(&self, inode: u64, teller: Teller) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let mut told = std::mem::take(state.others.flag(teller));
        if let Some(loss) = state.losses.get_mut(&inode) {
            told |= std::mem::take(loss.flag(teller));
        }
        if told {
            self.note_any(&state);
            self.keep(&state);
        }
        told
    }

    /// What is lost and kept for people. Once they have removed that, it is not named any more.
    pub fn report(&self) -> LossReport {
        let mut state = self.state.lock();
        let kept = self.dir.as_ref().map(|dir| dir.join(REFUSED));
        if state.changes > 0 && kept.as_ref().is_some_and(|kept| is_gone(kept)) {
            state.changes = 0;
            state.losses.retain(|_, loss| {
                loss.changes = 0;
                loss.names.clear();
                loss.change_to_tell || loss.sync_to_tell
            });
            self.keep(&state);
        }
        let named = state.losses.values().filter(|loss| loss.changes > 0);
        let losses = named.map(|loss| (loss.inode, loss.names.clone())).collect();
        LossReport { changes: state.changes, losses, kept }
    }

    fn note_any(&self, state: &State) {
        let to_tell = |loss: &Loss| loss.change_to_tell || loss.sync_to_tell;
        let any = to_tell(&state.others) || state.losses.values().any(to_tell);
        self.any.store(any, Ordering::Release);
    }

    fn keep(&self, state: &State) {
        let Some(dir) = &self.dir else { return };
        let losses = PbLosses {
            losses: state.losses.values().cloned().collect(),
            changes: state.changes,
            others: Some(state.others.clone()),
        };
        let nothing = losses.changes == 0 && losses.losses.is_empty();
        if let Err(error) = write(&dir.join(FILE), (!nothing).then_some(&losses)) {
            tracing::error!(%error, "can't note which changes were lost: the next daemon will not tell of them");
        }
    }
}

impl State {
    fn note(&mut self, inode: u64, name: Option<&[u8]>) {
        let is_full = self.losses.len() >= MAX_INODES && !self.losses.contains_key(&inode);
        let loss = match is_full {
            true => &mut self.others,
            false => self.losses.entry(inode).or_insert(Loss { inode, ..Loss::default() }),
        };
        (loss.change_to_tell, loss.sync_to_tell) = (true, true);
        loss.changes += 1;
        let Some(name) = name.filter(|_| !is_full && loss.names.len() < MAX_NAMES) else { return };
        if !loss.names.iter().any(|known| known == name) {
            loss.names.push(name.to_vec());
        }
    }
}

/// The inode that a write of a program is about, and the name in it. What workers note of the backing
/// store is no program's.
fn concerned(write: &Write) -> Option<(u64, Option<&[u8]>)> {
    let bytes = write.key().bytes();
    let inode = keys::number(bytes)?;
    match *bytes.first()? {
        keys::ENTRY => Some((inode, keys::entry_name(bytes).map(|(_, name)| name))),
        keys::RECORD | keys::XATTR | keys::TIMES | keys::NAME | keys::LOCKS => Some((inode, None)),
        _ => None,
    }
}

fn is_gone(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read(path: &Path) -> io::Result<PbLosses> {
    let bytes = std::fs::read(path)?;
    PbLosses::decode(&*bytes).map_err(io::Error::other)
}

/// Replaces the file, or removes it if there is nothing to keep.
fn write(path: &Path, losses: Option<&PbLosses>) -> io::Result<()> {
    let Some(losses) = losses else {
        return match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    io::Write::write_all(&mut file, &losses.encode_to_vec())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Ino;

    /// A file is made in a directory.
    fn made(dir: u64, name: &[u8], file: u64) -> Vec<Write> {
        let at = Ino(dir).partition();
        vec![
            Write::Put(keys::entry(at, Ino(dir), name), vec![1]),
            Write::Put(keys::record(Ino(file)), vec![1]),
            Write::Put(keys::times(at, Ino(dir)), vec![1]),
        ]
    }

    #[test]
    fn loss_when_noted_then_each_inode_is_told_once_by_a_change_and_once_by_a_sync() {
        let losses = Losses::open(None);
        assert!(!losses.tell(7, Teller::Sync));
        losses.note(2, &[made(7, b"a", 20), made(7, b"b", 21)]);
        for inode in [7, 20, 21] {
            for teller in [Teller::Change, Teller::Sync] {
                assert!(losses.tell(inode, teller));
                assert!(!losses.tell(inode, teller));
            }
        }
        assert!(!losses.tell(8, Teller::Change));
        let report = losses.report();
        assert_eq!(report.changes, 2);
        assert_eq!(report.losses[0], (7, vec![b"a".to_vec(), b"b".to_vec()]));
    }

    #[test]
    fn loss_when_the_process_ends_before_it_is_told_then_the_next_one_tells_and_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join(REFUSED);
        std::fs::write(&kept, b"what was refused").unwrap();
        let losses = Losses::open(Some(dir.path()));
        losses.note(1, &[made(7, b"a", 20)]);
        assert!(losses.tell(7, Teller::Sync));
        let report = losses.report();
        drop(losses);
        let losses = Losses::open(Some(dir.path()));
        assert_eq!(losses.report(), report);
        assert!(!losses.tell(7, Teller::Sync), "it was told");
        assert!(losses.tell(7, Teller::Change) && losses.tell(20, Teller::Sync));
        // Somebody has looked at what was kept and has removed it.
        std::fs::remove_file(&kept).unwrap();
        assert_eq!((losses.report().changes, losses.report().losses.len()), (0, 0));
        assert!(losses.tell(20, Teller::Change), "the program was not told yet");
        losses.report();
        drop(losses);
        assert!(!Losses::open(Some(dir.path())).tell(20, Teller::Change));
    }

    #[test]
    fn losses_when_there_are_very_many_then_memory_is_bounded_and_nobody_is_left_untold() {
        let losses = Losses::open(None);
        let all: Vec<_> = (0..MAX_INODES as u64).map(|n| made(7, b"a", 100 + n)).collect();
        losses.note(all.len(), &all);
        assert_eq!(losses.report().losses.len(), MAX_INODES);
        assert!(losses.tell(99, Teller::Sync), "it may be about this one, too");
        assert!(!losses.tell(99, Teller::Sync));
    }
}
