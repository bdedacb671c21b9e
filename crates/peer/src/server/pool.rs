//! Threads that carry out requests.

use crossbeam_channel::Receiver;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::connection::Connection;
use super::spawn;
use crate::buffer::Buffer;
use crate::error::Result;
use crate::message::{Fault, Request};
use crate::service::{Call, Service, carry_out};

/// A request that waits for a thread.
pub(super) struct Job {
    pub connection: Arc<Connection>,
    pub id: u64,
    pub call: Call,
    pub request: Request,
    pub bytes: Buffer,
}

/// A thread that carries out requests until nobody can send any.
pub(super) fn worker(
    name: &str,
    jobs: Receiver<Job>,
    service: Arc<dyn Service>,
) -> Result<JoinHandle<()>> {
    spawn(name, move || {
        for job in jobs {
            let Job { connection, id, call, request, bytes } = job;
            let answer = match call.left().is_zero() {
                true => Err(Fault::Busy { pause: std::time::Duration::from_millis(20) }),
                // A defect of the service must not take a thread from all others.
                false => {
                    catch_unwind(AssertUnwindSafe(|| carry_out(&*service, &call, &request, bytes)))
                        .unwrap_or_else(|_| {
                            tracing::error!(?request, "the service panicked");
                            Err(Fault::Io { errno: rustix::io::Errno::IO.raw_os_error() })
                        })
                }
            };
            connection.answer(id, answer);
        }
    })
}
