//! Extended attributes.

use rustix::fs::{lgetxattr, llistxattr, symlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, FileType, XattrFlags, getxattr, listxattr, removexattr, setxattr};
use crate::process::{ALICE, BOB, as_user};

checks!("xattr":
    set_get_remove, replace_changes_the_value, create_flag, replace_flag, missing_attribute, missing_label,
    empty_value, binary_value, size_query_and_range, list_names_all, list_range,
    value_of_several_kilobytes, value_too_large, name_too_long, unknown_namespace, on_directory,
    user_attributes_not_on_special_files, trusted_needs_privilege, security_capability_is_cleared,
    follow_and_nofollow, by_descriptor, rights_follow_the_mode, kept_by_rename_and_link,
    changes_ctime_only, gone_with_the_file, copied_by_cp, many_attributes,
);

const ANY: XattrFlags = XattrFlags::empty();

fn set_get_remove(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.a", b"value", ANY)?;
    equal!(getxattr(&path, "user.a")?, b"value");
    removexattr(&path, "user.a")?;
    fails!(getxattr(&path, "user.a"), NODATA);
    Ok(())
}

fn replace_changes_the_value(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    for value in [&b"one"[..], b"a longer value", b"x"] {
        setxattr(&path, "user.a", value, ANY)?;
        equal!(getxattr(&path, "user.a")?, value);
    }
    Ok(())
}

fn create_flag(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.a", b"1", XattrFlags::CREATE)?;
    fails!(setxattr(&path, "user.a", b"2", XattrFlags::CREATE), EXIST);
    equal!(getxattr(&path, "user.a")?, b"1");
    Ok(())
}

fn replace_flag(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(setxattr(&path, "user.a", b"1", XattrFlags::REPLACE), NODATA);
    setxattr(&path, "user.a", b"1", ANY)?;
    setxattr(&path, "user.a", b"2", XattrFlags::REPLACE)?;
    equal!(getxattr(&path, "user.a")?, b"2");
    Ok(())
}

/// A file system may say of labels of SELinux that it has none; one that is there is shown.
fn missing_label(ctx: &Ctx) -> Outcome {
    let (path, label) = (ctx.file("f", b"")?, "security.selinux");
    fails!(getxattr(&path, label), NODATA | OPNOTSUPP);
    if setxattr(&path, label, b"system_u:object_r:tmp_t:s0", ANY).is_ok() {
        equal!(getxattr(&path, label)?, b"system_u:object_r:tmp_t:s0");
        removexattr(&path, label)?;
    }
    Ok(())
}

fn missing_attribute(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(getxattr(&path, "user.no"), NODATA);
    fails!(removexattr(&path, "user.no"), NODATA);
    fails!(getxattr(ctx.path("no"), "user.no"), NOENT);
    Ok(())
}

fn empty_value(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.a", b"", ANY)?;
    equal!(getxattr(&path, "user.a")?, b"");
    equal!(listxattr(&path)?.contains(&"user.a".to_owned()), true);
    Ok(())
}

fn binary_value(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let value: Vec<u8> = (0..=255).collect();
    setxattr(&path, "user.a", &value, ANY)?;
    equal!(getxattr(&path, "user.a")?, value);
    Ok(())
}

fn size_query_and_range(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.a", b"0123456789", ANY)?;
    equal!(rustix::fs::getxattr_query(&path, "user.a")?, 10);
    fails!(lgetxattr(&path, "user.a", &mut [0; 9][..]), RANGE);
    equal!(lgetxattr(&path, "user.a", &mut [0; 10][..])?, 10);
    Ok(())
}

fn list_names_all(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    for name in ["user.c", "user.a", "user.b"] {
        setxattr(&path, name, b"x", ANY)?;
    }
    let user = |names: Vec<String>| -> Vec<String> {
        names.into_iter().filter(|name| name.starts_with("user.")).collect()
    };
    equal!(user(listxattr(&path)?), ["user.a", "user.b", "user.c"]);
    removexattr(&path, "user.b")?;
    equal!(user(listxattr(&path)?), ["user.a", "user.c"]);
    Ok(())
}

fn list_range(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.abcdef", b"x", ANY)?;
    fails!(llistxattr(&path, &mut [0; 3][..]), RANGE);
    ensure!(rustix::fs::llistxattr_query(&path)? >= 12);
    Ok(())
}

fn value_of_several_kilobytes(ctx: &Ctx) -> Outcome {
    // ext4 with 4 KiB blocks holds a bit less than 4 KiB per file; this much works everywhere.
    let path = ctx.file("f", b"")?;
    let value = crate::random::pattern(1, 3000);
    setxattr(&path, "user.big", &value, ANY)?;
    equal!(getxattr(&path, "user.big")? == value, true);
    Ok(())
}

fn value_too_large(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(setxattr(&path, "user.a", &vec![1; 65_537], ANY), TOOBIG);
    fails!(getxattr(&path, "user.a"), NODATA);
    Ok(())
}

