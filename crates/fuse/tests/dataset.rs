//! Mounts whose contents do not change: the kernel opens and closes without asking.

mod lab;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use forebay_node::{Coherence, Node, Passthrough};
use lab::Lab;

const FILES: usize = 300;

fn contents(n: usize) -> Vec<u8> {
    (0..n * 331).map(|at| (at * (n + 1) % 251) as u8).collect()
}

/// A mount over small files of every length around the sizes of pages, and a large one.
fn lab() -> Option<Lab> {
    Lab::start(
        |config| {
            for n in 0..FILES {
                fs::write(config.backing.join(n.to_string()), contents(n)).unwrap();
            }
            fs::write(config.backing.join("large"), contents(20_000)).unwrap();
            config.dataset = true;
            config.read_only = true;
            config.passthrough = Passthrough::Off;
            config.coherence = Coherence::Exclusive;
        },
        Node::start,
    )
}

fn requests(lab: &Lab, class: &str) -> u64 {
    let text = lab.node.render_metrics();
    let name = format!("forebay_op_seconds_count{{op=\"{class}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

#[test]
fn files_when_read_again_then_the_daemon_is_not_asked() {
    let Some(lab) = lab() else { return };
    for _ in 0..2 {
        for n in 0..FILES {
            assert_eq!(fs::read(lab.path(&n.to_string())).unwrap(), contents(n), "{n}");
        }
    }
    // One of each is what the kernel needs to hear that it need not ask; it may ask in parallel.
    assert!(requests(&lab, "open") <= 2, "{}", requests(&lab, "open"));
    assert_eq!(requests(&lab, "release"), 0);
    let read_again = |_| {
        let before = requests(&lab, "read");
        for n in 0..FILES {
            assert_eq!(fs::read(lab.path(&n.to_string())).unwrap(), contents(n), "{n}");
        }
        requests(&lab, "read") - before
    };
    // A machine that is short of memory may take some of the pages away, and anybody may have all of
    // them dropped: the fewest of several times count.
    let again = (0..5).map(read_again).min().unwrap();
    assert!(again < FILES as u64 / 4, "{again} of {FILES} files were read once more");
    let listed = lab::names(&lab.path(""));
    let lists = requests(&lab, "readdir");
    assert_eq!(lab::names(&lab.path("")), listed);
    assert_eq!((listed.len(), requests(&lab, "readdir")), (FILES + 1, lists));
    assert!(requests(&lab, "opendir") <= 1);
}

#[test]
fn files_when_read_in_any_order_past_the_page_cache_then_as_they_are() {
    let Some(lab) = lab() else { return };
    let large = contents(20_000);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (lab, large) = (&lab, &large);
            scope.spawn(move || {
                let direct = File::options()
                    .read(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(lab.path("large"))
                    .unwrap();
                let mut at = thread * 7919;
                for n in 0..400 {
                    at = (at * 31 + n * 4096) % large.len();
                    let mut piece = vec![0; 10_000];
                    let len = direct.read_at(&mut piece, at as u64).unwrap();
                    assert!(piece[..len] == large[at..at + len], "{at}");
                    assert_eq!(len, piece.len().min(large.len() - at));
                    // More files than are kept open, all at the same time.
                    let small = (at + n) % FILES;
                    let mut bytes = Vec::new();
                    let file = File::options()
                        .read(true)
                        .custom_flags(libc::O_DIRECT)
                        .open(lab.path(&small.to_string()));
                    file.unwrap().read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes, contents(small));
                }
            });
        }
    });
}

#[test]
fn changes_when_tried_then_refused() {
    let Some(lab) = lab() else { return };
    let error = |outcome: std::io::Result<()>| outcome.unwrap_err().raw_os_error().unwrap();
    let path = lab.path("5");
    assert_eq!(error(fs::write(&path, b"x")), libc::EROFS);
    assert_eq!(error(File::options().write(true).open(&path).map(drop)), libc::EROFS);
    assert_eq!(error(fs::remove_file(&path)), libc::EROFS);
    assert_eq!(error(fs::create_dir(lab.path("new"))), libc::EROFS);
    assert_eq!(fs::read(path).unwrap(), contents(5));
}
