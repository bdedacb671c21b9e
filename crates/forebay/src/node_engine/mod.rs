//! The engine behind the command line: a node with a FUSE front.

mod control;
mod convert;
mod hints;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use forebay::config::MountConfig;
use forebay::control::{Control, ControlResult, OnProgress, Progress};
use forebay::{Engine, FsckReport, FsckRequest, Mounted};
use forebay_fuse::MountOptions;
use forebay_node::Node;
use parking_lot::Mutex;

use control::NodeControl;

/// The engine of this build.
pub struct NodeEngine;

impl Engine for NodeEngine {
    fn policies(&self) -> &[&str] {
        forebay_node::ONLINE_POLICIES
    }

    fn check_tiers(&self, config: &MountConfig) -> ControlResult<()> {
        for tier in &config.tiers {
            forebay_node::check_tier_dir(&tier.dir)
                .map_err(|error| convert::control_error(&error.into()))?;
        }
        Ok(())
    }

    fn mount(&self, config: &MountConfig) -> ControlResult<Box<dyn Mounted>> {
        forebay_node::arm_fail_points();
        let node_config = convert::node_config(config)?;
        let sizes =
            config.tiers.iter().map(convert::tier_size).collect::<ControlResult<Vec<_>>>()?;
        let node = Node::start(node_config).map_err(|error| convert::control_error(&error))?;
        let usual = MountOptions::like(&config.backing);
        let options = MountOptions {
            threads: config.threads,
            transport: convert::transport(config),
            read_only: config.read_only,
            allow_other: config.allow_other.unwrap_or(usual.allow_other),
            suid: config.suid.unwrap_or(usual.suid),
            dev: config.dev.unwrap_or(usual.dev),
            noexec: config.exec.map_or(usual.noexec, |exec| !exec),
            ..usual
        };
        let front = forebay_fuse::mount(node.clone(), &config.mountpoint, &options);
        let front = match front {
            Ok(front) => Arc::new(front),
            Err(error) => {
                node.stop(Duration::from_secs(10));
                return Err(convert::mount_error(&error));
            }
        };
        let control =
            Arc::new(NodeControl::new(config.clone(), sizes, node.clone(), front.clone()));
        Ok(Box::new(NodeMount { node, front, control, limit: config.drain_timeout }))
    }

    fn fsck(&self, request: &FsckRequest, progress: OnProgress<'_>) -> ControlResult<FsckReport> {
        let request = forebay_node::CheckRequest {
            tiers: request.tiers.iter().map(|tier| tier.dir.clone()).collect(),
            backing: request.backing.clone(),
            state_dir: request.state_dir.clone(),
            rebuild: request.rebuild,
            repair: request.repair,
        };
        let mut on_object = |objects: u64| {
            progress(Progress { files_done: objects, files_total: objects, ..Progress::default() })
        };
        let found = forebay_node::check(&request, &mut on_object)
            .map_err(|error| convert::control_error(&error))?;
        Ok(FsckReport {
            objects: found.objects,
            bytes: found.bytes,
            dirty: found.dirty,
            problems: found.problems,
            repaired: found.repaired,
            leftovers: found.leftovers,
            details: found.details,
        })
    }

    fn fail_points(&self) -> Vec<&'static str> {
        forebay_node::fail_points()
    }
}

/// A mount that is being served.
struct NodeMount {
    node: Arc<Node>,
    front: Arc<forebay_fuse::Mounted>,
    control: Arc<NodeControl>,
    limit: Duration,
}

impl Mounted for NodeMount {
    fn control(&self) -> Arc<dyn Control> {
        self.control.clone()
    }

    fn wait(self: Box<Self>) -> ControlResult<()> {
        if let Err(error) = self.front.join() {
            tracing::warn!(%error, "the connection to the kernel ended badly");
        }
        self.node.stop(self.limit.min(Duration::from_secs(30)));
        Ok(())
    }
}

/// One drain or subtree operation at a time.
type Exclusive = Mutex<()>;
