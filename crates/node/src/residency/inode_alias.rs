//! What the kernel has open of a file, and under which number it knows the file.
//!
//! The kernel reads one file only for all passthrough opens of an inode, and asks nobody while it does.
//! When another version takes the place of the one that it reads (another node has written the file),
//! those who have the old one open keep it, and later opens have to see the new one. So the file gets
//! another *alias*: the kernel is shown an inode of another number for the same file. An open under an
//! old alias fails with `ESTALE`, on which the kernel looks the name up once more, and comes with the
//! new one. `st_ino` is the inode number, whatever the alias.

use std::os::fd::BorrowedFd;

use forebay_core::cluster::grants::Fact;
use forebay_meta::Record;
use forebay_types::Ino;
use rustix::io::Errno;

use crate::error::Result;
use crate::residency::Residency;
use crate::residency::data_location::TierObject;

/// The number under which the kernel knows an alias of an inode.
#[must_use]
pub fn node_id(ino: Ino, alias: u8) -> u64 {
    ino.0 | u64::from(alias) << Ino::SPARE_SHIFT
}

/// The inode, and the alias of it, that the kernel knows under a number.
#[must_use]
pub fn of_node_id(id: u64) -> (Ino, u8) {
    let alias = (id >> Ino::SPARE_SHIFT) as u8;
    (Ino(id & !(0xff << Ino::SPARE_SHIFT)), alias)
}

/// A file registered with the kernel for passthrough. The kernel keeps it open.
pub struct Registered {
    /// Its id.
    pub id: u32,
    /// Opens that use it.
    pub opens: u32,
    /// Whether it is the backing file, because the tiers were passed over; else it is the object.
    pub bypass: bool,
    /// Which object it is, or which version of the backing store; 0 if that is not known.
    pub object: u64,
    /// A tier, and the bytes of it that an object takes up which is only here any more.
    pub charged: Option<(u8, u64)>,
}

impl Registered {
    /// A registration that nobody uses yet.
    pub fn new(id: u32, bypass: bool, object: u64) -> Self {
        Registered { id, opens: 0, bypass, object, charged: None }
    }
}

/// Who has a file open, and how.
#[derive(Default)]
pub struct Opens {
    /// All opens.
    pub count: u32,
    /// Those that may write.
    pub writers: u32,
    /// The numbers of all handles.
    pub handles: Vec<u64>,
    /// The alias that is shown to who looks the file up, and its opens.
    pub now: InodeAlias,
    /// Faces of versions that somebody has open still.
    pub former: Vec<InodeAlias>,
}

/// An alias of a file, and its opens.
#[derive(Default)]
pub struct InodeAlias {
    /// Its number.
    pub number: u8,
    /// All opens of it.
    pub opens: u32,
    /// Those through the kernel's page cache.
    pub cached: u32,
    /// Whether all of them are through another node.
    pub remote: bool,
    /// The registration that passthrough opens of it share. The kernel accepts only one for an inode
    /// while any of them lives.
    pub registered: Option<Registered>,
}

/// How somebody has an alias open.
#[derive(Clone, Copy)]
pub struct Use {
    /// Through the kernel's page cache.
    pub cached: bool,
    /// Through another node.
    pub remote: bool,
}

impl InodeAlias {
    /// Counts an open.
    pub fn enter(&mut self, how: Use) {
        self.remote = how.remote && (self.remote || self.opens == 0);
        self.opens += 1;
        self.cached += u32::from(how.cached);
    }
}

impl Opens {
    /// Whether a passthrough open of the object lives.
    pub fn passes_to_object(&self) -> bool {
        self.now.registered.as_ref().is_some_and(|registered| !registered.bypass)
    }

    /// Shows another alias from now on, if anybody has this one open: what those see is another version
    /// than the one that counts.
    ///
    /// # Errors
    /// `EMFILE` if all aliases are in use.
    pub fn turn(&mut self) -> Result<()> {
        if self.now.opens == 0 && self.now.registered.is_none() {
            return Ok(());
        }
        self.take_free_alias()
    }

    fn take_free_alias(&mut self) -> Result<()> {
        let used = |number| self.now.number == number || self.is_former(number);
        let numbers = (1..=u8::MAX).map(|step| self.now.number.wrapping_add(step));
        let free = numbers.into_iter().find(|number| !used(*number)).ok_or(Errno::MFILE)?;
        self.former.push(std::mem::take(&mut self.now));
        self.now.number = free;
        Ok(())
    }

    fn is_former(&self, number: u8) -> bool {
        self.former.iter().any(|alias| alias.number == number)
    }

