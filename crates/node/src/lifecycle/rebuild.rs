//! The namespace made anew: the backing store's tree as it is, and over it what the dirty objects say
//! about themselves, and what the index that is replaced still says about spill files.
//!
//! Nothing that may be the only copy is removed before its bytes are durable elsewhere. What is no file
//! any more, whoever looks, is set aside. What can't be had now, for want of room, a right or an answer,
//! keeps its place, where the next run finds it with its name (`crates/forebay/tests/rebuilt.rs`): the
//! rebuild has not ended then, and nothing else uses the state, unless that is accepted as a loss.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::Path;

use forebay_store::recover::{self, Aside};
use forebay_store::tier::DirTier;
use forebay_store::{
    Believed, DirBacking, ErrorClass, Header, Presence, StoreError, Tier, TierLock,
};
use forebay_types::Ino;
use rustix::io::Errno;

use crate::config::{NodeConfig, TierConfig};
use crate::error::{NodeError, Result};
use crate::failpoints::fail_at;
use crate::lifecycle::check::{CheckRequest, Checked, is_newer, is_unreadable};
use crate::lifecycle::former::{self, Former, Known};
use crate::lifecycle::members::StoreHas;
use crate::lifecycle::readopt::Found;
use crate::lifecycle::recover::RECOVERED;
use crate::lifecycle::trust::{Trust, Trusted};
use crate::node::Node;
use crate::residency::left_note::IsLeft;
use crate::residency::recovered::put_back_as_dirty;
use crate::residency::unseen::Unseen;
use crate::writeback::parked;

/// A tier, with what is known of it.
struct TierToRebuild<'r> {
    index: usize,
    trusted: &'r Trusted,
    former: &'r Former,
}

/// What a rebuild has come to.
#[derive(Default)]
struct Progressed {
    /// Files of which an object is set aside.
    incomplete: HashSet<u64>,
    /// What was made of files that an interrupted rebuild had brought back.
    again: HashSet<u64>,
    /// Files that the next run may bring back, and this one can't.
    waiting: HashSet<u64>,
    /// What would wait is set aside.
    accepts_loss: bool,
}

impl Progressed {
    /// Whether something waits for the next run, which this tells; if not, what can't be used and why.
    ///
    /// # Errors
    /// What is in the way of all files is given back.
    fn waits(
        &mut self,
        ino: u64,
        what: &str,
        error: NodeError,
        checked: &mut Checked,
    ) -> Result<Option<String>> {
        if matches!(error, NodeError::Meta(forebay_meta::Error::Engine(_))) {
            return Err(error);
        }
        if self.accepts_loss || !is_hindered(&error) {
            return Ok(Some(error.to_string()));
        }
        self.wait(ino, what, &error, checked);
        Ok(None)
    }

    /// What a look at an object says that was set aside; `None` if nothing, which this tells.
    fn looked<T>(
        &mut self,
        aside: &Aside,
        (ino, path): (u64, &Path),
        looked: std::io::Result<T>,
        checked: &mut Checked,
    ) -> Result<Option<T>> {
        let error = match looked {
            Ok(found) => return Ok(Some(found)),
            Err(error) => StoreError::io("look at", &aside.path, error),
        };
        let (path, kept) = (path.display(), aside.path.display());
        let what = format!("{path}: its object is set aside as {kept}");
        if let Some(why) = self.waits(ino, &what, error.into(), checked)? {
            checked.problem(false, format!("{what}, and can't be put back: {why}"));
        }
        Ok(None)
    }

    /// Whether an object that was set aside is older than what its file was, or can't be looked at: that is
    /// told.
    fn is_no_newest(
        &mut self,
        aside: &Aside,
        (ino, file): (u64, &Known),
        header: Option<&Header>,
        checked: &mut Checked,
    ) -> Result<bool> {
        let known: &Path = file.header.path.as_ref();
        let looked = file.newest.is_after(aside, header);
        let Some(is_older) = self.looked(aside, (ino, known), looked, checked)? else {
            return Ok(true);
        };
        if is_older && file.spill.is_none() {
            let (path, kept) = (known.display(), aside.path.display());
            let what = format!(
                "{path}: what was written last is gone: {kept}, which was set aside before, is older"
            );
            checked.problem(false, what);
        }
        Ok(is_older)
    }

