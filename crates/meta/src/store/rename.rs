//! Rename, with all checks of POSIX that need no credentials.

use super::draft::committed_record;
use super::names::detach;
use super::{
    Draft, Guards, MAX_DEPTH, MetaStore, RenameFlags, Renamed, Unlinked, check_name, corrupt,
};
use crate::codec;
use crate::engine::Expect;
use crate::error::{Error, Result};
use crate::keys;
use crate::types::{FileKind, Ino, Link, NameIn, Record, Timestamp};

type Found = (Ino, FileKind);

/// Counts the moves of directories to other parents, where several processes move them.
const TREE: &str = "forebay.tree";

/// The value of [`TREE`] before a move.
type Shape = Option<Vec<u8>>;

impl MetaStore {
    /// Renames. `in_use` says of a replaced inode whether it is open.
    ///
    /// # Errors
    /// `NotFound`; `Exists` (noreplace); `Invalid` (a directory into itself, contradicting flags);
    /// `NotDirectory`, `IsDirectory`, `NotEmpty` for what would be replaced.
    pub fn rename(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
        now: Timestamp,
        in_use: &dyn Fn(Ino) -> bool,
    ) -> Result<Renamed> {
        check_name(from.name)?;
        check_name(to.name)?;
        if flags.exchange && flags.noreplace {
            return Err(Error::Invalid("exchange contradicts noreplace"));
        }
        let renamed = self.retry(|| self.rename_once(None, from, to, flags, now, in_use))?;
        if from.dir != to.dir {
            self.has_grown(to.dir);
        }
        Ok(renamed)
    }

    /// Gives an inode another name in the same directory, if it still has the first one and nothing
    /// has the second.
    ///
    /// # Errors
    /// `NotFound` also if the name is another inode's; `Exists`.
    pub fn rename_inode(
        &self,
        ino: Ino,
        from: NameIn<'_>,
        to: &[u8],
        now: Timestamp,
    ) -> Result<Renamed> {
        check_name(to)?;
        let to = NameIn { name: to, ..from };
        let flags = RenameFlags { noreplace: true, ..RenameFlags::default() };
        self.retry(|| self.rename_once(Some(ino), from, to, flags, now, &|_| true))
    }

    fn rename_once(
        &self,
        wanted: Option<Ino>,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
        now: Timestamp,
        in_use: &dyn Fn(Ino) -> bool,
    ) -> Result<Renamed> {
        for dir in [from.dir, to.dir] {
            let record = match self.believed(dir) {
                Some(record) => record,
                None => self.load(dir)?.ok_or(Error::Stale(dir))?,
            };
            if !record.is_directory() {
                return Err(Error::NotDirectory);
            }
        }
        // These only tell what to lock, and are looked at again then.
        let moving = self.find_to_change(from.dir, from.name)?.ok_or(Error::NotFound)?;
        if wanted.is_some_and(|wanted| wanted != moving.0) {
            return Err(Error::NotFound);
        }
        let target = self.find_to_change(to.dir, to.name)?;
        let moves_directory = from.dir != to.dir
            && (is_directory(moving) || flags.exchange && target.is_some_and(is_directory));
        let _tree = moves_directory.then(|| self.tree.lock());
        // Directories that other processes move meanwhile could close a circle.
        let shape = match moves_directory && self.is_gathered() {
            true => Some(self.read_one(keys::setting(TREE))?),
            false => None,
        };
        let _locked = self.lock_rename(from, to, moving, target)?;
        match target {
            Some(_) if flags.noreplace => return Err(Error::Exists),
            None if flags.exchange => return Err(Error::NotFound),
            _ => {}
        }
        self.check_ancestry(from, to, moving, target, flags)?;
        match target {
            Some(target) if target.0 == moving.0 => {
                let moved = self.load_locked(moving.0)?.ok_or(Error::Stale(moving.0))?;
                Ok(Renamed { moved, replaced: None, exchanged: None })
            }
            Some(target) if flags.exchange => self.exchange(from, to, moving, target, shape, now),
            target => self.replace(from, to, moving, target, shape, flags, now, in_use),
        }
    }

