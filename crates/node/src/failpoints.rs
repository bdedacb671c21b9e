//! Fail points: places where tests make the process fail or die. They cost nothing unless the crate
//! is built with the feature `failpoints`.

/// All fail points of this crate. Each can be set to `return` (the step fails with EIO), `panic` or
/// `sleep(ms)`, with the crate `fail`.
const OWN: &[&str] = &[
    "node.resumed",
    "node.open.begin",
    "node.open.prepare",
    "node.open.attach",
    "node.release.before_settle",
    "node.look_up.record",
    "node.attributes.before_object",
    "node.write.marked",
    "node.write.exclusive",
    "node.dirty.before_header",
    "node.dirty.after_header",
    "node.settle.before_record",
    "node.settle.after_record",
    "node.clean.before_header",
    "node.clean.after_header",
    "node.discard.before_object",
    "node.fetch.copied",
    "node.fetch.whole",
    "node.partial.mapped",
    "node.partial.made",
    "node.fill.begin",
    "node.fill.written",
    "node.fill.finish",
    "node.fill.whole",
    "node.flush.begin",
    "node.flush.copied",
    "node.flush.checked",
    "node.flush.publish",
    "node.flush.published",
    "node.flush.half",
    "node.flush.half_done",
    "node.flush.in_place",
    "node.flush.in_place_copied",
    "node.flush.spill_filled",
    "node.flush.spill_published",
    "node.flush.spill_noted",
    "node.spill.begin",
    "node.spill.before_sync",
    "node.spill.made",
    "node.spill.noted",
    "node.spill.mapped",
    "node.spill.moved",
    "node.spill.written",
    "node.spill.evacuated",
    "node.evict.before_remove",
    "node.evict.after_remove",
    "node.evict.before_forget",
    "node.evict.tail",
    "node.move.copied",
    "node.move.whole",
    "node.move.before_remove",
    "node.rename.decided",
    "node.rmdir.made",
    "node.unlink.removed",
    "node.orphan.released",
    "node.range.begin",
    "node.range.copy",
    "node.truncate.loaded",
    "node.truncate.looked",
    "node.truncate.before_object",
    "node.truncate.object_cut",
    "node.truncate.before_record",
    "node.reconcile.before_rename",
    "node.reconcile.after_rename",
    "node.reconcile.before_link",
    "node.reconcile.before_unlink",
    "node.reconcile.before_make",
    "node.reconcile.before_sync",
    "node.reconcile.before_report",
    "node.reconcile.after_report",
    "node.cluster.beat",
    "node.peers.newest",
    "node.copies.sent",
];

/// Fails with EIO where the fail point says so.
macro_rules! fail_at {
    ($name:literal) => {
        fail::fail_point!($name, |_| Err($crate::NodeError::Posix(rustix::io::Errno::IO)));
    };
}

pub(crate) use fail_at;

/// The fail points that this build has; none without the feature `failpoints`.
#[must_use]
pub fn fail_points() -> Vec<&'static str> {
    if !fail::has_failpoints() {
        return Vec::new();
    }
    forebay_store::FAILPOINTS.iter().chain(OWN).copied().collect()
}

/// Sets the fail points that the environment variable `FAILPOINTS` names, for as long as the process
/// lives, as in `node.flush.copied=3*off->panic`. Does nothing without the feature `failpoints`, nor
/// the second time: a daemon may take back a mount that it has given away.
pub fn arm_fail_points() {
    static ARMED: std::sync::Once = std::sync::Once::new();
    if fail::has_failpoints() {
        // Its end would disarm them, and a second scenario waits for that.
        ARMED.call_once(|| std::mem::forget(fail::FailScenario::setup()));
    }
}
