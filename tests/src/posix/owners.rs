//! chown and its rules.

use rustix::fs::{lstat, stat, symlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};
use crate::process::{ALICE, BOB, CAROL, User, as_user};

checks!("owners":
    root_sets_any_owner, minus_one_leaves_an_id, owner_may_not_give_away, owner_may_give_to_own_group,
    owner_may_give_to_supplementary_group, owner_may_not_give_to_foreign_group,
    others_may_not_change_the_group, chown_follows_and_lchown_does_not, fchown_equals_chown,
    chown_clears_setuid_and_setgid, chown_of_directory_keeps_setgid, chown_by_owner_clears_setuid,
    chown_to_the_same_ids_by_owner, large_ids_are_kept, chown_updates_ctime, chown_of_missing,
    chown_of_unlinked_descriptor, chown_keeps_acl_free_modes,
);

fn owner(path: impl AsRef<std::path::Path>) -> os::Call<(u32, u32)> {
    let found = lstat(path.as_ref())?;
    Ok((found.st_uid, found.st_gid))
}

fn root_sets_any_owner(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    os::chown(&path, Some(12), Some(34))?;
    equal!(owner(&path)?, (12, 34));
    let dir = ctx.subdir("d", 0o755)?;
    os::chown(&dir, Some(56), Some(78))?;
    equal!(owner(&dir)?, (56, 78));
    Ok(())
}

fn minus_one_leaves_an_id(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    os::chown(&path, Some(12), Some(34))?;
    os::chown(&path, None, Some(35))?;
    equal!(owner(&path)?, (12, 35));
    os::chown(&path, Some(13), None)?;
    equal!(owner(&path)?, (13, 35));
    os::chown(&path, None, None)?;
    equal!(owner(&path)?, (13, 35));
    Ok(())
}

fn owned_by(ctx: &Ctx, user: User) -> Outcome<std::path::PathBuf> {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    os::chown(&path, Some(user.uid), Some(user.gid))?;
    Ok(path)
}

fn owner_may_not_give_away(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, ALICE)?;
    as_user(ALICE, || {
        fails!(os::chown(&path, Some(BOB.uid), None), PERM);
        fails!(os::chown(&path, Some(0), Some(0)), PERM);
        Ok(())
    })?;
    equal!(owner(&path)?, (ALICE.uid, ALICE.gid));
    Ok(())
}

fn owner_may_give_to_own_group(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, ALICE)?;
    os::chown(&path, None, Some(0))?;
    as_user(ALICE, || Ok(os::chown(&path, None, Some(ALICE.gid))?))?;
    equal!(owner(&path)?, (ALICE.uid, ALICE.gid));
    Ok(())
}

fn owner_may_give_to_supplementary_group(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, CAROL)?;
    as_user(CAROL, || Ok(os::chown(&path, None, Some(CAROL.groups[0]))?))?;
    equal!(owner(&path)?, (CAROL.uid, CAROL.groups[0]));
    Ok(())
}

fn owner_may_not_give_to_foreign_group(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, ALICE)?;
    as_user(ALICE, || {
        fails!(os::chown(&path, None, Some(BOB.gid)), PERM);
        Ok(())
    })
}

fn others_may_not_change_the_group(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, ALICE)?;
    os::chmod(&path, 0o666)?;
    as_user(BOB, || {
        fails!(os::chown(&path, None, Some(BOB.gid)), PERM);
        fails!(os::fchown(os::open(&path, OFlags::RDWR, 0)?, None, Some(BOB.gid)), PERM);
        Ok(())
    })
}

fn chown_follows_and_lchown_does_not(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    let link = ctx.path("l");
    symlink("f", &link)?;
    os::chown(&link, Some(12), Some(34))?;
    equal!(owner(&path)?, (12, 34));
    equal!(owner(&link)?, (0, 0));
    os::lchown(&link, Some(56), Some(78))?;
    equal!(owner(&path)?, (12, 34));
    equal!(owner(&link)?, (56, 78));
    Ok(())
}

fn fchown_equals_chown(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let fd = ctx.open_new("f", b"")?;
    os::fchown(&fd, Some(12), Some(34))?;
    equal!(owner(ctx.path("f"))?, (12, 34));
    Ok(())
}

fn chown_clears_setuid_and_setgid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file_with_mode("f", 0o6777)?;
    os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?;
    equal!(os::permissions(&path)?, 0o777);
    Ok(())
}

fn chown_of_directory_keeps_setgid(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o2775)?;
    os::chown(&dir, Some(ALICE.uid), Some(ALICE.gid))?;
    equal!(os::permissions(&dir)?, 0o2775);
    Ok(())
}

fn chown_by_owner_clears_setuid(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, CAROL)?;
    os::chmod(&path, 0o6755)?;
    as_user(CAROL, || Ok(os::chown(&path, None, Some(CAROL.groups[0]))?))?;
    equal!(os::permissions(&path)?, 0o755);
    Ok(())
}

fn chown_to_the_same_ids_by_owner(ctx: &Ctx) -> Outcome {
    let path = owned_by(ctx, ALICE)?;
    as_user(ALICE, || Ok(os::chown(&path, Some(ALICE.uid), Some(ALICE.gid))?))?;
    equal!(owner(&path)?, (ALICE.uid, ALICE.gid));
    Ok(())
}

fn large_ids_are_kept(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    os::chown(&path, Some(0xffff_fffe), Some(0x8000_0001))?;
    equal!(owner(&path)?, (0xffff_fffe, 0x8000_0001));
    Ok(())
}

fn chown_updates_ctime(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.file("f", b"")?;
    let before = stat(&path)?;
    os::tick();
    os::chown(&path, Some(1), Some(1))?;
    let after = stat(&path)?;
    ensure!(os::ctime(&after) > os::ctime(&before));
    equal!(os::mtime(&after), os::mtime(&before));
    Ok(())
}

fn chown_of_missing(ctx: &Ctx) -> Outcome {
    fails!(os::chown(ctx.path("no"), Some(0), Some(0)), NOENT);
    symlink("no", ctx.path("l"))?;
    fails!(os::chown(ctx.path("l"), Some(0), Some(0)), NOENT);
    ctx.file("f", b"")?;
    fails!(os::chown(ctx.path("f/x"), Some(0), Some(0)), NOTDIR);
    Ok(())
}

fn chown_of_unlinked_descriptor(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let fd = ctx.open_new("f", b"")?;
    rustix::fs::unlink(ctx.path("f"))?;
    os::fchown(&fd, Some(12), Some(34))?;
    let found = rustix::fs::fstat(&fd)?;
    equal!((found.st_uid, found.st_gid), (12, 34));
    Ok(())
}

fn chown_keeps_acl_free_modes(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    for mode in [0o000, 0o640, 0o1777, 0o111] {
        let dir = ctx.subdir(&format!("d{mode:o}"), mode)?;
        os::chown(&dir, Some(ALICE.uid), Some(ALICE.gid))?;
        equal!(os::permissions(&dir)?, mode);
    }
    Ok(())
}
