//! Known vulnerabilities: what the advisories of RustSec say of the packages in use.
//!
//! The database is a git repository of one text a file. It is taken from where it is: a directory
//! that `FOREBAY_ADVISORY_DB` names, what cargo-audit or cargo-deny have downloaded, or else a copy of
//! our own, which is brought up to date once a day. Where none of that can be had nothing is checked,
//! and the audit says what to do; a machine without a network is no reason to fail.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use semver::{Version, VersionReq};
use serde::Deserialize;

use super::Package;
use crate::finding::Finding;

/// Where the database is kept.
const ORIGIN: &str = "https://github.com/RustSec/advisory-db";
/// How long a download may take.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(90);
/// A copy of our own that is older is brought up to date.
const FRESH: Duration = Duration::from_secs(24 * 3600);
/// What to do where there is no database.
pub const STEP: &str = "\
advisories: not checked, for there is no database of them here. Where there is a network:
  git clone --depth 1 https://github.com/RustSec/advisory-db ~/.cargo/advisory-db
and run `cargo xtask audit` again, or `cargo deny check advisories`. FOREBAY_ADVISORY_DB names another
directory with such a clone.
";

/// The beginning of an advisory's text.
#[derive(Debug, Deserialize)]
struct Text {
    advisory: Head,
    #[serde(default)]
    versions: Versions,
}

#[derive(Debug, Deserialize)]
struct Head {
    id: String,
    package: String,
    /// It was a mistake.
    withdrawn: Option<String>,
    /// No vulnerability, but "unmaintained", "unsound" or "notice".
    informational: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Versions {
    patched: Vec<VersionReq>,
    unaffected: Vec<VersionReq>,
}

/// What the advisories say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Vulnerabilities, and acceptances that are not needed any more.
    pub findings: Vec<Finding>,
    /// What is no vulnerability.
    pub notes: Vec<String>,
    /// Advisories on packages in use that were looked at.
    pub looked_at: usize,
}

/// Judges packages by the advisories below `database`, but for those of `accepted` (with a reason).
///
/// # Errors
/// It is no such database, or a text can't be read.
pub fn judge(
    packages: &[&Package],
    database: &Path,
    accepted: &[(&str, &str)],
) -> Result<Judgement> {
    let crates = database.join("crates");
    if !crates.is_dir() {
        bail!("{} has no directory `crates`: it is no advisory database", database.display());
    }
    let mut judgement = Judgement::default();
    let mut used = BTreeSet::new();
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    for name in names {
        let versions = packages.iter().filter(|package| package.name == name);
        let versions: Vec<&str> = versions.map(|package| package.version.as_str()).collect();
        for advisory in advisories(&crates.join(name))? {
            judgement.looked_at += 1;
            for version in &versions {
                if !advisory.concerns(name, version)? {
                    continue;
                }
                let id = &advisory.advisory.id;
                if let Some((id, _)) = accepted.iter().find(|(accepted, _)| accepted == id) {
                    used.insert(*id);
                } else if let Some(kind) = &advisory.advisory.informational {
                    judgement.notes.push(format!("{name} {version}: {id}, {kind}"));
                } else {
                    judgement.findings.push(advisory.finding(name, version));
                }
            }
        }
    }
    let unused = accepted.iter().filter(|(id, _)| !used.contains(id));
    let unused = unused.map(|(id, _)| Finding::of(*id, "concerns nothing: take it off the list"));
    judgement.findings.extend(unused);
    Ok(judgement)
}

fn advisories(directory: &Path) -> Result<Vec<Text>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path)?;
            found.push(parse(&text).with_context(|| path.display().to_string())?);
        }
    }
    found.sort_by(|a, b| a.advisory.id.cmp(&b.advisory.id));
    Ok(found)
}

