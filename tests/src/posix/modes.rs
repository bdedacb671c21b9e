//! Mode bits: umask, chmod and its rules, and the clearing of setuid and setgid.

use std::os::fd::OwnedFd;

use rustix::fs::symlink;

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, FallocateFlags, FileType, OFlags};
use crate::process::{ALICE, BOB, CAROL, as_user, in_child};

checks!("modes":
    umask_applies_to_every_creation, umask_does_not_apply_to_chmod, every_mode_can_be_set,
    chmod_keeps_type_and_content, chmod_follows_symlinks, fchmod_equals_chmod,
    fchmod_of_read_only_descriptor, chmod_by_other_is_refused, chmod_by_owner_is_allowed,
    chmod_by_foreign_group_drops_setgid, chmod_by_supplementary_group_keeps_setgid,
    create_mode_does_not_limit_the_creator, mkdir_keeps_sticky_bit, write_clears_setuid_for_others,
    write_by_root_keeps_setuid, truncate_clears_setuid_for_others, open_trunc_clears_setuid,
    fallocate_clears_setuid, setgid_without_group_execute_stays,
    setgid_without_group_execute_goes_when_strangers_write, write_clears_setuid_of_owner,
    mmap_and_read_keep_setuid, append_clears_setuid, chmod_of_missing, chmod_through_descriptor_path,
    mode_is_kept_through_rename_and_link, first_write_after_chmod_clears_setuid,
    write_after_chmod_of_an_open_file_clears_setuid, close_after_chmod_of_an_open_file_keeps_setuid,
    write_that_puts_times_back_after_chmod_of_an_open_file_clears_setuid,
);

fn first_write_after_chmod_clears_setuid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    os::chown(&path, Some(BOB.uid), Some(BOB.gid))?;
    as_user(BOB, || {
        let fd = os::open(&path, OFlags::RDWR, 0)?;
        os::chmod(&path, 0o6755)?;
        os::write_at(&fd, 0, b"first bytes")?;
        equal!(os::permissions(&path)?, 0o755);
        Ok(())
    })
}

/// A file with bytes that is open for writing when its mode is set, by BOB.
fn chmod_while_open(ctx: &Ctx, then: fn(&OwnedFd) -> Outcome, permissions: u32) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"a program")?;
    os::chown(&path, Some(BOB.uid), Some(BOB.gid))?;
    as_user(BOB, || {
        os::write_at(os::open(&path, OFlags::RDWR, 0)?, 0, b"A")?;
        let fd = os::open(&path, OFlags::RDWR, 0)?;
        os::write_at(&fd, 2, b"P")?;
        os::chmod(&path, 0o6755)?;
        equal!(os::permissions(&path)?, 0o6755);
        then(&fd)?;
        equal!(os::permissions(&path)?, permissions);
        drop(fd);
        equal!(os::permissions(&path)?, permissions);
        Ok(())
    })
}

fn write_after_chmod_of_an_open_file_clears_setuid(ctx: &Ctx) -> Outcome {
    chmod_while_open(ctx, |fd| Ok(os::write_at(fd, 0, b"B")?), 0o755)
}

fn write_that_puts_times_back_after_chmod_of_an_open_file_clears_setuid(ctx: &Ctx) -> Outcome {
    let write = |fd: &OwnedFd| {
        let before = rustix::fs::fstat(fd)?;
        os::write_at(fd, 0, b"B")?;
        let times = os::times(os::atime(&before), os::mtime(&before));
        Ok(rustix::fs::futimens(fd, &times)?)
    };
    chmod_while_open(ctx, write, 0o755)
}

fn close_after_chmod_of_an_open_file_keeps_setuid(ctx: &Ctx) -> Outcome {
    chmod_while_open(ctx, |_| Ok(()), 0o6755)
}

fn umask_applies_to_every_creation(ctx: &Ctx) -> Outcome {
    in_child(|| {
        os::umask(0o027);
        os::open(ctx.path("f"), OFlags::CREATE | OFlags::WRONLY, 0o666)?;
        os::mkdir(ctx.path("d"), 0o777)?;
        os::mknod(ctx.path("p"), FileType::Fifo, 0o666, 0)?;
        equal!(os::permissions(ctx.path("f"))?, 0o640);
        equal!(os::permissions(ctx.path("d"))?, 0o750);
        equal!(os::permissions(ctx.path("p"))?, 0o640);
        Ok(())
    })
}

