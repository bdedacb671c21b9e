//! What other nodes may do to a file that this one owns: read it, write it, set its length, and see how
//! it is, as if a program of this node had asked.

use forebay_meta::{Error as MetaError, Record};
use forebay_peer::message::{Fault, Position, Read, Sync, Truncate, Write};
use forebay_types::Ino;
use prost::Message;

use crate::cluster::Cluster;
use crate::cluster::faults::fault;
use crate::cluster::forwarding::{Look, Looked, PAUSE};
use crate::context::Context;
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::node::Node;
use crate::residency::files::FileRef;

/// Attempts of an owner at what others change in the metadata at the same time.
const ATTEMPTS: u32 = 8;

/// What another node asks an owner for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// To see how the file is.
    Look,
    /// The same, and that it keeps the file meanwhile.
    Keep,
    /// To change it.
    Change,
}

/// Does for another node what changes the metadata, and does no harm if it is done twice; again if others
/// changed the same at that moment.
fn steadily<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        let done = (|| {
            fail::fail_point!("node.owner.attempt", |_| Err(MetaError::Conflict(1).into()));
            work()
        })();
        match done {
            Err(NodeError::Meta(MetaError::Conflict(_))) if attempt < ATTEMPTS => {
                std::thread::sleep(PAUSE * attempt);
                attempt += 1;
            }
            done => return done,
        }
    }
}

impl Node {
    /// The record of a file that this node owns, as it is `now` or was a moment ago.
    fn owned(
        &self,
        cluster: &Cluster,
        ino: Ino,
        now: bool,
    ) -> Result<std::sync::Arc<Record>, Fault> {
        match if now { self.meta.get_now(ino) } else { self.meta.get(ino) } {
            Ok(record) if cluster.is_mine(&record) => Ok(record),
            Ok(record) => {
                let owner = record.owner.map(|owner| owner.node.into());
                Err(Fault::NotOwner { owner })
            }
            Err(MetaError::Stale(_)) => Err(Fault::NotOwner { owner: None }),
            Err(error) => Err(fault(error.into())),
        }
    }

    /// Carries out what another node asks for about a file that this one owns.
    fn as_owner<T>(
        &self,
        cluster: &Cluster,
        ino: Ino,
        epoch: u64,
        kind: Service,
        work: impl FnOnce(&FileRef, &std::sync::Arc<Record>) -> Result<T>,
    ) -> Result<T, Fault> {
        if epoch != cluster.epoch() {
            return Err(Fault::WrongEpoch { epoch: cluster.epoch() });
        }
        let change = kind == Service::Change;
        let pin = match kind {
            Service::Look => None,
            Service::Keep | Service::Change => {
                // What is cached may be from before it was given up.
                let is_mine = || self.owned(cluster, ino, true).map(drop);
                Some(cluster.pin_for_peer(ino, is_mine)?)
            }
        };
        let record = self.owned(cluster, ino, false)?;
        let file = self.residency.files.get(ino);
        let in_use = crate::requests::in_use::InUse::new(&file);
        let ready = steadily(|| {
            cluster.match_version(&Context::DAEMON, &file, &record)?;
            self.residency.load(&Context::DAEMON, &file)
        });
        let done = ready.and_then(|()| work(&file, &record));
        drop(in_use);
        let unused = change && file.opens.lock().writers == 0;
        let closed = if unused { steadily(|| self.settle_unused(&file)) } else { Ok(()) };
        if change {
            cluster.pages_replaced(&file);
            // Also without anybody who has it open the kernel may know its length and times.
            self.residency.forget_object(ino, file.is_open());
        }
        drop(pin);
        done.and_then(|done| closed.map(|()| done)).map_err(fault)
    }

    /// What is due after another node has changed a file that no program here has open.
    fn settle_unused(&self, file: &FileRef) -> Result<()> {
        match self.meta.get(file.ino) {
            Ok(record) if record.orphan => {
                self.last_close(file);
                Ok(())
            }
            _ => self.residency.settle(file),
        }
    }

