//! Writes that nothing has room for, or not for all of: what they leave behind, of which nobody may ever see
//! anything but the beginning of what was to be written.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_node::SetAttr;
use forebay_store::decorators::{Interceptor, Operation, Verdict};
use rig::{CONTEXT, KIB, MIB, Rig, noise, random, same};

/// It takes all.
const EMPTY: u8 = 0;
/// It takes the first part of each write.
const NEARLY_FULL: u8 = 1;

/// A device whose room changes.
struct Room {
    state: AtomicU8,
    random: AtomicU64,
}

impl Room {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Room { state: EMPTY.into(), random: seed.into() })
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }
}

impl Interceptor for Room {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        match self.state.load(Ordering::SeqCst) {
            NEARLY_FULL if operation == Operation::Write && bytes > 0 => {
                let mut state = self.random.fetch_add(1, Ordering::SeqCst) | 1;
                state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Verdict::Torn { bytes: random(&mut state) % bytes, errno: libc::ENOSPC }
            }
            _ => Verdict::Pass,
        }
    }
}

fn set_len(rig: &Rig, name: &str, len: u64) -> bool {
    let set = SetAttr { size: Some(len), ..SetAttr::default() };
    rig.node().setattr(&CONTEXT, rig.ino(name), &set).is_ok()
}

/// A file, and what it has to show.
struct Known {
    name: String,
    bytes: Vec<u8>,
    fh: Option<u64>,
}

impl Known {
    fn write(&mut self, rig: &Rig, at: u64, data: &[u8], what: &str) {
        let fh = self.fh.unwrap();
        let written = rig.node().write(&CONTEXT, fh, at, data);
        let count = *written.as_ref().unwrap_or(&0);
        let at = usize::try_from(at).unwrap();
        if count > 0 {
            self.bytes.resize(self.bytes.len().max(at + count), 0);
            self.bytes[at..at + count].copy_from_slice(&data[..count]);
        }
        if count < data.len() {
            // A device that refuses the rest may have taken more of it.
            let now = rig.read_all(fh);
            let end = self.bytes.len().min(at + data.len());
            for behind in at + count..end {
                if now.get(behind) != Some(&data[behind - at]) {
                    break;
                }
                self.bytes[behind] = data[behind - at];
            }
            same(&now, &self.bytes, &format!("{}, {what}: {written:?}", self.name));
        }
    }
}

/// Takes what room a tier of a mebibyte has left, but a block for a map, with a file that stays open.
fn fill(rig: &Rig, filler: u64, at: &mut u64) {
    while rig.used() + 8 * KIB <= MIB {
        rig.write(filler, *at, &[1; 4096]);
        *at += 4096;
    }
}

#[test]
fn extent_that_had_no_room_past_the_tier_when_its_file_is_cut_and_grows_then_shows_zeros() {
    let store = Room::new(1);
    let mut known = noise(3, 12 * 4096);
    let rig = Rig::new(&[MIB], store.clone(), |config| {
        config.backing_timeout = Duration::from_millis(200);
    });
    let (fh, filler, mut filled) = (rig.create("file"), rig.create("filler"), 0);
    rig.write(fh, 0, &known);
    fill(&rig, filler, &mut filled);
    let mut append = |at: u64, data: &[u8]| {
        rig.write(fh, at, data);
        let at = usize::try_from(at).unwrap();
        known.resize(at, 0);
        known.extend_from_slice(data);
        same(&rig.read_all(fh), &known, &format!("written at {at}"));
        known.len()
    };
    // The first extent goes past the tier, the second takes its room.
    append(12 * 4096, &[7; 16384]);
    let len = append(64 * KIB, &noise(4, 10 * 4096));
    fill(&rig, filler, &mut filled);
    store.set(NEARLY_FULL);
    rig.node().write(&CONTEXT, fh, len as u64, &[8; 16384]).expect_err("nothing has room");
    store.set(EMPTY);
    assert!(set_len(&rig, "file", 66_000));
    known.truncate(66_000);
    fill(&rig, filler, &mut filled);
    rig.write(fh, 70_000, &[9; 16384]);
    known.resize(70_000, 0);
    known.extend_from_slice(&[9; 16384]);
    same(&rig.read_all(fh), &known, "on the mount");
    [fh, filler].into_iter().for_each(|fh| rig.node().release(fh));
    rig.drain();
    same(&rig.plain("file"), &known, "in the store");
}

#[test]
fn extent_of_which_the_version_below_has_a_part_when_a_write_to_it_is_refused_then_the_rest_is_zeros()
 {
    let store = Room::new(1);
    let mut known = noise(3, 100_000);
    let rig = Rig::new(&[MIB], store.clone(), |config| {
        config.backing_timeout = Duration::from_millis(200);
    });
    std::fs::write(rig.backing().join("file"), &known).unwrap();
    let (filler, mut filled) = (rig.create("filler"), 0);
    fill(&rig, filler, &mut filled);
    let fh = rig.open("file", libc::O_RDWR);
    for len in [70_000, 128 * KIB] {
        assert!(set_len(&rig, "file", len));
        let len = usize::try_from(len).unwrap();
        known.resize(len.min(70_000), 0);
        known.resize(len, 0);
        same(&rig.read_all(fh), &known, "cut, and longer");
    }
    store.set(NEARLY_FULL);
    for tries in 0..10 {
        let mut file = Known { name: "file".to_owned(), bytes: known, fh: Some(fh) };
        file.write(&rig, 64 * KIB, &[8; 64 << 10], &format!("try {tries}"));
        known = file.bytes;
    }
    store.set(EMPTY);
    same(&rig.read_all(fh), &known, "on the mount");
    [fh, filler].into_iter().for_each(|fh| rig.node().release(fh));
    rig.drain();
    same(&rig.plain("file"), &known, "in the store");
}
