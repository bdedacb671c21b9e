//! The result of a check, and the three assertions that checks are written with.

use std::fmt;
use std::io;
use std::panic::Location;

use rustix::io::Errno;

/// Why a check did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The subject broke the law under test; the text says where and how.
    Failed(String),
    /// The check could not run here (a missing program, no privilege); the text says what it needs.
    Skipped(String),
}

/// What a check returns.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with the caller's position in front of `text`.
    #[track_caller]
    pub fn at(text: impl fmt::Display) -> Self {
        let place = Location::caller();
        Self::Failed(format!("{}:{}: {text}", place.file(), place.line()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) => out.write_str(text),
            Self::Skipped(text) => write!(out, "skipped: {text}"),
        }
    }
}

impl From<Errno> for Failure {
    #[track_caller]
    fn from(errno: Errno) -> Self {
        Self::at(format_args!("unexpected {errno:?}"))
    }
}

impl From<io::Error> for Failure {
    #[track_caller]
    fn from(error: io::Error) -> Self {
        Self::at(format_args!("unexpected error: {error}"))
    }
}

impl From<crate::subject::SubjectError> for Failure {
    #[track_caller]
    fn from(error: crate::subject::SubjectError) -> Self {
        Self::at(error)
    }
}

/// Fails the enclosing check unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($cond:expr $(,)?) => {
        $crate::ensure!($cond, "not true: {}", stringify!($cond))
    };
    ($cond:expr, $($text:tt)+) => {
        if !$cond {
            return Err($crate::Failure::at(format_args!($($text)+)));
        }
    };
}

/// Fails the enclosing check unless both sides are equal, and prints both.
#[macro_export]
macro_rules! equal {
    ($got:expr, $want:expr $(,)?) => {
        match (&$got, &$want) {
            (got, want) => {
                $crate::ensure!(*got == *want, "{} is {got:?}, not {want:?}", stringify!($got))
            }
        }
    };
}

/// Fails the enclosing check unless the call fails with one of the named errnos.
#[macro_export]
macro_rules! fails {
    ($call:expr, $($errno:ident)|+) => {
        match $call {
            Err($(::rustix::io::Errno::$errno)|+) => {}
            Err(other) => return Err($crate::Failure::at(format_args!(
                "{} failed with {other:?}, not {}", stringify!($call), stringify!($($errno)|+)
            ))),
            Ok(_) => return Err($crate::Failure::at(format_args!(
                "{} succeeded, not {}", stringify!($call), stringify!($($errno)|+)
            ))),
        }
    };
}
