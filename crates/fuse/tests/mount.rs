//! A small real mount, with passthrough and without. Skipped, with the reason printed, where there
//! is no `/dev/fuse`.

mod lab;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_fuse::MountOptions;
use forebay_node::{Context, Ino, Node, NodeConfig, Passthrough};
use forebay_store::DirBacking;
use forebay_store::decorators::{InterceptedBacking, Interceptor, Operation, Stuck, Verdict};
use forebay_testing::wait_until;
use rustix::fs::XattrFlags;

use lab::{Lab, names};

impl Lab {
    fn new(passthrough: Passthrough) -> Option<Self> {
        let adapt = |config: &mut NodeConfig| config.passthrough = passthrough;
        Self::start(adapt, Node::start)
    }

    /// A node whose backing store hangs when told to.
    fn with_stuck_backing(limit: Duration) -> Option<(Self, Arc<Stuck>)> {
        Self::with_stuck_backing_of(limit, |_| {})
    }

    fn with_stuck_backing_of(
        limit: Duration,
        adapt: impl FnOnce(&mut NodeConfig),
    ) -> Option<(Self, Arc<Stuck>)> {
        let stuck = Arc::new(Stuck::default());
        let interceptor = stuck.clone();
        let lab = Self::start(
            |config| {
                config.backing_timeout = limit;
                adapt(config);
            },
            |config| {
                let backing = Arc::new(DirBacking::open(&config.backing, "test")?);
                Node::start_on(config, Arc::new(InterceptedBacking::new(backing, interceptor)))
            },
        )?;
        Some((lab, stuck))
    }

    fn shell(&self, script: &str) -> String {
        let shell = Command::new("timeout")
            .args(["20", "sh", "-ec", script])
            .current_dir(self.path(""))
            .output()
            .expect("a shell");
        let errors = String::from_utf8_lossy(&shell.stderr);
        assert!(shell.status.success(), "{script}: {errors}");
        String::from_utf8(shell.stdout).expect("text")
    }
}

