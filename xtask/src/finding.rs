//! What a check has to say.

use std::fmt;

/// A breach of a rule: where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// A path below the root, or the name of a crate.
    pub place: String,
    /// The line, from 1, where there is one.
    pub line: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

impl Finding {
    /// A finding about a whole file or crate.
    pub fn of(place: impl Into<String>, message: impl Into<String>) -> Self {
        Finding { place: place.into(), line: None, message: message.into() }
    }

    /// A finding about a line, counted from 1.
    pub fn at(place: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Finding { place: place.into(), line: Some(line), message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.place, self.message),
            None => write!(f, "{}: {}", self.place, self.message),
        }
    }
}
