//! Requests that come again after the death of a daemon, over a socket in place of the kernel.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use forebay_fuse::{Before, Call, MountOptions, Mounted, State, Takeover, adopt};
use forebay_node::{
    Context, HandleMode, Inheritance, Ino, Node, NodeConfig, OpenHandle, Passthrough, TierConfig,
    Timestamp,
};
use fusewire::{Features, Negotiated, opcode};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const RESENT: u64 = 1 << 63;
const ROOT: Ino = Ino(1);
const OUT_HEADER: usize = 16;
const ENTRY: usize = 128;

/// A node after the death of another one, and the kernel's end of its connection.
struct Lab {
    kernel: OwnedFd,
    _mounted: Mounted,
    node: Arc<Node>,
    _home: tempfile::TempDir,
}

/// The answer to a request: errno and what follows the header.
struct Answer(i32, Vec<u8>);

impl Answer {
    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.1[at..at + 8].try_into().expect("8 bytes"))
    }
}

impl Lab {
    /// `earlier` is what the dead daemon did; `before` what it had noted.
    fn new(
        earlier: impl FnOnce(&Node) -> Vec<OpenHandle>,
        before: impl FnOnce(&Node) -> Before,
    ) -> Self {
        let home = tempfile::Builder::new().prefix("forebay-").tempdir_in("/dev/shm");
        let home = home.expect("a directory");
        for name in ["backing", "tier"] {
            std::fs::create_dir(home.path().join(name)).expect("a directory");
        }
        let config = config(home.path());
        let first = Node::start(config.clone()).expect("the first node starts");
        let handles = earlier(&first);
        let before = before(&first);
        first.stop(std::time::Duration::from_secs(5));
        drop(first);
        let negotiated = Negotiated {
            minor: 45,
            kernel_minor: 45,
            features: Features::HAS_RESEND,
            offered: Features::HAS_RESEND,
            max_write: 1 << 20,
            max_pages: 256,
            max_readahead: 131_072,
        };
        let state = State { negotiated, node: Inheritance { handles, ..Default::default() } };
        let node = Node::start_after(config, Some(&state.node)).expect("the next one starts");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (kernel, device) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        let limit = Some(std::time::Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&kernel, Timeout::Recv, limit).expect("set");
        let takeover = Takeover { device, rings: None, state: &state, before };
        let mountpoint = home.path().join("nothing-is-mounted-here");
        let options = MountOptions { threads: 1, ..MountOptions::default() };
        let mounted =
            adopt(Arc::clone(&node), &mountpoint, takeover, &options, Some(&|_, _, _| Ok(())));
        let lab = Lab { kernel, _mounted: mounted.expect("adopted"), node, _home: home };
        let mut wish = [0; 64];
        let (length, _) =
            rustix::net::recv(&lab.kernel, &mut wish[..], rustix::net::RecvFlags::empty())
                .expect("the wish for what was not answered");
        assert_eq!((length, wish[4]), (16, 7), "FUSE_NOTIFY_RESEND");
        lab
    }

    fn ask(&self, opcode: u32, unique: u64, parts: &[&[u8]]) -> Answer {
        let body = parts.concat();
        let length = u32::try_from(40 + body.len()).expect("short");
        let mut message = Vec::new();
        for word in [length, opcode] {
            message.extend(word.to_le_bytes());
        }
        for word in [unique, ROOT.0] {
            message.extend(word.to_le_bytes());
        }
        message.extend([0; 16]);
        message.extend(body);
        rustix::net::send(&self.kernel, &message, rustix::net::SendFlags::empty()).expect("sent");
        let mut bytes = vec![0; 4096];
        let flags = rustix::net::RecvFlags::empty();
        let (length, _) = rustix::net::recv(&self.kernel, &mut bytes[..], flags).expect("answered");
        assert_eq!(bytes[8..16], unique.to_le_bytes(), "the number exactly as it came");
        let error = i32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
        bytes.truncate(length);
        Answer(-error, bytes.split_off(OUT_HEADER.min(length)))
    }

    fn mkdir(&self, unique: u64, name: &[u8]) -> Answer {
        self.ask(opcode::MKDIR, unique, &[&0o755_u32.to_le_bytes(), &[0; 4], name])
    }

    fn create(&self, unique: u64, name: &[u8]) -> Answer {
        let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).to_le_bytes();
        self.ask(opcode::CREATE, unique, &[&flags, &0o644_u32.to_le_bytes(), &[0; 8], name])
    }

    fn rename(&self, unique: u64, names: &[u8]) -> Answer {
        self.ask(opcode::RENAME2, unique, &[&ROOT.0.to_le_bytes(), &[0; 8], names])
    }

    fn ino(&self, name: &[u8]) -> u64 {
        self.node.known_name(ROOT, name).expect("it is there").0
    }
}

fn config(home: &Path) -> NodeConfig {
    let tier = TierConfig { dir: home.join("tier"), size_bytes: 64 << 20 };
    let mut config = NodeConfig::new(home.join("backing"), vec![tier]);
    config.passthrough = Passthrough::Off;
    config
}

