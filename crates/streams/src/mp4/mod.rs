//! The index of an MP4 file (ISO/IEC 14496-12): which sample lies where and is played when.
//!
//! What is read was written by others, so nothing here trusts it: every length is compared with what
//! is really there before anything is built on it, what is kept is no more than a few times the bytes
//! that were read, of which there is a limit, and nothing can panic or go on for ever. So it needs no
//! process of its own.

mod boxes;
pub(crate) mod fragment;
pub(crate) mod pace;

use std::fs::File;
use std::os::unix::fs::FileExt;

use boxes::{Cursor, Found, children};

/// Most bytes of an index.
const INDEX_MAX: u64 = 32 << 20;
/// Most boxes before the index.
const BOXES_MAX: usize = 4096;
/// Most samples of a track: nine hours at 30 a second.
const SAMPLES_MAX: u32 = 1 << 20;
/// Tracks that are looked at.
const TRACKS_MAX: usize = 16;

/// Why a file has no index that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoIndex {
    #[error("it is no MP4 file")]
    NotMp4,
    #[error("its index is larger than {} MiB", INDEX_MAX >> 20)]
    TooLarge,
    #[error("it consists of fragments, whose index is spread over the file")]
    Fragmented,
    #[error("its index is damaged: {0}")]
    Damaged(&'static str),
    #[error("it can't be read")]
    Unreadable,
    #[error("its samples lie too far apart to be played in the order of the file")]
    NotInterleaved,
}

/// What a track is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Video,
    Audio,
    Other,
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// First byte in the file.
    pub offset: u64,
    pub size: u32,
    /// When it is decoded, and for how long it is shown, in the track's time scale.
    pub decoded: u64,
    pub duration: u32,
    /// From decoding to showing.
    pub shown_after: i32,
    /// Decoding can begin here.
    pub sync: bool,
}

/// A track, its tables as the file has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Track {
    pub id: u32,
    pub kind: Kind,
    pub timescale: u32,
    /// The box `trak` without its head.
    raw: Vec<u8>,
    /// Runs of (samples, duration).
    durations: Vec<(u32, u32)>,
    /// Runs of (samples, offset from decoding to showing).
    shown_after: Vec<(u32, i32)>,
    /// The size of all samples, or 0.
    size: u32,
    sizes: Vec<u32>,
    samples: u32,
    /// Runs of (first chunk, samples in each).
    chunk_runs: Vec<(u32, u32)>,
    chunks: Vec<u64>,
    /// Numbers of samples where decoding can begin; everywhere if none.
    sync: Option<Vec<u32>>,
}

/// The index of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    /// The box `mvhd` with its head.
    mvhd: Vec<u8>,
    pub tracks: Vec<Track>,
    /// Bytes of the file.
    pub size: u64,
}

impl Index {
    /// Reads the index of a file of `size` bytes.
    ///
    /// # Errors
    /// Why there is none.
    pub fn read(file: &File, size: u64) -> Result<Self, NoIndex> {
        let moov = find_index(size, |at, bytes| {
            file.read_exact_at(bytes, at).map_err(|_| NoIndex::Unreadable)
        })?;
        Self::parse(&moov, size)
    }

    /// Reads the contents of the box `moov`.
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn parse(moov: &[u8], size: u64) -> Result<Self, NoIndex> {
        let mut index = Self { mvhd: Vec::new(), tracks: Vec::new(), size };
        for Found { kind, whole, inside } in children(moov) {
            match &kind {
                b"mvex" => return Err(NoIndex::Fragmented),
                b"mvhd" => index.mvhd = whole.to_vec(),
                b"trak" if index.tracks.len() < TRACKS_MAX => {
                    index.tracks.extend(Track::parse(inside)?);
                }
                _ => {}
            }
        }
        if index.mvhd.is_empty() || index.tracks.is_empty() {
            return Err(NoIndex::Damaged("it has no tracks"));
        }
        Ok(index)
    }

