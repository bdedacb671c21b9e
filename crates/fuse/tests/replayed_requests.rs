//! Requests that come again after the death of a daemon, over a socket in place of the kernel.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_fuse::{Before, Call, MountOptions, Mounted, RecoveryJournal, State, Takeover, adopt};
use forebay_node::{
    Context, HandOverState, HandleMode, Ino, NameIn, NewFile, Node, NodeConfig, OpenHandle,
    Passthrough, TierConfig, Timestamp,
};
use forebay_store::DirBacking;
use forebay_store::decorators::{InterceptedBacking, Stuck};
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
    journal: OwnedFd,
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
        let start = |config, handed_over: &HandOverState| {
            Node::start_after(config, Some(handed_over)).expect("the next one starts")
        };
        Self::with(earlier, before, start)
    }

    fn with(
        earlier: impl FnOnce(&Node) -> Vec<OpenHandle>,
        before: impl FnOnce(&Node) -> Before,
        start: impl FnOnce(NodeConfig, &HandOverState) -> Arc<Node>,
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
        let node = HandOverState { handles, ..Default::default() };
        let state = State { negotiated, node, listings: None };
        let node = start(config, &state.node);
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (kernel, device) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        let limit = Some(std::time::Duration::from_secs(60));
        rustix::net::sockopt::set_socket_timeout(&kernel, Timeout::Recv, limit).expect("set");
        let takeover = Takeover { device, rings: None, state: &state, before };
        let mountpoint = home.path().join("nothing-is-mounted-here");
        let options = MountOptions { threads: 1, ..MountOptions::default() };
        let kept = OnceCell::new();
        let keeper = |_: BorrowedFd<'_>, journal: BorrowedFd<'_>, _: Option<BorrowedFd<'_>>| {
            kept.set(journal.try_clone_to_owned()?).expect("kept once");
            Ok(())
        };
        let mounted = adopt(Arc::clone(&node), &mountpoint, takeover, &options, Some(&keeper));
        let mounted = mounted.expect("adopted");
        let journal = kept.into_inner().expect("a journal");
        let lab = Lab { kernel, journal, _mounted: mounted, node, _home: home };
        let mut resend = [0; 64];
        let (length, _) =
            rustix::net::recv(&lab.kernel, &mut resend[..], rustix::net::RecvFlags::empty())
                .expect("the request to send again what was not answered");
        assert_eq!((length, resend[4]), (16, 7), "FUSE_NOTIFY_RESEND");
        lab
    }

    fn ask(&self, opcode: u32, unique: u64, parts: &[&[u8]]) -> Answer {
        self.ask_about(ROOT.0, opcode, unique, parts)
    }

    fn ask_about(&self, node: u64, opcode: u32, unique: u64, parts: &[&[u8]]) -> Answer {
        self.send(node, opcode, unique, parts);
        self.answer(unique)
    }

    fn send(&self, node: u64, opcode: u32, unique: u64, parts: &[&[u8]]) {
        let body = parts.concat();
        let length = u32::try_from(40 + body.len()).expect("short");
        let mut message = Vec::new();
        for word in [length, opcode] {
            message.extend(word.to_le_bytes());
        }
        for word in [unique, node] {
            message.extend(word.to_le_bytes());
        }
        message.extend([0; 16]);
        message.extend(body);
        rustix::net::send(&self.kernel, &message, rustix::net::SendFlags::empty()).expect("sent");
    }

    fn answer(&self, unique: u64) -> Answer {
        let (of, answer) = self.next_answer();
        assert_eq!(of, unique, "the number exactly as it came");
        answer
    }

    fn next_answer(&self) -> (u64, Answer) {
        let mut bytes = vec![0; 4096];
        let flags = rustix::net::RecvFlags::empty();
        let mut received = || {
            let (length, _) =
                rustix::net::recv(&self.kernel, &mut bytes[..], flags).expect("answered");
            (length, u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes")))
        };
        // What the kernel is told beside answers has no number.
        let (length, of) = loop {
            let (length, of) = received();
            if of != 0 {
                break (length, of);
            }
        };
        let error = i32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
        bytes.truncate(length);
        (of, Answer(-error, bytes.split_off(OUT_HEADER.min(length))))
    }

    fn mkdir(&self, unique: u64, name: &[u8]) -> Answer {
        self.ask(opcode::MKDIR, unique, &[&0o755_u32.to_le_bytes(), &[0; 4], name])
    }

    fn create(&self, unique: u64, name: &[u8]) -> Answer {
        let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).to_le_bytes();
        self.ask(opcode::CREATE, unique, &[&flags, &0o644_u32.to_le_bytes(), &[0; 8], name])
    }

    fn rename(&self, unique: u64, names: &[u8]) -> Answer {
        self.rename_with(unique, names, 0)
    }

    fn rename_with(&self, unique: u64, names: &[u8], flags: u32) -> Answer {
        let parts = [&ROOT.0.to_le_bytes()[..], &flags.to_le_bytes(), &[0; 4], names];
        self.ask(opcode::RENAME2, unique, &parts)
    }

    fn link(&self, unique: u64, node: u64, name: &[u8]) -> Answer {
        self.ask(opcode::LINK, unique, &[&node.to_le_bytes(), name])
    }

    fn mknod(&self, unique: u64, name: &[u8]) -> Answer {
        let mode = libc::S_IFREG | 0o600;
        self.ask(opcode::MKNOD, unique, &[&mode.to_le_bytes(), &[0; 12], name])
    }

    /// Sets `user.x` if it is not there.
    fn set_new_xattr(&self, unique: u64, node: u64) -> Answer {
        let sizes = [1_u32.to_le_bytes(), libc::XATTR_CREATE.to_le_bytes()].concat();
        self.ask_about(node, opcode::SETXATTR, unique, &[&sizes, b"user.x\0v"])
    }

    fn remove_xattr(&self, unique: u64, node: u64) -> Answer {
        self.ask_about(node, opcode::REMOVEXATTR, unique, &[b"user.x\0"])
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
    Timestamp { sec: forebay_node::wall_time().sec + 1000, nsec: 0 }
}

