//! Programs that know the daemon: memory in common for processes that have a file of the mount open.

mod site;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_client::protocol::{Join, MESSAGE_MAX, Refusal, Reply, Request};
use forebay_client::{Client, Error, Member, socket};
use site::{NOBODY, Site, alive, can_mount, wait_for};

const MIB: u64 = 1 << 20;
const JOIN: Join =
    Join { token: [7; 16], bytes: MIB, members: 2, member: 0, descriptor: 0, writes: true };

/// A mount with a file, and the socket for clients.
struct Mounted {
    site: Site,
    socket: PathBuf,
}

impl Mounted {
    fn new(more: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let site = Site::new();
        site.mount(if more.is_empty() { &["--client-memory", "4G"] } else { more });
        fs::write(site.path("mnt/file"), "what is in it").unwrap();
        let found = fs::read_dir(site.path("run")).unwrap().map(|entry| entry.unwrap().path());
        let socket =
            found.into_iter().find(|path| path.extension().is_some_and(|it| it == "clients"));
        Some(Self { socket: socket.unwrap_or_default(), site })
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.site.path("mnt/file")).unwrap()
    }

    fn join(&self, join: &Join, file: &File) -> Result<Member, Error> {
        Client::at(&self.socket, None)?.join(join, file)
    }

    /// The daemon's descriptors of groups' memory.
    fn memories(&self) -> usize {
        let dir = format!("/proc/{}/fd", self.site.daemon());
        let entries = fs::read_dir(dir).unwrap().flatten();
        let target = |entry: fs::DirEntry| fs::read_link(entry.path()).unwrap_or_default();
        entries.map(target).filter(|it| it.to_string_lossy().contains("forebay-group")).count()
    }

    fn wait_for_memories(&self, count: usize) {
        assert!(
            wait_for(Duration::from_secs(10), || self.memories() == count),
            "{} groups have memory, not {count}",
            self.memories()
        );
    }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result {
        Err(Error::Refused(refusal, _)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// A raw connection, on which anything may be said.
fn raw(mounted: &Mounted) -> OwnedFd {
    socket::connect(&mounted.socket, Duration::from_secs(10)).unwrap()
}

fn answer(socket: &OwnedFd) -> Option<Reply> {
    let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    let received = match socket::receive(socket, true) {
        // The daemon has hung up before it read all: that is told first, then what it said.
        Err(error) if reset(&error) => socket::receive(socket, true),
        other => other,
    };
    Reply::decode(&received.ok().flatten()?.bytes.unwrap())
}

fn hello(socket: &OwnedFd) {
    let hello = Request::Hello { oldest: 1, newest: 1 }.encode();
    socket::send(socket, &hello, None).unwrap();
    assert_eq!(answer(socket), Some(Reply::Welcome { version: 1 }));
}

#[test]
fn members_of_a_group_then_have_the_same_memory_until_the_last_has_left() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let (one, other) = (mounted.file(), mounted.file());
    let first = mounted.join(&JOIN, &one).unwrap();
    let second = mounted.join(&Join { member: 1, ..JOIN }, &other).unwrap();
    assert_eq!(mounted.memories(), 1);
    let at = |member: &Member| member.memory().at(MIB - 1, 1).unwrap();
    // SAFETY: within the memory.
    unsafe { at(&first).write(42) };
    // SAFETY: as above.
    assert_eq!(unsafe { at(&second).read() }, 42);
    let client = first.leave().unwrap();
    assert_eq!(mounted.memories(), 1);
    // A connection that has left joins again.
    let third = client.join(&JOIN, &one).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { at(&third).read() }, 42);
    drop((second, third));
    mounted.wait_for_memories(0);
    let third = mounted.join(&JOIN, &one).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { at(&third).read() }, 0);
    drop((one, other));
    // Nothing of it keeps the mount busy.
    mounted.site.umount();
    assert!(wait_for(Duration::from_secs(10), || third.is_abandoned()));
    // SAFETY: the memory stays.
    unsafe { at(&third).write(1) };
    assert!(!mounted.socket.exists());
}

#[test]
fn daemon_when_found_from_a_file_then_by_the_mount_that_it_lies_on() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    // The runtime directory is that of this test only for processes that are told so.
    let program = std::env::current_exe().unwrap();
    let found = Command::new(program)
        .args(["--exact", "helper_that_finds_the_daemon", "--ignored", "--nocapture"])
        .env("FOREBAY_RUNTIME_DIR", mounted.site.path("run"))
        .env("FOREBAY_TEST_FILE", mounted.site.path("mnt/file"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success() && text.contains("version 1"), "{text}");
    assert!(matches!(Client::of_file(tempfile::tempfile().unwrap()), Err(Error::NotOnMount)));
}

