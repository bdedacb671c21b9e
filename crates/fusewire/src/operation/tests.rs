use super::*;
use proptest::prelude::*;

/// Bytes in the order of the header file, written without the structs under test.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

fn b() -> Bytes {
    Bytes::default()
}

fn decode(opcode: u32, body: &[u8]) -> Result<Operation<'_>, DecodeError> {
    Arguments::split(opcode, body, true)?.decode()
}

/// Opcode, arguments as the kernel lays them out, what they mean.
type Golden = (u32, Bytes, Operation<'static>);

fn golden() -> Vec<Golden> {
    [golden_names(), golden_files(), golden_others()].concat()
}

fn golden_names() -> Vec<Golden> {
    vec![
        (opcode::LOOKUP, b().raw(b"a.txt\0"), Operation::Lookup { name: b"a.txt" }),
        (
            opcode::SYMLINK,
            b().raw(b"new\0/the/target\0"),
            Operation::Symlink { name: b"new", target: b"/the/target" },
        ),
        (
            opcode::MKNOD,
            b().u32(0o100_644).u32(0x103).u32(0o22).u32(0).raw(b"n\0"),
            Operation::Mknod { name: b"n", mode: 0o100_644, rdev: 0x103, umask: 0o22 },
        ),
        (
            opcode::MKDIR,
            b().u32(0o755).u32(0o22).raw(b"d\0"),
            Operation::Mkdir { name: b"d", mode: 0o755, umask: 0o22 },
        ),
        (
            opcode::RENAME2,
            b().u64(9).u32(1).u32(0).raw(b"old\0new\0"),
            Operation::Rename { old: b"old", new_parent: 9, new: b"new", flags: 1 },
        ),
        (
            opcode::RENAME,
            b().u64(9).raw(b"old\0new\0"),
            Operation::Rename { old: b"old", new_parent: 9, new: b"new", flags: 0 },
        ),
        (opcode::LINK, b().u64(4).raw(b"l\0"), Operation::Link { node: 4, name: b"l" }),
        (
            opcode::CREATE,
            b().u32(0x8042).u32(0o100_600).u32(0o77).u32(1).raw(b"c\0"),
            Operation::Create {
                name: b"c",
                flags: 0x8042,
                mode: 0o100_600,
                umask: 0o77,
                open_flags: OpenInFlags::KILL_SUIDGID,
            },
        ),
    ]
}

fn golden_files() -> Vec<Golden> {
    vec![
        (
            opcode::READ,
            b().u64(3).u64(4096).u32(512).u32(2).u64(0xabc).u32(0x8000).u32(0),
            Operation::Read {
                fh: 3,
                offset: 4096,
                size: 512,
                flags: 0x8000,
                lock_owner: Some(0xabc),
            },
        ),
        (
            opcode::WRITE,
            b().u64(3).u64(10).u32(4).u32(4).u64(0xabc).u32(0x8001).u32(0).raw(b"data"),
            Operation::Write {
                fh: 3,
                offset: 10,
                data: b"data",
                write_flags: WriteFlags::KILL_SUIDGID,
                flags: 0x8001,
                lock_owner: None,
            },
        ),
        (
            opcode::RELEASE,
            b().u64(3).u32(0x8001).u32(2).u64(0xabc),
            Operation::Release {
                fh: 3,
                flags: 0x8001,
                release_flags: ReleaseFlags::FLOCK_UNLOCK,
                lock_owner: 0xabc,
            },
        ),
        (opcode::FSYNC, b().u64(3).u32(1).u32(0), Operation::Fsync { fh: 3, datasync: true }),
        (
            opcode::IOCTL,
            b().u64(3).u32(16).u32(0xe501).u64(0xdead).u32(2).u32(8).raw(b"xy"),
            Operation::Ioctl {
                fh: 3,
                flags: IoctlFlags::DIR,
                cmd: 0xe501,
                arg: 0xdead,
                input: b"xy",
                out_size: 8,
            },
        ),
        (
            opcode::FALLOCATE,
            b().u64(3).u64(1).u64(2).u32(3).u32(0),
            Operation::Fallocate { fh: 3, offset: 1, length: 2, mode: 3 },
        ),
        (
            opcode::LSEEK,
            b().u64(3).u64(1).u32(3).u32(0),
            Operation::Lseek { fh: 3, offset: 1, whence: 3 },
        ),
    ]
}

fn golden_others() -> Vec<Golden> {
    let lock = Lock { start: 5, end: 9, kind: libc::F_WRLCK, pid: 77 };
    let lock_bytes = b().u64(3).u64(0xabc).u64(5).u64(9).u32(1).u32(77).u32(1).u32(0);
    let copy = CopyRange {
        fh_in: 1,
        offset_in: 2,
        node_out: 3,
        fh_out: 4,
        offset_out: 5,
        length: 6,
        flags: 0,
    };
    let copy_bytes = b().u64(1).u64(2).u64(3).u64(4).u64(5).u64(6).u64(0);
    vec![
        (opcode::GETATTR, b().u32(0).u32(0).u64(7), Operation::Getattr { fh: None }),
        (opcode::GETATTR, b().u32(1).u32(0).u64(7), Operation::Getattr { fh: Some(7) }),
        (
            opcode::STATX,
            b().u32(1).u32(0).u64(7).u32(0x100).u32(0xfff),
            Operation::Statx { fh: Some(7), flags: 0x100, mask: 0xfff },
        ),
        (opcode::READLINK, b(), Operation::Readlink),
        (
            opcode::SETXATTR,
            b().u32(3).u32(1).u32(1).u32(0).raw(b"user.a\0val"),
            Operation::Setxattr {
                name: b"user.a",
                value: b"val",
                flags: 1,
                setxattr_flags: SetxattrFlags::ACL_KILL_SGID,
            },
        ),
        (
            opcode::GETXATTR,
            b().u32(64).u32(0).raw(b"user.a\0"),
            Operation::Getxattr { name: b"user.a", size: 64 },
        ),
        (
            opcode::READDIRPLUS,
            b().u64(3).u64(2).u32(4096).u32(0).u64(0).u32(0).u32(0),
            Operation::Readdirplus { fh: 3, offset: 2, size: 4096 },
        ),
        (opcode::SETLKW, lock_bytes, Operation::Setlkw { fh: 3, owner: 0xabc, lock, flock: true }),
        (opcode::COPY_FILE_RANGE, copy_bytes.clone(), Operation::CopyFileRange(copy)),
        (opcode::COPY_FILE_RANGE_64, copy_bytes, Operation::CopyFileRange64(copy)),
        (opcode::SYNCFS, b().u64(0), Operation::SyncFs),
        (
            opcode::NOTIFY_REPLY,
            b().u64(0).u64(4096).u32(2).u32(0).u64(0).u64(0).raw(b"hi"),
            Operation::NotifyReply { offset: 4096, data: b"hi" },
        ),
        (4095, b().raw(b"whatever"), Operation::Unknown(4095)),
    ]
}

#[test]
fn decode_when_bytes_are_the_kernels_then_gives_their_meaning() {
    for (opcode, bytes, expected) in golden() {
        assert_eq!(decode(opcode, &bytes.0), Ok(expected), "opcode {opcode}");
    }
}

#[test]
fn decode_when_setattr_then_only_valid_fields_are_set() {
    let valid = fattr::SIZE | fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::KILL_SUIDGID;
    let bytes = b().u32(valid).u32(0).u64(1).u64(100).u64(2);
    let times = bytes.u64(3).u64(u64::MAX).u64(5).u32(6).u32(7).u32(8);
    let body = times.u32(0o644).u32(0).u32(1000).u32(1001).u32(0).0;
    let expected = SetAttributes {
        size: Some(100),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Timestamp::new(-1, 7))),
        kill_suidgid: true,
        ..SetAttributes::default()
    };
    assert_eq!(decode(opcode::SETATTR, &body), Ok(Operation::Setattr(expected)));
}

