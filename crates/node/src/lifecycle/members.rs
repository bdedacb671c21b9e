//! Which tiers a mount has.
//!
//! The state directory and every tier know all tiers of the mount, by identity. A tier that is not
//! there (its device was not mounted) must not be taken for an empty one, nor a tier be used with the
//! index of another mount: dirty files would read as their old version, and be called clean.
//! Nothing of that matters once all is written back, which every copy says of the last end.

use std::collections::BTreeMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_meta::MetaStore;
use forebay_store::{DirBacking, StoreIdentity, Tier, TierId};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster;
use crate::config::NodeConfig;
use crate::error::{NodeError, Result};
use crate::lifecycle::{mounts_below, nested_tiers, said_drained};
use crate::node::{METADATA, Node};
use crate::residency::TierSlot;

/// Name of the file in the state directory and in each tier.
pub(crate) const FILE: &str = "members";
const MAGIC: &[u8; 8] = b"FBAYMEMB";
const VERSION: u32 = 1;
/// Where the checksum of all, with its own bytes as zeros, stands.
const SUM: usize = 16;
const HEAD: usize = 24;
/// Longer ones nobody has written.
const LONGEST: u64 = 1 << 20;
/// The name under which notes are read.
const READER: &str = "reader";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Magic numbers of file systems that keep files in memory (statfs(2)): tmpfs, ramfs.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The tiers of a mount.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Members {
    /// Identity of the namespace.
    #[prost(string, tag = "1")]
    pub(crate) namespace: String,
    /// The state directory.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) state: Vec<u8>,
    /// The backing store.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) backing: Vec<u8>,
    /// The backing store had everything at the last end.
    #[prost(bool, tag = "4")]
    pub(crate) drained: bool,
    /// The tiers, fastest first.
    #[prost(message, repeated, tag = "5")]
    pub(crate) tiers: Vec<Member>,
    /// In a note in the backing store: the machine.
    #[prost(string, tag = "6")]
    pub(crate) host: String,
    /// Which directory the backing store is, whatever its path.
    #[prost(message, optional, tag = "7")]
    pub(crate) store: Option<Store>,
    /// Where other file systems are mounted below its root, as paths from there.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(crate) mounts: Vec<Vec<u8>>,
    /// At the last end the backing store was known to lack something.
    #[prost(bool, tag = "9")]
    pub(crate) behind: bool,
}

/// What the backing store has when it is noted which tiers there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreHas {
    /// Everything: any of the tiers may go.
    All,
    /// Perhaps everything, but what is on the tiers may still change, or was not compared.
    NotKnown,
    /// Not everything: something could not be written back.
    NotAll,
}

/// What tells a backing store from another.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Store {
    /// The mark in its private area.
    #[prost(string, tag = "1")]
    pub(crate) mark: String,
    /// Its file system.
    #[prost(string, tag = "2")]
    pub(crate) file_system: String,
    /// Its root.
    #[prost(string, tag = "3")]
    pub(crate) root: String,
}

/// One tier.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Member {
    /// Its identity, as in its label.
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// Where it was.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) path: Vec<u8>,
    /// Of a tier in memory: the boot that it lives as long as.
    #[prost(string, tag = "3")]
    pub(crate) boot: String,
}

/// What a file says.
#[expect(clippy::large_enum_variant, reason = "few, and none is kept")]
pub(crate) enum Found {
    Nothing,
    Sound(Members),
    Damaged,
}

fn shown(path: &[u8]) -> String {
    PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())).display().to_string()
}

