//! The engine on a disk that fails, is full, or has damaged what it keeps.

use std::time::SystemTime;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::log::LOG;
use super::*;
use crate::engine::{Compare, Expect};

fn put(engine: &Embedded, key: &[u8]) {
    let key = Key::new(0, key);
    let write = vec![Write::Put(key, b"value".to_vec())];
    let outcome = engine.execute(&MiniTransaction { write, ..MiniTransaction::default() });
    assert_eq!(outcome.expect("a commit"), Outcome::Committed(Vec::new()));
}

/// Makes the parts of the log look old; says how many there are.
fn age(directory: &Path) -> Vec<PathBuf> {
    let parts = std::fs::read_dir(directory).expect("listed").map(|entry| entry.expect("").path());
    let parts: Vec<_> =
        parts.filter(|path| path.extension().is_some_and(|found| found == LOG)).collect();
    for part in &parts {
        let file = std::fs::File::options().write(true).open(part).expect("opened");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("set");
    }
    parts
}

#[test]
fn recent_changes_when_memory_is_released_then_go_to_the_disk_and_are_still_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Embedded::open(&dir.path().join("meta"), &EmbeddedOptions::default());
    let engine = engine.expect("opened");
    let in_memory = || engine.with(|opened| Ok(opened.database.write_buffer_size())).expect("open");
    for index in 0..30_000_u32 {
        put(&engine, format!("a key that is somewhat long {index}").as_bytes());
    }
    assert!(in_memory() > WORTH_WRITING, "{}", in_memory());
    engine.release_memory();
    let until = Instant::now() + Duration::from_secs(60);
    while in_memory() > WORTH_WRITING {
        assert!(Instant::now() < until, "{} bytes stay in memory", in_memory());
        std::thread::sleep(Duration::from_millis(10));
    }
    let read = vec![Key::new(0, b"a key that is somewhat long 17")];
    let found = engine.execute(&MiniTransaction { read, ..MiniTransaction::default() });
    assert_eq!(found.expect("read"), Outcome::Committed(vec![Some(b"value".to_vec())]));
}