/// Runs a test with and without passthrough, each with a limit of time.
fn in_both_modes(test: fn(&Lab)) {
    for passthrough in [Passthrough::Off, Passthrough::Read] {
        let (done, wait) = mpsc::channel();
        let Some(lab) = Lab::new(passthrough) else { return };
        let mnt = lab.path("");
        let thread = std::thread::spawn(move || {
            test(&lab);
            drop(lab);
            let _ = done.send(());
        });
        if let Err(mpsc::RecvTimeoutError::Timeout) = wait.recv_timeout(Duration::from_secs(40)) {
            let _ = Command::new("fusermount3").arg("-uzq").arg(&mnt).status();
            panic!("{passthrough:?}: hangs");
        }
        if let Err(panic) = thread.join() {
            eprintln!("with passthrough {passthrough:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn contents_when_written_then_read_as_written() {
    in_both_modes(|lab| {
        let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        fs::write(lab.path("a"), &content).expect("written");
        assert_eq!(fs::read(lab.path("a")).expect("read"), content);
        let mut file = OpenOptions::new().read(true).write(true).open(lab.path("a")).expect("open");
        file.write_all_at(b"patch", 1000).expect("patched");
        file.set_len(2000).expect("cut");
        assert_eq!(file.metadata().expect("stat").len(), 2000);
        file.seek(SeekFrom::End(0)).expect("sought");
        file.write_all(b"tail").expect("appended");
        file.sync_all().expect("synced");
        drop(file);
        let mut expected = content[..2000].to_vec();
        expected[1000..1005].copy_from_slice(b"patch");
        expected.extend_from_slice(b"tail");
        assert_eq!(fs::read(lab.path("a")).expect("read"), expected);
        assert_eq!(fs::metadata(lab.path("a")).expect("stat").len(), 2004);
        let mut appended = OpenOptions::new().append(true).open(lab.path("a")).expect("open");
        appended.write_all(b"more").expect("appended");
        drop(appended);
        assert!(fs::read(lab.path("a")).expect("read").ends_with(b"tailmore"));
        File::create(lab.path("a")).expect("truncated");
        assert_eq!(fs::read(lab.path("a")).expect("read"), b"");
    });
}

#[test]
fn names_when_made_moved_and_removed_then_as_posix_says() {
    in_both_modes(|lab| {
        fs::create_dir(lab.path("d")).expect("mkdir");
        fs::write(lab.path("f"), "x").expect("written");
        assert_eq!(errno(fs::create_dir(lab.path("f"))), Some(libc::EEXIST));
        assert_eq!(errno(fs::remove_dir(lab.path("f"))), Some(libc::ENOTDIR));
        fs::rename(lab.path("f"), lab.path("d/g")).expect("renamed");
        assert_eq!(errno(fs::metadata(lab.path("f"))), Some(libc::ENOENT));
        fs::hard_link(lab.path("d/g"), lab.path("d/h")).expect("linked");
        assert_eq!(fs::metadata(lab.path("d/h")).expect("stat").nlink(), 2);
        symlink("d/g", lab.path("s")).expect("symlink");
        assert_eq!(fs::read_link(lab.path("s")).expect("readlink"), Path::new("d/g"));
        assert_eq!(fs::read(lab.path("s")).expect("through the link"), b"x");
        assert_eq!(names(&lab.path("d")), ["g", "h"]);
        assert_eq!(names(&lab.path("")), ["d", "s"]);
        assert_eq!(errno(fs::remove_dir(lab.path("d"))), Some(libc::ENOTEMPTY));
        assert_eq!(errno(fs::create_dir(lab.path(".forebay"))), Some(libc::EPERM));
        assert_eq!(errno(File::create(lab.path(&"n".repeat(256)))), Some(libc::ENAMETOOLONG));
        fs::create_dir(lab.path("e")).expect("mkdir");
        assert_eq!(errno(fs::rename(lab.path("e"), lab.path("d"))), Some(libc::ENOTEMPTY));
        fs::remove_file(lab.path("d/g")).expect("removed");
        assert_eq!(fs::metadata(lab.path("d/h")).expect("stat").nlink(), 1);
        lab.shell("rm -r d e s; mkfifo p; test -p p; rm p; test -z \"$(ls -A)\"");
    });
}

#[test]
fn removed_when_still_in_use_then_usable_until_the_end() {
    in_both_modes(|lab| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let mut file = options.open(lab.path("f")).expect("open");
        fs::remove_file(lab.path("f")).expect("removed");
        file.write_all(b"still here").expect("written");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        file.rewind().expect("rewound");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "still here");
        fs::create_dir(lab.path("d")).expect("mkdir");
        let dir = File::open(lab.path("d")).expect("open");
        fs::remove_dir(lab.path("d")).expect("removed");
        assert_eq!(dir.metadata().expect("fstat").nlink(), 0);
        let mut unnamed = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(lab.path(""))
            .expect("a file without a name");
        unnamed.write_all(b"x").expect("written");
        assert!(names(&lab.path("")).is_empty());
    });
}

#[test]
fn attributes_when_set_then_shown() {
    in_both_modes(|lab| {
        lab.shell("umask 027; touch f; mkdir d; test $(stat -c %a f):$(stat -c %a d) = 640:750");
        fs::set_permissions(lab.path("f"), Permissions::from_mode(0o604)).expect("chmod");
        assert_eq!(fs::metadata(lab.path("f")).expect("stat").mode() & 0o7777, 0o604);
        let when = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        let file = File::options().write(true).open(lab.path("f")).expect("open");
        file.set_times(fs::FileTimes::new().set_modified(when).set_accessed(when)).expect("set");
        drop(file);
        let stat = fs::metadata(lab.path("f")).expect("stat");
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_000_000_000, 123_456_789));
        assert_eq!(stat.accessed().expect("a time"), when);
        if !rustix::process::geteuid().is_root() {
            return;
        }
        lab.shell("chmod 6755 f; chown 1:2 f; test \"$(stat -c %a:%u:%g f)\" = 755:1:2");
        // A set-group-id directory hands on its group, and the bit to directories.
        lab.shell("chgrp 7 d; chmod 2775 d; umask 022; mkdir d/e; touch d/f");
        lab.shell("test \"$(stat -c %g:%a d/e)\" = 7:2755; test \"$(stat -c %g:%a d/f)\" = 7:644");
    });
}

