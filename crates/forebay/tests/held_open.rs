//! Files and directories that a program has open while their names go: on a real mount, with the kernel
//! reading and writing by itself and without.

mod site;

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use site::*;

const OLD: &[u8] = b"what the backing store has had for long";

/// What others do below to a file that a program has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Remove,
    Rename,
    Replace,
    Change,
    RemoveDirectory,
    RenameDirectory,
}

const DEEDS: [Deed; 6] = [
    Deed::Remove,
    Deed::Rename,
    Deed::Replace,
    Deed::Change,
    Deed::RemoveDirectory,
    Deed::RenameDirectory,
];

impl Deed {
    fn is_done_to(self, dir: &Path) {
        let file = dir.join("file");
        match self {
            Deed::Remove => fs::remove_file(file).unwrap(),
            Deed::Rename => fs::rename(file, dir.join("elsewhere")).unwrap(),
            Deed::Replace => {
                fs::write(dir.join("theirs"), THEIRS).unwrap();
                fs::rename(dir.join("theirs"), file).unwrap();
            }
            Deed::Change => fs::write(file, THEIRS).unwrap(),
            Deed::RemoveDirectory => fs::remove_dir_all(dir).unwrap(),
            Deed::RenameDirectory => fs::rename(dir, dir.with_file_name("moved")).unwrap(),
        }
    }

    /// Whether there are bytes of others, which are kept as well.
    fn leaves_theirs(self) -> bool {
        matches!(self, Deed::Replace | Deed::Change)
    }
}

const THEIRS: &[u8] = b"theirs";

/// The files below a directory that hold these bytes.
fn with_bytes(dir: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(with_bytes(&entry.path(), bytes)),
            false if fs::read(entry.path()).unwrap() == bytes => found.push(entry.path()),
            false => {}
        }
    }
    found
}

/// A file was written and synced, is still open, and others do something to it below.
fn written_and_synced(passthrough: &str, deed: Deed, resident: bool) {
    let what = format!("{deed:?}, passthrough {passthrough}, resident before: {resident}");
    let site = Site::new();
    fs::create_dir(site.path("backing/dir")).unwrap();
    fs::write(site.path("backing/dir/file"), OLD).unwrap();
    site.mount(&["--passthrough", passthrough, "--attr-timeout", "0s", "--writeback", "200ms"]);
    let path = site.path("mnt/dir/file");
    if resident {
        assert_eq!(fs::read(&path).unwrap(), OLD);
    }
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    // Longer than the old one: a mixture would show.
    let ours = b"what was acknowledged ".repeat(500);
    file.write_all(&ours).unwrap();
    file.sync_all().unwrap();
    deed.is_done_to(&site.path("backing/dir"));
    // Whoever looks makes the daemon see it.
    let looks = || {
        let _may_be_gone = fs::metadata(&path);
        let _may_be_gone = fs::read_dir(site.path("mnt/dir")).map(Iterator::count);
        let _may_be_gone = fs::read_dir(site.path("mnt")).map(Iterator::count);
    };
    let read = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(bytes == ours, "{what}: {} bytes were read", bytes.len());
    };
    read(&mut file);
    looks();
    read(&mut file);
    // The worker has its turn as well.
    std::thread::sleep(Duration::from_millis(400));
    looks();
    read(&mut file);
    drop(file);
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert_eq!(code, 0, "{what}: {text}");
    let found = with_bytes(&site.path("backing"), &ours);
    assert!(!found.is_empty(), "{what}: what was acknowledged is nowhere: {:?}", {
        site.left_in_backing()
    });
    if deed.leaves_theirs() {
        let theirs = with_bytes(&site.path("backing"), THEIRS);
        assert!(!theirs.is_empty(), "{what}: what others wrote is nowhere");
        let named =
            found.iter().chain(&theirs).any(|path| path.to_string_lossy().contains("conflict"));
        assert!(named, "{what}: two versions without a conflict: {found:?} {theirs:?}");
    }
}

#[test]
fn file_written_and_synced_on_a_mount_when_others_do_anything_to_it_below_then_its_bytes_are_kept()
{
    if !can_mount() {
        return;
    }
    std::thread::scope(|scope| {
        for passthrough in ["off", "read", "readwrite"] {
            scope.spawn(move || {
                for (deed, resident) in
                    DEEDS.into_iter().flat_map(|deed| [(deed, false), (deed, true)])
                {
                    written_and_synced(passthrough, deed, resident);
                }
            });
        }
    });
}

/// Runs a program with arguments: its exit code and what it prints.
type Command<'a> = dyn Fn(&str, &[&str]) -> (i32, String) + 'a;

