//! The way through memory that the node's daemon has made: the pools of all processes of a group,
//! which each of them can read, and a ring from each to each for what they say.
//!
//! The memory has the rings first, that from process i to process j at number i N + j, and then the
//! pools, one after the other, each beginning at a page of the system.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;

use forebay_client::protocol::Join;
use forebay_client::ring::{self, Corrupt, Receiver, Sender};
use forebay_client::{Client, Member, Memory};

use crate::post::lock;

/// All rings together take about so much, and one of them is not smaller or larger than this.
const RINGS: u64 = 8 << 20;
const RING: std::ops::RangeInclusive<u64> = 4 << 10..=256 << 10;
/// Pools begin at multiples of this.
const ALIGNMENT: u64 = 4096;

/// What lies where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    ranks: u32,
    pool: u64,
    ring: u32,
}

impl Shape {
    /// For so many processes with pools of so many bytes.
    pub fn new(ranks: u32, pool: u64) -> Self {
        let most = RINGS / (u64::from(ranks) * u64::from(ranks)).max(1);
        let ring = most.clamp(*RING.start(), *RING.end());
        // The power of two below.
        Self { ranks, pool: pool.next_multiple_of(ALIGNMENT), ring: 1 << ring.ilog2() }
    }

    fn ring(&self, from: u32, to: u32) -> u64 {
        (u64::from(from) * u64::from(self.ranks) + u64::from(to)) * ring::size(self.ring)
    }

    /// Where the pool of a process begins.
    pub fn pool(&self, rank: u32) -> u64 {
        let rings = self.ring(self.ranks, 0).next_multiple_of(ALIGNMENT);
        rings + u64::from(rank) * self.pool
    }

    /// All of it.
    fn bytes(&self) -> u64 {
        self.pool(self.ranks)
    }
}

/// What goes to another process.
struct Lane {
    ring: Sender,
    /// What the ring had no room for.
    queue: VecDeque<Vec<u8>>,
}

impl Lane {
    /// Moves what waits to the ring. Whether anything was moved.
    fn flush(&mut self) -> Result<bool, Corrupt> {
        let mut moved = false;
        while let Some(first) = self.queue.front() {
            if !self.ring.send(&[first])? {
                self.ring.want_room();
                if !self.ring.send(&[first])? {
                    break;
                }
            }
            self.queue.pop_front();
            moved = true;
        }
        Ok(moved)
    }
}

/// What comes from another process.
struct Coming {
    ring: Receiver,
    /// The beginning of an envelope whose end has not come yet.
    part: Vec<u8>,
}

/// The memory as one process of the group uses it.
pub struct Lanes {
    /// As long as this is there, the daemon counts the process in.
    _member: Option<Member>,
    memory: Arc<Memory>,
    shape: Shape,
    /// By process; none to itself.
    lanes: Vec<Option<Mutex<Lane>>>,
    /// The same; for the thread that takes envelopes.
    coming: Mutex<Vec<Option<Coming>>>,
}

/// A group that is to have memory.
pub struct Wanted {
    /// What nobody else can guess.
    pub token: [u8; 16],
    /// This process.
    pub me: u32,
    /// How many there are.
    pub ranks: u32,
    /// Bytes of each one's pool.
    pub pool: u64,
    /// Whether they write the file.
    pub writes: bool,
}

impl Lanes {
    /// Joins the others through the daemon of the mount that the file lies on. The reason why not is
    /// for people.
    pub fn join(wanted: &Wanted, file: &OwnedFd) -> Result<Self, String> {
        let shape = Shape::new(wanted.ranks, wanted.pool);
        let join = Join {
            token: wanted.token,
            bytes: shape.bytes(),
            members: wanted.ranks,
            member: wanted.me,
            descriptor: 0,
            writes: wanted.writes,
        };
        let member = Client::of_file(file).and_then(|client| client.join(&join, file));
        let member = member.map_err(|error| error.to_string())?;
        let memory = Arc::clone(member.memory());
        let lanes = Self::within(memory, shape, wanted.me, Some(member));
        lanes.ok_or_else(|| "the memory has no room for its rings".into())
    }

