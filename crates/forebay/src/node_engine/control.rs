//! What a running daemon answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::config::MountConfig;
use forebay::control::{
    Backlog, BusyFile, BytesBySource, ClusterReply, ClusterRequest, Conflict, Control,
    ControlError, ControlResult, Coverage, Dirty, DirtyFile, ErrorKind, HintPart, Location,
    LostChanges, Named, OnProgress, Outcome, Passthrough, Patterns, PolicySnapshot, Progress,
    Recorded, Refusal, RefusedFile, SetAsideWork, Shutdown, Status, StuckOperation, TierStatus,
    WirePath,
};
use forebay_fuse::Mounted;
use forebay_node::metrics::{ErrorClass, RefusalReason, Source};
use forebay_node::{Coverage as Resident, FileKind, Ino, Node, NodeError};
use parking_lot::Mutex;

use super::Exclusive;
use super::auto::{self, Auto};
use super::convert::{control_error, wire_path};
use super::hints;
use super::patterns;
use super::streams;
use super::walk::{Done, Headway, Scope, add_failures, each_file};

/// Why a file could not be brought to a tier.
const NO_ROOM: &str = "no tier has room for it, beside what is pinned or in use";
const PAST_THE_TIERS: &str = "was written past the tiers; `forebay sync` it first";

/// Entries of lists in a status.
const LISTED: usize = 100;
/// Files in the list of the busiest.
const BUSIEST: usize = 20;
/// A request that waits longer than this is worth a look.
const SLOW: Duration = Duration::from_secs(2);

/// A request that has waited this long is not merely under way.
const HUNG: Duration = Duration::from_secs(1);

/// The control of one mount.
pub struct NodeControl {
    config: MountConfig,
    /// Sizes of the tiers in bytes, with the reserve.
    sizes: Vec<u64>,
    node: Arc<Node>,
    front: Arc<Mounted>,
    auto: Option<Arc<Auto>>,
    started: Instant,
    draining: Exclusive,
    /// Whether the last drain left nothing but what was in use.
    drained: AtomicBool,
    /// Whether it was this daemon that was asked to end the mount, not the kernel, as by umount(8).
    asked_to_end: AtomicBool,
}

/// What others have unmounted is written back as long as less is left at least so often.
const STALLED: Duration = Duration::from_secs(15);

impl NodeControl {
    /// The control of `node`, mounted as `front`.
    pub fn new(config: MountConfig, sizes: Vec<u64>, node: Arc<Node>, front: Arc<Mounted>) -> Self {
        let auto = auto::start(&node, &config);
        NodeControl {
            auto,
            config,
            sizes,
            node,
            front,
            started: Instant::now(),
            draining: Mutex::new(()),
            drained: AtomicBool::new(false),
            asked_to_end: AtomicBool::new(false),
        }
    }

    fn tiers(&self) -> Vec<TierStatus> {
        self.node
            .tier_reports()
            .into_iter()
            .zip(&self.sizes)
            .map(|(tier, &size)| TierStatus {
                dir: tier.dir.into(),
                size_bytes: size,
                used_bytes: tier.used,
                reserved_bytes: tier.promised,
                dirty_bytes: tier.dirty,
                pinned_bytes: tier.pinned,
                objects: tier.objects,
                fs_free_bytes: tier.fs_free,
                failed: tier.failed,
            })
            .collect()
    }

    fn dirty(&self) -> Dirty {
        let (mut files, mut bytes) = self.node.residency().spilled_files();
        for tier in self.node.tier_reports() {
            files += tier.dirty_objects;
            bytes += tier.dirty;
        }
        files += self.lost().files + self.unseen().files;
        let list = self.node.dirty_files(LISTED).into_iter().map(|file| DirtyFile {
            path: wire_path(file.path),
            bytes: file.bytes,
            open: file.open,
            age_s: file.age_s,
            last_error: file.last_error,
        });
        let (oldest_s, _) = self.node.oldest();
        Dirty { files, bytes, oldest_s, list: list.collect() }
    }

