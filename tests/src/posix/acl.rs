//! POSIX access control lists, as raw attributes and by the usual tools.

use std::process::Command;

use super::{Ctx, checks};
use crate::failure::{Failure, Outcome};
use crate::os::{self, OFlags, XattrFlags, getxattr, removexattr, setxattr};
use crate::process::{ALICE, BOB, CAROL, as_user};

checks!("acl":
    set_and_get_raw, minimal_acl_becomes_the_mode, mask_shows_as_group_bits, chmod_changes_the_mask,
    named_user_gets_access, mask_limits_the_named_user, named_group_gets_access,
    default_is_inherited, default_overrides_umask, default_is_inherited_by_subdirectories,
    default_only_on_directories, broken_acl_is_refused, only_the_owner_may_set, removal,
    create_mode_limits_the_inherited_acl, setfacl_and_getfacl_agree, file_without_acl,
);

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NOBODY: u32 = u32::MAX;

/// The attribute's bytes: version 2, then (tag, permissions, id) in little endian (acl(5), xattr).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// rw for the owner, `user` for BOB, `mask`, nothing for others.
fn for_bob(user: u16, mask: u16) -> Vec<u8> {
    acl(&[
        (USER_OBJ, 6, NOBODY),
        (USER, user, BOB.uid),
        (GROUP_OBJ, 0, NOBODY),
        (MASK, mask, NOBODY),
        (OTHER, 0, NOBODY),
    ])
}

fn set(path: impl AsRef<std::path::Path>, name: &str, value: &[u8]) -> os::Call {
    setxattr(path, name, value, XattrFlags::empty())
}

fn set_and_get_raw(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    set(&path, ACCESS, &for_bob(6, 7))?;
    equal!(getxattr(&path, ACCESS)?, for_bob(6, 7));
    ensure!(os::listxattr(&path)?.contains(&ACCESS.to_owned()));
    Ok(())
}

fn minimal_acl_becomes_the_mode(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let minimal = acl(&[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 1, NOBODY)]);
    set(&path, ACCESS, &minimal)?;
    equal!(os::permissions(&path)?, 0o751);
    fails!(getxattr(&path, ACCESS), NODATA);
    Ok(())
}

fn mask_shows_as_group_bits(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    set(&path, ACCESS, &for_bob(6, 4))?;
    equal!(os::permissions(&path)?, 0o640);
    Ok(())
}

fn chmod_changes_the_mask(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    set(&path, ACCESS, &for_bob(6, 7))?;
    os::chmod(&path, 0o620)?;
    equal!(getxattr(&path, ACCESS)?, for_bob(6, 2));
    equal!(os::permissions(&path)?, 0o620);
    Ok(())
}

fn named_user_gets_access(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o600)?;
    set(&path, ACCESS, &for_bob(6, 7))?;
    as_user(BOB, || {
        os::open(&path, OFlags::RDWR, 0)?;
        Ok(os::access(&path, 6)?)
    })?;
    as_user(ALICE, || {
        fails!(os::open(&path, OFlags::RDONLY, 0), ACCESS);
        Ok(())
    })
}

fn mask_limits_the_named_user(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o600)?;
    set(&path, ACCESS, &for_bob(6, 4))?;
    as_user(BOB, || {
        os::open(&path, OFlags::RDONLY, 0)?;
        fails!(os::open(&path, OFlags::RDWR, 0), ACCESS);
        Ok(())
    })
}

