//! The book of the documents: its table of contents has every page, once.

use std::collections::{BTreeSet, HashMap};

use super::documents::{resolve, targets};
use crate::finding::Finding;
use crate::repository::Repository;

/// The table of contents.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Every page below `docs`, and every other one that a page of the book links to, is in the table of
/// contents, once. So all links work in the book as well. (That what it names exists, and all other
/// links, `documents::links` sees to.)
pub fn complete(repository: &Repository) -> Vec<Finding> {
    let Some(summary) = repository.text(SUMMARY) else {
        return vec![Finding::of(SUMMARY, "is missing")];
    };
    let mut listed: HashMap<String, usize> = HashMap::new();
    for (_, target) in targets(summary) {
        *listed.entry(resolve(SUMMARY, target)).or_default() += 1;
    }
    let all = repository.ending(&[".md"]).map(|(path, _)| path.to_owned());
    let mut pages: BTreeSet<String> = all.filter(|path| path.starts_with("docs/")).collect();
    let mut findings = Vec::new();
    for page in listed.keys() {
        for (line, target) in targets(repository.text(page).unwrap_or_default()) {
            let linked = resolve(page, target.split('#').next().unwrap_or(target));
            if linked == SUMMARY {
                findings.push(Finding::at(page, line, "links to what is no page of the book"));
            } else if linked.ends_with(".md") && target.contains(".md") && !target.contains("://") {
                pages.insert(linked);
            }
        }
    }
    pages.remove(SUMMARY);
    let count = |page: &str| listed.get(page).copied().unwrap_or(0);
    findings.extend(
        pages.iter().filter(|page| count(page) != 1).map(|page| {
            Finding::of(SUMMARY, format!("has {page} {} times, not once", count(page)))
        }),
    );
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_when_a_page_is_missing_or_there_twice_then_found() {
        let summary = "# Summary\n- [a](a.md)\n- [b](guide/b.md)\n- [b again](guide/b.md)\n";
        let repository = Repository::of(&[
            (SUMMARY, summary),
            ("docs/a.md", "[up](../README.md) [no](SUMMARY.md)"),
            ("docs/guide/b.md", "[s](#x) [w](https://example.org/w.md)"),
            ("docs/guide/c.md", ""),
            ("README.md", ""),
        ]);
        let found: Vec<_> = complete(&repository).into_iter().map(|found| found.message).collect();
        assert_eq!(
            found,
            [
                "links to what is no page of the book",
                "has README.md 0 times, not once",
                "has docs/guide/b.md 2 times, not once",
                "has docs/guide/c.md 0 times, not once",
            ]
        );
    }
}
