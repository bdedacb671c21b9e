//! Making copies of a file on other nodes, by its owner.
//!
//! A copy that was acknowledged never changes, so a version is made in one of two ways: bytes behind the
//! end of the version before are added to its copies; anything else makes new copies, and the old ones
//! go when the metadata know the new. A program may go on writing meanwhile: what it writes then is in
//! the copies or not, as it is not acknowledged either. Fragments are made as copies are.

use std::sync::atomic::Ordering;

use forebay_core::cluster::NodeId;
use forebay_meta::{Copies, CopiesMade, Error as MetaError};
use forebay_types::Ino;
use rustix::io::Errno;

use super::super::{Cluster, Peers};
use super::level::{self, Level, Snapshot};
use super::send::{Cargo, Failed};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::data_location::Underlay;
use crate::residency::files::FileRef;

/// How often the metadata may turn out to be changed by others.
const ATTEMPTS: u32 = 8;

/// What came of making copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As many nodes as wanted have all that was written before.
    Made,
    /// Too few nodes could take a copy, or the bytes are not all on the tier: nothing has changed.
    Impossible,
}

/// A number that no version of any file had: a daemon that goes on as the same node must not give one
/// again either, so nothing is counted in memory.
///
/// # Errors
/// If the system has no random numbers.
pub(super) fn new_version() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Cluster {
    /// Sees to it that other nodes have what was written to a file before the call.
    pub(super) fn make_copies(&self, file: &FileRef, level: Level) -> Result<Outcome> {
        // Who sends ahead makes way.
        file.cluster.copies_wanted.fetch_add(1, Ordering::AcqRel);
        let mut ahead = file.cluster.copying.lock();
        file.cluster.copies_wanted.fetch_sub(1, Ordering::AcqRel);
        // A file that nobody has open any more is as it was closed.
        self.residency.load(&Context::DAEMON, file)?;
        let ahead = ahead.take();
        let changed = file.cluster.changed_from.swap(u64::MAX, Ordering::AcqRel);
        let made = self.make_since(file, level, changed, ahead);
        match made {
            // What is written anew from the beginning is sent ahead again.
            Ok(Outcome::Made) => file.cluster.ahead_refused.store(false, Ordering::Release),
            _ => drop(file.cluster.changed_from.fetch_min(changed, Ordering::AcqRel)),
        }
        made
    }

    fn make_since(
        &self,
        file: &FileRef,
        level: Level,
        changed: u64,
        ahead: Option<super::ahead::Begun>,
    ) -> Result<Outcome> {
        let Some(now) = self.snapshot(file)? else { return Ok(Outcome::Impossible) };
        // The kernel may have written what nobody has noted.
        let passes_writers = {
            let opens = file.opens.lock();
            opens.now.registered.is_some() && opens.writers > 0
        };
        let changed = if passes_writers { 0 } else { changed };
        let known = self.safety.known(file.ino);
        // Whether the copies that there are lack nothing but what has come at their end.
        let behind = known.as_ref().is_some_and(|(known, _)| {
            changed >= known.size
                && now.size >= known.size
                && level.is_met_by(known)
                && known.holders.iter().all(|node| self.can_hold(*node))
        });
        let grows = behind && known.as_ref().is_some_and(|(_, grows)| *grows);
        let known = known.map(|(known, _)| known);
        let there = known.as_ref().map_or(0, |known| known.size);
        if behind && now.size == there {
            self.drop_ahead(file, ahead);
            return Ok(Outcome::Made);
        }
        // Sent under another version, it is worth more than those copies if it is more: who closes a
        // duplicate of his descriptor before he writes has copies of an empty file made.
        let ahead = match ahead {
            Some(begun) if grows && begun.sent() <= there => {
                self.drop_ahead(file, Some(begun));
                None
            }
            other => other,
        };
        if let Some(begun) = ahead
            && self.end_ahead(file, level, begun, known.as_ref(), &now)?
        {
            return Ok(Outcome::Made);
        }
        if let Some(known) = known.as_ref().filter(|_| grows)
            && self.grow_copies(file, known, &now)?
        {
            return Ok(Outcome::Made);
        }
        self.new_copies(file, level, known, &now)
    }

    /// How a file is whose bytes are on the tier, or in the backing store's version below it.
    fn snapshot(&self, file: &FileRef) -> Result<Option<Snapshot>> {
        let location = file.location.read();
        if location.is_spilled() {
            return Ok(None);
        }
        let Some(place) = location.place() else {
            // A file that was made and has no bytes, or that lost them all.
            let record = self.meta.get(file.ino)?;
            let empty = location.is_loaded() && matches!(location.base(), Underlay::Zeros);
            let snapshot = Snapshot { size: 0, mtime: record.attr.mtime };
            return Ok((empty && record.attr.size == 0).then_some(snapshot));
        };
        let stat = place.bytes().stat()?;
        Ok(Some(Snapshot { size: stat.size, mtime: stat.mtime }))
    }

    /// Adds what has come at the end to the copies that there are; false if that can't be done.
    fn grow_copies(&self, file: &FileRef, known: &Copies, now: &Snapshot) -> Result<bool> {
        let Some(after) = level::grown(known, self.me, now) else { return Ok(false) };
        // What is sent and not acknowledged may arrive at any later time: never again then.
        self.safety.grow_no_more(file.ino);
        let cargo = Cargo {
            file,
            version: known.version,
            level: Level::as_made(known),
            layout: level::layout(&after)?,
            range: known.size..now.size,
            last: true,
        };
        let to: Vec<(usize, u16)> = known.holders.iter().copied().enumerate().collect();
        match self.send_to(&cargo, &to) {
            Ok(sent) if sent.iter().all(|sent| *sent) => {}
            Err(Failed::Here(error)) => return Err(error),
            Ok(_) | Err(Failed::Moved) => return Ok(false),
        }
        fail::fail_point!("node.copies.sent");
        match self.meta.put_copies(file.ino, Some(known), &after)? {
            CopiesMade::Done(_) => {
                let level = Level::as_made(&after);
                self.safety.note(self.me.node, file, &after, true, Some(level));
                Ok(true)
            }
            CopiesMade::Changed(_) => Ok(false),
            CopiesMade::NotOwner => self.was_given_up(file).map(|()| true),
        }
    }

    /// Makes copies of a new version.
    fn new_copies(
        &self,
        file: &FileRef,
        level: Level,
        known: Option<Copies>,
        now: &Snapshot,
    ) -> Result<Outcome> {
        let mut candidates = self.candidates(file.ino, level.nodes())?.into_iter();
        if candidates.len() < level.nodes() {
            return Ok(Outcome::Impossible);
        }
        let cargo = Cargo {
            file,
            version: new_version()?,
            level,
            layout: level.layout(now.size)?,
            range: 0..now.size,
            last: true,
        };
        let mut holders = vec![0; level.nodes()];
        let done = loop {
            let open = (0..holders.len()).filter(|place| holders[*place] == 0);
            let to: Vec<(usize, u16)> = open.zip(&mut candidates).collect();
            match self.send_to(&cargo, &to) {
                Ok(sent) => {
                    for ((place, node), _) in to.iter().zip(&sent).filter(|(_, sent)| **sent) {
                        holders[*place] = *node;
                    }
                }
                Err(Failed::Here(error)) => break Err(error),
                Err(Failed::Moved) => break Ok(Outcome::Impossible),
            }
            let missing = holders.iter().filter(|node| **node == 0).count();
            if missing == 0 {
                let made = level.made(cargo.version, self.me, now, holders.clone());
                let told = self.tell_of_copies(file, known, made);
                break told.map(|()| Outcome::Made);
            }
            if candidates.len() < missing {
                break Ok(Outcome::Impossible);
            }
        };
        // Where the answer of the metadata is lost they stay, until the nodes that have them ask.
        if matches!(done, Ok(Outcome::Impossible) | Err(NodeError::Posix(_))) {
            self.drop_copies(file.ino, &level.made(cargo.version, self.me, now, holders));
        }
        done
    }

    /// Lets all know of complete copies of a new version.
    pub(super) fn tell_of_copies(
        &self,
        file: &FileRef,
        mut known: Option<Copies>,
        after: Copies,
    ) -> Result<()> {
        fail::fail_point!("node.copies.sent");
        for _ in 0..ATTEMPTS {
            let put = self.meta.put_copies(file.ino, known.as_ref(), &after);
            if matches!(put, Err(MetaError::Stale(_))) {
                // Removed meanwhile: nobody else will ask for them to go.
                self.drop_copies(file.ino, &after);
            }
            match put? {
                CopiesMade::Done(_) => {
                    let level = Level::as_made(&after);
                    self.safety.note(self.me.node, file, &after, true, Some(level));
                    if let Some(old) = known {
                        self.drop_copies(file.ino, &old);
                    }
                    return Ok(());
                }
                CopiesMade::Changed(now) => known = now,
                CopiesMade::NotOwner => {
                    self.drop_copies(file.ino, &after);
                    return self.was_given_up(file);
                }
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Of a file that this node owns no longer: if it gave it up, the backing store had all of it, which
    /// is as safe as copies.
    ///
    /// # Errors
    /// `ESTALE` if it was taken over.
    fn was_given_up(&self, file: &FileRef) -> Result<()> {
        match self.is_fenced() || self.meta.was_taken(file.ino)? {
            true => Err(Errno::STALE.into()),
            false => Ok(()),
        }
    }

    /// Whether a node may be given copies.
    pub(super) fn can_hold(&self, node: u16) -> bool {
        let listens = self.peers.get().is_some_and(|peers| peers.client(node).is_some());
        node != self.me.node
            && listens
            && !self.is_silent(node)
            && !self.nodes.is_told_to_leave(node)
    }

    /// The nodes that may be given copies of a file, the best first; if there seem to be fewer than
    /// are wanted, also those that have joined only now.
    pub(super) fn candidates(&self, ino: Ino, wanted: usize) -> Result<Vec<u16>> {
        let Some(peers) = self.peers.get() else { return Ok(Vec::new()) };
        let known = self.candidates_among(peers, ino);
        if known.len() >= wanted {
            return Ok(known);
        }
        peers.learn(&self.meta.members()?);
        Ok(self.candidates_among(peers, ino))
    }

    fn candidates_among(&self, peers: &Peers, ino: Ino) -> Vec<u16> {
        let listening = peers.listening();
        let order = super::keep::topology(self, &listening).place(ino.0, listening.len(), &[]);
        let node = |id: &NodeId| u16::try_from(id.0).ok();
        order.iter().filter_map(node).filter(|node| self.can_hold(*node)).collect()
    }
}
