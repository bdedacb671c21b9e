//! fusewire against an oracle: the same file system served by fuser 0.18, by fusewire that reads the
//! device, and by fusewire on io_uring; the same random operations on all mounts, and every answer
//! compared, error numbers included. Skipped, with the reason printed, where nothing can be mounted;
//! without io_uring where the kernel does not offer it.
#![allow(dead_code, reason = "the example that shares these modules uses more of them")]

#[path = "../examples/transport/by_fuser.rs"]
mod by_fuser;
#[path = "../examples/transport/by_fusewire.rs"]
mod by_fusewire;
#[path = "../examples/transport/mirror.rs"]
mod mirror;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use by_fuser::ByFuser;
use by_fusewire::ByFusewire;
use fusewire::{Mount, Options, Running, Session, Transport};
use mirror::Mirror;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps,
    XattrFlags,
};

const OPERATIONS: u64 = 4000;
/// Nobody waits longer for this test, whatever happens.
const LIMIT: Duration = Duration::from_secs(120);
/// The kernel asks the server each time: all that the two differ in shows.
const VALID: Duration = Duration::ZERO;

/// Vigna's xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % bound
    }

    fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// The oracle's name.
const FUSER: &str = "fuser";
/// All back ends: each has its mount in a directory of this name.
const BACK_ENDS: [(&str, Transport); 2] =
    [("device", Transport::Classic), ("rings", Transport::Uring)];

/// All mounts, and what they show.
struct Lab {
    served: Vec<(&'static str, Running)>,
    fuser: Option<fuser::BackgroundSession>,
    home: tempfile::TempDir,
}

impl Lab {
    /// `None`, with the reason printed, where nothing can be mounted.
    fn new() -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        // In memory what is a hole depends on nothing but what was written.
        let memory = Path::new("/dev/shm");
        let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let home = tempfile::Builder::new().prefix("fusewire-oracle-").tempdir_in(above);
        let mut lab = Self { served: Vec::new(), fuser: None, home: home.expect("a directory") };
        for (name, transport) in BACK_ENDS {
            lab.serve(name, transport);
        }
        if lab.served.is_empty() {
            return None;
        }
        let mut config = fuser::Config::default();
        config.mount_options = vec![
            fuser::MountOption::FSName("oracle".into()),
            fuser::MountOption::DefaultPermissions,
        ];
        config.n_threads = Some(2);
        let (mirror, point) = lab.places(FUSER);
        match fuser::spawn_mount(ByFuser::new(mirror, VALID, false), &point, &config) {
            Ok(session) => lab.fuser = Some(session),
            Err(error) => {
                println!("skipped: fuser can't mount: {error}");
                return None;
            }
        }
        Some(lab)
    }

    /// What a back end shows, and where.
    fn places(&self, name: &str) -> (Mirror, PathBuf) {
        let (shown, point) = (self.path(&format!("of-{name}")), self.path(name));
        for path in [&shown, &point] {
            fs::create_dir(path).expect("made");
        }
        (Mirror::new(&shown).expect("opened"), point)
    }

