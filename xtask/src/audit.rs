//! The audit of the dependencies, from `cargo metadata` alone, so that it works without a network;
//! and from the database of advisories where that can be had.

mod advisories;
mod licence;
mod lists;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::finding::Finding;
use lists::Lists;

/// What `cargo metadata` tells.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    packages: Vec<Package>,
}

/// A package in the graph.
#[derive(Debug, Clone, Deserialize)]
pub struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// The registry or repository; nothing for the workspace's own.
    source: Option<String>,
    #[serde(default)]
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, Deserialize)]
struct Dependency {
    name: String,
    source: Option<String>,
}

/// What an audit found.
pub struct Report {
    /// Some lines for people.
    pub summary: String,
    /// What must be fixed.
    pub findings: Vec<Finding>,
}

/// Audits the workspace at `root`.
pub fn run(root: &Path) -> Result<Report> {
    let metadata = metadata(root)?;
    let mut report = audit(&metadata.packages, &lists::LISTS);
    let Some(database) = advisories::database(root)? else {
        report.summary.push_str(advisories::STEP);
        return Ok(report);
    };
    let foreign: Vec<&Package> = metadata.packages.iter().filter(|p| p.source.is_some()).collect();
    let accepted = lists::LISTS.accepted_advisories;
    let judgement = advisories::judge(&foreign, &database, accepted)?;
    report.summary.push_str(&format!(
        "advisories: {} on crates in use by {}, {} findings\n",
        judgement.looked_at,
        database.display(),
        judgement.findings.len()
    ));
    for note in judgement.notes {
        report.summary.push_str(&format!("  to know: {note}\n"));
    }
    report.findings.extend(judgement.findings);
    Ok(report)
}

fn metadata(root: &Path) -> Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["metadata", "--format-version=1", "--locked", "--offline", "--all-features"])
        .args(["--filter-platform", &host()?])
        .output()
        .context("starting cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}\nIf packages are missing, run `cargo fetch --locked` once.",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("what cargo metadata wrote")
}

/// The platform of this machine: packages for others are not downloaded.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Every rule on every package.
fn audit(packages: &[Package], lists: &Lists) -> Report {
    let foreign: Vec<&Package> = packages.iter().filter(|p| p.source.is_some()).collect();
    let mut findings = Vec::new();
    for package in packages {
        findings.extend(wrong_licence(package, lists));
        findings.extend(wrong_source(package));
    }
    for package in &foreign {
        findings.extend(named_in(package, lists.banned, "is banned"));
    }
    let (unmaintained, stale) = accepted_unmaintained(&foreign, lists);
    findings.extend(unmaintained);
    findings.extend(stale);
    findings.extend(duplicates(&foreign, lists));
    findings.sort();
    let repeated: Vec<String> =
        lists.duplicates.iter().map(|(name, count)| format!("{name} x{count}")).collect();
    let summary = format!(
        "audit: {} packages, {} of our own, {} findings; accepted repetitions: {}\n",
        packages.len(),
        packages.len() - foreign.len(),
        findings.len(),
        repeated.join(", ")
    );
    Report { summary, findings }
}

fn shown(package: &Package) -> String {
    format!("{} {}", package.name, package.version)
}

fn wrong_licence(package: &Package, lists: &Lists) -> Option<Finding> {
    let Some(expression) = &package.license else {
        return Some(Finding::of(shown(package), "names no licence"));
    };
    match licence::is_allowed(expression, lists.licences) {
        Some(true) => None,
        Some(false) => Some(Finding::of(
            shown(package),
            format!(
                "licence `{expression}`: replace the crate, or discuss the licence and add it to the list"
            ),
        )),
        None => Some(Finding::of(shown(package), format!("unreadable licence `{expression}`"))),
    }
}

