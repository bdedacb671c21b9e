//! Rules of source files.

use crate::finding::Finding;
use crate::repository::Repository;

/// A file of more lines than this holds more than one thought.
const MAX_LINES: usize = 800;

/// A newcomer reads this document first, and finds the room of a change in it.
const FIRST_READ: &str = "ARCHITECTURE.md";

/// More lines than this nobody reads in one go; what is beyond belongs into the headers of modules.
const MAX_LINES_OF_IT: usize = 400;

/// What is written by people for machines.
const SOURCES: &[&str] = &[".rs", ".toml", ".sh", ".py", ".yml", ".service", "Makefile", ".ci/run"];

/// Files that must hold other characters than ASCII, and why.
const MAY_HOLD_OTHER_CHARACTERS: &[(&str, &str)] = &[];

/// Crates that do without unsafe code.
const SAFE_CRATES: &[&str] = &[
    "crates/coop/src/lib.rs",
    "crates/core/src/lib.rs",
    "crates/meta/src/lib.rs",
    "crates/profile/src/lib.rs",
    "crates/schedule/src/lib.rs",
    "sim/src/lib.rs",
    "xtask/src/main.rs",
];

/// Macros of unfinished code. Split, so that this file does not break its own rule.
const UNFINISHED_MACROS: &[&str] =
    &[concat!("to", "do!"), concat!("unimple", "mented!"), concat!("d", "bg!")];

/// Words of unfinished work, whole words only.
const UNFINISHED_WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("for", " now"),
    concat!("in a real", " system"),
];

/// Where these words mean something else.
const INNOCENT: &[&str] = &[concat!("wait for", " now")];

/// No file grows beyond one thought.
pub fn length(repository: &Repository) -> Vec<Finding> {
    let sources = repository.ending(&[".rs"]).map(|(path, text)| (path, text, MAX_LINES));
    let first = repository.text(FIRST_READ).map(|text| (FIRST_READ, text, MAX_LINES_OF_IT));
    sources
        .chain(first)
        .filter_map(|(path, text, most)| {
            let lines = text.lines().count();
            (lines > most)
                .then(|| Finding::of(path, format!("{lines} lines, at most {most}: split it")))
        })
        .collect()
}

/// Sources are ASCII, so that every editor and every diff shows what is there.
pub fn ascii(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.ending(SOURCES) {
        if MAY_HOLD_OTHER_CHARACTERS.iter().any(|(file, _)| *file == path) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(other) = line.chars().find(|character| !character.is_ascii()) {
                let message = format!("U+{:04X} in a source: write it as an escape", other as u32);
                findings.push(Finding::at(path, index + 1, message));
            }
        }
    }
    findings
}

/// What is committed is finished.
pub fn unfinished(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.files() {
        let Some(text) = text else { continue };
        let is_source = path.ends_with(".rs");
        for (index, line) in text.lines().enumerate() {
            if INNOCENT.iter().any(|words| line.contains(words)) {
                continue;
            }
            let word = UNFINISHED_WORDS.iter().find(|word| has_word(line, word));
            let call = UNFINISHED_MACROS.iter().find(|call| is_source && has_word(line, call));
            if let Some(found) = word.or(call) {
                let message = format!("`{found}`: finish it, or leave it out");
                findings.push(Finding::at(path, index + 1, message));
            }
        }
    }
    findings
}

/// Decisions and the namespace need no unsafe code.
pub fn unsafe_forbidden(repository: &Repository) -> Vec<Finding> {
    SAFE_CRATES
        .iter()
        .filter(|path| {
            repository
                .text(path)
                .is_some_and(|text| !text.lines().any(|line| line == "#![forbid(unsafe_code)]"))
        })
        .map(|path| Finding::of(*path, "needs #![forbid(unsafe_code)]"))
        .collect()
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: Option<char>| {
        character.is_some_and(|character| character.is_alphanumeric() || character == '_')
    };
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open_end = word.ends_with('!') || !joins(after);
        !joins(before) && open_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_when_one_line_too_many_then_found() {
        let fits = "x\n".repeat(MAX_LINES);
        let long = "x\n".repeat(MAX_LINES + 1);
        let repository = Repository::of(&[
            ("a.rs", &fits),
            ("b.rs", &long),
            ("c.md", &long),
            (FIRST_READ, &"x\n".repeat(MAX_LINES_OF_IT + 1)),
        ]);
        let places: Vec<_> = length(&repository).into_iter().map(|found| found.place).collect();
        assert_eq!(places, ["b.rs", FIRST_READ]);
    }

    #[test]
    fn ascii_when_a_dash_is_typographic_then_its_line_is_named() {
        let repository =
            Repository::of(&[("a.rs", "fine\nnot \u{2013} fine\n"), ("a.svg", "\u{e9}")]);
        assert_eq!(
            ascii(&repository),
            [Finding::at("a.rs", 2, "U+2013 in a source: write it as an escape")]
        );
    }

    #[test]
    fn unfinished_when_a_word_is_part_of_another_then_it_is_none() {
        let innocent =
            [INNOCENT[0], "mktemp /tmp/a.XXXXXX", "AUTODOCS", "before nowhere", "my_dbg!(x)"];
        for line in innocent {
            assert!(unfinished(&Repository::of(&[("a.rs", line)])).is_empty(), "{line}");
        }
        for word in UNFINISHED_WORDS.iter().chain(UNFINISHED_MACROS) {
            let line = format!("    // {word} (x)");
            assert_eq!(unfinished(&Repository::of(&[("a.rs", &line)])).len(), 1, "{word}");
        }
        let prose = format!("the macro {}", UNFINISHED_MACROS[0]);
        assert!(unfinished(&Repository::of(&[("a.md", &prose)])).is_empty());
    }

    #[test]
    fn unsafe_when_a_safe_crate_does_not_forbid_it_then_found() {
        let repository = Repository::of(&[
            ("crates/core/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n"),
            ("crates/meta/src/lib.rs", "//! x\n// #![forbid(unsafe_code)]\n"),
        ]);
        let findings = unsafe_forbidden(&repository);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "crates/meta/src/lib.rs");
    }
}