/// What a program sees of a directory that was removed while it is in it, in words that are the same
/// wherever it lies.
fn seen_in_a_removed_directory(
    dir: &OwnedFd,
    removed: &Path,
    command: &Command<'_>,
) -> Vec<String> {
    let mut seen = Vec::new();
    let mut say = |what: &str, outcome: String| seen.push(format!("{what}: {outcome}"));
    fn told<T>(outcome: rustix::io::Result<T>, tell: impl FnOnce(T) -> String) -> String {
        outcome.map_or_else(|errno| format!("{errno:?}"), tell)
    }
    let stat = |fd: &OwnedFd| {
        told(rustix::fs::fstat(fd), |found| {
            format!("mode {:o}, {} names, owner {}", found.st_mode, found.st_nlink, found.st_uid)
        })
    };
    let entries = |fd: &OwnedFd| {
        told(rustix::fs::Dir::read_from(fd), |dir| {
            let names: Result<Vec<_>, _> =
                dir.map(|entry| entry.map(|e| e.file_name().to_owned())).collect();
            format!("{names:?}")
        })
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let again = |say: &mut dyn FnMut(&str, String)| {
        let opened = rustix::fs::openat(dir, ".", flags, Mode::empty());
        match opened {
            Ok(opened) => {
                say("stat of one opened anew", stat(&opened));
                say("entries of one opened anew", entries(&opened));
            }
            Err(errno) => say("open of the directory itself", format!("{errno:?}")),
        }
    };
    say("stat", stat(dir));
    say("entries", entries(dir));
    again(&mut say);
    say("chmod", told(rustix::fs::fchmod(dir, Mode::from_raw_mode(0o711)), |()| "done".into()));
    say("stat after chmod", stat(dir));
    again(&mut say);
    let owner = Some(rustix::fs::Uid::from_raw(1234));
    say("chown", told(rustix::fs::fchown(dir, owner, None), |()| "done".into()));
    say("stat after chown", stat(dir));
    let at = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: at, last_modification: at };
    say("times", told(rustix::fs::futimens(dir, &times), |()| "done".into()));
    say("time", told(rustix::fs::fstat(dir), |found| format!("{}", found.st_mtime)));
    say(
        "by name",
        told(rustix::fs::statat(dir, "file", rustix::fs::AtFlags::empty()), |_| "there".into()),
    );
    say(
        "itself by name",
        told(rustix::fs::statat(dir, ".", rustix::fs::AtFlags::empty()), |found| {
            format!("{} names", found.st_nlink)
        }),
    );
    let create = OFlags::CREATE | OFlags::WRONLY;
    say("new file", told(rustix::fs::openat(dir, "new", create, Mode::RUSR), |_| "made".into()));
    say("new directory", told(rustix::fs::mkdirat(dir, "new", Mode::RWXU), |()| "made".into()));
    say("new link", told(rustix::fs::symlinkat("x", dir, "new"), |()| "made".into()));
    say("sync", told(rustix::fs::fsync(dir), |()| "done".into()));
    say(
        "access",
        told(
            rustix::fs::accessat(
                dir,
                ".",
                rustix::fs::Access::READ_OK,
                rustix::fs::AtFlags::empty(),
            ),
            |()| "granted".into(),
        ),
    );
    seen.extend(seen_by_programs(dir, removed, command));
    seen
}

/// The same of programs that begin in it.
fn seen_by_programs(dir: &OwnedFd, removed: &Path, command: &Command<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    let place = format!("/proc/{}/fd/{}", std::process::id(), dir.as_raw_fd());
    for program in
        ["ls -a .", "ls -ld . | cut -c 1-12", "stat -c %F:%h .", "test -d . && echo a directory"]
    {
        let (code, text) = command("sh", &["-c", &format!("cd {place} && {program}")]);
        let text = text.replace(&*removed.to_string_lossy(), "");
        seen.push(format!("{program}: {code} {text}"));
    }
    seen
}

/// How a directory goes.
fn removed_directory(root: &Path, name: &str, gone: &dyn Fn(&Path)) -> (OwnedFd, PathBuf) {
    let path = root.join(name);
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(path.join("file"), "x").unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
    gone(&path);
    (dir, path)
}

