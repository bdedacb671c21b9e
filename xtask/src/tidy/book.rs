//! The book of the documents: its table of contents has every page, once.

use std::collections::HashMap;

use super::documents::{resolve, targets};
use crate::finding::Finding;
use crate::repository::Repository;

/// The table of contents.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Every page below `docs` is in the table of contents, once. (That what it names exists, and all
/// other links, `documents::links` sees to.)
pub fn complete(repository: &Repository) -> Vec<Finding> {
    let Some(summary) = repository.text(SUMMARY) else {
        return vec![Finding::of(SUMMARY, "is missing")];
    };
    let mut listed: HashMap<String, usize> = HashMap::new();
    for (_, target) in targets(summary) {
        *listed.entry(resolve(SUMMARY, target)).or_default() += 1;
    }
    let pages = repository.ending(&[".md"]).map(|(path, _)| path);
    let pages = pages.filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    let count = |page: &str| listed.get(page).copied().unwrap_or(0);
    let wrong = pages.filter(|page| count(page) != 1);
    wrong
        .map(|page| Finding::of(SUMMARY, format!("has {page} {} times, not once", count(page))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_when_a_page_is_missing_or_there_twice_then_found() {
        let summary = "# Summary\n- [a](a.md)\n- [b](guide/b.md)\n- [b again](guide/b.md)\n";
        let repository = Repository::of(&[
            (SUMMARY, summary),
            ("docs/a.md", ""),
            ("docs/guide/b.md", ""),
            ("docs/guide/c.md", ""),
            ("README.md", ""),
        ]);
        let found: Vec<_> = complete(&repository).into_iter().map(|found| found.message).collect();
        assert_eq!(
            found,
            ["has docs/guide/b.md 2 times, not once", "has docs/guide/c.md 0 times, not once"]
        );
    }
}
