//! What is believed of what lies on the tiers and in spill files: whether the last daemon ended in
//! order, in which run of the machine it worked, and over which mounts.
//!
//! # Invariants
//! - After an end in order all is believed, whatever happened to machine and devices since: all of it
//!   was synced before that end was noted (`tests/clean_end.rs`).
//! - Else what nobody has synced is believed only if the machine has not restarted, and no device was
//!   away (`tests/power.rs`). A device was away if what lies on it is in another mount now, of the same
//!   namespace of mounts: that is known by the mount of the root, whose number no other one gets. A
//!   container that is started anew has mounts of its own, and its devices were never away: there a
//!   device that was is not noticed.
//! - The maps are told before the start that believes less is noted (`recover.rs`).
//! - What such a start could not look at is noted before that, too, and is judged without trust until a start
//!   has seen it (`residency/unseen.rs`).
//! - The note of an end in order is durable when that end is, and stays until what it vouches for says so by
//!   itself, durably: a start that is cut short is followed by one that believes the same
//!   (`tests/half_a_start.rs`).
//! - A note is there as a whole or as it was before (`state_files.rs`). Of one that is cut short, as older
//!   versions may leave it, what is not there says nothing.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_store::{Believed, Presence};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::error::Result;
use crate::node::Node;
use crate::residency::synced::{CLEAN_END, RUNNING, SETTLED, SPILLS, boot_id};
use crate::state_files;

/// The shortest time that a spill area gets to become durable at the end.
const SPILLS_SYNCED_WITHIN: Duration = Duration::from_secs(5);

/// What is believed of a tier, or of the spill files.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trust {
    /// What was written and not synced is there: neither the machine has restarted nor was the device
    /// away, or the last daemon ended in order.
    pub(crate) unsynced: bool,
    /// It is there after a power cut as well: the last daemon has ended in order.
    pub(crate) durable: bool,
    /// Clean copies are whole: nor was the tier mounted anew. (A container has mounts of its own as
    /// well: there copies are fetched again.)
    pub(crate) copies: bool,
    /// No object is shorter than its record says, unless it was damaged: the last daemon ended with
    /// nothing in hand, or was killed, and has noted each cut before it was made.
    pub(crate) lengths: bool,
}

/// What is believed of all of it.
#[derive(Debug, Default)]
pub(crate) struct Trusted {
    tiers: Vec<(String, Trust)>,
    pub(crate) spills: Trust,
    /// The last daemon ended in order.
    pub(crate) ended: bool,
    /// It is known in which run of the machine there was a daemon last.
    pub(crate) known: bool,
}

/// Where the state of a mount is.
pub(crate) struct Places<'p> {
    pub(crate) state_dir: &'p Path,
    /// Identity and directory of each tier.
    pub(crate) tiers: Vec<(String, PathBuf)>,
    pub(crate) backing: Option<PathBuf>,
}

/// The names of mounts that are no tiers', in the note.
const ROOT: &str = "/";
const STATE: &str = "state";
const STORE: &str = "store";

/// The number of the mount that a file is in, which no other one gets until the machine restarts (Linux
/// 6.8 and later).
fn mount_number(path: &Path) -> Option<u64> {
    let unique = StatxFlags::from_bits_retain(0x4000);
    let found = statx(CWD, path, AtFlags::empty(), unique).ok()?;
    (found.stx_mask & unique.bits() != 0).then_some(found.stx_mnt_id)
}

impl Places<'_> {
    /// Names of mounts and their numbers now; 0 if that is not known.
    fn mounts(&self) -> Vec<(&str, u64)> {
        let number = |path: &Path| mount_number(path).unwrap_or(0);
        let mut mounts = vec![(ROOT, number(Path::new("/"))), (STATE, number(self.state_dir))];
        mounts.extend(self.backing.as_deref().map(|path| (STORE, number(path))));
        mounts.extend(self.tiers.iter().map(|(id, path)| (id.as_str(), number(path))));
        mounts
    }

    /// What is another one when the machine has restarted, or when something was mounted anew since: its
    /// device may have been away, and what the kernel had not written is gone.
    fn note(&self) -> String {
        let lines = self.mounts().into_iter().map(|(name, mount)| format!("{name} {mount}\n"));
        std::iter::once(boot_id()).chain(lines).collect()
    }

    /// What is believed, by how the last daemon ended.
    pub(crate) fn look(&self) -> Trusted {
        let said = std::fs::read_to_string(self.state_dir.join(CLEAN_END)).ok();
        let says = |word| said.iter().any(|said| said.split_whitespace().any(|it| it == word));
        let ended = self.state_dir.join(CLEAN_END).exists();
        let (boot, last) = (boot_id(), std::fs::read_to_string(self.state_dir.join(RUNNING)));
        let last = last.unwrap_or_default();
        let noted = last.strip_prefix(&boot).filter(|_| !boot.is_empty());
        let same_boot = noted.is_some();
        // The boot alone is what older versions noted.
        let noted = noted.unwrap_or_default();
        let was = |name: &str| {
            let whole = noted.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            let mut lines = whole.filter_map(|line| line.rsplit_once(' '));
            lines.find(|(of, _)| *of == name).and_then(|(_, number)| number.parse::<u64>().ok())
        };
        let mounts = self.mounts();
        let now = |name: &str| mounts.iter().find(|(of, _)| *of == name).map_or(0, |found| found.1);
        let differs = |name: &str| {
            let known = was(name).filter(|was| *was != 0 && now(name) != 0);
            known.is_some_and(|was| was != now(name))
        };
        let same_namespace = was(ROOT).is_some_and(|was| was != 0 && was == now(ROOT));
        let was_away = |name: &str| same_namespace && differs(name);
        let of_tier = |id: &str| {
            let unsynced = ended || same_boot && !was_away(id);
            Trust {
                unsynced,
                durable: ended,
                copies: ended || same_boot && (noted.is_empty() || was(id) == Some(now(id))),
                lengths: if ended { says(SETTLED) } else { unsynced && !was_away(STATE) },
            }
        };
        let there = same_boot && !was_away(STORE);
        let synced = ended && says(SPILLS);
        let spills = Trust {
            unsynced: synced || there,
            durable: synced,
            copies: false,
            lengths: if ended { synced && says(SETTLED) } else { there && !was_away(STATE) },
        };
        let tiers = self.tiers.iter().map(|(id, _)| (id.clone(), of_tier(id))).collect();
        Trusted { tiers, spills, ended, known: ended || !last.is_empty() }
    }
}

