//! What a node tells about itself.

use std::path::PathBuf;

use forebay_meta::Ino;

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

/// Counters since the start, in files or bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the metrics")]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub passthrough_opens: u64,
    pub passthrough_refused_room: u64,
    pub passthrough_refused_kernel: u64,
    pub bytes_from_tier: u64,
    pub bytes_from_spill: u64,
    pub bytes_from_backing: u64,
    pub bytes_fetched: u64,
    pub bytes_written: u64,
    pub bytes_spilled: u64,
    pub bytes_flushed: u64,
    pub flushes: u64,
    pub evictions: u64,
    pub demotions: u64,
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

    /// Counters since the start.
    pub fn counts(&self) -> Counts {
        let metrics = &self.metrics;
        Counts {
            hits: metrics.hits.get(),
            misses: metrics.misses.get(),
            passthrough_opens: metrics.passthrough_opens.get(),
            passthrough_refused_room: metrics.passthrough_refused_room.get(),
            passthrough_refused_kernel: metrics.passthrough_refused_kernel.get(),
            bytes_from_tier: metrics.bytes_from_tier.get(),
            bytes_from_spill: metrics.bytes_from_spill.get(),
            bytes_from_backing: metrics.bytes_from_backing.get(),
            bytes_fetched: metrics.bytes_fetched.get(),
            bytes_written: metrics.bytes_written.get(),
            bytes_spilled: metrics.bytes_spilled.get(),
            bytes_flushed: metrics.bytes_flushed.get(),
            flushes: metrics.flushes.get(),
            evictions: metrics.evictions.get(),
            demotions: metrics.demotions.get(),
        }
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
