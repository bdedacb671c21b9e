//! The engine behind the command line: a node with a FUSE front.

mod auto;
mod cluster;
mod control;
mod convert;
mod hints;
mod patterns;
mod streams;
mod walk;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::config::MountConfig;
use forebay::control::{
    ClusterLook, ClusterTerms, Control, ControlError, ControlResult, ErrorKind, OnProgress,
    Progress,
};
use forebay::{
    ClusterSetUp, CrashState, Ended, Engine, FsckReport, FsckRequest, HandOver, Keeper, Mounted,
};
use forebay_fuse::{Before, MountOptions, RecoveryJournal, STATE_VERSION, State, Takeover};
use forebay_node::Node;
use fusewire::End;
use parking_lot::Mutex;

use control::NodeControl;

/// How long rings may take to be sealed, while requests wait; it is done in milliseconds, or not at
/// all.
const SEAL_LIMIT: Duration = Duration::from_secs(10);

/// The engine of this build.
pub struct NodeEngine;

impl Engine for NodeEngine {
    fn die_of_panics(&self) -> fn() -> bool {
        forebay_fuse::die_of_panics();
        forebay_fuse::note_panic
    }

    fn policies(&self) -> &[&str] {
        forebay_node::ONLINE_POLICIES
    }

    fn check_tiers(&self, config: &MountConfig) -> ControlResult<()> {
        for tier in &config.tiers {
            forebay_node::check_tier_dir(&tier.dir)
                .map_err(|error| convert::control_error(&error.into()))?;
        }
        forebay_node::check_tiers(&convert::node_config(config)?)
            .map_err(|error| convert::control_error(&error))
    }

    fn mount(
        &self,
        config: &MountConfig,
        keeper: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        forebay_node::arm_fail_points();
        let config = &convert::agreed(config, None)?;
        let node_config = convert::node_config(config)?;
        let sizes = tier_sizes(config)?;
        let node = Node::start(node_config).map_err(|error| convert::control_error(&error))?;
        let options = mount_options(config);
        send_notices(config, keeper.is_some());
        match forebay_fuse::mount(node.clone(), &config.mountpoint, &options, keeper) {
            Ok(front) => Ok(NodeMount::served(config, sizes, node, front)),
            Err(error) => {
                node.stop(Duration::from_secs(10));
                Err(convert::mount_error(&error))
            }
        }
    }

    fn state_version(&self) -> u32 {
        STATE_VERSION
    }

    fn adopt(
        &self,
        config: &MountConfig,
        handed: &HandOver,
        keeper: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        let state = State::decode(&handed.state).map_err(|error| unusable(&error))?;
        adopt_in(&state, config, handed, keeper)
    }

    fn take_back(
        &self,
        config: &MountConfig,
        handed: &HandOver,
        keeper: Option<Keeper<'_>>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        let mut state = State::decode(&handed.state).map_err(|error| unusable(&error))?;
        state.node.was_taken_over();
        adopt_in(&state, config, handed, keeper)
    }

    fn revive(
        &self,
        config: &MountConfig,
        CrashState { device, journal, rings }: CrashState,
        keeper: Keeper<'_>,
    ) -> ControlResult<Arc<dyn Mounted>> {
        let (state, before) = RecoveryJournal::read(&journal).map_err(|error| unusable(&error))?;
        tracing::info!(
            open = state.node.handles.len(),
            under_way = before.calls.len(),
            defects = state.node.defects.len() + before.fatal.len(),
            "the last daemon died"
        );
        go_on(config, Takeover { device, rings, state: &state, before }, Some(keeper))
    }

