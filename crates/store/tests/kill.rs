//! A process killed with SIGKILL loses nothing that it had written to an object or marked in a map.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use forebay_store::tier::DirTier;
use forebay_store::{Header, Tier};

const EXTENT: u64 = 4096;
const EXTENTS: u64 = 1 << 16;

/// The child: writes and marks one extent after another, telling each on its standard output.
#[test]
fn child() {
    let Ok(dir) = std::env::var("KILL_DIR") else { return };
    let tier = DirTier::open(dir).unwrap();
    let object = tier.create(1, &Header { ino: 1, ..Header::default() }).unwrap();
    let mut map = tier.create_map(1, EXTENT, EXTENTS * EXTENT).unwrap();
    let mut out = std::io::stdout();
    for index in 0..EXTENTS {
        let at = index * EXTENT;
        object.write_at(&index.to_le_bytes(), at).unwrap();
        if index % 2 == 0 {
            map.mark_dirty(at..at + EXTENT).unwrap();
        } else {
            map.mark_clean(at..at + EXTENT).unwrap();
        }
        object.set_header(&Header { ino: 1, size: index, ..Header::default() }).unwrap();
        writeln!(out, "done {index}").unwrap();
    }
}

#[test]
fn process_killed_while_it_writes_loses_nothing_that_it_reported() {
    for round in 1..=5 {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("KILL_DIR", dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut reported = None;
        let mut note = |line: String| {
            let number = line.rsplit_once("done ").and_then(|(_, n)| n.parse::<u64>().ok());
            reported = number.or(reported);
            reported
        };
        while note(lines.next().unwrap().unwrap()).is_none_or(|n| n < 150 * round) {}
        child.kill().unwrap();
        // What it wrote to the pipe before it died counts too.
        for line in lines.map_while(Result::ok) {
            note(line);
        }
        child.wait().unwrap();
        let reported = reported.unwrap();

        let tier = DirTier::open(dir.path()).unwrap();
        drop(tier.lock().expect("the dead process holds no lock"));
        let object = tier.open(1).unwrap();
        let map = tier.open_map(1, forebay_store::Believed::Written).unwrap().unwrap();
        assert!(map.is_present(0..(reported + 1) * EXTENT), "extents up to {reported}");
        assert!(map.dirty_bytes() >= (reported / 2 + 1) * EXTENT);
        assert!(map.present_bytes() <= (reported + 2) * EXTENT);
        assert!(object.header().unwrap().size >= reported);
        for index in 0..=reported {
            let mut bytes = [0; 8];
            object.read_at(&mut bytes, index * EXTENT).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), index);
        }
    }
}