fn calls(known: &[(u64, u64, Timestamp)]) -> HashMap<u64, Call> {
    known.iter().map(|&(unique, ino, since)| (unique, Call { ino, since })).collect()
}

const LONG_AGO: Timestamp = Timestamp { sec: 0, nsec: 0 };

fn later() -> Timestamp {
    Timestamp { sec: forebay_node::now().sec + 1000, nsec: 0 }
}

#[test]
fn requests_that_were_carried_out_when_they_come_again_then_are_only_answered() {
    let context = Context::DAEMON;
    let lab = Lab::new(
        |node| {
            node.mkdir(&context, ROOT, b"made", 0o755, 0).expect("made");
            node.mkdir(&context, ROOT, b"moved", 0o755, 0).expect("made");
            let flags = libc::O_RDWR | libc::O_CREAT;
            let made = node.create_and_open(&context, ROOT, b"file", (0o644, 0), flags);
            node.release(made.expect("created").1.fh);
            Vec::new()
        },
        |_| Before {
            // 999 had the names that are gone by now.
            calls: calls(&[
                (2, 0, LONG_AGO),
                (4, 999, LONG_AGO),
                (6, 999, LONG_AGO),
                (8, 0, LONG_AGO),
                (10, 0, later()),
            ]),
            ..Before::default()
        },
    );
    let made = lab.mkdir(2 | RESENT, b"made\0");
    assert_eq!((made.0, made.number(0)), (0, lab.ino(b"made")));
    assert_eq!(lab.ask(opcode::UNLINK, 4 | RESENT, &[b"removed\0"]).0, 0);
    assert_eq!(lab.rename(6 | RESENT, b"old\0moved\0").0, 0);
    let created = lab.create(8 | RESENT, b"file\0");
    assert_eq!((created.0, created.number(0)), (0, lab.ino(b"file")));
    let fh = created.number(ENTRY);
    assert_eq!(lab.node.open_handle(fh).map(|handle| handle.ino), Some(lab.ino(b"file")));
    // Those who were there before the call began were not made by it.
    assert_eq!(lab.mkdir(10 | RESENT, b"made\0").0, libc::EEXIST);
    // And nobody is excused who comes for the first time.
    assert_eq!(lab.mkdir(12, b"made\0").0, libc::EEXIST);
    assert_eq!(lab.ask(opcode::UNLINK, 14, &[b"removed\0"]).0, libc::ENOENT);
    assert_eq!(lab.ask(opcode::UNLINK, 16 | RESENT, &[b"removed\0"]).0, libc::ENOENT);
}

#[test]
fn requests_that_were_not_carried_out_when_they_come_again_then_are_carried_out_once() {
    let context = Context::DAEMON;
    let lab = Lab::new(
        |node| {
            node.mkdir(&context, ROOT, b"old", 0o755, 0).expect("made");
            Vec::new()
        },
        |node| {
            let old = node.known_name(ROOT, b"old").expect("it is there").0;
            Before {
                calls: calls(&[(2, 0, LONG_AGO), (4, old, LONG_AGO), (6, 0, LONG_AGO)]),
                ..Before::default()
            }
        },
    );
    assert_eq!(lab.mkdir(2 | RESENT, b"made\0").0, 0);
    assert_eq!(lab.rename(4 | RESENT, b"old\0new\0").0, 0);
    assert!(lab.node.known_name(ROOT, b"old").is_none());
    assert_eq!(lab.create(6 | RESENT, b"file\0").0, 0);
    for name in [&b"made"[..], b"new", b"file"] {
        lab.ino(name);
    }
}

#[test]
fn open_that_was_noted_when_it_comes_again_then_gets_the_same_handle() {
    let context = Context::DAEMON;
    let fh = 5 << 52 | 77;
    let lab = Lab::new(
        |node| {
            let flags = libc::O_RDWR | libc::O_CREAT;
            let made = node.create_and_open(&context, ROOT, b"file", (0o644, 0), flags);
            let (stat, opened) = made.expect("created");
            node.write(&context, opened.fh, 0, b"text").expect("written");
            // Removed, so that only its handle keeps it.
            node.unlink(&context, ROOT, b"file").expect("removed");
            let mode = HandleMode::Direct.into();
            vec![OpenHandle { fh, ino: stat.ino.0, write: true, mode, ..OpenHandle::default() }]
        },
        |_| Before { opened: HashMap::from([(20, fh)]), ..Before::default() },
    );
    let created = lab.create(20 | RESENT, b"file\0");
    assert_eq!((created.0, created.number(ENTRY)), (0, fh));
    let mut text = [0; 8];
    assert_eq!(lab.node.read(&context, fh, 0, &mut text).expect("read"), 4);
    assert_eq!(&text[..4], b"text");
    lab.node.release(fh);
    assert!(lab.node.open_handle(fh).is_none());
}
