//! What a backing store can't have: it is refused at the call where that is known, else kept here,
//! named, and in nobody's way.

mod rig;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_node::{Ino, NameIn, NewFile, Node, NodeError, Remaining};
use forebay_store::decorators::{
    FoldingBacking, InterceptedBacking, Interceptor, Operation, Transparent, Verdict,
};
use forebay_store::tier::DirTier;
use forebay_store::{BackingStore, DirBacking};
use forebay_testing::{new_dir, wait_until};
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(10);

type Rule = dyn Fn(Operation, u64, &Path) -> Verdict + Send + Sync;

/// A store that can't do what a rule says.
struct Limited(Mutex<Box<Rule>>);

impl Limited {
    fn new(rule: impl Fn(Operation, u64, &Path) -> Verdict + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Limited(Mutex::new(Box::new(rule))))
    }

    /// From now on it can do everything.
    fn lift(&self) {
        *self.0.lock() = Box::new(|_, _, _| Verdict::Pass);
    }
}

impl Interceptor for Limited {
    fn before(&self, operation: Operation, bytes: u64) -> Verdict {
        self.before_at(operation, bytes, Path::new(""))
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        (self.0.lock())(operation, bytes, label)
    }
}

/// Extended attributes of more than 3,000 bytes do not fit.
fn small_attributes() -> Arc<Limited> {
    Limited::new(|operation, bytes, _| match operation {
        Operation::Xattr if bytes > 3000 => Verdict::Fail(libc::ENOSPC),
        _ => Verdict::Pass,
    })
}

fn rig(by: &Arc<Limited>) -> Rig {
    Rig::new(&[16 * MIB], by.clone(), |_| {})
}

/// A drain that must not need its time limit.
fn drain(rig: &Rig) -> Remaining {
    let begun = Instant::now();
    let left = rig.node().writeback().drain(begun + LIMIT, &mut |_| true).unwrap();
    assert!(
        begun.elapsed() < LIMIT / 2,
        "{left:?} {:?}",
        rig.node().writeback().last_backlog_error()
    );
    left
}

fn refused(rig: &Rig) -> Vec<String> {
    let refused = rig.node().writeback().refused().into_iter();
    refused.map(|refused| String::from_utf8(refused.path).unwrap()).collect()
}

fn set_xattr(rig: &Rig, name: &str, len: u64) -> Result<(), NodeError> {
    let value = noise(3, len);
    rig.node().set_xattr(&CONTEXT, rig.ino(name), b"user.large", &value, 0, false)
}

#[test]
fn extended_attribute_that_the_store_can_not_have_when_it_is_set_then_refused() {
    let rig = rig(&small_attributes());
    rig.put("file", b"bytes");
    let outcome = set_xattr(&rig, "file", 5000);
    assert!(
        matches!(outcome, Err(NodeError::Posix(errno)) if errno.raw_os_error() == libc::ENOSPC),
        "{outcome:?}"
    );
    set_xattr(&rig, "file", 2500).unwrap();
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(rig.plain("file"), b"bytes");
    assert!(refused(&rig).is_empty());
}

#[test]
fn file_longer_than_the_store_can_have_when_drained_then_it_waits_and_its_length_is_named() {
    const MAX: u64 = (1 << 33) + 4097;
    let by = Limited::new(|operation, bytes, _| match operation {
        Operation::SetLen if bytes > MAX => Verdict::Fail(libc::EFBIG),
        _ => Verdict::Pass,
    });
    let rig = rig(&by);
    rig.put("other", b"bytes");
    let fh = rig.create("file");
    rig.write(fh, MAX, b"a");
    rig.node().release(fh);
    drain(&rig);
    assert_eq!(rig.plain("other"), b"bytes");
    let named = rig.node().writeback().refused();
    assert_eq!((named[0].path.as_slice(), named[0].what.as_str()), (&b"file"[..], "its length"));
    by.lift();
    rig.node().writeback().drain(Instant::now() + LIMIT, &mut |_| true).unwrap();
    assert_eq!(std::fs::metadata(rig.backing().join("file")).unwrap().len(), MAX + 1);
    assert!(refused(&rig).is_empty());
}