fn copy_of(dir: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(dir).expect("listed") {
        let entry = entry.expect("listed");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true => copy_of(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// Runs the test again in a process of its own, which a write past its limit does not end.
fn alone(work: fn()) {
    const ALONE: &str = "FOREBAY_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        work();
        // At once: nothing waits for anything.
        std::process::exit(0);
    }
    let name = std::thread::current().name().expect("the name of the test").to_owned();
    let ended = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().expect("a program"))
        .args(["--exact", &name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{told}");
}

/// Alone, as threads that find damage stop in the hook of panics for good, and the harness would wait
/// for that hook at its end.
#[test]
fn index_that_is_damaged_when_there_is_a_ballast_then_told_as_damaged() {
    alone(damage_each_file);
}

fn damage_each_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    put(&engine, b"one");
    drop(engine);
    assert!(path.with_extension("ballast").exists());
    let mut files = Vec::new();
    files_below(&path, &mut files);
    let (mut refused, mut at) = (0, 0);
    for file in files {
        for byte in [4, 9, 20] {
            // A thread that finds damage keeps the lock: each time another directory.
            at += 1;
            let copy = dir.path().join(format!("copy{at}"));
            copy_of(&path, &copy);
            std::fs::write(copy.with_extension("ballast"), [0; 4096]).expect("written");
            let damaged = copy.join(file.strip_prefix(&path).expect("below"));
            let mut bytes = std::fs::read(&damaged).expect("read");
            let Some(byte) = bytes.get_mut(byte) else { continue };
            *byte ^= 2;
            std::fs::write(&damaged, bytes).expect("written");
            if let Err(error) = Embedded::open(&copy, &EmbeddedOptions::default()) {
                let told = error.to_string();
                assert!(told.contains("fsck --rebuild"), "{damaged:?}: {told}");
                refused += 1;
            }
        }
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn sync_when_it_has_failed_once_then_the_next_one_writes_the_log_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    put(&engine, b"one");
    let parts = age(&path);
    assert!(!parts.is_empty());
    engine.failing_syncs.store(1, Ordering::Relaxed);
    engine.sync().expect("synced in the end");
    for part in &parts {
        let written = part.metadata().expect("there").modified().expect("a time");
        assert!(written.elapsed().expect("past") < Duration::from_secs(600), "{part:?}");
    }
    // As long as it can't be written, no sync is acknowledged.
    put(&engine, b"two");
    engine.failing_syncs.store(4, Ordering::Relaxed);
    for _ in 0..2 {
        engine.sync().expect_err("it fails");
    }
    engine.failing_syncs.store(0, Ordering::Relaxed);
    synced_in_the_end(&engine);
    drop(engine);
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    let read = vec![Key::new(0, b"one"), Key::new(0, b"two")];
    let found = engine.execute(&MiniTransaction { read, ..MiniTransaction::default() });
    let value = || Some(b"value".to_vec());
    assert_eq!(found.expect("read"), Outcome::Committed(vec![value(), value()]));
}

/// The device is well again. It is not asked at once, if it took long to fail.
fn synced_in_the_end(engine: &Embedded) {
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = engine.sync() {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the parts of the log were written since they were made to look old.
fn were_written(parts: &[PathBuf]) -> bool {
    parts.iter().all(|part| {
        let written = part.metadata().expect("there").modified().expect("a time");
        written.elapsed().expect("past") < Duration::from_secs(600)
    })
}

#[test]
fn change_when_it_meets_a_failed_sync_of_the_log_first_then_the_log_is_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    put(&engine, b"one");
    // The database syncs the log before it writes a table. If that fails, all changes do.
    engine.failing_changes.store(1, Ordering::Relaxed);
    engine.failing_syncs.store(1, Ordering::Relaxed);
    put(&engine, b"two");
    assert_eq!(engine.failing_syncs.load(Ordering::Relaxed), 0, "it is not written again");
    let parts = age(&path);
    engine.sync().expect("synced in the end");
    assert!(were_written(&parts), "a page of the log may be lost");
}

#[test]
fn sync_when_another_one_is_failing_then_not_confirmed_before_the_log_is_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    put(&engine, b"one");
    let parts = age(&path);
    engine.failing_takes_ms.store(500, Ordering::Relaxed);
    engine.failing_syncs.store(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| engine.sync().expect("synced in the end"));
        while engine.failing_syncs.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The kernel tells of a failure once, and the other one has heard it.
        engine.sync().expect("synced in the end");
        assert!(were_written(&parts), "a page of the log may be lost");
    });
}

#[test]
fn sync_that_failed_before_the_daemon_was_killed_then_the_next_one_writes_the_log_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let open = || Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    let engine = open();
    put(&engine, b"one");
    engine.failing_syncs.store(2, Ordering::Relaxed);
    engine.sync().expect_err("it fails");
    // As after a kill: nothing is done at its end.
    *engine.opened.write() = None;
    engine.closed.store(true, Ordering::Relaxed);
    drop(engine);
    let parts = age(&path);
    let engine = open();
    engine.sync().expect("the device is well again");
    assert!(were_written(&parts), "a page of the log may be lost");
    drop(engine);
    let parts = age(&path);
    open().sync().expect("synced");
    assert!(!were_written(&parts), "nothing is in doubt any more");
}

fn value_of(engine: &Embedded, key: &[u8]) -> Option<Vec<u8>> {
    let read = MiniTransaction::reading(vec![Key::new(0, key)]);
    match engine.execute(&read).expect("read") {
        Outcome::Committed(mut values) => values.pop().expect("a value"),
        Outcome::Conflict => panic!("nothing is compared"),
    }
}

/// A change that the disk refuses, as it does at a quota, while the database is not opened anew.
fn refused(engine: &Embedded, write: Write) {
    *engine.tried.lock() = Some(Instant::now());
    let limit = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(0), ..limit }).expect("limited");
    let refused = engine.execute(&MiniTransaction { write: vec![write], ..Default::default() });
    setrlimit(Resource::Fsize, limit).expect("not limited any more");
    refused.expect_err("the disk takes nothing");
    *engine.tried.lock() = None;
}