const CRATES_IO: [&str; 2] =
    ["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];

fn is_crates_io(source: &str) -> bool {
    CRATES_IO.contains(&source)
}

/// Foreign packages come from crates.io; so do all that the manifests ask for.
fn wrong_source(package: &Package) -> Option<Finding> {
    let sources = package
        .dependencies
        .iter()
        .filter_map(|dependency| Some((&dependency.name, dependency.source.as_deref()?)))
        .chain(package.source.as_deref().map(|source| (&package.name, source)));
    for (name, source) in sources {
        if !is_crates_io(source) {
            let message = format!("{name} comes from {source}; only crates.io is allowed");
            return Some(Finding::of(shown(package), message));
        }
    }
    None
}

fn named_in(package: &Package, list: &[(&str, &str)], what: &str) -> Option<Finding> {
    let (_, why) = list.iter().find(|(name, _)| *name == package.name)?;
    Some(Finding::of(shown(package), format!("{what}: {why}")))
}

/// Crates that nobody looks after any more, unless accepted with a reason; and acceptances that are
/// no longer needed.
fn accepted_unmaintained(packages: &[&Package], lists: &Lists) -> (Vec<Finding>, Vec<Finding>) {
    let is_accepted =
        |name: &str| lists.accepted_unmaintained.iter().any(|(accepted, _)| *accepted == name);
    let unmaintained = packages
        .iter()
        .filter(|package| !is_accepted(&package.name))
        .filter_map(|package| named_in(package, lists.unmaintained, "is not maintained"))
        .collect();
    let stale = lists
        .accepted_unmaintained
        .iter()
        .filter(|(name, _)| !packages.iter().any(|package| package.name == *name))
        .map(|(name, _)| Finding::of(*name, "is not used any more: take it off the list"))
        .collect();
    (unmaintained, stale)
}

/// The part of a version within which versions are compatible.
fn major(version: &str) -> String {
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some("0"), Some(minor)) => format!("0.{minor}"),
        (Some(major), _) => major.to_owned(),
        _ => version.to_owned(),
    }
}