    /// Bytes of memory that it takes, about.
    pub fn weight(&self) -> usize {
        let of = |track: &Track| {
            track.raw.len()
                + 4 * track.sizes.len()
                + 8 * track.chunks.len()
                + 8 * (track.durations.len() + track.shown_after.len() + track.chunk_runs.len())
        };
        self.tracks.iter().map(of).sum()
    }
}

/// The contents of the box `moov` of a file of `size` bytes.
fn find_index(
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), NoIndex>,
) -> Result<Vec<u8>, NoIndex> {
    let mut at = 0u64;
    for number in 0..BOXES_MAX {
        if size.saturating_sub(at) < 8 {
            break;
        }
        let mut head = [0; 16];
        let held = (size - at).min(16) as usize;
        read(at, &mut head[..held])?;
        let Some((kind, head_bytes, length)) = boxes::head(&head[..held], size - at) else {
            break;
        };
        if number == 0 && !matches!(&kind, b"ftyp" | b"moov" | b"mdat" | b"free" | b"wide") {
            break;
        }
        if &kind == b"moof" {
            return Err(NoIndex::Fragmented);
        }
        if &kind == b"moov" {
            let inside = length - head_bytes;
            if inside > INDEX_MAX {
                return Err(NoIndex::TooLarge);
            }
            let mut moov = vec![0; inside as usize];
            read(at + head_bytes, &mut moov)?;
            return Ok(moov);
        }
        at += length;
    }
    Err(NoIndex::NotMp4)
}

impl Track {
    /// Reads the contents of a box `trak`; `None` for one without samples.
    fn parse(raw: &[u8]) -> Result<Option<Self>, NoIndex> {
        let damaged = |what| NoIndex::Damaged(what);
        let tkhd = boxes::inside(raw, &[b"tkhd"]).ok_or(damaged("no tkhd"))?;
        let mdhd = boxes::inside(raw, &[b"mdia", b"mdhd"]).ok_or(damaged("no mdhd"))?;
        let hdlr = boxes::inside(raw, &[b"mdia", b"hdlr"]).ok_or(damaged("no hdlr"))?;
        let table = boxes::inside(raw, &[b"mdia", b"minf", b"stbl"]).ok_or(damaged("no stbl"))?;
        let version = |inside: &[u8]| inside.first().copied().unwrap_or(0);
        let at = |inside: &[u8], one: usize, zero: usize| {
            let at = if version(inside) == 1 { one } else { zero };
            inside.get(at..).and_then(|bytes| Cursor::new(bytes).u32())
        };
        let id = at(tkhd, 20, 12).ok_or(damaged("tkhd"))?;
        let timescale = at(mdhd, 20, 12).filter(|scale| *scale > 0).ok_or(damaged("mdhd"))?;
        let kind = match hdlr.get(8..12) {
            Some(b"vide") => Kind::Video,
            Some(b"soun") => Kind::Audio,
            _ => Kind::Other,
        };
        let mut track = Self {
            id,
            kind,
            timescale,
            raw: raw.to_vec(),
            durations: Vec::new(),
            shown_after: Vec::new(),
            size: 0,
            sizes: Vec::new(),
            samples: 0,
            chunk_runs: Vec::new(),
            chunks: Vec::new(),
            sync: None,
        };
        for Found { kind, inside, .. } in children(table) {
            track.table(&kind, inside).ok_or(damaged("a table is shorter than it says"))?;
        }
        if track.samples > SAMPLES_MAX {
            return Err(NoIndex::TooLarge);
        }
        Ok((track.samples > 0).then_some(track))
    }