    fn fsck(&self, request: &FsckRequest, progress: OnProgress<'_>) -> ControlResult<FsckReport> {
        forebay_node::arm_fail_points();
        let cluster = &request.cluster;
        let accepted = request.backing.as_deref().filter(|_| request.accept_store);
        let request = forebay_node::CheckRequest {
            tiers: request.tiers.iter().map(|tier| tier.dir.clone()).collect(),
            backing: request.backing.clone(),
            state_dir: request.state_dir.clone(),
            rebuild: request.rebuild,
            repair: request.repair,
            accept_loss: request.accept_loss,
        };
        let mut on_object = |objects: u64| {
            progress(Progress { files_done: objects, files_total: objects, ..Progress::default() })
        };
        let found = match (cluster, accepted) {
            (None, Some(backing)) => {
                let state_dir = request.state_dir.as_deref();
                forebay_node::accept_store(backing, &request.tiers, state_dir)
            }
            (None, None) => forebay_node::check(&request, &mut on_object),
            (Some((address, replicas)), _) => {
                let address = convert::cluster_address(address)?;
                forebay_node::check_cluster(&address, *replicas, request.repair)
            }
        };
        let found = found.map_err(|error| convert::control_error(&error))?;
        Ok(FsckReport {
            objects: found.objects,
            bytes: found.bytes,
            dirty: found.dirty,
            problems: found.problems,
            repaired: found.repaired,
            inodes: found.inodes,
            names: found.names,
            leftovers: found.leftovers,
            other_store: found.other_store,
            details: found.details,
            set_aside: found.set_aside.into_iter().map(Into::into).collect(),
        })
    }

    fn set_up_cluster(&self, address: &str, new: &ClusterSetUp) -> ControlResult<ClusterTerms> {
        cluster::set_up(address, new)
    }

    fn look_at_cluster(&self, address: &str) -> ControlResult<ClusterLook> {
        cluster::look_at(address)
    }

    fn fail_points(&self) -> Vec<&'static str> {
        forebay_node::fail_points()
    }
}

fn unusable(error: &dyn std::fmt::Display) -> ControlError {
    ControlError::new(ErrorKind::BadState, error.to_string())
}

/// Goes on with a mount that was given away in the given state.
fn adopt_in(
    state: &State,
    config: &MountConfig,
    handed: &HandOver,
    keeper: Option<Keeper<'_>>,
) -> ControlResult<Arc<dyn Mounted>> {
    let device = handed.device.try_clone().map_err(|error| unusable(&error))?;
    let rings = handed.rings.as_ref().map(OwnedFd::try_clone).transpose();
    let rings = rings.map_err(|error| unusable(&error))?;
    go_on(config, Takeover { device, rings, state, before: Before::default() }, keeper)
}

/// Goes on where another daemon has ended.
fn go_on(
    config: &MountConfig,
    takeover: Takeover<'_>,
    keeper: Option<Keeper<'_>>,
) -> ControlResult<Arc<dyn Mounted>> {
    forebay_node::arm_fail_points();
    let since = Instant::now();
    let before = takeover.state.node.membership.as_ref();
    let config = &convert::agreed(config, before)?;
    let node_config = convert::node_config(config)?;
    let sizes = tier_sizes(config)?;
    let node = Node::start_after(node_config, Some(&takeover.state.node))
        .map_err(|error| convert::control_error(&error))?;
    tracing::info!(us = since.elapsed().as_micros(), "state and tiers opened");
    let options = mount_options(config);
    send_notices(config, keeper.is_some());
    let adopted = node.before_it_serves().map_err(|error| convert::control_error(&error));
    let adopted = adopted.and_then(|()| {
        forebay_fuse::adopt(node.clone(), &config.mountpoint, takeover, &options, keeper)
            .map_err(|error| convert::mount_error(&error))
    });
    match adopted {
        Ok(front) => Ok(NodeMount::served(config, sizes, node, front)),
        Err(error) => {
            // Others go on with the mount, and with what programs have open.
            node.step_back(Duration::from_secs(10));
            Err(error)
        }
    }
}

/// Notices are sent by a process of their own. `kept`: another daemon takes the place of this one when it
/// dies.
fn send_notices(config: &MountConfig, kept: bool) {
    let mountpoint = config.mountpoint.clone();
    forebay_fuse::send_notices_by(Box::new(move |device| {
        forebay::courier::start(device, &mountpoint, kept)
    }));
}

fn tier_sizes(config: &MountConfig) -> ControlResult<Vec<u64>> {
    config.tiers.iter().map(convert::tier_size).collect()
}

