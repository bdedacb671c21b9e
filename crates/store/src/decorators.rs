//! Decorators: slow, failing, stuck and forgetful devices, for tests and demonstrations.
//!
//! [`InterceptedTier`] and [`InterceptedBacking`] ask an [`Interceptor`] before every operation;
//! [`VolatileTier`] forgets what was not synced when told to crash. Files behind decorators give no
//! descriptor ([`crate::Bytes::fd`] is `None`), so that no byte takes another way.

mod backing;
mod faults;
mod folding;
mod numbers;
mod tier;
mod volatile;

pub use backing::InterceptedBacking;
pub use faults::{Flaky, Rule, Stuck, Throttled};
pub use folding::FoldingBacking;
pub use numbers::RenumberedBacking;
pub use tier::InterceptedTier;
pub use volatile::VolatileTier;

use std::path::Path;
use std::sync::Arc;

use crate::{Result, StoreError};

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Operation {
    Read,
    Write,
    Sync,
    SetLen,
    Allocate,
    Stat,
    Seek,
    SetAttributes,
    Header,
    Map,
    Create,
    Open,
    Remove,
    Rename,
    Link,
    List,
    Xattr,
    Usage,
    Lock,
    Commit,
    Limbo,
    Clean,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Pass,
    /// It fails with this errno and does nothing.
    Fail(i32),
    /// It is done, and its answer is lost on the way: it fails with this errno all the same. Where
    /// nothing would remain of it, and on tiers unless it sets a header, it just fails.
    Lost(i32),
    /// A write puts down its first bytes only and then fails with the errno, as when power or
    /// space end in the middle; any other operation just fails.
    Torn {
        /// Bytes that are written.
        bytes: u64,
        /// Error that is reported.
        errno: i32,
    },
}

/// Is asked before every operation; may sleep.
pub trait Interceptor: Send + Sync {
    /// Decides about an operation that moves `bytes` bytes of data (0 where none are), or sets an
    /// extended attribute of so many bytes.
    fn before(&self, operation: Operation, bytes: u64) -> Verdict;

    /// The same where the operation is about a name, or about a file that was opened by that path.
    fn before_at(&self, operation: Operation, bytes: u64, _label: &Path) -> Verdict {
        self.before(operation, bytes)
    }

    /// Hears that an operation that was let pass has come to its end, and that its answer is about to
    /// be given; may sleep.
    fn after(&self, _operation: Operation) {}
}

/// Lets everything pass: for checking that the decorators change nothing by themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transparent;

impl Interceptor for Transparent {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }
}

fn ask(by: &Arc<dyn Interceptor>, operation: Operation, label: &Path) -> Result<()> {
    match by.before_at(operation, 0, label) {
        Verdict::Pass => Ok(()),
        Verdict::Fail(errno) | Verdict::Lost(errno) | Verdict::Torn { errno, .. } => {
            Err(StoreError::errno_of("(injected fault)", label, errno))
        }
    }
}

/// Asks about an operation and does it, unless it is to fail before.
fn ask_and<T>(
    by: &Arc<dyn Interceptor>,
    operation: Operation,
    label: &Path,
    carry_out: impl FnOnce() -> Result<T>,
) -> Result<T> {
    ask_about(by, operation, 0, label, carry_out)
}

/// The same of an operation on so many bytes.
fn ask_about<T>(
    by: &Arc<dyn Interceptor>,
    operation: Operation,
    bytes: u64,
    label: &Path,
    carry_out: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let errno = match by.before_at(operation, bytes, label) {
        Verdict::Pass => {
            let done = carry_out();
            by.after(operation);
            return done;
        }
        Verdict::Lost(errno) => carry_out().map(|_| errno)?,
        Verdict::Fail(errno) | Verdict::Torn { errno, .. } => errno,
    };
    Err(StoreError::errno_of("(injected fault)", label, errno))
}

/// Implements [`crate::Bytes`] for a type with fields `inner` (any `Bytes`) and `by`.
macro_rules! intercept_bytes {
    ($type:ty) => {
        impl crate::Bytes for $type {
            fn read_at(&self, buffer: &mut [u8], offset: u64) -> crate::Result<usize> {
                let len = buffer.len() as u64;
                match self.by.before_at(Operation::Read, len, self.inner.label()) {
                    Verdict::Pass => self.inner.read_at(buffer, offset),
                    Verdict::Fail(errno) | Verdict::Lost(errno) | Verdict::Torn { errno, .. } => {
                        Err(StoreError::errno_of(
                            "(injected fault) read",
                            self.inner.label(),
                            errno,
                        ))
                    }
                }
            }
            fn write_at(&self, data: &[u8], offset: u64) -> crate::Result<usize> {
                let len = data.len() as u64;
                let errno = match self.by.before_at(Operation::Write, len, self.inner.label()) {
                    Verdict::Pass => return self.inner.write_at(data, offset),
                    Verdict::Fail(errno) => errno,
                    Verdict::Lost(errno) => self.inner.write_at(data, offset).map(|_| errno)?,
                    Verdict::Torn { bytes, errno } => {
                        let len = data.len().min(bytes as usize);
                        self.inner.write_at(&data[..len], offset)?;
                        errno
                    }
                };
                Err(StoreError::errno_of("(injected fault) write", self.inner.label(), errno))
            }
            fn sync(&self, data_only: bool) -> crate::Result<()> {
                ask_and(&self.by, Operation::Sync, self.inner.label(), || {
                    self.inner.sync(data_only)
                })
            }
            fn set_len(&self, len: u64) -> crate::Result<()> {
                let label = self.inner.label();
                ask_about(&self.by, Operation::SetLen, len, label, || self.inner.set_len(len))
            }
            fn stat(&self) -> crate::Result<crate::Attributes> {
                ask_and(&self.by, Operation::Stat, self.inner.label(), || self.inner.stat())
            }
            fn allocate(&self, at: u64, len: u64, mode: crate::AllocateMode) -> crate::Result<()> {
                ask_and(&self.by, Operation::Allocate, self.inner.label(), || {
                    self.inner.allocate(at, len, mode)
                })
            }
            fn punch(&self, offset: u64, len: u64) -> crate::Result<()> {
                ask_and(&self.by, Operation::Allocate, self.inner.label(), || {
                    self.inner.punch(offset, len)
                })
            }
            fn seek_data(&self, offset: u64) -> crate::Result<Option<u64>> {
                ask_and(&self.by, Operation::Seek, self.inner.label(), || {
                    self.inner.seek_data(offset)
                })
            }
            fn seek_hole(&self, offset: u64) -> crate::Result<Option<u64>> {
                ask_and(&self.by, Operation::Seek, self.inner.label(), || {
                    self.inner.seek_hole(offset)
                })
            }
            fn set_times(
                &self,
                atime: Option<crate::Timestamp>,
                mtime: Option<crate::Timestamp>,
            ) -> crate::Result<()> {
                ask_and(&self.by, Operation::SetAttributes, self.inner.label(), || {
                    self.inner.set_times(atime, mtime)
                })
            }
            fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
                None
            }
            fn label(&self) -> &std::path::Path {
                self.inner.label()
            }
        }
    };
}

use intercept_bytes;
