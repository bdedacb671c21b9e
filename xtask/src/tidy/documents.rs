//! Rules of documents.

use crate::finding::Finding;
use crate::repository::Repository;

/// Every link between documents leads somewhere: to a file, and to a heading in it.
pub fn links(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.ending(&[".md"]) {
        for (line, target) in targets(text) {
            if let Some(message) = broken(repository, path, target) {
                findings.push(Finding::at(path, line, message));
            }
        }
    }
    findings
}

/// Every document that a source speaks of exists.
pub fn mentions(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.ending(&[".rs", ".toml", ".sh", "Makefile", ".ci/run"]) {
        if path.starts_with("xtask/src/") {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            for document in documents_in(line).filter(|document| !repository.contains(document)) {
                findings.push(Finding::at(path, index + 1, format!("there is no {document}")));
            }
        }
    }
    findings
}

/// The paths of the form `docs/NAME.md` in a line.
fn documents_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("docs/").filter_map(|(at, _)| {
        let rest = &line[at..];
        let of_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let end = rest.find(|c| !of_path(c)).unwrap_or(rest.len());
        let path = &rest[..end];
        path.rfind(".md").map(|dot| &path[..dot + 3])
    })
}

fn broken(repository: &Repository, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { from.to_owned() } else { resolve(from, file) };
    if !repository.contains(&path) {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let known = |text: &str| headings(text).any(|known| known == heading);
    if !heading.is_empty() && !repository.text(&path).is_some_and(known) {
        return Some(format!("{path} has no heading #{heading}"));
    }
    None
}

/// `target` as seen from the file `from`, relative to the root.
pub fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        from.split('/').collect::<Vec<_>>().split_last().map_or(Vec::new(), |(_, dirs)| dirs.into())
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Lines outside fenced code, with their numbers from 1.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The targets of `[text](target)` with their lines.
pub fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        line.match_indices("](").filter_map(move |(at, _)| {
            let rest = &line[at + 2..];
            let end = rest.find(')')?;
            let target = rest[..end].split_whitespace().next()?;
            Some((number, target))
        })
    })
}

/// The headings of a document as links name them.
fn headings(text: &str) -> impl Iterator<Item = String> + '_ {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        line.trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(|character| character.is_alphanumeric() || " -_".contains(*character))
            .map(|character| if character == ' ' { '-' } else { character })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_when_files_and_headings_exist_then_nothing_is_found() {
        let repository = Repository::of(&[
            ("README.md", "[a](docs/a.md) ![p](docs/p.svg) [w](https://example.org) [d](docs/)"),
            ("docs/a.md", "# One `two`\n[up](../README.md) [in](#one-two) [b](b.md#x-y)"),
            ("docs/b.md", "## X, y\n```\n[not](a/link)\n```\n"),
            ("docs/p.svg", "<svg/>"),
        ]);
        assert_eq!(links(&repository), []);
    }

    #[test]
    fn links_when_a_file_or_heading_is_missing_then_the_line_is_named() {
        let repository = Repository::of(&[("docs/a.md", "x\n[b](b.md)\n[c](#c)\n")]);
        let lines: Vec<_> = links(&repository).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [Some(2), Some(3)]);
    }

    #[test]
    fn mentions_when_a_document_was_renamed_then_the_source_is_named() {
        let repository = Repository::of(&[
            ("a.rs", "//! see docs/a.md.\n/// `docs/gone.md` and docs/b/*.md"),
            ("docs/a.md", ""),
        ]);
        assert_eq!(mentions(&repository), [Finding::at("a.rs", 2, "there is no docs/gone.md")]);
    }

    #[test]
    fn resolve_when_dots_are_used_then_they_are_taken_away() {
        assert_eq!(resolve("docs/a/b.md", "../c.md"), "docs/c.md");
        assert_eq!(resolve("a.md", "./b/c.md"), "b/c.md");
        assert_eq!(resolve("docs/a.md", "/b.md"), "b.md");
    }
}