#[test]
fn decode_when_short_setxattr_was_negotiated_then_flags_are_empty() {
    let body = b().u32(1).u32(2).raw(b"n\0v").0;
    let decoded = Arguments::split(opcode::SETXATTR, &body, false).and_then(Arguments::decode);
    let expected = Operation::Setxattr {
        name: b"n",
        value: b"v",
        flags: 2,
        setxattr_flags: SetxattrFlags::NONE,
    };
    assert_eq!(decoded, Ok(expected));
}

#[test]
fn decode_when_mappings_are_removed_then_all_ranges_are_given() {
    let body = b().u32(2).u64(1).u64(2).u64(3).u64(4).0;
    let Ok(Operation::RemoveMapping { ranges }) = decode(opcode::REMOVEMAPPING, &body) else {
        panic!("not decoded");
    };
    let ranges: Vec<_> = ranges.iter().map(|range| (range.window_offset, range.length)).collect();
    assert_eq!(ranges, [(1, 2), (3, 4)]);
    let lying = b().u32(u32::MAX).u64(1).u64(2).0;
    assert!(decode(opcode::REMOVEMAPPING, &lying).is_err());
}

#[test]
fn decode_when_truncated_anywhere_then_error_or_a_valid_shorter_request() {
    for (opcode, bytes, expected) in golden() {
        let fixed = fixed_size(opcode, true);
        for length in 0..bytes.0.len() {
            let decoded = decode(opcode, &bytes.0[..length]);
            let whole = matches!(expected, Operation::Unknown(_));
            assert!(whole || decoded.is_err(), "opcode {opcode} cut to {length}: {decoded:?}");
            if length < fixed {
                assert!(matches!(decoded, Err(DecodeError::Truncated { .. })));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn decode_when_bytes_are_arbitrary_then_never_panics(
        opcode in 0_u32..60,
        body in prop::collection::vec(any::<u8>(), 0..200),
        extended: bool,
    ) {
        if let Ok(arguments) = Arguments::split(opcode, &body, extended)
            && let Ok(operation) = arguments.decode()
        {
            // Formatting touches every byte that was borrowed.
            let shown = format!("{operation:?}");
            prop_assert!(!shown.is_empty());
        }
    }
}
