//! Notes in the private area (`mounts/OWNER`) of mounts that may have what the backing store lacks.

use std::ffi::OsString;
use std::ops::ControlFlow;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::backing::BackingStore;
use crate::dir_backing::DirBacking;
use crate::local::{LocalFile, retry};
use crate::private::Area;
use crate::{FileKind, Result};

/// Notes of mounts that are looked at, and their longest.
const MAX_NOTES: usize = 1000;
const MAX_NOTE: u64 = 64 << 10;

impl DirBacking {
    /// Leaves a note of this mount in `mounts/`, until it is taken away. Whether there was one.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn note_mount(&self, note: &[u8]) -> Result<bool> {
        let name = OsString::from(&self.owner);
        let new = OsString::from(format!("{}.new", self.owner));
        self.in_area(Area::Mounts, |dir| {
            let before = self.stat_if(dir, &name)?.is_some();
            let file = self.open_private(dir, &new, OFlags::CREATE | OFlags::TRUNC)?;
            let noted = crate::Bytes::write_at(&*file, note, 0).and_then(|_| {
                fs::renameat(dir, &new, dir, &name)
                    .map_err(|e| self.err("note the mount in", dir, &name, e))
            });
            if noted.is_err() {
                // A full store has room for the name of a note, and not for what it says.
                fs::unlinkat(dir, &new, AtFlags::empty()).ok();
            }
            noted.map(|()| before)
        })
    }

    /// Takes the note away.
    ///
    /// # Errors
    /// What the file system says.
    pub fn forget_mount(&self, owner: &str) -> Result<()> {
        if let Some(dir) = self.existing_area(Area::Mounts)? {
            match fs::unlinkat(&dir, owner, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(self.err("remove", &dir, owner.as_ref(), e)),
            }
        }
        self.remove_empty_areas()
    }

    /// The notes of mounts that this user, or root, has left: their owners and what they say, which is
    /// nothing where a note can't be read.
    ///
    /// # Errors
    /// What the file system says.
    pub fn noted_mounts(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let Some(dir) = self.existing_area(Area::Mounts)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        self.list(&dir, &mut |batch| {
            names.extend(batch.iter().filter_map(|entry| entry.name.to_str().map(str::to_owned)));
            if names.len() > MAX_NOTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let mut notes = Vec::new();
        for name in names {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let Ok(fd) = retry(|| fs::openat(&dir, &name, flags, Mode::empty())) else { continue };
            let file = LocalFile::new(fd, self.describe(&dir, name.as_ref()));
            let found = crate::Bytes::stat(&file)?;
            let trusted = [0, rustix::process::geteuid().as_raw()].contains(&found.uid);
            if trusted && found.kind == FileKind::Regular && found.size <= MAX_NOTE {
                let mut note = vec![0; usize::try_from(found.size).unwrap_or(0)];
                let read = crate::Bytes::read_at(&file, &mut note, 0).unwrap_or_else(|error| {
                    tracing::warn!(%error, name, "the note of a mount can't be read");
                    0
                });
                note.truncate(read);
                notes.push((name, note));
            }
        }
        Ok(notes)
    }
}
