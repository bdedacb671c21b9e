//! What the documents promise is held by tests of the code that users run.
//!
//! `docs/claims.toml` has the promises: where each stands, in which words, and its tests. A claim is
//! sound if
//! - its page has its words, once, so that a sentence can't change without its claim;
//! - each of its tests is a test (`#[test]`), or a check of the POSIX suite that a mount is put
//!   through, and is not ignored;
//! - each runs code of the program that it speaks of, which is `forebay` unless the claim says
//!   otherwise: it lies in a package that the program links, or in a test program that mounts.
//!   The simulator is linked by `forebay`, too, and does not count: it is a model of a node and not
//!   one. Nor do modules of the core that no linked package but the simulator names.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;

use super::documents::prose;
use super::rooms::Manifest;
use super::tests_named::items;
use crate::finding::Finding;
use crate::repository::Repository;

const CLAIMS: &str = "docs/claims.toml";

/// Pages, and the sections in them (all if empty), each of whose list items has a claim.
const PROMISING: &[(&str, &str)] =
    &[("docs/semantics.md", ""), ("docs/reference/cluster.md", "## What you can rely on")];

/// Pages for developers, which name tests in their prose.
const NAMING_TESTS: &[&str] = &["docs/papers.md"];

/// The program that a claim speaks of unless it names another.
const DAEMON: &str = "forebay";

/// Linked by the daemon's program for `forebay sim`, and no part of a mount.
const MODEL: &str = "forebay-sim";

/// The modules that serve the daemon, the simulator, or both.
const SHARED: &str = "crates/core/src/cluster/";

/// Test programs outside the linked packages that mount what was built, by their paths.
const MOUNTING: &[&str] = &["tests/tests/mount_"];

/// Checks that a test program of [`MOUNTING`] puts a mount through.
const CHECKS: &str = "tests/src/posix/";

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    claim: Vec<Claim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    id: String,
    page: String,
    says: String,
    tests: Vec<String>,
    program: Option<String>,
}

/// A place where a function of some name is defined.
struct Definition<'a> {
    path: &'a str,
    is_test: bool,
    is_ignored: bool,
}

/// Every claim is sound, and every promise has one.
pub fn sound(repository: &Repository) -> Vec<Finding> {
    let Some(text) = repository.text(CLAIMS) else {
        return vec![Finding::of(CLAIMS, "is missing")];
    };
    let claims = match toml::from_str::<Claims>(text) {
        Ok(claims) => claims.claim,
        Err(error) => return vec![Finding::of(CLAIMS, error.message().to_owned())],
    };
    let lines = lines_of_ids(text);
    let mut findings = Vec::new();
    let mut ids = HashSet::new();
    let pages = pages(repository);
    let tests = Tests::new(repository);
    for claim in &claims {
        let line = lines.get(claim.id.as_str()).copied().unwrap_or(1);
        let mut report = |message: String| {
            findings.push(Finding::at(CLAIMS, line, format!("{}: {message}", claim.id)));
        };
        if !ids.insert(&claim.id) {
            report("has this name twice".into());
        }
        match pages.get(claim.page.as_str()).map(|page| page.matches(&claim.says).count()) {
            None => report(format!("there is no {}", claim.page)),
            Some(1) => {}
            Some(count) => report(format!("{} says this {count} times, not once", claim.page)),
        }
        if claim.tests.is_empty() {
            report("names no test".into());
        }
        for test in &claim.tests {
            if let Some(fault) = tests.fault(test, claim.program.as_deref().unwrap_or(DAEMON)) {
                report(fault);
            }
        }
    }
    findings.extend(unclaimed(repository, &claims));
    findings.extend(tests_in_prose(repository));
    findings
}