fn this_boot() -> String {
    std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

impl From<&StoreIdentity> for Store {
    fn from(found: &StoreIdentity) -> Self {
        let StoreIdentity { mark, file_system, root } = found.clone();
        Store { mark, file_system, root }
    }
}

impl From<&Store> for StoreIdentity {
    fn from(known: &Store) -> Self {
        let Store { mark, file_system, root } = known.clone();
        StoreIdentity { mark, file_system, root }
    }
}

impl Member {
    fn of(tier: &dyn Tier) -> Self {
        let path = tier.path();
        let in_memory = rustix::fs::statfs(path)
            .is_ok_and(|found| MEMORY.contains(&u64::try_from(found.f_type).unwrap_or(0)));
        Member {
            id: tier.id().to_string(),
            path: path.as_os_str().as_bytes().to_vec(),
            boot: if in_memory { this_boot() } else { String::new() },
        }
    }

    /// Whether it can't come back.
    fn is_gone(&self) -> bool {
        !self.boot.is_empty() && self.boot != this_boot()
    }
}

impl Members {
    fn encode_file(&self) -> Vec<u8> {
        Self::file_of(&self.encode_to_vec())
    }

    pub(super) fn file_of(body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(body);
        let sum = xxh3_64(&bytes);
        bytes[SUM..HEAD].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn read(dir: &Path) -> Result<Found> {
        use std::io::Read;
        let path = dir.join(FILE);
        let mut bytes = Vec::new();
        match std::fs::File::open(&path) {
            Ok(file) => {
                if file.take(LONGEST).read_to_end(&mut bytes).is_err() {
                    return Ok(Found::Damaged);
                }
            }
            Err(error)
                if [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory]
                    .contains(&error.kind()) =>
            {
                return Ok(Found::Nothing);
            }
            Err(_) => return Ok(Found::Damaged),
        }
        Self::decode_file(bytes, path)
    }

    fn decode_file(mut bytes: Vec<u8>, path: PathBuf) -> Result<Found> {
        if bytes.len() < HEAD || !bytes.starts_with(MAGIC) {
            return Ok(Found::Damaged);
        }
        let mut sum = [0; HEAD - SUM];
        sum.copy_from_slice(&bytes[SUM..HEAD]);
        bytes[SUM..HEAD].fill(0);
        if u64::from_le_bytes(sum) != xxh3_64(&bytes) {
            return Ok(Found::Damaged);
        }
        let found = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if found != VERSION {
            let source = forebay_store::StoreError::Version { path, found, known: VERSION };
            return Err(source.into());
        }
        Ok(Members::decode(&bytes[HEAD..]).map_or(Found::Damaged, Found::Sound))
    }

    /// Replaces the file, durably.
    fn write(&self, dir: &Path) -> std::io::Result<()> {
        crate::state_files::replace(dir, FILE, &self.encode_file())
    }

    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.tiers.iter().map(|tier| shown(&tier.path)).collect();
        names.join(" ")
    }
}

/// Where the state of a mount with these tiers is.
pub(crate) fn state_dir(config: &NodeConfig) -> Option<PathBuf> {
    let first = || config.tiers.first().map(|tier| tier.dir.join("state"));
    config.state_dir.clone().or_else(first)
}

/// What was found before anything was opened or made.
#[derive(Default)]
pub(crate) struct Expected {
    /// The namespace that the tiers belong to; `None` if nobody says so.
    namespace: Option<String>,
    /// Whether all was written back when it was last used.
    drained: bool,
    /// Whether the file of the state directory was read.
    in_state: bool,
    /// The backing store as it was found.
    pub(crate) store: StoreIdentity,
    /// Where it may be marked.
    pub(crate) markable: Option<Arc<DirBacking>>,
}

/// Checks, without touching anything, that the tiers that a mount is given are those that it has.
///
/// # Errors
/// [`NodeError::BadState`] with the names of those that are missing or belong elsewhere.
pub fn check_tiers(config: &NodeConfig) -> Result<()> {
    check(config).map(drop)
}

/// Whether the last mount of a tier has noted at its end that the backing store lacks something.
pub fn is_ahead_of_store(tier: &Path) -> bool {
    matches!(Members::read(tier), Ok(Found::Sound(members)) if members.behind)
}

/// Checks the tiers that a mount is given against those that it has, before anything is touched.
///
/// # Errors
/// [`NodeError::BadState`] with the names of those that are missing or belong elsewhere.
pub(crate) fn check(config: &NodeConfig) -> Result<Expected> {
    let Some(state) = state_dir(config) else { return Ok(Expected::default()) };
    check_owners(config, &state)?;
    nested_tiers::check(config)?;
    let own = match Members::read(&state)? {
        Found::Sound(members) => Some(members),
        Found::Nothing | Found::Damaged => None,
    };
    let in_state = own.is_some();
    let mut copies = Vec::new();
    let mut given = Vec::new();
    for tier in &config.tiers {
        if let Some(id) = forebay_store::tier::identity(&tier.dir)? {
            given.push(id.to_string());
        }
        match Members::read(&tier.dir)? {
            Found::Sound(members) => copies.push((tier.dir.clone(), members)),
            Found::Damaged => {
                tracing::warn!(tier = %tier.dir.display(), "the tier's list of the mount's tiers is damaged; the others count");
            }
            Found::Nothing => {}
        }
    }
    let has_index = state.join(METADATA).exists();
    let home = match &own {
        Some(own) => Some(own.namespace.clone()),
        None if has_index => copies.first().map(|(_, members)| members.namespace.clone()),
        None => cluster::bound_to(&state)?,
    };
    for (dir, members) in &copies {
        if home.as_ref() != Some(&members.namespace) && !members.drained {
            return Err(belongs_elsewhere(config, dir, members, &state));
        }
    }
    let everybody = own.iter().chain(copies.iter().map(|(_, members)| members));
    let known: Vec<Member> = everybody.flat_map(|members| members.tiers.clone()).collect();
    let copies = copies.into_iter().map(|(_, members)| members);
    let mine: Vec<Members> = own
        .into_iter()
        .chain(copies.filter(|copy| home.as_ref() == Some(&copy.namespace)))
        .collect();
    let drained = mine.iter().all(|members| members.drained);
    if !drained {
        check_all_there(config, &mine, &given)?;
    }
    if home.is_none() {
        check_notes(config, &given)?;
    }
    if !config.create_tier {
        check_places(config, &known)?;
    }
    let store = DirBacking::open(&config.backing, READER)?.identity()?;
    check_store(config, &mine, &store)?;
    mounts_below::check(config, &mine)?;
    Ok(Expected { namespace: home, drained, in_state, store, markable: None })
}

/// Checks that what is at the path of the backing store is what was there, not the place where its
/// file system is not mounted, nor another one.
fn check_store(config: &NodeConfig, mine: &[Members], found: &StoreIdentity) -> Result<()> {
    // Another path is told later.
    let path = absolute(&config.backing);
    let here = |members: &&Members| members.backing == path.as_os_str().as_bytes();
    let another = mine.iter().filter(here).find(|members| {
        let known = members.store.as_ref().map(StoreIdentity::from);
        known.is_some_and(|known| !known.is_same(found, members.drained))
    });
    let Some(members) = another else { return Ok(()) };
    let backing = config.backing.display();
    let here = match forebay_store::identity::mount_at(&config.backing) {
        Ok((kind, point)) => format!(" (it is on the {kind} mounted at {})", point.display()),
        Err(_) => String::new(),
    };
    let what = match members.drained {
        true => "hold its index",
        false => "may hold files that it lacks",
    };
    let state = match &config.state_dir {
        Some(dir) => format!("--state-dir {} ", dir.display()),
        None => String::new(),
    };
    Err(NodeError::BadState(format!(
        "{backing} is not the backing store that these tiers belong to, though it has its path{here}; \
         they {what}: mount its file system there. If this is the right one (it was moved or \
         restored): `forebay fsck --accept-store --backing {backing} {state}{}`",
        tier_names(config),
    )))
}

/// Has the tiers of a mount belong to what is now in a directory, which may have been moved or
/// restored there. By how many copies of the list of tiers.
///
/// # Errors
/// When a list can't be read or written.
pub(crate) fn accept_store(backing: &Path, state: &Path, tiers: &[&Path]) -> Result<usize> {
    let found = DirBacking::open(backing, READER)?.marked_identity()?;
    let mut accepted = 0;
    for dir in std::iter::once(state).chain(tiers.iter().copied()) {
        if let Found::Sound(mut members) = Members::read(dir)? {
            members.backing = absolute(backing).as_os_str().as_bytes().to_vec();
            members.store = Some(Store::from(&found));
            members.mounts = mounts_below::of(backing);
            members.write(dir)?;
            accepted += 1;
        }
    }
    Ok(accepted)
}

/// Checks that nobody else can change what this mount keeps for itself, before any of it is believed.
fn check_owners(config: &NodeConfig, state: &Path) -> Result<()> {
    for tier in &config.tiers {
        // What is no tier at all is told first.
        forebay_store::tier::check_dir(&tier.dir)?;
        forebay_store::check_own(&tier.dir)?;
    }
    Ok(forebay_store::check_own(state)?)
}

fn belongs_elsewhere(
    config: &NodeConfig,
    dir: &Path,
    members: &Members,
    state: &Path,
) -> NodeError {
    NodeError::BadState(format!(
        "the tier {} belongs to a mount of {} with the tiers {} and its index in {}, and may hold \
         files that the backing store lacks; the index in {} is another one, or there is none: mount \
         with those tiers in that order (and --state-dir, if it had one), or, if that index is lost, \
         make it anew with `forebay fsck --rebuild --backing {} {}`",
        dir.display(),
        shown(&members.backing),
        members.names(),
        shown(&members.state),
        state.display(),
        config.backing.display(),
        tier_names(config),
    ))
}

pub(crate) fn tier_names(config: &NodeConfig) -> String {
    let names: Vec<_> = config.tiers.iter().map(|tier| tier.dir.display().to_string()).collect();
    names.join(" ")
}

fn check_all_there(config: &NodeConfig, mine: &[Members], given: &[String]) -> Result<()> {
    let all: BTreeMap<&str, &Member> = mine
        .iter()
        .filter(|members| !members.drained)
        .flat_map(|members| &members.tiers)
        .map(|member| (member.id.as_str(), member))
        .collect();
    for member in all.values().filter(|member| !given.contains(&member.id)) {
        let path = shown(&member.path);
        if member.is_gone() {
            tracing::warn!(
                tier = path,
                "a tier in memory has gone with the last boot, and what was only there"
            );
            continue;
        }
        let rest: Vec<_> = all
            .values()
            .filter(|other| given.contains(&other.id))
            .map(|other| shown(&other.path))
            .collect();
        let state = match &config.state_dir {
            Some(dir) => format!("--state-dir {} ", dir.display()),
            None => String::new(),
        };
        return Err(NodeError::BadState(format!(
            "the tier {path} ({}) of this mount is not there, or another directory is in its place; \
             it may hold files that the backing store lacks: mount its device, or give --tier with \
             the place where it is now. If it is lost for good, give up what was only there: \
             `forebay fsck --accept-loss {state}{}`",
            member.id,
            rest.join(" "),
        )));
    }
    Ok(())
}

/// A tier that is not in its place any more is not begun anew there by itself, also if nothing is lost
/// with it: its file system may not be mounted, and the one that holds its mount point would be filled.
/// Memory forgets, and has the same room as before.
fn check_places(config: &NodeConfig, known: &[Member]) -> Result<()> {
    for tier in &config.tiers {
        if forebay_store::tier::identity(&tier.dir)?.is_some() {
            continue;
        }
        let place = place_of(&tier.dir);
        let was_here = |member: &&Member| {
            member.boot.is_empty() && member.path == place.as_os_str().as_bytes()
        };
        let Some(member) = known.iter().find(was_here) else { continue };
        return Err(NodeError::BadState(format!(
            "{} is not the tier ({}) that this mount had there: its file system may not be mounted. \
             The backing store has all that was in it. Mount its device, or begin an empty tier there \
             with --create-tier, once",
            shown(&member.path),
            member.id,
        )));
    }
    Ok(())
}

/// Name of this machine among those that share a backing store.
fn this_host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    format!("{} {}", read("/proc/sys/kernel/hostname"), read("/etc/machine-id"))
}

