//! The result of a request, apart from the right to send it.

use std::time::Duration;

use forebay_node::KernelGrant;
use fusewire::{Attr, Buffer, DirectoryBuffer, Entry, Lock, Opened, Reply, Statfs};

/// What a request is answered with when it succeeds. Apart from the [`Reply`], so that a request
/// that outlives its client's timeout can be answered by somebody else before.
#[allow(clippy::large_enum_variant, reason = "moved once, from where it is made to the reply")]
pub enum Answer {
    Done,
    Entry(Entry),
    Attr(Attr, Duration),
    Opened(Opened),
    /// A directory; its handle says no more than whether the kernel may keep what it lists.
    OpenedDirectory(Opened),
    Created(Entry, Opened),
    /// So many bytes of the buffer.
    Data(Buffer, usize),
    Bytes(Vec<u8>),
    Written(u32),
    Copied(u64),
    Statfs(Statfs),
    XattrSize(u32),
    Offset(u64),
    Directory(DirectoryBuffer),
    Lock(Lock),
    /// One with what the kernel may keep for a while.
    Kept(Box<Answer>, Vec<KernelGrant>),
}

impl Answer {
    /// Sends it.
    pub fn send(self, reply: Reply) {
        match self {
            Answer::Done => reply.ok(),
            Answer::Entry(entry) => reply.entry(&entry),
            Answer::Attr(attr, valid) => reply.attr(&attr, valid),
            Answer::Opened(opened) => reply.open(&opened),
            Answer::OpenedDirectory(opened) => reply.open(&opened),
            Answer::Created(entry, opened) => reply.created(&entry, &opened),
            Answer::Data(buffer, len) => reply.data(&buffer[..len]),
            Answer::Bytes(bytes) => reply.data(&bytes),
            Answer::Written(bytes) => reply.written(bytes),
            Answer::Copied(bytes) => reply.copied(bytes),
            Answer::Statfs(statfs) => reply.statfs(&statfs),
            Answer::XattrSize(bytes) => reply.xattr_size(bytes),
            Answer::Offset(offset) => reply.lseek(offset),
            Answer::Directory(directory) => reply.directory(directory),
            Answer::Lock(lock) => reply.lock(&lock),
            Answer::Kept(answer, kernel_grants) => {
                answer.send(reply);
                kernel_grants.into_iter().for_each(KernelGrant::answered);
            }
        }
    }

    /// It is not sent: nobody waits for it.
    pub fn drop_unsent(self) {
        if let Answer::Kept(answer, kernel_grants) = self {
            answer.drop_unsent();
            kernel_grants.into_iter().for_each(KernelGrant::answered);
        }
    }

    /// The handle of the node that the client would have got.
    pub fn handle(&self) -> Option<u64> {
        match self {
            Answer::Opened(opened) | Answer::Created(_, opened) => Some(opened.fh),
            Answer::Kept(answer, _) => answer.handle(),
            _ => None,
        }
    }
}