    /// Serves by fusewire, or prints why not.
    fn serve(&mut self, name: &'static str, transport: Transport) {
        let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        if transport == Transport::Uring && !switch.is_ok_and(|text| text.starts_with('Y')) {
            return println!("skipped on io_uring: it is not enabled in this kernel");
        }
        let (mirror, point) = self.places(name);
        let options = Options { transport, ..Options::default() };
        let mount = match Mount::new(&point, &options) {
            Ok(mount) => mount,
            Err(error) => return println!("skipped: {error}"),
        };
        let handler = Arc::new(ByFusewire::new(mirror, VALID, false));
        match Session::new(mount, &options, handler) {
            Ok(session) => {
                let running = session.spawn().expect("served");
                assert_eq!(running.is_on_rings(), transport == Transport::Uring);
                self.served.push((name, running));
            }
            // Switched off between the look and the mount, or no room for rings.
            Err(error) if transport == Transport::Uring => println!("skipped on io_uring: {error}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.served.iter().map(|(name, _)| *name).chain([FUSER])
    }

    fn detach(&self) {
        for name in self.names() {
            let _ = rustix::mount::unmount(self.path(name), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Also after a failure, and while it is in use.
        self.detach();
    }
}

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "a name that is longer than others"];

/// One operation on the files below a root, and what it answers, as text.
type Operation = Box<dyn Fn(&Path) -> String>;

fn said<T: std::fmt::Debug>(answer: io::Result<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("errno {:?}", error.raw_os_error()),
    }
}

fn sys<T: std::fmt::Debug>(answer: rustix::io::Result<T>) -> String {
    said(answer.map_err(io::Error::from))
}

/// What can be the same on two file systems: no times but those that were set, no inode numbers.
fn attributes(path: &Path) -> io::Result<(u32, u64, u64, u32, u32, u64)> {
    let known = fs::symlink_metadata(path)?;
    // What a directory's size is, is its file system's own affair.
    let size = if known.is_dir() { 0 } else { known.len() };
    Ok((known.mode(), known.nlink(), size, known.uid(), known.gid(), known.rdev()))
}

fn place(random: &mut Random) -> PathBuf {
    let mut place = PathBuf::from(random.choose(&NAMES));
    for _ in 0..random.below(3) {
        place.push(random.choose(&NAMES));
    }
    place
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o640))?))
}

fn operation(random: &mut Random) -> (String, Operation) {
    match random.below(7) {
        0 | 1 => on_names(random),
        2 => on_attributes(random),
        3 => on_xattrs(random),
        4 | 5 => on_bytes(random),
        _ => on_extents(random),
    }
}

fn on_names(random: &mut Random) -> (String, Operation) {
    let (one, two) = (place(random), place(random));
    let what = format!("{} {}", one.display(), two.display());
    let (name, operation): (&str, Operation) = match random.below(10) {
        0 | 1 => ("mkdir", Box::new(move |root| said(fs::create_dir(root.join(&one))))),
        2 => ("rmdir", Box::new(move |root| said(fs::remove_dir(root.join(&one))))),
        3 => ("unlink", Box::new(move |root| said(fs::remove_file(root.join(&one))))),
        4 => ("link", Box::new(move |root| said(fs::hard_link(root.join(&one), root.join(&two))))),
        5 => (
            "symlink",
            Box::new(move |root| said(std::os::unix::fs::symlink(&two, root.join(&one)))),
        ),
        6 => (
            "mknod",
            Box::new(move |root| {
                let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o604));
                sys(rustix::fs::mknodat(CWD, root.join(&one), kind, mode, 0))
            }),
        ),
        7 => ("readlink", Box::new(move |root| said(fs::read_link(root.join(&one))))),
        _ => {
            let flags = random.choose(&[
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
            ]);
            let rename: Operation = Box::new(move |root| {
                sys(rustix::fs::renameat_with(CWD, root.join(&one), CWD, root.join(&two), flags))
            });
            ("rename", rename)
        }
    };
    (format!("{name} {what}"), operation)
}

fn on_attributes(random: &mut Random) -> (String, Operation) {
    let one = place(random);
    let number = random.below(20_000) as u64;
    let what = format!("{} {number}", one.display());
    let (name, operation): (&str, Operation) = match random.below(5) {
        0 => ("stat", Box::new(move |root| said(attributes(&root.join(&one))))),
        1 => (
            "chmod",
            Box::new(move |root| {
                let mode = Mode::from_raw_mode((number & 0o777) as u32 | 0o600);
                sys(rustix::fs::chmod(root.join(&one), mode))
            }),
        ),
        2 => (
            "truncate",
            Box::new(move |root| {
                said(open(&root.join(&one), OFlags::WRONLY).and_then(|file| file.set_len(number)))
            }),
        ),
        3 => (
            "utimensat",
            Box::new(move |root| {
                let at = number.cast_signed() - 10_000;
                // Before 1970 fuser counts nanoseconds backwards: whole seconds only.
                let time = Timespec { tv_sec: at, tv_nsec: at.max(0) % 1000 };
                let times = Timestamps { last_access: time, last_modification: time };
                let path = root.join(&one);
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let set = sys(rustix::fs::utimensat(CWD, &path, &times, flags));
                let found = fs::symlink_metadata(&path);
                format!("{set} {}", said(found.map(|known| (known.mtime(), known.mtime_nsec()))))
            }),
        ),
        _ => ("readdir", Box::new(move |root| said(names(&root.join(&one))))),
    };
    (format!("{name} {what}"), operation)
}

