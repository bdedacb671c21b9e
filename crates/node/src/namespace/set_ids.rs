//! Set-id bits and capabilities, which a write by somebody without privilege takes away: also one that
//! the kernel makes without the daemon.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use forebay_meta::{Queue, Record};
use forebay_store::Attributes;
use forebay_types::{FileKind, Ino, Timestamp};
use parking_lot::Mutex;

use crate::clock;
use crate::context::Context;
use crate::error::Result;
use crate::hand_over_state::{HandOverState, OpenHandle, SetIdsSince};
use crate::handles::OpenMode;
use crate::namespace::perm_after_write;
use crate::node::Node;
use crate::residency::data::CLOCK_STEP;
use crate::residency::files::File;

/// The part of set-id bits of a file in use.
#[derive(Default)]
pub(crate) struct SetIds {
    /// The setuid or setgid bit or file capabilities must go at the next write.
    privileged: AtomicBool,
    /// Length and time of the object when set-id bits were set while programs had the file open that write
    /// it without the daemon.
    since: Mutex<Option<(u64, Timestamp)>>,
    /// Changes of mode or owner since the file came into use: a record read before one is old.
    attribute_changes: AtomicU32,
}

impl SetIds {
    /// Whether they, or file capabilities, may have to go at the next write.
    pub(crate) fn may_be_set(&self) -> bool {
        self.privileged.load(Ordering::SeqCst)
    }

    /// Whether writes are looked for that the kernel makes without the daemon.
    pub(crate) fn are_watched(&self) -> bool {
        self.since.lock().is_some()
    }

    /// Counts the changes of mode and owner: for [`SetIds::learn`], before the record is read.
    pub(crate) fn changes(&self) -> u32 {
        self.attribute_changes.load(Ordering::SeqCst)
    }

    /// Takes in a record that was read after so many changes; false if there was one since, and the
    /// record is old.
    pub(crate) fn learn(&self, changes: u32, record: &Record) -> bool {
        self.privileged.store(is_privileged(record), Ordering::SeqCst);
        self.changes() == changes
    }

    /// The permissions that are left of these if its object, which is like this now, was written by the
    /// kernel alone since set-id bits were set.
    pub(crate) fn perm_left(&self, perm: u32, now: &Attributes) -> Option<u32> {
        self.were_lost(now).then(|| without_set_ids(perm))
    }

    /// Whether its object was written since set-id bits were set that this takes away.
    fn were_lost(&self, now: &Attributes) -> bool {
        self.since.lock().is_some_and(|since| since != (now.size, now.mtime))
    }
}

