//! fsck: tiers that no daemon uses are compared with the namespace, and the namespace with itself. A
//! repair unlinks nothing that may be the only copy: what can't be used is set aside.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_meta::{Embedded, EmbeddedOptions, MetaStore, Options, Record};
use forebay_store::recover::{self, Class, Finding};
use forebay_store::tier::DirTier;
use forebay_store::{BackingStore, DirBacking, Header, StoreError, Tier, TierLock};
use forebay_types::Ino;

use crate::config::BACKING_SETTING;
use crate::error::{NodeError, Result, is_undecodable};
use crate::lifecycle::members::Members;
use crate::lifecycle::recover::RECOVERED;
use crate::lifecycle::right_store::{self, Seen};
use crate::lifecycle::trust::{Places, Trust, Trusted};
use crate::lifecycle::{former, members};
use crate::node::METADATA;
use crate::residency::doubt;
use crate::residency::left_behind::LeftBehind;
use crate::residency::removals::noted_removals;
use crate::residency::synced::is_cut;

/// What to check.
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    /// The tiers, fastest first.
    pub tiers: Vec<PathBuf>,
    /// The backing store; needed for a rebuild.
    pub backing: Option<PathBuf>,
    /// Where the state is, if not in the first tier.
    pub state_dir: Option<PathBuf>,
    /// Build the namespace anew from the objects.
    pub rebuild: bool,
    /// Repair what can be repaired without loss.
    pub repair: bool,
    /// Repair, and give up what is lost: tiers that are not given, and dirty files of which nothing is
    /// left.
    pub accept_loss: bool,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Objects that were looked at.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that the backing store lacks.
    pub dirty: u64,
    /// Problems found.
    pub problems: u64,
    /// Problems repaired.
    pub repaired: u64,
    /// Of the namespace of a cluster: inodes that were looked at.
    pub inodes: u64,
    /// Their names.
    pub names: u64,
    /// Objects that the next mount removes by itself: copies of older versions, and what was not
    /// finished when the daemon ended.
    pub leftovers: u64,
    /// Whether something else was in the place of the backing store: then nothing can be repaired.
    pub other_store: bool,
    /// Some of the problems, in words.
    pub details: Vec<String>,
    /// What was set aside, now or earlier, for somebody to look at.
    pub set_aside: Vec<PathBuf>,
}

/// Problems that are told in words; more are only counted.
const TOLD: usize = 100;

impl Checked {
    pub(crate) fn problem(&mut self, repaired: bool, what: String) {
        self.problems += 1;
        self.repaired += u64::from(repaired);
        if self.details.len() < TOLD {
            self.details.push(if repaired { format!("{what} (repaired)") } else { what });
        }
    }
}

