use super::*;
use std::fmt::Write as _;
use std::process::Command;

type Layout = (usize, &'static [(&'static str, usize)]);

/// Our layout, the name in <linux/fuse.h>, the minor version that brought it.
const STRUCTS: &[(Layout, &str, u32)] = &[
    (InHeader::LAYOUT, "fuse_in_header", 38),
    (OutHeader::LAYOUT, "fuse_out_header", 31),
    (Attr::LAYOUT, "fuse_attr", 32),
    (SxTime::LAYOUT, "fuse_sx_time", 39),
    (StatxBody::LAYOUT, "fuse_statx", 39),
    (Kstatfs::LAYOUT, "fuse_kstatfs", 31),
    (FileLock::LAYOUT, "fuse_file_lock", 31),
    (EntryOut::LAYOUT, "fuse_entry_out", 31),
    (ForgetIn::LAYOUT, "fuse_forget_in", 31),
    (ForgetOne::LAYOUT, "fuse_forget_one", 31),
    (BatchForgetIn::LAYOUT, "fuse_batch_forget_in", 31),
    (GetattrIn::LAYOUT, "fuse_getattr_in", 31),
    (AttrOut::LAYOUT, "fuse_attr_out", 31),
    (StatxIn::LAYOUT, "fuse_statx_in", 39),
    (StatxOut::LAYOUT, "fuse_statx_out", 39),
    (MknodIn::LAYOUT, "fuse_mknod_in", 31),
    (MkdirIn::LAYOUT, "fuse_mkdir_in", 31),
    (RenameIn::LAYOUT, "fuse_rename_in", 31),
    (Rename2In::LAYOUT, "fuse_rename2_in", 31),
    (LinkIn::LAYOUT, "fuse_link_in", 31),
    (SetattrIn::LAYOUT, "fuse_setattr_in", 31),
    (OpenIn::LAYOUT, "fuse_open_in", 33),
    (CreateIn::LAYOUT, "fuse_create_in", 33),
    (OpenOut::LAYOUT, "fuse_open_out", 31),
    (ReleaseIn::LAYOUT, "fuse_release_in", 31),
    (FlushIn::LAYOUT, "fuse_flush_in", 31),
    (ReadIn::LAYOUT, "fuse_read_in", 31),
    (WriteIn::LAYOUT, "fuse_write_in", 31),
    (WriteOut::LAYOUT, "fuse_write_out", 31),
    (FsyncIn::LAYOUT, "fuse_fsync_in", 31),
    (SetxattrIn::LAYOUT, "fuse_setxattr_in", 33),
    (GetxattrIn::LAYOUT, "fuse_getxattr_in", 31),
    (GetxattrOut::LAYOUT, "fuse_getxattr_out", 31),
    (LkIn::LAYOUT, "fuse_lk_in", 31),
    (LkOut::LAYOUT, "fuse_lk_out", 31),
    (AccessIn::LAYOUT, "fuse_access_in", 31),
    (InitIn::LAYOUT, "fuse_init_in", 36),
    (InitOut::LAYOUT, "fuse_init_out", 36),
    (InterruptIn::LAYOUT, "fuse_interrupt_in", 31),
    (BmapIn::LAYOUT, "fuse_bmap_in", 31),
    (BmapOut::LAYOUT, "fuse_bmap_out", 31),
    (IoctlIn::LAYOUT, "fuse_ioctl_in", 31),
    (IoctlOut::LAYOUT, "fuse_ioctl_out", 31),
    (PollIn::LAYOUT, "fuse_poll_in", 31),
    (PollOut::LAYOUT, "fuse_poll_out", 31),
    (FallocateIn::LAYOUT, "fuse_fallocate_in", 31),
    (Dirent::LAYOUT, "fuse_dirent", 31),
    (LseekIn::LAYOUT, "fuse_lseek_in", 31),
    (LseekOut::LAYOUT, "fuse_lseek_out", 31),
    (CopyFileRangeIn::LAYOUT, "fuse_copy_file_range_in", 31),
    (CopyFileRangeOut::LAYOUT, "fuse_copy_file_range_out", 45),
    (SetupMappingIn::LAYOUT, "fuse_setupmapping_in", 31),
    (RemoveMappingIn::LAYOUT, "fuse_removemapping_in", 31),
    (RemoveMappingOne::LAYOUT, "fuse_removemapping_one", 31),
    (SyncFsIn::LAYOUT, "fuse_syncfs_in", 34),
    (SecctxHeader::LAYOUT, "fuse_secctx_header", 36),
    (Secctx::LAYOUT, "fuse_secctx", 36),
    (ExtHeader::LAYOUT, "fuse_ext_header", 38),
    (NotifyPollOut::LAYOUT, "fuse_notify_poll_wakeup_out", 31),
    (NotifyInvalInodeOut::LAYOUT, "fuse_notify_inval_inode_out", 31),
    (NotifyInvalEntryOut::LAYOUT, "fuse_notify_inval_entry_out", 38),
    (NotifyDeleteOut::LAYOUT, "fuse_notify_delete_out", 31),
    (NotifyStoreOut::LAYOUT, "fuse_notify_store_out", 31),
    (NotifyRetrieveOut::LAYOUT, "fuse_notify_retrieve_out", 31),
    (NotifyRetrieveIn::LAYOUT, "fuse_notify_retrieve_in", 31),
    (NotifyPruneOut::LAYOUT, "fuse_notify_prune_out", 45),
    (BackingMap::LAYOUT, "fuse_backing_map", 40),
    (UringEntryInOut::LAYOUT, "fuse_uring_ent_in_out", 42),
    (UringCommand::LAYOUT, "fuse_uring_cmd_req", 42),
];