/// Gives a file attributes that fit one by one, and then a store in which they do not.
fn with_attributes_that_do_not_fit(rig: &Rig, by: &Limited, name: &str) {
    by.lift();
    set_xattr(rig, name, 5000).unwrap();
    *by.0.lock() = Box::new(|operation, bytes, _| match operation {
        Operation::Xattr if bytes > 3000 => Verdict::Fail(libc::ENOSPC),
        _ => Verdict::Pass,
    });
}

#[test]
fn new_file_whose_attribute_does_not_fit_when_drained_then_its_bytes_are_there_and_it_is_named() {
    for bytes in [&b""[..], b"bytes"] {
        let by = small_attributes();
        let rig = rig(&by);
        rig.put("file", bytes);
        with_attributes_that_do_not_fit(&rig, &by, "file");
        assert_eq!(drain(&rig), Remaining::default());
        assert_eq!(rig.plain("file"), bytes);
        assert_eq!(refused(&rig), ["file"]);
        let kept = rig.node().get_xattr(&CONTEXT, rig.ino("file"), b"user.large").unwrap();
        assert!(kept == noise(3, 5000), "it is kept here");
    }
}

#[test]
fn known_file_whose_attribute_does_not_fit_when_drained_then_named_and_not_in_the_way() {
    let by = small_attributes();
    let rig = rig(&by);
    rig.put("file", b"bytes");
    drain(&rig);
    with_attributes_that_do_not_fit(&rig, &by, "file");
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(refused(&rig), ["file"]);
    // And with bytes that are dirty.
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, b"BYTES");
    rig.node().release(fh);
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(rig.plain("file"), b"BYTES");
    assert_eq!(refused(&rig), ["file"]);
}

#[test]
fn attribute_that_failed_for_another_reason_when_the_store_is_well_again_then_it_is_there() {
    let by = Limited::new(|operation, bytes, _| match operation {
        Operation::Xattr if bytes > 0 => Verdict::Fail(libc::EIO),
        _ => Verdict::Pass,
    });
    let rig = rig(&by);
    rig.put("file", b"bytes");
    set_xattr(&rig, "file", 100).unwrap();
    drop(rig.node().writeback().reconcile(rig.ino("file")));
    by.lift();
    rig.drain();
    let plain = std::fs::File::open(rig.backing().join("file")).unwrap();
    let mut value = vec![0; 200];
    let read = rustix::fs::fgetxattr(&plain, "user.large", &mut value);
    match read {
        Ok(read) => assert!(value[..read] == noise(3, 100)),
        // A directory for tests on a file system that has none.
        Err(error) => assert_eq!(error, rustix::io::Errno::OPNOTSUPP),
    }
    assert!(refused(&rig).is_empty());
}

#[test]
fn hard_link_in_a_store_without_when_drained_then_named_and_the_next_is_refused() {
    let by = Limited::new(|operation, _, _| match operation {
        Operation::Link => Verdict::Fail(libc::EPERM),
        _ => Verdict::Pass,
    });
    let rig = rig(&by);
    rig.put("file", &noise(4, 100 * KIB));
    drain(&rig);
    let ino = rig.ino("file");
    rig.node().link(&CONTEXT, ino, Ino::ROOT, b"link").unwrap();
    let fh = rig.open("file", libc::O_RDWR);
    rig.write(fh, 0, b"newer");
    rig.node().release(fh);
    let left = drain(&rig);
    assert_eq!((left.entries, left.refused), (1, 1), "{left:?}");
    assert_eq!(rig.plain("file")[..5], *b"newer", "its bytes do not wait for its name");
    assert_eq!(refused(&rig), ["file"]);
    let again = rig.node().link(&CONTEXT, ino, Ino::ROOT, b"another");
    assert!(
        matches!(again, Err(NodeError::Posix(errno)) if errno.raw_os_error() == libc::EPERM),
        "{again:?}"
    );
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"link").unwrap();
    assert_eq!(drain(&rig), Remaining::default());
    assert!(refused(&rig).is_empty());
}

