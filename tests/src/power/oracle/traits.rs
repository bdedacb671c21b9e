//! What a file or a directory has besides bytes and names.

use super::file::end_with;

/// Permissions, and one extended attribute: of each first the durable one, then those since. None at all:
/// nobody asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Traits {
    modes: Vec<u32>,
    marks: Vec<Option<u64>>,
}

impl Traits {
    /// The permissions change, for the first time from those of what is `new`.
    pub(super) fn set_mode(&mut self, new: u32, mode: u32) {
        if self.modes.is_empty() {
            self.modes.push(new);
        }
        self.modes.push(mode);
    }

    pub(super) fn set_mark(&mut self, mark: u64) {
        if self.marks.is_empty() {
            self.marks.push(None);
        }
        self.marks.push(Some(mark));
    }

    pub(super) fn durable(&mut self) {
        self.modes.drain(..self.modes.len().saturating_sub(1));
        self.marks.drain(..self.marks.len().saturating_sub(1));
    }

    /// Compares what is found with what it may be, and goes on from there.
    pub(super) fn found(&mut self, mode: u32, mark: Option<u64>) -> Option<String> {
        let mut wrong = Vec::new();
        if !self.modes.is_empty() {
            if !self.modes.contains(&mode) {
                let may = self.modes.iter().map(|mode| format!("{mode:o}")).collect::<Vec<_>>();
                wrong.push(format!("mode {mode:o}, none of {} that may be", may.join(" ")));
            }
            end_with(&mut self.modes, mode);
        }
        if !self.marks.is_empty() {
            if !self.marks.contains(&mark) {
                wrong.push(format!("mark {mark:?}, none of {:?} that may be", self.marks));
            }
            end_with(&mut self.marks, mark);
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}
