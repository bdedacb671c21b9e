//! POSIX access control lists, as pure functions on their wire format.
//!
//! The wire format is that of the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default` (`linux/posix_acl_xattr.h`): a little-endian version (2), then
//! entries of tag, permissions and id. The rules are those of IEEE 1003.1e draft 17: section 23.1
//! for what a valid list is and how it relates to the mode, section 23.1.2 for inheritance.

/// The extended attribute that holds the access list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute that holds the default list of a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about. The order is that of a valid list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The owner.
    Owner,
    /// Another user, by id.
    User(u32),
    /// The file's group.
    OwningGroup,
    /// Another group, by id.
    Group(u32),
    /// The most that other users, the file's group and other groups get.
    Mask,
    /// Everybody else.
    Other,
}

impl Who {
    fn from_wire(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Who::Owner,
            0x02 if id != NO_ID => Who::User(id),
            0x04 => Who::OwningGroup,
            0x08 if id != NO_ID => Who::Group(id),
            0x10 => Who::Mask,
            0x20 => Who::Other,
            _ => return None,
        })
    }

    fn to_wire(self) -> (u16, u32) {
        match self {
            Who::Owner => (0x01, NO_ID),
            Who::User(id) => (0x02, id),
            Who::OwningGroup => (0x04, NO_ID),
            Who::Group(id) => (0x08, id),
            Who::Mask => (0x10, NO_ID),
            Who::Other => (0x20, NO_ID),
        }
    }
}

/// One entry: who, and what is allowed (read 4, write 2, execute 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub who: Who,
    /// Permission bits, 0 to 7.
    pub perm: u16,
}

/// A valid list: owner, owning group and others exactly once, a mask if users or groups are named,
/// nobody twice, in the order of [`Who`] (named users and groups keep the order they came in).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Checks the rules.
    pub fn new(entries: Vec<AclEntry>) -> Option<Self> {
        let rank = |entry: &AclEntry| entry.who.to_wire().0;
        let sorted = entries.windows(2).all(|pair| rank(&pair[0]) <= rank(&pair[1]));
        let count = |who: Who| entries.iter().filter(|entry| entry.who == who).count();
        let named = entries.iter().any(|e| matches!(e.who, Who::User(_) | Who::Group(_)));
        let masks = count(Who::Mask);
        let valid = sorted
            && entries.iter().all(|entry| entry.perm <= 7)
            && [Who::Owner, Who::OwningGroup, Who::Other].into_iter().all(|who| count(who) == 1)
            && masks <= 1
            && (masks == 1 || !named);
        valid.then_some(Acl(entries))
    }

    /// Reads the wire format. `Ok(None)` for a list without entries, which means "no list";
    /// `Err` for anything that is not a valid list.
    pub fn parse(wire: &[u8]) -> Result<Option<Self>, Malformed> {
        let (version, entries) = wire.split_at_checked(HEADER_BYTES).ok_or(Malformed)?;
        if version != VERSION.to_le_bytes() || entries.len() % ENTRY_BYTES != 0 {
            return Err(Malformed);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.chunks_exact(ENTRY_BYTES).map(|raw| {
            let id = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
            let who = Who::from_wire(u16::from_le_bytes([raw[0], raw[1]]), id)?;
            Some(AclEntry { who, perm: u16::from_le_bytes([raw[2], raw[3]]) })
        });
        let entries: Option<Vec<AclEntry>> = entries.collect();
        entries.and_then(Self::new).map(Some).ok_or(Malformed)
    }

    /// The wire format.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(HEADER_BYTES + self.0.len() * ENTRY_BYTES);
        wire.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            let (tag, id) = entry.who.to_wire();
            wire.extend_from_slice(&tag.to_le_bytes());
            wire.extend_from_slice(&entry.perm.to_le_bytes());
            wire.extend_from_slice(&id.to_le_bytes());
        }
        wire
    }

    /// The nine permission bits that show this list in a mode: the group bits show the mask where
    /// there is one.
    pub fn mode(&self) -> u32 {
        let perm = |who: Who| self.perm(who).map_or(0, u32::from);
        let group = self.perm(Who::Mask).map_or_else(|| perm(Who::OwningGroup), u32::from);
        perm(Who::Owner) << 6 | group << 3 | perm(Who::Other)
    }

    /// Whether the mode says all that this list says, so that the list need not be kept.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The list after a chmod to `mode`.
    #[must_use]
    pub fn after_chmod(mut self, mode: u32) -> Self {
        let class = self.group_class();
        for entry in &mut self.0 {
            if entry.who == Who::Owner {
                entry.perm = bits(mode >> 6);
            } else if entry.who == class {
                entry.perm = bits(mode >> 3);
            } else if entry.who == Who::Other {
                entry.perm = bits(mode);
            }
        }
        self
    }

    /// What a new file gets from this default list of its directory: its access list (to be kept
    /// unless minimal) and its mode. `mode` is what the creator asked for, without the umask, which
    /// does not count beside a default list.
    #[must_use]
    pub fn inherited(mut self, mode: u32) -> (Self, u32) {
        let class = self.group_class();
        for entry in &mut self.0 {
            if entry.who == Who::Owner {
                entry.perm &= bits(mode >> 6);
            } else if entry.who == class {
                entry.perm &= bits(mode >> 3);
            } else if entry.who == Who::Other {
                entry.perm &= bits(mode);
            }
        }
        let mode = mode & !0o777 | self.mode();
        (self, mode)
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> Who {
        if self.perm(Who::Mask).is_some() { Who::Mask } else { Who::OwningGroup }
    }

    fn perm(&self, who: Who) -> Option<u16> {
        self.0.iter().find(|entry| entry.who == who).map(|entry| entry.perm)
    }
}

