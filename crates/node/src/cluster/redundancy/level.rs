//! What other nodes are to have of a file, and what they have.

use forebay_core::cluster::redundancy::Redundancy;
use forebay_core::cluster::repair;
use forebay_erasure::fragments::Layout;
use forebay_meta::{Coded, Copies, Incarnation};
use forebay_types::Timestamp;
use rustix::io::Errno;

use crate::error::Result;

/// Segments that a file may have; then it is coded anew.
const MAX_SEGMENTS: usize = 64;

/// What other nodes are to have of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// So many whole copies.
    Copies(usize),
    /// Fragments.
    Fragments {
        /// So many give the file back.
        data: usize,
        /// How many there are.
        count: usize,
    },
}

/// A file at the moment when copies of it are begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot {
    pub size: u64,
    pub mtime: Timestamp,
}

impl Level {
    /// As is asked for; `None` for nothing.
    pub fn of(redundancy: Redundancy) -> Option<Level> {
        match redundancy {
            Redundancy::None => None,
            Redundancy::Replicas { copies, .. } => Some(Level::Copies(copies.into())),
            Redundancy::Code { data, .. } => {
                Some(Level::Fragments { data: data.into(), count: redundancy.others() })
            }
        }
    }

    /// As a file has it.
    pub fn as_made(copies: &Copies) -> Level {
        let count = copies.holders.len();
        match &copies.code {
            Some(code) => Level::Fragments { data: code.data.into(), count },
            None => Level::Copies(count),
        }
    }

    /// How many nodes it takes.
    pub fn nodes(self) -> usize {
        match self {
            Level::Copies(copies) => copies,
            Level::Fragments { count, .. } => count,
        }
    }

    /// Whether copies that a file has will do, if all of them are within reach.
    pub fn is_met_by(self, copies: &Copies) -> bool {
        match (self, Level::as_made(copies)) {
            (Level::Copies(wanted), Level::Copies(there)) => there >= wanted,
            (wanted, there) => wanted == there,
        }
    }

    /// What the planner is told.
    pub fn planned(self) -> repair::Redundancy {
        let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        match self {
            Level::Copies(copies) => repair::Redundancy::Replicas(small(copies + 1)),
            Level::Fragments { data, count } => {
                repair::Redundancy::Whole { data: small(data), fragments: small(count) }
            }
        }
    }

    /// What the metadata are told of a new version.
    pub fn made(
        self,
        version: u64,
        writer: Incarnation,
        now: &Snapshot,
        holders: Vec<u16>,
    ) -> Copies {
        let code = match self {
            Level::Copies(_) => None,
            Level::Fragments { data, .. } => Some(Coded {
                data: u8::try_from(data).unwrap_or(u8::MAX),
                ends: if now.size == 0 { Vec::new() } else { vec![now.size] },
            }),
        };
        Copies { version, writer, size: now.size, mtime: now.mtime, holders, code }
    }

    /// Where pieces lie in the fragments of a file of one segment, if there are fragments.
    pub fn layout(self, size: u64) -> Result<Option<Layout>> {
        let ends: &[u64] = if size == 0 { &[] } else { &[size] };
        match self {
            Level::Copies(_) => Ok(None),
            Level::Fragments { data, .. } => Ok(Some(layout_of(data, ends)?)),
        }
    }
}

fn layout_of(data: usize, ends: &[u64]) -> Result<Layout> {
    Layout::new(data, ends).map_err(|error| {
        tracing::error!(
            %error,
            "the record of a file's fragments makes no sense: what needs them gets EIO. Please \
             report this as a defect"
        );
        Errno::IO.into()
    })
}

/// Where pieces lie in the fragments of a file, if it has fragments.
pub(super) fn layout(copies: &Copies) -> Result<Option<Layout>> {
    copies.code.as_ref().map(|code| layout_of(code.data.into(), &code.ends)).transpose()
}

/// Bytes of the largest of a file's copies or fragments.
pub(super) fn bytes_of_each(copies: &Copies) -> u64 {
    match layout(copies) {
        Ok(Some(layout)) => layout.fragment_bytes(0),
        _ => copies.size,
    }
}

/// Copies after bytes were added at the end; `None` where they are better made anew.
pub(super) fn grown(copies: &Copies, writer: Incarnation, now: &Snapshot) -> Option<Copies> {
    let code = match &copies.code {
        None => None,
        Some(code) if code.ends.len() < MAX_SEGMENTS => {
            let ends = code.ends.iter().copied().chain([now.size]).collect();
            Some(Coded { ends, ..code.clone() })
        }
        Some(_) => return None,
    };
    Some(Copies { writer, size: now.size, mtime: now.mtime, code, ..copies.clone() })
}
