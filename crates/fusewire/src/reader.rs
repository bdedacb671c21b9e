//! The readers: threads that take requests from the device.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::buffer::Buffer;
use crate::connection::REQUEST_START;
use crate::dispatch::Dispatch;
use crate::gate::Gate;
use crate::handler::Handler;
use crate::session::End;

/// How long a reader waits for a buffer before it looks whether it shall park.
const BUFFER_PATIENCE: Duration = Duration::from_millis(20);

/// What one reader thread works with.
pub(crate) struct Reader<H> {
    pub dispatch: Dispatch<H>,
    pub gate: Arc<Gate>,
    pub index: usize,
    /// Large buffers in use at most, those that readers wait with included.
    pub buffer_limit: usize,
}

impl<H: Handler> Reader<H> {
    /// Serves until the file system is gone or the gate dismisses.
    pub fn run(self) {
        self.gate.accept_signal(self.index);
        let end = self.serve_all();
        let dismissed = end.is_none();
        self.gate.leave_for_good(end, dismissed, &self.dispatch);
    }

    /// Why it ended; `None` when dismissed.
    fn serve_all(&self) -> Option<io::Result<End>> {
        let gate = &*self.gate;
        let mut kept: Option<Buffer> = None;
        loop {
            if !gate.pass() {
                return None;
            }
            // Before reading: with a request in hand there is no way back.
            let pool = self.dispatch.connection.large_pool();
            let Some(mut buffer) =
                kept.take().or_else(|| pool.take_within(self.buffer_limit, BUFFER_PATIENCE))
            else {
                continue;
            };
            buffer = buffer.starting_at(REQUEST_START);
            let read = gate.wait_in(self.index, || {
                rustix::io::read(&self.dispatch.connection, &mut buffer[..])
            });
            match read {
                Ok(0) | Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNRESET) => {
                    return Some(Ok(End::Unmounted));
                }
                Err(Errno::CONNABORTED) => return Some(Ok(End::Aborted)),
                Ok(length) => kept = self.dispatch.serve(buffer, length),
                // ENOENT: the request was aborted while it was being read.
                Err(Errno::INTR | Errno::NOENT) => kept = Some(buffer),
                Err(Errno::AGAIN) => {
                    kept = Some(buffer);
                    self.wait_readable();
                }
                Err(error) => {
                    tracing::error!(%error, "reading requests failed");
                    return Some(Err(error.into()));
                }
            }
        }
    }

    /// Waits for a request (or a signal): the descriptor is in non-blocking mode.
    fn wait_readable(&self) {
        let device = self.dispatch.connection.as_fd();
        // Any outcome leads to another read, which tells.
        let _ = self
            .gate
            .wait_in(self.index, || poll(&mut [PollFd::new(&device, PollFlags::IN)], None));
    }
}
