//! Looking at the backing store now, because somebody says so: in exclusive mounts, and where what is
//! known still counts as fresh.

use std::path::Path;
use std::time::Duration;

use forebay_types::{FileKind, Ino};
use rustix::io::Errno;

use super::dirs::MAX_PARENTS;
use crate::config::Coherence;
use crate::context::Context;
use crate::error::is_gone;
use crate::error::{NodeError, Result};
use crate::writeback::Writeback;

/// Entries read from a directory at a time.
const PAGE: usize = 512;

/// Where it is noted which directory the root of the backing store was when everything below it was
/// last looked at by this mount, or brought in as it was asked for.
const ROOT_SEEN: &str = "root-seen";

/// The kernel hears notices in less, but while a directory is locked by a call that waits.
const NOTICES: Duration = Duration::from_secs(10);

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Directories that were read anew.
    pub directories: u64,
    /// Files that are known in them.
    pub files: u64,
}

impl Writeback {
    /// Compares a path, the directories above it, and everything that is known below it with the backing
    /// store, and takes over what others changed. What is not known yet is not read. `advance` is told
    /// how far it is, and ends it by saying false.
    ///
    /// # Errors
    /// `ENOENT`, or what the backing store says.
    pub fn refresh(&self, path: &Path, advance: &mut dyn FnMut(Looked) -> bool) -> Result<Looked> {
        let looked = self.look_below(path, advance);
        // Also of a path that was found to be gone.
        self.wait_for_notices();
        looked
    }

    /// Waits until the kernel has heard what it must forget: whoever asked for a look sees what it
    /// found, and not what the kernel remembers.
    fn wait_for_notices(&self) {
        let Some(kernel) = self.kernel.get() else { return };
        let (sender, heard) = std::sync::mpsc::channel();
        // Behind all notices that were given before.
        kernel.expire(
            Vec::new(),
            Box::new(move || {
                let _ = sender.send(());
            }),
        );
        if heard.recv_timeout(NOTICES).is_err() {
            tracing::debug!("the kernel has not heard yet what it must forget");
        }
    }

    fn look_below(&self, path: &Path, advance: &mut dyn FnMut(Looked) -> bool) -> Result<Looked> {
        use std::os::unix::ffi::OsStrExt;
        let (mut at, mut looked) = (Ino::ROOT, Looked::default());
        for part in path.components().take(MAX_PARENTS) {
            let std::path::Component::Normal(name) = part else { continue };
            self.list_now(at)?;
            looked.directories += 1;
            let found = self.find(&Context::DAEMON, at, name.as_bytes())?;
            at = found.ok_or(NodeError::Posix(Errno::NOENT))?.ino;
        }
        let record = self.meta.get(at)?;
        if record.attr.kind != FileKind::Directory {
            self.take_theirs(at)?;
            looked.files += 1;
            return Ok(looked);
        }
        let mut stack = vec![at];
        while let Some(dir) = stack.pop() {
            match self.refresh_below(dir, &mut looked, &mut stack) {
                // Somebody has removed it meanwhile.
                Err(error) if dir != at && is_gone(&error) => {}
                looked => looked?,
            }
            if !advance(looked) {
                break;
            }
        }
        Ok(looked)
    }

    /// At a start: where nobody else changes the backing store, nothing that is known is looked at again.
    /// That does not hold of a directory that was removed and made again at its path, moved or restored
    /// while nothing was mounted: everything that is known is compared with it once, before it is shown.
    ///
    /// # Errors
    /// What the backing store says: the next start looks again.
    pub(crate) fn look_at_a_replaced_root(&self) -> Result<()> {
        let now = self.store.root.as_bytes();
        if !self.residency.peers.judges_store_alone() || now.is_empty() {
            return Ok(());
        }
        match self.meta.setting(ROOT_SEEN)? {
            Some(seen) if seen == now => return Ok(()),
            // It looks as it is used, and at nothing else.
            Some(_) if self.config.coherence != Coherence::Exclusive => return Ok(()),
            Some(_) => {
                tracing::warn!(
                    "the backing store is another directory than at the last mount: everything that is \
                     known of it is looked at before the mount is there"
                );
                let looked = self.refresh(Path::new(""), &mut |_| true)?;
                tracing::info!(?looked, "the backing store was looked at");
            }
            None => {}
        }
        self.meta.set_setting(ROOT_SEEN, now)?;
        Ok(self.meta.sync()?)
    }

    fn refresh_below(&self, dir: Ino, looked: &mut Looked, stack: &mut Vec<Ino>) -> Result<()> {
        self.list_now(dir)?;
        looked.directories += 1;
        let mut cursor = 0;
        loop {
            let page = self.meta.entries_plus(dir, cursor, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            cursor = last.entry.cursor;
            for found in &page {
                match found.record.attr.kind {
                    FileKind::Directory => stack.push(found.record.ino),
                    _ => looked.files += 1,
                }
            }
        }
    }
}
