//! The configuration of a mount: typed, validated, with the origin of every value.
//!
//! Values travel as text from flags, `FOREBAY_*` variables, a TOML file and defaults into
//! [`Settings`], where the first of these sources wins; [`MountConfig`] is what they mean.

mod parse;
mod settings;
mod sources;
mod validate;

pub use parse::{
    ClusterSettings, Coherence, Durability, LogFormat, MountConfig, Passthrough, SpaceSize,
    StreamDevice, StreamSettings, Throttle, TierConfig, Transport, Writeback,
};
pub use parse::{SECRET_FILE, cluster_address};
pub use settings::{SETTINGS, Setting, Settings, Value, ValueKind};
pub use sources::{
    FileSource, Origin, check_environment, nearest, offer_environment, offer_mount_options,
};
pub use validate::{
    CAP_SYS_ADMIN, Facts, Finding, MOUNTED_ALREADY, SystemFacts, check_parents, has_capability,
    validate,
};
