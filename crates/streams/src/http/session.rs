//! Sessions: what one player of HLS or DASH asks for, file by file, is one stream.
//!
//! A player gets its playlist from a path of its own, to which it is sent on, and since playlists name
//! their segments relatively it asks for those there, too. A session holds its share of the device
//! between two segments: the next one takes the place of the last, and nobody comes between. What a
//! player asks for at the same time (pictures and sound) has a lane each. If its playlist says that there
//! are both, they are admitted together: with the first segment of one comes a lane for the other.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::clients::{Client, Permit};
use super::manifest::{Kind, Rendition};
use crate::service::Stream;

/// The first part of the paths of sessions.
const PREFIX: &str = "/.session/";
/// Most sessions, and most of one address. The one that was unused for longest goes.
const MAX: usize = 4096;
const OF_CLIENT: usize = 64;
/// A session that nobody uses is forgotten after this time.
const LIFE: Duration = Duration::from_secs(12 * 3600);
/// And has given its places back after this time: a player asks for a segment as often as it has played
/// one, and those last ten seconds at most.
const IDLE: Duration = Duration::from_secs(20);
/// A lane is as fast as the fastest of what was asked for within this time, so that a player that
/// asks for pictures and sound in turns, or tries less for a moment, keeps its place.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Most lanes of a session: at once.
const LANES: usize = 4;
/// Most renditions that are remembered.
const RENDITIONS: usize = 256;

/// A share of the device.
#[derive(Debug)]
pub(super) struct Lane {
    stream: Stream,
    permit: Permit,
    /// What it has.
    rate: u64,
    used: Vec<(Instant, u64)>,
}

/// What the next stream of a lane is to be.
pub(super) struct Turn {
    /// Whose place it takes.
    pub before: Option<(Stream, Permit)>,
    /// And what that one had.
    pub had: u64,
    /// At least so many bytes a second, for the session to keep its place.
    pub rate: u64,
    /// The session has no place yet.
    pub first: bool,
    used: Vec<(Instant, u64)>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Lane>,
    busy: usize,
    renditions: Vec<Arc<Rendition>>,
    /// Rates of playlists that others name.
    variants: HashMap<PathBuf, u64>,
    /// Playlists of sound beside them.
    sounds: Vec<PathBuf>,
    last: Option<Instant>,
}

/// One player.
#[derive(Debug)]
pub(super) struct Session {
    id: u128,
    client: Client,
    /// It was begun with a token, where those are needed.
    pub granted: bool,
    /// The rate that was asked for with the playlist.
    pub rate: Option<u64>,
    state: Mutex<State>,
    /// Held while its first places are asked for: the others wait for what comes of it.
    pub beginning: tokio::sync::Mutex<()>,
}

impl Session {
    /// The path of a file in this session.
    pub fn path(&self, path: &str) -> String {
        let mut text = String::from(PREFIX);
        let _ = write!(text, "{:032x}{path}", self.id);
        text
    }

    fn last(&self) -> Option<Instant> {
        let state = self.state.lock();
        if state.busy > 0 { Some(Instant::now()) } else { state.last }
    }

    /// Remembers what a playlist says of segments.
    pub fn learn(&self, renditions: Vec<Rendition>) {
        let mut state = self.state.lock();
        for rendition in renditions {
            if !state.renditions.iter().any(|known| **known == rendition) {
                if state.renditions.len() >= RENDITIONS {
                    state.renditions.remove(0);
                }
                state.renditions.push(Arc::new(rendition));
            }
        }
    }

    /// And of other playlists.
    pub fn learn_playlists(&self, variants: Vec<(PathBuf, u64)>, sounds: &[PathBuf]) {
        let mut state = self.state.lock();
        for sound in sounds {
            if state.sounds.len() < RENDITIONS && !state.sounds.contains(sound) {
                state.sounds.push(sound.clone());
            }
        }
        for (path, rate) in variants {
            if state.variants.len() < RENDITIONS {
                state.variants.insert(path, rate);
            }
        }
    }

    /// The rate of a playlist that another one names.
    pub fn variant(&self, path: &Path) -> Option<u64> {
        self.state.lock().variants.get(path).copied()
    }

    /// What is in a playlist: pictures, if another one has the sound.
    pub fn kind_of_playlist(&self, path: &Path) -> Kind {
        let state = self.state.lock();
        if state.sounds.iter().any(|sound| sound == path) {
            Kind::Sound
        } else if !state.sounds.is_empty() && state.variants.contains_key(path) {
            Kind::Pictures
        } else {
            Kind::Any
        }
    }

    /// The rate of a segment.
    pub fn rate_of(&self, path: &Path) -> Option<u64> {
        let state = self.state.lock();
        state.renditions.iter().rev().find(|known| known.has(path)).map(|known| known.rate)
    }

    /// The least rate of what is played beside this segment, if anything is.
    pub fn beside(&self, path: &Path) -> Option<u64> {
        let state = self.state.lock();
        let other = match state.renditions.iter().rev().find(|known| known.has(path))?.kind {
            Kind::Pictures => Kind::Sound,
            Kind::Sound => Kind::Pictures,
            Kind::Any => return None,
        };
        let others = state.renditions.iter().filter(|known| known.kind == other);
        // A playlist that was not asked for yet has said nothing but its rate.
        let variants = state.variants.values().copied().filter(|_| other == Kind::Pictures);
        others.map(|known| known.rate).chain(variants).min()
    }

    /// The least rate of a rendition that is higher than this one.
    pub fn above(&self, rate: u64) -> Option<u64> {
        let state = self.state.lock();
        let all = state.renditions.iter().map(|known| known.rate);
        all.chain(state.variants.values().copied()).filter(|other| *other > rate).min()
    }

