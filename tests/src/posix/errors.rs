//! Errors of path resolution and of wrong arguments.

use rustix::fs::{mkdirat, rename, rmdir, stat, symlink, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};

checks!("errors":
    symlink_loop, symlink_chain_of_forty, symlink_chain_too_long, file_in_the_middle_of_a_path,
    missing_directory_in_the_middle, symlink_to_file_with_slash, readlink_of_file,
    closed_descriptor, negative_offsets, too_large_offset, pipe_is_not_seekable,
    directory_operations_on_files, unlink_of_root_is_refused, mkdirat_with_file_descriptor,
    read_into_directory, symlink_through_directories, wrong_pointer_is_refused,
);

fn symlink_loop(ctx: &Ctx) -> Outcome {
    symlink("b", ctx.path("a"))?;
    symlink("a", ctx.path("b"))?;
    fails!(stat(ctx.path("a")), LOOP);
    fails!(os::open(ctx.path("a"), OFlags::RDONLY, 0), LOOP);
    fails!(os::open(ctx.path("a"), OFlags::CREATE | OFlags::WRONLY, 0o600), LOOP);
    fails!(os::truncate(ctx.path("a"), 0), LOOP);
    fails!(os::chmod(ctx.path("a"), 0o600), LOOP);
    fails!(os::mkdir(ctx.path("a/x"), 0o600), LOOP);
    fails!(rename(ctx.path("a/x"), ctx.path("c")), LOOP);
    Ok(unlink(ctx.path("a"))?)
}

fn chain(ctx: &Ctx, length: usize) -> Outcome<std::path::PathBuf> {
    ctx.file("link0", b"end")?;
    for i in 1..=length {
        symlink(format!("link{}", i - 1), ctx.path(format!("link{i}")))?;
    }
    Ok(ctx.path(format!("link{length}")))
}

fn symlink_chain_of_forty(ctx: &Ctx) -> Outcome {
    equal!(os::read_all(chain(ctx, 40)?)?, b"end");
    Ok(())
}

fn symlink_chain_too_long(ctx: &Ctx) -> Outcome {
    fails!(os::read_all(chain(ctx, 41)?), LOOP);
    Ok(())
}

fn file_in_the_middle_of_a_path(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    let path = ctx.path("f/x");
    fails!(stat(&path), NOTDIR);
    fails!(os::open(&path, OFlags::RDONLY, 0), NOTDIR);
    fails!(unlink(&path), NOTDIR);
    fails!(rmdir(&path), NOTDIR);
    fails!(os::readlink(&path), NOTDIR);
    fails!(os::getxattr(&path, "user.a"), NOTDIR);
    fails!(os::utimens(&path, &os::times((0, 0), (0, 0))), NOTDIR);
    Ok(())
}

fn missing_directory_in_the_middle(ctx: &Ctx) -> Outcome {
    let path = ctx.path("no/x");
    fails!(stat(&path), NOENT);
    fails!(unlink(&path), NOENT);
    fails!(rmdir(&path), NOENT);
    fails!(os::readlink(&path), NOENT);
    fails!(os::truncate(&path, 0), NOENT);
    Ok(())
}

fn symlink_to_file_with_slash(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    fails!(stat(ctx.path("l/")), NOTDIR);
    symlink("f/", ctx.path("m"))?;
    fails!(stat(ctx.path("m")), NOTDIR);
    Ok(())
}

fn readlink_of_file(ctx: &Ctx) -> Outcome {
    fails!(os::readlink(ctx.file("f", b"")?), INVAL);
    fails!(os::readlink(ctx.dir()), INVAL);
    Ok(())
}

fn closed_descriptor(ctx: &Ctx) -> Outcome {
    use std::os::fd::{AsRawFd, BorrowedFd};
    crate::process::in_child(|| {
        let fd = ctx.open_new("f", b"")?;
        let number = fd.as_raw_fd();
        drop(fd);
        // SAFETY: the child is single-threaded, so nobody else gets this number; using a closed
        // one is the purpose.
        let closed = unsafe { BorrowedFd::borrow_raw(number) };
        fails!(os::read_at(closed, 0, 1), BADF);
        fails!(rustix::fs::fstat(closed), BADF);
        Ok(())
    })
}

fn negative_offsets(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    fails!(rustix::io::pread(&fd, &mut [0; 1][..], -5_i64 as u64), INVAL);
    fails!(rustix::io::pwrite(&fd, b"x", -5_i64 as u64), INVAL);
    Ok(())
}

fn too_large_offset(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    fails!(rustix::io::pwrite(&fd, b"xx", i64::MAX as u64 - 1), FBIG | INVAL);
    equal!(os::size(ctx.path("f"))?, 0);
    Ok(())
}

fn pipe_is_not_seekable(ctx: &Ctx) -> Outcome {
    os::mknod(ctx.path("p"), os::FileType::Fifo, 0o600, 0)?;
    let fd = os::open(ctx.path("p"), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
    fails!(rustix::fs::tell(&fd), SPIPE);
    fails!(os::read_at(&fd, 1, 1), SPIPE);
    Ok(())
}

fn directory_operations_on_files(ctx: &Ctx) -> Outcome {
    let file = ctx.file("f", b"")?;
    fails!(rmdir(&file), NOTDIR);
    fails!(os::names(&file), NOTDIR);
    crate::process::in_child(|| {
        fails!(rustix::process::chdir(&file), NOTDIR);
        Ok(())
    })
}

fn unlink_of_root_is_refused(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    fails!(rmdir(ctx.dir()), NOTEMPTY | EXIST | BUSY);
    fails!(unlink(ctx.dir()), ISDIR | PERM);
    Ok(())
}

fn mkdirat_with_file_descriptor(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    fails!(mkdirat(&fd, "x", rustix::fs::Mode::RWXU), NOTDIR);
    Ok(())
}

fn read_into_directory(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.dir(), OFlags::RDONLY, 0)?;
    fails!(os::read_at(&fd, 0, 10), ISDIR);
    fails!(os::write_at(&fd, 0, b"x"), BADF);
    Ok(())
}

fn symlink_through_directories(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::write_file(dir.join("f"), b"x")?;
    symlink("../d", dir.join("up"))?;
    symlink("d", ctx.path("l"))?;
    equal!(os::read_all(ctx.path("l/up/up/up/f"))?, b"x");
    fails!(rmdir(ctx.path("l")), NOTDIR);
    equal!(os::names(ctx.path("l"))?, ["f", "up"]);
    Ok(())
}

fn wrong_pointer_is_refused(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsRawFd;
    let fd = ctx.open_new("f", b"12345")?;
    // SAFETY: address 8 is never mapped, so the kernel refuses it; nothing is dereferenced here.
    let returned = unsafe { libc::pwrite(fd.as_raw_fd(), 8 as *const libc::c_void, 5, 0) };
    equal!(returned, -1);
    equal!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    equal!(os::read_all(ctx.path("f"))?, b"12345");
    Ok(())
}
