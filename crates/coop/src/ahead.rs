//! Reading ahead of a sequential reader, into room that is there.

use crate::Process;
use crate::call::{Call, Kind};
use crate::message::{Access, Action, File, Page, Part};

/// Sequential reads that are not read ahead of after it was of no use.
const READS_SKIPPED: u8 = 16;

impl Process {
    /// Reading ahead has ended; without any page if others had them all.
    pub(crate) fn ahead_done(&mut self, file: File, brought: bool) {
        if let Some(opened) = self.files.get_mut(&file) {
            opened.reads_to_skip = if brought { 0 } else { READS_SKIPPED };
        }
    }

    /// A call is over: reads ahead if it went on where the last one ended.
    pub(crate) fn look_ahead(&mut self, call: &Call, actions: &mut Vec<Action>) {
        if self.options.read_ahead == 0 || call.kind != Kind::Access || call.access == Access::Write
        {
            return;
        }
        let size = u64::from(self.options.page_size);
        let (Some(first), Some(last)) = (call.parts.first(), call.parts.last()) else { return };
        let start = first.index * size + u64::from(first.span.at);
        let end = last.index * size + u64::from(last.span.end());
        let Some(opened) = self.files.get_mut(&call.file) else { return };
        let goes_on = opened.last_end.replace(end) == Some(start);
        // Beyond the length at the open there may be nothing.
        let pages = opened.length.div_ceil(size);
        let busy = self.calls.values().any(|other| other.kind == Kind::Ahead);
        if goes_on && opened.reads_to_skip > 0 {
            opened.reads_to_skip -= 1;
            return;
        }
        if !goes_on || busy {
            return;
        }
        let next = last.index + 1..(last.index + 1 + u64::from(self.options.read_ahead)).min(pages);
        let parts: Vec<Part> = next
            .filter(|index| self.pool.get(Page { file: call.file, index: *index }).is_none())
            .map(|index| Part { index, span: self.whole(), buffer: 0 })
            .collect();
        if parts.is_empty() || (self.pool.available() as usize) < parts.len() {
            return;
        }
        let id = self.own_call();
        let ahead = Call::new(call.file, Access::Read, Kind::Ahead, parts);
        self.calls.insert(id, ahead);
        self.begin(id, false, actions);
    }
}