#[test]
fn file_with_many_names_when_the_store_has_no_more_links_then_a_sync_tries_once_and_names_it() {
    let tries = Arc::new(AtomicU64::new(0));
    let by = Limited::new(|_, _, _| Verdict::Pass);
    let rig = rig(&by);
    rig.put("file", b"bytes");
    let ino = rig.ino("file");
    for name in 0..100 {
        rig.node().link(&CONTEXT, ino, Ino::ROOT, format!("name{name}").as_bytes()).unwrap();
    }
    drain(&rig);
    let counted = tries.clone();
    *by.0.lock() = Box::new(move |operation, _, _| match operation {
        Operation::Link => {
            counted.fetch_add(1, Ordering::Relaxed);
            Verdict::Fail(libc::EMLINK)
        }
        _ => Verdict::Pass,
    });
    rig.node().link(&CONTEXT, ino, Ino::ROOT, b"one more").unwrap();
    let synced = rig
        .node()
        .writeback()
        .sync_subtree(Ino::ROOT, Instant::now() + LIMIT, &mut |_| true)
        .unwrap();
    assert!(tries.load(Ordering::Relaxed) < 10, "{tries:?} tries for one name");
    assert!(!synced.complete && !synced.cut_short && synced.failed == 1, "{synced:?}");
    assert!(synced.failures[0].1.contains("Too many links"), "{synced:?}");
    by.lift();
    let synced = rig
        .node()
        .writeback()
        .sync_subtree(Ino::ROOT, Instant::now() + LIMIT, &mut |_| true)
        .unwrap();
    assert!(synced.complete && synced.failures.is_empty(), "{synced:?}");
    assert_eq!(rig.plain("one more"), b"bytes");
}

#[test]
fn directory_that_can_not_be_moved_when_drained_then_named_and_its_files_are_below() {
    let by = Limited::new(|operation, _, _| match operation {
        Operation::Rename => Verdict::Fail(libc::EXDEV),
        _ => Verdict::Pass,
    });
    let rig = rig(&by);
    let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
    let made = rig
        .node()
        .create_and_open(&CONTEXT, dir, b"inside", NewFile { mode: 0o644, umask: 0 }, libc::O_RDWR)
        .unwrap();
    rig.write(made.1.fh, 0, b"inside");
    rig.node().release(made.1.fh);
    rig.put("beside", b"beside");
    drain(&rig);
    rig.node()
        .rename(&CONTEXT, NameIn::new(Ino::ROOT, b"dir"), NameIn::new(Ino::ROOT, b"moved"), 0)
        .unwrap();
    let fh = rig.node().open(&CONTEXT, made.0.ino, libc::O_RDWR).unwrap().fh;
    rig.write(fh, 0, b"INSIDE");
    rig.node().release(fh);
    let left = drain(&rig);
    assert!(left.refused > 0 && left.refused == left.entries, "{left:?}");
    assert!(refused(&rig).contains(&"moved".to_owned()), "{:?}", refused(&rig));
    assert_eq!(rig.plain("dir/inside"), b"INSIDE", "where its directory stands");
    by.lift();
    rig.drain();
    assert_eq!(rig.plain("moved/inside"), b"INSIDE");
    assert!(refused(&rig).is_empty());
}

#[test]
fn name_that_the_store_forbids_when_drained_then_named_and_the_others_are_there() {
    let by = Limited::new(|operation, _, label| match operation {
        Operation::Commit | Operation::Create if label == Path::new("a:b") => {
            Verdict::Fail(libc::EINVAL)
        }
        _ => Verdict::Pass,
    });
    let rig = rig(&by);
    rig.put("a:b", b"forbidden");
    rig.put("fine", b"fine");
    let left = drain(&rig);
    assert_eq!((left.entries, left.refused), (1, 1), "{left:?}");
    assert_eq!(refused(&rig), ["a:b"]);
    assert_eq!(rig.plain("fine"), b"fine");
    assert_eq!(rig.get("a:b"), b"forbidden", "kept on the tier");
    rig.node()
        .rename(&CONTEXT, NameIn::new(Ino::ROOT, b"a:b"), NameIn::new(Ino::ROOT, b"ab"), 0)
        .unwrap();
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(rig.plain("ab"), b"forbidden");
}

