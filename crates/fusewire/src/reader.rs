//! The readers: threads that take requests from the device.
//!
//! All of them share one open description of the device. None has a clone of its own: to close a
//! clone fails what is under way on it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::buffer::Buffer;
use crate::connection::REQUEST_START;
use crate::dispatch::Dispatch;
use crate::gate::{Gate, Leaving};
use crate::handler::Handler;
use crate::session::End;

/// How long a reader waits for a buffer before it looks whether it shall park.
const BUFFER_TIMEOUT: Duration = Duration::from_millis(20);

/// How often in a row a thread that takes requests tries again after an error that nobody expects, as when the kernel has
/// no memory for a moment, and how long it waits before.
pub(crate) const ODD_ERRORS: u32 = 100;
pub(crate) const ODD_PAUSE: Duration = Duration::from_millis(100);

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
        let why = self.serve_all();
        self.gate.leave_for_good(why, &self.dispatch);
    }

    fn serve_all(&self) -> Leaving {
        let gate = &*self.gate;
        let mut odd = 0;
        let mut kept: Option<Buffer> = None;
        loop {
            if !gate.pass() {
                return Leaving::Dismissed;
            }
            // Before reading: with a request in hand there is no way back.
            let pool = self.dispatch.connection.large_pool();
            let Some(mut buffer) =
                kept.take().or_else(|| pool.take_within(self.buffer_limit, BUFFER_TIMEOUT))
            else {
                continue;
            };
            buffer = buffer.starting_at(REQUEST_START);
            let read = gate.wait_in(self.index, || {
                rustix::io::read(&self.dispatch.connection, &mut buffer[..])
            });
            match read {
                Ok(0) | Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNRESET) => {
                    return Leaving::Ended(Some(End::Unmounted));
                }
                Err(Errno::CONNABORTED) => return Leaving::Ended(Some(End::Aborted)),
                Ok(length) => {
                    odd = 0;
                    kept = self.dispatch.serve(buffer, length);
                }
                // ENOENT: the request was aborted while it was being read.
                Err(Errno::INTR | Errno::NOENT) => kept = Some(buffer),
                Err(Errno::AGAIN) => {
                    kept = Some(buffer);
                    self.wait_readable();
                }
                Err(error) if odd < ODD_ERRORS => {
                    if odd == 0 {
                        tracing::error!(%error, "reading requests failed; it is tried again");
                    }
                    odd += 1;
                    kept = Some(buffer);
                    std::thread::sleep(ODD_PAUSE);
                }
                Err(error) => {
                    tracing::error!(%error, "reading requests fails: a reader ends");
                    return Leaving::Failed(error.into());
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
