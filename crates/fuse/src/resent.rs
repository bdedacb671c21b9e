//! Requests that come again because the daemon died before it answered them.
//!
//! The kernel can't tell which of them were carried out, so each that must not be done twice was
//! noted in the ledger when it was begun, and what it would have changed is looked at. Nobody else
//! can have changed it since: whoever waits for such a request holds the directory's lock in the
//! kernel.

use forebay_node::{Ino, Node, NodeError, Result, Stat};
use fusewire::{Operation, Request};
use rustix::io::Errno;

use crate::answer::Answer;
use crate::ledger::{Before, Call, Ledger};
use crate::serve::Serve;

/// The bit that marks the number of a request that comes again.
const RESENT: u64 = 1 << 63;

/// The number of a request when it came first.
pub fn number(request: &Request) -> u64 {
    request.header().unique & !RESENT
}

/// What is to be noted before a request is carried out; nothing for one that may be done twice.
pub fn call(node: &Node, dir: Ino, operation: &Operation<'_>) -> Option<Call> {
    use Operation as Op;
    let name = match operation {
        Op::Unlink { name } | Op::Rmdir { name } | Op::Rename { old: name, .. } => Some(*name),
        Op::Create { .. }
        | Op::Mkdir { .. }
        | Op::Mknod { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Setxattr { .. }
        | Op::Removexattr { .. } => None,
        _ => return None,
    };
    let ino = name.and_then(|name| node.known_name(dir, name)).map_or(0, |ino| ino.0);
    Some(Call { ino, since: forebay_node::now() })
}

impl Serve<'_> {
    /// The answer to a request that was carried out before; `None` if it is to be carried out.
    pub fn serve_resent(
        &self,
        before: &Before,
        ledger: &Ledger,
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
            Op::Unlink { name } | Op::Rmdir { name } | Op::Rename { old: name, .. }
                if call.ino != 0 && gone(name) =>
            {
                Some(Answer::Done)
            }
            Op::Mkdir { name, .. } | Op::Mknod { name, .. } | Op::Symlink { name, .. } => {
                self.made_since(call, name)?.map(|stat| self.entry(&stat))
            }
            Op::Link { node, name } => {
                let found = self.node.known_name(dir, name) == Some(Ino(*node));
                if found {
                    Some(self.entry(&self.node.getattr(&self.context, Ino(*node))?))
                } else {
                    None
                }
            }
            Op::Create { name, flags, .. } => match self.made_since(call, name)? {
                Some(stat) => {
                    let made = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
                    let flags = flags & !made.cast_unsigned();
                    let opened = self.node.open(&self.context, stat.ino, flags.cast_signed())?;
                    if let Some(handle) = self.node.open_handle(opened.fh) {
                        ledger.note_open(&handle, number);
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
        let known = before.calls.contains_key(&number(self.request));
        known
            && matches!(
                (operation, error),
                (Operation::Setxattr { .. }, NodeError::Posix(Errno::EXIST))
                    | (Operation::Removexattr { .. }, NodeError::Posix(Errno::NODATA))
            )
    }

    fn made_since(&self, call: &Call, name: &[u8]) -> Result<Option<Stat>> {
        let Some(ino) = self.node.known_name(self.ino(), name) else { return Ok(None) };
        let stat = self.node.getattr(&self.context, ino)?;
        Ok((stat.attr.btime >= call.since).then_some(stat))
    }

    fn opened_before(&self, fh: u64, operation: &Operation<'_>) -> Result<Option<Answer>> {
        let Some(handle) = self.node.open_handle(fh) else { return Ok(None) };
        let opened = forebay_node::Opened { fh, mode: handle.open_mode() };
        Ok(match operation {
            Operation::Open { flags, .. } => {
                Some(Answer::Opened(self.manner.opened(opened, *flags)))
            }
            Operation::Create { flags, .. } | Operation::Tmpfile { flags, .. } => {
                let stat = self.node.getattr(&self.context, Ino(handle.ino))?;
                Some(self.created(&stat, opened, *flags))
            }
            _ => None,
        })
    }
}