#[test]
fn attributes_of_a_file_when_they_are_more_than_a_mebibyte_together_then_the_next_is_refused() {
    let rig = rig(&Limited::new(|_, _, _| Verdict::Pass));
    rig.put("file", b"bytes");
    let set = |number: usize, len: u64| {
        let (name, value) = (format!("user.number{number}"), noise(3, len));
        rig.node().set_xattr(&CONTEXT, rig.ino("file"), name.as_bytes(), &value, 0, false)
    };
    let refused = (0..2000).find_map(|number| set(number, 1000).err().map(|error| (number, error)));
    let (number, error) = refused.expect("there is an end");
    assert!((1000..1060).contains(&number), "{number}");
    assert!(
        matches!(error, NodeError::Posix(errno) if errno.raw_os_error() == libc::ENOSPC),
        "{error:?}"
    );
    set(0, 900).expect("one in place of another");
    rig.node().remove_xattr(&CONTEXT, rig.ino("file"), b"user.number1").unwrap();
    set(number, 1000).expect("in place of what was removed");
}

/// A rig whose store takes names that differ only in case for the same.
fn folding_rig() -> Rig {
    rig_over(FoldingBacking::new)
}

/// A rig over what is made of a plain store.
fn rig_over<S: BackingStore + 'static>(store: impl FnOnce(Arc<dyn BackingStore>) -> S) -> Rig {
    let dir = new_dir("/dev/shm", "forebay-folding");
    let mut rig = Rig::at(dir, &[16 * MIB], Arc::new(Transparent), |_| {});
    let tier = &rig.config.tiers[0].dir;
    std::fs::create_dir_all(tier).unwrap();
    let owner = forebay_store::Tier::id(&DirTier::open(tier).unwrap()).to_string();
    let below = Arc::new(DirBacking::open(rig.backing(), &owner).unwrap());
    let store = Arc::new(store(below));
    rig.node = Some(Node::start_on(rig.config.clone(), store).unwrap());
    rig
}

#[test]
fn names_that_differ_in_case_when_the_store_takes_them_for_one_then_the_second_waits_and_is_named()
{
    let rig = folding_rig();
    rig.put("README", b"first");
    rig.node().mkdir(&CONTEXT, Ino::ROOT, b"Dir", 0o755, 0).unwrap();
    assert_eq!(drain(&rig), Remaining::default());
    rig.put("readme", b"second");
    rig.put("rEADME", b"");
    rig.put("fine", b"fine");
    rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap();
    rig.node().symlink(&CONTEXT, Ino::ROOT, b"DIR", b"fine").unwrap();
    for _ in 0..2 {
        let left = drain(&rig);
        assert_eq!((left.entries, left.refused), (4, 4), "{left:?}");
    }
    let mut named = refused(&rig);
    named.sort();
    assert_eq!(named, ["DIR", "dir", "rEADME", "readme"]);
    let why = rig.node().writeback().refused();
    let why = &why.iter().find(|refused| refused.path == b"readme").unwrap().error;
    assert!(why.contains("README"), "{why}");
    assert_eq!(rig.node().writeback().conflicts().0, 0, "nobody else has changed anything");
    assert_eq!((rig.get("README"), rig.get("readme")), (b"first".to_vec(), b"second".to_vec()));
    assert_eq!((rig.plain("README"), rig.plain("fine")), (b"first".to_vec(), b"fine".to_vec()));
    for (old, new) in [("readme", "two"), ("rEADME", "three"), ("dir", "dir2"), ("DIR", "link")] {
        let (old, new) =
            (NameIn::new(Ino::ROOT, old.as_bytes()), NameIn::new(Ino::ROOT, new.as_bytes()));
        rig.node().rename(&CONTEXT, old, new, 0).unwrap();
    }
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!((rig.plain("two"), rig.plain("three")), (b"second".to_vec(), b"".to_vec()));
    assert!(refused(&rig).is_empty());
}