#[test]
fn access_lists_when_set_then_follow_the_mode_and_are_inherited() {
    in_both_modes(|lab| {
        if Command::new("setfacl").arg("--version").output().is_err() {
            eprintln!("skipped: setfacl is not installed");
            return;
        }
        lab.shell("touch f; chmod 640 f; setfacl -m u:1234:rwx f; test $(stat -c %a f) = 670");
        lab.shell("chmod 600 f; getfacl -n f | grep -q '^user:1234:rwx.*effective:---'");
        lab.shell("getfacl -n f | grep -q '^mask::---'");
        lab.shell("setfacl -b f; if getfattr -n system.posix_acl_access f; then exit 1; fi");
        lab.shell("mkdir d; setfacl -d -m u:1234:rwx,g::rx,o::- d");
        lab.shell("umask 077; mkdir d/e; touch d/f; test $(stat -c %a d/f) = 660");
        lab.shell("getfacl -n d/e | grep -q '^default:user:1234:rwx'");
        lab.shell("getfacl -n d/f | grep -q '^user:1234:rwx'");
    });
}

#[test]
fn xattrs_when_set_then_found_listed_and_removed() {
    in_both_modes(|lab| {
        File::create(lab.path("f")).expect("made");
        let path = lab.path("f");
        let set = |name: &str, value: &[u8], flags| {
            rustix::fs::setxattr(&path, name, value, flags).map_err(rustix::io::Errno::raw_os_error)
        };
        set("user.a", b"12345", XattrFlags::CREATE).expect("set");
        assert_eq!(set("user.a", b"x", XattrFlags::CREATE), Err(libc::EEXIST));
        assert_eq!(set("user.b", b"x", XattrFlags::REPLACE), Err(libc::ENODATA));
        assert_eq!(set("user.forebay.x", b"x", XattrFlags::empty()), Err(libc::EPERM));
        set("user.empty", b"", XattrFlags::empty()).expect("set");
        set("user.large", &[7; 65_536], XattrFlags::empty()).expect("set");
        let get = |name: &str, room: usize| {
            let mut value = vec![0; room];
            let len = rustix::fs::getxattr(&path, name, &mut value[..]);
            len.map_err(rustix::io::Errno::raw_os_error).map(|len| value[..len].to_vec())
        };
        assert_eq!(get("user.a", 100), Ok(b"12345".to_vec()));
        assert_eq!(get("user.a", 3), Err(libc::ERANGE));
        assert_eq!(get("user.large", 65_536).map(|value| value.len()), Ok(65_536));
        assert_eq!(get("user.none", 9), Err(libc::ENODATA));
        rustix::fs::removexattr(&path, "user.a").expect("removed");
        assert_eq!(get("user.a", 100), Err(libc::ENODATA));
        assert!(rustix::fs::removexattr(&path, "user.a").is_err());
        let mut list = [0; 100];
        let len = rustix::fs::listxattr(&path, &mut list[..]).expect("listed");
        let mut listed: Vec<_> = list[..len].split(|&byte| byte == 0).collect();
        listed.sort_unstable();
        assert_eq!(listed, [&b""[..], b"user.empty", b"user.large"]);
    });
}

/// Requests by operation since the last call that the kernel waited for, or sent behind a close.
fn requests(lab: &Lab, before: &mut Vec<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
    use forebay_node::metrics::Op;
    let operations = [
        ("lookup", Op::Lookup),
        ("getattr", Op::Getattr),
        ("create", Op::Create),
        ("open", Op::Open),
        ("read", Op::Read),
        ("flush", Op::Flush),
        ("release", Op::Release),
        ("rename", Op::Rename),
        ("remove", Op::Remove),
        ("xattr", Op::Xattr),
    ];
    let count = |op| lab.node.metrics().op_seconds.of(op).count();
    // The kernel does not wait for what follows a close.
    wait_until("what was opened is closed", || {
        count(Op::Release) == count(Op::Open) + count(Op::Create)
    });
    let now: Vec<_> = operations.map(|(name, op)| (name, count(op))).to_vec();
    let since = now.iter().zip(before.iter()).map(|((name, now), (_, then))| (*name, now - then));
    let since = since.filter(|(_, count)| *count > 0).collect();
    *before = now;
    since
}