/// Checks tiers that are not mounted. `progress` is told the number of objects seen.
///
/// # Errors
/// A tier in use, state that can't be read, or a rebuild without a backing store.
pub fn check(request: &CheckRequest, progress: &mut dyn FnMut(u64) -> bool) -> Result<Checked> {
    let mut checked = Checked::default();
    if request.accept_loss && !request.rebuild && give_up_notes(request, &mut checked)? {
        return Ok(checked);
    }
    let tiers = open_tiers(request, &mut checked)?;
    let Some((first, _)) = tiers.first() else {
        return Err(NodeError::Config("name at least one tier".into()));
    };
    let state_dir = request.state_dir.clone().unwrap_or_else(|| first.path().join("state"));
    forebay_store::check_own(&state_dir)?;
    crate::cluster::bind_to_namespace(&state_dir, None)?;
    let places: Vec<&Path> = tiers.iter().map(|(tier, _)| tier.path()).collect();
    if request.rebuild {
        right_store::look(request.backing.as_deref(), &state_dir, &places)?.refuse()?;
        if let Some(path) = &request.backing {
            mend_mark(&DirBacking::open(path, &first.id().to_string())?, true, &mut checked)?;
        }
        return crate::lifecycle::rebuild::rebuild(request, tiers, &state_dir, checked, progress);
    }
    former::refuse_half_made(&state_dir, request.backing.as_deref(), &request.tiers)?;
    let (tiers, _locks): (Vec<DirTier>, Vec<TierLock>) = tiers.into_iter().unzip();
    let meta = open_meta(&state_dir.join(METADATA))?;
    let seen = look_at_store(request, &state_dir, &tiers, &meta)?;
    if let Seen::Not(why) = &seen {
        checked.other_store = true;
        checked.problem(false, why.clone());
    }
    let report = meta.check(request.repair || request.accept_loss)?;
    for violation in report.violations {
        checked.problem(violation.repaired, violation.what);
    }
    checked.problems += report.omitted;
    let mut check = Check {
        request,
        meta: &meta,
        tiers: &tiers,
        recovered: meta.setting(RECOVERED)?.is_some(),
        removed: noted_removals(&state_dir),
        trusted: trusted_now(&state_dir, &tiers, &seen),
        seen,
        checked,
        left_behind: LeftBehind::load(&state_dir)?,
        usable: HashSet::new(),
        damaged: HashSet::new(),
        given_up: Vec::new(),
        spills: HashSet::new(),
        unusable_spills: HashMap::new(),
    };
    check.membership(&state_dir)?;
    if let Some(backing) = check.backing()? {
        mend_mark(&backing, check.repairs(), &mut check.checked)?;
    }
    for tier in &tiers {
        check.tier(tier, progress)?;
    }
    check.limbo()?;
    check.spill_files()?;
    check.dirty_records()?;
    for tier in &tiers {
        let aside = recover::set_aside(tier.path())?;
        check.checked.set_aside.extend(aside.into_iter().map(|aside| aside.path));
    }
    let Check { checked, seen, .. } = check;
    accept_members(request, &meta, &state_dir, &tiers, &seen)?;
    meta.sync()?;
    Ok(checked)
}

/// With what is lost, the tiers that are named are those of the mount from now on.
fn accept_members(
    request: &CheckRequest,
    meta: &MetaStore,
    state_dir: &Path,
    tiers: &[DirTier],
    seen: &Seen,
) -> Result<()> {
    if request.accept_loss {
        let backing = seen.store().map(Path::to_owned).unwrap_or_default();
        let all: Vec<&dyn Tier> = tiers.iter().map(|tier| tier as &dyn Tier).collect();
        members::note(meta, state_dir, &backing, None, &all, members::StoreHas::NotKnown)?;
    }
    Ok(())
}

/// Gives up tiers of which nothing is left in their places but the backing store's note. Whether there
/// is nothing else to check.
fn give_up_notes(request: &CheckRequest, checked: &mut Checked) -> Result<bool> {
    let Some(backing) = &request.backing else { return Ok(false) };
    let is_tier = |dir: &PathBuf| !matches!(forebay_store::tier::identity(dir), Ok(None));
    if request.tiers.iter().any(is_tier) {
        return Ok(false);
    }
    members::forget_notes(backing, &request.tiers, &mut |owner, members, first| {
        let tiers = members.names();
        checked.problem(true, format!("{tiers}: given up, with what was only there"));
        match first && !has_index(request, members) {
            true => set_spills_aside(backing, owner, checked),
            false => Ok(()),
        }
    })?;
    Ok(true)
}

/// Whether the index of a mount is there, where it was not on a tier that is not.
fn has_index(request: &CheckRequest, members: &Members) -> bool {
    let noted = PathBuf::from(std::ffi::OsString::from_vec(members.state.clone()));
    let noted = Some(noted).filter(|state| state.is_absolute());
    noted.iter().chain(&request.state_dir).any(|state| state.join(METADATA).is_dir())
}

/// What lies in the backing store of files whose names were on a first tier that is given up.
fn set_spills_aside(backing: &Path, owner: &str, checked: &mut Checked) -> Result<()> {
    let store = DirBacking::open(backing, owner)?;
    // One that was about to be published gets its name back first.
    store.clean_temporaries(owner)?;
    for ino in store.list_spills()? {
        if let Some(kept) = store.set_spill_aside(ino)? {
            let kept = kept.display();
            checked.problem(false, format!(
                "spill file {ino:x}: a file that was written past that tier, and whose name is lost with it: set aside as {kept}"
            ));
        }
    }
    checked.set_aside.extend(store.list_set_aside()?);
    Ok(())
}

