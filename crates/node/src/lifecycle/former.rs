//! What the indexes that a rebuild replaces still say, and the note that a rebuild is under way.
//!
//! Owns: the note `rebuilding` in the state directory. It names the index that was replaced first, which
//! alone may know the names of spill files, and those that interrupted rebuilds have left, in their order.
//! As long as it is there nothing but a rebuild uses the state: half of a namespace takes what it does not
//! know yet for nobody's.
//!
//! Tests: `tests/rebuild_again.rs`.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forebay_meta::{Embedded, EngineError, Error as MetaError, MetaStore, Record, Seq};
use forebay_store::{BackingStore, DirBacking, Header, Tier, recover};
use forebay_types::{FileKind, Ino};

use crate::config::NodeConfig;
use crate::error::{NodeError, Result};
use crate::lifecycle::check::{header_of, open_meta, path_of};
use crate::lifecycle::members;
use crate::lifecycle::which_counts::Newest;
use crate::node::METADATA;
use crate::residency::spill::{SpillNote, spill_setting};

/// Name of the note.
const NOTE: &str = "rebuilding";
/// Stands in the note where there was no index when the first rebuild began.
const NONE: &str = "-";
/// What its first line begins with, before the version of its format and the highest number.
const PREFIX: &str = "forebay-rebuild ";
/// The version that this program writes, and knows.
const VERSION: u32 = 1;

/// Inodes of the backlog that are looked at together.
const PAGE: usize = 1000;

/// What a replaced index says of a file that the backing store lacks.
pub(crate) struct Known {
    /// As the header of its object should be; `size` is the length of the file.
    pub(crate) header: Header,
    /// What counts of what was set aside.
    pub(crate) newest: Newest,
    /// Of its spill file, if it has one.
    pub(crate) spill: Option<SpillNote>,
}

/// What the replaced indexes say of files.
#[derive(Default)]
pub(crate) struct Former {
    known: HashMap<u64, Known>,
    /// Higher inode numbers have been given by rebuilds alone.
    highest: u64,
    /// Inodes with an object whose header is sound.
    sound: HashSet<u64>,
    /// Spill files that an interrupted rebuild has begun and not finished; it had removed nothing for them.
    pub(crate) unfinished: HashSet<u64>,
    /// The paths of dirty files of which nothing is left.
    pub(crate) gone: Vec<String>,
}

impl Former {
    /// What is known of a file.
    pub(crate) fn of(&self, ino: u64) -> Option<&Known> {
        self.known.get(&ino)
    }

    /// Whether a file has an object that says itself what it is.
    pub(crate) fn has_sound_object(&self, ino: u64) -> bool {
        self.sound.contains(&ino)
    }

    /// Whether an interrupted rebuild had brought a file back, or was about to.
    pub(crate) fn is_half_made(&self, ino: u64) -> bool {
        sequence(ino) > self.highest
    }

    /// What the indexes say, the first replaced one first, of what there is now.
    ///
    /// # Errors
    /// One that is not damaged can't be read: what only it knows would be lost for good. `accepts_loss`
    /// does without it.
    pub(crate) fn read(
        tiers: &[&dyn Tier],
        backing: &DirBacking,
        begun: &Begun,
        accepts_loss: bool,
    ) -> Result<Self> {
        let (mut former, mut others) = (Former::default(), HashSet::new());
        former.highest = begun.highest;
        for tier in tiers {
            tier.list(&mut |ino, header| {
                let known = if header.is_err() { &mut others } else { &mut former.sound };
                known.insert(ino);
                ControlFlow::Continue(())
            })?;
            others.extend(recover::set_aside(tier.path())?.iter().filter_map(|aside| aside.ino));
        }
        others.extend(backing.list_spills()?);
        for index in &begun.replaced {
            if let Err(error) = former.ask(index, &others) {
                if !accepts_loss && !is_lost(&error) {
                    return Err(cant_be_read(index, &error));
                }
                tracing::warn!(
                    %error, index = %index.dir.display(),
                    "the old index can't be read: spill files whose names only it knows are set aside"
                );
            }
        }
        Ok(former)
    }

    fn ask(&mut self, index: &Replaced, others: &HashSet<u64>) -> Result<()> {
        let meta = open_meta(&index.dir)?;
        for ino in others.iter().chain(&self.sound) {
            let Some(record) = said(meta.get(Ino(*ino)))? else { continue };
            if !record.is_dirty() && !record.spilled {
                continue;
            }
            let Some(note) = said(meta.setting(&spill_setting(Ino(*ino))))? else { continue };
            let spill = record.spilled.then(|| SpillNote::read(note.as_deref()));
            if index.half_made && spill.as_ref().is_some_and(|spill| !spill.acknowledged) {
                self.unfinished.insert(*ino);
                continue;
            }
            let header = Header { spilled: record.spilled, ..header_of(&meta, &record) };
            let newest = Newest::of(&record);
            self.known.insert(*ino, Known { header, newest, spill });
        }
        if !index.half_made {
            self.find_gone(&meta, others)?;
        }
        meta.close();
        Ok(())
    }

