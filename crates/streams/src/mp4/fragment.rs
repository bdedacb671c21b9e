//! An MP4 file as HLS has it: a playlist, and fragments that are made when they are asked for.
//!
//! Players that are scripts (hls.js) feed what they get to Media Source Extensions, which take
//! fragmented MP4 only: a playlist of byte ranges of a plain file is of no use to them, since its
//! samples have no meaning without the index. So each segment is a part of the file as it is, in one
//! piece, behind a `moof` made from the index, which says where in that piece the samples are. Nothing
//! is copied or converted, and a segment is read as any other range of the file.

use std::fmt::Write;
use std::ops::Range;

use super::boxes::{Found, build, children};
use super::{Index, Kind, NoIndex, Sample, Track};

/// Segments last at least so long, if they can begin anywhere.
const SEGMENT_MS: u64 = 4000;
/// Most segments.
const SEGMENTS_MAX: usize = 1 << 16;
/// A piece of the file may be so many times as large as the samples in it, and a megabyte more.
const SPREAD_MAX: u64 = 2;
const PIECE_MAX: u64 = 1 << 30;

/// A part of a track: these of its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    track: usize,
    samples: Range<usize>,
}

/// A segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    parts: Vec<Part>,
    /// The piece of the file.
    pub bytes: Range<u64>,
    ms: u64,
}

/// A file cut into segments.
#[derive(Debug)]
pub(crate) struct Segments {
    index: Index,
    /// For each track its samples.
    samples: Vec<Vec<Sample>>,
    pub segments: Vec<Segment>,
}

impl Segments {
    /// Cuts a file: the first track of pictures and the first of sound, before pictures where
    /// decoding can begin.
    ///
    /// # Errors
    /// If the tables contradict each other, or samples of one time are far from each other in the file.
    pub fn cut(mut index: Index) -> Result<Self, NoIndex> {
        let first = |kind| index.tracks.iter().position(|track: &Track| track.kind == kind);
        let chosen = [first(Kind::Video), first(Kind::Audio)];
        let tracks: Vec<Track> =
            chosen.iter().flatten().map(|at| index.tracks[*at].clone()).collect();
        index.tracks = tracks;
        let samples = index.tracks.iter().map(|track| track.samples(index.size));
        let samples = samples.collect::<Result<Vec<_>, _>>()?;
        let mut cut = Self { index, samples, segments: Vec::new() };
        let Some(leading) = cut.samples.first() else {
            return Err(NoIndex::Damaged("it has neither pictures nor sound"));
        };
        let mut begins = Vec::new();
        for (at, sample) in leading.iter().enumerate() {
            let passed = |from: usize| cut.ms(0, sample.decoded - leading[from].decoded);
            let long = begins.last().is_none_or(|from| passed(*from) >= SEGMENT_MS);
            if long && (sample.sync || at == 0) {
                begins.push(at);
            }
        }
        if begins.len() > SEGMENTS_MAX {
            return Err(NoIndex::TooLarge);
        }
        let mut done = vec![0; cut.samples.len()];
        for at in 0..begins.len() {
            let segment = cut.segment(&mut done, begins.get(at + 1).copied())?;
            cut.segments.push(segment);
        }
        Ok(cut)
    }

    /// Bytes of memory that the samples take, about.
    pub fn weight(&self) -> usize {
        self.samples.iter().map(|samples| size_of_val(&samples[..])).sum()
    }

    fn ms(&self, track: usize, time: u64) -> u64 {
        time.saturating_mul(1000) / u64::from(self.index.tracks[track].timescale)
    }

    /// The segment that follows what is done, up to a sample of the first track or to the end.
    fn segment(&self, done: &mut [usize], next: Option<usize>) -> Result<Segment, NoIndex> {
        let leading = &self.samples[0];
        let ends = |at: usize| {
            let last = leading[at];
            last.decoded.saturating_add(last.duration.into())
        };
        let from = leading[done[0]].decoded;
        let until = next.map_or_else(|| ends(leading.len() - 1), |next| leading[next].decoded);
        let until_ms = next.map_or(u64::MAX, |_| self.ms(0, until));
        let mut parts = Vec::new();
        let (mut first, mut past, mut bytes) = (u64::MAX, 0u64, 0u64);
        for (track, samples) in self.samples.iter().enumerate() {
            let begin = done[track];
            let rest = samples[begin..].iter();
            let end = match next {
                Some(next) if track == 0 => next,
                _ => begin + rest.take_while(|s| self.ms(track, s.decoded) < until_ms).count(),
            };
            for sample in &samples[begin..end] {
                first = first.min(sample.offset);
                past = past.max(sample.offset + u64::from(sample.size));
                bytes += u64::from(sample.size);
            }
            done[track] = end;
            if end > begin {
                parts.push(Part { track, samples: begin..end });
            }
        }
        let length = past.saturating_sub(first);
        if length > PIECE_MAX || length > SPREAD_MAX * bytes + (1 << 20) {
            return Err(NoIndex::NotInterleaved);
        }
        if length == 0 {
            return Err(NoIndex::Damaged("it has samples without bytes"));
        }
        Ok(Segment { parts, bytes: first..past, ms: self.ms(0, until - from).max(1) })
    }