/// The place that a directory has, or will have when it is made.
fn place_of(dir: &Path) -> PathBuf {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return dir.into() };
    std::fs::canonicalize(dir)
        .or_else(|_| std::fs::canonicalize(parent).map(|parent| parent.join(name)))
        .unwrap_or_else(|_| dir.to_owned())
}

/// A mount that begins anew must not do so in the place of tiers that are away, and of which nothing
/// is left here to say so: the backing store has a note of them.
fn check_notes(config: &NodeConfig, given: &[String]) -> Result<()> {
    let Ok(backing) = DirBacking::open(&config.backing, READER) else { return Ok(()) };
    let notes = backing.noted_mounts().unwrap_or_default();
    let places: Vec<PathBuf> = config.tiers.iter().map(|tier| place_of(&tier.dir)).collect();
    for (owner, note) in notes {
        let Ok(Found::Sound(members)) = Members::decode_file(note, PathBuf::from(&owner)) else {
            continue;
        };
        let here = |member: &&Member| {
            places.iter().any(|place| place.as_os_str().as_bytes() == member.path)
                && !member.is_gone()
        };
        let known = members.tiers.iter().any(|member| given.contains(&member.id));
        let Some(away) = members.tiers.iter().find(here) else { continue };
        if known || members.host != this_host() {
            continue;
        }
        return Err(NodeError::BadState(format!(
            "{} is not the tier ({}) that was there when {} was last mounted with it, and which may \
             hold files that the backing store lacks: mount its device. If it is lost for good, give \
             up what was only there: `forebay fsck --accept-loss --backing {} {}`",
            shown(&away.path),
            away.id,
            config.backing.display(),
            config.backing.display(),
            tier_names(config),
        )));
    }
    Ok(())
}