fn name_too_long(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let longest = format!("user.{}", "n".repeat(250));
    setxattr(&path, &longest, b"x", ANY)?;
    equal!(getxattr(&path, &longest)?, b"x");
    fails!(setxattr(&path, &format!("{longest}n"), b"x", ANY), RANGE | NAMETOOLONG);
    fails!(setxattr(&path, "", b"x", ANY), RANGE | OPNOTSUPP);
    Ok(())
}

fn unknown_namespace(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(setxattr(&path, "nothing.a", b"x", ANY), OPNOTSUPP);
    Ok(())
}

fn on_directory(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    setxattr(&dir, "user.a", b"dir", ANY)?;
    equal!(getxattr(&dir, "user.a")?, b"dir");
    Ok(())
}

fn user_attributes_not_on_special_files(ctx: &Ctx) -> Outcome {
    symlink("x", ctx.path("l"))?;
    fails!(setxattr(ctx.path("l"), "user.a", b"x", ANY), PERM);
    os::mknod(ctx.path("p"), FileType::Fifo, 0o600, 0)?;
    fails!(setxattr(ctx.path("p"), "user.a", b"x", ANY), PERM);
    Ok(())
}

fn trusted_needs_privilege(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o666)?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    setxattr(&path, "trusted.a", b"secret", ANY)?;
    equal!(getxattr(&path, "trusted.a")?, b"secret");
    as_user(ALICE, || {
        fails!(setxattr(&path, "trusted.b", b"x", ANY), PERM);
        fails!(getxattr(&path, "trusted.a"), NODATA);
        Ok(())
    })
}

fn security_capability_is_cleared(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"program")?;
    // Version 2, effective, cap_net_bind_service permitted.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    setxattr(&path, "security.capability", &capability, ANY)?;
    equal!(getxattr(&path, "security.capability")?, capability);
    os::write_at(os::open(&path, os::OFlags::WRONLY, 0)?, 0, b"x")?;
    fails!(getxattr(&path, "security.capability"), NODATA);
    Ok(())
}

fn follow_and_nofollow(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    rustix::fs::setxattr(ctx.path("l"), "trusted.a", b"file", ANY)?;
    setxattr(ctx.path("l"), "trusted.a", b"link", ANY)?;
    equal!(getxattr(&path, "trusted.a")?, b"file");
    equal!(getxattr(ctx.path("l"), "trusted.a")?, b"link");
    Ok(())
}

fn by_descriptor(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    rustix::fs::fsetxattr(&fd, "user.a", b"fd", ANY)?;
    equal!(getxattr(ctx.path("f"), "user.a")?, b"fd");
    rustix::fs::fremovexattr(&fd, "user.a")?;
    fails!(rustix::fs::fgetxattr(&fd, "user.a", &mut [0; 8][..]), NODATA);
    Ok(())
}

fn rights_follow_the_mode(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o644)?;
    setxattr(&path, "user.a", b"x", ANY)?;
    as_user(BOB, || {
        equal!(getxattr(&path, "user.a")?, b"x");
        fails!(setxattr(&path, "user.a", b"y", ANY), ACCESS);
        fails!(removexattr(&path, "user.a"), ACCESS);
        Ok(())
    })?;
    os::chmod(&path, 0o600)?;
    as_user(BOB, || {
        fails!(getxattr(&path, "user.a"), ACCESS);
        Ok(())
    })
}

fn kept_by_rename_and_link(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.a", b"x", ANY)?;
    rustix::fs::link(&path, ctx.path("g"))?;
    rustix::fs::rename(&path, ctx.path("h"))?;
    equal!(getxattr(ctx.path("g"), "user.a")?, b"x");
    equal!(getxattr(ctx.path("h"), "user.a")?, b"x");
    Ok(())
}

fn changes_ctime_only(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let before = rustix::fs::stat(&path)?;
    os::tick();
    setxattr(&path, "user.a", b"x", ANY)?;
    let after = rustix::fs::stat(&path)?;
    ensure!(os::ctime(&after) > os::ctime(&before));
    equal!(os::mtime(&after), os::mtime(&before));
    Ok(())
}

fn gone_with_the_file(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    setxattr(&path, "user.a", b"x", ANY)?;
    rustix::fs::unlink(&path)?;
    ctx.file("f", b"")?;
    fails!(getxattr(&path, "user.a"), NODATA);
    Ok(())
}

fn copied_by_cp(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"content")?;
    setxattr(&path, "user.a", b"travels", ANY)?;
    let to = ctx.path("g");
    let status = std::process::Command::new("cp").arg("-a").arg(&path).arg(&to).status()?;
    ensure!(status.success());
    equal!(getxattr(&to, "user.a")?, b"travels");
    Ok(())
}

fn many_attributes(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    for i in 0..40 {
        setxattr(&path, &format!("user.n{i}"), format!("{i}").as_bytes(), ANY)?;
    }
    for i in 0..40 {
        equal!(getxattr(&path, &format!("user.n{i}"))?, format!("{i}").as_bytes());
    }
    Ok(())
}