impl Trust {
    /// What may be missing in a map.
    pub(crate) fn believed(&self) -> Believed {
        if self.unsynced { Believed::Written } else { Believed::Synced }
    }

    /// Has a map say what is believed of its object. `was_writing`: what is clean in it may be dirty.
    pub(crate) fn believe(
        &self,
        map: &mut Presence,
        was_writing: bool,
    ) -> forebay_store::Result<()> {
        // One of another run of the machine was not told when this one began, as it did not answer.
        let told = self.durable || map.is_of_this_boot()?;
        match self.unsynced && told {
            true => map.believe_all(self.durable),
            false => map.believe_what_was_synced(was_writing),
        }
    }
}

impl Trusted {
    /// Of the tier with this index.
    pub(crate) fn tier(&self, index: usize) -> Trust {
        self.tiers.get(index).map(|(_, trust)| *trust).unwrap_or_default()
    }

    /// Of the tier with this identity.
    pub(crate) fn tier_of(&self, id: &str) -> Trust {
        let found = self.tiers.iter().find(|(of, _)| of == id);
        found.map(|(_, trust)| *trust).unwrap_or_default()
    }

    /// Whether what was written to the tiers and not synced is there on all of them.
    pub(crate) fn all_tiers(&self) -> bool {
        self.tiers.iter().all(|(_, trust)| trust.unsynced)
    }

    /// Whether it may be noted that a daemon works here before all is read: the next start believes no
    /// more for that.
    pub(crate) fn may_be_noted_at_once(&self) -> bool {
        self.all_tiers() && self.spills.unsynced
    }
}

impl Node {
    fn places(&self) -> Places<'_> {
        let tiers = self.residency.tiers.iter();
        Places {
            state_dir: &self.state_dir,
            tiers: tiers
                .map(|slot| (slot.tier.id().to_string(), slot.tier.path().to_owned()))
                .collect(),
            backing: Some(self.config.backing.clone()),
        }
    }

    /// What is believed, by how the last daemon ended.
    pub(crate) fn trusted(&self) -> Trusted {
        self.places().look()
    }

    /// Notes in which boot, and over which mounts, a daemon works on the tiers.
    pub(crate) fn note_running(&self) -> Result<()> {
        let note = self.places().note();
        if std::fs::read(self.state_dir.join(RUNNING)).is_ok_and(|now| now == note.as_bytes()) {
            return Ok(state_files::sync(&std::fs::File::open(&self.state_dir)?)?);
        }
        let Err(error) = state_files::replace(&self.state_dir, RUNNING, note.as_bytes()) else {
            return Ok(());
        };
        // Without room for it: the next start trusts nothing that was not synced. What is noted of another
        // run of the machine, or of other mounts, says no more than that.
        tracing::warn!(%error, "can't note the boot");
        Ok(())
    }

    /// All that lies on the tiers and in spill files was durable when the last daemon ended: the maps say so
    /// from here on, and what is done now need not be.
    pub(crate) fn forget_clean_end(&self, trusted: &Trusted) -> Result<()> {
        if trusted.ended {
            for slot in &self.residency.tiers {
                if let Err(error) = slot.tier.sync() {
                    tracing::warn!(
                        %error,
                        tier = %slot.tier.path().display(),
                        "a tier can't be synced: what no program has synced there may be lost if the \
                         machine goes down"
                    );
                }
            }
            if trusted.spills.durable {
                self.sync_spills(Instant::now());
            }
        }
        Ok(state_files::remove(&self.state_dir, CLEAN_END)?)
    }

    /// The next start may trust all that lies on the tiers; also the lengths of objects, if all files
    /// are `settled`, and what is in spill files, if that can be made durable.
    pub(crate) fn note_clean_end(&self, settled: bool, until: Instant) -> Result<()> {
        for slot in &self.residency.tiers {
            slot.tier.sync()?;
        }
        let settled_word = if settled { SETTLED } else { "" };
        let spills_word = if settled && self.sync_spills(until) { SPILLS } else { "" };
        let said = format!("{settled_word} {spills_word}");
        Ok(state_files::replace(&self.state_dir, CLEAN_END, said.trim().as_bytes())?)
    }

    /// Makes durable what is in spill files; false if that is not so in time.
    fn sync_spills(&self, until: Instant) -> bool {
        if self.residency.noted_spills().is_ok_and(|noted| noted.is_empty()) {
            return true;
        }
        let (tell, told) = mpsc::channel();
        let backing = self.backing.clone();
        // It may hang in the store, and is left behind then.
        let sync = move || drop(tell.send(backing.sync()));
        if std::thread::Builder::new().name("spills-synced".into()).spawn(sync).is_err() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now()).max(SPILLS_SYNCED_WITHIN);
        let why = match told.recv_timeout(left) {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the backing store does not answer".into(),
        };
        tracing::warn!(
            why,
            "what was written past the tiers can't be synced: what no program has synced of it may be \
             lost if the machine goes down before the next mount"
        );
        false
    }
}
