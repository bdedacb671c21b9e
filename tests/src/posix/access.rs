//! Permission checks by owner, group, supplementary group and others; sticky directories.

use rustix::fs::{link, rename, rmdir, symlink, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};
use crate::process::{ALICE, BOB, CAROL, User, as_user};

checks!("access":
    matrix_of_files, matrix_of_access_call, first_matching_class_decides, root_reads_and_writes_all,
    root_executes_only_marked_files, directory_read_right, directory_search_right,
    directory_write_right, search_right_on_the_way, permission_is_checked_at_open_only,
    sticky_protects_from_unlink, sticky_protects_from_rename, sticky_allows_owners,
    sticky_allows_the_directory_owner, supplementary_group_opens, supplementary_group_creates,
    truncate_needs_write_right, utimens_needs_ownership, access_of_missing, execute_script,
    chdir_needs_search, link_needs_directory_write, access_uses_real_ids, readlink_needs_no_right,
    change_of_mode_counts_at_once, change_of_group_counts_at_once,
);

fn tries(path: &std::path::Path, right: u32) -> os::Call {
    let flags = match right {
        4 => OFlags::RDONLY,
        2 => OFlags::WRONLY,
        _ => OFlags::RDWR,
    };
    os::open(path, flags, 0).map(drop)
}

fn class_of(user: User) -> u32 {
    if user == ALICE {
        6
    } else if user == CAROL {
        3
    } else {
        0
    }
}

/// Every mode from 0 to 0777 in steps, tried by owner, group member and stranger.
fn for_every_class(ctx: &Ctx, probe: impl Fn(&std::path::Path, User, u32) -> Outcome) -> Outcome {
    ctx.need_root()?;
    let mut files = Vec::new();
    for mode in (0..0o1000).step_by(0o13) {
        let path = ctx.file_with_mode(&format!("{mode:03o}"), mode)?;
        os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
        files.push((path, mode));
    }
    for user in [ALICE, CAROL, BOB] {
        as_user(user, || files.iter().try_for_each(|(path, mode)| probe(path, user, *mode)))?;
    }
    Ok(())
}

fn matrix_of_files(ctx: &Ctx) -> Outcome {
    for_every_class(ctx, |path, user, mode| {
        let rights = (mode >> class_of(user)) & 7;
        for wanted in [4, 2, 6] {
            let allowed = rights & wanted == wanted;
            let got = tries(path, wanted);
            ensure!(got.is_ok() == allowed, "{mode:o} as {} for {wanted}: {got:?}", user.uid);
            if !allowed {
                fails!(got, ACCESS);
            }
        }
        Ok(())
    })
}

fn matrix_of_access_call(ctx: &Ctx) -> Outcome {
    for_every_class(ctx, |path, user, mode| {
        let rights = (mode >> class_of(user)) & 7;
        for wanted in 0..8 {
            let got = os::access(path, wanted);
            let allowed = rights & wanted == wanted;
            ensure!(got.is_ok() == allowed, "{mode:o} as {} for {wanted}: {got:?}", user.uid);
        }
        Ok(())
    })
}

fn first_matching_class_decides(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o077)?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    as_user(ALICE, || {
        fails!(tries(&path, 4), ACCESS);
        Ok(())
    })?;
    os::chmod(&path, 0o707)?;
    as_user(CAROL, || {
        fails!(tries(&path, 4), ACCESS);
        Ok(())
    })?;
    as_user(BOB, || Ok(tries(&path, 6)?))
}

fn root_reads_and_writes_all(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0)?;
    tries(&path, 6)?;
    let dir = ctx.subdir("d", 0)?;
    os::write_file(dir.join("f"), b"")?;
    equal!(os::names(&dir)?.len(), 1);
    Ok(())
}

fn root_executes_only_marked_files(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o666)?;
    fails!(os::access(&path, 1), ACCESS);
    os::chmod(&path, 0o001)?;
    Ok(os::access(&path, 7)?)
}

fn directory_read_right(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o700)?;
    os::write_file(dir.join("f"), b"x")?;
    os::chmod(&dir, 0o711)?;
    as_user(BOB, || {
        fails!(os::names(&dir), ACCESS);
        equal!(os::read_all(dir.join("f"))?, b"x");
        Ok(())
    })
}

