//! What a power cut leaves when the device of the backing store has failed before it.

mod rig;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_node::{Ino, NameIn, NewFile};
use forebay_store::decorators::{Interceptor, Operation, Verdict};
use parking_lot::Mutex;
use rig::{CONTEXT, MIB, Rig, noise};

/// A backing store whose device fails for good as the first operation of a kind is done. What stood
/// under `file` before it is kept.
#[derive(Default)]
struct DownAfter {
    which: Mutex<Option<Operation>>,
    file_and_kept: std::sync::OnceLock<(PathBuf, PathBuf)>,
    down: AtomicBool,
}

impl Interceptor for DownAfter {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        // As late as that, or the file has two names, and is written in place.
        if self.which.lock().is_some() && operation == Operation::Create {
            let (file, kept) = self.file_and_kept.get().unwrap();
            if !kept.exists() {
                std::fs::hard_link(file, kept).unwrap();
            }
        }
        match self.down.load(Ordering::SeqCst) {
            true => Verdict::Fail(libc::EIO),
            false => Verdict::Pass,
        }
    }

    fn after(&self, operation: Operation) {
        if self.which.lock().take_if(|which| *which == operation).is_some() {
            self.down.store(true, Ordering::SeqCst);
        }
    }
}

/// A rig whose backing store has `file`, which is to go down with it.
fn rig_that_goes_down() -> (Rig, Arc<DownAfter>) {
    let by = Arc::new(DownAfter::default());
    let rig = Rig::new(&[8 * MIB], by.clone(), |_| {});
    by.file_and_kept.set((rig.backing().join("file"), rig.dir.join("kept"))).unwrap();
    rig.put("file", &noise(1, 20_480));
    rig.put("other", &noise(2, 12_288));
    rig.drain();
    (rig, by)
}

/// A worker brings `ino` in line, and the power fails right after the first operation of a kind: nothing
/// of the names was on the device, so that `file` is there as it was, which is of the inode `known`.
fn cut_after(rig: &mut Rig, by: &DownAfter, operation: Operation, ino: Ino, known: Ino) {
    let (file, kept) = by.file_and_kept.get().unwrap();
    if ino != known {
        std::fs::hard_link(file, kept).unwrap();
    }
    *by.which.lock() = Some(operation);
    rig.node().writeback().reconcile(ino).ok();
    assert!(by.down.load(Ordering::SeqCst), "not asked to {operation:?}");
    rig.crash();
    std::fs::rename(kept, file).unwrap();
    // Made meanwhile, if at all.
    std::fs::remove_dir(rig.backing().join("dir")).ok();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    by.down.store(false, Ordering::SeqCst);
    rig.start();
}

fn rename(rig: &Rig, from: &str, to: &str) {
    let (from, to) =
        (NameIn::new(Ino::ROOT, from.as_bytes()), NameIn::new(Ino::ROOT, to.as_bytes()));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
}

/// The device failed between the removal of what a file replaces and the move of that file. The removed
/// file was reported as gone, and was not: it came back as one of others.
#[test]
fn replaced_file_when_the_device_fails_before_its_removal_is_durable_then_is_no_change_of_others() {
    let (mut rig, by) = rig_that_goes_down();
    let replaced = rig.ino("file");
    rename(&rig, "other", "file");
    // The removed file is in use no more.
    rig.crash();
    rig.start();
    // It wants the name that the first one still has below, which so goes to limbo.
    rig.put("other", &noise(3, 8192));
    let ino = rig.ino("other");
    cut_after(&mut rig, &by, Operation::Remove, ino, replaced);
    rig.drain();
    assert_eq!(rig.node().writeback().conflicts().1, []);
    assert!(rig.plain("file") == noise(2, 12_288));
    assert!(rig.plain("other") == noise(3, 8192));
}

/// The sync after a publication failed. The version was reported as known all the same: after the cut the
/// file that it had replaced waited for it, and it for that file.
#[test]
fn version_when_the_device_fails_before_its_name_is_durable_then_it_is_published_again() {
    for same_file in [false, true] {
        let (mut rig, by) = rig_that_goes_down();
        let (bytes, known) = (noise(3, 16_384), rig.ino("file"));
        let name = if same_file { "file" } else { "new" };
        let fh = if same_file { rig.open(name, libc::O_RDWR) } else { rig.create(name) };
        rig.write(fh, 0, &bytes);
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        rig.node().release(fh);
        if !same_file {
            rename(&rig, "new", "file");
        }
        let ino = rig.ino("file");
        cut_after(&mut rig, &by, Operation::Commit, ino, known);
        rig.drain();
        assert_eq!(rig.node().writeback().conflicts().1, [], "same file: {same_file}");
        assert!(rig.plain("file")[..16_384] == bytes, "same file: {same_file}");
    }
}

/// As of a version, of a directory that was made: what is in it must not go with it.
#[test]
fn directory_when_the_device_fails_before_its_name_is_durable_then_it_is_made_again() {
    for operation in [Operation::Create, Operation::List] {
        let (mut rig, by) = rig_that_goes_down();
        let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
        let new = NewFile { mode: 0o644, umask: 0o022 };
        let made = rig.node().create_and_open(&CONTEXT, dir, b"in it", new, libc::O_RDWR);
        let (stat, opened) = made.unwrap();
        rig.write(opened.fh, 0, b"bytes");
        rig.node().fsync(&CONTEXT, opened.fh, false).unwrap();
        rig.node().release(opened.fh);
        cut_after(&mut rig, &by, operation, stat.ino, stat.ino);
        rig.drain();
        assert_eq!(rig.node().writeback().conflicts().1, [], "{operation:?}");
        assert_eq!(rig.plain("dir/in it"), b"bytes", "{operation:?}");
    }
}

/// Writes down what a backing store is asked for.
#[derive(Default)]
struct Asked(Mutex<Vec<Operation>>);

impl Interceptor for Asked {
    fn before(&self, operation: Operation, _: u64) -> Verdict {
        self.0.lock().push(operation);
        Verdict::Pass
    }
}

#[test]
fn start_when_the_daemon_was_killed_then_the_backing_store_is_synced_before_it_is_relied_upon() {
    let asked = Arc::new(Asked::default());
    let mut rig = Rig::new(&[8 * MIB], asked.clone(), |_| {});
    rig.put("file", &noise(1, 20_480));
    rig.drain();
    rig.put("other", &noise(2, 12_288));
    rig.crash();
    asked.0.lock().clear();
    rig.start();
    let said = asked.0.lock().clone();
    let synced = said.iter().position(|asked| *asked == Operation::Sync);
    let relied = [Operation::Clean, Operation::List, Operation::Open, Operation::Rename];
    let first = said.iter().position(|asked| relied.contains(asked));
    assert!(synced.is_some_and(|synced| first.is_none_or(|first| synced < first)), "{said:?}");
    // It has nothing that a daemon that ended in good order would not have synced.
    rig.drain();
    assert!(rig.node.take().unwrap().stop(std::time::Duration::from_secs(10)));
    asked.0.lock().clear();
    rig.start();
    assert!(!asked.0.lock().contains(&Operation::Sync), "it waits for the store's device");
}
