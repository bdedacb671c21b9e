//! Puts the sources of the book together: the pages, and all that they link to.
//!
//! mdBook copies a whole directory and knows only pages inside it, but pages of `docs` link to
//! `ARCHITECTURE.md` and to files of `dist`. So the book is made from a copy in which everything has
//! the place that it has in the repository.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use crate::repository::Repository;
use crate::tidy::book::SUMMARY;
use crate::tidy::documents::{resolve, targets};

/// Fills `to` with `book.toml` and `src`; what was in them before is gone.
pub fn stage(repository: &Repository, root: &Path, to: &Path) -> Result<usize> {
    let source = to.join("src");
    if source.exists() {
        std::fs::remove_dir_all(&source).with_context(|| source.display().to_string())?;
    }
    let paths = needed(repository);
    for path in &paths {
        let target = source.join(path);
        let dir = target.parent().context("has a parent")?;
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        std::fs::copy(root.join(path), &target).with_context(|| path.clone())?;
    }
    let summary = repository.text(SUMMARY).context(SUMMARY)?;
    std::fs::write(source.join("SUMMARY.md"), from_root(summary))?;
    std::fs::copy(root.join("book.toml"), to.join("book.toml")).context("book.toml")?;
    Ok(paths.len())
}

/// All files below `docs`, and what documents among them link to, and so on.
fn needed(repository: &Repository) -> BTreeSet<String> {
    let files = repository.files();
    let mut next: Vec<String> = files
        .keys()
        .filter(|path| path.starts_with("docs/") && *path != SUMMARY)
        .cloned()
        .collect();
    let mut paths = BTreeSet::new();
    next.push("README.md".into());
    while let Some(path) = next.pop() {
        if !files.contains_key(&path) || paths.contains(&path) {
            continue;
        }
        if path.ends_with(".md") {
            let text = repository.text(&path).unwrap_or_default();
            let local = targets(text).filter(|(_, target)| !target.contains("://"));
            next.extend(
                local.map(|(_, target)| resolve(&path, target.split('#').next().unwrap_or(target))),
            );
        }
        paths.insert(path);
    }
    paths
}

/// The table of contents as seen from the root of the repository.
fn from_root(summary: &str) -> String {
    let mut text = String::new();
    for line in summary.lines() {
        match line.split_once("](").and_then(|(title, rest)| Some((title, rest.split_once(')')?))) {
            Some((title, (target, rest))) => {
                text += &format!("{title}]({}){rest}\n", resolve(SUMMARY, target));
            }
            None => text += &format!("{line}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_when_a_page_links_outside_then_that_is_there_with_what_it_links_to() {
        let repository = Repository::of(&[
            ("docs/a.md", "[x](../dist/x.toml#y) [w](https://example.org)"),
            ("docs/b/c.md", "[up](../../NEWS.md)"),
            ("docs/SUMMARY.md", ""),
            ("NEWS.md", "[s](src/s.rs)"),
            ("src/s.rs", ""),
            ("src/t.rs", ""),
            ("dist/x.toml", ""),
        ]);
        let found: Vec<_> = needed(&repository).into_iter().collect();
        assert_eq!(found, ["NEWS.md", "dist/x.toml", "docs/a.md", "docs/b/c.md", "src/s.rs"]);
    }

    #[test]
    fn from_root_when_links_go_up_or_down_then_they_fit() {
        let text = from_root("# Summary\n- [a](guide/a.md)\n- [up](../UP.md)");
        assert_eq!(text, "# Summary\n- [a](docs/guide/a.md)\n- [up](UP.md)\n");
    }
}