/// Whether a write by somebody without privilege may change the mode. (File capabilities are the
/// kernel's to notice: it asks for them and sends a SETATTR.)
fn is_privileged(record: &Record) -> bool {
    record.attr.perm & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// The same whoever it was. A set-group-id bit without group execute meant mandatory locking once, and
/// stays when a member of the group writes.
pub(super) fn without_set_ids(perm: u32) -> u32 {
    let perm = perm & !libc::S_ISUID;
    if perm & libc::S_IXGRP != 0 { perm & !libc::S_ISGID } else { perm }
}

impl Node {
    /// A file's mode or owner were set.
    pub(crate) fn attributes_changed(&self, record: &Record) {
        if record.attr.kind != FileKind::Regular {
            return;
        }
        // Also while no tier has any of its bytes.
        if let Some(file) = &self.residency.files.peek(record.ino) {
            file.set_ids.attribute_changes.fetch_add(1, Ordering::SeqCst);
            file.set_ids.privileged.store(is_privileged(record), Ordering::SeqCst);
            self.watch_set_ids(file, is_privileged(record));
        }
    }

    /// The setuid and setgid bits and file capabilities go when somebody without privilege writes.
    pub(crate) fn drop_privileges(&self, context: &Context, file: &File) -> Result<()> {
        if !file.set_ids.privileged.load(Ordering::Relaxed) || context.uid == 0 {
            return Ok(());
        }
        let record = self.meta.get(file.ino)?;
        if perm_after_write(context, &record.attr) == record.attr.perm {
            // Set-group-id without group execute, and the caller is of the group: others may follow.
            return Ok(());
        }
        let now = clock::wall_time();
        let record = self.meta.update(file.ino, Some(now), |record| {
            record.attr.perm = perm_after_write(context, &record.attr);
            record.backing.attrs_differ = true;
            Queue::Yes
        })?;
        if record.xattrs == forebay_meta::XattrState::Some {
            match self.meta.xattr_remove(file.ino, b"security.capability", now) {
                Ok(_) | Err(forebay_meta::Error::NoXattr) => {}
                Err(error) => return Err(error.into()),
            }
        }
        file.set_ids.privileged.store(is_privileged(&record), Ordering::Relaxed);
        self.residency.forget_attributes_at_once(file.ino);
        Ok(())
    }

    /// Programs have a file open that the kernel writes for them without the daemon, which is not told of
    /// the write that takes new set-id bits away. It shows in the object, which is noted as it is.
    fn watch_set_ids(&self, file: &File, privileged: bool) {
        let unheard = |fh: &u64| {
            self.handles.get(*fh).is_some_and(|handle| {
                let passes = matches!(handle.mode, OpenMode::Passthrough { .. });
                handle.write && passes && !handle.keeps_set_ids
            })
        };
        let object = || {
            let resident = self.residency.residents.get(file.ino.0)?;
            self.residency.tiers[usize::from(resident.tier)].tier.open(file.ino.0).ok()
        };
        let writers = privileged.then(|| file.opens.lock().handles.iter().any(unheard));
        let since = match writers.unwrap_or_default().then(object).flatten() {
            None => None,
            Some(object) => {
                // Whatever is written from here on has another time, also by a coarse clock.
                if object.stat().is_ok_and(|stat| is_fresh(stat.mtime)) {
                    std::thread::sleep(CLOCK_STEP);
                }
                object.stat().ok().map(|stat| (stat.size, stat.mtime))
            }
        };
        *file.set_ids.since.lock() = since;
    }

    /// How the objects of open files were when set-id bits were set that an unseen write takes away.
    pub(crate) fn watched_set_ids(&self, open: &[OpenHandle]) -> Vec<SetIdsSince> {
        let inos: BTreeSet<u64> =
            open.iter().filter(|open| open.write).map(|open| open.ino).collect();
        let watched = |ino| {
            let (size, mtime) = (*self.residency.files.peek(Ino(ino))?.set_ids.since.lock())?;
            Some(SetIdsSince { ino, size, sec: mtime.sec, nsec: mtime.nsec })
        };
        inos.into_iter().filter_map(watched).collect()
    }

    /// Goes on watching the files that programs had open with another daemon: from when their bits were
    /// set, if that one could still tell; else from now on.
    pub(crate) fn watch_taken_over(&self, handed_over: &HandOverState) {
        for open in handed_over.handles.iter().filter(|open| open.write) {
            let file = self.residency.files.peek(Ino(open.ino));
            let Some(file) = file.filter(|file| file.set_ids.may_be_set()) else {
                continue;
            };
            match handed_over.set_ids.iter().find(|since| since.ino == open.ino) {
                Some(since) => {
                    let mtime = Timestamp::new(since.sec, since.nsec);
                    *file.set_ids.since.lock() = Some((since.size, mtime));
                }
                None => self.watch_set_ids(&file, true),
            }
        }
    }

    /// Takes set-id bits away if the kernel has written a file without the daemon since they were set.
    pub(crate) fn look_for_lost_set_ids(&self, file: &File) {
        if file.set_ids.since.lock().is_none() {
            return;
        }
        let Some(resident) = self.residency.residents.get(file.ino.0) else { return };
        let tier = &self.residency.tiers[usize::from(resident.tier)].tier;
        let stat = tier.open(file.ino.0).and_then(|object| object.stat());
        if stat.is_ok_and(|stat| file.set_ids.were_lost(&stat)) {
            match self.kill_set_ids(&Context::DAEMON, file.ino) {
                Ok(()) => *file.set_ids.since.lock() = None,
                Err(error) => {
                    tracing::warn!(
                        ino = %file.ino,
                        %error,
                        "set-id bits can't be taken from a file that was written, as they should \
                         be: check its mode"
                    );
                }
            }
        }
    }
}

/// Whether something that happens now may have the same time as what happened then.
fn is_fresh(then: Timestamp) -> bool {
    let nanos = |time: Timestamp| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    let age = nanos(clock::wall_time()) - nanos(then);
    age < i128::try_from(CLOCK_STEP.as_nanos()).unwrap_or(0)
}
