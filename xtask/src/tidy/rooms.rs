//! The direction of dependencies between the rooms of the house.

use serde::Deserialize;
use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::repository::Repository;

/// What a room may use.
struct Room {
    name: &'static str,
    may_use: &'static [&'static str],
}

const TYPES: &str = "forebay-types";
const CORE: &str = "forebay-core";
const COOP: &str = "forebay-coop";
const CLIENT: &str = "forebay-client";
const STORE: &str = "forebay-store";
const ERASURE: &str = "forebay-erasure";
const SCHEDULE: &str = "forebay-schedule";
const PROFILE: &str = "forebay-profile";
const META: &str = "forebay-meta";
const PEER: &str = "forebay-peer";
const NODE: &str = "forebay-node";
const FUSE: &str = "forebay-fuse";
const MPIIO: &str = "forebay-mpiio";
const STREAMS: &str = "forebay-streams";
const PYTHON: &str = "forebay-python";
const BINARY: &str = "forebay";
const WIRE: &str = "fusewire";
const SIM: &str = "forebay-sim";
/// For tests, of every room.
const TESTING: &str = "forebay-testing";

/// Tools: they may use what they like, and nothing may use them.
const TOOLS: &[&str] = &["forebay-bench", "forebay-tests", "fusewire-fuzz", "xtask"];

const PRODUCT: &[&str] = &[
    TYPES, CORE, COOP, CLIENT, ERASURE, SCHEDULE, PROFILE, STORE, META, PEER, NODE, FUSE, MPIIO,
    STREAMS, PYTHON, WIRE,
];

/// types <- core <- {store, meta, peer, streams} <- node <- {fuse, mpiio, python} <- forebay. The second four
/// never name each other; fusewire, the erasure code, the cooperative cache, the schedule of jobs and
/// the profile of tasks know nothing of Forebay, and a program's side of the daemon links nothing of it.
const ROOMS: &[Room] = &[
    Room { name: TYPES, may_use: &[] },
    Room { name: CORE, may_use: &[TYPES] },
    Room { name: COOP, may_use: &[] },
    Room { name: CLIENT, may_use: &[] },
    Room { name: WIRE, may_use: &[] },
    Room { name: ERASURE, may_use: &[] },
    Room { name: SCHEDULE, may_use: &[] },
    Room { name: PROFILE, may_use: &[] },
    Room { name: STORE, may_use: &[TYPES, CORE] },
    Room { name: META, may_use: &[TYPES, CORE] },
    Room { name: PEER, may_use: &[] },
    Room { name: NODE, may_use: &[TYPES, CORE, ERASURE, PROFILE, STORE, META, PEER, STREAMS] },
    Room { name: FUSE, may_use: &[NODE, WIRE] },
    Room { name: MPIIO, may_use: &[COOP, CLIENT] },
    Room { name: STREAMS, may_use: &[CORE] },
    Room { name: PYTHON, may_use: &[CORE, CLIENT, NODE] },
    Room { name: BINARY, may_use: PRODUCT },
    Room { name: SIM, may_use: &[CORE, COOP, SCHEDULE, PROFILE] },
    Room { name: TESTING, may_use: &[] },
];

/// What a package says of itself.
#[derive(Deserialize)]
pub struct Manifest {
    package: Option<Package>,
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
    #[serde(default, rename = "build-dependencies")]
    build_dependencies: BTreeMap<String, toml::Value>,
    #[serde(default, rename = "dev-dependencies")]
    dev_dependencies: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

impl Manifest {
    /// The name of the package; a workspace alone has none.
    pub fn name(&self) -> Option<&str> {
        self.package.as_ref().map(|package| package.name.as_str())
    }