/// Crates that are built in several major versions. The list of accepted ones may only shrink.
fn duplicates(packages: &[&Package], lists: &Lists) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for package in packages {
        let known = versions.entry(&package.name).or_default();
        let major = major(&package.version);
        if !known.contains(&major) {
            known.push(major);
        }
    }
    let mut findings = Vec::new();
    for (name, majors) in &versions {
        let accepted = lists.duplicates.iter().find(|(known, _)| known == name);
        let accepted = accepted.map_or(1, |(_, count)| *count);
        if majors.len() > accepted {
            let list = majors.join(", ");
            findings.push(Finding::of(
                *name,
                format!("is built in the versions {list}: bring its users to one"),
            ));
        }
    }
    for (name, count) in lists.duplicates {
        let found = versions.get(name).map_or(0, Vec::len);
        if found < *count {
            findings.push(Finding::of(
                *name,
                format!("{found} versions, {count} accepted: shorten the list"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_LISTS: Lists = Lists {
        licences: &["MIT", "Apache-2.0"],
        banned: &[("bincode", "unmaintained format")],
        unmaintained: &[("old", "use new"), ("older", "use new")],
        accepted_unmaintained: &[],
        duplicates: &[],
        accepted_advisories: &[],
    };

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            license: Some("MIT OR Apache-2.0".into()),
            source: Some(CRATES_IO[0].into()),
            dependencies: Vec::new(),
        }
    }

    fn messages(packages: &[Package], lists: &Lists) -> Vec<String> {
        audit(packages, lists).findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn audit_when_all_is_well_then_nothing_is_found() {
        let own = Package { source: None, ..package("forebay", "0.1.0") };
        assert!(messages(&[own, package("libc", "0.2.1")], &TEST_LISTS).is_empty());
    }

    #[test]
    fn licence_when_missing_or_not_allowed_then_found() {
        let gpl = Package { license: Some("GPL-3.0-only".into()), ..package("a", "1.0.0") };
        let none = Package { license: None, ..package("b", "1.0.0") };
        let odd = Package { license: Some("MIT OR".into()), ..package("c", "1.0.0") };
        let found = messages(&[gpl, none, odd], &TEST_LISTS);
        assert!(found[0].contains("GPL-3.0-only") && found[1].contains("names no licence"));
        assert!(found[2].contains("unreadable"));
    }

    #[test]
    fn source_when_not_crates_io_then_found_also_in_a_manifest() {
        let git = Package { source: Some("git+https://x/y#1".into()), ..package("a", "1.0.0") };
        assert_eq!(messages(&[git], &TEST_LISTS).len(), 1);
        let asks = Dependency { name: "y".into(), source: Some("git+https://x/y".into()) };
        let own = Package { source: None, dependencies: vec![asks], ..package("forebay", "0.1.0") };
        assert_eq!(messages(&[own], &TEST_LISTS).len(), 1);
    }

    #[test]
    fn banned_and_unmaintained_when_used_then_found_with_the_reason() {
        let found = messages(&[package("bincode", "1.3.3"), package("old", "1.0.0")], &TEST_LISTS);
        assert_eq!(
            found,
            [
                "bincode 1.3.3: is banned: unmaintained format",
                "old 1.0.0: is not maintained: use new"
            ]
        );
    }

    #[test]
    fn unmaintained_when_accepted_then_quiet_until_it_is_gone() {
        let lists = Lists { accepted_unmaintained: &[("old", "below x")], ..TEST_LISTS };
        assert!(messages(&[package("old", "1.0.0")], &lists).is_empty());
        assert_eq!(messages(&[package("new", "1.0.0")], &lists).len(), 1);
    }

    #[test]
    fn duplicates_when_compatible_then_one() {
        assert!(messages(&[package("a", "1.0.0"), package("a", "1.9.2")], &TEST_LISTS).is_empty());
        let found = messages(&[package("a", "0.1.0"), package("a", "0.2.0")], &TEST_LISTS);
        assert_eq!(found, ["a: is built in the versions 0.1, 0.2: bring its users to one"]);
    }

    #[test]
    fn duplicates_when_fewer_than_accepted_then_the_list_must_shrink() {
        let lists = Lists { duplicates: &[("a", 2)], ..TEST_LISTS };
        let two = [package("a", "1.0.0"), package("a", "2.0.0")];
        assert!(messages(&two, &lists).is_empty());
        assert!(messages(&two[..1], &lists)[0].contains("shorten the list"));
    }

    #[test]
    fn lists_when_looked_at_then_no_name_comes_twice() {
        let names = |list: &[(&str, &str)]| {
            let mut names: Vec<_> = list.iter().map(|(name, _)| (*name).to_owned()).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        };
        names(lists::LISTS.banned);
        names(lists::LISTS.unmaintained);
        names(lists::LISTS.accepted_unmaintained);
    }

    #[test]
    fn lists_when_compared_with_deny_toml_then_equal() {
        #[derive(Deserialize)]
        struct Deny {
            advisories: Advisories,
            licenses: Licences,
            bans: Bans,
        }
        #[derive(Deserialize)]
        struct Advisories {
            #[serde(default)]
            ignore: Vec<Ignored>,
        }
        #[derive(Deserialize)]
        struct Ignored {
            id: String,
            reason: String,
        }
        #[derive(Deserialize)]
        struct Licences {
            allow: Vec<String>,
        }
        #[derive(Deserialize)]
        struct Bans {
            deny: Vec<Ban>,
        }
        #[derive(Deserialize)]
        struct Ban {
            #[serde(rename = "crate")]
            name: String,
            reason: String,
        }
        let deny: Deny = toml::from_str(include_str!("../../deny.toml")).unwrap();
        assert_eq!(deny.licenses.allow, lists::LISTS.licences);
        let bans = deny.bans.deny.iter().map(|ban| (ban.name.as_str(), ban.reason.as_str()));
        assert_eq!(bans.collect::<Vec<_>>(), lists::LISTS.banned);
        let ignored = deny.advisories.ignore.iter();
        let ignored = ignored.map(|one| (one.id.as_str(), one.reason.as_str()));
        assert_eq!(ignored.collect::<Vec<_>>(), lists::LISTS.accepted_advisories);
    }
}