fn on_xattrs(random: &mut Random) -> (String, Operation) {
    let one = place(random);
    let number = random.below(1000);
    let key = random.choose(&["user.one", "user.two", "user.", "unknown.one", "trusted.oracle"]);
    let what = format!("{} {number} {key}", one.display());
    let (name, operation): (&str, Operation) = match random.below(5) {
        0 | 1 => (
            "setxattr",
            Box::new(move |root| {
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let value = vec![b'v'; number % 70];
                sys(rustix::fs::lsetxattr(root.join(&one), key, &value, flags[number % 3]))
            }),
        ),
        2 => (
            "getxattr",
            Box::new(move |root| {
                let mut value = vec![0; number % 80];
                let length = rustix::fs::lgetxattr(root.join(&one), key, &mut value[..]);
                format!("{} {value:?}", sys(length))
            }),
        ),
        3 => (
            "listxattr",
            Box::new(move |root| {
                let mut names = vec![0; number % 300];
                let length = rustix::fs::llistxattr(root.join(&one), &mut names[..]);
                format!("{} {}", sys(length), String::from_utf8_lossy(&names))
            }),
        ),
        _ => (
            "removexattr",
            Box::new(move |root| sys(rustix::fs::lremovexattr(root.join(&one), key))),
        ),
    };
    (format!("{name} {what}"), operation)
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = fs::read_dir(path)?
        .map(|entry| {
            let entry = entry?;
            Ok(format!("{:?} {:?}", entry.file_name(), entry.file_type()?))
        })
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// How a file is opened.
fn flags(random: &mut Random) -> OFlags {
    random.choose(&[
        OFlags::RDWR,
        OFlags::RDWR | OFlags::CREATE,
        OFlags::RDWR | OFlags::CREATE,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        OFlags::RDWR | OFlags::TRUNC,
        OFlags::RDONLY,
        OFlags::RDWR | OFlags::NOFOLLOW,
        OFlags::RDONLY | OFlags::DIRECTORY,
    ])
}

/// What `work` says of the file, or why it can't be opened.
fn with(path: &Path, flags: OFlags, work: impl FnOnce(&File) -> String) -> String {
    match open(path, flags) {
        Ok(file) => work(&file),
        Err(error) => said::<()>(Err(error)),
    }
}

fn on_bytes(random: &mut Random) -> (String, Operation) {
    let (one, flags) = (place(random), flags(random));
    let (offset, length) = (random.below(30_000) as u64, random.below(20_000));
    let what = format!("{} {offset} {length} {flags:?}", one.display());
    let (name, operation): (&str, Operation) = if random.below(5) < 3 {
        let write: Operation = Box::new(move |root| {
            with(&root.join(&one), flags, |file| {
                let bytes: Vec<u8> = (0..length).map(|i| (i as u64 + offset) as u8).collect();
                format!("{} {}", said(file.write_at(&bytes, offset)), said(file.sync_data()))
            })
        });
        ("write", write)
    } else {
        let read: Operation = Box::new(move |root| {
            with(&root.join(&one), flags, |file| {
                let mut bytes = vec![0; length];
                format!("{} {bytes:?}", said(file.read_at(&mut bytes, offset)))
            })
        });
        ("read", read)
    };
    (format!("{name} {what}"), operation)
}

fn on_extents(random: &mut Random) -> (String, Operation) {
    let (one, two, flags) = (place(random), place(random), flags(random));
    let (offset, length) = (random.below(30_000) as u64, random.below(20_000));
    let what = format!("{} {} {offset} {length} {flags:?}", one.display(), two.display());
    let (name, operation): (&str, Operation) = match random.below(3) {
        0 => (
            "fallocate",
            Box::new(move |root| {
                let modes = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ];
                let mode = modes[length % modes.len()];
                with(&root.join(&one), flags, |file| {
                    sys(rustix::fs::fallocate(file, mode, offset, length as u64))
                })
            }),
        ),
        1 => (
            "seek",
            Box::new(move |root| {
                let places = [SeekFrom::Data(offset), SeekFrom::Hole(offset), SeekFrom::End(0)];
                with(&root.join(&one), flags, |file| {
                    places.map(|place| sys(rustix::fs::seek(file, place))).join(" ")
                })
            }),
        ),
        _ => (
            "copy",
            Box::new(move |root| {
                with(&root.join(&one), flags, |file| {
                    with(&root.join(&two), OFlags::RDWR | OFlags::CREATE, |target| {
                        let (mut from, mut to) = (0, offset);
                        let (from, to) = (Some(&mut from), Some(&mut to));
                        sys(rustix::fs::copy_file_range(file, from, target, to, length))
                    })
                })
            }),
        ),
    };
    (format!("{name} {what}"), operation)
}

