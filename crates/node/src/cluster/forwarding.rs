//! Files that another node owns and whose programs may write them: read and written through that
//! node, so that nobody loses what somebody else wrote.
//!
//! A handle of such a file keeps in mind who the owner is. The owner carries out each read, write and
//! change of length as if one of its own programs had asked. When it says that it does not own the
//! file any more, or can't be asked, the record tells who does: perhaps nobody, and then this node
//! takes the file over and the handle goes on as one of a file that is here.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_meta::{Attr, Incarnation, RecallAim, Record, Times};
use forebay_peer::message::{Fault, Recall, RecallKind};
use forebay_peer::{Body, Client, Error as PeerError};
use forebay_types::{Ino, Timestamp};
use prost::Message;
use rustix::io::Errno;

use super::{AccessMode, Cluster};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::residency::files::FileRef;

/// How is the file now?
pub(crate) const LOOK: u32 = 16;
/// The longest answer to that, in bytes.
pub(crate) const LOOKED: u32 = 4096;
/// The longest that a call of another node may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(15);
/// The shortest: what is left of a caller's timeout may be less than a round trip.
const LEAST: Duration = Duration::from_millis(500);
/// Between two attempts to find out who owns a file.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// Asks the owner how a file is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Look {
    #[prost(fixed64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// All are to see what was written until now.
    #[prost(bool, tag = "3")]
    pub settle: bool,
    /// The record has times that were set: the bytes follow.
    #[prost(bool, tag = "4")]
    pub atime: bool,
    #[prost(bool, tag = "5")]
    pub mtime: bool,
    /// What was written is to be as safe as after a close.
    #[prost(bool, tag = "6")]
    pub safe: bool,
}

/// How a file is at its owner.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Looked {
    #[prost(uint64, tag = "1")]
    pub size: u64,
    #[prost(int64, tag = "2")]
    pub mtime: i64,
    #[prost(uint32, tag = "3")]
    pub mtime_nsec: u32,
    #[prost(int64, tag = "4")]
    pub ctime: i64,
    #[prost(uint32, tag = "5")]
    pub ctime_nsec: u32,
    /// The backing store does not have all of it.
    #[prost(bool, tag = "6")]
    pub behind: bool,
}

/// What came of asking an owner to give a file up.
pub(crate) enum Recalled {
    /// It has.
    Given,
    /// Its programs can write it.
    InUse,
    /// It can't be asked at the moment.
    Away,
    /// It can't be asked.
    Unknown,
}

/// Whether a failure may be over in a moment: nobody was there, or was about to leave.
fn passes(error: &PeerError) -> bool {
    let fault = matches!(error, PeerError::Fault(Fault::Closing));
    fault
        || matches!(
            error,
            PeerError::Lost { .. } | PeerError::Connect { .. } | PeerError::Resting { .. }
        )
}

pub(crate) fn errno(raw: i32) -> NodeError {
    Errno::from_raw_os_error(raw).into()
}

/// What a failed call means that may be made again at any time: that it is, perhaps of another owner,
/// or an error.
fn judge<T>(answer: Result<T, PeerError>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(PeerError::Fault(Fault::Io { errno: raw })) => Err(errno(raw)),
        Err(PeerError::Fault(Fault::NoSpace)) => Err(Errno::NOSPC.into()),
        Err(PeerError::Lost { .. } | PeerError::TimedOut { .. }) => Ok(None),
        Err(error) if error.not_done() => Ok(None),
        Err(error) => {
            tracing::warn!(
                %error,
                "the node that owns a file gave no usable answer: the program gets EIO"
            );
            Err(Errno::IO.into())
        }
    }
}

/// How long a call may take of somebody who waits until a moment.
pub(crate) fn within(until: Instant) -> Duration {
    WITHIN.min(until.saturating_duration_since(Instant::now())).max(LEAST)
}

impl Cluster {
    /// Asks the owner of a file for something that may be done any number of times; `None` if it does
    /// not own it, or can't be asked.
    pub(crate) fn call_owner<T>(
        &self,
        owner: Incarnation,
        call: impl FnOnce(&Client) -> Result<T, PeerError>,
    ) -> Result<Option<T>> {
        self.peer(owner.node).map_or(Ok(None), |client| judge(call(&client)))
    }

    /// Whether a node that can't be asked may be back in a moment: its daemon is being replaced, or was
    /// started again.
    pub(crate) fn may_come_back(&self, who: Incarnation) -> bool {
        !self.is_dead(who) && self.peer(who.node).is_some()
    }