#[test]
#[ignore = "a part of daemon_when_found_from_a_file_then_by_the_mount_that_it_lies_on"]
fn helper_that_finds_the_daemon() {
    let file = File::open(std::env::var_os("FOREBAY_TEST_FILE").unwrap()).unwrap();
    println!("version {}", Client::of_file(&file).unwrap().version());
}

#[test]
fn member_when_killed_then_the_group_ends_also_if_a_child_has_its_socket() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let program = std::env::current_exe().unwrap();
    let mut helper = Command::new(program)
        .args(["--exact", "helper_that_joins_and_forks", "--ignored", "--nocapture"])
        .env("FOREBAY_TEST_SOCKET", &mounted.socket)
        .env("FOREBAY_TEST_FILE", mounted.site.path("mnt/file"))
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let (mut output, mut seen) = (helper.stdout.take().unwrap(), Vec::new());
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains("child ") || *seen.last().unwrap() != b'.' {
        assert_eq!(output.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&seen).into_owned();
    let child: i32 = text.rsplit_once("child ").unwrap().1.trim_end_matches('.').parse().unwrap();
    assert_eq!(mounted.memories(), 1);
    helper.kill().unwrap();
    helper.wait().unwrap();
    mounted.wait_for_memories(0);
    assert!(alive(child), "else this shows nothing");
    site::signal(child, rustix::process::Signal::KILL);
}