/// Has tiers that are not mounted belong to the backing store in a directory, which may have been
/// moved or restored there.
///
/// # Errors
/// A tier in use, or state that can't be read or written.
pub fn accept_store(
    backing: &Path,
    tiers: &[PathBuf],
    state_dir: Option<&Path>,
) -> Result<Checked> {
    let mut checked = Checked::default();
    let request = CheckRequest {
        tiers: tiers.to_vec(),
        backing: Some(backing.to_owned()),
        state_dir: state_dir.map(Path::to_owned),
        rebuild: false,
        repair: false,
        accept_loss: false,
    };
    let opened = open_tiers(&request, &mut checked)?;
    let Some((first, _)) = opened.first() else {
        return Err(NodeError::Config("name at least one tier".into()));
    };
    let state_dir = request.state_dir.clone().unwrap_or_else(|| first.path().join("state"));
    forebay_store::check_own(&state_dir)?;
    let dirs: Vec<&Path> = opened.iter().map(|(tier, _)| tier.path()).collect();
    // That it is the store is said now: what its mark was is needed no more.
    mend_mark(&DirBacking::open(backing, &first.id().to_string())?, true, &mut checked)?;
    let known = members::accept_store(backing, &state_dir, &dirs)?;
    if state_dir.join(METADATA).exists() {
        crate::cluster::bind_to_namespace(&state_dir, None)?;
        let path = std::fs::canonicalize(backing)?;
        let meta = open_meta(&state_dir.join(METADATA))?;
        meta.set_setting(BACKING_SETTING, path.as_os_str().as_encoded_bytes())?;
        meta.sync()?;
    }
    let shown = backing.display();
    checked.problem(
        known > 0,
        match known {
            0 => format!(
                "nothing here says which backing store it belongs to: {shown} needs no acceptance"
            ),
            _ => format!("the tiers belonged to another backing store; now they belong to {shown}"),
        },
    );
    Ok(checked)
}

fn open_tiers(request: &CheckRequest, checked: &mut Checked) -> Result<Vec<(DirTier, TierLock)>> {
    let mut tiers = Vec::new();
    for dir in &request.tiers {
        // First: what else it may be is not to be made a tier's.
        let foreign = match forebay_store::tier::identity(dir) {
            Ok(found) => found.is_none() && !request.rebuild,
            Err(error) => matches!(error, StoreError::Foreign { .. }),
        };
        if foreign {
            return Err(NodeError::Config(format!("{} is not a Forebay tier", dir.display())));
        }
        forebay_store::check_own(dir)?;
        match forebay_store::tier::identity(dir) {
            Ok(Some(_)) => {}
            // The place of a first tier that is lost.
            Ok(None) => {}
            Err(error)
                if matches!(error, StoreError::Damaged { .. })
                    || forebay_store::tier::is_label_torn(dir)
                        && matches!(error, StoreError::Version { .. }) =>
            {
                if !(request.repair || request.rebuild || request.accept_loss) {
                    return Err(error.into());
                }
                let others: Vec<PathBuf> =
                    request.tiers.iter().filter(|other| *other != dir).cloned().collect();
                let first = request.tiers.first().map(|first| first.join("state"));
                let state = request.state_dir.clone().or(first).unwrap_or_default();
                let id = members::identity_of_unlabelled(dir, &state, &others);
                let id = forebay_store::tier::restore_label(dir, id)?;
                checked
                    .problem(true, format!("the label of {} was made anew: {id}", dir.display()));
            }
            Err(error) => return Err(error.into()),
        }
        let tier = match DirTier::open(dir) {
            // A look changes nothing.
            Err(error @ StoreError::ReadOnly { .. })
                if !(request.repair || request.rebuild || request.accept_loss) =>
            {
                checked.problem(false, error.to_string());
                DirTier::open_to_look(dir)?
            }
            opened => opened?,
        };
        let lock = tier.lock()?;
        tiers.push((tier, lock));
    }
    Ok(tiers)
}