/// The kernel's share: before it looks into a directory that has changed, it asks for its
/// attributes, as it has to know who may. Everything else here is the operation itself.
#[test]
fn names_when_used_then_cost_no_request_that_could_be_spared() {
    // Longer than the test may take, on whatever machine.
    let kept = Duration::from_secs(3600);
    let adapt = |config: &mut NodeConfig| {
        config.passthrough = Passthrough::Read;
        (config.attr_timeout, config.entry_timeout) = (kept, kept);
    };
    let Some(lab) = Lab::start(adapt, Node::start) else { return };
    // Else the root is listed in the background, and the kernel told of what was found meanwhile.
    assert_eq!(fs::read_dir(lab.path("")).expect("listed").count(), 0);
    fs::create_dir(lab.path("d")).expect("mkdir");
    let path = |number: usize| lab.path("d").join(format!("f{number}"));
    let mut before = Vec::new();
    requests(&lab, &mut before);
    for number in 0..10 {
        File::create_new(path(number)).expect("created");
    }
    let once = |names: &[&'static str]| names.iter().map(|name| (*name, 10)).collect::<Vec<_>>();
    let made = requests(&lab, &mut before);
    assert_eq!(made, once(&["lookup", "getattr", "create", "release"]));
    for number in 0..10 {
        fs::write(path(number), [7; 100]).expect("written");
    }
    requests(&lab, &mut before);
    for number in 0..10 {
        let mut bytes = [0; 200];
        let file = File::open(path(number)).expect("opened");
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 100);
    }
    let read = requests(&lab, &mut before);
    assert!(read.iter().all(|(name, _)| ["open", "release", "read"].contains(name)), "{read:?}");
    assert!(read.contains(&("open", 10)) && read.contains(&("release", 10)), "{read:?}");
    for number in 0..10 {
        fs::rename(path(number), path(number + 100)).expect("renamed");
    }
    let renamed = requests(&lab, &mut before);
    let allowed = |names: &[&str], seen: &[(&str, u64)]| {
        seen.iter().all(|(name, count)| names.contains(name) && *count <= 10)
    };
    assert!(allowed(&["lookup", "getattr", "rename"], &renamed), "{renamed:?}");
    for number in 0..10 {
        fs::remove_file(path(number + 100)).expect("removed");
    }
    let removed = requests(&lab, &mut before);
    assert!(allowed(&["getattr", "remove"], &removed), "{removed:?}");
}

#[test]
fn directories_when_large_then_listed_whole() {
    in_both_modes(|lab| {
        fs::create_dir(lab.path("d")).expect("mkdir");
        let mut expected: Vec<String> = (0..3000).map(|i| format!("file-{i}")).collect();
        for name in &expected {
            File::create(lab.path("d").join(name)).expect("made");
        }
        expected.sort();
        assert_eq!(names(&lab.path("d")), expected);
        assert_eq!(lab.shell("ls -l d | wc -l").trim(), "3001", "with attributes");
        lab.shell("rm -r d");
    });
}

#[test]
fn statfs_shows_the_backing_store() {
    in_both_modes(|lab| {
        let ours = rustix::fs::statvfs(lab.path("")).expect("statvfs");
        let theirs = rustix::fs::statvfs(lab.home.path().join("backing")).expect("statvfs");
        assert_eq!((ours.f_blocks, ours.f_frsize), (theirs.f_blocks, theirs.f_frsize));
        assert_eq!(ours.f_namemax, 255);
    });
}