    fn lock_rename(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        moving: Found,
        target: Option<Found>,
    ) -> Result<Guards<'_>> {
        let target_ino = target.map_or(moving.0, |target| target.0);
        let locked = self.lock(&[from.dir, to.dir, moving.0, target_ino]);
        let same = self.find_locked(from.dir, from.name)? == Some(moving)
            && self.find_locked(to.dir, to.name)? == target;
        if same { Ok(locked) } else { Err(Error::Conflict(1)) }
    }

    /// A directory can't move below itself, and what is above the source can't be replaced.
    fn check_ancestry(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        moving: Found,
        target: Option<Found>,
        flags: RenameFlags,
    ) -> Result<()> {
        if from.dir == to.dir {
            return Ok(());
        }
        if is_directory(moving) && self.is_within(to.dir, moving.0)? {
            return Err(Error::Invalid("a directory can't be moved into itself"));
        }
        if let Some(target) = target
            && is_directory(target)
            && self.is_within(from.dir, target.0)?
        {
            return Err(match flags.exchange {
                true => Error::Invalid("a directory can't be moved into itself"),
                false => Error::NotEmpty,
            });
        }
        Ok(())
    }

    /// Whether `dir` is `ancestor` or below it.
    fn is_within(&self, dir: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = dir;
        for _ in 0..MAX_DEPTH {
            if at == ancestor {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            let record = self.load(at)?.ok_or(Error::Stale(at))?;
            match record.links.first() {
                Some(link) => at = link.parent,
                None => return Ok(false),
            }
        }
        Err(corrupt(&format!("directory {dir}"), "its ancestors form a circle"))
    }

    #[allow(clippy::too_many_arguments)]
    fn replace(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        moving: Found,
        target: Option<Found>,
        shape: Option<Shape>,
        flags: RenameFlags,
        now: Timestamp,
        in_use: &dyn Fn(Ino) -> bool,
    ) -> Result<Renamed> {
        let mut draft = Draft::new(self);
        change_shape(&mut draft, shape)?;
        draft.edit(from.dir)?.entries_changed(now);
        draft.edit_directory(to.dir)?.entries_changed(now);
        let mut replaces = false;
        if let Some(target) = target {
            match (is_directory(moving), is_directory(target)) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                (true, true) if !draft.expect_empty(target.0)? => return Err(Error::NotEmpty),
                (true, true) => draft.add_subdirs(to.dir, -1)?,
                (false, false) => {}
            }
            let record = draft.edit(target.0)?;
            let at = Link::new(to.dir, to.name);
            // What has only claimed the name gives nothing back: the backing store has an older file there.
            let stands = record.backing.fingerprint.is_some() && record.backing.links.contains(&at);
            replaces = !flags.durable && (record.replaces || stands);
            detach(record, to.dir, to.name, now, in_use(target.0));
            self.note_holder(&mut draft, target.0)?;
            draft.settle(target.0)?;
            draft.change_entry(to.dir, to.name, target, Some(moving));
        } else {
            draft.add_entry(to.dir, to.name, moving.0, moving.1);
        }
        if is_directory(moving) && from.dir != to.dir {
            draft.add_subdirs(from.dir, -1)?;
            draft.add_subdirs(to.dir, 1)?;
        }
        draft.change_entry(from.dir, from.name, moving, None);
        let record = draft.edit(moving.0)?;
        move_link(record, from, to, now);
        record.replaces = replaces;
        draft.settle(moving.0)?;
        let committed = draft.commit()?;
        let replaced = match target {
            Some(target) => {
                let record = committed_record(&committed, target.0)?;
                Some(Unlinked { gone: record.is_gone(), record })
            }
            None => None,
        };
        let moved = committed_record(&committed, moving.0)?;
        Ok(Renamed { moved, replaced, exchanged: None })
    }

    fn exchange(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        moving: Found,
        target: Found,
        shape: Option<Shape>,
        now: Timestamp,
    ) -> Result<Renamed> {
        let mut draft = Draft::new(self);
        change_shape(&mut draft, shape)?;
        draft.edit_directory(from.dir)?.entries_changed(now);
        draft.edit_directory(to.dir)?.entries_changed(now);
        if from.dir != to.dir {
            let gain = i64::from(is_directory(moving)) - i64::from(is_directory(target));
            draft.add_subdirs(to.dir, gain)?;
            draft.add_subdirs(from.dir, -gain)?;
        }
        draft.change_entry(to.dir, to.name, target, Some(moving));
        draft.change_entry(from.dir, from.name, moving, Some(target));
        move_link(draft.edit(moving.0)?, from, to, now);
        move_link(draft.edit(target.0)?, to, from, now);
        draft.settle(moving.0)?;
        draft.settle(target.0)?;
        let committed = draft.commit()?;
        Ok(Renamed {
            moved: committed_record(&committed, moving.0)?,
            replaced: None,
            exchanged: Some(committed_record(&committed, target.0)?),
        })
    }
}

/// Sees to it that the transaction fails if another directory has moved since the shape was read.
fn change_shape(draft: &mut Draft<'_>, shape: Option<Shape>) -> Result<()> {
    let Some(shape) = shape else { return Ok(()) };
    let number = match &shape {
        None => 0,
        Some(value) => {
            let bytes = codec::decode_bytes(TREE, value)?;
            let bytes = bytes.try_into().map_err(|_| corrupt(TREE, "no number"))?;
            u64::from_be_bytes(bytes)
        }
    };
    draft.expect(&keys::setting(TREE), shape.map_or(Expect::Absent, Expect::Value));
    let next = number.wrapping_add(1).to_be_bytes();
    draft.put(keys::setting(TREE), codec::encode_bytes(&next));
    Ok(())
}

fn is_directory(found: Found) -> bool {
    found.1 == FileKind::Directory
}

fn move_link(record: &mut Record, from: NameIn<'_>, to: NameIn<'_>, now: Timestamp) {
    record.links.replace(&Link::new(from.dir, from.name), Link::new(to.dir, to.name));
    record.replaces = false;
    record.attr.ctime = now;
    record.change += 1;
}