/// A mark of the backing store that can't be read goes: a mount makes it anew where there is none.
fn mend_mark(backing: &DirBacking, repairs: bool, checked: &mut Checked) -> Result<()> {
    let Err(error @ StoreError::Damaged { .. }) = backing.identity() else { return Ok(()) };
    if repairs {
        backing.remove_mark()?;
    }
    let what = match repairs {
        true => "the mark of the backing store can't be read; a new one is made where it is needed"
            .into(),
        false => error.to_string(),
    };
    checked.problem(repairs, what);
    Ok(())
}

pub(crate) fn open_meta(dir: &Path) -> Result<MetaStore> {
    if !dir.is_dir() {
        return Err(NodeError::Config(format!(
            "there is no metadata in {}: `forebay fsck --rebuild` makes it anew from the tiers",
            dir.display()
        )));
    }
    let is_read_only = rustix::fs::statvfs(dir)
        .is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    if is_read_only {
        return Err(StoreError::ReadOnly { path: dir.to_owned() }.into());
    }
    let engine =
        Embedded::open(dir, &EmbeddedOptions::default()).map_err(forebay_meta::Error::from)?;
    Ok(MetaStore::open(Box::new(engine), &Options::default())?)
}

/// The backing store as far as it is seen. Nothing is given up without it.
fn look_at_store(
    request: &CheckRequest,
    state_dir: &Path,
    tiers: &[DirTier],
    meta: &MetaStore,
) -> Result<Seen> {
    let places: Vec<&Path> = tiers.iter().map(Tier::path).collect();
    let backing = known_backing(request, meta)?;
    let seen = right_store::look(backing.as_deref(), state_dir, &places)?;
    if request.accept_loss {
        seen.refuse()?;
    }
    Ok(seen)
}

/// What the next start believes.
fn trusted_now(state_dir: &Path, tiers: &[DirTier], seen: &Seen) -> Trusted {
    let tiers = tiers.iter().map(|tier| (tier.id().to_string(), tier.path().to_owned()));
    let backing = seen.store().map(Path::to_owned);
    Places { state_dir, tiers: tiers.collect(), backing }.look()
}

/// The backing store that was given, else the one that the namespace knows.
fn known_backing(request: &CheckRequest, meta: &MetaStore) -> Result<Option<PathBuf>> {
    if let Some(given) = &request.backing {
        return Ok(Some(given.clone()));
    }
    let known = meta.setting(BACKING_SETTING)?;
    let known = known.map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)));
    Ok(known)
}

pub(crate) fn path_of(meta: &MetaStore, ino: Ino) -> String {
    let path = meta.path(ino).ok().flatten();
    path.map_or_else(
        || format!("inode {:x}", ino.0),
        |path| String::from_utf8_lossy(&path).into_owned(),
    )
}

pub(super) struct Check<'a> {
    pub(super) request: &'a CheckRequest,
    pub(super) meta: &'a MetaStore,
    pub(super) tiers: &'a [DirTier],
    /// The backing store, if it is what is in its place.
    pub(super) seen: Seen,
    /// Whether the namespace has seen its tiers.
    pub(super) recovered: bool,
    /// Files that were removed, and may have left something.
    removed: HashSet<u64>,
    /// What the next start believes.
    pub(super) trusted: Trusted,
    pub(super) checked: Checked,
    /// Objects that count no more, whatever they say, and that their tiers did not give up.
    pub(super) left_behind: LeftBehind,
    /// Inodes with an object that can be used.
    pub(super) usable: HashSet<u64>,
    /// Inodes with an object that can't be, and that stands where it stood.
    pub(super) damaged: HashSet<u64>,
    /// Objects of this tier that can't be read, and are to be given up.
    pub(super) given_up: Vec<(Ino, PathBuf)>,
    /// Inodes with a spill file.
    pub(super) spills: HashSet<u64>,
    /// Why spill files can't be used, by inode.
    pub(super) unusable_spills: HashMap<u64, String>,
}