#[test]
fn renameat2_flags_as_the_manual_says() {
    in_both_modes(|lab| {
        fs::write(lab.path("a"), "a").expect("written");
        fs::write(lab.path("b"), "b").expect("written");
        let path = |name| {
            let path = lab.path(name).into_os_string().into_encoded_bytes();
            CString::new(path).expect("no zero byte")
        };
        let rename = |flags| {
            let (from, to) = (path("a"), path("b"));
            // SAFETY: both paths are zero-terminated and live throughout the call.
            let done = unsafe {
                libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
            };
            if done == 0 { None } else { std::io::Error::last_os_error().raw_os_error() }
        };
        assert_eq!(rename(libc::RENAME_NOREPLACE), Some(libc::EEXIST));
        assert_eq!(rename(libc::RENAME_WHITEOUT), Some(libc::EINVAL));
        assert_eq!(rename(libc::RENAME_EXCHANGE), None);
        assert_eq!(fs::read(lab.path("a")).expect("read"), b"b");
        assert_eq!(fs::read(lab.path("b")).expect("read"), b"a");
        assert_eq!(rename(0), None);
        assert_eq!(names(&lab.path("")), ["b"]);
    });
}

const STATFS: u32 = 17;

#[test]
fn backing_when_it_hangs_then_requests_fail_in_time_and_the_rest_goes_on() {
    let Some((lab, stuck)) = Lab::with_stuck_backing(Duration::from_secs(1)) else { return };
    stuck.hang(&[Operation::Usage]);
    let root = lab.path("");
    let begin = Instant::now();
    let asker = std::thread::spawn(move || rustix::fs::statvfs(root));
    wait_until("the request waits", || stuck.waiting() > 0);
    fs::write(lab.path("f"), "others are served").expect("written");
    let mounted = lab.mounted.as_ref().expect("mounted");
    // What was just answered, and what the kernel sends by itself, is listed for a moment.
    let waiting = || mounted.stuck(Duration::ZERO);
    wait_until("only it is listed", || matches!(&waiting()[..], [only] if only.opcode == STATFS));
    let answer = asker.join().expect("answered");
    assert_eq!(answer.err(), Some(rustix::io::Errno::IO));
    let elapsed = begin.elapsed();
    assert!(elapsed >= Duration::from_secs(1), "{elapsed:?}");
    assert!(mounted.stuck(Duration::from_secs(1))[0].given_up);
    stuck.release();
    wait_until("the thread has finished", || mounted.stuck(Duration::ZERO).is_empty());
    assert!(rustix::fs::statvfs(lab.path("")).is_ok());
}

/// A request that runs into the time limit, and one that comes after it.
struct Late {
    what: &'static str,
    /// Which operations of the store hang.
    hang: &'static [Operation],
    late: fn(&Path) -> std::io::Result<()>,
    /// Tried while the late one still hangs, and until it is acknowledged.
    newer: fn(&Path) -> std::io::Result<()>,
    /// What the file has in the end, at its begin and in length.
    wanted: (&'static [u8], usize),
}

const LENGTH: usize = 3_000_000;

fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all_at(bytes, offset)
}