    /// In memory that is there. `None` if it is too small.
    fn within(memory: Arc<Memory>, shape: Shape, me: u32, member: Option<Member>) -> Option<Self> {
        let others = (0..shape.ranks).map(|rank| (rank != me).then_some(rank));
        let lane = |to| {
            let ring = Sender::new(&memory, shape.ring(me, to), shape.ring)?;
            Some(Mutex::new(Lane { ring, queue: VecDeque::new() }))
        };
        let coming = |from| {
            let ring = Receiver::new(&memory, shape.ring(from, me), shape.ring)?;
            Some(Coming { ring, part: Vec::new() })
        };
        let lanes: Vec<_> = others.clone().map(|to| to.and_then(lane)).collect();
        let coming: Vec<_> = others.map(|from| from.and_then(coming)).collect();
        let all = |count: usize| count + 1 == shape.ranks as usize;
        let sound = all(lanes.iter().flatten().count()) && all(coming.iter().flatten().count());
        let coming = Mutex::new(coming);
        sound.then(|| Self { _member: member, memory, shape, lanes, coming })
    }

    /// The memory, and what lies where in it.
    pub fn memory(&self) -> (&Arc<Memory>, Shape) {
        (&self.memory, self.shape)
    }

    /// Sends an envelope; what the ring has no room for follows later, see [`Lanes::flush`].
    pub fn send(&self, to: usize, envelope: &[u8]) {
        let Some(Some(lane)) = self.lanes.get(to) else { return };
        let longest = ring::longest(self.shape.ring) - 1;
        let mut lane = lock(lane);
        let mut chunks = envelope.chunks(longest).peekable();
        while let Some(chunk) = chunks.next() {
            let more = [u8::from(chunks.peek().is_some())];
            if !lane.queue.is_empty() || !sound(lane.ring.send(&[&more, chunk])) {
                lane.queue.push_back([&more, chunk].concat());
            }
        }
        // From now on whoever takes something out wakes this process.
        sound(lane.flush());
    }

    /// Moves on what had no room. To whom, for they are to be woken.
    pub fn flush(&self) -> Vec<usize> {
        let flushed = |lane: &Option<Mutex<Lane>>| {
            lane.as_ref().is_some_and(|lane| {
                let mut lane = lock(lane);
                !lane.queue.is_empty() && sound(lane.flush())
            })
        };
        self.lanes.iter().enumerate().filter(|(_, lane)| flushed(lane)).map(|(to, _)| to).collect()
    }

    /// Takes one whole envelope from each process that has sent one. Gives who has to be woken, as
    /// there is room again, too. For one thread only.
    pub fn take(&self) -> (Vec<(usize, Vec<u8>)>, Vec<usize>) {
        let (mut envelopes, mut wanted) = (Vec::new(), Vec::new());
        for (from, coming) in lock(&self.coming).iter_mut().enumerate() {
            let Some(Coming { ring, part }) = coming else { continue };
            while let Some(taken) = sound(ring.take()) {
                if taken.wanted && !wanted.contains(&from) {
                    wanted.push(from);
                }
                let Some((more, rest)) = taken.bytes.split_first() else { continue };
                part.extend_from_slice(rest);
                if *more == 0 {
                    envelopes.push((from, std::mem::take(part)));
                    break;
                }
            }
        }
        (envelopes, wanted)
    }

    /// Whether something has come, or can be moved on.
    pub fn is_ready(&self) -> bool {
        let moves = |lane: &Mutex<Lane>| {
            let lane = lock(lane);
            lane.queue.front().is_some_and(|first| lane.ring.has_room(first.len()))
        };
        lock(&self.coming).iter().flatten().any(|coming| coming.ring.is_ready())
            || self.lanes.iter().flatten().any(moves)
    }
}