fn refuse_and_go_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let open = || Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    let engine = open();
    put(&engine, b"one");
    refused(&engine, Write::Put(Key::new(0, b"new"), b"value".to_vec()));
    assert_eq!(value_of(&engine, b"new"), None, "it was refused");
    put(&engine, b"two");
    assert_eq!(value_of(&engine, b"new"), None, "it was made after all");
    refused(&engine, Write::Put(Key::new(0, b"one"), b"another".to_vec()));
    engine.sync().expect("there is room again");
    assert_eq!(value_of(&engine, b"one"), Some(b"value".to_vec()), "it was made after all");
    refused(&engine, Write::Delete(Key::new(0, b"one")));
    put(&engine, b"three");
    assert_eq!(value_of(&engine, b"one"), Some(b"value".to_vec()), "it was made after all");
    // Nor do those see it who come after the daemon.
    refused(&engine, Write::Delete(Key::new(0, b"one")));
    engine.close();
    let engine = open();
    assert_eq!(value_of(&engine, b"one"), Some(b"value".to_vec()), "it was made after all");
    refused(&engine, Write::Delete(Key::new(0, b"one")));
    drop(engine);
    let engine = open();
    for key in [&b"one"[..], b"two", b"three"] {
        assert_eq!(value_of(&engine, key), Some(b"value".to_vec()), "{}", key.escape_ascii());
    }
    assert_eq!(value_of(&engine, b"new"), None);
}

#[test]
fn change_when_the_disk_has_refused_it_then_not_made_later() {
    alone(refuse_and_go_on);
}

#[test]
fn table_that_is_damaged_when_it_is_read_then_told_as_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    for index in 0..30_000_u32 {
        put(&engine, format!("a key that is somewhat long {index}").as_bytes());
    }
    engine.release_memory();
    let in_memory = || engine.with(|opened| Ok(opened.database.write_buffer_size())).expect("open");
    let until = Instant::now() + Duration::from_secs(60);
    while in_memory() > WORTH_WRITING {
        assert!(Instant::now() < until, "{} bytes stay in memory", in_memory());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(engine);
    let mut files = Vec::new();
    files_below(&path.join("keyspaces"), &mut files);
    let size = |file: &PathBuf| file.metadata().expect("there").len();
    let table = files.into_iter().max_by_key(size).expect("a table");
    let mut bytes = std::fs::read(&table).expect("read");
    assert!(bytes.len() > 500_000, "{table:?}");
    // Pages of keys and values; what tells where they are is at the end.
    for at in (1000..bytes.len() / 2).step_by(3000) {
        bytes[at] ^= 2;
    }
    std::fs::write(&table, bytes).expect("written");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    let read = MiniTransaction::reading(vec![Key::new(0, b"a key that is somewhat long 1")]);
    let key = Key::new(0, b"a key that is somewhat long 1");
    let change = MiniTransaction {
        compare: vec![Compare { key: key.clone(), expect: Expect::Present }],
        write: vec![Write::Delete(key)],
        ..MiniTransaction::default()
    };
    for told in [
        engine.execute(&read).expect_err("damaged").to_string(),
        engine.execute(&change).expect_err("damaged").to_string(),
        engine.scan(0, b"", None, usize::MAX).expect_err("damaged").to_string(),
        engine.sweep(None, usize::MAX).expect_err("damaged").to_string(),
    ] {
        assert!(told.contains("fsck --rebuild"), "{told}");
    }
}

/// An ext4 on a loop device.
struct Ext4<'p>(&'p Path);

impl Ext4<'_> {
    /// Runs a program; says whether it went well.
    fn ran(program: &str, args: &[&str]) -> bool {
        let done = std::process::Command::new(program).args(args).output();
        done.is_ok_and(|done| done.status.success())
    }
}

impl Drop for Ext4<'_> {
    fn drop(&mut self) {
        Self::ran("umount", &["-l", &self.0.to_string_lossy()]);
    }
}