/// The bytes are no valid list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

#[allow(clippy::cast_possible_truncation, reason = "three bits")]
fn bits(mode: u32) -> u16 {
    (mode & 7) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(Who, u16)]) -> Acl {
        let entries = entries.iter().map(|&(who, perm)| AclEntry { who, perm }).collect();
        Acl::new(entries).expect("valid")
    }

    fn named() -> Acl {
        acl(&[
            (Who::Owner, 6),
            (Who::User(1000), 7),
            (Who::OwningGroup, 4),
            (Who::Mask, 5),
            (Who::Other, 0),
        ])
    }

    #[test]
    fn wire_format_is_the_kernels() {
        let wire = acl(&[(Who::Owner, 6), (Who::OwningGroup, 4), (Who::Other, 0)]).to_wire();
        let expected: &[u8] = &[
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 0x20, 0, 0,
            0, 255, 255, 255, 255,
        ];
        assert_eq!(wire, expected);
    }

    #[test]
    fn parse_when_rules_are_broken_then_refused() {
        let entry = |who, perm| AclEntry { who, perm };
        let base = [entry(Who::Owner, 7), entry(Who::OwningGroup, 5), entry(Who::Other, 5)];
        let mut unmasked = base.to_vec();
        unmasked.insert(1, entry(Who::User(5), 7));
        assert_eq!(Acl::new(unmasked), None, "named users need a mask");
        assert_eq!(Acl::new(base[..2].to_vec()), None, "no entry for others");
        assert_eq!(Acl::new(vec![base[1], base[0], base[2]]), None, "order");
        assert_eq!(Acl::new(vec![base[0], base[0], base[1], base[2]]), None, "twice");
        assert_eq!(Acl::new(vec![entry(Who::Owner, 8), base[1], base[2]]), None, "bits");
        assert_eq!(Acl::parse(&[]), Err(Malformed));
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Malformed), "version");
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None), "no entries");
        let mut cut = named().to_wire();
        cut.pop();
        assert_eq!(Acl::parse(&cut), Err(Malformed));
    }

    #[test]
    fn mode_when_masked_then_group_bits_show_the_mask() {
        assert_eq!(named().mode(), 0o650);
        assert!(!named().is_minimal());
    }

    #[test]
    fn chmod_when_masked_then_changes_the_mask_not_the_group() {
        let changed = named().after_chmod(0o777);
        assert_eq!(changed.perm(Who::Mask), Some(7));
        assert_eq!(changed.perm(Who::OwningGroup), Some(4));
        assert_eq!(changed.perm(Who::User(1000)), Some(7));
        assert_eq!(changed.mode(), 0o777);
    }

    #[test]
    fn inherited_when_creator_asks_for_less_then_less_is_given() {
        let (list, mode) = named().inherited(0o4600);
        assert_eq!(mode, 0o4600, "the mask is cut to nothing, set-id bits stay");
        assert_eq!(list.perm(Who::Mask), Some(0));
        assert_eq!(list.perm(Who::User(1000)), Some(7));
        let minimal = acl(&[(Who::Owner, 7), (Who::OwningGroup, 5), (Who::Other, 1)]);
        let (list, mode) = minimal.inherited(0o666);
        assert_eq!((list.is_minimal(), mode), (true, 0o640));
    }

    fn any_acl() -> impl Strategy<Value = Acl> {
        let named = || prop::collection::vec((0..5000_u32, 0..8_u16), 0..4);
        (0..8_u16, 0..8_u16, 0..8_u16, 0..8_u16, any::<bool>(), named(), named()).prop_map(
            |(owner, group, other, mask, masked, users, groups)| {
                let mut entries = vec![(Who::Owner, owner)];
                entries.extend(users.iter().map(|&(id, perm)| (Who::User(id), perm)));
                entries.push((Who::OwningGroup, group));
                entries.extend(groups.iter().map(|&(id, perm)| (Who::Group(id), perm)));
                if masked || !users.is_empty() || !groups.is_empty() {
                    entries.push((Who::Mask, mask));
                }
                entries.push((Who::Other, other));
                acl(&entries)
            },
        )
    }

    proptest! {
        #[test]
        fn wire_round_trip(list in any_acl()) {
            prop_assert_eq!(Acl::parse(&list.to_wire()), Ok(Some(list)));
        }

        #[test]
        fn parse_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Acl::parse(&bytes);
        }

        #[test]
        fn chmod_shows_in_the_mode(list in any_acl(), mode in 0..0o1000_u32) {
            let entries = list.0.len();
            let changed = list.after_chmod(mode);
            prop_assert_eq!(changed.mode(), mode);
            prop_assert_eq!(changed.0.len(), entries);
        }

        #[test]
        fn inherited_never_exceeds_what_was_asked(list in any_acl(), mode in 0..0o10000_u32) {
            let default_mode = list.mode();
            let (list, got) = list.inherited(mode);
            prop_assert_eq!(got & !0o777, mode & !0o777);
            prop_assert_eq!(got & 0o777, mode & default_mode);
            prop_assert_eq!(list.mode(), got & 0o777);
        }
    }
}
