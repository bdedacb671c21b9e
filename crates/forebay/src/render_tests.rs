//! The renderings, word for word.

use super::*;
use crate::control::{
    Backlog, Conflict, Dirty, DirtyFile, Named, Passthrough, PolicySnapshot, Refusal, RefusedFile,
    SetAsideWork, StuckOperation, WorkStatus,
};

fn warming() -> WorkStatus {
    let progress = Progress {
        files_done: 3,
        files_total: 10,
        bytes_done: 1 << 30,
        bytes_total: 4 << 30,
        ..Progress::default()
    };
    WorkStatus { what: "warm".into(), age_s: 12, progress }
}

fn troubled() -> Status {
    Status {
        mountpoint: "/mnt/data".into(),
        backing: "/nfs/data".into(),
        version: "0.1.0".into(),
        pid: 42,
        uptime_s: 3_725,
        rss_bytes: 52 << 20,
        tiers: vec![TierStatus {
            dir: "/dev/shm/f".into(),
            size_bytes: 4 << 30,
            used_bytes: 3 << 30,
            reserved_bytes: 64 << 20,
            dirty_bytes: 10 << 20,
            pinned_bytes: 0,
            objects: 12_345,
            fs_free_bytes: 512 << 20,
            failed: None,
        }],
        dirty: Dirty {
            files: 12,
            bytes: 10 << 20,
            oldest_s: 7,
            list: vec![DirtyFile {
                path: "a/\u{1b}[2Jb".into(),
                bytes: 4096,
                age_s: 7,
                open: true,
                last_error: Some("No space left on device".into()),
            }],
        },
        backlog: Backlog {
            entries: 3,
            oldest_s: 2,
            list: vec!["new-name".into()],
            last_error: Some("timed out".into()),
        },
        hits: 900,
        misses: 100,
        transport: "classic".into(),
        passthrough: Passthrough {
            mode: "off".into(),
            reason: Some("needs CAP_SYS_ADMIN".into()),
            opens: 0,
            refusals: vec![Refusal { reason: "no-privilege".into(), opens: 1000 }],
        },
        conflicts: vec![Conflict {
            path: "c".into(),
            kept_as: "c.conflict-1".into(),
            ..Conflict::default()
        }],
        conflict_count: 1,
        works: vec![warming()],
        stuck: vec![StuckOperation { what: "flush".into(), path: "d".into(), waiting_s: 31 }],
        refused: ["its place", "its bytes"]
            .map(|what| RefusedFile {
                path: "e".into(),
                what: what.into(),
                error: "no such name".into(),
                by_tier: what == "its bytes",
            })
            .into(),
        defects: vec![SetAsideWork { path: "f".into(), what: "writing it back".into() }],
        errors: 2,
        policy: PolicySnapshot { name: "lru".into(), figures: vec![("files".into(), "12".into())] },
        ..Status::default()
    }
}