fn late_requests() -> Vec<Late> {
    const ALL: &[Operation] = &[];
    const LOOKS: &[Operation] = &[Operation::Stat, Operation::List];
    vec![
        Late {
            what: "write",
            hang: ALL,
            late: |path| write_at(path, 100, b"the late one"),
            newer: |path| write_at(path, 0, &[b'n'; 100_000]),
            wanted: (&[b'n'; 100_000], LENGTH),
        },
        Late {
            what: "write, and the file is emptied and written anew",
            hang: ALL,
            late: |path| write_at(path, 100, b"the late one"),
            newer: |path| fs::write(path, [b'n'; 5000]),
            wanted: (&[b'n'; 5000], 5000),
        },
        Late {
            what: "truncation",
            hang: ALL,
            late: |path| {
                OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(50))
            },
            newer: |path| write_at(path, 0, &[b'n'; 1000]),
            wanted: (&[b'n'; 1000], LENGTH),
        },
        Late {
            what: "truncation by name",
            hang: LOOKS,
            late: |path| {
                let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte");
                // SAFETY: the path is zero-terminated and lives throughout the call.
                match unsafe { libc::truncate(path.as_ptr(), 0) } {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            },
            newer: |path| write_at(path, 0, &[b'n'; 1000]),
            wanted: (&[b'n'; 1000], LENGTH),
        },
        Late {
            what: "removal",
            hang: LOOKS,
            late: |path| fs::remove_file(path),
            newer: |path| write_at(path, 0, &[b'n'; 1000]),
            wanted: (&[b'n'; 1000], LENGTH),
        },
        Late {
            what: "removal of what is replaced since",
            hang: LOOKS,
            late: |path| fs::remove_file(path),
            newer: |path| {
                let new = path.with_file_name("new");
                fs::write(&new, [b'n'; 1000])?;
                fs::rename(new, path)
            },
            wanted: (&[b'n'; 1000], 1000),
        },
    ]
}

#[test]
fn request_answered_at_its_time_limit_when_the_store_goes_on_then_what_came_later_stays() {
    for case in late_requests() {
        let limit = Duration::from_secs(1);
        let Some((lab, stuck)) = Lab::with_stuck_backing_of(limit, |config| {
            // Names are looked at below each time.
            (config.attr_timeout, config.entry_timeout) = (Duration::ZERO, Duration::ZERO);
            config.fetch_on_open_bytes = 0;
        }) else {
            return;
        };
        let (what, path) = (case.what, lab.path("file"));
        fs::write(lab.home.path().join("backing/file"), vec![b'o'; LENGTH]).expect("written");
        assert_eq!(fs::metadata(&path).expect("stat").len(), LENGTH as u64);
        // What was just looked at counts as known for a moment.
        std::thread::sleep(Duration::from_millis(300));
        stuck.hang(case.hang);
        let begin = Instant::now();
        let late = {
            let path = path.clone();
            std::thread::spawn(move || (case.late)(&path))
        };
        wait_until("it hangs", || stuck.waiting() > 0);
        let answer = late.join().expect("answered");
        assert_eq!(errno(answer), Some(libc::EIO), "{what}");
        assert!(begin.elapsed() >= limit, "{what}: {:?}", begin.elapsed());
        let newer = {
            let path = path.clone();
            std::thread::spawn(move || {
                wait_until("the newer one is acknowledged", || (case.newer)(&path).is_ok());
            })
        };
        std::thread::sleep(Duration::from_millis(50));
        stuck.release();
        newer.join().expect("acknowledged");
        let mounted = lab.mounted.as_ref().expect("mounted");
        wait_until("the late one has ended", || mounted.stuck(Duration::ZERO).is_empty());
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (begin, len) = case.wanted;
        assert_eq!(found.len(), len, "{what}");
        assert!(found.starts_with(begin), "{what}: it landed over a newer one");
    }
}

#[test]
fn client_when_killed_while_the_backing_hangs_then_goes_at_once() {
    let Some((lab, stuck)) = Lab::with_stuck_backing(Duration::from_secs(30)) else { return };
    stuck.hang(&[Operation::Usage]);
    let mut client = Command::new("stat").arg("-f").arg(lab.path("")).spawn().expect("a client");
    wait_until("the request waits", || stuck.waiting() > 0);
    // The default action of SIGTERM: the client is to end.
    let pid = rustix::process::Pid::from_child(&client);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    wait_until("the client has ended", || client.try_wait().expect("waited").is_some());
    assert_eq!(stuck.waiting(), 1, "the thread is left to finish");
    stuck.release();
}

