//! Fetching ahead: carries out what the steward asks for along hints, behind everything that
//! somebody waits for.
//!
//! A fetch uses room that is there and never makes any. It stands behind every demand, in the queue
//! and at the gate. A program that opens the file meanwhile takes over what was promised to it. The
//! end of a fetch makes place for the next ([`forebay_core::prefetch::FLIGHTS`] at a time).

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use forebay_core::steward::Event;
use forebay_store::copy::Cancel;
use forebay_types::{FileKind, Ino};
use parking_lot::Mutex;

use crate::context::Context;
use crate::defects::BackgroundKind;
use crate::error::Result;
use crate::residency::Residency;
use crate::residency::fetch::FetchMode;

/// The fetches that the steward has asked for and not heard of yet: at most as many as it has under
/// way at one time.
#[derive(Default)]
pub struct Fetches(Mutex<HashMap<u64, Cancel>>);

impl Fetches {
    /// A fetch was asked for.
    pub(crate) fn expect(&self, ino: u64) {
        self.0.lock().insert(ino, Cancel::default());
    }

    /// It is not worth it any more.
    pub(crate) fn cancel(&self, ino: u64) {
        if let Some(cancel) = self.0.lock().get(&ino) {
            cancel.cancel();
        }
    }

    fn token(&self, ino: u64) -> Cancel {
        self.0.lock().entry(ino).or_default().clone()
    }

    fn end(&self, ino: u64) {
        self.0.lock().remove(&ino);
    }
}

impl Residency {
    /// Brings the first `bytes` of a file to a tier, where the steward has promised it room, and
    /// tells the steward when it has ended.
    pub(crate) fn fetch_ahead(&self, ino: Ino, tier: u8, bytes: u64) {
        let cancel = self.fetches.token(ino.0);
        let brought = self.defects.attempt(BackgroundKind::FetchAhead, ino.0, || {
            self.bring_ahead(ino, tier, bytes, &cancel)
        });
        if let Some(Err(error)) = brought {
            tracing::debug!(%ino, %error, "a file was not fetched ahead");
        }
        self.fetches.end(ino.0);
        self.decide(Event::Fetched { object: ino });
    }

    fn bring_ahead(&self, ino: Ino, tier: u8, bytes: u64, cancel: &Cancel) -> Result<()> {
        let over = || cancel.is_cancelled() || self.stopping.load(Ordering::Relaxed);
        let record = self.meta.get(ino)?;
        let size = record.attr.size;
        if over() || record.attr.kind != FileKind::Regular || record.is_dirty() || size == 0 {
            return Ok(());
        }
        let file = self.files.get(ino);
        // Whoever has opened it meanwhile fetches it.
        if file.is_open() {
            return Ok(());
        }
        self.load(&Context::DAEMON, &file)?;
        if file.location.read().place.is_none() {
            if size <= self.config.fetch_on_open_bytes {
                let whole = bytes >= size;
                return if whole {
                    self.fetch_to(&file, &record, tier, FetchMode::Ahead(cancel))
                } else {
                    Ok(())
                };
            }
            self.begin_partial_on(&file, tier)?;
        }
        let extent = self.config.extent_bytes;
        let mut buffer = vec![0; usize::try_from(extent).unwrap_or(1 << 20)];
        let mut at = 0;
        while at < bytes.min(size) && !over() {
            if !self.fill_extent(&file, at..at + extent, &mut buffer, FetchMode::Ahead(cancel))? {
                break;
            }
            at += extent;
        }
        self.finish_if_whole(&file)
    }
}