/// Takes away the notes of mounts with a tier in one of these places; `before` hears their owners, what they
/// say, and whether the first tier was in one of them.
pub(crate) fn forget_notes(
    backing: &Path,
    dirs: &[PathBuf],
    before: &mut dyn FnMut(&str, &Members, bool) -> Result<()>,
) -> Result<()> {
    let backing = DirBacking::open(backing, READER)?;
    let places = dirs.iter().map(|dir| place_of(dir).into_os_string().into_vec());
    let places: Vec<Vec<u8>> = places.collect();
    for (owner, note) in backing.noted_mounts()? {
        let Ok(Found::Sound(members)) = Members::decode_file(note, PathBuf::from(&owner)) else {
            continue;
        };
        let gone = |tier: &Member| places.contains(&tier.path);
        if members.host == this_host() && members.tiers.iter().any(gone) {
            before(&owner, &members, members.tiers.first().is_some_and(gone))?;
            backing.forget_mount(&owner)?;
        }
    }
    Ok(())
}

/// Leaves a note in the backing store that this mount may have what it lacks. Whether it was made now.
pub(crate) fn leave_note(backing: &DirBacking, config: &NodeConfig, tiers: &[&dyn Tier]) -> bool {
    let members = Members {
        namespace: String::new(),
        state: state_dir(config)
            .map_or_else(Vec::new, |state| absolute(&state).into_os_string().into_vec()),
        backing: absolute(&config.backing).as_os_str().as_bytes().to_vec(),
        drained: false,
        tiers: tiers.iter().map(|tier| Member::of(*tier)).collect(),
        host: this_host(),
        ..Members::default()
    };
    match backing.note_mount(&members.encode_file()) {
        Ok(before) => !before,
        Err(error) => {
            tracing::debug!(%error, "no note of the mount in the backing store");
            false
        }
    }
}

