//! fsync, fdatasync, syncfs.

use rustix::fs::{fdatasync, fsync, syncfs};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};
use crate::random::pattern;

checks!("sync":
    fsync_of_written_file, fdatasync_of_written_file, fsync_of_read_only_descriptor,
    fsync_of_directory, syncfs_succeeds, fsync_of_renamed_file, fsync_of_pipe_is_refused,
    sync_file_range_or_refusal, fsync_after_truncate, safe_save_pattern,
);

fn fsync_of_written_file(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(1, 100_000))?;
    fsync(&fd)?;
    os::write_at(&fd, 50_000, b"more")?;
    fsync(&fd)?;
    equal!(os::read_at(&fd, 50_000, 4)?, b"more");
    Ok(())
}

fn fdatasync_of_written_file(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    for i in 0..10 {
        os::write_at(&fd, i * 1000, &[i as u8; 1000])?;
        fdatasync(&fd)?;
    }
    equal!(os::size(ctx.path("f"))?, 10_000);
    Ok(())
}

fn fsync_of_read_only_descriptor(ctx: &Ctx) -> Outcome {
    Ok(fsync(os::open(ctx.file("f", b"x")?, OFlags::RDONLY, 0)?)?)
}

fn fsync_of_directory(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"x")?;
    let dir = os::open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    fsync(&dir)?;
    Ok(fdatasync(&dir)?)
}

fn syncfs_succeeds(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    Ok(syncfs(&fd)?)
}

fn fsync_of_renamed_file(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    rustix::fs::rename(ctx.path("f"), ctx.path("g"))?;
    fsync(&fd)?;
    rustix::fs::unlink(ctx.path("g"))?;
    Ok(fsync(&fd)?)
}

fn fsync_of_pipe_is_refused(ctx: &Ctx) -> Outcome {
    os::mknod(ctx.path("p"), os::FileType::Fifo, 0o600, 0)?;
    let fd = os::open(ctx.path("p"), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
    fails!(fsync(&fd), INVAL);
    Ok(())
}

fn sync_file_range_or_refusal(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsRawFd;
    let fd = ctx.open_new("f", &[1; 10_000])?;
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: plain numbers and an open descriptor.
    let returned = unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 5000, flags) };
    equal!(returned, 0);
    Ok(())
}

fn fsync_after_truncate(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 10_000])?;
    rustix::fs::ftruncate(&fd, 10)?;
    fsync(&fd)?;
    equal!(os::size(ctx.path("f"))?, 10);
    Ok(())
}

fn safe_save_pattern(ctx: &Ctx) -> Outcome {
    // As editors and databases save: write beside, sync, rename over, sync the directory.
    let dir = os::open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    for version in 0..20_u8 {
        let fd = os::open(ctx.path("new"), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o644)?;
        os::write_all(&fd, &[version; 5000])?;
        fsync(&fd)?;
        drop(fd);
        rustix::fs::rename(ctx.path("new"), ctx.path("f"))?;
        fsync(&dir)?;
        ensure!(os::read_all(ctx.path("f"))? == [version; 5000]);
    }
    Ok(())
}