    fn wait(&mut self, ino: u64, what: &str, why: &dyn Display, checked: &mut Checked) {
        self.waiting.insert(ino);
        checked.problem(false, format!("{what}: {why}: it stays where it is"));
    }

    /// Whether the rebuild has ended; if not, that is said.
    fn is_complete(&self, checked: &mut Checked) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let what = format!(
            "the rebuild is not complete: {} could not be brought back. Nothing is lost. See to what is \
             said of each, then run the rebuild again; until then no mount uses the state. With \
             --accept-loss it does without them: they are set aside, and lose their names",
            self.waiting.len()
        );
        checked.problem(false, what);
        false
    }
}

/// Whether an error says nothing of a file: room, a right or an answer is missing.
fn is_hindered(error: &NodeError) -> bool {
    match error {
        NodeError::Store(error) => is_no_verdict(error),
        NodeError::Posix(errno) => [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].contains(errno),
        NodeError::BackingTimeout { .. } | NodeError::Busy => true,
        _ => false,
    }
}

fn is_no_verdict(error: &StoreError) -> bool {
    error.is_no_answer() || error.class() == ErrorClass::NoSpace
}

/// Makes the namespace anew. The tiers are locked from the first look at them to the end: a mount that
/// began in between would have its index moved away under it, and what it makes taken for half made.
pub(crate) fn rebuild(
    request: &CheckRequest,
    locked: Vec<(DirTier, TierLock)>,
    state_dir: &Path,
    mut checked: Checked,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Checked> {
    let backing = request.backing.clone().ok_or_else(|| {
        NodeError::Config("a rebuild needs the backing store: add --backing DIR".into())
    })?;
    let all: Vec<&dyn Tier> = locked.iter().map(|(tier, _)| tier as &dyn Tier).collect();
    let former = read_former(&all, &backing, state_dir, request.accept_loss)?;
    let tiers = request
        .tiers
        .iter()
        .map(|dir| TierConfig { dir: dir.clone(), size_bytes: u64::MAX / 4 })
        .collect();
    let config =
        NodeConfig { state_dir: request.state_dir.clone(), ..NodeConfig::new(backing, tiers) };
    let node = Node::start_for_rebuild(config, locked)?;
    let trusted = node.trusted();
    node.tell_spill_maps(&trusted)?;
    node.number_above_objects()?;
    node.rebuild_parked(&mut checked)?;
    let mut done = Progressed { accepts_loss: request.accept_loss, ..Progressed::default() };
    for index in 0..node.residency.tiers.len() {
        let place = TierToRebuild { index, trusted: &trusted, former: &former };
        node.rebuild_tier(&place, &mut done, &mut checked, progress)?;
    }
    node.rebuild_spills(&former, &trusted, &mut done, &mut checked)?;
    for path in former.gone.iter().filter(|path| !node.has_brought_back(path)) {
        checked.problem(
            false,
            format!("{path}: it was newer than the backing store, and its bytes are gone"),
        );
    }
    node.residency.count_set_aside();
    checked.set_aside = node.residency.set_aside().list;
    if !done.is_complete(&mut checked) {
        // What waits is to be believed no more, and no less, than by this run: no end is noted.
        node.let_go_of_state();
        return Ok(checked);
    }
    node.meta.set_setting(RECOVERED, b"1")?;
    node.note_members(StoreHas::NotKnown)?;
    fail_at!("node.rebuild.noted");
    if !node.stop(std::time::Duration::from_secs(60)) {
        checked.problem(false, "the rebuild's last work did not end in time".into());
    }
    fail_at!("node.rebuild.stopped");
    former::end(state_dir)?;
    Ok(checked)
}

/// Notes that the rebuild begins, and asks the index that it replaces.
fn read_former(
    tiers: &[&dyn Tier],
    backing: &Path,
    state_dir: &Path,
    accepts_loss: bool,
) -> Result<Former> {
    let owner = tiers.first().map(|tier| tier.id().to_string()).unwrap_or_default();
    let store = DirBacking::open(backing, &owner)?;
    let begun = former::begin(state_dir, former::highest_number(tiers, &store)?)?;
    fail_at!("node.rebuild.begun");
    Former::read(tiers, &store, &begun, accepts_loss)
}

impl Node {
    /// The maps of spill files say from here on what is believed of them. What can't be read is said when
    /// it is wanted.
    fn tell_spill_maps(&self, trusted: &Trusted) -> Result<()> {
        for ino in self.backing.list_spills()? {
            match self.backing.open_spill_map(ino, Believed::Synced) {
                Ok(Some(mut map))
                    if !is_there(&map, trusted, self.trust_in_spill(trusted, ino))? =>
                {
                    map.believe_what_was_synced(true)?;
                }
                Err(StoreError::Damaged { .. } | StoreError::Version { .. }) | Ok(_) => {}
                Err(error) => tracing::warn!(ino, %error, "the map of a spill file can't be read"),
            }
        }
        Ok(())
    }

    /// What is believed of an object: of one that no start has judged since a crash of the machine, what that
    /// believed.
    fn trust_in_object(&self, place: &TierToRebuild<'_>, ino: u64) -> Trust {
        match self.residency.is_unseen(Unseen::Object(place.index), Ino(ino)) {
            true => Trust::default(),
            false => place.trusted.tier(place.index),
        }
    }

    /// The same of a spill file.
    fn trust_in_spill(&self, trusted: &Trusted, ino: u64) -> Trust {
        match self.residency.is_unseen(Unseen::Spill, Ino(ino)) {
            true => Trust::default(),
            false => trusted.spills,
        }
    }

    /// Whether an interrupted rebuild had brought back what is not where it was.
    fn has_brought_back(&self, path: &str) -> bool {
        let parts = path.split('/').filter(|part| !part.is_empty());
        let found = parts.into_iter().try_fold(Ino::ROOT, |dir, name| {
            self.meta.lookup(dir, name.as_bytes()).ok().flatten().map(|record| record.ino)
        });
        found.is_some_and(|ino| self.meta.get(ino).is_ok_and(|record| record.is_dirty()))
    }

    /// A new inode must not get the number of anything that is kept.
    pub(crate) fn number_above_objects(&self) -> Result<()> {
        let tiers: Vec<&dyn Tier> = self.residency.tiers.iter().map(|slot| &*slot.tier).collect();
        let highest = former::highest_number(&tiers, &*self.backing)?;
        Ok(self.meta.number_above(Ino(highest))?)
    }

    /// What the replaced index had in limbo is set aside: nobody knows its name any more, and it may be
    /// the only copy of a file that was about to get another one.
    fn rebuild_parked(&self, checked: &mut Checked) -> Result<()> {
        for stray in parked::strays(&self.meta, &*self.backing)? {
            let name = self.backing.parked_name(stray.ino.0);
            let said = match parked::settle(&self.meta, &*self.backing, &stray) {
                Ok(None) => continue,
                Ok(Some(kept)) => Ok(format!("set aside as {}", kept.display())),
                Err(error) => Err(format!("it stays where it is: {error}")),
            };
            let (Ok(what) | Err(what)) = &said;
            let name = name.display();
            checked.problem(
                said.is_ok(),
                format!(".forebay/limbo/{name}: nobody knows its name: {what}"),
            );
        }
        Ok(())
    }

    /// An object that nobody needs goes. One that its tier keeps counts no more for that, to the next start
    /// nor to another rebuild.
    fn dismiss(&self, tier: u8, ino: u64, checked: &mut Checked) {
        if let Err(error) = self.residency.give_up_object(tier, Ino(ino)) {
            let what = format!("object {ino}: nobody needs it, and it stays: {error}");
            checked.problem(false, what);
        }
    }

    fn rebuild_tier(
        &self,
        place: &TierToRebuild<'_>,
        done: &mut Progressed,
        checked: &mut Checked,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let index = place.index;
        let on = u8::try_from(index).unwrap_or(u8::MAX);
        let tier = self.residency.tiers[index].tier.clone();
        self.put_back_known(index, place.former, done, checked)?;
        let mut known = Vec::new();
        tier.list(&mut |ino, header| {
            known.push((ino, header));
            ControlFlow::Continue(())
        })?;
        // Of several that were written under one name the latest gets it. What an interrupted rebuild has
        // made comes before what it was made of.
        known.sort_by_key(|(ino, header)| {
            let mtime = header.as_ref().map_or((0, 0), |it| (it.mtime.sec, it.mtime.nsec));
            Reverse((mtime, place.former.is_half_made(*ino), *ino))
        });
        for (ino, header) in known {
            checked.objects += 1;
            if !progress(checked.objects) {
                return Err(NodeError::BadState(
                    "the rebuild was interrupted: run it again".into(),
                ));
            }
            let why = match &header {
                Ok(header) if self.may_be_left_behind(index, Ino(ino), header) => {
                    "it may be older than what its file is".into()
                }
                Ok(header) if self.is_left_behind(index, Ino(ino), header) => {
                    self.dismiss(on, ino, checked);
                    continue;
                }
                Ok(header) if header.dirty => {
                    match self.bring_back(place, (ino, header), done, checked)? {
                        Some(why) => why,
                        None => continue,
                    }
                }
                // Clean copies are in the backing store, too.
                Ok(_) => {
                    self.dismiss(on, ino, checked);
                    continue;
                }
                Err(_) if self.residency.is_left(index, Ino(ino), None) == Some(IsLeft::Yes) => {
                    self.dismiss(on, ino, checked);
                    continue;
                }
                Err(error) if error.errno() == libc::ENODATA && is_empty(&*tier, ino) => {
                    self.dismiss(on, ino, checked);
                    continue;
                }
                Err(error) if !done.accepts_loss && is_no_verdict(error) => {
                    let what = format!("object {ino}{}", of_file(ino, place.former));
                    done.wait(ino, &what, error, checked);
                    continue;
                }
                Err(error) => error.to_string(),
            };
            done.incomplete.insert(ino);
            set_aside(&*tier, ino, place.former, &why, checked);
        }
        Ok(())
    }

    /// Brings a dirty object back, unless it waits for the next run; if it can't be, why.
    fn bring_back(
        &self,
        place: &TierToRebuild<'_>,
        (ino, header): (u64, &Header),
        done: &mut Progressed,
        checked: &mut Checked,
    ) -> Result<Option<String>> {
        checked.dirty += 1;
        let index = place.index;
        let tier = &*self.residency.tiers[index].tier;
        let trust = self.trust_in_object(place, ino);
        let brought = sound_map(tier, header, place.trusted, trust).and_then(|map| {
            let found = Found {
                header,
                map: map.as_ref(),
                known: place.former.of(ino),
                trust,
                spills: self.trust_in_spill(place.trusted, ino),
                again: &done.again,
            };
            self.readopt(u8::try_from(index).unwrap_or(u8::MAX), &found)
        });
        match brought {
            Ok(Some(brought)) => {
                let what = format!("{}: brought back from object {ino}", brought.path);
                checked.problem(true, what);
                if place.former.is_half_made(ino) {
                    done.again.insert(brought.ino.0);
                }
                Ok(None)
            }
            Ok(None) => Ok(Some("it has no name".into())),
            Err(error) => {
                let what = format!("object {ino} of {}", header.path.to_string_lossy());
                done.waits(ino, &what, error, checked)
            }
        }
    }

    /// Objects with a damaged header that the replaced index knows: what they are is judged by it.
    fn set_damaged_aside(&self, index: usize, former: &Former) -> Result<()> {
        let tier = &*self.residency.tiers[index].tier;
        let mut damaged = Vec::new();
        tier.list(&mut |ino, header| {
            let counts = !self.residency.is_known_left_behind(index, Ino(ino), None);
            // Its turn comes: then it waits.
            let is_damaged = header.as_ref().is_err_and(|error| !error.is_no_answer());
            if is_damaged && former.of(ino).is_some() && counts {
                damaged.push(ino);
            }
            ControlFlow::Continue(())
        })?;
        for ino in damaged {
            if let Err(error) = tier.set_aside(ino) {
                // Said when its turn comes.
                tracing::warn!(ino, %error, "a damaged object stays");
            }
        }
        Ok(())
    }

    /// Gives objects a header again that have none which can be read, where the replaced index knows
    /// what they are, and can't be wrong about which of their bytes count.
    fn put_back_known(
        &self,
        index: usize,
        former: &Former,
        done: &mut Progressed,
        checked: &mut Checked,
    ) -> Result<()> {
        let tier = &*self.residency.tiers[index].tier;
        self.set_damaged_aside(index, former)?;
        for aside in recover::set_aside(tier.path())? {
            let Some((ino, file)) = aside.ino.and_then(|ino| Some((ino, former.of(ino)?))) else {
                continue;
            };
            if former.has_sound_object(ino) {
                continue;
            }
            let known = &file.header;
            let header = recover::header_of(&aside);
            if header.as_ref().is_err_and(is_unreadable) {
                // Nor does the device take another one.
                let (path, kept) = (known.path.display(), aside.path.display());
                let what = format!(
                    "{path}: its object is set aside as {kept}, and the device does not give its header"
                );
                checked.problem(true, what);
                continue;
            }
            if header.as_ref().is_err_and(is_newer) {
                let (path, kept) = (known.path.display(), aside.path.display());
                let what = format!(
                    "{path}: its object is set aside as {kept}: a newer version of Forebay wrote it"
                );
                checked.problem(true, what);
                continue;
            }
            if done.is_no_newest(&aside, (ino, file), header.as_ref().ok(), checked)? {
                continue;
            }
            let header = header.ok().filter(|header| header.dirty);
            let whole = header.as_ref().map_or(!aside.map, |header| header.whole);
            // Of a file that has a part elsewhere nothing but a map tells which part this is. A map that was
            // put back before the object is in its place.
            let has_map_in_place = || !matches!(tier.open_map(ino, Believed::Synced), Ok(None));
            let is_all = || -> Result<bool> {
                let all = known.base.is_none() || recover::is_full(&aside.path).unwrap_or(false);
                let len = std::fs::metadata(&aside.path)?.len();
                let said = header.is_some() || !known.spilled && !has_map_in_place();
                Ok(all && said && len >= known.size)
            };
            let sound = match whole {
                true => is_all().unwrap_or(false),
                false => recover::has_sound_map(&aside, ino),
            };
            if sound && tier.open(ino).is_err() {
                let header = header.unwrap_or_else(|| Header { whole, ..known.clone() });
                match put_back_as_dirty(tier, &aside, ino, header) {
                    Ok(()) => {
                        checked.problem(true, format!("object {ino}: its header was made anew"));
                    }
                    Err(error) => {
                        let (path, kept) = (known.path.display(), aside.path.display());
                        let what = format!(
                            "{path}: its object is set aside as {kept}, and can't be put back"
                        );
                        if let Some(why) = done.waits(ino, &what, error, checked)? {
                            checked.problem(false, format!("{what}: {why}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Spill files: what the replaced index knows the name of comes back, all else is set aside. So is one
    /// of a file of which what lies over it, on a tier, is set aside: it is not the file without that.
    fn rebuild_spills(
        &self,
        former: &Former,
        trusted: &Trusted,
        done: &mut Progressed,
        checked: &mut Checked,
    ) -> Result<()> {
        let mut all = self.backing.list_spills()?;
        all.sort_by_key(|ino| Reverse((former.is_half_made(*ino), *ino)));
        for ino in all {
            let is_new = self.meta.get(Ino(ino)).is_ok_and(|record| record.spilled);
            if is_new || done.waiting.contains(&ino) {
                continue;
            }
            if former.unfinished.contains(&ino) {
                if let Err(error) = self.backing.remove_spill(ino) {
                    let what =
                        format!("spill file {ino:x}: nobody needs it, and it stays: {error}");
                    checked.problem(false, what);
                }
                continue;
            }
            let known = former.of(ino).filter(|known| known.header.spilled);
            let readopted = match known {
                Some(known) if !done.incomplete.contains(&ino) => {
                    let trust = self.trust_in_spill(trusted, ino);
                    self.readopt_spill(ino, known, trust, &done.again)
                }
                _ => Ok(None),
            };
            match readopted {
                Ok(Some(brought)) => {
                    let what = format!("{}: brought back from spill file {ino:x}", brought.path);
                    checked.problem(true, what);
                    if former.is_half_made(ino) {
                        done.again.insert(brought.ino.0);
                    }
                }
                other => {
                    let of = known.map_or_else(String::new, |_| of_file(ino, former));
                    let why = match other {
                        Err(error) => {
                            let what = format!("spill file {ino:x}{of}");
                            match done.waits(ino, &what, error, checked)? {
                                Some(why) => why,
                                None => continue,
                            }
                        }
                        Ok(_) if known.is_some() => "it is not complete without more".into(),
                        Ok(_) => "nobody knows its name".into(),
                    };
                    let kept = match self.backing.set_spill_aside(ino) {
                        Ok(Some(kept)) => format!("set aside as {}", kept.display()),
                        Ok(None) => "there is only its map".into(),
                        Err(error) => format!("it stays where it is: {error}"),
                    };
                    checked.problem(false, format!("spill file {ino:x}{of}: {why}: {kept}"));
                }
            }
        }
        Ok(())
    }
}

/// Whether what a map marks is there, synced or not. Without a state directory the map alone tells.
fn is_there(map: &Presence, trusted: &Trusted, trust: Trust) -> Result<bool> {
    match trusted.known {
        true => Ok(trust.unsynced),
        false => Ok(map.is_of_this_boot()?),
    }
}

/// The map that tells which bytes of a dirty object count; none of a whole one, whatever lies beside it.
fn sound_map(
    tier: &dyn Tier,
    header: &Header,
    trusted: &Trusted,
    trust: Trust,
) -> Result<Option<Presence>> {
    if header.whole {
        return Ok(None);
    }
    let Some(mut map) = tier.open_map(header.ino, Believed::Synced)? else {
        return Err(NodeError::BadState("its map is gone".into()));
    };
    if is_there(&map, trusted, trust)? {
        // Then nothing may be missing in it.
        return Ok(tier.open_map(header.ino, Believed::Written)?);
    }
    map.believe_what_was_synced(true)?;
    Ok(Some(map))
}

fn is_empty(tier: &dyn Tier, ino: u64) -> bool {
    tier.open(ino).and_then(|object| object.is_empty()).unwrap_or(false)
}

/// Whose it was, if the replaced index knows that.
fn of_file(ino: u64, former: &Former) -> String {
    let known = former.of(ino);
    known.map_or_else(String::new, |known| format!(" of {}", known.header.path.to_string_lossy()))
}

/// An object that can't be brought back.
fn set_aside(tier: &dyn Tier, ino: u64, former: &Former, why: &str, checked: &mut Checked) {
    let header = tier.open(ino).and_then(|object| object.header());
    let path = header.ok().map(|header| header.path);
    let path = path.or_else(|| former.of(ino).map(|known| known.header.path.clone()));
    let of = path.map_or_else(String::new, |path| format!(" of {}", path.to_string_lossy()));
    let what = match tier.set_aside(ino) {
        Ok(kept) => format!("object {ino}{of}: {why}: set aside as {}", kept.display()),
        Err(error) => format!("object {ino}{of}: {why}; {error}: it stays where it is"),
    };
    checked.problem(false, what);
}