#[test]
fn status_when_there_are_troubles_then_all_are_told() {
    let expected = r"/mnt/data  over  /nfs/data
  hits         90.0 % of 1,000 opens
  passthrough  off, 0 opens served by the kernel
               needs CAP_SYS_ADMIN
  dirty        12 files, 10.0 MiB, oldest 7 s
               a/\u{1b}[2Jb  (4.00 KiB, 7 s, open): No space left on device
               and 11 more
  backlog      3 names to bring in line, oldest 2 s
               new-name  (name or attributes)
  tier         /dev/shm/f  [###############.....] 75 %  3.00 GiB of 4.00 GiB, 12,345 files, dirty 10.0 MiB, reserved 64.0 MiB
               others use its file system: only 512 MiB are free
  at work      warm, for 12 s: 3 of 10 files, 1.00 GiB of 4.00 GiB
  errors       2 given to programs; see the log
  conflicts    1 file was changed here and by others; `forebay conflicts --help` says what to do
               c: your version is c.conflict-1
  write-back   the last attempt failed: timed out
  refused      e: the backing store does not take its place: no such name
  refused      e: its tier does not give its bytes: no such name
  defect       f: writing it back has ended a daemon by a defect of Forebay: not tried again before the next mount or `forebay upgrade`; the log tells more, please report it
  stuck        flush of d has waited 31 s
";
    assert_eq!(status(&troubled(), false), expected);
    let how = "  daemon       pid 42, version 0.1.0, up 1 h 02 min, memory 52.0 MiB, transport classic\n  \
               policy       lru  (900 hits, 100 misses)\n               files: 12\n";
    let verbose = status(&troubled(), true);
    assert!(verbose.contains(how), "{verbose}");
    assert!(verbose.contains("1,000 opens served by the daemon: no-privilege"), "{verbose}");
}

#[test]
fn status_when_drained_then_it_says_so_in_text_and_json() {
    let quiet = Status { mountpoint: "/m".into(), backing: "/b".into(), ..Status::default() };
    let text = status(&quiet, false);
    assert!(text.contains("dirty        nothing; the backing store has everything"), "{text}");
    assert!(text.contains("no opens yet"), "{text}");
    assert!(text.ends_with("  trouble      none\n"), "{text}");
    let json = serde_json::to_value(&quiet).unwrap();
    assert_eq!(json["mountpoint"], "/m");
    assert_eq!(json["dirty"]["files"], 0);
    assert_eq!(json["peers"], serde_json::json!([]));
}

#[test]
fn status_when_the_write_back_fails_then_that_is_a_trouble() {
    let last_error = Some("/f: No space left on device; make room".to_owned());
    let failing = Status {
        backlog: Backlog { entries: 1, last_error, ..Backlog::default() },
        ..Status::default()
    };
    let text = status(&failing, false);
    let told = "  write-back   the last attempt failed: /f: No space left on device; make room\n";
    assert!(text.ends_with(told) && !text.contains("trouble"), "{text}");
}

#[test]
fn names_when_they_have_hidden_characters_then_texts_escape_them_and_json_does_not() {
    let hidden = "x\u{202e}\u{2066}\u{9b}\u{200b}\u{2028}\u{feff}\ny";
    let (path, error) = (|| crate::control::WirePath::from(hidden), || hidden.to_owned());
    let dirty = || DirtyFile { path: path(), last_error: Some(error()), ..DirtyFile::default() };
    let named = || Named { files: 1, list: vec![path()] };
    let hidden_status = Status {
        mountpoint: path(),
        backing: path(),
        dirty: Dirty { files: 1, bytes: 1, list: vec![dirty()], ..Dirty::default() },
        backlog: Backlog { entries: 1, list: vec![path()], last_error: Some(error()), oldest_s: 1 },
        conflicts: vec![Conflict { path: path(), kept_as: path(), ..Conflict::default() }],
        refused: vec![RefusedFile { path: path(), what: error(), error: error(), by_tier: false }],
        defects: vec![SetAsideWork { path: path(), what: "a step".into() }],
        lost: named(),
        set_aside: named(),
        stuck: vec![StuckOperation { what: "flush".into(), path: path(), waiting_s: 1 }],
        ..Status::default()
    };
    let failed = Outcome {
        failures: vec![(path(), error())],
        remaining: vec![dirty()],
        remaining_files: 1,
        ..Outcome::default()
    };
    let place = Location { path: path(), tier: Some(path()), ..Location::default() };
    let report =
        FsckReport { details: vec![error()], set_aside: vec![path()], ..FsckReport::default() };
    let texts = [
        status(&hidden_status, true),
        outcome("synced", &failed),
        remaining(&failed),
        locations(&[place]),
        fsck(&report),
    ];
    for text in texts {
        let shown = crate::printable::lines(&text);
        assert_eq!(shown, text, "what is printed is escaped before");
        assert!(
            text.contains("x\\u{202e}\\u{2066}\\u{9b}\\u{200b}\\u{2028}\\u{feff}\\ny"),
            "{text}"
        );
        assert!(!text.lines().any(|line| line.starts_with('y')), "a name ends a line: {text}");
    }
    let json = serde_json::to_value(&hidden_status).unwrap();
    assert_eq!(json["mountpoint"], hidden);
}

#[test]
fn status_when_sent_as_json_and_read_back_then_equal() {
    let text = serde_json::to_string(&troubled()).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), troubled());
}

#[test]
fn locations_when_partial_then_the_part_is_told() {
    let list = [
        Location {
            path: "big".into(),
            kind: "file".into(),
            size_bytes: 200,
            residency: Coverage::Partial,
            resident_bytes: 50,
            tier: Some("/dev/shm/f".into()),
            pinned: true,
            backing: Some("/nfs/big".into()),
            ..Location::default()
        },
        Location { path: "d".into(), kind: "directory".into(), ..Location::default() },
    ];
    let expected = "big: file, 25 % resident on /dev/shm/f, clean, pinned, backing store: /nfs/big\n\
                    d: directory, absent, clean\n";
    assert_eq!(locations(&list), expected);
}

#[test]
fn outcome_when_some_failed_then_they_are_named() {
    let ended = Outcome {
        files: 1_200,
        bytes: 5 << 20,
        skipped: 3,
        failures: vec![("x".into(), "Input/output error".into())],
        failed: 4,
        ..Outcome::default()
    };
    let expected = "warmed 1,200 files, 5.00 MiB; 3 files were on a tier already\n  x: Input/output error\n  and 3 more failures\n";
    assert_eq!(outcome("warmed", &ended), expected);
}

