//! Files as fragments: stripes of pieces, each piece with its seal before it.
//!
//! A file is cut into *stripes* of as many *units* as the code has data shards; the units are the
//! stripe's first pieces, what the code makes of them the others, and the pieces of the same number
//! are one *fragment*. Nothing of a fragment ever changes: what is added to the file later is a
//! *segment* of its own, which begins with a new stripe. So where every piece lies follows from the
//! ends of the segments, and a file may grow while others read it.
//!
//! The last stripe of a segment may be short. Its units are filled in order, so that the last ones
//! may be empty: those are stored nowhere, and count as zeros.

use std::ops::Range;

use crate::code::{Code, Recovery};
use crate::seal::Seal;
use crate::{Error, Kernel};

/// Bytes of a whole piece.
pub const UNIT: u64 = 64 << 10;
/// Bytes of the seal before each piece.
pub const SEAL: u64 = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"FBF1");

/// Where the pieces of a file lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data: usize,
    ends: Vec<u64>,
}

/// Some bytes of a file that are coded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// Where in the file they begin.
    pub start: u64,
    /// How many they are; at least one.
    pub len: u64,
    segment: usize,
    /// Which one of its segment.
    index: u64,
}

impl Stripe {
    /// Where in the file they end.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// A sealed piece in its fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where in the fragment its seal begins.
    pub at: u64,
    /// Bytes after the seal. None: nothing is stored, not even a seal.
    pub len: u64,
}

impl Piece {
    /// Bytes with the seal.
    #[must_use]
    pub fn stored(&self) -> u64 {
        stored(self.len)
    }
}

fn stored(len: u64) -> u64 {
    if len == 0 { 0 } else { SEAL + len }
}

impl Layout {
    /// Of a file whose segments have these ends, for a code with so many data shards.
    ///
    /// # Errors
    /// [`Error::Segments`] if each is not longer than the one before, [`Error::Shape`] without data
    /// shards.
    pub fn new(data: usize, ends: &[u64]) -> Result<Self, Error> {
        if data == 0 {
            return Err(Error::Shape { data, parity: 0 });
        }
        let ascending = ends.windows(2).all(|two| two[0] < two[1]);
        match ascending && ends.first() != Some(&0) {
            true => Ok(Self { data, ends: ends.to_vec() }),
            false => Err(Error::Segments),
        }
    }

    /// Length of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes of the file in a whole stripe.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        self.data as u64 * UNIT
    }

    fn start_of(&self, segment: usize) -> u64 {
        segment.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    fn piece_len(&self, stripe: u64, fragment: usize) -> u64 {
        let before = if fragment < self.data { fragment as u64 * UNIT } else { 0 };
        stripe.saturating_sub(before).min(UNIT)
    }

    /// Bytes that a segment of some length takes in a fragment.
    fn taken(&self, segment: u64, fragment: usize) -> u64 {
        let whole = segment / self.stripe_bytes() * stored(UNIT);
        whole + stored(self.piece_len(segment % self.stripe_bytes(), fragment))
    }

    fn begin_of(&self, segment: usize, fragment: usize) -> u64 {
        let before = 0..segment;
        before.map(|at| self.taken(self.ends[at] - self.start_of(at), fragment)).sum()
    }

    /// Length of a fragment in bytes.
    #[must_use]
    pub fn fragment_bytes(&self, fragment: usize) -> u64 {
        self.begin_of(self.ends.len(), fragment)
    }

    /// The stripes that have bytes of a range of the file, in order.
    #[must_use]
    pub fn stripes(&self, range: Range<u64>) -> Vec<Stripe> {
        let mut stripes = Vec::new();
        for (segment, end) in self.ends.iter().copied().enumerate() {
            let begin = self.start_of(segment);
            if end <= range.start || begin >= range.end {
                continue;
            }
            let mut index = (range.start.max(begin) - begin) / self.stripe_bytes();
            loop {
                let start = begin + index * self.stripe_bytes();
                if start >= end.min(range.end) {
                    break;
                }
                let len = self.stripe_bytes().min(end - start);
                stripes.push(Stripe { start, len, segment, index });
                index += 1;
            }
        }
        stripes
    }

    /// Where a piece of a stripe lies.
    #[must_use]
    pub fn piece(&self, stripe: &Stripe, fragment: usize) -> Piece {
        let at = self.begin_of(stripe.segment, fragment) + stripe.index * stored(UNIT);
        Piece { at, len: self.piece_len(stripe.len, fragment) }
    }
}

/// The name by which pieces of a stripe are told from all others.
fn name(version: u64, stripe: &Stripe) -> u128 {
    u128::from(version) << 64 | u128::from(stripe.start)
}

