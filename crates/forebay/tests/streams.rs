//! Streams of a mount, as users have them: the program, a real mount, an emulated disk.

mod site;

use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use site::*;

const RATE: &str = "user.forebay.stream.rate";
const STATE: &str = "user.forebay.stream.state";
const ON_A_DISK: [&str; 6] =
    ["--stream-profile", "table1", "--stream-emulate", "table1", "--stream-memory", "16M"];

fn content(title: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 1000 * 7 + title * 13) as u8).collect()
}

/// A site with titles of 1 MB in its backing store.
fn cinema(titles: usize) -> Site {
    let site = Site::new();
    for title in 0..titles {
        fs::write(site.path(&format!("backing/{title}")), content(title, 1_000_000)).unwrap();
    }
    site
}

fn state(site: &Site, title: usize) -> String {
    let mut text = vec![0; 4096];
    let path = site.path(&format!("mnt/{title}"));
    let bytes = getxattr(&path, STATE, &mut text[..]).unwrap();
    String::from_utf8_lossy(&text[..bytes]).into_owned()
}

#[test]
fn file_on_a_mount_when_opened_with_a_rate_then_a_stream_until_it_is_closed() {
    if !can_mount() {
        return;
    }
    let site = cinema(2);
    site.mount(&ON_A_DISK);
    let path = site.path("mnt/0");
    setxattr(&path, RATE, b"1MB/s", XattrFlags::empty()).unwrap();
    let mut file = File::open(&path).unwrap();
    assert!(state(&site, 0).starts_with("admitted rate=1000000 streams=1 "), "{}", state(&site, 0));
    let status = site.status();
    let service = &status["streams"]["service"];
    assert_eq!(service["guaranteed"], 1, "{status}");
    assert_eq!(service["streams"][0]["path"], "0");
    let (code, text) = site.run(&["status", &site.text("mnt")]);
    assert!(code == 0 && text.contains("  streams      1 at "), "{text}");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == content(0, 1_000_000));
    drop(file);
    assert!(wait_for(Duration::from_secs(60), || {
        site.status()["streams"]["service"]["guaranteed"] == 0
    }));
    let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(fs::read(&path).unwrap() == content(0, 1_000_000), "and the next daemon streams");
    assert_eq!(site.status()["streams"]["service"]["opened"], 1);
    let (_, metrics) = site.run(&["debug", "metrics", &site.text("mnt")]);
    assert!(metrics.contains("forebay_stream_glitches_total{cause=\"late\"}"), "{metrics}");
    site.umount();
}

/// Plays a title at its rate from `at` on for the time that `bytes` take.
fn play(file: &mut File, title: usize, at: &mut usize, bytes: usize) {
    let whole = content(title, 1_000_000);
    let mut piece = [0; 10_000];
    for _ in 0..bytes / piece.len() {
        file.read_exact(&mut piece).unwrap();
        assert!(piece[..] == whole[*at..*at + piece.len()], "title {title} at {at}");
        *at += piece.len();
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn guaranteed(site: &Site) -> u64 {
    site.status()["streams"]["service"]["guaranteed"].as_u64().unwrap()
}

#[test]
fn streams_when_the_daemon_changes_or_dies_then_played_on_with_their_promise() {
    if !can_mount() {
        return;
    }
    let site = cinema(3);
    site.mount(&ON_A_DISK);
    let mut titles = Vec::new();
    for title in 0..2 {
        let path = site.path(&format!("mnt/{title}"));
        setxattr(&path, RATE, b"500K", XattrFlags::empty()).unwrap();
        titles.push((title, File::open(&path).unwrap(), 0));
    }
    let both = |titles: &mut Vec<(usize, File, usize)>| {
        for (title, file, at) in titles {
            play(file, *title, at, 60_000);
        }
    };
    both(&mut titles);
    let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(state(&site, 1).starts_with("admitted rate=500000 streams=1 "), "{}", state(&site, 1));
    both(&mut titles);
    assert_eq!(
        (guaranteed(&site), site.status()["streams"]["service"]["opened"].as_u64()),
        (2, Some(2))
    );
    // A daemon that dies leaves their rates, which are the files'.
    let daemon = site.daemon();
    signal(daemon, rustix::process::Signal::KILL);
    both(&mut titles);
    assert_ne!(site.daemon(), daemon);
    assert!(wait_for(Duration::from_secs(60), || guaranteed(&site) == 2));
    assert!(state(&site, 0).starts_with("admitted rate=500000 streams=1 "), "{}", state(&site, 0));
    let glitches = || site.status()["streams"]["service"]["glitches"]["daemon-change"].as_u64();
    assert!(wait_for(Duration::from_secs(60), || glitches() == Some(2)), "{}", site.status());
    for (title, mut file, at) in titles {
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert!(rest == content(title, 1_000_000)[at..]);
    }
    assert!(wait_for(Duration::from_secs(60), || guaranteed(&site) == 0));
    site.umount();
}

#[test]
fn stream_open_then_the_bytes_on_standard_output_or_why_not() {
    if !can_mount() {
        return;
    }
    let site = cinema(60);
    site.mount(&ON_A_DISK);
    let open = |title: usize, more: &[&str]| {
        let path = site.text(&format!("mnt/{title}"));
        let mut args = vec!["stream", "open", &path];
        args.extend(more);
        site.command(env!("CARGO_BIN_EXE_forebay")).args(args).output().unwrap()
    };
    let played = open(0, &["--rate", "16M"]);
    assert!(played.status.success() && played.stdout == content(0, 1_000_000));
    // Others have what the device carries.
    let mut held = Vec::new();
    for title in 1..60 {
        let path = site.path(&format!("mnt/{title}"));
        setxattr(&path, RATE, b"250K", XattrFlags::empty()).unwrap();
        held.push(File::open(&path).unwrap());
        if state(&site, title).starts_with("refused") {
            break;
        }
    }
    // Much more than any of those: wherever it lies, there is no room.
    let refused = open(59, &["--rate", "16M"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && text.contains("refused "), "{text}");
    assert!(refused.stdout.is_empty());
    let status = site.status();
    let told = status["streams"]["refused"].as_array().unwrap();
    assert!(told.iter().any(|refused| refused["path"] == "59"), "{status}");
    drop(held);
    // Beside nothing and without a guarantee all of it is there.
    let played = open(59, &["--best-effort"]);
    assert!(played.stdout == content(59, 1_000_000));
    site.umount();
    site.mount(&[]);
    let (code, text) = site.run(&["stream", "open", &site.text("mnt/0"), "--rate", "1M"]);
    assert!(code == 2 && text.contains("--stream-profile"), "{code}: {text}");
    site.umount();
    let (code, text) = site.mount_with(&["--stream-profile", "/nowhere"]);
    assert!(code == 2 && text.contains("/nowhere"), "{code}: {text}");
}
