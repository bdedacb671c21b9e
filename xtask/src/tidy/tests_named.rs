//! What documents for developers state is held by tests, and the tests that they name exist. (What
//! is promised to users has its tests in `claims`, apart from the prose.)
//!
//! In the documents of [`PROMISING`] a statement is an item of a list and names its tests at its
//! end: `Test: ` or `Tests: ` and their names in backquotes. A name is that of a test function, or
//! `area.check` of the POSIX suite.

use std::collections::HashSet;

use super::documents::prose;
use crate::finding::Finding;
use crate::repository::Repository;

/// Documents whose tests must exist.
const PROMISING: &[&str] = &["ARCHITECTURE.md", "docs/papers.md"];

/// Every test that a document names is in the sources.
pub fn exist(repository: &Repository) -> Vec<Finding> {
    let known = functions(repository);
    let mut findings = Vec::new();
    for path in PROMISING {
        let Some(text) = repository.text(path) else {
            findings.push(Finding::of(*path, "is missing"));
            continue;
        };
        for (line, name) in named(text) {
            if !is_known(&known, name) {
                findings.push(Finding::at(*path, line, format!("no test is called `{name}`")));
            }
        }
    }
    findings
}

/// Every file of tests that the header of a module names is there: such a path begins at the root of the
/// repository, or is the end of one in the crate.
pub fn files_exist(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.ending(&[".rs"]) {
        let Some((root, _)) = path.split_once("/src/") else { continue };
        let header = text.lines().enumerate().filter(|(_, line)| line.starts_with("//!"));
        for (number, line) in header {
            let quoted = line.split('`').skip(1).step_by(2);
            let files = quoted.filter(|file| file.contains("tests/") && file.ends_with(".rs"));
            for file in files {
                let of_crate = |(path, _): (&str, &str)| {
                    let end = path.strip_prefix(root).and_then(|rest| rest.strip_suffix(file));
                    end.is_some_and(|before| before.ends_with('/'))
                };
                if repository.text(file).is_none() && !repository.ending(&[".rs"]).any(of_crate) {
                    let message = format!("there are no tests `{file}`");
                    findings.push(Finding::at(path, number + 1, message));
                }
            }
        }
    }
    findings
}

/// The names of all functions in the sources, and of `area.name` for the POSIX suite.
fn functions(repository: &Repository) -> HashSet<String> {
    let mut known = HashSet::new();
    for (path, text) in repository.ending(&[".rs"]) {
        let area = path.strip_prefix("tests/src/posix/").and_then(|file| file.strip_suffix(".rs"));
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            known.extend(area.map(|area| format!("{area}.{}", &rest[..end])));
            known.insert(rest[..end].to_owned());
        }
    }
    known
}

fn is_known(known: &HashSet<String>, name: &str) -> bool {
    known.contains(name)
}

/// The names after `Test:` or `Tests:`, up to the end of the sentence or cell, with their lines.
fn named(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut open = false;
    prose(text).flat_map(move |(number, line)| {
        let mut names = Vec::new();
        let mut rest = line;
        if line.trim().is_empty() {
            open = false;
        }
        loop {
            if !open {
                let Some(at) = rest.find("Test: ").or_else(|| rest.find("Tests: ")) else { break };
                rest = &rest[at..];
                rest = &rest[rest.find(' ').map_or(0, |space| space + 1)..];
                open = true;
            }
            let quoted = rest.trim_start_matches([' ', ',', ';']);
            if quoted.is_empty() {
                break;
            }
            let Some(name) = quoted.strip_prefix('`').and_then(|r| r.split_once('`')) else {
                open = false;
                rest = quoted.get(1..).unwrap_or("");
                continue;
            };
            names.push((number, name.0));
            rest = name.1;
        }
        names
    })
}

/// The items of the lists in a section (or anywhere), with their first lines. An item goes on over
/// indented lines.
pub fn items(text: &str, section: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut inside = section.is_empty();
    let mut open = false;
    for (number, line) in prose(text) {
        if line.starts_with("## ") && !section.is_empty() {
            inside = line.trim_end() == section;
        }
        if inside && line.starts_with("- ") {
            items.push((number, line.to_owned()));
            open = true;
        } else if line.starts_with("  ") && open {
            if let Some((_, item)) = items.last_mut() {
                item.push('\n');
                item.push_str(line);
            }
        } else {
            open = false;
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: (&str, &str) = ("a.rs", "    fn kept_when_killed() {}\npub fn other<T>() {}");

    fn with(invariants: &str) -> Repository {
        Repository::of(&[
            SOURCE,
            ("tests/src/posix/rename.rs", "fn noreplace(ctx: &Ctx) -> Outcome {"),
            ("ARCHITECTURE.md", invariants),
            ("docs/papers.md", ""),
        ])
    }

    #[test]
    fn exist_when_a_test_was_renamed_then_its_line_is_named() {
        let text = "- a\n  b. Tests: `kept_when_killed`,\n  `gone`, `rename.noreplace`.\n";
        let found = exist(&with(text));
        assert_eq!(found, [Finding::at("ARCHITECTURE.md", 3, "no test is called `gone`")]);
    }

    #[test]
    fn exist_when_a_check_is_in_another_area_then_found() {
        assert_eq!(exist(&with("- x. Test: `links.noreplace`.")).len(), 1);
        assert!(exist(&with("- x. Test: `rename.noreplace`.")).is_empty());
    }

    #[test]
    fn exist_when_a_document_is_missing_then_found() {
        assert_eq!(exist(&Repository::of(&[SOURCE])).len(), PROMISING.len());
    }

    #[test]
    fn files_when_a_header_names_one_that_is_not_there_then_found() {
        let header =
            "//! Kept: `tests/kept.rs`, `crates/b/tests/c.rs`.\n//! And `tests/gone.rs`.\n";
        let found = files_exist(&Repository::of(&[
            ("crates/a/src/lib.rs", header),
            ("crates/a/tests/kept.rs", ""),
            ("crates/b/tests/c.rs", ""),
        ]));
        let gone = "there are no tests `tests/gone.rs`";
        assert_eq!(found, [Finding::at("crates/a/src/lib.rs", 2, gone)]);
    }

    #[test]
    fn named_when_a_sentence_follows_then_its_quotes_are_no_tests() {
        let names: Vec<_> = named("x. Tests: `a`, `b`. See `c`.\n| Test: `d` | `e` |").collect();
        assert_eq!(names, [(1, "a"), (1, "b"), (2, "d")]);
    }
}