/// Places where a page for users names tests.
fn tests_in_prose(repository: &Repository) -> Vec<Finding> {
    let pages = repository.ending(&[".md"]);
    let pages = pages.filter(|(path, _)| path.starts_with("docs/") && !NAMING_TESTS.contains(path));
    let mut findings = Vec::new();
    for (path, text) in pages {
        let said = ["Test: `", "Tests: `", "(test: `", "(tests: `"];
        let names = |line: &str| said.iter().any(|said| line.contains(said));
        for (line, _) in prose(text).filter(|(_, line)| names(line)) {
            findings.push(Finding::at(path, line, format!("name the tests in {CLAIMS}")));
        }
    }
    findings
}

/// List items of [`PROMISING`] without a claim.
fn unclaimed(repository: &Repository, claims: &[Claim]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, section) in PROMISING {
        let Some(text) = repository.text(page) else { continue };
        for (line, item) in items(text, section) {
            let item = squeezed(item.lines());
            if !claims.iter().any(|claim| claim.page == *page && item.contains(&claim.says)) {
                let start: String = item.chars().take(50).collect();
                findings.push(Finding::at(*page, line, format!("no claim in {CLAIMS}: {start}")));
            }
        }
    }
    findings
}

/// The documents, each as one line of prose.
fn pages(repository: &Repository) -> HashMap<&str, String> {
    let documents = repository.ending(&[".md"]);
    documents.map(|(path, text)| (path, squeezed(prose(text).map(|(_, line)| line)))).collect()
}

fn squeezed<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

/// The lines on which claims begin.
fn lines_of_ids(text: &str) -> HashMap<&str, usize> {
    let lines = text.lines().enumerate();
    let ids = lines.filter_map(|(index, line)| {
        Some((line.strip_prefix("id = ")?.split('"').nth(1)?, index + 1))
    });
    ids.collect()
}

/// All tests, and what the programs link.
struct Tests<'a> {
    definitions: HashMap<String, Vec<Definition<'a>>>,
    packages: BTreeMap<&'a str, Manifest>,
    /// The modules of the core's `cluster` that a mount uses.
    cluster: HashSet<String>,
}

impl<'a> Tests<'a> {
    fn new(repository: &'a Repository) -> Self {
        let manifests = repository.ending(&["Cargo.toml"]).filter_map(|(path, text)| {
            let dir = path.strip_suffix("Cargo.toml")?;
            let manifest: Manifest = toml::from_str(text).ok()?;
            manifest.name().is_some().then_some((dir, manifest))
        });
        let mut tests = Self {
            definitions: definitions(repository),
            packages: manifests.collect(),
            cluster: HashSet::new(),
        };
        tests.cluster = tests.modules(repository);
        tests
    }

    /// The modules of the core's `cluster` that a linked package names, and those that they name.
    /// The others are for the simulator.
    fn modules(&self, repository: &Repository) -> HashSet<String> {
        let linked = self.linked(DAEMON);
        let mut inside: HashMap<&str, String> = HashMap::new();
        let mut outside = String::new();
        for (path, text) in repository.ending(&[".rs"]) {
            let text = text.split("#[cfg(test)]").next().unwrap_or(text);
            if let Some(module) = cluster_module(path) {
                inside.entry(module).or_default().push_str(text);
            } else if self.package(path).is_some_and(|name| linked.contains(name))
                && path.contains("/src/")
                && !path.contains("tests")
            {
                outside.push_str(text);
            }
        }
        let mut used = HashSet::new();
        let mut next: Vec<&str> =
            inside.keys().copied().filter(|module| names(&outside, "cluster", module)).collect();
        while let Some(module) = next.pop() {
            if used.insert(module.to_owned()) {
                let text = &inside[module];
                next.extend(
                    inside.keys().copied().filter(|other| {
                        names(text, "super", other) || names(text, "cluster", other)
                    }),
                );
            }
        }
        used
    }