#[test]
fn client_when_it_handles_a_signal_then_is_not_interrupted() {
    let Some((lab, stuck)) = Lab::with_stuck_backing(Duration::from_secs(30)) else { return };
    stuck.hang(&[Operation::Usage]);
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: the handler does nothing; nobody else in this process uses SIGURG.
    unsafe { libc::signal(libc::SIGURG, ignore as *const () as libc::sighandler_t) };
    let root = lab.path("");
    let (send, receive) = mpsc::channel();
    let asker = std::thread::spawn(move || {
        // SAFETY: no arguments, no memory.
        send.send(unsafe { libc::pthread_self() }).expect("somebody listens");
        rustix::fs::statvfs(root)
    });
    let thread = receive.recv().expect("the thread runs");
    wait_until("the request waits", || stuck.waiting() > 0);
    // SAFETY: the thread is not joined yet.
    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGURG) }, 0);
    std::thread::sleep(Duration::from_millis(600));
    assert!(!asker.is_finished(), "answered EINTR");
    stuck.release();
    assert!(asker.join().expect("answered").is_ok());
}

#[test]
fn files_when_replaced_while_they_are_read_then_each_read_sees_one_version() {
    in_both_modes(|lab| {
        let version = |i: u8| vec![b'a' + i % 26; 5000];
        fs::write(lab.path("t"), version(0)).expect("written");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !done.load(Ordering::Relaxed) {
                    let seen = fs::read(lab.path("t")).expect("always there");
                    assert_eq!(seen.len(), 5000, "not a whole version");
                    assert!(seen.iter().all(|byte| *byte == seen[0]), "two versions mixed");
                    reads += 1;
                }
                reads
            });
            for i in 0..200 {
                fs::write(lab.path("new"), version(i)).expect("written");
                fs::rename(lab.path("new"), lab.path("t")).expect("replaced");
            }
            done.store(true, Ordering::Relaxed);
            assert!(reader.join().expect("no read failed") > 0);
        });
    });
}