/// The name of one of our fields in the header, and the minor version that brought it.
fn field_in_c(name: &str) -> Option<(&str, u32)> {
    match name {
        "kind" => Some(("type", 0)),
        "backing_id" | "max_stack_depth" => Some((name, 40)),
        "request_timeout" => Some((name, 43)),
        // Fillers have changing names; their place follows from the others and the size.
        _ if ["padding", "spare", "unused", "dummy", "reserved"]
            .iter()
            .any(|filler| name.starts_with(filler)) =>
        {
            None
        }
        _ => Some((name, 0)),
    }
}

fn probe_program() -> String {
    let mut program =
        "#include <stddef.h>\n#include <stdio.h>\n#include <linux/fuse.h>\nint main(void) {\n"
            .to_owned();
    for ((_, fields), c_name, since) in STRUCTS {
        let _ = writeln!(program, "#if FUSE_KERNEL_MINOR_VERSION >= {since}");
        let _ = writeln!(program, "printf(\"{c_name} %zu\\n\", sizeof(struct {c_name}));");
        for (field, c_field, since) in fields
            .iter()
            .filter_map(|(name, _)| field_in_c(name).map(|(c, since)| (name, c, since)))
        {
            let _ = writeln!(program, "#if FUSE_KERNEL_MINOR_VERSION >= {since}");
            let _ = writeln!(
                program,
                "printf(\"{c_name}.{field} %zu\\n\", offsetof(struct {c_name}, {c_field}));\n#endif"
            );
        }
        program.push_str("#endif\n");
    }
    for (name, value) in constants() {
        let _ = writeln!(
            program,
            "#ifdef {name}\nprintf(\"{name} %llu\\n\", (unsigned long long){name});\n#endif"
        );
        let _ = value;
    }
    program.push_str("return 0; }\n");
    program
}

