//! Hard links.

use std::os::fd::AsRawFd;

use rustix::fs::{fstat, link, linkat, stat, symlink, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, AtFlags, CWD, FileType, OFlags};

checks!("links":
    two_names_are_one_file, nlink_counts_names, content_written_through_one_is_read_by_other,
    last_unlink_ends_the_file, link_over_existing_name, link_of_missing, link_of_directory,
    link_of_symlink_links_the_symlink, linkat_follow_links_the_target, link_of_fifo,
    link_of_unlinked_descriptor_is_refused, tmpfile_becomes_a_name, tmpfile_excl_stays_nameless,
    tmpfile_has_no_name, link_through_descriptor, link_updates_ctime, link_across_directories,
    many_links, open_descriptor_sees_link_count, directory_nlink_counts_subdirectories,
    link_into_missing_directory,
);

fn two_names_are_one_file(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"same")?;
    link(&path, ctx.path("b"))?;
    let (a, b) = (stat(&path)?, stat(ctx.path("b"))?);
    equal!((a.st_ino, a.st_dev), (b.st_ino, b.st_dev));
    equal!(os::read_all(ctx.path("b"))?, b"same");
    Ok(())
}

fn nlink_counts_names(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"")?;
    for count in 2..6 {
        link(&path, ctx.path(format!("n{count}")))?;
        equal!(stat(&path)?.st_nlink, count);
    }
    for count in (2..6).rev() {
        unlink(ctx.path(format!("n{count}")))?;
        equal!(stat(&path)?.st_nlink, count - 1);
    }
    Ok(())
}

fn content_written_through_one_is_read_by_other(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"old")?;
    link(&path, ctx.path("b"))?;
    let reader = os::open(&path, OFlags::RDONLY, 0)?;
    os::write_file(ctx.path("b"), b"newer")?;
    equal!(os::read_at(&reader, 0, 9)?, b"newer");
    equal!(os::read_all(&path)?, b"newer");
    equal!(os::size(&path)?, 5);
    os::truncate(&path, 2)?;
    equal!(os::size(ctx.path("b"))?, 2);
    Ok(())
}

fn last_unlink_ends_the_file(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"x")?;
    link(&path, ctx.path("b"))?;
    unlink(&path)?;
    equal!(os::read_all(ctx.path("b"))?, b"x");
    unlink(ctx.path("b"))?;
    fails!(stat(ctx.path("b")), NOENT);
    Ok(())
}

fn link_over_existing_name(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"")?;
    ctx.file("b", b"kept")?;
    ctx.subdir("d", 0o755)?;
    symlink("nowhere", ctx.path("l"))?;
    for name in ["b", "d", "l", "a"] {
        fails!(link(&path, ctx.path(name)), EXIST);
    }
    equal!(os::read_all(ctx.path("b"))?, b"kept");
    equal!(stat(&path)?.st_nlink, 1);
    Ok(())
}

fn link_of_missing(ctx: &Ctx) -> Outcome {
    fails!(link(ctx.path("no"), ctx.path("b")), NOENT);
    ctx.file("f", b"")?;
    fails!(link(ctx.path("f/x"), ctx.path("b")), NOTDIR);
    fails!(link(ctx.path("f"), ctx.path("f/x")), NOTDIR);
    Ok(())
}

fn link_into_missing_directory(ctx: &Ctx) -> Outcome {
    fails!(link(ctx.file("f", b"")?, ctx.path("no/f")), NOENT);
    Ok(())
}

fn link_of_directory(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    fails!(link(&dir, ctx.path("e")), PERM);
    Ok(())
}

fn link_of_symlink_links_the_symlink(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    linkat(CWD, ctx.path("l"), CWD, ctx.path("m"), AtFlags::empty())?;
    equal!(os::file_type(ctx.path("m"))?, FileType::Symlink);
    equal!(os::readlink(ctx.path("m"))?, "f");
    equal!(rustix::fs::lstat(ctx.path("l"))?.st_nlink, 2);
    Ok(())
}

fn linkat_follow_links_the_target(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    linkat(CWD, ctx.path("l"), CWD, ctx.path("m"), AtFlags::SYMLINK_FOLLOW)?;
    equal!(stat(&path)?.st_nlink, 2);
    equal!(stat(ctx.path("m"))?.st_ino, stat(&path)?.st_ino);
    Ok(())
}

fn link_of_fifo(ctx: &Ctx) -> Outcome {
    os::mknod(ctx.path("p"), FileType::Fifo, 0o600, 0)?;
    link(ctx.path("p"), ctx.path("q"))?;
    equal!(os::file_type(ctx.path("q"))?, FileType::Fifo);
    equal!(stat(ctx.path("p"))?.st_nlink, 2);
    Ok(())
}