/// The memory belongs to the processes of one user that have agreed on it. If its words make no sense,
/// one of them is broken, and what the pools have is not to be believed either.
fn sound<T>(result: Result<T, Corrupt>) -> T {
    result.unwrap_or_else(|error| {
        crate::say(&format!(
            "MPI-IO: a process of this job has spoilt their common memory: {error}"
        ));
        std::process::abort()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_of_any_number_of_processes_then_nothing_overlaps_and_rings_are_bounded() {
        for ranks in [1, 2, 3, 4, 7, 16, 64, 200] {
            let shape = Shape::new(ranks, 10_000);
            assert!(shape.ring.is_power_of_two() && RING.contains(&shape.ring.into()));
            let rings = u64::from(ranks * ranks) * ring::size(shape.ring);
            assert!(shape.ring == *RING.start() as u32 || rings <= RINGS + 192 * 65536);
            let mut starts: Vec<u64> = (0..ranks)
                .flat_map(|from| (0..ranks).map(move |to| shape.ring(from, to)))
                .collect();
            assert!(starts.iter().all(|at| at.is_multiple_of(64)));
            assert!(starts.windows(2).all(|two| two[1] - two[0] == ring::size(shape.ring)));
            starts.push(rings);
            assert!(shape.pool(0) >= rings && shape.pool(0).is_multiple_of(ALIGNMENT));
            assert!(shape.pool(1) - shape.pool(0) >= 10_000);
            assert_eq!(shape.bytes(), shape.pool(ranks - 1) + shape.pool);
        }
    }

    /// Envelopes of all lengths, many of them longer than a ring, both ways at once: those that have no
    /// room wait for it, and all come whole and in order.
    #[test]
    fn envelopes_when_rings_are_full_then_follow_later_whole_and_in_order() {
        let shape = Shape { ranks: 2, pool: ALIGNMENT, ring: 4096 };
        let memory = forebay_client::make(shape.bytes()).unwrap();
        let memory = Arc::new(Memory::map(&memory, shape.bytes()).unwrap());
        let lanes = [0, 1].map(|me| Lanes::within(Arc::clone(&memory), shape, me, None).unwrap());
        let envelope = |me: usize, number: usize| {
            let len = [3, 900, 5000, 20, 30_000][number % 5] + number;
            vec![(me * 100 + number) as u8; len]
        };
        const COUNT: usize = 200;
        let mut heard = [0, 0];
        let mut waited = false;
        for number in 0..COUNT {
            for (me, lane) in lanes.iter().enumerate() {
                lane.send(1 - me, &envelope(me, number));
                waited |= !lock(lane.lanes[1 - me].as_ref().unwrap()).queue.is_empty();
            }
            // The one of them listens seldom.
            for me in 0..2 {
                if me == 0 || number % 7 == 0 || number + 1 == COUNT {
                    listen(&lanes, me, &mut heard, &envelope);
                }
            }
        }
        while heard != [COUNT, COUNT] {
            assert!(lanes.iter().any(Lanes::is_ready), "stuck at {heard:?}");
            (0..2).for_each(|me| listen(&lanes, me, &mut heard, &envelope));
        }
        assert!(waited, "else nothing was tested");
        assert!(!lanes.iter().any(Lanes::is_ready));
    }

    /// Takes all that is there, and has the other one move on what it is woken for.
    fn listen(
        lanes: &[Lanes; 2],
        me: usize,
        heard: &mut [usize; 2],
        envelope: &impl Fn(usize, usize) -> Vec<u8>,
    ) {
        loop {
            let (envelopes, wanted) = lanes[me].take();
            for (from, bytes) in &envelopes {
                assert!(*from == 1 - me && *bytes == envelope(*from, heard[me]));
                heard[me] += 1;
            }
            let moved = wanted.iter().map(|other| lanes[*other].flush().len()).sum::<usize>();
            if envelopes.is_empty() && moved == 0 {
                return;
            }
        }
    }
}