#[test]
fn requests_that_were_carried_out_when_they_come_again_then_are_only_answered() {
    let context = Context::DAEMON;
    let lab = Lab::new(
        |node| {
            node.mkdir(&context, ROOT, b"made", 0o755, 0).expect("made");
            node.mkdir(&context, ROOT, b"moved", 0o755, 0).expect("made");
            let flags = libc::O_RDWR | libc::O_CREAT;
            let made = node.create_and_open(
                &context,
                ROOT,
                b"file",
                NewFile { mode: 0o644, umask: 0 },
                flags,
            );
            node.release(made.expect("created").1.fh);
            Vec::new()
        },
        |node| Before {
            // 999 had the name that is gone by now.
            calls: calls(&[
                (2, 0, LONG_AGO),
                (4, 999, LONG_AGO),
                (6, node.known_name(ROOT, b"moved").expect("there").0, LONG_AGO),
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
            let made = node.create_and_open(
                &context,
                ROOT,
                b"file",
                NewFile { mode: 0o644, umask: 0 },
                flags,
            );
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

fn new_file(node: &Node, name: &[u8]) -> Ino {
    node.mknod(&Context::DAEMON, ROOT, name, libc::S_IFREG | 0o644, 0, 0).expect("made").ino
}

fn give_xattr(node: &Node, ino: Ino) {
    node.set_xattr(&Context::DAEMON, ino, b"user.x", b"v", 0, false).expect("set");
}

/// Bytes of the answer to a name: where the attributes have the number of links.
const LINKS_AT: usize = 40 + 64;

#[test]
fn new_names_that_were_made_when_their_calls_come_again_then_are_only_answered() {
    let context = Context::DAEMON;
    let lab = Lab::new(
        |node| {
            let file = new_file(node, b"file");
            node.link(&context, file, ROOT, b"link").expect("linked");
            node.symlink(&context, ROOT, b"symbolic", b"the/target").expect("made");
            new_file(node, b"node");
            Vec::new()
        },
        |_| Before {
            calls: calls(&[(2, 0, LONG_AGO), (4, 0, LONG_AGO), (6, 0, LONG_AGO)]),
            ..Before::default()
        },
    );
    let file = lab.ino(b"file");
    let linked = lab.link(2 | RESENT, file, b"link\0");
    assert_eq!((linked.0, linked.number(0)), (0, file));
    assert_eq!(linked.1[LINKS_AT], 2, "linked once");
    let symbolic = lab.ask(opcode::SYMLINK, 4 | RESENT, &[b"symbolic\0the/target\0"]);
    assert_eq!((symbolic.0, symbolic.number(0)), (0, lab.ino(b"symbolic")));
    let made = lab.mknod(6 | RESENT, b"node\0");
    assert_eq!((made.0, made.number(0)), (0, lab.ino(b"node")));
    // Not noted, or not resent: the names are taken.
    assert_eq!(lab.link(8 | RESENT, file, b"link\0").0, libc::EEXIST);
    assert_eq!(lab.mknod(10, b"node\0").0, libc::EEXIST);
}

#[test]
fn name_that_was_there_before_when_the_call_comes_again_then_eexist() {
    let context = Context::DAEMON;
    let lab = Lab::new(
        |node| {
            let file = new_file(node, b"file");
            node.link(&context, file, ROOT, b"link").expect("linked");
            node.mkdir(&context, ROOT, b"dir", 0o755, 0).expect("made");
            Vec::new()
        },
        // As the calls found them, and died before they had an answer.
        |node| {
            let ino = |name: &[u8]| node.known_name(ROOT, name).expect("there").0;
            let found = [(2, ino(b"link"), LONG_AGO), (4, ino(b"dir"), LONG_AGO)];
            Before { calls: calls(&found), ..Before::default() }
        },
    );
    assert_eq!(lab.link(2 | RESENT, lab.ino(b"file"), b"link\0").0, libc::EEXIST);
    assert_eq!(lab.mkdir(4 | RESENT, b"dir\0").0, libc::EEXIST);
}

#[test]
fn new_names_that_were_not_made_when_their_calls_come_again_then_are_made_once() {
    let lab = Lab::new(
        |node| {
            new_file(node, b"file");
            node.mkdir(&Context::DAEMON, ROOT, b"dir", 0o755, 0).expect("made");
            Vec::new()
        },
        |node| {
            let dir = node.known_name(ROOT, b"dir").expect("there").0;
            let noted = [(2, 0, LONG_AGO), (4, 0, LONG_AGO), (6, 0, LONG_AGO), (8, dir, LONG_AGO)];
            Before { calls: calls(&noted), ..Before::default() }
        },
    );
    let file = lab.ino(b"file");
    let linked = lab.link(2 | RESENT, file, b"link\0");
    assert_eq!((linked.0, linked.number(0), linked.1[LINKS_AT]), (0, file, 2));
    assert_eq!(lab.ask(opcode::SYMLINK, 4 | RESENT, &[b"symbolic\0target\0"]).0, 0);
    assert_eq!(lab.mknod(6 | RESENT, b"node\0").0, 0);
    assert_eq!(lab.ask(opcode::RMDIR, 8 | RESENT, &[b"dir\0"]).0, 0);
    assert!(lab.node.known_name(ROOT, b"dir").is_none());
    for name in [&b"link"[..], b"symbolic", b"node"] {
        lab.ino(name);
    }
}

#[test]
fn directory_that_was_removed_when_the_call_comes_again_then_is_only_answered() {
    let lab = Lab::new(
        |_| Vec::new(),
        // 999 had the name that is gone by now.
        |_| Before { calls: calls(&[(2, 999, LONG_AGO)]), ..Before::default() },
    );
    assert_eq!(lab.ask(opcode::RMDIR, 2 | RESENT, &[b"dir\0"]).0, 0);
    assert_eq!(lab.ask(opcode::RMDIR, 4 | RESENT, &[b"dir\0"]).0, libc::ENOENT);
}

/// Others removed what was to be moved, after the daemon had died.
#[test]
fn rename_that_was_not_carried_out_when_its_source_is_gone_then_it_fails() {
    let lab = Lab::new(
        |node| {
            new_file(node, b"other");
            Vec::new()
        },
        // 999 had the old name.
        |_| Before { calls: calls(&[(2, 999, LONG_AGO), (4, 999, LONG_AGO)]), ..Before::default() },
    );
    assert_eq!(lab.rename(2 | RESENT, b"gone\0new\0").0, libc::ENOENT);
    assert_eq!(lab.rename(4 | RESENT, b"gone\0other\0").0, libc::ENOENT);
}

/// Others made it, after the daemon had died.
#[test]
fn name_that_others_have_made_when_a_call_that_was_to_make_it_comes_again_then_it_is_theirs() {
    let lab = Lab::new(
        |node| {
            let below = &node.config().backing;
            std::fs::create_dir(below.join("dir")).expect("made");
            std::fs::write(below.join("file"), b"theirs").expect("written");
            for name in [&b"dir"[..], b"file"] {
                assert!(node.lookup(&Context::DAEMON, ROOT, name).expect("looked up").is_some());
            }
            Vec::new()
        },
        |_| Before { calls: calls(&[(2, 0, LONG_AGO), (4, 0, LONG_AGO)]), ..Before::default() },
    );
    assert_eq!(lab.mkdir(2 | RESENT, b"dir\0").0, libc::EEXIST);
    assert_eq!(lab.create(4 | RESENT, b"file\0").0, libc::EEXIST, "with O_EXCL");
}

#[test]
fn exchange_when_it_comes_again_then_names_are_exchanged_once() {
    for was_carried_out in [true, false] {
        let one = Cell::new(0);
        let lab = Lab::new(
            |node| {
                one.set(new_file(node, b"one").0);
                new_file(node, b"two");
                Vec::new()
            },
            |node| {
                if was_carried_out {
                    let (from, to) = (NameIn::new(ROOT, b"one"), NameIn::new(ROOT, b"two"));
                    let context = Context::DAEMON;
                    node.rename(&context, from, to, libc::RENAME_EXCHANGE).expect("exchanged");
                }
                Before { calls: calls(&[(2, one.get(), LONG_AGO)]), ..Before::default() }
            },
        );
        assert_eq!(lab.ino(b"two") == one.get(), was_carried_out);
        assert_eq!(lab.rename_with(2 | RESENT, b"one\0two\0", libc::RENAME_EXCHANGE).0, 0);
        assert_eq!(lab.ino(b"two"), one.get(), "{was_carried_out}");
    }
}

#[test]
fn xattr_that_was_set_or_removed_when_the_call_comes_again_then_is_only_answered() {
    let lab = Lab::new(
        |node| {
            let set = new_file(node, b"set");
            give_xattr(node, set);
            new_file(node, b"removed");
            Vec::new()
        },
        // There was none to begin with, and there was one.
        |_| Before { calls: calls(&[(2, 0, LONG_AGO), (4, 1, LONG_AGO)]), ..Before::default() },
    );
    let (set, removed) = (lab.ino(b"set"), lab.ino(b"removed"));
    assert_eq!(lab.set_new_xattr(2 | RESENT, set).0, 0);
    assert_eq!(lab.remove_xattr(4 | RESENT, removed).0, 0);
    assert_eq!(lab.set_new_xattr(6 | RESENT, set).0, libc::EEXIST, "was not noted");
    assert_eq!(lab.remove_xattr(8, removed).0, libc::ENODATA);
}

#[test]
fn xattr_that_was_there_or_missing_before_when_the_call_comes_again_then_its_own_failure() {
    let lab = Lab::new(
        |node| {
            let set = new_file(node, b"set");
            give_xattr(node, set);
            new_file(node, b"bare");
            new_file(node, b"new");
            Vec::new()
        },
        |_| Before {
            calls: calls(&[(2, 1, LONG_AGO), (4, 0, LONG_AGO), (6, 0, LONG_AGO), (8, 1, LONG_AGO)]),
            ..Before::default()
        },
    );
    let (set, bare, new) = (lab.ino(b"set"), lab.ino(b"bare"), lab.ino(b"new"));
    assert_eq!(lab.set_new_xattr(2 | RESENT, set).0, libc::EEXIST);
    assert_eq!(lab.remove_xattr(4 | RESENT, bare).0, libc::ENODATA);
    // Not carried out before: done now, once.
    assert_eq!(lab.set_new_xattr(6 | RESENT, new).0, 0);
    assert_eq!(lab.remove_xattr(8 | RESENT, set).0, 0);
    let value = |ino| lab.node.get_xattr(&Context::DAEMON, Ino(ino), b"user.x").ok();
    assert_eq!((value(new), value(set)), (Some(b"v".to_vec()), None));
}

#[test]
fn call_that_comes_again_and_must_wait_when_this_daemon_dies_too_then_is_still_noted() {
    let stuck = Arc::new(Stuck::default());
    let interceptor = Arc::clone(&stuck);
    let lab = Lab::with(
        |_| Vec::new(),
        |_| Before { calls: calls(&[(2, 0, LONG_AGO)]), ..Before::default() },
        |mut config, _| {
            config.slow_threads = 1;
            let backing = Arc::new(DirBacking::open(&config.backing, "test").expect("opened"));
            let backing = InterceptedBacking::new(backing, interceptor);
            Node::start_on(config, Arc::new(backing)).expect("the next one starts")
        },
    );
    // Of what the namespace does not know the store is asked, which does not answer.
    stuck.hang(&[]);
    lab.send(ROOT.0, opcode::LOOKUP, 100, &[b"blocker\0"]);
    let since = Instant::now();
    while stuck.waiting() == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "nobody asks the store");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The only thread for such things is busy, so this is not begun.
    let mode = [&0o755_u32.to_le_bytes()[..], &[0; 4]].concat();
    lab.send(ROOT.0, opcode::MKDIR, 2 | RESENT, &[&mode, b"asked\0"]);
    // Answered by the only reader after it has dealt with that.
    assert_eq!(lab.ask(opcode::GETATTR, 102, &[&[0; 16]]).0, 0);
    let (_, before) = RecoveryJournal::read(&lab.journal).expect("a journal");
    let call = before.calls.get(&2).expect("noted");
    assert_eq!((call.ino, call.since), (0, LONG_AGO), "as its first time found it");
    stuck.release();
    let answers = [lab.next_answer(), lab.next_answer()];
    let made = answers.iter().find(|(of, _)| *of == 2 | RESENT).expect("answered");
    assert_eq!(made.1.0, 0);
    let noted = || RecoveryJournal::read(&lab.journal).expect("a journal").1.calls.len();
    while noted() > 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "it stays noted");
        std::thread::sleep(Duration::from_millis(5));
    }
}
