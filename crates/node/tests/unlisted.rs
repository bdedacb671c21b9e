//! Directories of objects that can't be listed: the mount goes on, and only files that may have an object there
//! give errors, by name.
#![cfg(feature = "failpoints")]

mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_node::Ino;
use forebay_store::decorators::{Interceptor, Operation, Transparent, Verdict};
use forebay_store::tier::{part_of, part_path};
use parking_lot::Mutex;
use rig::{CONTEXT, MIB, Rig, noise, same};

/// Does not list some directories.
#[derive(Default)]
struct Unlisted(Mutex<Vec<PathBuf>>);

impl Interceptor for Unlisted {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        let is_it = operation == Operation::List && self.0.lock().iter().any(|it| it == label);
        if is_it { Verdict::Fail(libc::EUCLEAN) } else { Verdict::Pass }
    }
}

fn rig() -> (Rig, Arc<Unlisted>) {
    let unlisted = Arc::new(Unlisted::default());
    let mut rig = Rig::unstarted(&[16 * MIB], Arc::new(Transparent), |config| {
        config.attr_timeout = Duration::ZERO;
    });
    rig.by_tier = Some(unlisted.clone());
    rig.start();
    (rig, unlisted)
}

fn refuse(rig: &Rig, unlisted: &Unlisted, files: &[Ino]) {
    let tier = std::fs::canonicalize(rig.dir.join("tier0")).unwrap();
    *unlisted.0.lock() = files.iter().map(|ino| part_path(&tier, part_of(ino.0))).collect();
}

fn shows(rig: &Rig, name: &str) -> Option<Vec<u8>> {
    let fh = rig.node().open(&CONTEXT, rig.ino(name), libc::O_RDONLY).ok()?.fh;
    let bytes = rig.read_all(fh);
    rig.node().release(fh);
    Some(bytes)
}

/// Three files that are changed here: closed, open, and in another directory of the tier.
fn three(rig: &Rig) -> [Ino; 3] {
    for name in ["closed", "open", "other"] {
        std::fs::write(rig.backing().join(name), noise(1, 20_000)).unwrap();
    }
    for name in ["closed", "open", "other"] {
        let fh = rig.open(name, libc::O_RDWR);
        rig.write(fh, 0, b"newer");
        if name != "open" {
            rig.node().release(fh);
        }
    }
    let files = ["closed", "open", "other"].map(|name| rig.ino(name));
    let parts = files.map(|ino| part_of(ino.0));
    assert!(!parts[..2].contains(&parts[2]), "{parts:?}");
    files
}

#[test]
fn directory_of_objects_that_can_not_be_listed_when_started_then_its_files_alone_give_errors() {
    let (mut rig, unlisted) = rig();
    let [closed, open, _] = three(&rig);
    rig.crash();
    refuse(&rig, &unlisted, &[closed, open]);
    rig.start();
    let mut newer = noise(1, 20_000);
    newer[..5].copy_from_slice(b"newer");
    assert_eq!(shows(&rig, "closed"), None);
    assert_eq!(shows(&rig, "open"), None, "an older version is shown");
    same(&shows(&rig, "other").unwrap(), &newer, "of another directory");
    assert_eq!(rig.node().residency().unseen_here().list, [b"closed".to_vec()]);
    // What is made now is not concerned, wherever its place is.
    for number in 0..300 {
        let name = format!("new{number}");
        rig.put(&name, b"new");
        assert_eq!(shows(&rig, &name).as_deref(), Some(&b"new"[..]), "{name}");
    }
    rig.crash();
    refuse(&rig, &unlisted, &[]);
    rig.start();
    rig.drain();
    for name in ["closed", "open", "other"] {
        same(&rig.plain(name), &newer, name);
    }
    assert_eq!(rig.node().writeback().conflicts().0, 0);
    assert_eq!(rig.node().residency().set_aside().files, 0);
}

#[test]
fn file_in_a_directory_that_can_not_be_listed_when_it_is_emptied_then_it_is_the_new_one() {
    let (mut rig, unlisted) = rig();
    let [closed, open, _] = three(&rig);
    rig.crash();
    refuse(&rig, &unlisted, &[closed, open]);
    rig.start();
    for name in ["closed", "open"] {
        let fh = rig.open(name, libc::O_WRONLY | libc::O_TRUNC);
        rig.write(fh, 0, b"anew");
        rig.node().release(fh);
        assert_eq!(shows(&rig, name).as_deref(), Some(&b"anew"[..]), "{name}");
    }
    rig.crash();
    refuse(&rig, &unlisted, &[]);
    rig.start();
    rig.drain();
    for name in ["closed", "open"] {
        assert_eq!(rig.plain(name), b"anew", "{name}");
    }
}

/// The copy has blocks that never reached the device.
#[test]
fn copy_in_a_directory_that_can_not_be_listed_after_a_power_cut_then_no_later_start_believes_it() {
    let (mut rig, unlisted) = rig();
    let bytes = noise(3, 20_000);
    std::fs::write(rig.backing().join("copy"), &bytes).unwrap();
    rig.get("copy");
    let ino = rig.ino("copy");
    rig.crash();
    let object = part_path(&rig.dir.join("tier0"), part_of(ino.0)).join(format!("{:016x}", ino.0));
    let file = std::fs::File::options().write(true).open(object).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.set_len(0).unwrap();
    file.set_len(20_000).unwrap();
    file.set_modified(modified).unwrap();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    refuse(&rig, &unlisted, &[ino]);
    for _ in 0..2 {
        rig.start();
        assert!(rig.node().stop(Duration::from_secs(20)));
        rig.crash();
    }
    refuse(&rig, &unlisted, &[]);
    rig.start();
    same(&shows(&rig, "copy").unwrap(), &bytes, "copy");
    rig.crash();
    let notes = std::fs::read_dir(rig.dir.join("tier0/state/unseen")).unwrap();
    assert_eq!(notes.count(), 0, "it is judged for ever");
}

#[test]
fn directory_of_objects_that_can_not_be_listed_when_checked_then_it_is_named_and_no_file_is_given_up()
 {
    let _alone = rig::alone();
    let (mut rig, _) = rig();
    rig.put("file", &noise(1, 20_000));
    rig.crash();
    fail::cfg("store.scan.part", "return").unwrap();
    let request = forebay_node::CheckRequest {
        tiers: vec![rig.dir.join("tier0")],
        backing: Some(rig.backing()),
        accept_loss: true,
        ..forebay_node::CheckRequest::default()
    };
    let checked = forebay_node::check(&request, &mut |_| true);
    fail::remove("store.scan.part");
    let said = checked.unwrap().details.join("\n");
    assert!(said.contains("objects/") && !said.contains("given up"), "{said}");
    rig.start();
    same(&shows(&rig, "file").unwrap(), &noise(1, 20_000), "file");
}