fn seal_of(version: u64, stripe: &Stripe, fragment: usize, bytes: &[u8]) -> [u8; SEAL as usize] {
    let seal = Seal::of(name(version, stripe), fragment, bytes);
    let mut stored = [0; SEAL as usize];
    stored[..8].copy_from_slice(&seal.checksum.to_le_bytes());
    stored[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    stored[12..].copy_from_slice(&MAGIC.to_le_bytes());
    stored
}

/// The bytes of a piece with its seal, if it is that piece of that stripe of that version.
#[must_use]
pub fn unsealed<'a>(
    version: u64,
    stripe: &Stripe,
    fragment: usize,
    stored: &'a [u8],
) -> Option<&'a [u8]> {
    let (seal, bytes) = stored.split_at_checked(SEAL as usize)?;
    (*seal == seal_of(version, stripe, fragment, bytes)).then_some(bytes)
}

/// Makes fragments of files.
#[derive(Debug)]
pub struct Encoder {
    data: usize,
    /// Those that are made, ascending.
    wanted: Vec<usize>,
    /// Makes those of them that are not data.
    parity: Option<Recovery>,
    /// Units that are not wanted, or are to be filled up with zeros.
    scratch: Vec<Vec<u8>>,
}

impl Encoder {
    /// Of a code with so many data shards, the fragments `wanted` of `count`.
    ///
    /// # Errors
    /// [`Error::Shape`] for a code that can't be, [`Error::Count`] for a fragment that is not there.
    pub fn new(data: usize, count: usize, wanted: &[usize]) -> Result<Self, Error> {
        let code = code_of(data, count)?;
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        if let Some(given) = wanted.iter().find(|fragment| **fragment >= count) {
            return Err(Error::Count { expected: count, given: *given });
        }
        let parity: Vec<usize> = wanted.iter().copied().filter(|at| *at >= data).collect();
        let all: Vec<usize> = (0..data).collect();
        let parity = match parity.is_empty() {
            true => None,
            false => Some(code.recovery(&all, &parity)?),
        };
        Ok(Self { data, wanted, parity, scratch: Vec::new() })
    }

    /// The sealed pieces of some stripes, which follow each other: for each wanted fragment what comes
    /// next in it. `read` fills a buffer with the bytes of the file at an offset.
    ///
    /// # Errors
    /// What `read` says.
    pub fn encode<E>(
        &mut self,
        version: u64,
        layout: &Layout,
        stripes: &[Stripe],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<Vec<u8>>, E> {
        let total = |fragment: &usize| -> u64 {
            stripes.iter().map(|stripe| layout.piece(stripe, *fragment).stored()).sum()
        };
        let mut made: Vec<Vec<u8>> =
            self.wanted.iter().map(|fragment| vec![0; total(fragment) as usize]).collect();
        let mut rest: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        for stripe in stripes {
            let mut pieces = Vec::with_capacity(self.wanted.len());
            for (fragment, rest) in self.wanted.iter().zip(&mut rest) {
                let here = layout.piece(stripe, *fragment).stored() as usize;
                let (piece, after) = std::mem::take(rest).split_at_mut(here);
                *rest = after;
                pieces.push(piece);
            }
            self.encode_stripe(version, stripe, &mut pieces, &mut read)?;
        }
        Ok(made)
    }

    fn encode_stripe<E>(
        &mut self,
        version: u64,
        stripe: &Stripe,
        pieces: &mut [&mut [u8]],
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let whole = stripe.len == self.data as u64 * UNIT;
        let length = stripe.len.min(UNIT) as usize;
        let data_wanted = self.wanted.partition_point(|fragment| *fragment < self.data);
        self.scratch.resize_with(self.data, Vec::new);
        let (data, parity) = pieces.split_at_mut(data_wanted);
        for fragment in 0..self.data {
            let from = fragment as u64 * UNIT;
            let here = stripe.len.saturating_sub(from).min(UNIT) as usize;
            let at = stripe.start + from;
            let wanted = self.wanted[..data_wanted].binary_search(&fragment);
            let scratch = &mut self.scratch[fragment];
            match wanted {
                Ok(place) if here > 0 => read(at, &mut data[place][SEAL as usize..])?,
                Err(_) if self.parity.is_some() => {
                    scratch.resize(length, 0);
                    scratch[here..].fill(0);
                    if here > 0 {
                        read(at, &mut scratch[..here])?;
                    }
                }
                _ => {}
            }
            if let (Ok(place), false, true) = (wanted, whole, self.parity.is_some()) {
                scratch.resize(length, 0);
                let bytes = data[place].get(SEAL as usize..).unwrap_or_default();
                scratch[..here].copy_from_slice(bytes);
                scratch[here..].fill(0);
            }
        }
        if let Some(plan) = &self.parity {
            let input = |fragment: usize| match self.wanted[..data_wanted].binary_search(&fragment)
            {
                Ok(place) if whole => &data[place][SEAL as usize..],
                _ => &self.scratch[fragment][..],
            };
            let inputs: Vec<&[u8]> = (0..self.data).map(input).collect();
            let mut outputs: Vec<&mut [u8]> =
                parity.iter_mut().map(|piece| &mut piece[SEAL as usize..]).collect();
            plan.run(&inputs, &mut outputs).expect("as many, of one length");
        }
        for (fragment, piece) in self.wanted.iter().zip(pieces) {
            if let Some((seal, bytes)) = piece.split_at_mut_checked(SEAL as usize) {
                seal.copy_from_slice(&seal_of(version, stripe, *fragment, bytes));
            }
        }
        Ok(())
    }
}

/// The code of which `count` fragments are kept.
fn code_of(data: usize, count: usize) -> Result<Code, Error> {
    let parity = count.checked_sub(data).ok_or(Error::Count { expected: data, given: count })?;
    Code::with_kernel(data, parity.max(1), Kernel::fastest())
}

/// Gives the bytes of a file back from some of its fragments.
#[derive(Debug)]
pub struct Decoder {
    code: Code,
    data: usize,
    count: usize,
    /// The last plan, of which fragments.
    plan: Option<(Vec<usize>, Vec<usize>, Recovery)>,
}

impl Decoder {
    /// Of a code with so many data shards, of which `count` fragments are kept.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Count`] for a code that can't be.
    pub fn new(data: usize, count: usize) -> Result<Self, Error> {
        Ok(Self { code: code_of(data, count)?, data, count, plan: None })
    }