#[test]
#[ignore = "a part of member_when_killed_then_the_group_ends_also_if_a_child_has_its_socket"]
fn helper_that_joins_and_forks() {
    let file = File::options()
        .read(true)
        .write(true)
        .open(std::env::var_os("FOREBAY_TEST_FILE").unwrap())
        .unwrap();
    let path = PathBuf::from(std::env::var_os("FOREBAY_TEST_SOCKET").unwrap());
    let member = Client::at(&path, None).unwrap().join(&JOIN, &file).unwrap();
    // SAFETY: the child makes plain calls only.
    match unsafe { libc::fork() } {
        0 => {
            // In the child the connection is of no use, and it must not end the parent's.
            let forked = matches!(member.leave(), Err(Error::Forked));
            // SAFETY: plain calls.
            unsafe {
                libc::close(file.as_raw_fd());
                libc::sleep(if forked { 60 } else { 0 });
                libc::_exit(0);
            }
        }
        child => {
            print!("child {child}.");
            std::io::stdout().flush().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
    }
}

#[test]
fn client_when_it_has_not_what_it_says_then_refused() {
    let Some(mounted) = Mounted::new(&["--client-memory", "8M"]) else { return };
    let path = mounted.site.path("mnt/file");
    let elsewhere = tempfile::tempfile().unwrap();
    assert_eq!(refusal(mounted.join(&JOIN, &elsewhere)), Refusal::File);
    let reader = File::open(&path).unwrap();
    assert_eq!(refusal(mounted.join(&JOIN, &reader)), Refusal::File);
    let named =
        rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let reads = Join { token: [6; 16], writes: false, ..JOIN };
    assert_eq!(refusal(mounted.join(&reads, &named.into())), Refusal::File);
    mounted.join(&reads, &reader).unwrap();
    // A number under which nothing is open.
    let client = raw(&mounted);
    hello(&client);
    let join = Request::Join(Join { descriptor: u32::MAX, ..JOIN }).encode();
    socket::send(&client, &join, None).unwrap();
    assert!(matches!(answer(&client), Some(Reply::Refused(Refusal::File, _))));
    // Others' groups, by their token alone.
    let _first = mounted.join(&JOIN, &mounted.file()).unwrap();
    fs::write(mounted.site.path("mnt/other"), "another one").unwrap();
    let other = mounted.site.path("mnt/other");
    let other = File::options().read(true).write(true).open(other).unwrap();
    assert_eq!(refusal(mounted.join(&Join { member: 1, ..JOIN }, &other)), Refusal::Group);
    // More than there is, and more than one user gets.
    let large = Join { token: [8; 16], bytes: 9 * MIB, ..JOIN };
    assert_eq!(refusal(mounted.join(&large, &other)), Refusal::Memory);
    assert_eq!(refusal(mounted.join(&Join { bytes: 4 * MIB, ..large }, &other)), Refusal::Memory);
    mounted.join(&Join { bytes: 3 * MIB, ..large }, &other).unwrap();
}

#[test]
fn other_user_when_it_knows_the_token_then_refused_and_by_itself_served() {
    let Some(mounted) = Mounted::new(&["--allow-other", "--client-memory", "4G"]) else { return };
    let root = mounted.site.root.path();
    for dir in [root.to_owned(), mounted.site.path("run"), mounted.site.path("mnt")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let file = mounted.site.path("mnt/file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let reads = Join { writes: false, ..JOIN };
    let _first = mounted.join(&reads, &mounted.file()).unwrap();
    let program = root.join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let nobody: u32 = NOBODY.parse().unwrap();
    let output = Command::new(&program)
        .args(["--exact", "helper_of_another_user", "--ignored", "--nocapture"])
        .env("FOREBAY_TEST_SOCKET", &mounted.socket)
        .env("FOREBAY_TEST_FILE", &file)
        .uid(nobody)
        .gid(nobody)
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a part of other_user_when_it_knows_the_token_then_refused_and_by_itself_served"]
fn helper_of_another_user() {
    let path = PathBuf::from(std::env::var_os("FOREBAY_TEST_SOCKET").unwrap());
    let file = File::open(std::env::var_os("FOREBAY_TEST_FILE").unwrap()).unwrap();
    let client = || Client::at(&path, None).unwrap();
    let known = Join { writes: false, member: 1, ..JOIN };
    assert_eq!(refusal(client().join(&known, &file)), Refusal::Group);
    let own = Join { token: [9; 16], ..known };
    client().join(&own, &file).unwrap();
    // What it may only read it can't write through a group either.
    assert_eq!(refusal(client().join(&Join { writes: true, ..own }, &file)), Refusal::File);
}

#[test]
fn clients_that_talk_nonsense_then_refused_and_others_are_served() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let file = mounted.file();
    let first = mounted.join(&JOIN, &file).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for turn in 0..500 {
        let client = raw(&mounted);
        if turn % 3 == 0 {
            hello(&client);
        }
        for _ in 0..4 {
            let len = 1 + random() as usize % (2 * MESSAGE_MAX);
            let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if let Some(kind) = bytes.first_chunk_mut() {
                *kind = (random() as u32 % 5).to_le_bytes();
            }
            // With a descriptor that nobody has asked for, if the kernel lets it through: from Linux 6.16
            // on it refuses the message.
            let sent = match socket::send(&client, &bytes, Some(file.as_fd())) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    socket::send(&client, &bytes, None)
                }
                sent => sent,
            };
            if sent.is_err() {
                break;
            }
        }
        if turn % 2 == 0 {
            assert!(matches!(answer(&client), Some(Reply::Refused(..))));
        }
    }
    // Messages that make sense, but not now.
    for (request, greeted) in [
        (Request::Leave, true),
        (Request::Join(JOIN), false),
        (Request::Hello { oldest: 1, newest: 1 }, true),
        (Request::Hello { oldest: 2, newest: 9 }, false),
        (Request::Hello { oldest: 9, newest: 0 }, false),
    ] {
        let client = raw(&mounted);
        if greeted {
            hello(&client);
        }
        socket::send(&client, &request.encode(), None).unwrap();
        assert!(matches!(answer(&client), Some(Reply::Refused(..))), "{request:?}");
        assert_eq!(answer(&client), None, "{request:?}");
    }
    // One that never reads what it is answered.
    let deaf = raw(&mounted);
    hello(&deaf);
    let asks = Request::Join(Join { descriptor: u32::MAX, ..JOIN }).encode();
    let ended = wait_for(Duration::from_secs(20), || {
        let broken = |error: std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
        (0..50).any(|_| socket::send(&deaf, &asks, None).is_err_and(broken))
    });
    assert!(ended, "it is served although it does not listen");
    // The members are as they were, the daemon as well.
    assert!(!first.is_abandoned());
    mounted.join(&Join { member: 1, ..JOIN }, &file).unwrap();
    assert_eq!(fs::read(mounted.site.path("mnt/file")).unwrap(), b"what is in it");
    drop(first);
    mounted.wait_for_memories(0);
}

#[test]
fn daemon_when_another_takes_over_then_serves_clients_and_members_keep_their_memory() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let file = mounted.file();
    let first = mounted.join(&JOIN, &file).unwrap();
    let (code, text) = mounted.site.run(&["upgrade", &mounted.site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(wait_for(Duration::from_secs(10), || first.is_abandoned()));
    // SAFETY: within the memory, which stays.
    unsafe { first.memory().at(0, 1).unwrap().write(1) };
    assert!(wait_for(Duration::from_secs(10), || mounted.join(&JOIN, &file).is_ok()));
}

#[test]
fn client_memory_when_zero_then_no_socket() {
    let Some(mounted) = Mounted::new(&["--client-memory", "0"]) else { return };
    assert_eq!(mounted.socket, PathBuf::new());
}