impl Expected {
    /// Whether anybody says to which namespace the tiers belong.
    pub(crate) fn is_known(&self) -> bool {
        self.namespace.is_some()
    }

    /// Nothing of tiers that are not looked at.
    pub(crate) fn of(backing: &Arc<DirBacking>) -> Result<Self> {
        let (store, markable) = (backing.identity()?, Some(backing.clone()));
        Ok(Expected { store, markable, ..Expected::default() })
    }

    /// Whether the index that was opened is the one that the tiers belong to.
    ///
    /// # Errors
    /// [`NodeError::BadState`] if not, and something may be lost by it.
    pub(crate) fn confirm(&self, meta: &MetaStore, state: &Path, tiers: &[TierSlot]) -> Result<()> {
        let identity = cluster::identity_of(meta)?;
        let known = self.namespace.as_ref();
        if self.drained || known.is_none_or(|known| *known == identity) {
            return Ok(());
        }
        let what =
            if self.in_state { "was replaced or emptied" } else { "is not that of the tiers" };
        let names: Vec<_> =
            tiers.iter().map(|slot| slot.tier.path().display().to_string()).collect();
        Err(NodeError::BadState(format!(
            "the index in {} {what}, and the tiers may hold files that the backing store lacks: bring \
             it back, or make it anew with `forebay fsck --rebuild --backing DIR {}`",
            state.display(),
            names.join(" ")
        )))
    }
}

