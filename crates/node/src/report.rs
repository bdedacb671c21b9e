//! What a node tells about itself.

use std::path::PathBuf;

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
    /// Objects.
    pub objects: u64,
    /// Objects that the backing store lacks.
    pub dirty_objects: u64,
    /// Bytes that its file system has free.
    pub fs_free: u64,
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

    /// Records in the backlog.
    pub fn backlog_len(&self) -> u64 {
        self.meta.backlog_len()
    }

    /// Dirty files, as pairs of path and bytes, at most `most`.
    pub fn dirty_files(&self, most: usize) -> Vec<(Vec<u8>, u64, bool)> {
        let mut inodes = Vec::new();
        self.residents.for_each(|ino, resident| {
            if resident.dirty && inodes.len() < most {
                inodes.push((ino, resident.charged));
            }
        });
        inodes
            .into_iter()
            .map(|(ino, bytes)| {
                let ino = forebay_meta::Ino(ino);
                (self.path_of(ino), bytes, self.is_open(ino))
            })
            .collect()
    }

    /// Whether the kernel can be handed files for passthrough.
    pub fn passthrough_works(&self) -> bool {
        self.kernel.get().is_some_and(|kernel| kernel.passthrough())
    }
}