/// All that is below a directory, as text.
fn tree(path: &Path, shown: &Path, text: &mut String) {
    let mut entries: Vec<_> = fs::read_dir(path).expect("listed").flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, shown) = (entry.path(), shown.join(entry.file_name()));
        let kind = entry.file_type().expect("known");
        writeln!(text, "{} {}", shown.display(), said(attributes(&path))).expect("in memory");
        if kind.is_dir() {
            tree(&path, &shown, text);
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).expect("read");
            writeln!(text, "{:?}", target.as_os_str().as_bytes()).expect("in memory");
        } else if kind.is_file() {
            writeln!(text, "{:?}", fs::read(&path)).expect("in memory");
        }
    }
}

fn compare(lab: &Lab) {
    let oracle = lab.path(FUSER);
    let others: Vec<_> = lab.served.iter().map(|(name, _)| (*name, lab.path(name))).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut succeeded = 0;
    for round in 0..OPERATIONS {
        let (name, operation) = operation(&mut random);
        let expected = operation(&oracle);
        for (back_end, root) in &others {
            assert_eq!(operation(root), expected, "operation {round} by {back_end}: {name}");
        }
        succeeded += u64::from(!expected.starts_with("errno"));
    }
    println!("{OPERATIONS} operations by {:?}, {succeeded} without an error", {
        lab.names().collect::<Vec<_>>()
    });
    assert!(succeeded > OPERATIONS / 10, "most operations must mean something: {succeeded}");
    let text_of = |name: &str| {
        let mut text = String::new();
        tree(&lab.path(name), Path::new(""), &mut text);
        text
    };
    let expected = text_of(FUSER);
    assert!(!expected.is_empty());
    for name in lab.names() {
        assert!(text_of(name) == expected, "the tree of {name} differs");
        assert!(text_of(&format!("of-{name}")) == expected, "the tree behind {name} differs");
    }
}

#[test]
fn answers_of_all_back_ends_when_fuser_serves_the_same_then_are_the_same() {
    let Some(lab) = Lab::new() else { return };
    let lab = Arc::new(lab);
    let (sender, receiver) = channel::<()>();
    let for_thread = Arc::clone(&lab);
    let comparison = std::thread::spawn(move || {
        let _sender = sender;
        compare(&for_thread);
    });
    // The end of the thread, however it ends, closes the channel.
    if receiver.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        lab.detach();
        panic!("the comparison hangs");
    }
    if let Err(panic) = comparison.join() {
        std::panic::resume_unwind(panic);
    }
}
