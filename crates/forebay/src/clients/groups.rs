//! The groups, and what they may have.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use forebay_client::make;
use forebay_client::protocol::{Join, MEMBERS_MAX, Refusal};
use parking_lot::Mutex;

use super::proof::Opened;

/// What all clients together may take. One user gets at most half of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections.
    pub connections: usize,
    /// Bytes of the groups' memory.
    pub bytes: u64,
}

impl Bounds {
    /// As many connections as a large node has processors, and this memory.
    pub fn of_memory(bytes: u64) -> Self {
        Self { connections: 2 * MEMBERS_MAX as usize, bytes }
    }
}

/// Why not, for the program and for people.
pub type Refused = (Refusal, String);

/// All groups of a mount.
#[derive(Debug)]
pub struct Groups {
    bounds: Bounds,
    groups: Mutex<HashMap<[u8; 16], Group>>,
}

/// Processes that have a file open together.
#[derive(Debug)]
struct Group {
    user: u32,
    opened: Opened,
    join: Join,
    present: BTreeSet<u32>,
    /// The memory, which is never mapped here.
    memory: Arc<OwnedFd>,
}

/// A process is in a group until this is dropped; the last one ends it.
#[derive(Debug)]
pub struct Membership {
    groups: Arc<Groups>,
    token: [u8; 16],
    member: u32,
    memory: Arc<OwnedFd>,
    bytes: u64,
}

impl Membership {
    /// The group's memory, and how large it is.
    pub fn memory(&self) -> (BorrowedFd<'_>, u64) {
        (self.memory.as_fd(), self.bytes)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut groups = self.groups.groups.lock();
        let Some(group) = groups.get_mut(&self.token) else { return };
        group.present.remove(&self.member);
        if group.present.is_empty() {
            groups.remove(&self.token);
        }
    }
}

