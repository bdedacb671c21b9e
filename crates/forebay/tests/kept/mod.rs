//! What tests of redundancy have in common: files that are written in all ways, and what became of them.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::ring::Ring;
use crate::site::wait_for;

/// Nothing that the machine does takes longer.
pub const LONG: Duration = Duration::from_secs(60);

/// Bytes that tell where in which file they are.
pub fn contents(seed: u64, size: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..size.div_ceil(8) as u64).flat_map(word).take(size).collect()
}

/// What `cluster status` says of a node's part in keeping what is written.
pub fn safety(ring: &Ring, node: usize) -> serde_json::Value {
    let mnt = ring.site.text(&format!("mnt{node}"));
    let (code, text) = ring.site.run(&["cluster", "status", "--json", &mnt]);
    assert_eq!(code, 0, "{text}");
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    status["safety"].clone()
}

pub fn count(ring: &Ring, node: usize, what: &str) -> u64 {
    safety(ring, node)[what].as_u64().unwrap_or_else(|| panic!("no {what}"))
}

/// Files that a node keeps for others.
pub fn held(ring: &Ring, node: usize) -> u64 {
    count(ring, node, "held_files")
}

/// Writes files in all ways: closed, synced and kept open, added to, and overwritten.
pub fn write_all(ring: &Ring, node: usize) -> (Vec<(String, Vec<u8>)>, Vec<File>) {
    let (mut written, mut open) = (Vec::new(), Vec::new());
    for (number, size) in [0, 5, 4096, 70_000, 5_000_000].into_iter().enumerate() {
        let (name, bytes) = (format!("closed{number}"), contents(number as u64, size));
        fs::write(ring.at(node, &name), &bytes).unwrap();
        written.push((name, bytes));
    }
    let mut log = File::create(ring.at(node, "log")).unwrap();
    let mut lines = Vec::new();
    for line in 0..40 {
        let text = format!("line {line}\n");
        log.write_all(text.as_bytes()).unwrap();
        log.sync_data().unwrap();
        lines.extend_from_slice(text.as_bytes());
    }
    written.push(("log".into(), lines));
    open.push(log);
    let base = File::create(ring.at(node, "base")).unwrap();
    let mut bytes = contents(7, 300_000);
    base.write_all_at(&bytes, 0).unwrap();
    base.sync_all().unwrap();
    base.write_all_at(b"over what was there", 1000).unwrap();
    base.set_len(200_000).unwrap();
    base.sync_all().unwrap();
    bytes[1000..1019].copy_from_slice(b"over what was there");
    bytes.truncate(200_000);
    written.push(("base".into(), bytes));
    open.push(base);
    (written, open)
}

/// Has nodes write everything back, until nothing is left that any has, these or others.
pub fn sync(ring: &Ring, nodes: std::ops::Range<usize>) {
    let one = |node: usize| {
        let mnt = ring.site.text(&format!("mnt{node}"));
        let (code, text) = ring.site.run(&["sync", "--json", &mnt]);
        code == 0 && serde_json::from_str::<serde_json::Value>(&text).unwrap()["elsewhere"] == 0
    };
    // All of them, also after one that has something left.
    let all = || nodes.clone().filter(|node| !one(*node)).count() == 0;
    assert!(wait_for(LONG, all), "{}", ring.log(nodes.start));
}

/// Reads a file as soon as that can be done.
pub fn read_soon(path: &PathBuf) -> Vec<u8> {
    let found = std::cell::RefCell::new(None);
    let read = wait_for(LONG, || match fs::read(path) {
        Ok(bytes) => found.borrow_mut().replace(bytes).is_none_or(|_| true),
        Err(_) => false,
    });
    assert!(read, "{} can't be read: {:?}", path.display(), fs::read(path).err());
    found.into_inner().unwrap()
}

pub fn check_all(ring: &Ring, node: usize, written: &[(String, Vec<u8>)]) {
    for (name, bytes) in written {
        let found = read_soon(&ring.at(node, name));
        let differs = found.iter().zip(bytes).position(|(found, meant)| found != meant);
        let lengths = (found.len(), bytes.len());
        assert!(
            found == *bytes,
            "{name} on node {node}: {lengths:?} bytes, differs at {differs:?}"
        );
    }
}
