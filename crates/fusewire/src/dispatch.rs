//! From a request's bytes to the handler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{self, Wire, opcode};
use crate::buffer::Buffer;
use crate::connection::{Connection, SMALL};
use crate::handler::Handler;
use crate::inflight::Interrupted;
use crate::operation::{Arguments, fixed_size};
use crate::reply::Reply;
use crate::request::Request;

/// What every thread that takes requests works with.
pub(crate) struct Dispatch<H> {
    pub handler: Arc<H>,
    pub connection: Connection,
    /// Set by whoever called [`Handler::destroy`].
    pub destroyed: Arc<AtomicBool>,
}

impl<H> Clone for Dispatch<H> {
    fn clone(&self) -> Self {
        Self {
            handler: Arc::clone(&self.handler),
            connection: self.connection.clone(),
            destroyed: Arc::clone(&self.destroyed),
        }
    }
}

impl<H: Handler> Dispatch<H> {
    /// Serves a request that was read from the device. Returns the buffer if it is not needed any longer.
    pub fn serve(&self, buffer: Buffer, length: usize) -> Option<Buffer> {
        let bytes = &buffer[..length];
        let Some(header) = abi::InHeader::read(bytes) else {
            tracing::error!(length, "a request without a whole header was ignored");
            return Some(buffer);
        };
        let body = &bytes[size_of::<abi::InHeader>()..];
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => self.forget(&header, body),
            opcode::INTERRUPT => self.interrupt(&header, body),
            opcode::DESTROY => {
                self.guard(|| self.destroy_once());
                Reply::new(self.connection.clone(), header.unique).ok();
            }
            opcode::INIT => Reply::new(self.connection.clone(), header.unique).error(libc::EPROTO),
            opcode::NOTIFY_REPLY => {
                return self
                    .dispatch(buffer, length, |connection| Reply::mute(connection, header.unique));
            }
            _ => {
                self.connection.in_flight_table().register(header.unique);
                return self
                    .dispatch(buffer, length, |connection| Reply::new(connection, header.unique));
            }
        }
        Some(buffer)
    }

    fn dispatch(
        &self,
        buffer: Buffer,
        length: usize,
        reply: impl FnOnce(Connection) -> Reply,
    ) -> Option<Buffer> {
        let (owned, kept) = if length <= SMALL {
            let mut small = self.connection.small_pool().take();
            small[..length].copy_from_slice(&buffer[..length]);
            (small, Some(buffer))
        } else {
            (buffer, None)
        };
        self.hand_over(owned, length, reply(self.connection.clone()));
        kept
    }

    /// Gives the handler a request that fills the first `length` bytes of `buffer`.
    pub fn hand_over(&self, buffer: Buffer, length: usize, reply: Reply) {
        match Request::new(buffer, length, self.connection.clone()) {
            Some(request) => self.guard(|| self.handler.handle(request, reply)),
            None => reply.error(libc::EIO),
        }
    }

    fn forget(&self, header: &abi::InHeader, body: &[u8]) {
        let drop_lookups = |node, lookups| self.guard(|| self.handler.forget(node, lookups));
        let decoded = Arguments::split(header.opcode, body, false).and_then(|mut arguments| {
            if header.opcode == opcode::FORGET {
                let abi::ForgetIn { nlookup } = arguments.fixed()?;
                drop_lookups(header.nodeid, nlookup);
                return Ok(());
            }
            let abi::BatchForgetIn { count, .. } = arguments.fixed()?;
            let one = size_of::<abi::ForgetOne>();
            let list = arguments.bytes(u64::from(count) * one as u64)?;
            for forget in list.chunks_exact(one).filter_map(abi::ForgetOne::read) {
                drop_lookups(forget.nodeid, forget.nlookup);
            }
            Ok(())
        });
        if let Err(error) = decoded {
            tracing::error!(%error, "a FORGET was ignored");
        }
    }

    fn interrupt(&self, header: &abi::InHeader, body: &[u8]) {
        debug_assert_eq!(fixed_size(opcode::INTERRUPT, false), size_of::<abi::InterruptIn>());
        let Some(abi::InterruptIn { unique }) = abi::InterruptIn::read(body) else { return };
        match self.connection.in_flight_table().interrupt(unique) {
            Interrupted::Marked(given) => self.guard(|| self.handler.interrupt(given)),
            Interrupted::Retry => {
                // The thread that has the request may be waiting for this CPU.
                std::thread::yield_now();
                // Fails with ENOENT when the request was answered meanwhile, as it should, and also if
                // it came by a ring: then it is marked as soon as its thread registers it.
                let _ = self.connection.send(header.unique, -libc::EAGAIN, &[]);
            }
            Interrupted::GiveUp => {}
        }
    }

    /// Tells the handler that the file system is gone, once.
    pub fn destroy_once(&self) {
        if !self.destroyed.swap(true, Ordering::SeqCst) {
            self.guard(|| self.handler.destroy());
        }
    }

    /// Keeps a panic of the handler from ending the reader; a reply it held answers EIO.
    pub fn guard(&self, call: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            tracing::error!("the handler panicked; its request fails with EIO");
        }
    }
}