    /// What is wrong with a test as the proof of something that `program` does.
    fn fault(&self, test: &str, program: &str) -> Option<String> {
        let (area, name) = test.split_once('.').map_or((None, test), |(a, n)| (Some(a), n));
        let all = self.definitions.get(name).map_or(&[][..], Vec::as_slice);
        if let Some(area) = area {
            let path = format!("{CHECKS}{area}.rs");
            let known = all.iter().any(|definition| definition.path == path);
            return (!known).then(|| format!("the POSIX suite has no check {test}"));
        }
        if all.is_empty() {
            return Some(format!("no test is called {test}"));
        }
        let tests: Vec<_> = all.iter().filter(|definition| definition.is_test).collect();
        if tests.is_empty() {
            return Some(format!("{test} in {} is no test", all[0].path));
        }
        if tests.iter().all(|definition| definition.is_ignored) {
            return Some(format!("{test} is ignored and never run"));
        }
        let linked = self.linked(program);
        let runs = |definition: &&Definition| self.runs(definition.path, &linked);
        (!tests.iter().any(runs))
            .then(|| format!("{test} in {} does not run code of {program}", tests[0].path))
    }

    /// Whether a test there runs code of these packages.
    fn runs(&self, path: &str, linked: &HashSet<&str>) -> bool {
        if MOUNTING.iter().any(|mounting| path.starts_with(mounting)) {
            return true;
        }
        let in_linked = self.package(path).is_some_and(|name| linked.contains(name));
        in_linked && cluster_module(path).is_none_or(|module| self.cluster.contains(module))
    }

    /// The package that a file belongs to.
    fn package(&self, path: &str) -> Option<&str> {
        let dirs = self.packages.iter().filter(|(dir, _)| path.starts_with(**dir));
        let (_, manifest) = dirs.max_by_key(|(dir, _)| dir.len())?;
        manifest.name()
    }

    /// The packages that a program links, and itself, without the simulator.
    fn linked(&self, program: &str) -> HashSet<&str> {
        let by_name: HashMap<&str, &Manifest> =
            self.packages.values().filter_map(|m| Some((m.name()?, m))).collect();
        let mut linked = HashSet::new();
        let mut next: Vec<&str> =
            by_name.get_key_value(program).map(|(name, _)| *name).into_iter().collect();
        while let Some(name) = next.pop() {
            if name != MODEL && linked.insert(name) {
                let needs = by_name[name].links();
                next.extend(needs.filter_map(|need| by_name.get_key_value(need).map(|(n, _)| *n)));
            }
        }
        linked
    }
}

/// The module of the core's `cluster` that a file belongs to.
fn cluster_module(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(SHARED)?;
    let module = rest.split('/').next()?;
    let module = module.strip_suffix(".rs").unwrap_or(module);
    (module != "mod").then_some(module)
}

/// Whether a text names `module` of `parent`: `parent::module`, or in `parent::{...}`.
fn names(text: &str, parent: &str, module: &str) -> bool {
    let is_word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    text.match_indices(parent).any(|(at, _)| {
        let Some(rest) = text[at + parent.len()..].strip_prefix("::") else { return false };
        if let Some(group) = rest.strip_prefix('{') {
            let group = &group[..group.find(';').unwrap_or(group.len())];
            return group.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == module);
        }
        rest.strip_prefix(module).is_some_and(is_word)
    })
}

