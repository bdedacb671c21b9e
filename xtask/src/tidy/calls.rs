//! The direction of calls between the rooms of `forebay-node`: a room calls methods of the node that
//! lie in its own room or in one below it.
//!
//! The same holds for what a room names: types, functions, constants. The files beside the rooms stand
//! beneath all of them or above all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::repository::Repository;

const SOURCES: &str = "crates/node/src/";

/// What says of a file, in its record or in the header of its object, that it is clean, dirty, whole or spilled.
/// Residency alone does. What lies in memory the compiler guards.
const SAY_STATE: &[&str] =
    &[".mark_dirty(", ".mark_clean(", ".spilled = ", ".set_header(", ".create_map("];

/// The rooms, from the lowest up.
const ROOMS: &[&str] = &[
    "residency",
    "writeback",
    "cluster",
    "stream",
    "namespace",
    "patterns",
    "requests",
    "serving",
    "lifecycle",
];

/// Rooms that have an owner of their own, and do not know the node.
const OWNED: &[&str] = &["residency", "writeback", "cluster"];

/// Files beside the rooms on which all of them stand, and which name none of them.
const BENEATH: &[&str] = &[
    "after_refusal",
    "busiest",
    "clock",
    "config",
    "context",
    "defects",
    "error",
    "failpoints",
    "hand_over_state",
    "handles",
    "kernel",
    "lockstep",
    "metrics",
    "pool",
    "stat",
    "state_files",
    "trace",
    "waits",
];

/// Files beside the rooms that know all of them, and that none but the highest names.
const ABOVE: &[&str] = &["lib", "node", "report", "seams"];

/// What a file may name of rooms above it: a file in use, an open file and what one daemon hands to the
/// next have a part for each room, into which nobody else looks.
const PARTS: &[(&str, &[&str])] = &[
    (
        "residency/files.rs",
        &[
            "writeback::file::FileInWriteback",
            "cluster::FileInCluster",
            "namespace::set_ids::SetIds",
        ],
    ),
    (
        "handles.rs",
        &[
            "residency::files::FileRef",
            "residency::shares::",
            "cluster::Seen",
            "stream::OpenStream",
            "patterns::Tally",
        ],
    ),
    ("hand_over_state.rs", &["residency::inode_alias::Opens", "stream::CarriedStream"]),
];

fn level(room: &str) -> Option<usize> {
    ROOMS.iter().position(|name| *name == room)
}

/// The files of the rooms: room, path, and the text without comments and tests.
fn files(repository: &Repository) -> Vec<(&'static str, &str, String)> {
    let sources = repository.ending(&[".rs"]).filter(|(path, _)| !path.contains("test"));
    sources
        .filter_map(|(path, text)| {
            let (room, _) = path.strip_prefix(SOURCES)?.split_once('/')?;
            let room = ROOMS.iter().find(|name| **name == room)?;
            Some((*room, path, code_of(text)))
        })
        .collect()
}

/// A text without its comments and tests.
fn code_of(text: &str) -> String {
    // A module of tests ends the file; one in a file of its own is a line.
    let mut code = text;
    for (at, mark) in text.match_indices("#[cfg(test)]\nmod ") {
        let named = &text[at + mark.len()..];
        if named.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').starts_with(" {") {
            code = &text[..at];
            break;
        }
    }
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
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