fn constants() -> Vec<(&'static str, u64)> {
    use crate::flags::{Features, OpenOutFlags};
    vec![
        ("FUSE_DEV_IOC_BACKING_OPEN", IOC_BACKING_OPEN),
        ("FUSE_DEV_IOC_BACKING_CLOSE", IOC_BACKING_CLOSE),
        ("FATTR_KILL_SUIDGID", u64::from(fattr::KILL_SUIDGID)),
        ("FUSE_POSIX_ACL", Features::POSIX_ACL.bits()),
        ("FUSE_MAX_PAGES", Features::MAX_PAGES.bits()),
        ("FUSE_HANDLE_KILLPRIV_V2", Features::HANDLE_KILLPRIV_V2.bits()),
        ("FUSE_SETXATTR_EXT", Features::SETXATTR_EXT.bits()),
        ("FUSE_INIT_EXT", Features::INIT_EXT.bits()),
        ("FUSE_SECURITY_CTX", Features::SECURITY_CTX.bits()),
        ("FUSE_CREATE_SUPP_GROUP", Features::CREATE_SUPP_GROUP.bits()),
        ("FUSE_HAS_EXPIRE_ONLY", Features::HAS_EXPIRE_ONLY.bits()),
        ("FUSE_DIRECT_IO_ALLOW_MMAP", Features::DIRECT_IO_ALLOW_MMAP.bits()),
        ("FUSE_PASSTHROUGH", Features::PASSTHROUGH.bits()),
        ("FUSE_HAS_RESEND", Features::HAS_RESEND.bits()),
        ("FUSE_OVER_IO_URING", Features::OVER_IO_URING.bits()),
        ("FUSE_REQUEST_TIMEOUT", Features::REQUEST_TIMEOUT.bits()),
        ("FOPEN_NOFLUSH", u64::from(OpenOutFlags::NOFLUSH.bits())),
        ("FOPEN_PARALLEL_DIRECT_WRITES", u64::from(OpenOutFlags::PARALLEL_DIRECT_WRITES.bits())),
        ("FOPEN_PASSTHROUGH", u64::from(OpenOutFlags::PASSTHROUGH.bits())),
    ]
}

#[test]
fn layouts_when_compared_with_the_system_header_then_equal() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (source, binary) = (directory.path().join("probe.c"), directory.path().join("probe"));
    std::fs::write(&source, probe_program()).expect("written");
    match Command::new("cc").arg(&source).arg("-o").arg(&binary).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            let missing = complaint.contains("linux/fuse.h: No such file");
            assert!(missing, "the probe does not compile:\n{complaint}");
            return eprintln!("skipped: no <linux/fuse.h>");
        }
        Err(error) => return eprintln!("skipped: no C compiler: {error}"),
    }
    let output = Command::new(&binary).output().expect("the probe runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let expected: std::collections::HashMap<String, u64> = STRUCTS
        .iter()
        .flat_map(|((size, fields), name, _)| {
            let fields = fields
                .iter()
                .map(move |(field, offset)| (format!("{name}.{field}"), *offset as u64));
            fields.chain([((*name).to_owned(), *size as u64)])
        })
        .chain(constants().into_iter().map(|(name, value)| (name.to_owned(), value)))
        .collect();
    let mut compared = 0;
    for line in text.lines() {
        let (name, value) = line.split_once(' ').expect("name and number");
        let value: u64 = value.parse().expect("number");
        assert_eq!(expected[name], value, "{name}");
        compared += 1;
    }
    assert!(compared > 200, "only {compared} compared");
}

/// The newest minor version whose operations and notifications are all here.
const COMPLETE: u32 = 45;

/// What has no place of its own here: retried ioctls are not implemented; the others are one known
/// structure, or two one after the other. (`fuse_supp_groups` has no fixed size.)
const LEFT_OUT: [&str; 5] = [
    "fuse_ioctl_iovec",
    "fuse_uring_req_header",
    "fuse_statfs_out",
    "fuse_direntplus",
    "fuse_supp_groups",
];

/// The text of the header, unless it is missing or newer than this crate.
fn header() -> Option<String> {
    let Ok(text) = std::fs::read_to_string("/usr/include/linux/fuse.h") else {
        println!("skipped: no <linux/fuse.h>");
        return None;
    };
    let minor =
        text.lines().find_map(|line| line.strip_prefix("#define FUSE_KERNEL_MINOR_VERSION"));
    let minor: u32 = minor.and_then(|number| number.trim().parse().ok()).expect("a version");
    if minor > COMPLETE {
        println!("skipped: the header is of 7.{minor}");
        return None;
    }
    Some(text)
}