impl Check<'_> {
    pub(super) fn repairs(&self) -> bool {
        self.request.repair || self.request.accept_loss
    }

    fn membership(&mut self, state_dir: &Path) -> Result<()> {
        let given: Vec<&Path> = self.tiers.iter().map(Tier::path).collect();
        for path in members::missing(state_dir, &given)? {
            let given_up = self.request.accept_loss;
            let what = match given_up {
                true => format!("the tier {path} is given up, with what was only there"),
                false => format!(
                    "the tier {path} of the mount was not given: give it, or give it up with `forebay fsck --accept-loss`"
                ),
            };
            self.checked.problem(given_up, what);
        }
        Ok(())
    }

    fn tier(&mut self, tier: &DirTier, progress: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let mut findings = Vec::new();
        let mut failed = None;
        recover::scan(tier.path(), &mut |finding| {
            self.checked.objects += 1;
            if self.checked.objects.is_multiple_of(256) && !progress(self.checked.objects) {
                return ControlFlow::Break(());
            }
            match self.object(tier, &finding) {
                Ok(None) => {}
                Ok(Some(what)) => findings.push((finding, what)),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        // Not while the directories are read.
        for (finding, what) in findings {
            self.repair_object(tier, &finding, what)?;
        }
        self.give_up_unreadable(tier)
    }

    fn repair_object(&mut self, tier: &DirTier, finding: &Finding, what: String) -> Result<()> {
        if let Seen::Not(_) = self.seen {
            self.damaged.extend(finding.ino);
            let left = "it is left as it is until the backing store is seen";
            self.checked.problem(false, format!("{what}: {left}"));
            return Ok(());
        }
        if !self.repairs() {
            self.damaged.extend(finding.ino);
            self.checked.problem(
                false,
                format!("{what}: `forebay fsck --repair` sets it aside, or mends it"),
            );
            return Ok(());
        }
        if let Some(ino) = finding.ino {
            self.doubt(tier, Ino(ino))?;
        }
        match recover::move_to_lost(tier.path(), &finding.path) {
            Ok(kept) => {
                self.checked.problem(true, format!("{what}: set aside as {}", kept.display()));
            }
            Err(error) => {
                self.damaged.extend(finding.ino);
                self.checked.problem(false, format!("{what}: {error}: it stays where it is"));
            }
        }
        Ok(())
    }

    /// Before the object of a file is set aside: it may have what the backing store lacks, also where
    /// the record does not say so.
    fn doubt(&mut self, tier: &DirTier, ino: Ino) -> Result<()> {
        let record = match self.meta.get(ino) {
            Ok(record) if doubt::is_in_doubt(&record) => record,
            Ok(_) | Err(forebay_meta::Error::Stale(_)) => return Ok(()),
            Err(error) if is_undecodable(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if tier.open(ino.0).and_then(|object| object.is_empty()).unwrap_or(false) {
            return Ok(());
        }
        let Some(path) = self.seen.store() else {
            return doubt::note_doubt(self.meta, tier, &record);
        };
        let backing = DirBacking::open(path, &tier.id().to_string())?;
        if doubt::copied_version(self.meta, &backing, tier, &record).is_some() {
            return Ok(());
        }
        doubt::note_doubt(self.meta, tier, &record)?;
        if record.spilled {
            backing.set_spill_aside(ino.0)?;
        }
        Ok(())
    }

    /// What is wrong with a file of a tier, if anything: it is to be set aside.
    fn object(&mut self, tier: &DirTier, finding: &Finding) -> Result<Option<String>> {
        let header = match &finding.class {
            Class::Valid { header, .. } | Class::MapMissing { header } => Some(&**header),
            _ => None,
        };
        if finding.ino.is_some_and(|ino| self.left_behind.is_known(Ino(ino), tier, header)) {
            self.checked.leftovers += 1;
            return Ok(None);
        }
        let shown = finding.path.display();
        Ok(match (&finding.class, finding.ino) {
            (Class::Valid { header, .. }, Some(ino)) => {
                return self.sound_object(tier, Ino(ino), &finding.path, header);
            }
            (Class::MapMissing { header }, Some(ino)) if header.dirty => Some(format!(
                "the object of {} ({shown}) is newer than the backing store and has lost its map",
                path_of(self.meta, Ino(ino))
            )),
            // A map alone, a copy that was not completely fetched, an object without a header and bytes.
            (Class::MapMissing { .. } | Class::Unfinished | Class::MapWithoutObject, _) => {
                self.checked.leftovers += 1;
                None
            }
            (Class::Foreign, _) => Some(format!("{shown} is no object of this tier")),
            (Class::NoAnswer(error), ino) => {
                let file =
                    ino.map_or_else(|| shown.to_string(), |ino| path_of(self.meta, Ino(ino)));
                self.unanswered(ino, &file, error);
                None
            }
            (class, ino) => {
                let why = match class {
                    Class::HeaderMissing => "has no header",
                    Class::HeaderNewer => "has a header of a newer version",
                    Class::HeaderUnreadable => "has a header that the device does not give",
                    _ => "has a damaged header",
                };
                let file = ino.map_or_else(String::new, |ino| path_of(self.meta, Ino(ino)));
                Some(format!("the object of {file} ({shown}) {why}"))
            }
        })
    }

    /// What can't be looked at now is neither gone nor damaged, whatever is repaired or given up.
    fn unanswered(&mut self, ino: Option<u64>, path: &str, error: &StoreError) {
        self.damaged.extend(ino);
        self.checked.problem(
            false,
            format!("the object of {path} can't be looked at: {error}. It stays where it is; see to that and run this again"),
        );
    }

    /// The record of an object's file, if that is known; else what there is to say has been said.
    fn record_of(&mut self, ino: Ino, header: &Header) -> Result<Option<Arc<Record>>> {
        let path = header.path.to_string_lossy();
        match self.meta.get(ino) {
            Ok(record) => return Ok(Some(record)),
            // A copy; or one that was removed from the namespace, and the daemon ended before it was from
            // the tier.
            Err(forebay_meta::Error::Stale(_))
                if !header.dirty || self.removed.contains(&ino.0) =>
            {
                self.checked.leftovers += 1;
            }
            Err(forebay_meta::Error::Stale(_)) => {
                // The namespace was lost, or a part of it, or it is new and this was not there to be seen.
                let why = match self.recovered {
                    true => "and the index does not know it. The next mount sets it aside:",
                    false => "but the metadata was lost:",
                };
                self.checked.problem(
                    false,
                    format!("object {ino} ({path}) is newer than the backing store {why} `forebay fsck --rebuild` brings it back"),
                );
            }
            // Named with the namespace. Its object may be all that there is.
            Err(error) if is_undecodable(&error) => {
                self.damaged.insert(ino.0);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    fn sound_object(
        &mut self,
        tier: &DirTier,
        ino: Ino,
        shown: &Path,
        header: &Header,
    ) -> Result<Option<String>> {
        let path = header.path.to_string_lossy();
        let object = match tier.open(ino.0) {
            Ok(object) => object,
            Err(error) if error.is_no_answer() => {
                self.unanswered(Some(ino.0), &path, &error);
                return Ok(None);
            }
            Err(error) => return Ok(Some(format!("the object of {path}: {error}"))),
        };
        self.checked.bytes += object.allocated_bytes().unwrap_or(0);
        self.checked.dirty += u64::from(header.dirty);
        let Some(record) = self.record_of(ino, header)? else { return Ok(None) };
        // One that an earlier start has not judged is judged as by that: so does the next one.
        let trust = match self.left_behind.unseen.has_object(ino, tier) {
            true => Trust::default(),
            false => self.trusted.tier_of(&tier.id().to_string()),
        };
        if !header.whole
            && let Err(error) = tier.open_map(ino.0, trust.believed())
        {
            if error.is_no_answer() {
                self.unanswered(Some(ino.0), &path, &error);
                return Ok(None);
            }
            if header.dirty || record.is_dirty() {
                return Ok(Some(format!("the object of {path}: {error}")));
            }
            self.checked.leftovers += 1;
            return Ok(None);
        }
        if trust.lengths && is_cut(&record, header, object.len()?) {
            return Ok(Some(format!("the object of {path}: its end is missing")));
        }
        if (header.dirty || record.is_dirty()) && self.is_unreadable(&record, shown)? {
            return Ok(None);
        }
        self.usable.insert(ino.0);
        let current = record.backing.fingerprint;
        // A change of attributes or of the name makes another change time, not another version.
        let same = match (header.base, current) {
            (Some(base), Some(current)) => base.same_content(&current),
            (base, current) => base == current,
        };
        let len = object.len()?;
        let complete = same && current.is_none_or(|current| current.size == len);
        if !header.dirty && !record.is_dirty() && !complete {
            // A copy of an older version, or one that lacks a part.
            self.checked.leftovers += 1;
        }
        Ok(None)
    }

    /// Whether the device can't read all of an object that the backing store lacks. The rest of it can be
    /// read through the mount, so a repair leaves it where it is.
    fn is_unreadable(&mut self, record: &Record, object: &Path) -> Result<bool> {
        let Some(at) = recover::first_unreadable(object)? else { return Ok(false) };
        let (path, shown) = (path_of(self.meta, record.ino), object.display());
        self.damaged.insert(record.ino.0);
        if self.request.accept_loss {
            self.given_up.push((record.ino, object.to_owned()));
        } else {
            self.checked.problem(false, format!(
                "{path}: the device of the tier can't read its object ({shown}) at byte {at}, and the backing store has an older version at most; mount, copy what can be read of the file and remove it, or give it up with `forebay fsck --accept-loss`"
            ));
        }
        Ok(true)
    }

    /// Sets objects aside that can't be read, and gives up what was written to their files.
    fn give_up_unreadable(&mut self, tier: &DirTier) -> Result<()> {
        for (ino, object) in std::mem::take(&mut self.given_up) {
            let path = path_of(self.meta, ino);
            let kept = match recover::move_to_lost(tier.path(), &object) {
                Ok(kept) => kept,
                Err(error) => {
                    let what = format!("{path}: what was written can't be read");
                    self.checked.problem(false, format!("{what}: {error}: it stays where it is"));
                    continue;
                }
            };
            crate::residency::aside::give_up_lost(self.meta, ino)?;
            let kept = kept.display();
            self.checked.problem(true, format!(
                "{path}: what was written can't be read and is given up; its object is set aside as {kept}"
            ));
        }
        Ok(())
    }

    pub(super) fn backing(&self) -> Result<Option<DirBacking>> {
        let Some(backing) = self.seen.store() else { return Ok(None) };
        let owner = self.tiers.first().map(|tier| tier.id().to_string()).unwrap_or_default();
        Ok(Some(DirBacking::open(backing, &owner)?))
    }
}

/// Whether a device did not give something. What it gave may make no sense all the same.
pub(crate) fn is_unreadable(error: &StoreError) -> bool {
    error.errno() == libc::EIO && !matches!(error, StoreError::Damaged { .. })
}

/// Whether something is of a format that a newer version of Forebay has brought.
pub(crate) fn is_newer(error: &StoreError) -> bool {
    matches!(error, StoreError::Version { .. })
}

/// The header that an object of a file should have, by its record.
pub(crate) fn header_of(meta: &MetaStore, record: &Record) -> Header {
    let mut header = Header {
        ino: record.ino.0,
        size: record.attr.size,
        base: record.backing.fingerprint,
        mode: record.attr.perm,
        uid: record.attr.uid,
        gid: record.attr.gid,
        mtime: record.attr.mtime,
        ..Header::default()
    };
    let path = meta.path(record.ino).ok().flatten().unwrap_or_default();
    header.set_path(&std::ffi::OsString::from_vec(path));
    header
}