#[test]
fn name_that_differs_in_case_when_the_other_is_removed_or_the_file_itself_then_it_takes_its_place()
{
    let rig = folding_rig();
    rig.put("README", b"first");
    assert_eq!(drain(&rig), Remaining::default());
    rig.put("readme", b"second");
    assert_eq!(drain(&rig).refused, 1);
    rig.node().unlink(&CONTEXT, Ino::ROOT, b"README").unwrap();
    let left = drain(&rig);
    let left = if left == Remaining::default() { left } else { drain(&rig) };
    assert_eq!(left, Remaining::default());
    assert_eq!(rig.plain("readme"), b"second");
    // It keeps its old spelling there, if the store has it so.
    rig.node()
        .rename(&CONTEXT, NameIn::new(Ino::ROOT, b"readme"), NameIn::new(Ino::ROOT, b"Readme"), 0)
        .unwrap();
    let left = drain(&rig);
    assert_eq!(left.entries, left.refused, "{left:?}");
    assert_eq!(rig.get("Readme"), b"second");
    assert_eq!(rig.node().writeback().conflicts().0, 0);
    assert_eq!(rig.left_in_backing(), [".forebay/tmp", "readme"]);
}

#[test]
fn names_that_differ_at_the_end_when_the_store_drops_it_then_the_second_waits_and_is_named() {
    for [first, second] in [["ends", "ends."], ["ends.", "ends"], ["ends. .", "Ends."]] {
        for known in [true, false] {
            let rig = rig_over(FoldingBacking::secretly_without_ends);
            rig.put(first, b"first");
            if known {
                assert_eq!(drain(&rig), Remaining::default(), "{first}");
            }
            rig.put(second, b"the second");
            for _ in 0..2 {
                let left = drain(&rig);
                assert_eq!((left.entries, left.refused), (1, 1), "{first} {second}: {left:?}");
            }
            let waiting = refused(&rig);
            assert!(waiting == [second] || !known && waiting == [first], "{waiting:?}");
            assert_eq!(
                rig.node().writeback().conflicts().0,
                0,
                "{first} {second}: nobody else is there"
            );
            let both = (rig.get(first), rig.get(second));
            assert_eq!(both, (b"first".to_vec(), b"the second".to_vec()), "{first} {second}");
            rig.node()
                .rename(
                    &CONTEXT,
                    NameIn::new(Ino::ROOT, second.as_bytes()),
                    NameIn::new(Ino::ROOT, b"other"),
                    0,
                )
                .unwrap();
            let left = drain(&rig);
            let left = if left == Remaining::default() { left } else { drain(&rig) };
            assert_eq!(left, Remaining::default(), "{first} {second}");
            assert_eq!(rig.plain("other"), b"the second");
            assert_eq!(
                (rig.get(first), rig.node().writeback().conflicts().0),
                (b"first".to_vec(), 0)
            );
        }
    }
}