    /// The names of the packages that it links.
    pub fn links(&self) -> impl Iterator<Item = &str> {
        self.dependencies.keys().map(String::as_str)
    }
}

/// Every crate of the workspace uses only what lies below it. Tests of a crate may use everything
/// below it, not only the rooms next door.
pub fn direction(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut manifests = Vec::new();
    for (path, text) in repository.ending(&["Cargo.toml"]) {
        match toml::from_str::<Manifest>(text) {
            Ok(Manifest { package: None, .. }) => {}
            Ok(manifest) => manifests.push((path, manifest)),
            Err(error) => findings.push(Finding::of(path, error.message())),
        }
    }
    let ours: Vec<&str> = manifests.iter().filter_map(|(_, m)| m.name()).collect();
    for (path, manifest) in &manifests {
        let Some(name) = manifest.name() else { continue };
        let room = ROOMS.iter().find(|room| room.name == name);
        if room.is_none() && !TOOLS.contains(&name) {
            findings.push(Finding::of(
                *path,
                format!("say in xtask/src/tidy/rooms.rs where `{name}` belongs"),
            ));
        }
        let used = manifest.dependencies.keys().chain(manifest.build_dependencies.keys());
        let uses = used.map(|used| (used, false));
        let tests = manifest.dev_dependencies.keys().map(|used| (used, true));
        for (used, in_tests) in uses.chain(tests).filter(|(used, _)| ours.contains(&used.as_str()))
        {
            if !may_use(room, used, in_tests) {
                findings.push(Finding::of(*path, format!("{name} must not use {used}")));
            }
        }
    }
    findings
}

fn may_use(room: Option<&Room>, used: &str, in_tests: bool) -> bool {
    if TOOLS.contains(&used) {
        return false;
    }
    if used == TESTING {
        return in_tests;
    }
    // `forebay sim` is a command of the binary; nothing else knows of simulations.
    if used == SIM {
        return room.is_some_and(|room| room.name == BINARY);
    }
    match room {
        // A tool.
        None => true,
        Some(room) => room.may_use.contains(&used) || in_tests && lies_below(room, used),
    }
}

fn lies_below(room: &Room, used: &str) -> bool {
    room.may_use.contains(&used)
        || ROOMS
            .iter()
            .filter(|below| room.may_use.contains(&below.name))
            .any(|below| lies_below(below, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(uses: &[(&str, &str)]) -> Vec<String> {
        let mut files: Vec<(String, String)> = Vec::new();
        let names = [CORE, STORE, META, NODE, FUSE, WIRE, BINARY, SIM, "forebay-tests"];
        for name in names {
            let mut text = format!("[package]\nname = \"{name}\"\n[dependencies]\nlibc = \"1\"\n");
            for (_, used) in uses.iter().filter(|(user, _)| *user == name) {
                text += &format!("{used}.workspace = true\n");
            }
            files.push((format!("{name}/Cargo.toml"), text));
        }
        let files: Vec<_> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        direction(&Repository::of(&files)).into_iter().map(|found| found.message).collect()
    }

    #[test]
    fn direction_when_as_designed_then_nothing_is_found() {
        let uses = [(STORE, CORE), (NODE, STORE), (FUSE, NODE), (FUSE, WIRE), (BINARY, FUSE)];
        assert!(found(&uses).is_empty());
        assert!(found(&[("forebay-tests", NODE), (SIM, CORE)]).is_empty());
    }

    #[test]
    fn direction_when_rooms_beside_above_or_tools_are_used_then_found() {
        let wrong = [
            (META, STORE),
            (CORE, META),
            (FUSE, STORE),
            (WIRE, CORE),
            (SIM, NODE),
            (NODE, SIM),
            (NODE, "forebay-tests"),
        ];
        for (user, used) in wrong {
            assert_eq!(found(&[(user, used)]), [format!("{user} must not use {used}")]);
        }
    }

    #[test]
    fn direction_when_a_crate_is_unknown_then_its_place_is_asked_for() {
        let repository = Repository::of(&[("x/Cargo.toml", "[package]\nname = \"forebay-x\"\n")]);
        assert!(direction(&repository)[0].message.contains("where `forebay-x` belongs"));
    }

    #[test]
    fn tests_of_a_room_when_they_use_what_lies_deeper_then_fine() {
        let fuse = ROOMS.iter().find(|room| room.name == FUSE);
        assert!(may_use(fuse, STORE, true) && !may_use(fuse, STORE, false));
        let core = ROOMS.iter().find(|room| room.name == CORE);
        assert!(!may_use(core, STORE, true));
        assert!(may_use(core, TESTING, true) && !may_use(core, TESTING, false));
    }
}