/// Notes in the state directory and in each tier which tiers there are.
pub(crate) fn note(
    meta: &MetaStore,
    state: &Path,
    backing: &Path,
    store: Option<&StoreIdentity>,
    tiers: &[&dyn Tier],
    store_has: StoreHas,
) -> Result<()> {
    let known = match Members::read(state)? {
        Found::Sound(known) => Some(known),
        Found::Nothing | Found::Damaged => None,
    };
    let (store, mounts) = match (store, known) {
        (Some(store), known) => {
            let mut mounts = mounts_below::of(backing);
            // One that went meanwhile may still lack something.
            mounts.extend(known.filter(|known| !known.drained).into_iter().flat_map(|k| k.mounts));
            mounts.sort();
            mounts.dedup();
            (Some(Store::from(store)), mounts)
        }
        // Whoever does not look at it leaves what is known of it.
        (None, known) => known.map_or((None, Vec::new()), |known| (known.store, known.mounts)),
    };
    let namespace = cluster::identity_of(meta)?;
    // Or a crash could leave tiers of a namespace that does not know its own name.
    meta.sync()?;
    let members = Members {
        namespace,
        state: absolute(state).as_os_str().as_bytes().to_vec(),
        backing: absolute(backing).as_os_str().as_bytes().to_vec(),
        drained: store_has == StoreHas::All,
        tiers: tiers.iter().map(|tier| Member::of(*tier)).collect(),
        host: String::new(),
        store,
        mounts,
        behind: store_has == StoreHas::NotAll,
    };
    let places: Vec<&Path> =
        std::iter::once(state).chain(tiers.iter().map(|tier| tier.path())).collect();
    for dir in places {
        if matches!(Members::read(dir)?, Found::Sound(known) if known == members) {
            continue;
        }
        match members.write(dir) {
            Ok(()) => {}
            // A full tier serves on; the others have it.
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "can't note which tiers there are");
                if store_has != StoreHas::All {
                    said_drained::take_back_or_warn(dir);
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// For a check: which tiers a mount has that are not among the given ones, by path, if something may
/// be lost with them.
pub(crate) fn missing(state: &Path, tiers: &[&Path]) -> Result<Vec<String>> {
    let mut mine = Vec::new();
    let mut given = Vec::new();
    let own = match Members::read(state)? {
        Found::Sound(own) => own,
        _ => return Ok(Vec::new()),
    };
    for dir in tiers {
        if let Some(id) = forebay_store::tier::identity(dir)? {
            given.push(id.to_string());
        }
        match Members::read(dir)? {
            Found::Sound(copy) if copy.namespace == own.namespace => mine.push(copy),
            _ => {}
        }
    }
    mine.push(own);
    let mut paths: Vec<String> = mine
        .iter()
        .filter(|members| !members.drained)
        .flat_map(|members| &members.tiers)
        .filter(|member| !given.contains(&member.id))
        .map(|member| shown(&member.path))
        .collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// By which identity the others know a tier that has lost its label; `others` are the tiers beside it.
pub(crate) fn identity_of_unlabelled(
    dir: &Path,
    state: &Path,
    others: &[PathBuf],
) -> Option<TierId> {
    let places = others.iter().map(PathBuf::as_path).chain([dir, state]);
    let known: Vec<Member> = places
        .filter_map(|place| match Members::read(place) {
            Ok(Found::Sound(members)) => Some(members.tiers),
            _ => None,
        })
        .flatten()
        .collect();
    let labelled: Vec<String> = others
        .iter()
        .filter_map(|other| forebay_store::tier::identity(other).ok().flatten())
        .map(|id| id.to_string())
        .collect();
    let free: Vec<&Member> = known.iter().filter(|member| !labelled.contains(&member.id)).collect();
    let here = absolute(dir);
    let by_path = free.iter().find(|member| member.path == here.as_os_str().as_bytes());
    let only = || free.first().filter(|first| free.iter().all(|member| member.id == first.id));
    by_path.or_else(only).and_then(|member| TierId::parse(&member.id))
}

impl Node {
    /// At the end: whether the backing store has everything, so that the tiers need not stay
    /// together.
    pub(crate) fn note_members_at_end(&self, ended: bool) -> Result<()> {
        let mut dirty = false;
        self.residency.residents.for_each(|_, resident| dirty |= resident.dirty);
        let drained = ended
            && !dirty
            && self.meta.backlog_len() == 0
            && self.residency.troubles.lost().is_empty()
            && self.backing.list_spills()?.is_empty();
        let behind = self.writeback.reconciler.left_behind.load(Ordering::Acquire);
        self.note_members(match drained {
            true => StoreHas::All,
            false if behind => StoreHas::NotAll,
            false => StoreHas::NotKnown,
        })?;
        if drained && let Some(backing) = self.residency.troubles.noted.get() {
            backing.forget_mount(&crate::node::owner_of(&*self.residency.tiers[0].tier))?;
        }
        Ok(())
    }

    /// Notes which tiers there are.
    pub(crate) fn note_members(&self, store_has: StoreHas) -> Result<()> {
        let tiers: Vec<&dyn Tier> = self.residency.tiers.iter().map(|slot| &*slot.tier).collect();
        let store = Some(&self.store);
        note(&self.meta, &self.state_dir, &self.config.backing, store, &tiers, store_has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Members {
        let tier = |id: &str| Member { id: id.into(), path: b"/t".to_vec(), boot: String::new() };
        Members {
            namespace: "n".into(),
            state: b"/t/state".to_vec(),
            backing: b"/b".to_vec(),
            drained: false,
            tiers: vec![tier("1"), tier("2")],
            host: String::new(),
            store: Some(Store { mark: "m".into(), ..Store::default() }),
            mounts: vec![b"sub".to_vec()],
            behind: false,
        }
    }

    #[test]
    fn members_when_written_and_any_byte_changes_then_they_are_known_as_damaged() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Members::read(dir.path()).unwrap(), Found::Nothing));
        sample().write(dir.path()).unwrap();
        assert!(matches!(Members::read(dir.path()).unwrap(), Found::Sound(m) if m == sample()));
        let path = dir.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            std::fs::write(&path, torn).unwrap();
            assert!(matches!(Members::read(dir.path()).unwrap(), Found::Damaged), "byte {at}");
        }
        let mut newer = bytes;
        newer[8] += 1;
        newer[SUM..HEAD].fill(0);
        let sum = xxh3_64(&newer);
        newer[SUM..HEAD].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(&path, newer).unwrap();
        assert!(Members::read(dir.path()).is_err());
    }

    proptest! {
        #[test]
        fn members_when_bytes_are_arbitrary_then_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(FILE), bytes).unwrap();
            let _ = Members::read(dir.path());
        }
    }
}