    /// The playlist; segments are named `0.m4s` and so on in the directory `within`.
    pub fn playlist(&self, within: &str) -> String {
        let longest = self.segments.iter().map(|segment| segment.ms.div_ceil(1000)).max();
        let mut text = format!(
            "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:{}\n#EXT-X-PLAYLIST-TYPE:VOD\n\
             #EXT-X-INDEPENDENT-SEGMENTS\n#EXT-X-MAP:URI=\"{within}/init.mp4\"\n",
            longest.unwrap_or(1)
        );
        for (number, Segment { ms, .. }) in self.segments.iter().enumerate() {
            let (s, ms) = (ms / 1000, ms % 1000);
            let _ = writeln!(text, "#EXTINF:{s}.{ms:03},\n{within}/{number}.m4s");
        }
        text + "#EXT-X-ENDLIST\n"
    }

    /// What comes before all segments: the tracks, without any sample.
    pub fn init(&self) -> Vec<u8> {
        let brands = b"iso6\0\0\0\0iso6mp41";
        let mut init = build(b"ftyp", |bytes| bytes.extend(brands));
        init.extend(build(b"moov", |moov| {
            moov.extend(&self.index.mvhd);
            for track in &self.index.tracks {
                moov.extend(build(b"trak", |trak| without_samples(&track.raw, trak)));
            }
            moov.extend(build(b"mvex", |mvex| {
                for track in &self.index.tracks {
                    mvex.extend(build(b"trex", |trex| {
                        put(trex, &[0, track.id, 1, 0, 0, 0]);
                    }));
                }
            }));
        }));
        init
    }

    /// What comes before the piece of the file in a segment.
    pub fn head(&self, number: usize) -> Option<Vec<u8>> {
        let segment = self.segments.get(number)?;
        let sequence = u32::try_from(number).ok()?.checked_add(1)?;
        let length = self.moof(segment, sequence, 0).len();
        let mut head = self.moof(segment, sequence, length as u64 + 8);
        let whole = u32::try_from(segment.bytes.end - segment.bytes.start + 8).ok()?;
        put(&mut head, &[whole]);
        head.extend(b"mdat");
        Some(head)
    }

    /// The piece of the file begins `piece_at` bytes behind the beginning of the box.
    fn moof(&self, segment: &Segment, sequence: u32, piece_at: u64) -> Vec<u8> {
        build(b"moof", |moof| {
            moof.extend(build(b"mfhd", |mfhd| put(mfhd, &[0, sequence])));
            for part in &segment.parts {
                let samples = &self.samples[part.track][part.samples.clone()];
                moof.extend(build(b"traf", |traf| {
                    let id = self.index.tracks[part.track].id;
                    // Offsets count from the beginning of this box.
                    traf.extend(build(b"tfhd", |tfhd| put(tfhd, &[0x02_0000, id])));
                    traf.extend(build(b"tfdt", |tfdt| {
                        put(tfdt, &[1 << 24]);
                        tfdt.extend(samples[0].decoded.to_be_bytes());
                    }));
                    let joined = |one: &Sample, next: &Sample| {
                        one.offset + u64::from(one.size) == next.offset
                    };
                    for run in samples.chunk_by(joined) {
                        let at = run[0].offset - segment.bytes.start + piece_at;
                        traf.extend(build(b"trun", |trun| put_run(trun, run, at)));
                    }
                }));
            }
        })
    }
}

fn put(bytes: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        bytes.extend(number.to_be_bytes());
    }
}

/// Samples that follow each other in the file; the first is `at` bytes behind the box.
fn put_run(trun: &mut Vec<u8>, run: &[Sample], at: u64) {
    // A version with signed offsets; where the data is, and of each sample its duration, size, flags
    // and offset from decoding to showing.
    let count = u32::try_from(run.len()).unwrap_or(u32::MAX);
    put(trun, &[0x0100_0f01, count, u32::try_from(at).unwrap_or(u32::MAX)]);
    for sample in run {
        // Depends on no other, or on others and is no point to begin at.
        let flags = if sample.sync { 0x0200_0000 } else { 0x0101_0000 };
        put(trun, &[sample.duration, sample.size, flags]);
        trun.extend(sample.shown_after.to_be_bytes());
    }
}

/// The contents of a `trak` with empty tables of samples.
fn without_samples(raw: &[u8], out: &mut Vec<u8>) {
    for Found { kind, whole, inside } in children(raw) {
        match &kind {
            b"mdia" | b"minf" => out.extend(build(&kind, |out| without_samples(inside, out))),
            b"stbl" => out.extend(build(&kind, |out| {
                let stsd = children(inside).find(|found| &found.kind == b"stsd");
                out.extend(stsd.map_or(&[] as &[u8], |found| found.whole));
                for empty in [b"stts", b"stsc", b"stco"] {
                    out.extend(build(empty, |table| put(table, &[0, 0])));
                }
                out.extend(build(b"stsz", |table| put(table, &[0, 0, 0])));
            })),
            b"tkhd" | b"edts" | b"mdhd" | b"hdlr" | b"vmhd" | b"smhd" | b"dinf" => {
                out.extend(whole);
            }
            _ => {}
        }
    }
}