fn umask_does_not_apply_to_chmod(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    in_child(|| {
        os::umask(0o777);
        Ok(os::chmod(&path, 0o666)?)
    })?;
    equal!(os::permissions(&path)?, 0o666);
    Ok(())
}

fn every_mode_can_be_set(ctx: &Ctx) -> Outcome {
    let file = ctx.file("f", b"")?;
    let dir = ctx.subdir("d", 0o755)?;
    for mode in (0..0o10000).step_by(0o11).chain([0o7777, 0o4000, 0o2000, 0o1000]) {
        for path in [&file, &dir] {
            os::chmod(path, mode)?;
            equal!(os::permissions(path)?, mode);
        }
    }
    Ok(os::chmod(&dir, 0o755)?)
}

fn chmod_keeps_type_and_content(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"content")?;
    os::chmod(&path, 0o4711)?;
    equal!(os::file_type(&path)?, FileType::RegularFile);
    equal!(os::read_all(&path)?, b"content");
    Ok(())
}

fn chmod_follows_symlinks(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    os::chmod(ctx.path("l"), 0o601)?;
    equal!(os::permissions(&path)?, 0o601);
    Ok(())
}

fn fchmod_equals_chmod(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    os::fchmod(&fd, 0o4755)?;
    equal!(os::permissions(ctx.path("f"))?, 0o4755);
    Ok(())
}

fn fchmod_of_read_only_descriptor(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    os::fchmod(os::open(&path, OFlags::RDONLY, 0)?, 0o640)?;
    equal!(os::permissions(&path)?, 0o640);
    fails!(os::fchmod(os::open(&path, OFlags::PATH, 0)?, 0o600), BADF);
    Ok(())
}

fn chmod_by_other_is_refused(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o666)?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    as_user(BOB, || {
        fails!(os::chmod(&path, 0o777), PERM);
        fails!(os::fchmod(os::open(&path, OFlags::RDWR, 0)?, 0o777), PERM);
        Ok(())
    })?;
    as_user(CAROL, || {
        fails!(os::chmod(&path, 0o777), PERM);
        Ok(())
    })
}

fn chmod_by_owner_is_allowed(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0)?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    as_user(ALICE, || Ok(os::chmod(&path, 0o4700)?))?;
    equal!(os::permissions(&path)?, 0o4700);
    Ok(())
}

fn chmod_by_foreign_group_drops_setgid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o644)?;
    os::chown(&path, Some(ALICE.uid), Some(BOB.gid))?;
    as_user(ALICE, || Ok(os::chmod(&path, 0o2755)?))?;
    equal!(os::permissions(&path)?, 0o755);
    Ok(())
}

fn chmod_by_supplementary_group_keeps_setgid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o644)?;
    os::chown(&path, Some(CAROL.uid), Some(ALICE.gid))?;
    as_user(CAROL, || Ok(os::chmod(&path, 0o2755)?))?;
    equal!(os::permissions(&path)?, 0o2755);
    Ok(())
}

fn create_mode_does_not_limit_the_creator(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    as_user(ALICE, || {
        let fd = os::open(ctx.path("f"), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, 0)?;
        os::write_all(&fd, b"mine")?;
        equal!(os::read_at(&fd, 0, 9)?, b"mine");
        fails!(os::open(ctx.path("f"), OFlags::RDONLY, 0), ACCESS);
        Ok(())
    })
}

fn mkdir_keeps_sticky_bit(ctx: &Ctx) -> Outcome {
    os::mkdir(ctx.path("d"), 0o1755)?;
    equal!(os::permissions(ctx.path("d"))?, 0o1755);
    Ok(())
}

/// Runs `change` as BOB on a file of ALICE with every setuid and setgid bit, and expects them gone.
fn clears(ctx: &Ctx, change: impl FnOnce(&std::path::Path) -> Outcome) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"program")?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    os::chmod(&path, 0o6777)?;
    as_user(BOB, || change(&path))?;
    equal!(os::permissions(&path)?, 0o777);
    Ok(())
}

fn write_clears_setuid_for_others(ctx: &Ctx) -> Outcome {
    clears(ctx, |path| Ok(os::write_at(os::open(path, OFlags::WRONLY, 0)?, 0, b"x")?))
}

fn append_clears_setuid(ctx: &Ctx) -> Outcome {
    clears(ctx, |path| {
        Ok(os::write_all(os::open(path, OFlags::WRONLY | OFlags::APPEND, 0)?, b"x")?)
    })
}