/// A file system that goes down may confirm a sync that is under way.
#[test]
fn file_system_when_it_has_gone_down_then_no_sync_is_taken_for_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, at) = (dir.path().join("image"), dir.path().join("at"));
    std::fs::File::create(&image).expect("made").set_len(96 << 20).expect("set");
    std::fs::create_dir(&at).expect("made");
    let (image, place) = (image.to_string_lossy(), at.to_string_lossy());
    let made = Ext4::ran("mkfs.ext4", &["-q", "-F", &image])
        && Ext4::ran("mount", &["-o", "loop", &image, &place]);
    if !made {
        eprintln!("skipped: no loop device");
        return;
    }
    let _mounted = Ext4(&at);
    is_up(&at).expect("it is up");
    if !Ext4::ran("xfs_io", &["-x", "-c", "shutdown", &place]) {
        eprintln!("skipped: no xfs_io");
        return;
    }
    is_up(&at).expect_err("it has gone down");
}

/// What moves it away under a daemon would else leave that with an empty namespace.
#[test]
fn index_that_is_moved_away_or_replaced_when_it_is_opened_anew_then_none_is_made() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("meta");
        let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
        put(&engine, b"one");
        let moved = dir.path().join("moved");
        std::fs::rename(&path, &moved).expect("moved");
        let other = replaced.then(|| {
            drop(Embedded::open(&path, &EmbeddedOptions::default()).expect("another"));
        });
        let said = engine.reopen().expect_err("an index is made anew").to_string();
        assert!(said.contains("moved away"), "{said}");
        assert_eq!(path.exists(), other.is_some());
        // Once it is back, it goes on.
        std::fs::remove_dir_all(&path).ok();
        std::fs::rename(&moved, &path).expect("moved back");
        engine.reopen().expect("opened");
        let read = vec![Key::new(0, b"one")];
        let found = engine.execute(&MiniTransaction { read, ..MiniTransaction::default() });
        assert_eq!(found.expect("read"), Outcome::Committed(vec![Some(b"value".to_vec())]));
    }
}

/// To open it anew takes all who use the namespace, for as long as its log is read and written.
#[test]
fn syncs_when_the_device_fails_them_all_then_the_index_is_opened_anew_now_and_then_only() {
    const MANY: u32 = 10_000;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("meta");
    let engine = Embedded::open(&path, &EmbeddedOptions::default()).expect("opened");
    put(&engine, b"one");
    engine.failing_syncs.store(MANY, Ordering::Relaxed);
    for _ in 0..50 {
        engine.sync().expect_err("it fails");
    }
    let failed = MANY - engine.failing_syncs.load(Ordering::Relaxed);
    assert!(failed < 10, "it was tried {failed} times");
    engine.failing_syncs.store(0, Ordering::Relaxed);
    synced_in_the_end(&engine);
}

#[test]
fn store_when_its_maker_died_or_had_no_room_then_is_made_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let (at, begun) = (dir.path().join("meta"), dir.path().join("meta.new"));
    drop(Embedded::open(&at, &EmbeddedOptions::default()).expect("made"));
    assert!(!begun.exists());
    for lacks in ["version", "keyspaces/1/current", "keyspaces"] {
        // As far as somebody had come with another one.
        copy_of(&at, &begun);
        let path = begun.join(lacks);
        match path.is_dir() {
            true => std::fs::remove_dir_all(path).expect("removed"),
            false => std::fs::write(path, b"").expect("emptied"),
        }
        std::fs::remove_dir_all(&at).expect("removed");
        // Somebody may have made the directory.
        std::fs::create_dir(&at).expect("made");
        let engine = Embedded::open(&at, &EmbeddedOptions::default()).expect("made anew");
        put(&engine, b"key");
        engine.sync().expect("synced");
    }
    std::fs::write(at.join("version"), b"").expect("emptied");
    let damaged = Embedded::open(&at, &EmbeddedOptions::default());
    assert!(damaged.is_err(), "one that was made is not made anew");
}

#[test]
fn store_when_what_names_its_tables_is_gone_then_damaged_and_its_tables_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("meta");
    let engine = Embedded::open(&at, &EmbeddedOptions::default()).expect("made");
    put(&engine, b"key");
    drop(engine);
    let tables = at.join("keyspaces/1");
    std::fs::remove_file(tables.join("current")).expect("removed");
    for _ in 0..2 {
        let opened = Embedded::open(&at, &EmbeddedOptions::default());
        assert!(matches!(opened, Err(EngineError::Damaged { .. })));
        assert!(std::fs::read_dir(&tables).expect("there").next().is_some());
    }
}
