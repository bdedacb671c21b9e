//! The names of the core that this crate works with.

pub(crate) use forebay_core::streams::ChunkId;
pub(crate) use forebay_core::streams::admission::{AdmissionConfig, Assurance, Refusal, Shortage};
pub(crate) use forebay_core::streams::disk::Disk;
pub(crate) use forebay_core::streams::layout::{Extent, Layout};
pub(crate) use forebay_core::streams::machine::{
    self, Action, Actions, Config as MachineConfig, Event, GlitchCause, Machine, ReadId, StreamId,
    Title,
};
pub(crate) use forebay_core::streams::profile::{
    AccessTime, DeviceProfile, Throttle, VERSION as PROFILE_VERSION, Zone,
};
pub(crate) use forebay_core::streams::rate::Rate;
