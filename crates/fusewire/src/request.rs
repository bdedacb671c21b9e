//! One request of the kernel, owned.

use crate::abi::{self, UNIQUE_RESEND, Wire};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::error::DecodeError;
use crate::flags::Features;
use crate::inflight::Interrupt;
use crate::operation::{Arguments, Operation};

/// Who asks, and about what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the request, unique on the connection while it is in flight.
    pub unique: u64,
    /// Number of the operation, one of [`opcode`](crate::opcode).
    pub opcode: u32,
    /// The node concerned; for operations on names, the directory.
    pub node: u64,
    /// File system user id of the caller.
    pub uid: u32,
    /// File system group id of the caller.
    pub gid: u32,
    /// Thread id of the caller in the mount's pid namespace; 0 for the kernel itself.
    pub pid: u32,
    /// Bytes of extensions at the end of the request.
    pub extension_size: usize,
}

/// A request, owned, so that it can be moved to another thread.
#[derive(Debug)]
pub struct Request {
    buffer: Buffer,
    length: usize,
    header: Header,
    connection: Connection,
}

impl Request {
    /// Takes the `length` bytes at the start of `buffer`. `None` if there is no whole header.
    pub(crate) fn new(buffer: Buffer, length: usize, connection: Connection) -> Option<Self> {
        let raw = abi::InHeader::read(&buffer[..length])?;
        let header = Header {
            unique: raw.unique,
            opcode: raw.opcode,
            node: raw.nodeid,
            uid: raw.uid,
            gid: raw.gid,
            pid: raw.pid,
            extension_size: usize::from(raw.total_extlen) * 8,
        };
        Some(Self { buffer, length, header, connection })
    }

    /// Who asks, and about what.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What is asked. Names and data borrow from the request.
    ///
    /// # Errors
    /// The bytes are not what the opcode says. Answer `EIO`.
    pub fn operation(&self) -> Result<Operation<'_>, DecodeError> {
        self.arguments()?.decode()
    }

    pub(crate) fn arguments(&self) -> Result<Arguments<'_>, DecodeError> {
        let (body, _) = self.split_extensions()?;
        let extended = self.connection.negotiated().features.contains(Features::SETXATTR_EXT);
        Arguments::split(self.header.opcode, body, extended)
    }

    fn split_extensions(&self) -> Result<(&[u8], &[u8]), DecodeError> {
        let bytes = &self.buffer[..self.length];
        let raw = abi::InHeader::read(bytes).ok_or(DecodeError::Extensions)?;
        if raw.len as usize != self.length {
            let (header, received) = (raw.len as usize, self.length);
            return Err(DecodeError::Length { header, received });
        }
        let body = &bytes[size_of::<abi::InHeader>()..];
        body.len()
            .checked_sub(self.header.extension_size)
            .and_then(|at| body.split_at_checked(at))
            .ok_or(DecodeError::Extensions)
    }

    /// Security contexts and supplementary groups, if they were negotiated
    /// ([`Features::SECURITY_CTX`], [`Features::CREATE_SUPP_GROUP`]).
    pub fn extensions(&self) -> Result<Extensions<'_>, DecodeError> {
        let (_, rest) = self.split_extensions()?;
        let extensions = Extensions { rest };
        let mut walk = extensions;
        while walk.next_extension()?.is_some() {}
        Ok(extensions)
    }

    /// Whether the client was hit by a signal. The answer to give then is `EINTR`.
    pub fn interrupted(&self) -> bool {
        self.connection.in_flight_table().is_interrupted(self.header.unique)
    }

    /// The same, to keep.
    pub fn interrupt_token(&self) -> Interrupt {
        Interrupt::new(self.connection.clone(), self.header.unique)
    }

    /// Whether the kernel sent this request before, to a process that died; it may have been
    /// executed already.
    pub fn is_resent(&self) -> bool {
        self.header.unique & UNIQUE_RESEND != 0
    }

    /// The connection that it came from.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// What a create request brings beside its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extensions<'a> {
    rest: &'a [u8],
}

/// A security context to set on a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// Name of the xattr.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// The next extension: its type (or number of contexts) and its content.
    fn next_extension(&mut self) -> Result<Option<(u32, &'a [u8])>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let header = abi::ExtHeader::read(self.rest).ok_or(DecodeError::Extensions)?;
        let size = header.size as usize;
        if size < size_of::<abi::ExtHeader>() || size > self.rest.len() {
            return Err(DecodeError::Extensions);
        }
        let content = &self.rest[size_of::<abi::ExtHeader>()..size];
        self.rest = self.rest.get(size.next_multiple_of(8)..).unwrap_or(&[]);
        Ok(Some((header.kind, content)))
    }

    /// The supplementary group of the caller that applies (the parent directory's), if any.
    pub fn supplementary_group(&self) -> Option<u32> {
        let mut walk = *self;
        while let Ok(Some((kind, content))) = walk.next_extension() {
            if kind == abi::EXT_GROUPS {
                let group = content.get(4..8)?;
                return Some(u32::from_ne_bytes(group.try_into().ok()?));
            }
        }
        None
    }

    /// The security contexts to set on the new inode.
    pub fn security_contexts(&self) -> impl Iterator<Item = SecurityContext<'a>> + use<'a> {
        let mut walk = *self;
        let mut contexts: &[u8] = &[];
        while let Ok(Some((kind, content))) = walk.next_extension() {
            if kind <= abi::MAX_NR_SECCTX {
                contexts = content;
                break;
            }
        }
        std::iter::from_fn(move || {
            let raw = abi::Secctx::read(contexts)?;
            let rest = &contexts[size_of::<abi::Secctx>()..];
            let end = rest.iter().position(|&byte| byte == 0)?;
            let value = rest.get(end + 1..)?.get(..raw.size as usize)?;
            contexts = &rest[end + 1 + value.len()..];
            Some(SecurityContext { name: &rest[..end], value })
        })
    }
}

#[cfg(test)]
mod tests;