    /// What another daemon has registered, for an open file that is of an alias, if it has: an id,
    /// whether it is the backing file, and which object else. `here` is the object that is here now.
    /// One that is not here is of a former version.
    ///
    /// # Errors
    /// `EMFILE` if all aliases are in use.
    pub fn adopt(
        &mut self,
        number: u8,
        how: Use,
        registered: Option<(u32, bool, u64)>,
        here: u64,
    ) -> Result<()> {
        let other =
            |(_, bypass, object): (u32, bool, u64)| !bypass && object != 0 && object != here;
        let is_former = registered.is_some_and(other);
        if !is_former && !self.is_former(number) && number != self.now.number {
            let unused = self.now.opens == 0;
            if unused || registered.is_some() && self.now.registered.is_none() {
                let now = InodeAlias { number, ..InodeAlias::default() };
                let before = std::mem::replace(&mut self.now, now);
                self.former.extend(Some(before).filter(|_| !unused));
            } else {
                self.former.push(InodeAlias { number, ..InodeAlias::default() });
            }
        } else if is_former && number == self.now.number {
            self.take_free_alias()?;
        } else if is_former && !self.is_former(number) {
            self.former.push(InodeAlias { number, ..InodeAlias::default() });
        }
        let alias = self.alias(number).ok_or(Errno::MFILE)?;
        alias.enter(how);
        if let Some((id, bypass, object)) = registered {
            let registered =
                alias.registered.get_or_insert_with(|| Registered::new(id, bypass, object));
            registered.opens += 1;
        }
        Ok(())
    }

    fn alias(&mut self, number: u8) -> Option<&mut InodeAlias> {
        std::iter::once(&mut self.now).chain(&mut self.former).find(|alias| alias.number == number)
    }

    /// The registration of an id.
    pub fn registration(&mut self, id: u32) -> Option<&mut Registered> {
        let aliases = std::iter::once(&mut self.now).chain(&mut self.former);
        aliases.filter_map(|alias| alias.registered.as_mut()).find(|registered| registered.id == id)
    }

    /// Forgets an open of an alias, and by which registration it was served, if by one.
    pub fn leave(&mut self, number: u8, cached: bool, registration: Option<u32>) {
        if let Some(registered) = registration.and_then(|id| self.registration(id)) {
            registered.opens -= 1;
        }
        if let Some(alias) = self.alias(number) {
            alias.opens -= 1;
            alias.cached -= u32::from(cached);
        }
    }

    /// Takes out what nobody uses.
    fn take_unused(&mut self) -> Vec<Registered> {
        let unused = |registered: &mut Registered| registered.opens == 0;
        let aliases = std::iter::once(&mut self.now).chain(&mut self.former);
        let taken = aliases.filter_map(|alias| alias.registered.take_if(unused)).collect();
        self.former.retain(|alias| alias.opens > 0);
        taken
    }

    /// All aliases that the kernel may use.
    pub fn aliases(&self) -> impl Iterator<Item = u8> + '_ {
        std::iter::once(&self.now).chain(&self.former).map(|alias| alias.number)
    }
}

/// Tells an object from all others that are open.
pub(crate) fn object_id(fd: Option<BorrowedFd<'_>>) -> u64 {
    let stat = fd.and_then(|fd| rustix::fs::fstat(fd).ok());
    stat.map_or(0, |stat| stat.st_ino ^ stat.st_dev.rotate_left(40))
}

/// Tells a version in the backing store from the one that takes its place there. (One that is changed in
/// place is the same file to whoever has it open.)
pub(crate) fn version_id(record: &Record) -> u64 {
    record.backing.fingerprint.map_or(0, |known| known.ino)
}

impl Residency {
    /// Shows another alias if the kernel reads another object than the one that is here now, or another
    /// version of the backing store than the one that is there.
    pub(crate) fn turn_if_replaced(
        &self,
        opens: &mut Opens,
        place: Option<&TierObject>,
        record: &Record,
    ) -> Result<()> {
        let Some(registered) = opens.now.registered.as_ref().filter(|r| r.object != 0) else {
            return Ok(());
        };
        let here = match registered.bypass {
            true => version_id(record),
            false => place.map_or(0, |place| object_id(place.object.fd())),
        };
        if here == registered.object { Ok(()) } else { opens.turn() }
    }

    /// Gives registrations back that nobody uses.
    pub(crate) fn unregister_unused(&self, opens: &mut Opens) {
        for registered in opens.take_unused() {
            if let Some(kernel) = self.kernel.get() {
                kernel.unregister(registered.id);
            }
            if let Some((tier, bytes)) = registered.charged {
                self.tiers[usize::from(tier)].room.give_all(bytes);
            }
        }
    }

    /// The numbers under which the kernel may know an inode.
    fn node_ids(&self, ino: Ino) -> Vec<u64> {
        match self.files.peek(ino) {
            Some(file) => file.opens.lock().aliases().map(|alias| node_id(ino, alias)).collect(),
            None => vec![ino.0],
        }
    }