fn mount_options(config: &MountConfig) -> MountOptions {
    let usual = MountOptions::like(&config.backing);
    MountOptions {
        threads: config.threads,
        transport: convert::transport(config),
        read_only: config.read_only,
        noatime: config.noatime,
        allow_other: config.allow_other.unwrap_or(usual.allow_other),
        suid: config.suid.unwrap_or(usual.suid),
        dev: config.dev.unwrap_or(usual.dev),
        noexec: config.exec.map_or(usual.noexec, |exec| !exec),
        ..usual
    }
}

/// A mount that is being served.
struct NodeMount {
    node: Arc<Node>,
    front: Arc<forebay_fuse::Mounted>,
    control: Arc<NodeControl>,
    limit: Duration,
}

impl NodeMount {
    fn served(
        config: &MountConfig,
        sizes: Vec<u64>,
        node: Arc<Node>,
        front: forebay_fuse::Mounted,
    ) -> Arc<dyn Mounted> {
        let front = Arc::new(front);
        let control =
            Arc::new(NodeControl::new(config.clone(), sizes, node.clone(), front.clone()));
        cluster::obey(&node, &control);
        cluster::take_tasks(&node, config);
        Arc::new(NodeMount { node, front, control, limit: config.drain_timeout })
    }
}

impl Mounted for NodeMount {
    fn control(&self) -> Arc<dyn Control> {
        self.control.clone()
    }

    fn wait(&self) -> Ended {
        match self.front.join() {
            Ok(End::Released) => return Ended::GivenAway,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the connection to the kernel ended badly"),
        }
        Ended::Unmounted
    }

    fn finish(&self) -> ControlResult<()> {
        let limit = self.limit.min(Duration::from_secs(30));
        // Both together within what `umount` waits for.
        self.control.write_rest(limit / 2);
        self.node.stop(limit);
        Ok(())
    }

    fn state_version(&self) -> u32 {
        State::version(self.front.connection().negotiated(), self.node.is_clustered())
    }

    fn give_away(&self, limit: Duration) -> ControlResult<HandOver> {
        let until = Instant::now() + limit;
        self.node.rest(limit).map_err(|error| convert::control_error(&error))?;
        let go_on = |error: ControlError| {
            self.front.resume();
            self.node.go_on();
            error
        };
        let busy = |message: String| ControlError::new(ErrorKind::Busy, message);
        let left = until.saturating_duration_since(Instant::now());
        let since = self.front.park(left).map_err(|count| {
            go_on(busy(format!(
                "{count} requests wait for the backing store: `forebay status` shows them; try \
                 again later, or give it more time with --timeout"
            )))
        })?;
        let elapsed_us = || u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let parked_us = elapsed_us();
        if !self.front.can_leave_waiters() {
            return Err(go_on(busy(
                "programs wait for locks, and this kernel, or io_uring, can't have them ask a new \
                 daemon: try again when they have them"
                    .into(),
            )));
        }
        self.front.seal(SEAL_LIMIT).map_err(|error| go_on(busy(error.to_string())))?;
        let (device, rings) =
            self.front.descriptors().map_err(|error| go_on(busy(error.to_string())))?;
        let sealed_us = elapsed_us();
        let node = self
            .node
            .hand_over_state(Duration::from_secs(2))
            .map_err(|error| go_on(convert::control_error(&error)))?;
        let negotiated = *self.front.connection().negotiated();
        // The readers rest: they need only be told to leave.
        if let Err(error) = self.front.release() {
            tracing::error!(%error, "the readers do not leave");
        }
        let open_files = node.handles.len();
        let listings = self.front.held_listings();
        let state = State { negotiated, node, listings }.encode();
        tracing::info!(
            parked_us,
            sealed_us,
            closed_us = elapsed_us(),
            "requests wait for the next daemon"
        );
        Ok(HandOver { device, rings, state, open_files, since })
    }

    fn after_hand_over(&self, limit: Duration) {
        self.front.send_notices(limit);
    }
}

/// One drain or subtree operation at a time.
type Exclusive = Mutex<()>;
