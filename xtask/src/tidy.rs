//! The rules of the repository. Each takes the files and gives its findings.

pub mod book;
mod calls;
mod claims;
pub mod documents;
mod rooms;
mod sources;
mod tests_named;

use crate::finding::Finding;
use crate::repository::Repository;

/// A rule.
type Rule = fn(&Repository) -> Vec<Finding>;

/// All rules.
const RULES: &[Rule] = &[
    sources::length,
    sources::ascii,
    sources::unfinished,
    sources::unsafe_forbidden,
    rooms::direction,
    calls::direction,
    calls::states,
    documents::links,
    documents::mentions,
    book::complete,
    claims::sound,
    tests_named::exist,
    tests_named::files_exist,
];

/// Every rule on every file.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(repository)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_when_rules_are_broken_then_findings_come_in_order() {
        let repository = Repository::of(&[
            ("b.rs", concat!("to", "do!()")),
            ("a.md", "see [there](nowhere.md)"),
        ]);
        let places: Vec<_> = check(&repository)
            .into_iter()
            .filter(|finding| finding.line.is_some())
            .map(|finding| finding.place)
            .collect();
        assert_eq!(places, ["a.md", "b.rs"]);
    }
}
