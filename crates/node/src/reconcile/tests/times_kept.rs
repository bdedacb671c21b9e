//! Changes by others that keep length and modification time: only the change time tells of them.

use super::*;

/// Others put these bytes into a file in place, and its modification time back.
fn change_in_place(bench: &Bench, path: &str, bytes: &[u8]) {
    let path = bench.root.join(path);
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    let before = file.metadata().expect("it is there");
    assert_eq!(before.len(), bytes.len() as u64);
    // The next change time is another one.
    std::thread::sleep(Duration::from_millis(20));
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("written");
    file.set_modified(before.modified().expect("a time")).expect("set");
    assert_ne!(before.ctime_nsec(), fs::metadata(&path).expect("it is there").ctime_nsec());
}

/// Whether the next open drops the copy of a file.
fn is_stale(bench: &Bench, ino: Ino) -> bool {
    bench.node.doubt_version(ino);
    let record = bench.node.meta.get(ino).expect("it is there");
    bench.node.revalidate(&Context::DAEMON, record).expect("it is there");
    bench.contents.stale.lock().remove(&ino.0)
}

fn set_mode(bench: &Bench, ino: Ino, perm: u32) {
    let change = |record: &mut Record| {
        record.attr.perm = perm;
        record.backing.attrs_differ = true;
        Queue::Yes
    };
    bench.node.meta.update(ino, Some(convert::now()), change).expect("it is there");
}

#[test]
fn file_changed_in_place_with_its_times_kept_when_looked_at_then_the_copy_is_stale() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    bench.drained();
    assert!(!is_stale(&bench, ino));
    change_in_place(&bench, "file", b"two");
    assert!(is_stale(&bench, ino));
    assert!(!is_stale(&bench, ino), "what is there now is known");
}

#[test]
fn our_own_changes_of_names_and_attributes_when_looked_at_then_the_copy_stays() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    let one = bench.write("one", b"1");
    let two = bench.write("two", b"2");
    bench.mkdir("dir");
    bench.drained();
    let steps: [&dyn Fn(); 5] = [
        &|| set_mode(&bench, ino, 0o600),
        &|| bench.rename("file", "dir/moved", false),
        &|| {
            let dir = bench.dir("dir");
            bench.node.meta.link(ino, dir, b"other", convert::now()).expect("linked");
        },
        &|| bench.unlink("dir/moved"),
        &|| bench.rename("one", "two", true),
    ];
    for (number, step) in steps.iter().enumerate() {
        std::thread::sleep(Duration::from_millis(20));
        step();
        bench.drained();
        for file in [ino, one, two] {
            assert!(!is_stale(&bench, file), "after step {number}");
        }
    }
    change_in_place(&bench, "dir/other", b"two");
    assert!(is_stale(&bench, ino), "and others are seen after them");
}

#[test]
fn file_changed_in_place_before_a_change_of_ours_when_looked_at_then_the_copy_is_stale() {
    let bench = Bench::new();
    let steps: [&dyn Fn(&str, Ino); 4] = [
        &|_, ino| set_mode(&bench, ino, 0o600),
        &|name, _| bench.rename(name, "moved", false),
        &|_, ino| {
            bench.node.meta.link(ino, Ino::ROOT, b"second", convert::now()).expect("linked");
        },
        &|name, _| {
            let other = bench.find(Ino::ROOT, "other").expect("known");
            bench.rename(name, "other", true);
            assert_ne!(bench.find(Ino::ROOT, "other").expect("known").ino, other.ino);
        },
    ];
    bench.write("other", b"x");
    for (number, step) in steps.iter().enumerate() {
        let name = format!("file-{number}");
        let ino = bench.write(&name, b"one");
        bench.drained();
        change_in_place(&bench, &name, b"two");
        step(&name, ino);
        bench.drained();
        assert!(is_stale(&bench, ino), "after step {number}");
    }
}

#[test]
fn file_changed_in_place_with_its_times_kept_when_written_here_then_both_are_kept() {
    let bench = Bench::new();
    let ino = bench.write("file", b"one");
    bench.drained();
    change_in_place(&bench, "file", b"two");
    bench.fill(ino, b"ours");
    bench.drained();
    assert_eq!(bench.read("file"), b"two");
    let names = bench.names("");
    let ours = names.iter().find(|name| name.contains(".forebay-conflict-")).expect("kept");
    assert_eq!(bench.read(ours), b"ours");
}