fn named_group_gets_access(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o600)?;
    let list = acl(&[
        (USER_OBJ, 6, NOBODY),
        (GROUP_OBJ, 0, NOBODY),
        (GROUP, 4, CAROL.groups[0]),
        (MASK, 4, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    set(&path, ACCESS, &list)?;
    as_user(CAROL, || {
        os::open(&path, OFlags::RDONLY, 0)?;
        fails!(os::open(&path, OFlags::WRONLY, 0), ACCESS);
        Ok(())
    })?;
    as_user(BOB, || {
        fails!(os::open(&path, OFlags::RDONLY, 0), ACCESS);
        Ok(())
    })
}

fn default_is_inherited(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    set(&dir, DEFAULT, &for_bob(6, 6))?;
    os::open(dir.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o666)?;
    equal!(getxattr(dir.join("f"), ACCESS)?, for_bob(6, 6));
    fails!(getxattr(dir.join("f"), DEFAULT), NODATA | ACCESS);
    Ok(())
}

fn default_overrides_umask(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    set(&dir, DEFAULT, &for_bob(6, 6))?;
    crate::process::in_child(|| {
        os::umask(0o077);
        os::open(dir.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o666)?;
        Ok(())
    })?;
    equal!(os::permissions(dir.join("f"))?, 0o660);
    Ok(())
}

fn default_is_inherited_by_subdirectories(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    let list = acl(&[
        (USER_OBJ, 7, NOBODY),
        (USER, 7, BOB.uid),
        (GROUP_OBJ, 0, NOBODY),
        (MASK, 7, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    set(&dir, DEFAULT, &list)?;
    os::mkdir(dir.join("e"), 0o777)?;
    os::mkdir(dir.join("e/f"), 0o777)?;
    equal!(getxattr(dir.join("e/f"), DEFAULT)?, list);
    equal!(getxattr(dir.join("e/f"), ACCESS)?, list);
    Ok(())
}

fn default_only_on_directories(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(set(&path, DEFAULT, &for_bob(6, 6)), ACCESS | INVAL | PERM);
    Ok(())
}

fn broken_acl_is_refused(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(set(&path, ACCESS, &[1, 2, 3]), INVAL);
    let without_mask = acl(&[
        (USER_OBJ, 6, NOBODY),
        (USER, 6, BOB.uid),
        (GROUP_OBJ, 0, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    fails!(set(&path, ACCESS, &without_mask), INVAL);
    Ok(())
}

fn only_the_owner_may_set(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o666)?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    as_user(BOB, || {
        fails!(set(&path, ACCESS, &for_bob(7, 7)), PERM);
        Ok(())
    })?;
    as_user(ALICE, || Ok(set(&path, ACCESS, &for_bob(7, 7))?))
}

fn removal(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o600)?;
    set(&path, ACCESS, &for_bob(6, 6))?;
    removexattr(&path, ACCESS)?;
    fails!(getxattr(&path, ACCESS), NODATA);
    as_user(BOB, || {
        fails!(os::open(&path, OFlags::RDONLY, 0), ACCESS);
        Ok(())
    })
}

fn create_mode_limits_the_inherited_acl(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    set(&dir, DEFAULT, &for_bob(6, 6))?;
    os::open(dir.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o640)?;
    equal!(getxattr(dir.join("f"), ACCESS)?, for_bob(6, 4));
    equal!(os::permissions(dir.join("f"))?, 0o640);
    Ok(())
}

fn tool(command: &mut Command) -> Outcome<String> {
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(Failure::at(String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(Failure::Skipped(format!("{command:?}: {error}"))),
    }
}

fn setfacl_and_getfacl_agree(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o750)?;
    tool(Command::new("setfacl").args(["-m", "u:70002:rw,g:70001:r"]).arg(&dir))?;
    tool(Command::new("setfacl").args(["-d", "-m", "u:70003:rwx"]).arg(&dir))?;
    let text = tool(Command::new("getfacl").args(["-n", "-p", "-c"]).arg(&dir))?;
    for line in ["user:70002:rw-", "group:70001:r--", "mask::rwx", "default:user:70003:rwx"] {
        ensure!(text.lines().any(|got| got.starts_with(line)), "no {line} in:\n{text}");
    }
    tool(Command::new("setfacl").arg("-b").arg(&dir))?;
    fails!(getxattr(&dir, ACCESS), NODATA);
    fails!(getxattr(&dir, DEFAULT), NODATA);
    Ok(())
}

fn file_without_acl(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(getxattr(&path, ACCESS), NODATA);
    ensure!(!os::listxattr(&path)?.contains(&ACCESS.to_owned()));
    Ok(())
}
