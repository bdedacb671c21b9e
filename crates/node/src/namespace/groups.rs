//! Whether a calling process belongs to a group.

use crate::context::Context;

/// What is known about a process and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// It belongs to it, or is privileged.
    Member,
    /// It doesn't.
    Stranger,
    /// The process can't be seen from here: it has ended, or lives in another pid namespace.
    Unknown,
}

/// Whether the caller belongs to group `gid`. Reads `/proc` only for supplementary groups, and
/// keeps nothing: this is asked when a set-group-id bit is given, which is rare, and an old answer
/// could be a wrong one.
pub fn membership(context: &Context, gid: u32) -> Membership {
    if context.uid == 0 || context.gid == gid {
        return Membership::Member;
    }
    if context.pid == 0 {
        return Membership::Unknown;
    }
    match std::fs::read_to_string(format!("/proc/{}/status", context.pid)) {
        Ok(status) => in_status(&status, gid),
        Err(_) => Membership::Unknown,
    }
}

fn in_status(status: &str, gid: u32) -> Membership {
    let Some(groups) = status.lines().find_map(|line| line.strip_prefix("Groups:")) else {
        return Membership::Unknown;
    };
    if groups.split_ascii_whitespace().any(|group| group.parse() == Ok(gid)) {
        Membership::Member
    } else {
        Membership::Stranger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_when_supplementary_then_found_in_the_status() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        assert_eq!(in_status(status, 24), Membership::Member);
        assert_eq!(in_status(status, 7), Membership::Stranger);
        assert_eq!(in_status("Name:\tcat\n", 7), Membership::Unknown);
    }

    #[test]
    fn membership_when_the_process_is_unseen_then_unknown() {
        let context = Context { uid: 5, gid: 6, pid: 0, waiter: None };
        assert_eq!(membership(&context, 6), Membership::Member);
        assert_eq!(membership(&context, 7), Membership::Unknown);
        let context = Context { pid: std::process::id(), ..context };
        assert_eq!(membership(&context, 4_000_000_000), Membership::Stranger);
        let context = Context { pid: u32::MAX, ..context };
        assert_eq!(membership(&context, 7), Membership::Unknown);
    }
}