    /// Fills `out` with the bytes of a stripe. `pieces` has what [`unsealed`] gave of each fragment.
    ///
    /// # Errors
    /// [`Error::TooFew`] if these are not enough; [`Error::Count`] and [`Error::Length`] for what does
    /// not belong to the stripe.
    pub fn decode(
        &mut self,
        stripe: &Stripe,
        pieces: &[Option<&[u8]>],
        out: &mut [u8],
    ) -> Result<(), Error> {
        if pieces.len() != self.count {
            return Err(Error::Count { expected: self.count, given: pieces.len() });
        }
        if out.len() as u64 != stripe.len {
            return Err(Error::Length { expected: stripe.len as usize, given: out.len() });
        }
        let length = stripe.len.min(UNIT) as usize;
        let of = |fragment: usize| match fragment < self.data {
            true => stripe.len.saturating_sub(fragment as u64 * UNIT).min(UNIT) as usize,
            false => length,
        };
        for (fragment, piece) in pieces.iter().enumerate() {
            if let Some(piece) = piece.filter(|piece| piece.len() != of(fragment)) {
                return Err(Error::Length { expected: of(fragment), given: piece.len() });
            }
        }
        let (mut lost, mut parts) = (Vec::new(), Vec::new());
        for (fragment, part) in out.chunks_mut(UNIT as usize).enumerate() {
            match pieces[fragment] {
                Some(piece) => part.copy_from_slice(piece),
                None => {
                    lost.push(fragment);
                    parts.push(part);
                }
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        let there = |at: &usize| pieces[*at].is_some() || of(*at) == 0;
        let present: Vec<usize> = (0..self.count).filter(there).collect();
        self.recover(pieces, &present, lost, length, parts)
    }

    fn recover(
        &mut self,
        pieces: &[Option<&[u8]>],
        present: &[usize],
        lost: Vec<usize>,
        length: usize,
        parts: Vec<&mut [u8]>,
    ) -> Result<(), Error> {
        let known =
            |(of, made, _): &(Vec<usize>, Vec<usize>, Recovery)| of == present && *made == lost;
        if !self.plan.as_ref().is_some_and(known) {
            let plan = self.code.recovery(present, &lost)?;
            self.plan = Some((present.to_vec(), lost.clone(), plan));
        }
        let Some((_, _, plan)) = &self.plan else { return Ok(()) };
        // Of a short stripe the units differ in length: what is missing are zeros.
        let padded = |at: &usize| {
            let mut bytes = pieces[*at].unwrap_or_default().to_vec();
            bytes.resize(length, 0);
            bytes
        };
        let short: Vec<Vec<u8>> = match parts.iter().all(|part| part.len() == length)
            && plan.sources().iter().all(|at| pieces[*at].is_some_and(|p| p.len() == length))
        {
            true => Vec::new(),
            false => plan.sources().iter().map(padded).collect(),
        };
        if short.is_empty() {
            let inputs: Vec<&[u8]> =
                plan.sources().iter().map(|at| pieces[*at].unwrap_or_default()).collect();
            let mut parts = parts;
            return plan.run(&inputs, &mut parts);
        }
        let mut made = vec![vec![0; length]; lost.len()];
        plan.run(&short, &mut made)?;
        for (part, made) in parts.into_iter().zip(made) {
            let len = part.len();
            part.copy_from_slice(&made[..len]);
        }
        Ok(())
    }
}