    /// The kernel forgets what it knows of an inode.
    pub(crate) fn forget_object(&self, ino: Ino, pages: bool) {
        let Some(kernel) = self.kernel.get() else { return };
        for id in self.node_ids(ino) {
            if pages {
                kernel.forget_inode(id);
            } else {
                kernel.forget_attributes(id);
            }
        }
    }

    /// The version of a file that the kernel may have pages of is about to go. To be followed by
    /// [`Residency::forget_object`] with the pages.
    pub(crate) fn pages_become_old(&self, ino: Ino) {
        let Some(kernel) = self.kernel.get() else { return };
        for id in self.node_ids(ino) {
            kernel.pages_become_old(id);
        }
    }

    /// Whether an open may not leave the kernel the pages that it has of an alias.
    pub(crate) fn has_old_pages(&self, ino: Ino, alias: u8) -> bool {
        self.kernel.get().is_some_and(|kernel| kernel.has_old_pages(node_id(ino, alias)))
    }

    /// The kernel has forgotten an inode's attributes when this returns. It asks by itself for the times
    /// and the length after a call that changes them, but not for the mode or the owner.
    pub(crate) fn forget_attributes_at_once(&self, ino: Ino) {
        let Some(kernel) = self.kernel.get() else { return };
        for id in self.node_ids(ino) {
            kernel.expire_at_once(&[Fact::Attributes(id)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_when_read_back_then_inode_and_face() {
        let inodes = [1, 2, (1 << 40) - 1, 0x3fff << 48 | 77, u64::from(u16::MAX) << 48 | 1];
        for (ino, alias) in inodes.into_iter().zip([0, 1, 255, 128, 3]) {
            assert_eq!(of_node_id(node_id(Ino(ino), alias)), (Ino(ino), alias));
            assert_eq!(node_id(Ino(ino), 0), ino);
        }
    }

    const PASSED: Use = Use { cached: false, remote: false };
    const CACHED: Use = Use { cached: true, remote: false };

    fn pass(opens: &mut Opens, id: u32) {
        opens.now.enter(PASSED);
        opens.now.registered = Some(Registered { opens: 1, ..Registered::new(id, false, 5) });
    }

    #[test]
    fn faces_when_versions_change_then_those_in_use_stay_and_free_ones_are_taken() {
        let mut opens = Opens::default();
        opens.turn().expect("nobody has it open");
        assert_eq!(opens.now.number, 0);
        for id in 0..255 {
            pass(&mut opens, id);
            opens.turn().expect("an alias is free");
        }
        let mut aliases: Vec<u8> = opens.aliases().collect();
        aliases.sort_unstable();
        assert_eq!(aliases, (0..=255).collect::<Vec<u8>>());
        pass(&mut opens, 255);
        assert!(opens.turn().is_err());
        assert_eq!((opens.now.number, opens.registration(255).map(|r| r.id)), (255, Some(255)));
        opens.leave(7, false, Some(7));
        assert_eq!(opens.take_unused().iter().map(|r| r.id).collect::<Vec<_>>(), [7]);
        opens.turn().expect("one is free again");
        assert_eq!(opens.now.number, 7);
    }

    #[test]
    fn faces_when_taken_over_then_only_what_is_here_is_shown() {
        // The object 9 is here now; of the others the kernel reads what was here before.
        let handles = [
            (4, PASSED, Some((1, false, 8))),
            (6, PASSED, Some((2, false, 9))),
            (4, PASSED, Some((1, false, 8))),
            (5, CACHED, None),
            (6, PASSED, Some((2, false, 9))),
        ];
        for first in 0..handles.len() {
            let mut opens = Opens::default();
            let turned = handles.iter().cycle().skip(first).take(handles.len());
            for (alias, how, registered) in turned {
                opens.adopt(*alias, *how, *registered, 9).expect("room");
            }
            assert_eq!((opens.now.number, opens.now.opens), (6, 2), "from {first}");
            assert_eq!(opens.registration(1).map(|r| r.opens), Some(2));
            assert_eq!(opens.registration(2).map(|r| r.opens), Some(2));
            assert_eq!(
                opens.aliases().collect::<std::collections::BTreeSet<_>>(),
                [4, 5, 6].into()
            );
        }
        let mut opens = Opens::default();
        opens.adopt(0, PASSED, Some((1, false, 8)), 9).expect("room");
        assert_ne!(opens.now.number, 0, "the kernel has another object there");
        opens.leave(0, false, Some(1));
        assert_eq!(opens.take_unused().len(), 1);
        assert!(opens.former.is_empty());
    }
}
