//! Small files that are copied and synced together before they are published.

mod rig;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_store::decorators::{Flaky, Interceptor, Operation, Rule, Verdict};
use rig::{Rig, noise, same};

type Hook = Box<dyn FnOnce() + Send>;

/// Counts syncs, and does something right before the first file is published.
#[derive(Default)]
struct Watch {
    syncs: AtomicU64,
    at_first_commit: Mutex<Option<Hook>>,
}

impl Interceptor for Watch {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        if operation == Operation::Sync {
            self.syncs.fetch_add(1, Ordering::Relaxed);
        }
        if operation == Operation::Commit {
            let hook = self.at_first_commit.lock().unwrap().take();
            if let Some(hook) = hook {
                hook();
            }
        }
        Verdict::Pass
    }
}

const FILES: u64 = 200;

fn name(index: u64) -> String {
    format!("file{index}")
}

fn content(index: u64) -> Vec<u8> {
    noise(index + 1, 500 + index * 37)
}

fn put_all(rig: &Rig) {
    for index in 0..FILES {
        rig.put(&name(index), &content(index));
    }
}

fn all_same(rig: &Rig, except: Option<u64>) {
    for index in (0..FILES).filter(|index| Some(*index) != except) {
        same(&rig.plain(&name(index)), &content(index), &name(index));
    }
}

#[test]
fn many_small_files_when_drained_then_share_syncs() {
    let watch = Arc::new(Watch::default());
    let rig = Rig::new(&[64 << 20], watch.clone(), |_| {});
    put_all(&rig);
    rig.drain();
    all_same(&rig, None);
    let syncs = watch.syncs.load(Ordering::Relaxed);
    // One sync for each file would be 200, and one more for each name.
    assert!(syncs <= FILES / 4, "{syncs} syncs for {FILES} files");
    let left: Vec<_> = std::fs::read_dir(rig.backing().join(".forebay/tmp"))
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn file_written_after_it_was_staged_then_the_newer_bytes_are_published() {
    let watch = Arc::new(Watch::default());
    let rig = Rig::new(&[64 << 20], watch.clone(), |config| config.flush_threads = 1);
    put_all(&rig);
    let last = FILES - 1;
    let newer = noise(4711, content(last).len() as u64);
    let (node, ino, bytes) = (rig.node().clone(), rig.ino(&name(last)), newer.clone());
    *watch.at_first_commit.lock().unwrap() = Some(Box::new(move || {
        let fh = node.open(&rig::CONTEXT, ino, libc::O_RDWR).unwrap().fh;
        assert_eq!(node.write(&rig::CONTEXT, fh, 0, &bytes).unwrap(), bytes.len());
        node.release(fh);
    }));
    rig.drain();
    assert!(watch.at_first_commit.lock().unwrap().is_none(), "a file was published");
    same(&rig.plain(&name(last)), &newer, "the file that was written meanwhile");
    all_same(&rig, Some(last));
}

#[test]
fn shared_sync_when_it_fails_then_each_file_is_synced_and_none_is_torn() {
    let flaky = Arc::new(Flaky::new(7));
    let rig = Rig::new(&[64 << 20], flaky.clone(), |_| {});
    put_all(&rig);
    // The shared one of the first batches, and of the files some.
    flaky.set_rules([Rule { times: 40, ..Rule::always(Operation::Sync, libc::EIO) }]);
    rig.drain();
    assert!(flaky.faults() > 0);
    all_same(&rig, None);
}
