//! What can't be migrated, and why. A check before anything is stopped; what only CRIU can know it
//! refuses itself, and the task goes on.

use std::path::Path;

use super::tree::{Kind, Tree};

/// Reasons that are told at most.
const MAX: usize = 5;

/// Where a task is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// The mount of its files, as the task sees it.
    pub mount: Option<&'a Path>,
    /// Whether the target sees all other files of this machine, too.
    pub same_machine: bool,
}

/// Why this tree can't go there; nothing if it can.
pub fn reasons(tree: &Tree, route: &Route<'_>) -> Vec<String> {
    let mut reasons = Vec::new();
    for one in &tree.opened {
        let who = format!("{} (process {})", one.name, one.pid);
        let path = one.path.display();
        match one.kind {
            Kind::Terminal => reasons.push(format!("{who} uses the terminal {path}")),
            Kind::Accelerator => reasons
                .push(format!("{who} uses the device {path}, whose state can't be written down")),
            Kind::File { writable: true }
                if !route.same_machine
                    && !route.mount.is_some_and(|mount| one.path.starts_with(mount)) =>
            {
                reasons.push(format!(
                    "{who} writes to {path}, which is not on the mount and so not at the target"
                ));
            }
            _ => {}
        }
    }
    for connection in &tree.outside {
        reasons.push(format!(
            "it is connected over the network with {}: a connection can't move, and neither can one \
             process of an MPI job without the others",
            address(&connection.remote)
        ));
    }
    reasons.dedup();
    let more = reasons.len().saturating_sub(MAX);
    reasons.truncate(MAX);
    if more > 0 {
        reasons.push(format!("and {more} more reasons"));
    }
    reasons
}

/// An address of `/proc/net/tcp` as people write it: `host:port`.
fn address(text: &str) -> String {
    let Some((host, port)) = text.split_once(':') else { return text.to_owned() };
    let port = u16::from_str_radix(port, 16).unwrap_or(0);
    // The kernel prints words of four bytes in the order of this machine.
    let words = host.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).unwrap_or_default();
        u32::from_str_radix(word, 16).unwrap_or(0).to_ne_bytes()
    });
    let bytes: Vec<u8> = words.flatten().collect();
    if let Ok(four) = <[u8; 4]>::try_from(&bytes[..]) {
        return format!("{}:{port}", std::net::Ipv4Addr::from(four));
    }
    match <[u8; 16]>::try_from(&bytes[..]) {
        Ok(sixteen) => format!("[{}]:{port}", std::net::Ipv6Addr::from(sixteen)),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Connection, Opened};
    use super::*;

    fn opened(path: &str, kind: Kind) -> Opened {
        Opened { pid: 7, name: "p".into(), by: "fd/3".into(), path: path.into(), kind }
    }

    #[test]
    fn tree_when_plain_then_it_may_go_and_else_each_reason_is_told() {
        let here = Route { mount: Some(Path::new("/m")), same_machine: true };
        let there = Route { same_machine: false, ..here };
        let plain = Tree {
            opened: vec![
                opened("/m/out", Kind::File { writable: true }),
                opened("/lib/x", Kind::File { writable: false }),
                opened("pipe:[1]", Kind::Other),
                opened("socket:[2]", Kind::Socket(2)),
            ],
            ..Tree::default()
        };
        assert_eq!(reasons(&plain, &there), Vec::<String>::new());
        let local = Tree {
            opened: vec![opened("/tmp/out", Kind::File { writable: true })],
            ..Tree::default()
        };
        assert_eq!(reasons(&local, &here), Vec::<String>::new());
        assert!(reasons(&local, &there)[0].contains("/tmp/out, which is not on the mount"));
        for (tree, part) in [
            (vec![opened("/dev/pts/1", Kind::Terminal)], "terminal /dev/pts/1"),
            (vec![opened("/dev/nvidia0", Kind::Accelerator)], "device /dev/nvidia0"),
        ] {
            let tree = Tree { opened: tree, ..Tree::default() };
            assert!(reasons(&tree, &here)[0].contains(part));
        }
        let remote = format!("{:08X}:0016", u32::from_ne_bytes([10, 0, 0, 3]));
        let outside = vec![Connection { local: "x".into(), remote }];
        let told = reasons(&Tree { outside, ..Tree::default() }, &here);
        assert!(told[0].contains("10.0.0.3:22"), "{told:?}");
    }

    #[test]
    fn reasons_when_many_then_few_are_told_and_how_many_there_are() {
        let many = (0..20).map(|at| opened(&format!("/dev/pts/{at}"), Kind::Terminal)).collect();
        let tree = Tree { opened: many, ..Tree::default() };
        let told = reasons(&tree, &Route { mount: None, same_machine: true });
        assert_eq!(told.len(), MAX + 1);
        assert_eq!(told[MAX], "and 15 more reasons");
    }
}