#[test]
fn file_when_asked_for_by_another_spelling_before_a_listing_then_it_is_not_there_and_can_be_made() {
    type Fold = fn(Arc<dyn BackingStore>) -> FoldingBacking;
    let stores: [(Fold, &str, &str); 3] = [
        (FoldingBacking::new, "README", "readme"),
        (FoldingBacking::secretly_without_ends, "ends", "ends."),
        (FoldingBacking::secretly_without_ends, "12", "12. "),
    ];
    for (fold, there, asked) in stores {
        let rig = rig_over(fold);
        let look = |name: &str| rig.node().lookup(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap();
        std::fs::write(rig.backing().join(there), b"first").unwrap();
        // Nothing in the directory is known yet.
        assert!(look(asked).is_none(), "{asked}");
        rig.put(asked, b"the second");
        let left = drain(&rig);
        assert_eq!((left.entries, left.refused), (1, 1), "{asked}: {left:?}");
        assert_eq!(refused(&rig), [asked]);
        assert_eq!((rig.get(there), rig.plain(there)), (b"first".to_vec(), b"first".to_vec()));
        assert_eq!(rig.get(asked), b"the second");
        assert_eq!(rig.node().writeback().conflicts().0, 0, "{asked}: nobody else is there");
        // By its own spelling it is there at once.
        let rig = rig_over(fold);
        std::fs::write(rig.backing().join(there), b"first").unwrap();
        assert_eq!(rig.get(there), b"first");
    }
}

#[test]
fn file_of_others_when_listed_while_another_spelling_is_tried_then_it_stays_there() {
    // The longer one is beyond what a listing waits for the worker.
    for busy in [50, 400].map(Duration::from_millis) {
        let theirs = Arc::new(OnceLock::<PathBuf>::new());
        let tried = Arc::new(AtomicBool::new(false));
        let by = Limited::new({
            let (theirs, tried) = (theirs.clone(), tried.clone());
            move |operation, _, _| {
                if operation == Operation::Commit && !tried.load(Ordering::Acquire) {
                    std::fs::write(theirs.get().unwrap(), b"theirs").unwrap();
                    tried.store(true, Ordering::Release);
                    std::thread::sleep(busy);
                }
                Verdict::Pass
            }
        });
        let rig = rig_over(|below| {
            InterceptedBacking::new(Arc::new(FoldingBacking::new(below)), by.clone())
        });
        theirs.set(rig.backing().join("README")).unwrap();
        rig.put("readme", b"ours");
        std::thread::scope(|scope| {
            scope.spawn(|| drain(&rig));
            wait_until("a worker tries the name", || tried.load(Ordering::Acquire));
            rig.node().writeback().refresh(Path::new(""), &mut |_| true).unwrap();
        });
        assert_eq!(refused(&rig), ["readme"]);
        let begun = Instant::now();
        wait_until("the file of others is seen", || {
            rig.node().lookup(&CONTEXT, Ino::ROOT, b"README").unwrap().is_some()
        });
        // Before it is tried again, which shows it by chance.
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!((rig.get("README"), rig.get("readme")), (b"theirs".to_vec(), b"ours".to_vec()));
    }
}

#[test]
fn file_when_the_store_has_altered_its_name_then_a_later_listing_does_not_show_it_twice() {
    let rig = rig_over(FoldingBacking::secretly_without_ends);
    rig.put("ends.", b"first");
    rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir. ", 0o755, 0).unwrap();
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(rig.left_in_backing(), [".forebay/tmp", "dir", "ends"]);
    for _ in 0..2 {
        let looked = rig.node().writeback().refresh(Path::new(""), &mut |_| true).unwrap();
        assert_eq!((looked.directories, looked.files), (2, 1), "{looked:?}");
    }
    assert_eq!(rig.get("ends."), b"first");
    for name in ["ends", "dir"] {
        let found = rig.node().lookup(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap();
        assert!(found.is_none(), "{name}");
    }
}

#[test]
fn names_when_the_store_drops_their_ends_then_those_are_refused_at_the_call() {
    let rig = rig_over(FoldingBacking::without_ends);
    let (node, root) = (rig.node(), Ino::ROOT);
    rig.put("plain", b"first");
    let invalid = |outcome: Result<(), NodeError>| match outcome {
        Err(NodeError::Posix(error)) => assert_eq!(error.raw_os_error(), libc::EINVAL),
        other => panic!("{other:?}"),
    };
    for name in ["ends.", "ends ", "ends. .", "..."] {
        let name = name.as_bytes();
        let made = node.create_and_open(
            &CONTEXT,
            root,
            name,
            NewFile { mode: 0o644, umask: 0o022 },
            libc::O_RDWR,
        );
        invalid(made.map(drop));
        invalid(node.mkdir(&CONTEXT, root, name, 0o755, 0o022).map(drop));
        invalid(node.symlink(&CONTEXT, root, name, b"plain").map(drop));
        invalid(node.link(&CONTEXT, rig.ino("plain"), root, name).map(drop));
        invalid(
            node.rename(&CONTEXT, NameIn::new(root, b"plain"), NameIn::new(root, name), 0)
                .map(drop),
        );
    }
    rig.put(".dots. in the middle", b"second");
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(rig.plain(".dots. in the middle"), b"second");
    // One that keeps them has them.
    let rig = rig_over(FoldingBacking::new);
    rig.put("ends.", b"third");
    assert_eq!(drain(&rig), Remaining::default());
    assert_eq!(rig.plain("ends."), b"third");
}

#[test]
fn name_whose_file_the_store_does_not_let_go_when_there_is_another_then_no_drain_waits_for_either()
{
    let by = Limited::new(|_, _, _| Verdict::Pass);
    type Change = fn(&Rig);
    let remove: Change = |rig| rig.node().unlink(&CONTEXT, Ino::ROOT, b"a").unwrap();
    let make_again: Change = |rig| {
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"a").unwrap();
        rig.put("a", b"");
    };
    let save: Change = |rig| {
        rig.put("new", b"newer bytes");
        let [from, to] = [b"new", &b"a"[..]].map(|name| NameIn::new(Ino::ROOT, name));
        rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    };
    let tree: Change = |rig| {
        rig.node().unlink(&CONTEXT, rig.ino("d"), b"a").unwrap();
        rig.node().rmdir(&CONTEXT, Ino::ROOT, b"d").unwrap();
        let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"d", 0o755, 0).unwrap().ino;
        rig.node().symlink(&CONTEXT, dir, b"inside", b"anywhere").unwrap();
    };
    let open: Change = |rig| {
        // It stays open, and its bytes within reach.
        rig.open("a", libc::O_RDONLY);
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"a").unwrap();
        rig.put("a", b"newer bytes");
    };
    for (what, change) in [
        ("removed", remove),
        ("made again", make_again),
        ("saved", save),
        ("tree", tree),
        ("open", open),
    ] {
        by.lift();
        let rig = rig(&by);
        rig.put("a", b"bytes");
        let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"d", 0o755, 0).unwrap().ino;
        rig.node().symlink(&CONTEXT, dir, b"a", b"anywhere").unwrap();
        assert_eq!(drain(&rig), Remaining::default());
        *by.0.lock() = Box::new(|operation, _, label| match operation {
            Operation::Remove | Operation::Commit | Operation::Limbo | Operation::Link
                if label == Path::new("a") =>
            {
                Verdict::Fail(libc::EPERM)
            }
            _ => Verdict::Pass,
        });
        change(&rig);
        let begun = Instant::now();
        let left = drain(&rig);
        assert!(begun.elapsed() < Duration::from_secs(2), "{what}: {:?}", begun.elapsed());
        assert!(left.entries > 0 && left.refused == left.entries, "{what}: {left:?}");
        let root = Ino::ROOT;
        let synced =
            rig.node().writeback().sync_subtree(root, begun + LIMIT, &mut |_| true).unwrap();
        assert!(!synced.complete && !synced.cut_short, "{what}: {synced:?}");
        assert!(synced.failures.iter().any(|(_, why)| why.contains("not permitted")), "{synced:?}");
        assert_eq!(rig.plain("a"), b"bytes", "{what}: the store has kept it");
        by.lift();
        rig.node().writeback().drain(Instant::now() + LIMIT, &mut |_| true).unwrap();
        assert_eq!(rig.node().writeback().backlog_len(), u64::from(what == "open"), "{what}");
        let now = std::fs::read(rig.backing().join("a")).ok();
        let wanted = match what {
            "removed" => None,
            "made again" => Some(&b""[..]),
            "tree" => Some(&b"bytes"[..]),
            _ => Some(&b"newer bytes"[..]),
        };
        assert_eq!(now.as_deref(), wanted, "{what}");
        assert!(refused(&rig).is_empty(), "{what}: {:?}", refused(&rig));
    }
}