fn directory_search_right(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o700)?;
    os::write_file(dir.join("f"), b"x")?;
    os::chmod(&dir, 0o744)?;
    as_user(BOB, || {
        equal!(os::names(&dir)?, ["f"]);
        fails!(os::read_all(dir.join("f")), ACCESS);
        fails!(rustix::fs::stat(dir.join("f")), ACCESS);
        fails!(rustix::fs::stat(dir.join("missing")), ACCESS);
        Ok(())
    })
}

fn directory_write_right(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o755)?;
    os::write_file(dir.join("f"), b"x")?;
    os::mkdir(dir.join("e"), 0o777)?;
    as_user(BOB, || {
        fails!(os::open(dir.join("g"), OFlags::CREATE | OFlags::WRONLY, 0o600), ACCESS);
        fails!(os::mkdir(dir.join("g"), 0o700), ACCESS);
        fails!(symlink("x", dir.join("g")), ACCESS);
        fails!(unlink(dir.join("f")), ACCESS);
        fails!(rmdir(dir.join("e")), ACCESS);
        fails!(rename(dir.join("f"), dir.join("g")), ACCESS);
        fails!(rename(dir.join("f"), ctx.path("g")), ACCESS);
        Ok(())
    })
}

fn search_right_on_the_way(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let top = ctx.subdir("top", 0o755)?;
    os::mkdir(top.join("in"), 0o777)?;
    os::write_file(top.join("in/f"), b"x")?;
    as_user(BOB, || Ok(os::access(top.join("in/f"), 4)?))?;
    os::chmod(&top, 0o666)?;
    as_user(BOB, || {
        fails!(os::access(top.join("in/f"), 4), ACCESS);
        fails!(os::open(top.join("in/f"), OFlags::RDONLY, 0), ACCESS);
        fails!(unlink(top.join("in/f")), ACCESS);
        Ok(())
    })
}

fn permission_is_checked_at_open_only(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"still")?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    as_user(ALICE, || {
        let fd = os::open(&path, OFlags::RDWR, 0)?;
        os::chmod(&path, 0)?;
        equal!(os::read_at(&fd, 0, 9)?, b"still");
        os::write_at(&fd, 0, b"STILL")?;
        fails!(os::open(&path, OFlags::RDONLY, 0), ACCESS);
        equal!(os::read_at(&fd, 0, 9)?, b"STILL");
        Ok(())
    })
}

fn sticky(ctx: &Ctx) -> Outcome<std::path::PathBuf> {
    ctx.need_root()?;
    let dir = ctx.subdir("tmp", 0o777)?;
    os::write_file(dir.join("f"), b"x")?;
    os::mkdir(dir.join("d"), 0o777)?;
    for name in ["f", "d"] {
        os::chown(dir.join(name), Some(ALICE.uid), Some(ALICE.gid))?;
    }
    os::chmod(dir.join("f"), 0o666)?;
    os::chmod(dir.join("d"), 0o777)?;
    os::chmod(&dir, 0o1777)?;
    Ok(dir)
}

fn sticky_protects_from_unlink(ctx: &Ctx) -> Outcome {
    let dir = sticky(ctx)?;
    as_user(BOB, || {
        fails!(unlink(dir.join("f")), PERM | ACCESS);
        fails!(rmdir(dir.join("d")), PERM | ACCESS);
        Ok(())
    })
}

fn sticky_protects_from_rename(ctx: &Ctx) -> Outcome {
    let dir = sticky(ctx)?;
    as_user(BOB, || {
        fails!(rename(dir.join("f"), dir.join("g")), PERM | ACCESS);
        os::write_file(dir.join("mine"), b"m")?;
        fails!(rename(dir.join("mine"), dir.join("f")), PERM | ACCESS);
        Ok(rename(dir.join("mine"), dir.join("mine2"))?)
    })?;
    equal!(os::read_all(dir.join("f"))?, b"x");
    Ok(())
}

fn sticky_allows_owners(ctx: &Ctx) -> Outcome {
    let dir = sticky(ctx)?;
    as_user(ALICE, || {
        rename(dir.join("f"), dir.join("g"))?;
        unlink(dir.join("g"))?;
        Ok(rmdir(dir.join("d"))?)
    })
}

fn sticky_allows_the_directory_owner(ctx: &Ctx) -> Outcome {
    let dir = sticky(ctx)?;
    os::chown(&dir, Some(BOB.uid), Some(BOB.gid))?;
    os::chmod(&dir, 0o1777)?;
    as_user(BOB, || {
        unlink(dir.join("f"))?;
        Ok(rmdir(dir.join("d"))?)
    })
}

