//! Files made here, by ffmpeg where it is installed, and damaged ones.

use std::process::Command;

use proptest::prelude::*;

use super::fragment::Segments;
use super::pace::Pace;
use super::*;

#[path = "../../tests/support/film.rs"]
mod film;
use film::film;

fn read(file: &[u8]) -> Result<Index, NoIndex> {
    let moov = find_index(file.len() as u64, |at, bytes| {
        let at = at as usize;
        bytes.copy_from_slice(file.get(at..at + bytes.len()).ok_or(NoIndex::Unreadable)?);
        Ok(())
    })?;
    Index::parse(&moov, file.len() as u64)
}

#[test]
fn index_when_read_then_samples_as_written_and_a_pace_that_follows_them() {
    let mut sizes = vec![10_000; 60];
    sizes[40..45].fill(100_000);
    let file = film(&sizes);
    let index = read(&file).unwrap();
    let samples = index.tracks[0].samples(index.size).unwrap();
    assert_eq!(samples.len(), 60);
    assert_eq!((samples[41].size, samples[41].decoded), (100_000, 41_000));
    assert_eq!(samples[59].offset + 10_000, file.len() as u64);
    let pace = Pace::of(&index).unwrap();
    assert!(pace.steps.len() > 1 && pace.rate < 60_000, "{pace:?}");
    let rate = pace.rate(1.0).unwrap();
    let second = |at: u64| rate.bytes_at(at * 1_000_000_000);
    assert!(second(20) < 20 * 15_000 && second(62) + 100 >= file.len() as u64);
    let twice = pace.rate(2.0).unwrap();
    assert!(twice.bytes_at(10_000_000_000).abs_diff(second(20)) < 100);
}

#[test]
fn film_when_cut_then_segments_hold_the_samples_where_they_say() {
    let sizes: Vec<u32> = (1..=10).map(|n| n * 100).collect();
    let file = film(&sizes);
    let cut = Segments::cut(read(&file).unwrap()).unwrap();
    assert_eq!(cut.segments.len(), 3);
    let text = cut.playlist("film.mp4.hls");
    assert!(text.contains("#EXTINF:4.000,\nfilm.mp4.hls/0.m4s\n"), "{text}");
    assert!(text.contains("#EXTINF:2.000,\nfilm.mp4.hls/2.m4s\n#EXT-X-ENDLIST"), "{text}");
    let head = cut.head(1).unwrap();
    assert!(cut.head(3).is_none());
    // One run, whose data begins right behind the head.
    let trun = boxes::inside(&head, &[b"moof", b"traf", b"trun"]).unwrap();
    let mut trun = Cursor::new(trun);
    let start = (trun.u32(), trun.u32(), trun.u32());
    assert_eq!(start, (Some(0x0100_0f01), Some(4), Some(head.len() as u32)));
    let piece = &cut.segments[1].bytes;
    assert_eq!(piece.end - piece.start, 500 + 600 + 700 + 800);
    let init = cut.init();
    assert!(boxes::inside(&init, &[b"moov", b"mvex", b"trex"]).is_some());
    assert!(boxes::inside(&init, &[b"moov", b"trak", b"mdia", b"minf", b"stbl"]).is_some());
}

#[test]
fn tables_when_they_promise_more_than_there_is_then_refused_before_anything_is_kept() {
    let file = film(&[100; 10]);
    let at = |kind: &[u8; 4]| file.windows(4).position(|four| four == kind).unwrap();
    for (kind, behind) in [(b"stsz", 12), (b"stts", 8), (b"stco", 8), (b"stsc", 8)] {
        let mut damaged = file.clone();
        damaged[at(kind) + behind..][..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(read(&damaged), Err(NoIndex::Damaged(_))), "{kind:?}");
    }
    let mut many = film(&[100; 10]);
    // All samples of one size, and no table of them.
    many[at(b"stsz") + 8..][..8].copy_from_slice(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(read(&many), Err(NoIndex::TooLarge));
    let mut beyond = file.clone();
    beyond[at(b"stco") + 12..][..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let index = read(&beyond).unwrap();
    assert!(Pace::of(&index).is_err() && Segments::cut(index).is_err());
    assert_eq!(read(b"no medium at all, only text"), Err(NoIndex::NotMp4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn index_when_damaged_in_any_way_then_refused_or_used_and_nothing_worse(
        damage in prop::collection::vec((0..2000usize, any::<u8>()), 1..12),
        cut in 0..3000usize,
    ) {
        let mut file = film(&[77, 5, 0, 300, 12, 0, 9, 1000, 50, 31]);
        for (at, byte) in damage {
            let at = at % file.len();
            file[at] = byte;
        }
        file.truncate(file.len().saturating_sub(cut / 2));
        if let Ok(index) = read(&file) {
            let _ = Pace::of(&index).map(|pace| pace.rate(2.0));
            if let Ok(cut) = Segments::cut(index) {
                let _ = (cut.playlist("x"), cut.init());
                for (number, segment) in cut.segments.iter().enumerate() {
                    let _ = cut.head(number);
                    prop_assert!(segment.bytes.end <= file.len() as u64);
                }
            }
        }
    }
}

/// ffprobe's answer, if it is installed.
fn ffmpeg(arguments: &[&str]) -> Option<String> {
    let output = Command::new(arguments[0]).args(&arguments[1..]).output().ok()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn film_of_ffmpeg_when_cut_then_ffmpeg_decodes_the_same_frames_from_the_fragments() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (plain, whole) = (path("plain.mp4"), path("fragments.mp4"));
    let made = ffmpeg(&[
        "ffmpeg",
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        "testsrc=s=160x90:r=25:d=15",
        "-f",
        "lavfi",
        "-i",
        "sine=d=15",
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-g",
        "50",
        "-bf",
        "2",
        "-c:a",
        "aac",
        &plain,
    ]);
    if made.is_none() {
        eprintln!("skipped: there is no ffmpeg");
        return;
    }
    let file = File::open(&plain).unwrap();
    let bytes = std::fs::read(&plain).unwrap();
    let index = Index::read(&file, bytes.len() as u64).unwrap();
    assert!(Pace::of(&index).unwrap().rate > 1000);
    let cut = Segments::cut(index).unwrap();
    assert!(cut.segments.len() >= 3);
    let mut out = cut.init();
    for (number, segment) in cut.segments.iter().enumerate() {
        out.extend(cut.head(number).unwrap());
        out.extend(&bytes[segment.bytes.start as usize..segment.bytes.end as usize]);
    }
    std::fs::write(&whole, out).unwrap();
    // What each frame is. Without the samples that prepare a decoder for sound, which ffmpeg drops of a
    // plain file and not of fragments, and the last frame, which may be cut short.
    let frames = |file: &str, map: &str| {
        let arguments = ["ffmpeg", "-v", "error", "-i", file, "-map", map, "-f", "framemd5", "-"];
        let text = ffmpeg(&arguments).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(',').next_back().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for map in ["0:v", "0:a"] {
        let (mut plain, whole) = (frames(&plain, map), frames(&whole, map));
        plain.pop();
        assert!(plain.len() > 300 && whole.len() <= plain.len() + 3, "{map}");
        assert!(whole.windows(plain.len()).any(|some| some == plain), "{map}: other frames");
    }
}