fn by_descriptor(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn link_of_unlinked_descriptor_is_refused(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    unlink(ctx.path("f"))?;
    fails!(linkat(CWD, by_descriptor(&fd), CWD, ctx.path("g"), AtFlags::SYMLINK_FOLLOW), NOENT);
    equal!(fstat(&fd)?.st_nlink, 0);
    Ok(())
}

/// O_TMPFILE may be refused with EOPNOTSUPP; then it must not leave anything behind.
fn tmpfile(ctx: &Ctx, flags: OFlags) -> Outcome<std::os::fd::OwnedFd> {
    match os::open(ctx.dir(), OFlags::TMPFILE | OFlags::RDWR | flags, 0o600) {
        Err(os::Errno::OPNOTSUPP) => {
            ensure!(os::names(ctx.dir())?.is_empty(), "a refused O_TMPFILE left a name");
            Err(crate::Failure::Skipped("O_TMPFILE is not supported".into()))
        }
        other => Ok(other?),
    }
}

fn tmpfile_becomes_a_name(ctx: &Ctx) -> Outcome {
    let fd = tmpfile(ctx, OFlags::empty())?;
    os::write_all(&fd, b"whole")?;
    linkat(CWD, by_descriptor(&fd), CWD, ctx.path("f"), AtFlags::SYMLINK_FOLLOW)?;
    equal!(os::read_all(ctx.path("f"))?, b"whole");
    equal!(fstat(&fd)?.st_nlink, 1);
    equal!(fstat(&fd)?.st_ino, stat(ctx.path("f"))?.st_ino);
    Ok(())
}

fn tmpfile_excl_stays_nameless(ctx: &Ctx) -> Outcome {
    let fd = tmpfile(ctx, OFlags::EXCL)?;
    fails!(linkat(CWD, by_descriptor(&fd), CWD, ctx.path("f"), AtFlags::SYMLINK_FOLLOW), NOENT);
    Ok(())
}

fn tmpfile_has_no_name(ctx: &Ctx) -> Outcome {
    let fd = tmpfile(ctx, OFlags::empty())?;
    os::write_at(&fd, 0, &[7; 10_000])?;
    equal!(os::read_at(&fd, 0, 20_000)?, [7; 10_000]);
    equal!(fstat(&fd)?.st_nlink, 0);
    equal!(fstat(&fd)?.st_mode & 0o777, 0o600);
    equal!(os::names(ctx.dir())?.len(), 0);
    Ok(())
}

fn link_through_descriptor(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    linkat(CWD, by_descriptor(&fd), CWD, ctx.path("g"), AtFlags::SYMLINK_FOLLOW)?;
    unlink(ctx.path("f"))?;
    equal!(os::read_all(ctx.path("g"))?, b"x");
    Ok(())
}

fn link_updates_ctime(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let (file, dir) = (stat(&path)?, stat(ctx.dir())?);
    os::tick();
    link(&path, ctx.path("g"))?;
    ensure!(os::ctime(&stat(&path)?) > os::ctime(&file));
    equal!(os::mtime(&stat(&path)?), os::mtime(&file));
    ensure!(os::mtime(&stat(ctx.dir())?) > os::mtime(&dir));
    Ok(())
}

fn link_across_directories(ctx: &Ctx) -> Outcome {
    let (a, b) = (ctx.subdir("a", 0o755)?, ctx.subdir("b", 0o755)?);
    os::write_file(a.join("f"), b"x")?;
    link(a.join("f"), b.join("g"))?;
    rustix::fs::rename(a.join("f"), b.join("f"))?;
    rustix::fs::rmdir(&a)?;
    equal!(stat(b.join("g"))?.st_nlink, 2);
    equal!(os::names(&b)?, ["f", "g"]);
    Ok(())
}

fn many_links(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    for i in 0..500 {
        link(&path, ctx.path(format!("{i}")))?;
    }
    equal!(stat(&path)?.st_nlink, 501);
    Ok(())
}

fn open_descriptor_sees_link_count(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    link(ctx.path("f"), ctx.path("g"))?;
    equal!(fstat(&fd)?.st_nlink, 2);
    unlink(ctx.path("f"))?;
    equal!(fstat(&fd)?.st_nlink, 1);
    unlink(ctx.path("g"))?;
    equal!(fstat(&fd)?.st_nlink, 0);
    Ok(())
}

fn directory_nlink_counts_subdirectories(ctx: &Ctx) -> Outcome {
    // A file system may also keep directories at 1 (btrfs does): "not counted".
    let start = stat(ctx.dir())?.st_nlink;
    for i in 0..3 {
        ctx.subdir(&format!("d{i}"), 0o755)?;
    }
    ctx.file("f", b"")?;
    let now = stat(ctx.dir())?.st_nlink;
    ensure!(now == start + 3 || (start == 1 && now == 1), "{start} became {now}");
    rustix::fs::rmdir(ctx.path("d1"))?;
    let after = stat(ctx.dir())?.st_nlink;
    ensure!(after == start + 2 || (start == 1 && after == 1), "{now} became {after}");
    Ok(())
}