#[test]
fn directory_that_is_removed_on_the_mount_while_it_is_open_then_is_as_a_native_one() {
    if !can_mount() {
        return;
    }
    let removed = |path: &Path| fs::remove_dir_all(path).unwrap();
    let replaced = |path: &Path| {
        fs::remove_file(path.join("file")).unwrap();
        let other = path.with_file_name("other");
        fs::create_dir(&other).unwrap();
        fs::rename(other, path).unwrap();
    };
    for passthrough in ["off", "readwrite"] {
        let site = Site::new();
        let native = site.path("native");
        fs::create_dir(&native).unwrap();
        site.mount(&["--passthrough", passthrough, "--attr-timeout", "0s", "--writeback", "200ms"]);
        let command = |program: &str, args: &[&str]| outcome(site.command(program).args(args));
        // It was written back or not when it goes, and the record of it is gone or not when it is used.
        let settle = || {
            let (code, text) = site.run(&["sync", "--quiet", &site.text("mnt")]);
            assert_eq!(code, 0, "{text}");
        };
        for (how, gone) in [("removed", &removed as &dyn Fn(&Path)), ("replaced", &replaced)] {
            for (known, forgotten) in [(false, false), (true, false), (false, true), (true, true)] {
                let name = format!("{how}-{known}-{forgotten}");
                let seen = |root: &Path, is_mount: bool| {
                    let goes = |path: &Path| {
                        if known && is_mount {
                            settle();
                        }
                        gone(path);
                        if forgotten && is_mount {
                            settle();
                        }
                    };
                    let (dir, path) = removed_directory(root, &name, &goes);
                    seen_in_a_removed_directory(&dir, &path, &command)
                };
                let (wanted, found) = (seen(&native, false), seen(&site.path("mnt"), true));
                assert_eq!(found, wanted, "{name}, passthrough {passthrough}");
            }
        }
        site.umount();
        assert!(site.left_in_backing().iter().all(|name| name.starts_with("replaced-")));
    }
}

/// A shared mapping of a file, which nothing shows in the list of open files.
struct Mapping(*mut std::ffi::c_void);

impl Mapping {
    const LEN: usize = 4096;

    fn of(path: &Path) -> Self {
        Self::of_part(path, 0)
    }

    fn of_part(path: &Path, at: u64) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = File::options().read(true).write(true).open(path).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, which nothing else has.
        Mapping(unsafe {
            mmap(std::ptr::null_mut(), Self::LEN, prot, MapFlags::SHARED, file, at).unwrap()
        })
    }

    fn fill(&self, byte: u8) {
        // SAFETY: it is this long, and its file as well.
        unsafe { std::ptr::write_bytes(self.0.cast::<u8>(), byte, Self::LEN) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has anything of it any more.
        unsafe { rustix::mm::munmap(self.0, Self::LEN).unwrap() };
    }
}

#[test]
fn umount_when_what_was_in_use_can_or_can_not_be_written_back_afterwards_then_its_code_says_so() {
    if !can_mount() {
        return;
    }
    use rustix::fs::{IFlags, ioctl_setflags};
    use_own_mounts();
    let set_flags = |path: &Path, flags| ioctl_setflags(File::open(path).unwrap(), flags).unwrap();
    for refused in [false, true] {
        let site = Site::new();
        let dir = site.path("backing/dir");
        fs::create_dir(&dir).unwrap();
        let below = dir.join("file");
        fs::write(&below, [1; Mapping::LEN]).unwrap();
        // The kernel knows that it is in use.
        site.mount(&["--passthrough", "off"]);
        let mapping = Mapping::of(&site.path("mnt/dir/file"));
        mapping.fill(2);
        if refused {
            set_flags(&dir, IFlags::IMMUTABLE);
        }
        let umount = std::thread::scope(|scope| {
            let umount = scope.spawn(|| site.run(&["umount", &site.text("mnt")]));
            std::thread::sleep(Duration::from_secs(1));
            assert!(
                !umount.is_finished(),
                "it ended though a file was mapped: {:?}",
                umount.join()
            );
            drop(mapping);
            umount.join().unwrap()
        });
        let (code, text) = umount;
        if refused {
            set_flags(&dir, IFlags::empty());
        }
        assert!(!site.is_mounted(), "{text}");
        let expected = if refused { (4, 1) } else { (0, 2) };
        assert_eq!((code, fs::read(&below).unwrap()[0]), expected, "{text}");
        assert_eq!(text.contains("could not be written back"), refused, "{text}");
        // The next mount has it, and brings it there.
        site.mount(&[]);
        assert_eq!(fs::read(site.path("mnt/dir/file")).unwrap(), [2; Mapping::LEN]);
        site.umount();
        assert_eq!(fs::read(&below).unwrap(), [2; Mapping::LEN]);
    }
}