#[test]
fn files_when_pinned_and_unpinned_then_only_bytes_that_were_fetched_are_told() {
    let done = |bytes| Outcome { files: 1, bytes, complete: true, ..Outcome::default() };
    assert_eq!(outcome("pinned", &done(0)), "pinned 1 file\n");
    assert_eq!(outcome("pinned", &done(2048)), "pinned 1 file, fetched 2.00 KiB\n");
    assert_eq!(outcome("unpinned", &done(0)), "unpinned 1 file\n");
}

#[test]
fn outcome_when_there_was_nothing_to_do_then_it_says_why() {
    let idle = |skipped| Outcome { skipped, complete: true, ..Outcome::default() };
    assert_eq!(outcome("warmed", &idle(1)), "nothing to warm: 1 file is on a tier already\n");
    assert_eq!(outcome("evicted", &idle(3)), "nothing to evict: 3 files are on no tier\n");
    let done = Outcome { files: 1, bytes: 4096, ..idle(0) };
    let text = outcome("synced", &done);
    assert_eq!(text, "synced: wrote 1 file, 4.00 KiB; all of it is in the backing store now\n");
}

#[test]
fn outcome_when_other_nodes_have_files_that_are_not_written_back_then_says_so_in_the_right_number()
{
    let ended = |files, elsewhere| Outcome { files, elsewhere, ..Outcome::default() };
    let beside = |files, elsewhere| outcome("wrote back", &ended(files, elsewhere));
    assert_eq!(beside(2, 0), "wrote back 2 files, 0 B\n");
    assert_eq!(
        beside(1, 1),
        "wrote back 1 file, 0 B\n  1 file was written on other nodes and not written back yet: the \
         backing store has an older version, or none; `forebay sync` on those nodes brings it there\n"
    );
    let many = beside(0, 1_200);
    assert!(many.contains("\n  1,200 files were written on other nodes and"), "{many}");
    assert!(many.contains("on those nodes brings them there\n"), "{many}");
}

#[test]
fn outcome_when_a_sync_has_nothing_to_do_or_leaves_something_then_it_says_so() {
    let nothing = Outcome { complete: true, ..Outcome::default() };
    assert_eq!(outcome("synced", &nothing), "synced: all of it was in the backing store\n");
    let in_use = Outcome { written_in_use: 2, files: 1, ..nothing.clone() };
    assert!(outcome("synced", &in_use).contains("\n  2 files are open for writing or mapped"));
    let cut_short = Outcome { cut_short: true, complete: false, ..nothing };
    let text = outcome("synced", &cut_short);
    assert!(
        text.starts_with("not all synced: wrote 0 files, 0 B, to the backing store\n  ended"),
        "{text}"
    );
}

#[test]
fn progress_when_half_done_then_the_bar_is_half_full() {
    let half = Progress {
        files_done: 5,
        files_total: 10,
        bytes_done: 1 << 20,
        bytes_total: 2 << 20,
        backlog_left: 7,
        bytes_copied: 0,
        current: None,
        last_error: None,
    };
    let expected = "[############............] 5 of 10 files, 1.00 MiB of 2.00 MiB, 512 KiB/s, 2 s left, backlog 7";
    assert_eq!(progress(&half, 512.0 * 1024.0), expected);
    let sync = Progress { backlog_left: 7, bytes_total: 1 << 20, ..Progress::default() };
    assert_eq!(progress(&sync, 0.0), "[........................] 7 files and 1.00 MiB left");
}

#[test]
fn bar_when_over_full_then_it_stays_within_its_width() {
    assert_eq!(bar(20, 10, 4), "####");
    assert_eq!(bar(0, 0, 4), "....");
}

#[test]
fn fsck_when_objects_are_left_over_then_told_without_a_guess_at_the_cause() {
    let report = FsckReport { objects: 5, leftovers: 2, ..FsckReport::default() };
    let text = fsck(&report);
    assert!(text.contains("2 that nobody needs any more"), "{text}");
    assert!(text.ends_with("no problems\n"), "{text}");
    assert!(!text.contains("killed"), "{text}");
    assert!(!fsck(&FsckReport::default()).contains("nobody needs"));
}

#[test]
fn dirty_file_when_it_was_removed_then_said_so_in_the_place_of_its_path() {
    let list = vec![DirtyFile { bytes: 4096, open: true, ..DirtyFile::default() }];
    let dirty = Dirty { files: 1, bytes: 4096, oldest_s: 0, list };
    let text = status(&Status { dirty, ..Status::default() }, false);
    assert!(text.contains("   (removed)  (4.00 KiB, 0 s, open)"), "{text}");
}
