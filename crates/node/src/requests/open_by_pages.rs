//! Opens of small files that the kernel has in its page cache. Nothing is looked up or opened on a tier
//! for them: most are closed again without a read that comes here, and the first such read does it.

use std::sync::Arc;

use forebay_core::steward::Event;
use forebay_core::unit;
use forebay_meta::Record;
use forebay_store::Object;
use forebay_types::Ino;

use crate::context::Context;
use crate::error::Result;
use crate::node::Node;
use crate::requests::handle::{Handle, OpenMode, Opened};
use crate::requests::open::{Use, check_alias};
use crate::residency::files::{File, FileRef};

impl Node {
    /// Another version takes the place of a file's object: whoever reads that through the page cache
    /// keeps it. Not where somebody may write: what he writes has to show to all.
    pub(crate) fn leave_readers_behind(
        &self,
        file: &File,
        object: &dyn Fn() -> Option<Arc<dyn Object>>,
    ) {
        let mut opens = file.opens.lock();
        let readers: Vec<_> = opens
            .handles
            .iter()
            .filter_map(|fh| self.handles.get(*fh))
            .filter(|handle| handle.by_pages)
            .collect();
        if readers.is_empty() || opens.writers > 0 {
            return;
        }
        let Some(object) = object() else { return };
        for reader in &readers {
            // Those who were left behind before have an older one.
            let _ = reader.kept_object.set(object.clone());
        }
        drop(readers);
        if let Err(error) = opens.turn() {
            tracing::debug!(ino = %file.ino, %error, "readers of two versions share their pages");
        }
    }

    /// The object that readers under a former alias of a file have kept.
    pub(crate) fn object_kept_under(&self, ino: Ino, alias: u8) -> Option<Arc<dyn Object>> {
        let file = self.residency.files.peek(ino)?;
        let opens = file.opens.lock();
        let handles = opens.handles.iter().filter_map(|fh| self.handles.get(*fh));
        let mut kept = handles.filter(|handle| handle.alias == alias);
        kept.find_map(|handle| handle.kept_object.get().cloned())
    }

    /// Opens a file for reading if the kernel has its pages and nobody can change it meanwhile; `None` if
    /// it is to be opened as others are. The caller counts as a user of it.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub(super) fn open_by_pages(
        &self,
        context: &Context,
        file: &FileRef,
        record: &Record,
        how: Use,
    ) -> Result<Option<Opened>> {
        let plain = !how.writes() && how.flags & (libc::O_DIRECT | libc::O_TRUNC) == 0;
        if !plain
            || self.patterns.is_on()
            || !self.residency.is_for_page_cache(record)
            || self.residency.may_move_access_time(record)
            || (0..self.residency.tiers.len())
                .any(|tier| self.residency.tier_failure(tier).is_some())
        {
            return Ok(None);
        }
        self.writeback.tell_rest_gone(context, file.ino)?;
        // Whoever puts another object in its place has this in hand.
        let location = file.location_for(context)?;
        let mut opens = file.opens.lock();
        check_alias(&mut opens, how)?;
        let alias = opens.now.number;
        if opens.writers > 0
            || opens.now.registered.is_some()
            || !self.residency.residents.has_pages(file.ino.0, alias)
        {
            return Ok(None);
        }
        let share = self.handles.shares.take(how.uid)?;
        let object = file.ino;
        let size = unit::Bytes(record.attr.size);
        self.residency.decide(Event::Access { object, size, write: false });
        self.tracer.note(object, record.attr.size, false);
        self.metrics.hits.add(1);
        self.busiest.count(object.0);
        let mode = OpenMode::Cached { keep: true };
        let mut handle = Handle::new(file.clone(), false, mode, None);
        (handle.alias, handle.by_pages) = (alias, true);
        handle.keeps_set_ids = how.uid == 0;
        handle.share = Some(share);
        let fh = self.enter(file, &mut opens, handle, how)?;
        if opens.count == 1 {
            self.residency.decide(Event::Busy { object });
        }
        drop((opens, location));
        let dir = record.links.first().map(|link| link.parent);
        Ok(Some(Opened { fh, mode, alias, dir }))
    }
}
