//! The direction of calls between the rooms of `forebay-node`: a room calls methods of the node that
//! lie in its own room or in one below it.
//!
//! The rooms were one heap of files once, and some calls still go upwards. They are counted here, for
//! each pair of rooms; none may be added, and whoever takes one away lowers the number.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::repository::Repository;

const SOURCES: &str = "crates/node/src/";

/// The rooms and their levels, from the lowest up.
const ROOMS: &[(&str, u8)] = &[
    ("residency", 0),
    ("writeback", 1),
    ("cluster", 2),
    ("namespace", 3),
    ("requests", 3),
    ("stream", 3),
    ("lifecycle", 4),
];

/// Rooms that have an owner of their own, and do not know the node.
const OWNED: &[&str] = &["residency", "writeback"];

/// How many calls go upwards from one room to another.
const UPWARDS: &[(&str, &str, usize)] = &[("cluster", "namespace", 2), ("cluster", "requests", 12)];

/// The files of the rooms: room, path, and the text without comments and tests.
fn files(repository: &Repository) -> Vec<(&'static str, &str, String)> {
    let sources = repository.ending(&[".rs"]).filter(|(path, _)| !path.contains("test"));
    sources
        .filter_map(|(path, text)| {
            let (room, _) = path.strip_prefix(SOURCES)?.split_once('/')?;
            let (room, _) = ROOMS.iter().find(|(name, _)| *name == room)?;
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
            let lines = code.lines().map(|line| line.split("//").next().unwrap_or(line));
            Some((*room, path, lines.collect::<Vec<_>>().join("\n")))
        })
        .collect()
}

/// The methods of the node in a file.
fn methods(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in code.lines() {
        match line {
            "impl Node {" => inside = true,
            "}" => inside = false,
            _ if inside && line.starts_with("    ") && !line.starts_with("     ") => {
                if let Some((_, rest)) = line.split_once("fn ")
                    && let Some(end) = rest.find(|c: char| !c.is_alphanumeric() && c != '_')
                {
                    found.push(rest[..end].to_owned());
                }
            }
            _ => {}
        }
    }
    found
}

/// What is called on a node: the names after `self.`, `node.` and `Node::` that a bracket follows.
fn called(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for before in ["self.", "node.", "Node::"] {
        let mut rest = code;
        while let Some(at) = rest.find(before) {
            let joined = rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            rest = &rest[at + before.len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if !joined && rest[end..].starts_with('(') {
                found.push(rest[..end].to_owned());
            }
        }
    }
    found
}

/// No call goes upwards that is not counted.
pub fn direction(repository: &Repository) -> Vec<Finding> {
    let files = files(repository);
    let level = |room: &str| ROOMS.iter().find(|(name, _)| *name == room).map_or(0, |it| it.1);
    let mut homes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (room, _, code) in &files {
        for method in methods(code) {
            homes.entry(method).or_default().insert(room);
        }
    }
    let mut findings = Vec::new();
    let mut upwards: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (room, path, code) in &files {
        if OWNED.contains(room) {
            if code.contains("crate::node") {
                let message =
                    format!("{room} has an owner of its own, which does not know the node");
                findings.push(Finding::of(*path, message));
            }
            continue;
        }
        for name in called(code) {
            // One name in two rooms, or in this file, too: that of another type, most likely.
            if code.contains(&format!("fn {name}(")) {
                continue;
            }
            let Some(home) = homes.get(&name).filter(|homes| homes.len() == 1) else { continue };
            let Some(home) = home.first().filter(|home| level(home) > level(room)) else {
                continue;
            };
            upwards.entry((room, home)).or_default().push(format!("{name} in {path}"));
        }
    }
    let pairs: BTreeSet<_> =
        upwards.keys().copied().chain(UPWARDS.iter().map(|(from, to, _)| (*from, *to))).collect();
    for (from, to) in pairs {
        let now = upwards.get(&(from, to)).map_or(0, Vec::len);
        let known = UPWARDS.iter().find(|it| (it.0, it.1) == (from, to)).map_or(0, |it| it.2);
        if now > known {
            let all = upwards.get(&(from, to)).map(|all| all.join(", ")).unwrap_or_default();
            let message = format!("{now} calls go up to {to}, not {known}: {all}");
            findings.push(Finding::of(format!("{SOURCES}{from}"), message));
        } else if now < known {
            let message =
                format!("only {now} calls go from {from} up to {to}: say so, not {known}");
            findings.push(Finding::of("xtask/src/tidy/calls.rs", message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_when_it_goes_up_then_found_and_down_it_is_fine() {
        let low = "impl Node {\n    fn low(&self) {\n        self.high();\n    }\n}\n";
        let high = "impl Node {\n    pub(crate) fn high(&self) {\n        self.low();\n    }\n}\n";
        let of = |low: &str, high: &str| {
            let files =
                [("crates/node/src/stream/a.rs", low), ("crates/node/src/lifecycle/b.rs", high)];
            let all = direction(&Repository::of(&files));
            all.into_iter().filter(|it| it.message.contains("in crates")).collect::<Vec<_>>()
        };
        let found = of(low, high);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("high in crates/node/src/stream/a.rs"));
        assert!(of("impl Node {\n    fn low(&self) {}\n}\n", high).is_empty());
        assert!(of(&low.replace("self.high", "// self.high"), high).is_empty());
    }
}