    /// Asks the owner to give a file up.
    pub(crate) fn recall(&self, ino: Ino, owner: Incarnation) -> Result<Recalled> {
        let Some(client) = self.peer(owner.node) else { return Ok(Recalled::Unknown) };
        let recall = Recall { ino: ino.0, epoch: owner.epoch, kind: RecallKind::Ownership };
        match client.recall(recall, self.config.timeout) {
            Ok(()) => Ok(Recalled::Given),
            Err(error) if passes(&error) && self.may_come_back(owner) => Ok(Recalled::Away),
            Err(PeerError::Fault(Fault::Locked)) => Ok(Recalled::InUse),
            Err(PeerError::Fault(Fault::Io { errno: raw })) => Err(errno(raw)),
            Err(error) => {
                tracing::debug!(%ino, %owner, %error, "the owner of a file can't be asked");
                Ok(Recalled::Unknown)
            }
        }
    }

    /// How a file is at its owner; `None` if that one can't be asked.
    pub(crate) fn look_forwarded(&self, owner: Incarnation, look: &Look) -> Option<Looked> {
        let look = Look { epoch: owner.epoch, ..look.clone() };
        let body = Body::Bytes(look.encode_to_vec());
        let until = Instant::now() + self.config.timeout;
        loop {
            let call = |client: &Client| client.other(LOOK, &body, LOOKED, within(until));
            match self.call_owner(owner, call).ok()? {
                Some(looked) => return Looked::decode(&*looked).ok(),
                None if !self.is_still_owned(Ino(look.ino), owner) || Instant::now() >= until => {
                    return None;
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Whether an owner that was not there is one still, and may be back in a moment.
    pub(crate) fn is_still_owned(&self, ino: Ino, owner: Incarnation) -> bool {
        self.may_come_back(owner)
            && self.meta.get_now(ino).is_ok_and(|record| record.owner == Some(owner))
    }

    /// The owner learns that times of a file were set.
    ///
    /// # Errors
    /// `EHOSTDOWN` if it can't be told, and would put its own over them.
    pub(crate) fn times_forwarded(&self, owner: Incarnation, ino: Ino, times: Times) -> Result<()> {
        let (atime, mtime) = (times.atime.is_some(), times.mtime.is_some());
        let look = Look { ino: ino.0, atime, mtime, ..Look::default() };
        if !atime && !mtime
            || self.look_forwarded(owner, &look).is_some()
            || self.meta.get_now(ino)?.owner != Some(owner)
        {
            return Ok(());
        }
        Err(Errno::HOSTDOWN.into())
    }

    /// The attributes of a file that a program has open here through its owner, as they are there.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the owner does not answer: the record may be of before what was written through
    /// it.
    pub(crate) fn attr_forwarded(
        &self,
        context: &Context,
        record: &Record,
    ) -> Result<Option<Attr>> {
        let elsewhere = |record: &Record| record.owner.filter(|_| self.is_elsewhere(record));
        let Some(mut owner) = elsewhere(record) else { return Ok(None) };
        let ino = record.ino;
        let through = |file: &FileRef| file.cluster.remote_opens.load(Ordering::Acquire) > 0;
        if !self.residency.files.peek(ino).is_some_and(|file| through(&file)) {
            return Ok(None);
        }
        context.wait()?;
        let until = Instant::now() + self.config.timeout;
        let look = Look { ino: ino.0, ..Look::default() };
        loop {
            if let Some(looked) = self.look_forwarded(owner, &look) {
                return Ok(Some(Attr {
                    size: looked.size,
                    mtime: Timestamp::new(looked.mtime, looked.mtime_nsec),
                    ctime: Timestamp::new(looked.ctime, looked.ctime_nsec),
                    ..record.attr.clone()
                }));
            }
            let now = self.meta.get_now(ino)?;
            match elsewhere(&now) {
                None => return Ok(Some(self.residency.live_attr(&now).0)),
                Some(same) if same == owner => {
                    if self.is_read_by_fragments(ino, owner)? {
                        return Ok(Some(now.attr.clone()));
                    }
                    let silent = self.is_silent(owner.node);
                    if silent && self.have_taken_over(ino, owner)? {
                        continue;
                    }
                    let waits = now.copied || self.may_come_back(owner);
                    if Instant::now() >= until || !waits {
                        return Err(Errno::HOSTDOWN.into());
                    }
                }
                Some(next) if Instant::now() < until => owner = next,
                Some(_) => return Err(Errno::HOSTDOWN.into()),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// How a file is opened for reading that another node owns: that node is asked to write it back, or
    /// reads are forwarded to it.
    pub(crate) fn read_mode(
        &self,
        ino: Ino,
        owner: Incarnation,
        until: Instant,
    ) -> Result<AccessMode<'_>> {
        let look = Look { ino: ino.0, settle: true, ..Look::default() };
        match self.look_forwarded(owner, &look) {
            Some(looked) if looked.behind => Ok(AccessMode::Forwarded(owner)),
            Some(_) => Ok(AccessMode::Read),
            None if self.is_read_by_fragments(ino, owner)? => Ok(AccessMode::Forwarded(owner)),
            None => self.ask_owner(ino, owner, RecallAim::Bytes, until).map(|()| AccessMode::Read),
        }
    }
}
