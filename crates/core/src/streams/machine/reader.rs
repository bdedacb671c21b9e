//! A stream with its clock, and the reader that fills the buffers of one or more streams of a title.

use super::super::layout::Layout;
use super::super::rate::Rate;
use super::super::ring::Ring;
use super::super::sweep::NEVER;
use super::event::{StreamId, Title};
use crate::unit::Tick;

/// Media time against the driver's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    wall: u64,
    media: u64,
    pub running: bool,
}

impl Clock {
    pub fn set(&mut self, now: Tick, media: u64) {
        (self.wall, self.media) = (now.0, media);
    }

    pub fn media(&self, now: Tick) -> u64 {
        if self.running { self.media + now.0.saturating_sub(self.wall) } else { self.media }
    }

    /// When it shows this media time.
    fn when(&self, media: u64) -> i64 {
        if !self.running {
            return NEVER;
        }
        let moment = i128::from(self.wall) + i128::from(media) - i128::from(self.media);
        moment.clamp(0, i128::from(NEVER)) as i64
    }
}

/// A stream.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub id: StreamId,
    pub title: Title,
    pub rate: Rate,
    pub layout: Layout,
    /// The next byte that the client takes.
    pub offset: u64,
    pub clock: Clock,
    /// Who reads for it; none while it is parked.
    pub reader: Option<u32>,
    /// Has had its first data.
    pub started: bool,
    pub paused: bool,
    /// Nanoseconds that it may be expected to wait for its first data; no limit once it has a place.
    pub max_startup: u64,
    /// Comes after those with lower numbers when guarantees are given, before them when they are
    /// taken away.
    pub since: u64,
}

impl Member {
    /// When the client has taken what is before `filled`.
    pub fn dry_at(&self, filled: u64) -> i64 {
        self.clock.when(self.rate.time_of(filled))
    }

    /// A client that lags too far behind its rate has given up its claim to what it did not take.
    pub fn forgive(&mut self, now: Tick, lag: u64) {
        let latest = self.rate.time_of(self.offset).saturating_add(lag);
        if self.clock.media(now) > latest {
            self.clock.set(now, latest);
        }
    }

    /// Stops the clock.
    pub fn halt(&mut self, now: Tick) {
        let media = self.clock.media(now);
        self.clock.set(now, media);
        self.clock.running = false;
    }
}

/// What a reader waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    /// Nobody uses it.
    #[default]
    Free,
    /// Its first visit.
    Starting,
    /// A visit, in a sweep.
    Waiting,
    /// The device.
    Flying,
    /// Nothing: the file is read to its end.
    Done,
    /// The device, after all streams have left.
    Doomed,
}

/// Reads a title for its streams.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub state: State,
    pub title: Title,
    pub layout: Layout,
    pub rate: Rate,
    pub ring: Ring,
    /// The file is there up to here.
    pub filled: u64,
    /// Up to here the visit reads.
    pub visit_end: u64,
    /// Bytes of the read under way.
    pub flying: u64,
    /// Nanoseconds that it should take, and the most that it can by the profile.
    pub expected: u64,
    pub longest: u64,
    pub members: Vec<u32>,
    /// The stream that needs the next byte first.
    pub lead: Option<u32>,
    /// Its place among the demands, if it has a guarantee.
    pub demand: Option<u32>,
    pub slowest: f64,
    /// Its place in the order of a sweep.
    pub order: u64,
    /// Nanoseconds of media that buffers must be filled to when it starts, by its admission.
    pub needs: u64,
    /// And that its next visit fills to at most.
    pub most: u64,
    /// No visit before, when there is time; when others wait; and not even in a hurry.
    pub release: u64,
    pub earliest: u64,
    pub again: u64,
    /// Chunks that it may hold.
    pub quota: u64,
    /// Nanoseconds that the jumps within a visit take at most.
    pub jumps: u64,
    /// Was not yet visited in its turn.
    pub fresh: bool,
    /// Since the last good read: it failed; there was no buffer. Its last visit read nothing.
    pub failed: bool,
    pub short: bool,
    pub idle: bool,
    /// The reader of an earlier part of the title, which this one keeps its chunks for, and how many
    /// bytes are between them.
    pub followed_by: Option<u32>,
    pub kept: u64,
    /// The reader of a later part, whose chunks it will take over.
    pub follows: Option<u32>,
}

impl Reader {
    /// One that nobody uses.
    pub fn unused(layout: Layout, rate: Rate) -> Self {
        Self {
            state: State::Free,
            title: Title(0),
            layout,
            rate,
            ring: Ring::default(),
            filled: 0,
            visit_end: 0,
            flying: 0,
            expected: 0,
            longest: 0,
            members: Vec::new(),
            lead: None,
            demand: None,
            slowest: 1.0,
            order: 0,
            needs: 0,
            most: u64::MAX,
            release: 0,
            earliest: 0,
            again: 0,
            quota: 0,
            jumps: 0,
            fresh: true,
            failed: false,
            short: false,
            idle: false,
            followed_by: None,
            kept: 0,
            follows: None,
        }
    }

    /// The end of the file.
    pub fn end(&self) -> u64 {
        self.layout.bytes()
    }

    /// Where the device reads next.
    pub fn position(&self) -> u64 {
        self.layout.locate(self.filled).map_or(self.order, |place| place.0)
    }
}
