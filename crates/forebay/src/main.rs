//! The one binary of Forebay.

use std::process::ExitCode;

use forebay::config::MountConfig;
use forebay::control::{ControlError, ControlResult, ErrorKind, OnProgress};
use forebay::{Engine, FsckReport, FsckRequest, Mounted};

/// The engine of a build without a node: everything but serving works.
struct NoNode;

impl NoNode {
    fn refuse<T>() -> ControlResult<T> {
        Err(ControlError::new(ErrorKind::Unsupported, "this build of forebay has no node"))
    }
}

impl Engine for NoNode {
    fn policies(&self) -> &[&str] {
        &["lru", "lfu"]
    }

    fn mount(&self, _: &MountConfig) -> ControlResult<Box<dyn Mounted>> {
        Self::refuse()
    }

    fn fsck(&self, _: &FsckRequest, _: OnProgress<'_>) -> ControlResult<FsckReport> {
        Self::refuse()
    }
}

fn main() -> ExitCode {
    forebay::run(std::env::args_os().collect(), &NoNode).into()
}