/// The parts of a file that are methods of the node.
fn of_node(code: &str) -> String {
    let mut inside = false;
    let lines = code.lines().filter(|line| {
        match *line {
            "impl Node {" => inside = true,
            "}" => inside = false,
            _ => {}
        }
        inside
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What is called on a node: the names after `self.` in its methods, and after `node.` and `Node::`
/// anywhere, that a bracket follows.
fn called(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let own = of_node(code);
    for (before, code) in [("self.", &*own), ("node.", code), ("Node::", code)] {
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

/// What of higher rooms a file of a room names, after `crate::`.
fn named_above<'a>(room: &str, path: &str, code: &'a str) -> Vec<&'a str> {
    let paths = code.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
        &rest[..end.unwrap_or(rest.len())]
    });
    let file = path.strip_prefix(SOURCES).unwrap_or(path);
    let parts = PARTS.iter().find(|(of, _)| *of == file).map_or(&[][..], |(_, parts)| parts);
    let is_above = |named: &&str| {
        let of = named.split("::").next().unwrap_or(named);
        // The node itself is known to the rooms that share it: `direction` looks at the others. The
        // highest of them puts all together.
        let beside = ABOVE.contains(&of) && of != "node" && Some(&room) != ROOMS.last();
        (level(of) > level(room) || beside) && !parts.contains(named)
    };
    paths.filter(is_above).collect()
}

/// No call goes upwards, and nothing above is named.
pub fn direction(repository: &Repository) -> Vec<Finding> {
    let files = files(repository);
    let mut homes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (room, _, code) in &files {
        for method in methods(code) {
            homes.entry(method).or_default().insert(room);
        }
    }
    let mut findings = Vec::new();
    for (room, path, code) in &files {
        for named in named_above(room, path, code) {
            let message = format!("{named} lies above {room}");
            findings.push(Finding::of(*path, message));
        }
        if OWNED.contains(room) {
            if code.contains("crate::node") {
                let message =
                    format!("{room} has an owner of its own, which does not know the node");
                findings.push(Finding::of(*path, message));
            }
            continue;
        }
        findings.extend(calls_above(&homes, room, path, code));
    }
    findings.extend(beside(repository));
    findings
}

/// Nobody but residency says whether a file is clean, dirty or resident.
pub fn states(repository: &Repository) -> Vec<Finding> {
    let sources = repository.ending(&[".rs"]).filter(|(path, _)| !path.contains("test"));
    let others = sources.filter(|(path, _)| {
        let file = path.strip_prefix(SOURCES);
        file.is_some_and(|file| !file.starts_with("residency/"))
    });
    let said = others.flat_map(|(path, text)| {
        let code = code_of(text);
        let said: Vec<_> = SAY_STATE.iter().filter(|say| code.contains(**say)).collect();
        said.into_iter().map(move |say| {
            let message =
                format!("`{say}` is for residency to say: name a transition there (state.rs)");
            Finding::of(path, message)
        })
    });
    said.collect()
}

/// The files beside the rooms stand where they are said to.
fn beside(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.ending(&[".rs"]).filter(|(path, _)| !path.contains("test")) {
        let Some(name) = path.strip_prefix(SOURCES).and_then(|rest| rest.strip_suffix(".rs"))
        else {
            continue;
        };
        match name {
            _ if name.contains('/') || ABOVE.contains(&name) => {}
            _ if !BENEATH.contains(&name) => {
                let message = "say in xtask/src/tidy/calls.rs where this file stands";
                findings.push(Finding::of(path, message));
            }
            _ => {
                let code = code_of(text);
                let above = named_above("", path, &code).into_iter();
                let node = code.contains("crate::node").then_some("node");
                findings.extend(above.chain(node).map(|named| {
                    Finding::of(path, format!("{named} lies above all that is beneath the rooms"))
                }));
            }
        }
    }
    findings
}

/// Calls of methods of the node that lie in rooms above.
fn calls_above(
    homes: &BTreeMap<String, BTreeSet<&str>>,
    room: &str,
    path: &str,
    code: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in called(code) {
        // One name in two rooms, or in this file, too: that of another type, most likely.
        if code.contains(&format!("fn {name}(")) {
            continue;
        }
        let Some(home) = homes.get(&name).filter(|homes| homes.len() == 1) else { continue };
        if let Some(home) = home.first().filter(|home| level(home) > level(room)) {
            let message = format!("{name} is called, which lies in a room above: {home}");
            findings.push(Finding::of(path, message));
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
            direction(&Repository::of(&files))
        };
        let found = of(low, high);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("high is called"));
        assert!(of("impl Node {\n    fn low(&self) {}\n}\n", high).is_empty());
        assert!(of(&low.replace("self.high", "// self.high"), high).is_empty());
    }
    #[test]
    fn name_when_it_lies_above_then_found_but_for_the_parts_of_a_file() {
        let of = |path: &str, code: &str| direction(&Repository::of(&[(path, code)]));
        let uses = "use crate::requests::open::Use;\nuse crate::clock;\n";
        let found = of("crates/node/src/cluster/a.rs", uses);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("requests::open::Use"));
        assert!(of("crates/node/src/serving/a.rs", uses).is_empty());
        let part = "use crate::cluster::FileInCluster;\n";
        assert!(of("crates/node/src/residency/files.rs", part).is_empty());
        assert_eq!(of("crates/node/src/residency/a.rs", part).len(), 1);
    }

    #[test]
    fn state_when_another_room_says_it_then_found() {
        let of = |path: &str, code: &str| states(&Repository::of(&[(path, code)])).len();
        let says = "record.mark_clean();\nrecord.spilled = false;\n";
        assert_eq!(of("crates/node/src/writeback/a.rs", says), 2);
        assert_eq!(of("crates/node/src/seams.rs", says), 2);
        assert_eq!(of("crates/node/src/residency/a.rs", says), 0);
        assert_eq!(of("crates/node/src/writeback/tests/a.rs", says), 0);
        assert_eq!(of("crates/node/src/writeback/a.rs", "if record.spilled == spilled {}\n"), 0);
    }

    #[test]
    fn file_beside_the_rooms_when_it_stands_nowhere_or_names_a_room_then_found() {
        let of = |path: &str, code: &str| direction(&Repository::of(&[(path, code)])).len();
        let names = "use crate::stream::OpenStream;\n";
        assert_eq!(of("crates/node/src/clock.rs", names), 1);
        assert_eq!(of("crates/node/src/clock.rs", "use crate::node::Node;\n"), 1);
        assert_eq!(of("crates/node/src/clock.rs", "use crate::error::Result;\n"), 0);
        assert_eq!(of("crates/node/src/handles.rs", names), 0);
        assert_eq!(of("crates/node/src/report.rs", names), 0);
        let tests = "#[cfg(test)]\nmod tests;\n";
        assert_eq!(of("crates/node/src/clock.rs", &[tests, names].concat()), 1);
        let tests = "#[cfg(test)]\nmod tests {\n";
        assert_eq!(of("crates/node/src/clock.rs", &[tests, names].concat()), 0);
        assert_eq!(of("crates/node/src/new.rs", ""), 1);
        assert_eq!(of("crates/node/src/residency/a.rs", "use crate::report::LOOKED_AT;\n"), 1);
    }
}