/// Whether a line is nothing but the name of a test.
fn is_name(line: &str) -> bool {
    line.contains("_when_") && line.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// All functions, by name, with what their attributes say. In a file with a macro that makes tests, a
/// line that is a name alone is one of them.
fn definitions(repository: &Repository) -> HashMap<String, Vec<Definition<'_>>> {
    let mut found: HashMap<String, Vec<Definition<'_>>> = HashMap::new();
    for (path, text) in repository.ending(&[".rs"]) {
        let (mut is_test, mut is_ignored) = (false, false);
        let makes_tests = text.contains("macro_rules!") && text.contains("#[test]");
        for line in text.lines().map(str::trim) {
            is_test |= line.starts_with("#[test]");
            if makes_tests && is_name(line.trim_end_matches(',')) {
                let definition = Definition { path, is_test: true, is_ignored: false };
                found.entry(line.trim_end_matches(',').to_owned()).or_default().push(definition);
            }
            is_ignored |= line.starts_with("#[ignore");
            if let Some((_, rest)) = line.split_once("fn ") {
                let of_name = |c: char| c.is_alphanumeric() || c == '_';
                let end = rest.find(|c| !of_name(c)).unwrap_or(rest.len());
                let definition = Definition { path, is_test, is_ignored };
                found.entry(rest[..end].to_owned()).or_default().push(definition);
            }
            if !line.starts_with("#[") && !line.starts_with("//") {
                (is_test, is_ignored) = (false, false);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[(&str, &str)] = &[
        (
            "crates/forebay/Cargo.toml",
            "[package]\nname = 'forebay'\n[dependencies]\nforebay-core = {}\nforebay-sim = {}\n",
        ),
        ("crates/forebay/src/lib.rs", "use forebay_core::cluster::lease::Lease;"),
        ("crates/core/Cargo.toml", "[package]\nname = 'forebay-core'\n"),
        (
            "crates/core/src/cluster/lease.rs",
            "#[test]\nfn lease_kept() {}\n#[test]\n#[ignore]\nfn slow() {}",
        ),
        ("crates/core/src/cluster/alone.rs", "#[test]\nfn modelled_alone() {}\nfn helper() {}"),
        ("sim/Cargo.toml", "[package]\nname = 'forebay-sim'\n[dependencies]\nforebay-core = {}\n"),
        ("sim/src/lib.rs", "#[test]\nfn simulated() {}"),
        ("tests/Cargo.toml", "[package]\nname = 'forebay-tests'\n"),
        ("tests/tests/mount_x.rs", "#[test]\nfn mounted() {}"),
        ("tests/tests/native_x.rs", "#[test]\nfn judged_native() {}"),
        ("tests/src/posix/rename.rs", "fn noreplace(ctx: &Ctx) {}"),
        ("docs/reference/cluster.md", ""),
    ];

    /// What is found where the page has one promise, and the claim of it names `tests`.
    fn found(page: &str, tests: &str) -> Vec<String> {
        let claims = format!(
            "[[claim]]\nid = 'a.1'\npage = 'docs/semantics.md'\nsays = 'It is kept'\ntests = {tests}\n"
        );
        let mut files = FILES.to_vec();
        files.extend([("docs/claims.toml", claims.as_str()), ("docs/semantics.md", page)]);
        sound(&Repository::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn claim_when_page_and_tests_are_there_then_sound() {
        let page = "- It is\n  kept in all cases.\n";
        assert_eq!(found(page, "['lease_kept', 'mounted', 'rename.noreplace']"), [""; 0]);
    }

    #[test]
    fn claim_when_its_sentence_has_changed_then_found_on_both_sides() {
        let found = found("- It is held.\n", "['lease_kept']");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("says this 0 times"), "{found:?}");
        assert!(found[1].contains("docs/semantics.md:1"), "{found:?}");
    }

    #[test]
    fn page_when_it_names_tests_itself_then_found() {
        let found = found("- It is kept. Test: `lease_kept`.\n", "['lease_kept']");
        assert!(found.len() == 1 && found[0].contains("name the tests in"), "{found:?}");
    }

    #[test]
    fn claim_when_a_test_proves_nothing_of_the_daemon_then_found() {
        let page = "- It is kept.\n";
        for (test, why) in [
            ("gone", "no test is called"),
            ("helper", "is no test"),
            ("slow", "is ignored"),
            ("simulated", "does not run code of forebay"),
            ("modelled_alone", "does not run code of forebay"),
            ("judged_native", "does not run code of forebay"),
            ("rename.gone", "has no check"),
        ] {
            let found = found(page, &format!("['{test}']"));
            assert!(found.len() == 1 && found[0].contains(why), "{test}: {found:?}");
        }
        assert!(found(page, "[]")[0].contains("names no test"));
    }
}