#[test]
fn bytes_stored_through_a_mapping_when_data_is_sought_then_they_are_no_hole() {
    use rustix::fs::{SeekFrom, seek};
    if !can_mount() {
        return;
    }
    const AT: u64 = 128 * Mapping::LEN as u64;
    for more in [&[][..], &["--passthrough", "off"], &["--durability", "backing"]] {
        let site = Site::new();
        site.mount(more);
        let path = site.path("mnt/file");
        let file = File::create_new(&path).unwrap();
        file.set_len(256 * Mapping::LEN as u64).unwrap();
        // As long as nothing can be stored unseen, holes are holes.
        (&file).write_all(b"begin").unwrap();
        let seen = File::open(&path).unwrap();
        let hole = seek(&seen, SeekFrom::Hole(0)).unwrap();
        assert!(hole < AT, "{more:?}: {hole}");
        let mapping = Mapping::of_part(&path, AT);
        mapping.fill(7);
        // Nothing has told anybody of it yet.
        let data = seek(&seen, SeekFrom::Data(hole)).unwrap();
        assert!(data <= AT, "{more:?}: {data}");
        let copy = site.path("home/copy");
        let (code, text) = outcome(site.command("cp").args([&path, &copy]));
        assert_eq!(code, 0, "{text}");
        let copied = fs::read(&copy).unwrap();
        assert!(copied == fs::read(&path).unwrap(), "{more:?}: the copy differs");
        assert_eq!(copied[AT as usize..][..Mapping::LEN], [7; Mapping::LEN], "{more:?}");
        drop((mapping, file, seen));
        // When nobody has it open any more, which the kernel tells in its own time, it has its holes again.
        let has_holes = || {
            let again = File::open(&path).unwrap();
            seek(&again, SeekFrom::Hole(AT)).unwrap() < 256 * Mapping::LEN as u64
        };
        assert!(wait_for(Duration::from_secs(10), has_holes), "{more:?}");
        site.umount();
    }
}

/// A large file is open, the beginning of it was read, and others put a small one in its place, or take it
/// away. What of the file is read then: all of it, or an error. The name shows what is there.
fn held_while_others_replace_it(passthrough: &str, timeout: &str, deed: Deed, by_upgrade: bool) {
    let what = format!("{deed:?}, passthrough {passthrough}, {timeout}, upgrade: {by_upgrade}");
    let site = Site::new();
    fs::create_dir(site.path("backing/dir")).unwrap();
    let old = b"what was opened ".repeat(768 << 10);
    fs::write(site.path("backing/dir/file"), &old).unwrap();
    site.mount(&["--passthrough", passthrough, "--attr-timeout", timeout]);
    let path = site.path("mnt/dir/file");
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut buffer = vec![0; 256 << 10];
    file.read_exact_at(&mut buffer, 0).unwrap();
    deed.is_done_to(&site.path("backing/dir"));
    if timeout != "0s" {
        // Nothing else looks for as long as this.
        std::thread::sleep(Duration::from_millis(1200));
    }
    let _may_be_gone = fs::metadata(&path);
    let _may_be_gone = fs::read_dir(site.path("mnt/dir")).map(Iterator::count);
    if by_upgrade {
        let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
        assert_eq!(code, 0, "{what}: {text}");
    }
    let found = fs::read(&path);
    match deed.leaves_theirs() {
        true => assert!(found.unwrap() == THEIRS, "{what}"),
        false => assert!(found.is_err(), "{what}"),
    }
    let is_stale = |error: std::io::Error| error.raw_os_error() == Some(libc::ESTALE);
    for at in (0..old.len()).step_by(buffer.len()) {
        match file.read_exact_at(&mut buffer, at as u64) {
            Ok(()) => assert!(buffer == old[at..][..buffer.len()], "{what}: at {at}"),
            Err(error) => assert!(by_upgrade && is_stale(error), "{what}: at {at}"),
        }
    }
    assert_eq!(file.metadata().unwrap().len(), old.len() as u64, "{what}");
    assert!(file.write_at(b"into theirs", 0).is_err_and(is_stale), "{what}");
    drop(file);
    site.umount();
    let found = fs::read(site.path("backing/dir/file")).ok();
    assert_eq!(found.as_deref(), deed.leaves_theirs().then_some(THEIRS), "{what}");
    assert!(!site.left_in_backing().iter().any(|name| name.contains("conflict")), "{what}");
}

#[test]
fn open_file_when_others_put_another_in_its_place_below_then_it_is_none_of_theirs() {
    if !can_mount() {
        return;
    }
    std::thread::scope(|scope| {
        for passthrough in ["off", "readwrite"] {
            scope.spawn(move || {
                for deed in [Deed::Replace, Deed::Remove, Deed::Rename] {
                    for (timeout, by_upgrade) in [("0s", false), ("1s", false), ("1s", true)] {
                        held_while_others_replace_it(passthrough, timeout, deed, by_upgrade);
                    }
                }
            });
        }
    });
}