    fn lost(&self) -> Named {
        let lost = self.node.residency().lost_files();
        Named { files: lost.files, list: lost.list.into_iter().map(wire_path).collect() }
    }

    fn unseen(&self) -> Named {
        let unseen = self.node.residency().unseen_here();
        Named { files: unseen.files, list: unseen.list.into_iter().map(wire_path).collect() }
    }

    fn lost_changes(&self) -> LostChanges {
        let lost = self.node.residency().lost_changes();
        LostChanges {
            changes: lost.changes,
            paths: lost.paths.into_iter().map(wire_path).collect(),
            kept: lost.kept.map(Into::into).unwrap_or_default(),
        }
    }

    fn set_aside(&self) -> Named {
        let kept = self.node.residency().set_aside();
        Named { files: kept.files, list: kept.list.into_iter().map(Into::into).collect() }
    }

    fn backlog(&self) -> Backlog {
        let list = self.node.unwritten_names(LISTED).into_iter().map(wire_path);
        Backlog {
            entries: self.node.writeback().backlog_len(),
            oldest_s: self.node.oldest().1,
            list: list.collect(),
            last_error: self.node.writeback().last_backlog_error(),
        }
    }

    fn transport(&self) -> &'static str {
        if self.front.running().is_on_rings() { "uring" } else { "classic" }
    }

    fn passthrough(&self) -> Passthrough {
        let counts = self.node.metrics();
        let refusal = self.node.residency().passthrough_refusal();
        let mode = match self.config.passthrough {
            _ if refusal.is_some() => "off",
            forebay::config::Passthrough::Off => "off",
            forebay::config::Passthrough::Read => "read",
            forebay::config::Passthrough::ReadWrite => "readwrite",
        };
        Passthrough {
            mode: mode.into(),
            reason: refusal.map(|refusal| why_off(refusal).into()),
            opens: counts.passthrough_opens.get(),
            refusals: RefusalReason::ALL
                .iter()
                .map(|&reason| Refusal {
                    reason: reason.as_str().into(),
                    opens: counts.passthrough_refusals.of(reason).get(),
                })
                .filter(|refusal| refusal.opens > 0)
                .collect(),
        }
    }

    /// What waits for a device longer than it should: requests of programs, and files being written
    /// back.
    fn stuck(&self) -> Vec<StuckOperation> {
        let requests = self.front.stuck(SLOW).into_iter().map(|stuck| {
            let given_up = if stuck.given_up { ", given up" } else { "" };
            let reader = if stuck.holds_reader { ", holds up a reader" } else { "" };
            let name = forebay_fuse::operation_name(stuck.opcode);
            StuckOperation {
                what: format!("{name} (process {}{given_up}{reader})", stuck.pid),
                path: wire_path(self.node.path_of(Ino(stuck.ino))),
                waiting_s: stuck.waiting.as_secs(),
            }
        });
        let writes = self.node.long_work(self.config.backing_timeout).into_iter().map(|work| {
            StuckOperation {
                what: "write-back".into(),
                path: wire_path(work.path),
                waiting_s: work.since.as_secs(),
            }
        });
        requests.chain(writes).take(LISTED).collect()
    }

    /// Requests of programs, also of such as wait no more, that wait for the backing store when the
    /// time is over.
    fn hung(&self, until: Instant) -> u64 {
        loop {
            let waiting = self.front.stuck(HUNG).len();
            if waiting == 0 || Instant::now() >= until {
                return u64::try_from(waiting).unwrap_or(u64::MAX);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Errors given to programs that were not their own doing.
    fn errors(&self) -> u64 {
        let errors = &self.node.metrics().errors;
        ErrorClass::ALL.iter().map(|&class| errors.of(class).get()).sum()
    }

    fn busiest(&self) -> Vec<BusyFile> {
        let files = self.node.busiest_files(BUSIEST).into_iter();
        files
            .map(|file| BusyFile {
                path: wire_path(file.path),
                opens: file.opens,
                bytes: file.bytes,
                resident: file.resident,
            })
            .collect()
    }

    fn location(&self, path: &WirePath) -> ControlResult<Location> {
        let (found, nodes) = self
            .node
            .find_path(path.as_path())
            .and_then(|ino| {
                let found = self.node.whereabouts(ino)?;
                let is_file = found.kind == FileKind::Regular;
                let nodes = match self.node.cluster() {
                    Some(cluster) if is_file => cluster.nodes_with(ino)?,
                    _ => Vec::new(),
                };
                Ok((found, nodes))
            })
            .map_err(|error| ControlError::new(ErrorKind::Failed, format!("{path}: {error}")))?;
        let kind = match found.kind {
            FileKind::Regular => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
            FileKind::CharDevice => "char-device",
            FileKind::BlockDevice => "block-device",
        };
        let backing = found.backing.unwrap_or_else(|| path_bytes(path.as_path()));
        Ok(Location {
            path: path.clone(),
            kind: kind.into(),
            size_bytes: found.size,
            residency: match found.residency {
                Resident::Absent => Coverage::Absent,
                Resident::Partial => Coverage::Partial,
                Resident::Whole => Coverage::Whole,
            },
            resident_bytes: found.resident_bytes,
            tier: found
                .tier
                .and_then(|index| self.config.tiers.get(index))
                .map(|tier| tier.dir.clone().into()),
            dirty: found.dirty,
            pinned: found.pinned,
            backing: Some(self.config.backing.join(as_path(&backing)).into()),
            copies: Vec::new(),
            nodes,
        })
    }

    /// How many conflicts are not resolved, and the latest of them.
    fn latest_conflicts(&self) -> (u64, Vec<Conflict>) {
        let mut all = self.node.writeback().conflicts().1;
        all.retain(|conflict| self.node.writeback().is_unresolved(conflict));
        let count = all.len();
        let latest = all.drain(count.saturating_sub(LISTED)..).map(conflict).collect();
        (count as u64, latest)
    }

    /// Brings one file to a tier.
    fn warm_one(&self, ino: Ino, headway: &mut Headway<'_>) -> Result<Done, NodeError> {
        let before = self.node.whereabouts(ino)?;
        if before.residency == Resident::Whole {
            return Ok(Done::Nothing);
        }
        let warm = |done| headway.within_file(&self.node, ino, done);
        let there = self.node.residency().warm_file(ino, &mut { warm })?;
        let now = self.node.whereabouts(ino)?;
        Ok(match now.residency {
            Resident::Absent if now.dirty => Done::Refused(PAST_THE_TIERS),
            Resident::Absent => Done::Refused(NO_ROOM),
            _ => Done::Bytes(there.saturating_sub(before.resident_bytes)),
        })
    }

    /// Brings one file to a tier and keeps it there; what does not fit is not kept.
    fn pin_one(&self, ino: Ino, headway: &mut Headway<'_>) -> Result<Done, NodeError> {
        let before = self.node.whereabouts(ino)?;
        self.node.pin(ino, true)?;
        if before.kind == FileKind::Directory {
            return Ok(Done::Directory);
        }
        let warmed = self.warm_one(ino, headway).and_then(|done| {
            let now = self.node.whereabouts(ino)?;
            Ok(match (done, now.residency) {
                (Done::Bytes(_), Resident::Partial) if now.dirty => Done::Refused(PAST_THE_TIERS),
                (Done::Bytes(_), Resident::Partial) => Done::Refused(NO_ROOM),
                (done, _) => done,
            })
        });
        if !matches!(warmed, Ok(Done::Bytes(_) | Done::Nothing)) && !before.pinned {
            self.node.pin(ino, false)?;
        }
        Ok(match warmed? {
            Done::Nothing if !before.pinned => Done::Bytes(0),
            done => done,
        })
    }

    fn unpin_one(&self, ino: Ino) -> Result<Done, NodeError> {
        let before = self.node.whereabouts(ino)?;
        self.node.pin(ino, false)?;
        Ok(match before.kind {
            FileKind::Directory => Done::Directory,
            _ if before.pinned => Done::Bytes(0),
            _ => Done::Nothing,
        })
    }
}

/// Why passthrough is off.
fn why_off(refusal: RefusalReason) -> &'static str {
    match refusal {
        RefusalReason::Off => "the mount was asked not to use it",
        RefusalReason::Durability => {
            "with `--durability backing` the kernel must not write or map a file by itself"
        }
        RefusalReason::NoPrivilege => {
            "the daemon lacks CAP_SYS_ADMIN: passthrough needs a mount made by root"
        }
        _ => "the kernel lacks FUSE passthrough: it came with Linux 6.9",
    }
}

fn conflict(conflict: forebay_node::Conflict) -> Conflict {
    Conflict {
        kept_as: wire_path(conflict.kept_as()),
        age_s: conflict.age_s(),
        why: conflict.why.clone().into_owned(),
        path: wire_path(conflict.path),
    }
}

fn path_bytes(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

fn as_path(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

impl Control for NodeControl {
    fn status(&self) -> Status {
        let counts = self.node.metrics();
        let (conflict_count, conflicts) = self.latest_conflicts();
        Status {
            mountpoint: self.config.mountpoint.clone().into(),
            backing: self.config.backing.clone().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            uptime_s: self.started.elapsed().as_secs(),
            tiers: self.tiers(),
            dirty: self.dirty(),
            backlog: self.backlog(),
            hits: counts.hits.get(),
            misses: counts.misses.get(),
            bytes: BytesBySource {
                tier: counts.bytes.of(Source::Tier).get(),
                backing: counts.bytes.of(Source::Backing).get(),
                spill: counts.bytes.of(Source::Spill).get(),
                filled: counts.bytes.of(Source::Fill).get(),
                peers: counts.bytes.of(Source::Peer).get(),
                owners: counts.bytes.of(Source::Owner).get(),
                flushed: counts.bytes.of(Source::Flush).get(),
            },
            transport: self.transport().into(),
            passthrough: self.passthrough(),
            conflicts,
            conflict_count,
            works: Vec::new(),
            refused: self
                .node
                .writeback()
                .refused()
                .into_iter()
                .map(|refused| RefusedFile {
                    path: wire_path(refused.path),
                    what: refused.what,
                    error: refused.error,
                    by_tier: refused.by_tier,
                })
                .collect(),
            defects: self
                .node
                .set_aside_work()
                .into_iter()
                .map(|work| SetAsideWork { path: wire_path(work.path), what: work.what.into() })
                .collect(),
            displaced: self.node.writeback().backing_displaced(),
            lost: self.lost(),
            unseen: self.unseen(),
            lost_changes: self.lost_changes(),
            set_aside: self.set_aside(),
            stuck: self.stuck(),
            errors: self.errors(),
            busiest: self.busiest(),
            policy: PolicySnapshot {
                name: self.config.policy.clone(),
                figures: self.node.policy_figures(),
            },
            rss_bytes: resident_memory(),
            prefetch_budget_bytes: self.node.config().prefetch_bytes,
            hints: hints::status(&self.node),
            streams: streams::status(&self.node),
            peers: super::cluster::peers(&self.node),
        }
    }

    fn locate(&self, paths: &[WirePath]) -> ControlResult<Vec<Location>> {
        paths.iter().map(|path| self.location(path)).collect()
    }

    fn warm(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let scope = Scope { counted: true, ..Scope::default() };
        each_file(&self.node, paths, scope, progress, &mut |ino, headway| {
            self.warm_one(ino, headway)
        })
    }

    fn evict(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        each_file(&self.node, paths, Scope::default(), progress, &mut |ino, _| {
            let before = self.node.whereabouts(ino)?;
            if before.tier.is_none() {
                return Ok(Done::Nothing);
            }
            if before.pinned {
                return Ok(Done::Refused("is pinned; `forebay unpin` it first"));
            }
            // Until it stands under its new name that copy may be all that there is.
            let in_line = !before.dirty && before.placed;
            let unused = in_line || self.node.writeback().write_back_unused(ino)?;
            Ok(if unused && self.node.residency().evict_file(ino)? {
                Done::Bytes(before.resident_bytes)
            } else {
                Done::Refused("is in use")
            })
        })
    }

    fn pin(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let scope = Scope { directories: true, counted: true };
        each_file(&self.node, paths, scope, progress, &mut |ino, headway| {
            self.pin_one(ino, headway)
        })
    }

    fn unpin(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let scope = Scope { directories: true, ..Scope::default() };
        each_file(&self.node, paths, scope, progress, &mut |ino, _| self.unpin_one(ino))
    }

    fn refresh(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let mut outcome = Outcome { complete: true, ..Outcome::default() };
        for path in paths {
            let mut go_on = true;
            let looked = self.node.writeback().refresh(path.as_path(), &mut |looked| {
                let files_done = looked.directories + looked.files;
                go_on = progress(Progress { files_done, ..Progress::default() });
                go_on
            });
            match looked {
                Ok(looked) => {
                    outcome.files += looked.files;
                    outcome.skipped += looked.directories;
                }
                Err(error) => {
                    outcome.failed += 1;
                    outcome.failures.push((path.clone(), error.to_string()));
                }
            }
            outcome.complete &= go_on && outcome.failed == 0;
        }
        Ok(outcome)
    }

    fn conflicts(&self) -> Vec<Conflict> {
        self.node.writeback().conflicts_looked_after().into_iter().map(conflict).collect()
    }

    fn forget_conflicts(&self, paths: &[WirePath]) -> ControlResult<u64> {
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| path_bytes(path.as_path())).collect();
        let forgotten = self.node.writeback().forget_conflicts(&mut |conflict| {
            paths.iter().any(|path| *path == conflict.path || *path == conflict.kept_as())
        });
        Ok(forgotten as u64)
    }

    fn sync(&self, paths: &[WirePath], progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let mut outcome = Outcome { complete: true, ..Outcome::default() };
        for path in paths {
            let until = Instant::now() + self.config.drain_timeout;
            let ino = self.node.find_path(path.as_path()).map_err(|error| {
                let ControlError { kind, message } = control_error(&error);
                ControlError::new(kind, format!("{}: {message}", path.as_path().display()))
            })?;
            let synced = self
                .node
                .writeback()
                .sync_subtree(ino, until, &mut |left| {
                    progress(Progress {
                        backlog_left: left.entries,
                        bytes_total: left.bytes,
                        last_error: self.node.writeback().last_backlog_error(),
                        ..Progress::default()
                    })
                })
                .map_err(|error| control_error(&error))?;
            outcome.complete &= synced.complete;
            outcome.cut_short |= synced.cut_short;
            outcome.files += synced.files;
            outcome.bytes += synced.bytes;
            outcome.written_in_use += synced.in_use;
            add_failures(&mut outcome, synced.failed, synced.failures);
            outcome.elsewhere += synced.left.elsewhere;
            // Bytes are those of the whole node.
            outcome.remaining_backlog += synced.left.entries;
            outcome.remaining_bytes += synced.left.bytes;
        }
        Ok(outcome)
    }

    fn hint(&self, part: &HintPart, progress: OnProgress<'_>) -> ControlResult<Outcome> {
        hints::take(&self.node, part, progress)
    }

    fn withdraw(&self, job: &str) -> ControlResult<()> {
        hints::withdraw(&self.node, job)
    }

    fn trace_start(&self) -> ControlResult<()> {
        hints::start_trace(&self.node)
    }

    fn trace_take(&self, most: usize, stop: bool) -> ControlResult<Recorded> {
        hints::take_trace(&self.node, most, stop)
    }

    fn patterns_start(&self) -> ControlResult<()> {
        patterns::start(&self.node)
    }

    fn patterns(&self) -> ControlResult<Patterns> {
        patterns::report(&self.node)
    }

    fn patterns_stop(&self) -> ControlResult<()> {
        patterns::stop(&self.node)
    }

    fn drain(&self, limit: Option<Duration>, progress: OnProgress<'_>) -> ControlResult<Outcome> {
        let _one = self.draining.lock();
        let timeout = limit.map(|limit| Instant::now() + limit);
        let limit = limit.unwrap_or(self.config.drain_timeout);
        let total = self.node.writeback().backlog_len();
        let mut bytes_total = 0;
        let left = self
            .node
            .writeback()
            .drain(Instant::now() + limit, &mut |left| {
                bytes_total = bytes_total.max(left.bytes);
                progress(Progress {
                    files_done: total.saturating_sub(left.entries),
                    files_total: total.max(left.entries),
                    bytes_done: bytes_total - left.bytes,
                    bytes_total,
                    backlog_left: left.entries,
                    bytes_copied: self.node.residency().bytes_written_back(),
                    current: None,
                    last_error: self.node.writeback().last_backlog_error(),
                })
            })
            .map_err(|error| control_error(&error))?;
        let complete = left.entries == 0 && left.bytes == 0;
        let all_refused = left.refused > 0 && left.refused == left.entries;
        self.drained.store(complete || left.in_use || all_refused, Ordering::Release);
        let dirty = self.dirty();
        Ok(Outcome {
            files: total.saturating_sub(left.entries),
            bytes: bytes_total.saturating_sub(left.bytes),
            complete,
            remaining: dirty.list,
            remaining_files: dirty.files,
            remaining_bytes: left.bytes,
            remaining_backlog: left.entries,
            in_use: left.in_use,
            refused: left.refused,
            hung: self.hung(timeout.unwrap_or(Instant::now() + SLOW)),
            ..Outcome::default()
        })
    }

    fn cluster(&self, request: &ClusterRequest) -> ControlResult<ClusterReply> {
        super::cluster::answer(
            &self.node,
            self.config.cluster.as_ref(),
            self.auto.as_deref(),
            request,
        )
    }

    fn metrics(&self) -> String {
        let stuck = i64::try_from(self.stuck().len()).unwrap_or(i64::MAX);
        self.node.metrics().stuck.set(stuck);
        self.node.render_metrics()
    }

    fn shutdown(&self, how: Shutdown) -> ControlResult<()> {
        self.asked_to_end.store(true, Ordering::Release);
        let lazy = how == Shutdown::Detach;
        self.front.unmount(lazy).map_err(|error| {
            // It goes on, and others may unmount it.
            self.asked_to_end.store(false, Ordering::Release);
            let busy = error.to_string().contains("busy");
            let kind = if busy { ErrorKind::Busy } else { ErrorKind::Failed };
            ControlError::new(kind, format!("{}: {error}", self.config.mountpoint.display()))
        })
    }
}

impl NodeControl {
    /// What was in use during the last drain, or changed after it, is written back; after the kernel
    /// has let go of the mount. All, if nobody has asked this daemon to end it. Nothing if it was asked to end
    /// it without a drain.
    pub(super) fn write_rest(&self, limit: Duration) {
        if !self.asked_to_end.load(Ordering::Acquire) {
            self.write_all_unasked();
        }
        if !self.drained.load(Ordering::Acquire) {
            return;
        }
        match self.node.writeback().drain(Instant::now() + limit, &mut |_| true) {
            Ok(left) if left.entries > 0 || left.bytes > 0 => {
                if !left.in_use {
                    self.node.writeback().note_left_behind();
                }
                tracing::warn!(
                    inodes = left.entries,
                    bytes = left.bytes,
                    "not all was written back; the rest stays on the tiers for the next mount"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the rest stays on the tiers for the next mount"),
        }
    }

    /// Until this daemon is asked to end after all, as by a signal, and as long as it makes headway.
    fn write_all_unasked(&self) {
        tracing::info!("unmounted by something else: writing everything to the backing store");
        let mut headway = forebay::headway::Headway::default();
        let mut since = Instant::now();
        let drained = self.drain(None, &mut |progress| {
            if headway.made(&progress) {
                since = Instant::now();
            }
            since.elapsed() < STALLED && !self.asked_to_end.load(Ordering::Acquire)
        });
        if !drained.is_ok_and(|outcome| outcome.complete) {
            self.node.writeback().note_left_behind();
            tracing::warn!(
                "not all was written back; the rest stays on the tiers for the next mount"
            );
        }
    }
}

/// Resident memory of this process in bytes.
fn resident_memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