/// What stands between the fences at the beginning.
fn parse(text: &str) -> Result<Text> {
    let body = text.trim_start().strip_prefix("```toml").context("it does not begin with TOML")?;
    let (head, _) = body.split_once("\n```").context("its TOML does not end")?;
    Ok(toml::from_str(head)?)
}

impl Text {
    fn concerns(&self, name: &str, version: &str) -> Result<bool> {
        if self.advisory.withdrawn.is_some() || self.advisory.package != name {
            return Ok(false);
        }
        let version = Version::parse(version).with_context(|| format!("{name} {version}"))?;
        let Versions { patched, unaffected } = &self.versions;
        Ok(!patched.iter().chain(unaffected).any(|range| range.matches(&version)))
    }

    fn finding(&self, name: &str, version: &str) -> Finding {
        let patched: Vec<String> = self.versions.patched.iter().map(ToString::to_string).collect();
        let id = &self.advisory.id;
        let advice = match patched.is_empty() {
            true => "no version mends it: replace the crate".to_owned(),
            false => format!("mended in {}: `cargo update -p {name}`", patched.join(" or ")),
        };
        let place = format!("{name} {version}");
        Finding::of(place, format!("{id} (https://rustsec.org/advisories/{id}): {advice}"))
    }
}

/// A directory with the database, or why there is none.
///
/// # Errors
/// The directory that `FOREBAY_ADVISORY_DB` names is not there.
pub fn database(root: &Path) -> Result<Option<PathBuf>> {
    if let Some(given) = std::env::var_os("FOREBAY_ADVISORY_DB") {
        let given = PathBuf::from(given);
        if !given.join("crates").is_dir() {
            bail!("FOREBAY_ADVISORY_DB: {} is no advisory database", given.display());
        }
        return Ok(Some(given));
    }
    let own = target(root).join("advisory-db");
    let may_ask = std::env::var_os("CARGO_NET_OFFLINE").is_none_or(|offline| offline != "true");
    if may_ask && !is_fresh(&own) {
        download(&own);
    }
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let mut places = vec![own];
    if let Some(home) = home {
        places.push(home.join("advisory-db"));
        let of_deny = std::fs::read_dir(home.join("advisory-dbs")).into_iter().flatten().flatten();
        places.extend(of_deny.map(|entry| entry.path()));
    }
    Ok(places.into_iter().find(|place| place.join("crates").is_dir()))
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn is_fresh(own: &Path) -> bool {
    let stamp = std::fs::metadata(own.join("crates")).and_then(|found| found.modified());
    let age = stamp.ok().and_then(|stamp| SystemTime::now().duration_since(stamp).ok());
    age.is_some_and(|age| age < FRESH)
}

/// Makes a copy of our own anew. Without a network there is none, or the last one stays.
fn download(own: &Path) {
    let coming = own.with_extension("new");
    let _ = std::fs::remove_dir_all(&coming);
    let Some(parent) = own.parent() else { return };
    if std::fs::create_dir_all(parent).is_err() {
        return;
    }
    let clone = Command::new("git")
        .args(["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20"])
        .args(["clone", "--quiet", "--depth", "1", ORIGIN])
        .arg(&coming)
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if clone.is_ok_and(|child| ends_well(child, DOWNLOAD_TIMEOUT)) {
        let _ = std::fs::remove_dir_all(own);
        let _ = std::fs::rename(&coming, own);
    }
    let _ = std::fs::remove_dir_all(&coming);
}

fn ends_well(mut child: Child, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Ok(Some(status)) => return status.success(),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            license: None,
            source: None,
            dependencies: Vec::new(),
        }
    }

    fn database(texts: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (index, (name, more)) in texts.iter().enumerate() {
            let (id, of) =
                (format!("RUSTSEC-2099-{index:04}"), dir.path().join("crates").join(name));
            std::fs::create_dir_all(&of).unwrap();
            let head =
                format!("[advisory]\nid = \"{id}\"\npackage = \"{name}\"\ndate = \"2099-01-01\"");
            let text = format!("```toml\n{head}\n{more}\n```\n\n# Title\n\nText.\n");
            std::fs::write(of.join(format!("{id}.md")), text).unwrap();
        }
        dir
    }

    fn judged(database: &Path, packages: &[Package], accepted: &[(&str, &str)]) -> Judgement {
        judge(&packages.iter().collect::<Vec<_>>(), database, accepted).unwrap()
    }

    const MENDED: &str =
        "[versions]\npatched = [\">= 0.7.4, < 0.8.0\", \">= 0.8.1\"]\nunaffected = [\"< 0.6\"]";

    #[test]
    fn version_when_it_is_vulnerable_then_found_with_what_mends_it() {
        let dir = database(&[("deque", MENDED)]);
        let at = |version: &str| judged(dir.path(), &[package("deque", version)], &[]).findings;
        for sound in ["0.5.9", "0.7.4", "0.7.9", "0.8.1", "1.0.0"] {
            assert!(at(sound).is_empty(), "{sound}");
        }
        for vulnerable in ["0.6.0", "0.7.3", "0.8.0"] {
            let found = at(vulnerable);
            let text = found.first().map(ToString::to_string).unwrap_or_default();
            assert!(text.starts_with(&format!("deque {vulnerable}: RUSTSEC-2099-0000")), "{text}");
            assert!(text.contains("mended in >=0.7.4, <0.8.0 or >=0.8.1"), "{text}");
        }
        assert!(judged(dir.path(), &[package("other", "0.7.0")], &[]).findings.is_empty());
    }

    #[test]
    fn version_when_nothing_mends_it_then_found_in_every_version() {
        let dir = database(&[("gone", "[versions]\npatched = []")]);
        let found = judged(dir.path(), &[package("gone", "1.2.3"), package("gone", "2.0.0")], &[]);
        assert_eq!(found.findings.len(), 2);
        assert!(found.findings[0].message.contains("replace the crate"));
    }

    #[test]
    fn advisory_when_it_was_withdrawn_or_is_for_information_then_no_finding() {
        let dir = database(&[
            ("a", "withdrawn = \"2099-02-01\"\n[versions]\npatched = []"),
            ("b", "informational = \"unmaintained\"\n[versions]\npatched = []"),
        ]);
        let found = judged(dir.path(), &[package("a", "1.0.0"), package("b", "1.0.0")], &[]);
        assert!(found.findings.is_empty());
        assert_eq!(found.notes, ["b 1.0.0: RUSTSEC-2099-0001, unmaintained"]);
        assert_eq!(found.looked_at, 2);
    }

    #[test]
    fn advisory_when_accepted_then_quiet_until_it_concerns_nothing() {
        let dir = database(&[("a", "[versions]\npatched = []")]);
        let accepted = [("RUSTSEC-2099-0000", "not reachable")];
        assert!(judged(dir.path(), &[package("a", "1.0.0")], &accepted).findings.is_empty());
        let found = judged(dir.path(), &[package("b", "1.0.0")], &accepted).findings;
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("take it off the list"));
    }

    #[test]
    fn database_when_it_is_none_or_damaged_then_an_error_says_where() {
        let empty = tempfile::tempdir().unwrap();
        assert!(judge(&[], empty.path(), &[]).is_err());
        let dir = database(&[("a", "[versions]\npatched = [\"no version\"]")]);
        let error = judge(&[&package("a", "1.0.0")], dir.path(), &[]).unwrap_err();
        assert!(format!("{error:#}").contains("RUSTSEC-2099-0000.md"), "{error:#}");
    }

    #[test]
    fn download_when_it_takes_too_long_then_is_given_up() {
        let start = Instant::now();
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        assert!(!ends_well(child, Duration::from_millis(100)));
        assert!(start.elapsed() < Duration::from_secs(50));
        assert!(ends_well(Command::new("true").spawn().unwrap(), Duration::from_secs(50)));
    }
}