impl Groups {
    /// None yet.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, groups: Mutex::default() })
    }

    /// Lets a process of a user in, which has opened the file so.
    pub fn join(
        self: &Arc<Self>,
        user: u32,
        opened: Opened,
        join: &Join,
    ) -> Result<Membership, Refused> {
        let wrong = |text: &str| Err((Refusal::Group, text.to_owned()));
        if join.members == 0 || join.members > MEMBERS_MAX || join.member >= join.members {
            return wrong("there is no such member");
        }
        if join.writes && !opened.writes {
            return Err((Refusal::File, "it is not open for writing".into()));
        }
        let mut groups = self.groups.lock();
        if !groups.contains_key(&join.token) {
            let memory = self.found(&groups, user, join)?;
            let group = Group {
                user,
                opened,
                join: *join,
                present: BTreeSet::new(),
                memory: Arc::new(memory),
            };
            groups.insert(join.token, group);
        }
        let Some(group) = groups.get_mut(&join.token) else { return wrong("there is no group") };
        let alike = Join { member: group.join.member, descriptor: group.join.descriptor, ..*join };
        let same = group.opened.is_of_file(&opened);
        if group.user != user || !same || group.join != alike {
            return wrong("the group is of another user, of another file, or of another kind");
        }
        if !group.present.insert(join.member) {
            return wrong("this member is there already");
        }
        let (memory, bytes) = (Arc::clone(&group.memory), group.join.bytes);
        let (groups, token, member) = (Arc::clone(self), join.token, join.member);
        Ok(Membership { groups, token, member, memory, bytes })
    }

    /// Memory for a new group.
    fn found(
        &self,
        groups: &HashMap<[u8; 16], Group>,
        user: u32,
        join: &Join,
    ) -> Result<OwnedFd, Refused> {
        let taken = |counts: &dyn Fn(&Group) -> bool| {
            groups.values().filter(|it| counts(it)).map(|it| it.join.bytes).sum::<u64>()
        };
        let (all, own) = (taken(&|_| true), taken(&|group| group.user == user));
        let half = self.bounds.bytes / 2;
        let fits =
            |taken: u64, most: u64| taken.checked_add(join.bytes).is_some_and(|it| it <= most);
        if join.bytes == 0 || !fits(all, self.bounds.bytes) || !fits(own, half) {
            return Err((
                Refusal::Memory,
                format!(
                    "{} more bytes for clients are not to be had: {all} of {} are taken, and {own} \
                     of the {half} that one user may have (--client-memory)",
                    join.bytes, self.bounds.bytes
                ),
            ));
        }
        make(join.bytes).map_err(|error| (Refusal::Memory, format!("no memory: {error}")))
    }

    /// What connections are allowed.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// How many groups there are, and the bytes of their memory.
    #[cfg(test)]
    fn taken(&self) -> (usize, u64) {
        let groups = self.groups.lock();
        (groups.len(), groups.values().map(|group| group.join.bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Opened = Opened { inode: 7, writes: true };
    const JOIN: Join =
        Join { token: [1; 16], bytes: 4096, members: 2, member: 0, descriptor: 3, writes: true };

    fn groups(bytes: u64) -> Arc<Groups> {
        Groups::new(Bounds::of_memory(bytes))
    }

    fn refusal(result: Result<Membership, Refused>) -> Refusal {
        result.unwrap_err().0
    }

    #[test]
    fn members_when_all_have_left_then_the_memory_is_free_again() {
        let groups = groups(16384);
        let first = groups.join(5, FILE, &JOIN).unwrap();
        let second = groups.join(5, FILE, &Join { member: 1, descriptor: 9, ..JOIN }).unwrap();
        assert_eq!(groups.taken(), (1, 4096));
        drop(first);
        assert_eq!(groups.taken(), (1, 4096));
        // A member that has left may come again.
        let again = groups.join(5, FILE, &JOIN).unwrap();
        drop((second, again));
        assert_eq!(groups.taken(), (0, 0));
    }

    #[test]
    fn join_when_anything_differs_from_the_group_then_refused() {
        let groups = groups(1 << 20);
        let _first = groups.join(5, FILE, &JOIN).unwrap();
        let other = Join { member: 1, ..JOIN };
        let file = |inode, writes| Opened { inode, writes };
        for (user, opened, join) in [
            (6, FILE, other),
            (5, file(8, true), other),
            (5, FILE, Join { bytes: 8192, ..other }),
            (5, FILE, Join { members: 3, ..other }),
            (5, FILE, Join { writes: false, ..other }),
            (5, FILE, JOIN),
            (5, FILE, Join { member: 2, ..JOIN }),
        ] {
            assert_eq!(refusal(groups.join(user, opened, &join)), Refusal::Group, "{join:?}");
        }
        assert_eq!(refusal(groups.join(5, file(7, false), &other)), Refusal::File);
        assert_eq!(groups.taken(), (1, 4096));
        groups.join(5, FILE, &other).unwrap();
    }

    #[test]
    fn reader_when_it_wants_to_write_then_refused_and_alone_it_may_read() {
        let groups = groups(1 << 20);
        let reader = Opened { inode: 7, writes: false };
        assert_eq!(refusal(groups.join(5, reader, &JOIN)), Refusal::File);
        let reads = Join { writes: false, ..JOIN };
        let _one = groups.join(5, reader, &reads).unwrap();
        // Who may write as well reads along.
        groups.join(5, FILE, &Join { member: 1, ..reads }).unwrap();
    }

    #[test]
    fn join_when_there_is_no_memory_then_refused_and_one_user_gets_half() {
        let groups = groups(16384);
        let token = |number| Join { token: [number; 16], ..JOIN };
        assert_eq!(refusal(groups.join(5, FILE, &Join { bytes: 0, ..JOIN })), Refusal::Memory);
        let vast = Join { bytes: u64::MAX, ..JOIN };
        assert_eq!(refusal(groups.join(5, FILE, &vast)), Refusal::Memory);
        let _mine = [1, 2].map(|number| groups.join(5, FILE, &token(number)).unwrap());
        assert_eq!(refusal(groups.join(5, FILE, &token(3))), Refusal::Memory);
        assert_eq!(
            refusal(groups.join(6, FILE, &Join { bytes: 8193, ..token(3) })),
            Refusal::Memory
        );
        groups.join(6, FILE, &token(3)).unwrap();
    }
}