/// Names without `FUSE_`, and numbers, of an enumeration of the header.
fn enumeration<'a>(text: &'a str, name: &str) -> Vec<(&'a str, u32)> {
    let (_, from) = text.split_once(&format!("enum {name} {{")).expect("declared");
    let (body, _) = from.split_once('}').expect("closed");
    let member = |line: &'a str| {
        let (name, value) = line.trim().strip_prefix("FUSE_")?.split_once('=')?;
        Some((name.trim(), value.split(',').next()?.trim().parse().ok()?))
    };
    body.lines().filter_map(member).collect()
}

#[test]
fn operations_of_the_system_header_then_all_are_decoded() {
    use crate::operation::{Arguments, Operation};
    let Some(text) = header() else { return };
    let all = enumeration(&text, "fuse_opcode");
    assert!(all.len() > 45, "{all:?}");
    let body = [0; 4096];
    for (name, number) in all.into_iter().filter(|(name, _)| !name.ends_with("RESERVED")) {
        let apart = [
            opcode::FORGET,
            opcode::BATCH_FORGET,
            opcode::INTERRUPT,
            opcode::INIT,
            opcode::DESTROY,
        ];
        if !apart.contains(&number) {
            let arguments = Arguments::split(number, &body, true).expect("long enough");
            let decoded = arguments.decode();
            assert!(!matches!(decoded, Ok(Operation::Unknown(_)) | Err(_)), "{name}: {decoded:?}");
        }
    }
}

#[test]
fn operations_up_to_the_newest_version_then_none_is_unknown() {
    use crate::operation::{Arguments, Operation};
    // Numbers that the protocol has never given away.
    const UNUSED: [u32; 2] = [7, 19];
    for number in 1..=opcode::COPY_FILE_RANGE_64 {
        let arguments = Arguments::split(number, &[0; 4096], true).expect("long enough");
        let apart = matches!(
            number,
            opcode::FORGET
                | opcode::BATCH_FORGET
                | opcode::INTERRUPT
                | opcode::INIT
                | opcode::DESTROY
        );
        let unknown = matches!(arguments.decode(), Ok(Operation::Unknown(_)));
        assert_eq!(unknown, apart || UNUSED.contains(&number), "{number}");
    }
}

#[test]
fn notifications_of_the_system_header_then_all_have_their_numbers() {
    let Some(text) = header() else { return };
    let ours = [
        ("POLL", notify::POLL),
        ("INVAL_INODE", notify::INVAL_INODE),
        ("INVAL_ENTRY", notify::INVAL_ENTRY),
        ("STORE", notify::STORE),
        ("RETRIEVE", notify::RETRIEVE),
        ("DELETE", notify::DELETE),
        ("RESEND", notify::RESEND),
        ("INC_EPOCH", notify::INC_EPOCH),
        ("PRUNE", notify::PRUNE),
    ];
    let all = enumeration(&text, "fuse_notify_code");
    assert!(all.len() >= 6, "{all:?}");
    for (name, number) in all {
        let name = name.strip_prefix("NOTIFY_").expect("a notification");
        let known = ours.iter().find(|(of, _)| *of == name).map(|(_, known)| *known);
        assert_eq!(known.map(i32::cast_unsigned), Some(number), "{name}");
    }
}

#[test]
fn structures_of_the_system_header_then_all_are_compared() {
    let Some(text) = header() else { return };
    let names = text.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    let names: Vec<&str> = names.filter(|name| name.starts_with("fuse_")).collect();
    assert!(names.len() > 50, "{names:?}");
    for name in names.into_iter().filter(|name| !LEFT_OUT.contains(name)) {
        assert!(STRUCTS.iter().any(|(_, known, _)| *known == name), "{name}");
    }
}