    /// A lane for something of `rate`; none if too many are in use.
    pub fn take(&self, rate: u64) -> Option<Turn> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.busy >= LANES {
            return None;
        }
        let first = state.busy == 0 && state.free.is_empty();
        state.busy += 1;
        state.last = Some(now);
        // The slowest that is fast enough, else the fastest.
        let enough = |lane: &Lane| if lane.rate >= rate { lane.rate } else { u64::MAX - lane.rate };
        let best = (0..state.free.len()).min_by_key(|at| enough(&state.free[*at]));
        let Some(lane) = best.map(|at| state.free.swap_remove(at)) else {
            return Some(Turn { before: None, had: 0, rate, first, used: vec![(now, rate)] });
        };
        let Lane { stream, permit, rate: had, mut used } = lane;
        used.retain(|(at, before)| *before > rate && now.duration_since(*at) < REMEMBERED);
        used.push((now, rate));
        let rate = used.iter().map(|used| used.1).max().unwrap_or(rate);
        Some(Turn { before: Some((stream, permit)), had, rate, first, used })
    }

    /// What was taken is not used.
    fn give_up(&self) {
        self.state.lock().busy -= 1;
    }

    /// A place for what will be asked for beside the first.
    pub fn reserve(&self, stream: Stream, permit: Permit, rate: u64) {
        self.state.lock().free.push(Lane { stream, permit, rate, used: Vec::new() });
    }

    /// Gives back what was reserved.
    pub fn forgo(&self) {
        let freed = std::mem::take(&mut self.state.lock().free);
        // Streams leave here, not under the lock.
        drop(freed);
    }

    fn give_back(&self, lane: Lane) {
        let mut state = self.state.lock();
        state.busy -= 1;
        state.last = Some(Instant::now());
        state.free.push(lane);
    }
}

/// A lane in use: the place of a stream in its session, to which it returns.
pub(super) struct LaneInUse {
    session: Arc<Session>,
    held: Option<(u64, Vec<(Instant, u64)>)>,
}

impl LaneInUse {
    pub fn new(session: Arc<Session>, turn: &mut Turn) -> Self {
        let held = Some((turn.rate, std::mem::take(&mut turn.used)));
        Self { session, held }
    }

    /// The stream has given all that it was asked for, or its player has gone away from it.
    pub fn give_back(mut self, stream: Stream, permit: Permit) {
        if let Some((rate, used)) = self.held.take() {
            self.session.give_back(Lane { stream, permit, rate, used });
        }
    }
}

impl Drop for LaneInUse {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.session.give_up();
        }
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: Mutex<HashMap<u128, Arc<Session>>>,
}

impl Sessions {
    /// Begins one; `None` if the system has no random numbers.
    pub fn begin(&self, client: Client, granted: bool, rate: Option<u64>) -> Option<Arc<Session>> {
        let mut id = [0; 16];
        let flags = rustix::rand::GetRandomFlags::empty();
        if rustix::rand::getrandom(&mut id, flags) != Ok(16) {
            return None;
        }
        Some(self.add(u128::from_ne_bytes(id), client, granted, rate))
    }

    fn add(&self, id: u128, client: Client, granted: bool, rate: Option<u64>) -> Arc<Session> {
        let state = State { last: Some(Instant::now()), ..State::default() };
        let (state, beginning) = (Mutex::new(state), tokio::sync::Mutex::new(()));
        let session = Arc::new(Session { id, client, granted, rate, state, beginning });
        let mut all = self.all.lock();
        let of_client = all.values().filter(|session| session.client == client).count();
        let candidates =
            all.values().filter(|other| of_client < OF_CLIENT || other.client == client);
        let full = of_client >= OF_CLIENT || all.len() >= MAX;
        let oldest = candidates.min_by_key(|other| other.last()).map(|other| other.id);
        let gone = oldest.filter(|_| full);
        // A stream that leaves is told under no lock of ours.
        let gone = gone.and_then(|oldest| all.remove(&oldest));
        all.insert(id, Arc::clone(&session));
        drop(all);
        drop(gone);
        session
    }

    /// The session of a path, and the path in it. One that is not known, since the server was started
    /// again, is begun anew if its client `may` begin one.
    pub fn find<'a>(
        &self,
        path: &'a str,
        client: Client,
        may: bool,
    ) -> (Option<Arc<Session>>, &'a str) {
        let Some(rest) = path.strip_prefix(PREFIX) else { return (None, path) };
        let Some((id, _)) = rest.split_once('/') else { return (None, path) };
        let digits = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(id) = u128::from_str_radix(id, 16).ok().filter(|_| digits) else {
            return (None, path);
        };
        let known = self.all.lock().get(&id).cloned();
        let session = known.or_else(|| may.then(|| self.add(id, client, false, None)));
        (session, &rest[32..])
    }

    /// Sessions that hold a place, or use one.
    pub fn count(&self) -> u64 {
        let all = self.all.lock();
        let holds = |session: &&Arc<Session>| {
            let state = session.state.lock();
            state.busy > 0 || !state.free.is_empty()
        };
        all.values().filter(holds).count() as u64
    }

    /// Takes their places from sessions that nobody uses.
    pub fn look_after(&self) {
        let now = Instant::now();
        let mut freed = Vec::new();
        self.all.lock().retain(|_, session| {
            let unused = session.last().map_or(LIFE, |last| now.saturating_duration_since(last));
            if unused >= IDLE {
                freed.append(&mut session.state.lock().free);
            }
            unused < LIFE
        });
        // Streams leave here, not under the lock.
        drop(freed);
    }
}