#[test]
fn directory_when_a_file_in_it_that_the_store_refused_is_removed_then_has_the_time_that_programs_see()
 {
    let by = Limited::new(|operation, _, label| match operation {
        Operation::Commit if label == Path::new("big") => Verdict::Fail(libc::EFBIG),
        _ => Verdict::Pass,
    });
    // Beside it another one may wait for good, and a drain may be asked for or not.
    for (waits, drains) in [(false, true), (true, true), (true, false)] {
        let rig = rig(&by);
        if waits {
            rig.put("big", b"stays");
        }
        let dir = rig.node().mkdir(&CONTEXT, Ino::ROOT, b"dir", 0o755, 0).unwrap().ino;
        let new = NewFile { mode: 0o644, umask: 0o022 };
        let fh = rig.node().create_and_open(&CONTEXT, dir, b"big", new, libc::O_RDWR).unwrap().1.fh;
        rig.write(fh, 0, b"bytes");
        rig.node().release(fh);
        assert_eq!(drain(&rig).refused, 1 + u64::from(waits));
        std::thread::sleep(Duration::from_millis(20));
        rig.node().unlink(&CONTEXT, dir, b"big").unwrap();
        if drains {
            assert_eq!(drain(&rig).refused, u64::from(waits));
        }
        let here = rig.node().getattr(&CONTEXT, dir).unwrap().attr.mtime;
        let below = || {
            let found = std::fs::metadata(rig.backing().join("dir")).unwrap();
            (found.mtime(), found.mtime_nsec())
        };
        let is_same = || below() == (here.sec, i64::from(here.nsec));
        if drains {
            assert!(is_same(), "another waits: {waits}: {here:?} {:?}", below());
        } else {
            wait_until("the directory has its time", is_same);
        }
    }
}