    pub(super) fn read_as_owner(&self, cluster: &Cluster, read: &Read) -> Result<Vec<u8>, Fault> {
        self.as_owner(cluster, Ino(read.ino), cluster.epoch(), Service::Look, |file, _| {
            fail_at!("node.owner.read");
            let mut bytes = vec![0; read.len as usize];
            let location = file.location.read();
            let got = self.residency.read_with_gaps(file, &location, read.offset, &mut bytes)?;
            bytes.truncate(got);
            Ok(bytes)
        })
    }

    pub(super) fn write_as_owner(
        &self,
        cluster: &Cluster,
        write: &Write,
        bytes: &[u8],
    ) -> Result<(u64, u64), Fault> {
        self.as_owner(cluster, Ino(write.ino), write.epoch, Service::Change, |file, record| {
            if file.location.read().place().is_none() {
                steadily(|| self.prepare(&Context::DAEMON, file, record, true))?;
            }
            let write_to = |at| self.write_to(&Context::DAEMON, file, at, bytes);
            let (offset, _) = match write.at {
                Position::At(offset) => steadily(|| write_to(Some(offset)))?,
                // It would be there twice.
                Position::End => write_to(None)?,
            };
            if write.sync {
                steadily(|| self.residency.sync_file(file, false))?;
            }
            fail::fail_point!("node.owner.written");
            Ok((offset, self.length_now(&Context::DAEMON, file)?))
        })
    }

    pub(super) fn truncate_as_owner(
        &self,
        cluster: &Cluster,
        truncate: &Truncate,
    ) -> Result<(), Fault> {
        let ino = Ino(truncate.ino);
        self.as_owner(cluster, ino, truncate.epoch, Service::Change, |_, record| {
            steadily(|| self.truncate(&Context::DAEMON, record, truncate.size))
        })
    }

    pub(super) fn sync_as_owner(&self, cluster: &Cluster, sync: &Sync) -> Result<(), Fault> {
        self.as_owner(cluster, Ino(sync.ino), sync.epoch, Service::Keep, |file, _| {
            steadily(|| {
                self.residency.settle(file)?;
                cluster.safeguard(file)?;
                self.residency.sync_file(file, sync.data_only)
            })
        })
    }

    pub(super) fn look_as_owner(&self, cluster: &Cluster, bytes: &[u8]) -> Result<Looked, Fault> {
        let look = Look::decode(bytes).map_err(|error| Fault::Invalid(error.to_string()))?;
        let ino = Ino(look.ino);
        // Copies are made of a file that is owned until they are known.
        let kind = if look.safe { Service::Keep } else { Service::Look };
        self.as_owner(cluster, ino, look.epoch, kind, |file, record| {
            if look.atime || look.mtime {
                let now = self.meta.get_now(ino)?;
                let times = forebay_meta::Times {
                    atime: look.atime.then_some(now.attr.atime),
                    mtime: look.mtime.then_some(now.attr.mtime),
                    ..Default::default()
                };
                let one_at_a_time = file.times.lock();
                self.residency.set_object_times(file, times);
                drop(one_at_a_time);
                self.attributes_changed(&now);
                self.residency.forget_object(ino, false);
            }
            if look.settle {
                steadily(|| self.residency.settle(file))?;
            }
            if look.safe {
                steadily(|| cluster.safeguard(file))?;
            }
            let (attr, _) = self.residency.live_attr(record);
            let record = self.meta.get(ino)?;
            let dirty = self.residency.is_unsettled(ino);
            let behind = dirty
                || record.is_dirty()
                || record.spilled
                || record.backing.fingerprint.is_none();
            let (mtime, ctime) = (attr.mtime, attr.ctime);
            Ok(Looked {
                size: attr.size,
                mtime: mtime.sec,
                mtime_nsec: mtime.nsec,
                ctime: ctime.sec,
                ctime_nsec: ctime.nsec,
                behind,
            })
        })
    }
}
