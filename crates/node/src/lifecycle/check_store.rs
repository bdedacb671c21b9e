//! What fsck looks at in the private area of the backing store: what is parked there, and spill files.

use forebay_store::backing::BackingStore;
use forebay_types::Ino;

use crate::error::{Result, is_undecodable};
use crate::lifecycle::check::{Check, path_of};
use crate::lifecycle::trust::Trust;
use crate::writeback::parked;

impl Check<'_> {
    /// What stands in limbo and no record says so.
    pub(super) fn limbo(&mut self) -> Result<()> {
        let Some(backing) = self.backing()? else { return Ok(()) };
        for stray in parked::strays(self.meta, &backing)? {
            let name = backing.parked_name(stray.ino.0);
            let what = format!(
                ".forebay/limbo/{}: no file of the index is known to have it; the next mount, or \
                 `fsck --repair`, sees to it or sets it aside",
                name.display()
            );
            if self.repairs() {
                parked::settle(self.meta, &backing, &stray)?;
            }
            self.checked.problem(self.repairs(), what);
        }
        Ok(())
    }

    /// Spill files that the namespace does not know.
    pub(super) fn spill_files(&mut self) -> Result<()> {
        let Some(backing) = self.backing()? else { return Ok(()) };
        let on_their_way = backing.spills_on_their_way()?;
        for ino in backing.list_spills()? {
            let record = match self.meta.get(Ino(ino)) {
                Ok(record) if record.spilled => record,
                Ok(_) | Err(forebay_meta::Error::Stale(_)) => {
                    // The next mount tells whether it is the rest of something.
                    self.checked.leftovers += 1;
                    continue;
                }
                Err(error) if is_undecodable(&error) => continue,
                Err(error) => return Err(error.into()),
            };
            // The next mount gives it its name back.
            if on_their_way.contains(&ino) {
                self.spills.insert(ino);
                continue;
            }
            let trust = match self.left_behind.unseen.has_spill(Ino(ino)) {
                true => Trust::default(),
                false => self.trusted.spills,
            };
            let map = backing.open_spill_map(ino, trust.believed());
            let opened = map.and_then(|_| backing.open_spill(ino));
            if let Err(error) = &opened
                && error.is_no_answer()
            {
                self.spills.insert(ino);
                let path = path_of(self.meta, Ino(ino));
                self.checked.problem(false, format!("the spill file of {path} can't be looked at: {error}. It stays where it is; see to that and run this again"));
            } else if let Err(error) = opened {
                self.unusable_spills.insert(ino, error.to_string());
            } else if let Ok(Some(spill)) = opened {
                let counts = trust.lengths && !self.usable.contains(&ino);
                let cut = record.is_dirty() && spill.file().len()? < record.attr.size;
                if counts && cut {
                    self.unusable_spills.insert(ino, "its end is missing".into());
                } else {
                    self.spills.insert(ino);
                }
            }
        }
        self.checked.set_aside.extend(backing.list_set_aside()?);
        Ok(())
    }
}
