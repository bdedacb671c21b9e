//! Requests that come again because the daemon died before it answered them.
//!
//! The kernel can't tell which of them were carried out, so each that must not be done twice was
//! noted in the journal when it was begun, and what it would have changed is looked at. No program of
//! the mount can have changed it since: whoever waits for such a request holds the directory's lock in
//! the kernel. Others may have, in the backing store: that something is not there, or is, is no proof.

use forebay_node::{Context, Ino, Node, NodeError, Result, Stat};
use fusewire::{Operation, Request};

use crate::answer::Answer;
use crate::errno::errno;
use crate::recovery_journal::{Before, Call, RecoveryJournal};
use crate::serve::Serve;

/// The bit that marks the number of a request that comes again.
const RESENT: u64 = 1 << 63;

/// The number of a request when it came first.
pub fn number(request: &Request) -> u64 {
    first(request.header().unique)
}

/// A number without the mark.
pub fn first(unique: u64) -> u64 {
    unique & !RESENT
}

/// What is to be noted before a request is carried out; nothing for one that may be done twice.
///
/// Of a call on a name it is the inode that has the name now, of one on an extended attribute
/// whether that is there (1) or not (0): afterwards this tells what the call has done from what it
/// found.
pub fn call(node: &Node, context: &Context, about: Ino, operation: &Operation<'_>) -> Option<Call> {
    use Operation as Op;
    let ino = match operation {
        Op::Unlink { name }
        | Op::Rmdir { name }
        | Op::Rename { old: name, .. }
        | Op::Link { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Mknod { name, .. }
        | Op::Symlink { name, .. } => node.known_name(about, name).map_or(0, |ino| ino.0),
        // Whether the file is new shows its age; the most frequent of all looks at nothing.
        Op::Create { .. } => 0,
        // One that is to be read from the backing store first is looked at when it has been.
        Op::Removexattr { name } => u64::from(node.get_xattr(context, about, name).is_ok()),
        Op::Setxattr { name, flags, .. } if flags.cast_signed() == libc::XATTR_CREATE => {
            u64::from(node.get_xattr(context, about, name).is_ok())
        }
        _ => return None,
    };
    Some(Call { ino, since: forebay_node::wall_time() })
}

impl Serve<'_> {
    /// The answer to a request that was carried out before; `None` if it is to be carried out.
    pub fn serve_replayed(
        &self,
        before: &Before,
        journal: &RecoveryJournal,
        operation: &Operation<'_>,
    ) -> Result<Option<Answer>> {
        use Operation as Op;
        let number = number(self.request);
        if let Some(&fh) = before.opened.get(&number)
            && let Some(answer) = self.opened_before(fh, operation)?
        {
            return Ok(Some(answer));
        }
        let Some(call) = before.calls.get(&number) else { return Ok(None) };
        let dir = self.ino();
        let gone = |name| self.node.known_name(dir, name).is_none_or(|ino| ino.0 != call.ino);
        Ok(match operation {
            Op::Unlink { name } | Op::Rmdir { name } if call.ino != 0 && gone(name) => {
                Some(Answer::Done)
            }
            // That the old name is gone says nothing: others may have removed what had it.
            Op::Rename { old, new_parent, new, .. } if call.ino != 0 && gone(old) => {
                let moved = self.node.known_name(Ino(*new_parent), new);
                moved.is_some_and(|ino| ino.0 == call.ino).then_some(Answer::Done)
            }
            // Whatever had the name before has it still: this call did not make it.
            Op::Mkdir { .. } | Op::Mknod { .. } | Op::Symlink { .. } | Op::Link { .. }
                if call.ino != 0 =>
            {
                None
            }
            Op::Mkdir { name, .. } | Op::Mknod { name, .. } | Op::Symlink { name, .. } => {
                self.made_since(call, name)?.map(|stat| self.entry(&stat))
            }
            Op::Link { node, name } => match self.node.known_name(dir, name) {
                Some(ino) if ino == forebay_node::of_node_id(*node).0 => {
                    Some(self.entry(&self.node.getattr(&self.context, ino)?))
                }
                _ => None,
            },
            Op::Create { name, flags, .. } => match self.made_since(call, name)? {
                Some(stat) => {
                    let made = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
                    let flags = flags & !made.cast_unsigned();
                    let opened = self.node.open(&self.context, stat.ino, flags.cast_signed())?;
                    if let Some(handle) = self.node.open_handle(opened.fh) {
                        journal.note_open(&handle, number);
                    }
                    Some(self.created(&stat, opened, flags))
                }
                None => None,
            },
            _ => None,
        })
    }

    /// Whether the failure of a request that comes again is the trace of its first time.
    pub fn is_own_trace(
        &self,
        before: &Before,
        operation: &Operation<'_>,
        error: &NodeError,
    ) -> bool {
        let Some(call) = before.calls.get(&number(self.request)) else { return false };
        // Nobody else changes the attributes of an inode that somebody waits to change.
        let was_there = call.ino != 0;
        match operation {
            Operation::Setxattr { .. } => !was_there && errno(error) == libc::EEXIST,
            Operation::Removexattr { .. } => was_there && errno(error) == libc::ENODATA,
            _ => false,
        }
    }

    fn made_since(&self, call: &Call, name: &[u8]) -> Result<Option<Stat>> {
        let Some(ino) = self.node.known_name(self.ino(), name) else { return Ok(None) };
        let stat = self.node.getattr(&self.context, ino)?;
        // What others have made since is not the call's own.
        let is_own = stat.attr.btime >= call.since && self.node.was_made_here(ino);
        Ok(is_own.then_some(stat))
    }

    fn opened_before(&self, fh: u64, operation: &Operation<'_>) -> Result<Option<Answer>> {
        let Some(handle) = self.node.open_handle(fh) else { return Ok(None) };
        let (mode, alias) = (handle.open_mode(), handle.alias());
        let opened = forebay_node::Opened { fh, mode, alias, dir: None };
        Ok(match operation {
            Operation::Open { flags, .. } => {
                Some(Answer::Opened(self.cache_policy.opened(opened, *flags)))
            }
            Operation::Create { flags, .. } | Operation::Tmpfile { flags, .. } => {
                let stat = self.node.getattr(&self.context, Ino(handle.ino))?;
                Some(self.created(&stat, opened, *flags))
            }
            _ => None,
        })
    }
}
