//! Which versions of the protocol two nodes speak with each other.
//!
//! Nodes of a cluster are upgraded one after the other, so each understands the versions before its
//! own for a while. Both sides of a connection say in their hello from which version to which they
//! go, and speak the highest that both know. What a version adds to requests and answers is sent only
//! on connections that speak it.

/// The newest version of requests and answers that this crate speaks.
pub const PROTOCOL: u16 = 2;

/// The oldest version that this crate still understands.
const OLDEST: u16 = 2;

/// The versions of the protocol that a node understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest of them.
    pub oldest: u16,
    /// The newest of them.
    pub newest: u16,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions { oldest: OLDEST, newest: PROTOCOL }
    }
}

impl Versions {
    /// One version and no other.
    pub(crate) fn only(version: u16) -> Versions {
        Versions { oldest: version, newest: version }
    }

    /// The version that two nodes speak; if there is none, which of them is to be upgraded. Both of
    /// them come to the same.
    pub(crate) fn agree(self, node: u64, other: Versions, with: u64) -> Result<u16, String> {
        let highest = self.newest.min(other.newest);
        if highest >= self.oldest.max(other.oldest) {
            return Ok(highest);
        }
        let mine_is_older = self.newest < other.newest;
        let (old, last, new, first) = match mine_is_older {
            true => (node, self.newest, with, other.oldest),
            false => (with, other.newest, node, self.oldest),
        };
        Err(format!(
            "node {old} speaks the protocol up to version {last}, node {new} from version {first} on: \
             upgrade node {old}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_when_two_nodes_meet_then_the_highest_of_both_or_the_older_node_is_named() {
        let from_to = |oldest, newest| Versions { oldest, newest };
        let agreed = |a: Versions, b: Versions| {
            let one = a.agree(1, b, 2);
            assert_eq!(one, b.agree(2, a, 1), "the two come to different ends");
            one
        };
        assert_eq!(agreed(from_to(2, 3), from_to(2, 2)), Ok(2));
        assert_eq!(agreed(from_to(2, 3), from_to(3, 5)), Ok(3));
        assert_eq!(agreed(from_to(2, 5), from_to(1, 7)), Ok(5));
        for (a, b, named) in [
            (from_to(2, 2), from_to(3, 4), "upgrade node 1"),
            (from_to(4, 4), from_to(1, 3), "upgrade node 2"),
        ] {
            let why = agreed(a, b).unwrap_err();
            assert!(why.ends_with(named), "{why}");
        }
    }
}