    fn find_gone(&mut self, meta: &MetaStore, others: &HashSet<u64>) -> Result<()> {
        let is_file = |record: &Record| {
            record.attr.kind == FileKind::Regular && record.attr.size > 0 && record.is_dirty()
        };
        let mut after = Seq(0);
        loop {
            let page = meta.backlog(after, PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = *last;
            for (_, ino) in page {
                let there = others.contains(&ino.0) || self.sound.contains(&ino.0);
                let Some(record) = said(meta.get(ino))?.filter(|_| !there) else { continue };
                if is_file(&record) && !record.links.is_empty() {
                    self.gone.push(path_of(meta, ino));
                }
            }
        }
    }
}

/// What an index says of something; nothing where it does not know that, or is damaged there.
///
/// # Errors
/// It could not be asked, and may say it the next time.
fn said<T>(answer: forebay_meta::Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(said) => Ok(Some(said)),
        Err(MetaError::Engine(EngineError::Damaged { .. })) => Ok(None),
        Err(error @ MetaError::Engine(_)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// Whether an error says that an index can't be read, however often that is tried.
fn is_lost(error: &NodeError) -> bool {
    matches!(
        error,
        NodeError::Meta(MetaError::Corrupt { .. } | MetaError::Engine(EngineError::Damaged { .. }))
    )
}

fn cant_be_read(index: &Replaced, error: &NodeError) -> NodeError {
    NodeError::BadState(format!(
        "the old index in {} can't be read now, and it may be all that knows the names of files in the \
         backing store's spill area: {error}. Nothing is lost: see to that and run the rebuild again. With \
         --accept-loss it does without that index, and sets such files aside",
        index.dir.display()
    ))
}

/// An index that was replaced.
struct Replaced {
    dir: PathBuf,
    /// An interrupted rebuild was making it.
    half_made: bool,
}

/// A rebuild that has begun, perhaps before, and was interrupted.
pub(crate) struct Begun {
    /// The indexes that were replaced, the first one first.
    replaced: Vec<Replaced>,
    /// No inode number that was there before had a higher sequence.
    highest: u64,
}

/// The lower bits of an inode number, which are given once.
fn sequence(ino: u64) -> u64 {
    ino & ((1 << Ino::SEQUENCE_BITS) - 1)
}

/// The highest sequence of the inode numbers of all that is kept on tiers and in the backing store, also of
/// what was set aside: what is made later must not be mistaken for any of it.
pub(crate) fn highest_number(tiers: &[&dyn Tier], backing: &dyn BackingStore) -> Result<u64> {
    let mut highest = 0;
    // Names that no node has given to anything are nobody's.
    let mut see = |ino: u64| {
        let given = sequence(ino);
        if given >> Ino::SPARE_SHIFT == 0 {
            highest = given.max(highest);
        }
    };
    for tier in tiers {
        tier.list(&mut |ino, _| {
            see(ino);
            ControlFlow::Continue(())
        })?;
        recover::set_aside(tier.path())?.iter().filter_map(|aside| aside.ino).for_each(&mut see);
    }
    backing.list_spills()?.into_iter().for_each(&mut see);
    backing.list_parked()?.into_iter().for_each(&mut see);
    let aside = backing.list_set_aside().unwrap_or_else(|error| {
        tracing::warn!(%error, "can't list what was set aside in the backing store");
        Vec::new()
    });
    for path in aside {
        numbers_in(&path.file_name().unwrap_or_default().to_string_lossy()).for_each(&mut see);
    }
    Ok(highest)
}

/// What may be an inode number in the name of something that was set aside in the backing store.
fn numbers_in(name: &str) -> impl Iterator<Item = u64> {
    let parts = name.split(['.', '-']).skip(1).filter(|part| part.len() <= 16);
    parts.filter_map(|part| u64::from_str_radix(part, 16).ok())
}

/// Notes that a rebuild begins and puts the index out of its way; `highest` is the highest sequence of all
/// inode numbers that are there.
///
/// # Errors
/// Somebody uses the index: it would be moved away under him.
pub(crate) fn begin(state_dir: &Path, highest: u64) -> Result<Begun> {
    drop(forebay_store::make_own(state_dir)?);
    let meta_dir = state_dir.join(METADATA);
    let mut note = Note::read(state_dir)?.unwrap_or_else(|| Note { highest, names: Vec::new() });
    let names = &mut note.names;
    if meta_dir.is_dir() {
        if Embedded::is_in_use(&meta_dir)? {
            return Err(MetaError::Engine(EngineError::InUse { path: meta_dir }).into());
        }
        // One that was noted and has not moved is this one.
        let moves = names.last().is_some_and(|name| name != NONE && !state_dir.join(name).exists());
        if !moves {
            names.push(free_aside(state_dir));
        }
        let aside = names.last().cloned().unwrap_or_default();
        note.write(state_dir)?;
        std::fs::rename(&meta_dir, state_dir.join(aside))?;
    } else if names.is_empty() {
        names.push(NONE.into());
        note.write(state_dir)?;
    }
    std::fs::File::open(state_dir)?.sync_all()?;
    let all = note.names.iter().enumerate();
    let all = all.map(|(at, name)| Replaced { dir: state_dir.join(name), half_made: at > 0 });
    let replaced = all.filter(|index| index.dir.is_dir()).collect();
    Ok(Begun { replaced, highest: note.highest })
}

/// Notes that the rebuild has ended.
pub(crate) fn end(state_dir: &Path) -> Result<()> {
    std::fs::remove_file(state_dir.join(NOTE))?;
    Ok(std::fs::File::open(state_dir)?.sync_all()?)
}

/// Refuses the state of a rebuild that was interrupted: only another one ends it.
pub(crate) fn refuse_half_made(
    state_dir: &Path,
    backing: Option<&Path>,
    tiers: &[PathBuf],
) -> Result<()> {
    if !state_dir.join(NOTE).exists() {
        return Ok(());
    }
    let backing = backing.map_or("DIR".into(), |dir| dir.display().to_string());
    let names: Vec<_> = tiers.iter().map(|tier| tier.display().to_string()).collect();
    let state = match tiers.first().is_some_and(|first| first.join("state") == state_dir) {
        true => String::new(),
        false => format!("--state-dir {} ", state_dir.display()),
    };
    Err(NodeError::BadState(format!(
        "a rebuild of the index in {} was interrupted or could not bring back all, and is not complete: \
         nothing is lost, run it again: `forebay fsck --rebuild --backing {backing} {state}{}`",
        state_dir.display(),
        names.join(" "),
    )))
}

/// The same for a mount.
pub(crate) fn refuse_half_made_for(config: &NodeConfig) -> Result<()> {
    let Some(state) = members::state_dir(config) else { return Ok(()) };
    let tiers: Vec<PathBuf> = config.tiers.iter().map(|tier| tier.dir.clone()).collect();
    refuse_half_made(&state, Some(&config.backing), &tiers)
}

/// What the note says.
struct Note {
    highest: u64,
    names: Vec<String>,
}

impl Note {
    /// What can't be read was damaged: then the rebuild begins anew, over what there is.
    ///
    /// # Errors
    /// A note of a newer version: it may name what this one does not know of.
    fn read(state_dir: &Path) -> Result<Option<Self>> {
        let path = state_dir.join(NOTE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut lines = text.lines();
        let first = lines.next().and_then(|line| line.strip_prefix(PREFIX)?.split_once(' '));
        let version = first.and_then(|(version, _)| version.parse::<u32>().ok());
        if version.is_some_and(|found| found > VERSION) {
            return Err(NodeError::BadState(format!(
                "{} is of a newer version of Forebay: end the rebuild with that. If no newer one was there \
                 it is damaged: remove it, and run the rebuild again",
                path.display()
            )));
        }
        let highest = first.and_then(|(_, hex)| u64::from_str_radix(hex, 16).ok());
        let Some(highest) = highest.filter(|_| version == Some(VERSION)) else { return Ok(None) };
        Ok(Some(Note {
            highest,
            names: lines.filter(|line| is_name(line)).map(str::to_owned).collect(),
        }))
    }

    /// Replaces the note, durably.
    fn write(&self, state_dir: &Path) -> Result<()> {
        use std::io::Write;
        let new = state_dir.join(format!("{NOTE}.new"));
        let mut file = std::fs::File::create(&new)?;
        let names = self.names.join("\n");
        let text = format!("{PREFIX}{VERSION} {:x}\n{names}\n", self.highest);
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(new, state_dir.join(NOTE))?;
        Ok(std::fs::File::open(state_dir)?.sync_all()?)
    }
}

/// Whether a line is what this module writes, and no path to somewhere else.
fn is_name(line: &str) -> bool {
    line == NONE || line.starts_with(METADATA) && !line.contains('/')
}

/// Where a replaced index goes. An earlier one stays: it may be the one that knew the names.
fn free_aside(state_dir: &Path) -> String {
    let names = (0..).map(|number: u32| match number {
        0 => format!("{METADATA}.before-rebuild"),
        number => format!("{METADATA}.before-rebuild-{number}"),
    });
    let mut free = names.filter(|name| !state_dir.join(name).exists());
    free.next().unwrap_or_default()
}