/// The file that has the name there has another one here, and can't be put aside for a while.
#[test]
fn name_that_the_store_does_not_give_free_when_a_file_is_linked_or_moved_there_then_it_follows() {
    for is_moved in [false, true] {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let by = Limited::new(move |operation, _, _| match operation {
            Operation::Limbo if closed.load(Ordering::Acquire) => Verdict::Fail(libc::EACCES),
            _ => Verdict::Pass,
        });
        let rig = rig(&by);
        let files = [("file", b"its bytes".to_vec()), ("old", b"older".to_vec())];
        for (name, bytes) in &files {
            rig.put(name, bytes);
            let second = format!("{name}2");
            rig.node().link(&CONTEXT, rig.ino(name), Ino::ROOT, second.as_bytes()).unwrap();
        }
        assert_eq!(drain(&rig), Remaining::default());
        let file = rig.ino("file");
        rig.node().unlink(&CONTEXT, Ino::ROOT, b"old").unwrap();
        match is_moved {
            true => {
                let [from, to] = [b"file", &b"old"[..]].map(|name| NameIn::new(Ino::ROOT, name));
                rig.node().rename(&CONTEXT, from, to, 0).unwrap();
            }
            false => drop(rig.node().link(&CONTEXT, file, Ino::ROOT, b"old").unwrap()),
        }
        is_closed.store(true, Ordering::Release);
        rig.node().writeback().reconcile(file).unwrap_err();
        is_closed.store(false, Ordering::Release);
        assert_eq!(drain(&rig), Remaining::default());
        assert_eq!(rig.plain("old"), b"its bytes", "moved: {is_moved}");
        assert_eq!(rig.plain("file2"), b"its bytes", "moved: {is_moved}");
        assert_eq!(rig.plain("old2"), b"older", "moved: {is_moved}");
        assert_eq!(rig.backing().join("file").exists(), !is_moved);
        assert_eq!(rig.node().writeback().conflicts().0, 0);
    }
}

/// The system bounds each of them and their names, and whoever works in the store could have the daemon
/// take half a gigabyte into memory and into the index at somebody's `ls -l`.
#[test]
fn attributes_in_the_store_when_they_are_more_than_a_file_may_have_here_then_refused_and_not_kept()
{
    let rig = Rig::small(16 * MIB);
    let value = vec![b'v'; 60_000];
    for name in ["before", "much", "next"] {
        std::fs::write(rig.backing().join(name), name).unwrap();
    }
    for number in 0..20 {
        let (path, name) = (rig.backing().join("much"), format!("user.{number}"));
        rustix::fs::setxattr(path, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    let ask = |name: &str| rig.node().get_xattr(&CONTEXT, rig.ino(name), b"user.3");
    for _ in 0..2 {
        let error = ask("much").unwrap_err();
        assert!(matches!(error, NodeError::Posix(rustix::io::Errno::TOOBIG)), "{error:?}");
    }
    for name in ["before", "next"] {
        assert!(matches!(ask(name), Err(NodeError::Posix(rustix::io::Errno::NODATA))));
    }
    // It can be used, and has them again once they are fewer.
    assert_eq!(rig.get("much"), b"much");
    let path = rig.backing().join("much");
    for number in 10..20 {
        rustix::fs::removexattr(&path, format!("user.{number}")).unwrap();
    }
    assert_eq!(ask("much").unwrap(), value);
}