fn truncate_clears_setuid_for_others(ctx: &Ctx) -> Outcome {
    clears(ctx, |path| Ok(os::truncate(path, 3)?))
}

fn open_trunc_clears_setuid(ctx: &Ctx) -> Outcome {
    clears(ctx, |path| {
        os::open(path, OFlags::WRONLY | OFlags::TRUNC, 0)?;
        Ok(())
    })
}

fn fallocate_clears_setuid(ctx: &Ctx) -> Outcome {
    clears(ctx, |path| {
        let fd = os::open(path, OFlags::WRONLY, 0)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192)?;
        // tmpfs clears the bits only when bytes change; a write settles it everywhere.
        Ok(os::write_at(&fd, 0, b"x")?)
    })
}

fn write_clears_setuid_of_owner(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"program")?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    os::chmod(&path, 0o6755)?;
    as_user(ALICE, || Ok(os::write_at(os::open(&path, OFlags::WRONLY, 0)?, 0, b"x")?))?;
    equal!(os::permissions(&path)?, 0o755);
    Ok(())
}

fn write_by_root_keeps_setuid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"program")?;
    os::chmod(&path, 0o6755)?;
    os::write_at(os::open(&path, OFlags::WRONLY, 0)?, 0, b"x")?;
    equal!(os::permissions(&path)?, 0o6755);
    Ok(())
}

fn setgid_without_group_execute_stays(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"data")?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    os::chmod(&path, 0o2666)?;
    // Without group execute the bit once meant mandatory locking; a member's write keeps it.
    as_user(ALICE, || Ok(os::write_at(os::open(&path, OFlags::WRONLY, 0)?, 0, b"x")?))?;
    equal!(os::permissions(&path)?, 0o2666);
    Ok(())
}

fn setgid_without_group_execute_goes_when_strangers_write(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    type Change = fn(&std::path::Path) -> Outcome;
    let changes: [(&str, Change); 4] = [
        ("write", |path| Ok(os::write_at(os::open(path, OFlags::WRONLY, 0)?, 0, b"x")?)),
        ("truncate", |path| Ok(os::truncate(path, 2)?)),
        ("open", |path| Ok(os::open(path, OFlags::WRONLY | OFlags::TRUNC, 0).map(drop)?)),
        ("fallocate", |path| {
            let fd = os::open(path, OFlags::WRONLY, 0)?;
            Ok(rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192)?)
        }),
    ];
    for (name, change) in changes {
        let path = ctx.file(name, b"data")?;
        os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
        os::chmod(&path, 0o2666)?;
        as_user(ALICE, || change(&path))?;
        equal!((name, os::permissions(&path)?), (name, 0o2666));
        as_user(BOB, || change(&path))?;
        equal!((name, os::permissions(&path)?), (name, 0o666));
    }
    Ok(())
}

fn mmap_and_read_keep_setuid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"program")?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    os::chmod(&path, 0o6777)?;
    as_user(BOB, || {
        let fd = os::open(&path, OFlags::RDWR, 0)?;
        equal!(os::read_at(&fd, 0, 100)?, b"program");
        Ok(())
    })?;
    equal!(os::permissions(&path)?, 0o6777);
    Ok(())
}

fn chmod_of_missing(ctx: &Ctx) -> Outcome {
    fails!(os::chmod(ctx.path("no"), 0o600), NOENT);
    symlink("no", ctx.path("l"))?;
    fails!(os::chmod(ctx.path("l"), 0o600), NOENT);
    ctx.file("f", b"")?;
    fails!(os::chmod(ctx.path("f/x"), 0o600), NOTDIR);
    Ok(())
}

fn chmod_through_descriptor_path(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsRawFd;
    let fd = ctx.open_new("f", b"")?;
    rustix::fs::unlink(ctx.path("f"))?;
    os::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), 0o604)?;
    equal!(rustix::fs::fstat(&fd)?.st_mode & 0o7777, 0o604);
    Ok(())
}

fn mode_is_kept_through_rename_and_link(ctx: &Ctx) -> Outcome {
    let path = ctx.file_with_mode("f", 0o4751)?;
    rustix::fs::link(&path, ctx.path("g"))?;
    rustix::fs::rename(&path, ctx.path("h"))?;
    equal!(os::permissions(ctx.path("g"))?, 0o4751);
    os::chmod(ctx.path("g"), 0o640)?;
    equal!(os::permissions(ctx.path("h"))?, 0o640);
    Ok(())
}