    /// Takes one of the tables; `None` if it is cut short.
    fn table(&mut self, kind: &[u8; 4], inside: &[u8]) -> Option<()> {
        let mut table = Cursor::new(inside);
        if !matches!(kind, b"stts" | b"ctts" | b"stsz" | b"stsc" | b"stco" | b"co64" | b"stss") {
            return Some(());
        }
        table.u32()?;
        match kind {
            b"stts" => self.durations = table.entries(8, |e| Some((e.u32()?, e.u32()?)))?,
            b"ctts" => {
                self.shown_after = table.entries(8, |e| Some((e.u32()?, e.u32()? as i32)))?;
            }
            b"stsz" => {
                self.size = table.u32()?;
                if self.size == 0 {
                    self.sizes = table.entries(4, Cursor::u32)?;
                    self.samples = u32::try_from(self.sizes.len()).ok()?;
                } else {
                    self.samples = table.u32()?;
                }
            }
            b"stsc" => {
                self.chunk_runs = table.entries(12, |e| {
                    let run = (e.u32()?, e.u32()?);
                    e.u32()?;
                    Some(run)
                })?;
            }
            b"stco" => self.chunks = table.entries(4, |e| e.u32().map(u64::from))?,
            b"co64" => self.chunks = table.entries(8, Cursor::u64)?,
            _ => self.sync = Some(table.entries(4, Cursor::u32)?),
        }
        Some(())
    }

    /// All samples, in the order of decoding.
    ///
    /// # Errors
    /// If the tables contradict each other, or the file, which has `size` bytes.
    pub fn samples(&self, size: u64) -> Result<Vec<Sample>, NoIndex> {
        let damaged = |what| NoIndex::Damaged(what);
        let mut samples: Vec<Sample> = Vec::with_capacity(self.samples as usize);
        let mut durations = Runs::new(&self.durations);
        let mut shown_after = Runs::new(&self.shown_after);
        let mut sync = self.sync.as_deref().map(|numbers| numbers.iter().copied().peekable());
        let mut decoded = 0u64;
        let mut run = 0;
        for (number, chunk) in self.chunks.iter().enumerate() {
            while self.chunk_runs.get(run + 1).is_some_and(|next| next.0 as usize <= number + 1) {
                run += 1;
            }
            let (_, in_chunk) = self.chunk_runs.get(run).ok_or(damaged("no stsc"))?;
            let mut offset = *chunk;
            for _ in 0..*in_chunk {
                let at = samples.len();
                if at >= self.samples as usize {
                    return Ok(samples);
                }
                let bytes = if self.size > 0 { self.size } else { self.sizes[at] };
                let end = offset.checked_add(bytes.into()).filter(|end| *end <= size);
                let end = end.ok_or(damaged("a sample lies beyond the end of the file"))?;
                let duration = durations.next().ok_or(damaged("stts is too short"))?;
                let is_sync = match &mut sync {
                    None => true,
                    Some(numbers) => {
                        while numbers.next_if(|sync| (*sync as usize) < at + 1).is_some() {}
                        numbers.peek().is_some_and(|sync| *sync as usize == at + 1)
                    }
                };
                let shown_after = shown_after.next().unwrap_or(0);
                samples.push(Sample {
                    offset,
                    size: bytes,
                    decoded,
                    duration,
                    shown_after,
                    sync: is_sync,
                });
                decoded = decoded.saturating_add(duration.into());
                offset = end;
            }
        }
        if samples.len() < self.samples as usize {
            return Err(damaged("it has fewer chunks than samples"));
        }
        Ok(samples)
    }
}

/// Values that come in runs, one after the other.
struct Runs<'a, T> {
    runs: std::slice::Iter<'a, (u32, T)>,
    left: u32,
    value: Option<T>,
}

impl<'a, T: Copy> Runs<'a, T> {
    fn new(runs: &'a [(u32, T)]) -> Self {
        Self { runs: runs.iter(), left: 0, value: None }
    }

    fn next(&mut self) -> Option<T> {
        while self.left == 0 {
            let (count, value) = self.runs.next()?;
            (self.left, self.value) = (*count, Some(*value));
        }
        self.left -= 1;
        self.value
    }
}

#[cfg(test)]
mod tests;