/// Runs a script as somebody who has no rights of root; its output and whether it succeeded.
fn as_nobody(dir: &Path, script: &str) -> (bool, String) {
    let out = Command::new("timeout")
        .args(["20", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["sh", "-c", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .output()
        .expect("a shell");
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// A mount for all users, on which the kernel remembers names for longer than others' changes of a
/// directory go unnoticed.
fn for_all_users(attr_timeout: Duration, entry_timeout: Duration) -> Option<Lab> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can act for another user");
        return None;
    }
    let options = MountOptions::default();
    let lab = Lab::start_with(
        &options,
        |config| {
            config.passthrough = Passthrough::Off;
            (config.attr_timeout, config.entry_timeout) = (attr_timeout, entry_timeout);
        },
        Node::start,
    )?;
    for dir in ["", "backing"] {
        fs::set_permissions(lab.home.path().join(dir), Permissions::from_mode(0o755)).expect("set");
    }
    Some(lab)
}

#[test]
fn file_of_others_when_the_kernel_believes_that_there_is_none_then_open_checks_permissions() {
    let short = Duration::from_millis(300);
    let Some(lab) = for_all_users(short, Duration::from_secs(60)) else { return };
    let below = lab.home.path().join("backing/dir");
    fs::create_dir(&below).expect("mkdir");
    fs::set_permissions(&below, Permissions::from_mode(0o777)).expect("set");
    let mnt = lab.path("dir");
    let (found, text) = as_nobody(&mnt, "for i in 1 2 3; do stat secret link; done; ls -l");
    assert!(found, "{text}");
    fs::write(below.join("secret"), b"of root").expect("written");
    fs::set_permissions(below.join("secret"), Permissions::from_mode(0o600)).expect("set");
    fs::write(below.join("target"), b"").expect("written");
    fs::set_permissions(below.join("target"), Permissions::from_mode(0o666)).expect("set");
    symlink("target", below.join("link")).expect("symlink");
    std::thread::sleep(short * 2);
    let (done, text) = as_nobody(&mnt, "exec 3<>secret && cat <&3");
    assert!(!done && text.contains("Permission denied"), "{text}");
    let (done, text) = as_nobody(&mnt, "echo mine >> secret; echo mine > secret");
    assert!(!done && text.contains("Permission denied"), "{text}");
    assert_eq!(fs::read(below.join("secret")).expect("read"), b"of root");
    // A link is followed, as natively.
    let (done, text) = as_nobody(&mnt, "echo followed > link");
    assert!(done, "{text}");
    assert_eq!(fs::read(lab.path("dir/target")).expect("read"), b"followed\n");
}

#[test]
fn file_that_others_removed_when_a_program_appends_to_it_then_it_is_made_anew() {
    let Some(lab) = Lab::new(Passthrough::Off) else { return };
    let below = lab.home.path().join("backing/log");
    fs::write(&below, b"old\n").expect("written");
    assert!(fs::metadata(lab.path("log")).is_ok());
    fs::remove_file(&below).expect("removed");
    lab.shell("echo new >> log");
    assert_eq!(fs::read(lab.path("log")).expect("read"), b"new\n");
}

/// The next look at a directory by itself waits until it is let go on.
#[derive(Default)]
struct Hangs {
    armed: AtomicBool,
    waiting: AtomicBool,
}

impl Interceptor for Hangs {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        if operation == Operation::Stat
            && label.as_os_str().is_empty()
            && self.armed.swap(false, Ordering::AcqRel)
        {
            self.waiting.store(true, Ordering::Release);
            while self.waiting.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Verdict::Pass
    }
}

/// The kernel has pages and the length of the old version. A notice before the one that tells it so waits
/// for a lock.
#[test]
fn file_that_others_changed_when_the_kernel_hears_of_it_late_then_an_open_reads_the_new_version() {
    let (hangs, short) = (Arc::new(Hangs::default()), Duration::from_millis(300));
    let by = hangs.clone();
    let adapt = |config: &mut NodeConfig| {
        config.passthrough = Passthrough::Off;
        (config.attr_timeout, config.entry_timeout) = (short, Duration::ZERO);
    };
    let start = |config: NodeConfig| {
        let backing = Arc::new(DirBacking::open(&config.backing, "test")?);
        Node::start_on(config, Arc::new(InterceptedBacking::new(backing, by)))
    };
    let Some(lab) = Lab::start(adapt, start) else { return };
    let below = lab.home.path().join("backing");
    const ROUNDS: u32 = 10;
    for round in 0..ROUNDS {
        fs::create_dir(below.join(round.to_string())).expect("mkdir");
        fs::write(below.join(format!("{round}/gone")), b"").expect("written");
        fs::write(below.join(format!("file{round}")), vec![b'a'; 20_000]).expect("written");
    }
    let in_time = (0..ROUNDS).any(|round| {
        let (dir, file) = (lab.path(&round.to_string()), format!("file{round}"));
        let gone = fs::metadata(dir.join("gone")).expect("there").ino();
        names(&dir);
        assert!(fs::read(lab.path(&file)).expect("read") == vec![b'a'; 20_000]);
        std::thread::sleep(short + short / 2);
        // What is above it was looked at.
        assert!(fs::metadata(&dir).is_ok());
        hangs.armed.store(true, Ordering::Release);
        let since = Instant::now();
        let looking = std::thread::spawn(move || fs::metadata(dir.join("unknown")).is_ok());
        while !hangs.waiting.load(Ordering::Acquire) && since.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_looking = hangs.waiting.load(Ordering::Acquire);
        fs::remove_file(below.join(format!("{round}/gone"))).expect("removed");
        // The kernel is to forget the name, of a directory in which somebody looks.
        assert!(lab.node.getattr(&Context::DAEMON, Ino(gone)).is_err());
        fs::write(below.join(&file), vec![b'b'; 30_000]).expect("written");
        let read = fs::read(lab.path(&file)).expect("read");
        // A store that does not answer for longer is not asked.
        let is_in_time = is_looking && since.elapsed() < Duration::from_secs(1);
        hangs.armed.store(false, Ordering::Release);
        hangs.waiting.store(false, Ordering::Release);
        assert!(!looking.join().expect("looked up"));
        let shown = (read.len(), read.first().copied(), read.last().copied());
        assert!(!is_in_time || shown == (30_000, Some(b'b'), Some(b'b')), "{shown:?}");
        is_in_time
    });
    assert!(in_time, "never in time");
}
