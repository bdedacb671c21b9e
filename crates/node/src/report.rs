//! What a node tells about itself.

use std::path::PathBuf;

use forebay_meta::Ino;

use crate::metrics::{Metrics, Queue};
use crate::node::Node;

/// One tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierReport {
    /// Its directory.
    pub dir: PathBuf,
    /// Its configured size in bytes.
    pub size: u64,
    /// Bytes that objects take up.
    pub used: u64,
    /// Bytes promised to passthrough writers.
    pub promised: u64,
    /// Bytes of objects that the backing store lacks.
    pub dirty: u64,
    /// Bytes of objects that may not be evicted.
    pub pinned: u64,
    /// Objects.
    pub objects: u64,
    /// Objects that the backing store lacks.
    pub dirty_objects: u64,
    /// Bytes that its file system has free.
    pub fs_free: u64,
}

/// A file whose bytes are not in the backing store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyFile {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Bytes that it takes up on its tier.
    pub bytes: u64,
    /// Whether a program has it open.
    pub open: bool,
}

impl Node {
    /// The tiers, fastest first.
    pub fn tier_reports(&self) -> Vec<TierReport> {
        let mut reports: Vec<TierReport> = self
            .tiers
            .iter()
            .map(|slot| TierReport {
                dir: slot.tier.path().to_path_buf(),
                size: slot.room.size(),
                used: slot.room.used(),
                promised: slot.room.promised(),
                fs_free: slot.tier.usage().map_or(0, |usage| usage.free),
                ..TierReport::default()
            })
            .collect();
        self.residents.for_each(|_, resident| {
            if let Some(report) = reports.get_mut(usize::from(resident.tier)) {
                report.objects += 1;
                if resident.dirty {
                    report.dirty_objects += 1;
                    report.dirty += resident.charged;
                }
            }
        });
        reports
    }

    /// Counters since the start. Gauges are as of the last [`Node::render_metrics`].
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All metrics in the Prometheus text format.
    pub fn render_metrics(&self) -> String {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (mut used, mut size, mut promised, mut objects) = (0, 0, 0, 0);
        let (mut dirty_bytes, mut dirty_files) = (0, 0);
        for tier in self.tier_reports() {
            used += tier.used;
            size += tier.size;
            promised += tier.promised;
            objects += tier.objects;
            dirty_bytes += tier.dirty;
            dirty_files += tier.dirty_objects;
        }
        let metrics = &self.metrics;
        metrics.tier_used_bytes.set(signed(used));
        metrics.tier_size_bytes.set(signed(size));
        metrics.tier_reserved_bytes.set(signed(promised));
        metrics.resident_files.set(signed(objects));
        metrics.dirty_bytes.set(signed(dirty_bytes));
        metrics.dirty_files.set(signed(dirty_files));
        metrics.backlog_entries.set(signed(self.backlog_len()));
        let queued = signed(self.slow.queued() as u64);
        metrics.pool_queued.of(Queue::Demand).set(queued);
        let flushing = signed(self.flushers.queued() as u64);
        metrics.pool_queued.of(Queue::WriteBack).set(flushing);
        metrics.render()
    }

    /// Files whose bytes are not in the backing store, at most `most` of them.
    pub fn dirty_files(&self, most: usize) -> Vec<DirtyFile> {
        let mut inodes = Vec::new();
        self.residents.for_each(|ino, resident| {
            if resident.dirty && inodes.len() < most {
                inodes.push((Ino(ino), resident.charged));
            }
        });
        inodes
            .into_iter()
            .map(|(ino, bytes)| DirtyFile {
                path: self.path_of(ino),
                bytes,
                open: self.is_open(ino),
            })
            .collect()
    }

    /// What the policy says about itself: names and values.
    pub fn policy_figures(&self) -> Vec<(String, String)> {
        let mut figures = Vec::new();
        for (index, tier) in self.steward.lock().snapshot().into_iter().enumerate() {
            let policy = tier.policy;
            for (name, value) in [
                ("objects", policy.objects),
                ("bytes", policy.bytes),
                ("ghosts", policy.ghosts),
                ("admitted", policy.admitted),
                ("bypassed", policy.bypassed),
                ("victims", policy.victims),
                ("ahead", policy.ahead),
            ] {
                figures.push((format!("tier {index} {name}"), value.to_string()));
            }
        }
        figures
    }

    /// Whether the kernel can be handed files for passthrough.
    pub fn passthrough_works(&self) -> bool {
        self.kernel.get().is_some_and(|kernel| kernel.passthrough())
    }
}