fn supplementary_group_opens(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o060)?;
    os::chown(&path, Some(0), Some(CAROL.groups[0]))?;
    as_user(CAROL, || Ok(tries(&path, 6)?))?;
    as_user(BOB, || {
        fails!(tries(&path, 4), ACCESS);
        Ok(())
    })
}

fn supplementary_group_creates(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o770)?;
    os::chown(&dir, Some(0), Some(CAROL.groups[0]))?;
    as_user(CAROL, || {
        os::write_file(dir.join("f"), b"x")?;
        rename(dir.join("f"), dir.join("g"))?;
        Ok(unlink(dir.join("g"))?)
    })?;
    as_user(BOB, || {
        fails!(os::write_file(dir.join("f"), b"x"), ACCESS);
        Ok(())
    })
}

fn truncate_needs_write_right(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o644)?;
    as_user(BOB, || {
        fails!(os::truncate(&path, 0), ACCESS);
        fails!(os::open(&path, OFlags::RDONLY | OFlags::TRUNC, 0), ACCESS);
        Ok(())
    })?;
    os::chmod(&path, 0o646)?;
    as_user(BOB, || Ok(os::truncate(&path, 10)?))
}

fn utimens_needs_ownership(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o666)?;
    let now = os::times((0, libc::UTIME_NOW), (0, libc::UTIME_NOW));
    as_user(BOB, || {
        os::utimens(&path, &now)?;
        fails!(os::utimens(&path, &os::times((1, 0), (2, 0))), PERM);
        fails!(os::utimens(&path, &os::times((0, libc::UTIME_OMIT), (0, libc::UTIME_NOW))), PERM);
        Ok(())
    })?;
    os::chmod(&path, 0o644)?;
    as_user(BOB, || {
        fails!(os::utimens(&path, &now), ACCESS);
        Ok(())
    })
}

fn access_of_missing(ctx: &Ctx) -> Outcome {
    fails!(os::access(ctx.path("no"), 0), NOENT);
    ctx.file("f", b"")?;
    fails!(os::access(ctx.path("f/x"), 0), NOTDIR);
    symlink("no", ctx.path("l"))?;
    fails!(os::access(ctx.path("l"), 0), NOENT);
    Ok(())
}

fn execute_script(ctx: &Ctx) -> Outcome {
    let path = ctx.file("run", b"#!/bin/sh\nexit 7\n")?;
    let denied = std::process::Command::new(&path).status();
    ensure!(denied.is_err(), "a file without execute right was started");
    os::chmod(&path, 0o755)?;
    let status = std::process::Command::new(&path).status()?;
    equal!(status.code(), Some(7));
    Ok(())
}

fn chdir_needs_search(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o666)?;
    as_user(BOB, || {
        fails!(rustix::process::chdir(&dir), ACCESS);
        Ok(())
    })?;
    os::chmod(&dir, 0o111)?;
    as_user(BOB, || Ok(rustix::process::chdir(&dir)?))
}

fn link_needs_directory_write(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o666)?;
    os::chown(&path, Some(BOB.uid), Some(BOB.gid))?;
    let dir = ctx.subdir("d", 0o755)?;
    as_user(BOB, || {
        fails!(link(&path, dir.join("g")), ACCESS);
        Ok(link(&path, ctx.path("g"))?)
    })
}

fn access_uses_real_ids(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o600)?;
    crate::process::in_child(|| {
        // SAFETY: plain calls on numbers in a single-threaded child.
        let set = unsafe { libc::setresuid(BOB.uid, 0, 0) };
        equal!(set, 0);
        fails!(os::access(&path, 4), ACCESS);
        Ok(tries(&path, 4)?)
    })
}

fn readlink_needs_no_right(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    symlink("target", ctx.path("l"))?;
    as_user(BOB, || {
        equal!(os::readlink(ctx.path("l"))?, "target");
        Ok(())
    })
}

fn change_of_mode_counts_at_once(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o600)?;
    for _ in 0..5 {
        as_user(BOB, || {
            fails!(tries(&path, 4), ACCESS);
            Ok(())
        })?;
        os::chmod(&path, 0o604)?;
        as_user(BOB, || Ok(tries(&path, 4)?))?;
        os::chmod(&path, 0o600)?;
    }
    Ok(())
}

fn change_of_group_counts_at_once(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o640)?;
    as_user(BOB, || {
        fails!(tries(&path, 4), ACCESS);
        Ok(())
    })?;
    os::chown(&path, None, Some(BOB.gid))?;
    as_user(BOB, || Ok(tries(&path, 4)?))
}
