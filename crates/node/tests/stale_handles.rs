//! A store whose open files become stale (`ESTALE`), as after a restart of a server, though they are
//! there under their names.

mod rig;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_store::decorators::{Interceptor, Operation, Verdict};
use rig::{KIB, MIB, Rig, noise};

/// What is open of a file is stale until it is opened anew.
#[derive(Default)]
struct Restarted {
    is: AtomicBool,
    said: AtomicUsize,
}

impl Interceptor for Restarted {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if !label.ends_with("big") {
            return Verdict::Pass;
        }
        if operation == Operation::Open {
            self.is.store(false, Ordering::Relaxed);
        }
        // An open file is known by its whole path.
        if !label.is_absolute() || !self.is.load(Ordering::Relaxed) {
            return Verdict::Pass;
        }
        self.said.fetch_add(1, Ordering::Relaxed);
        Verdict::Fail(libc::ESTALE)
    }
}

#[test]
fn file_beneath_which_the_store_restarts_when_read_then_opened_anew() {
    let store = Arc::new(Restarted::default());
    let rig = Rig::new(&[64 * MIB], store.clone(), |_| {});
    let mut expected = noise(1, 8 * MIB);
    std::fs::write(rig.backing().join("big"), &expected).unwrap();
    let fh = rig.open("big", libc::O_RDWR);
    let bytes = noise(2, 100 * KIB);
    rig.write(fh, 3000, &bytes);
    expected[3000..3000 + bytes.len()].copy_from_slice(&bytes);
    store.is.store(true, Ordering::Relaxed);
    assert!(rig.read_all(fh) == expected, "what nobody has changed is read beneath");
    assert!(store.said.load(Ordering::Relaxed) > 0, "the open file was not used");
    rig.node().release(fh);
}

#[test]
fn file_beneath_which_the_store_restarts_when_nobody_reads_it_then_it_is_written_back() {
    let store = Arc::new(Restarted::default());
    let rig = Rig::new(&[64 * MIB], store.clone(), |_| {});
    let mut expected = noise(1, 8 * MIB);
    std::fs::write(rig.backing().join("big"), &expected).unwrap();
    let fh = rig.open("big", libc::O_RDWR);
    let bytes = noise(2, 100 * KIB);
    rig.write(fh, 3000, &bytes);
    expected[3000..3000 + bytes.len()].copy_from_slice(&bytes);
    rig.node().release(fh);
    store.is.store(true, Ordering::Relaxed);
    rig.drain();
    assert!(store.said.load(Ordering::Relaxed) > 0, "the open file was not used");
    assert!(rig.plain("big") == expected);
}

/// A file of which a part went past the tier, over a version that is open; what it has to be.
fn past_the_tier(store: &Arc<Restarted>) -> (Rig, Vec<u8>, u64) {
    let rig = Rig::new(&[4 * KIB], store.clone(), |_| {});
    let mut expected = noise(1, 8 * MIB);
    std::fs::write(rig.backing().join("big"), &expected).unwrap();
    let fh = rig.open("big", libc::O_RDWR);
    let bytes = noise(2, 100 * KIB);
    rig.write(fh, 3 * MIB + 3000, &bytes);
    let at = 3 * MIB as usize + 3000;
    expected[at..at + bytes.len()].copy_from_slice(&bytes);
    assert!(rig.read_all(fh) == expected, "before the restart");
    store.is.store(true, Ordering::Relaxed);
    (rig, expected, fh)
}

#[test]
fn file_past_the_tier_beneath_which_the_store_restarts_when_read_then_opened_anew() {
    let store = Arc::new(Restarted::default());
    let (rig, expected, fh) = past_the_tier(&store);
    assert!(rig.read_all(fh) == expected, "what nobody has changed is read beneath");
    assert!(store.said.load(Ordering::Relaxed) > 0, "the open file was not used");
    rig.node().release(fh);
}

#[test]
fn file_past_the_tier_beneath_which_the_store_restarts_when_closed_then_it_is_written_back() {
    let store = Arc::new(Restarted::default());
    let (rig, expected, fh) = past_the_tier(&store);
    rig.node().release(fh);
    rig.drain();
    assert!(store.said.load(Ordering::Relaxed) > 0, "the open file was not used");
    assert!(rig.plain("big") == expected);
}
