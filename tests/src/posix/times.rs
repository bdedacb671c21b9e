//! Timestamps.

use rustix::fs::{Stat, fstat, lstat, stat, symlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, AtFlags, CWD, OFlags};

checks!("times":
    nanoseconds_are_kept, before_1970, beyond_2038, omit_leaves_a_time, now_is_now,
    futimens_equals_utimensat, nofollow_sets_the_symlink, bad_nanoseconds, write_moves_mtime_and_ctime,
    read_leaves_mtime_and_ctime, chmod_moves_ctime_only, stat_right_after_close_shows_the_write, create_moves_the_directory,
    mkdir_and_symlink_move_the_directory, new_file_has_now, times_never_run_backwards,
    explicit_time_survives_close, explicit_time_survives_later_reads, stat_equals_fstat,
    statx_birth_time_if_present, atime_can_be_set_alone, write_of_nothing_moves_nothing,
    readers_of_directory_leave_mtime,
);

type Moment = (i64, i64);

fn three(found: &Stat) -> (Moment, Moment, Moment) {
    (os::atime(found), os::mtime(found), os::ctime(found))
}

fn nanoseconds_are_kept(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    for (atime, mtime) in [((1, 1), (2, 999_999_999)), ((1_600_000_000, 123_456_789), (3, 0))] {
        os::utimens(&path, &os::times(atime, mtime))?;
        let found = stat(&path)?;
        equal!((os::atime(&found), os::mtime(&found)), (atime, mtime));
    }
    Ok(())
}

fn before_1970(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    os::utimens(&path, &os::times((-5, 5), (-1_000_000, 7)))?;
    let found = stat(&path)?;
    equal!((os::atime(&found), os::mtime(&found)), ((-5, 5), (-1_000_000, 7)));
    Ok(())
}

fn beyond_2038(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    os::utimens(&path, &os::times((4_000_000_000, 5), (5_000_000_000, 7)))?;
    let found = stat(&path)?;
    equal!((os::atime(&found), os::mtime(&found)), ((4_000_000_000, 5), (5_000_000_000, 7)));
    Ok(())
}

fn omit_leaves_a_time(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    os::utimens(&path, &os::times((10, 1), (20, 2)))?;
    os::utimens(&path, &os::times((0, libc::UTIME_OMIT), (30, 3)))?;
    let found = stat(&path)?;
    equal!((os::atime(&found), os::mtime(&found)), ((10, 1), (30, 3)));
    os::utimens(&path, &os::times((0, libc::UTIME_OMIT), (0, libc::UTIME_OMIT)))?;
    equal!(three(&stat(&path)?), three(&found));
    Ok(())
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

fn now_is_now(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    os::utimens(&path, &os::times((10, 1), (20, 2)))?;
    let start = now() - 1;
    os::utimens(&path, &os::times((0, libc::UTIME_NOW), (0, libc::UTIME_NOW)))?;
    let found = stat(&path)?;
    ensure!((start..=now() + 1).contains(&found.st_atime), "{}", found.st_atime);
    ensure!((start..=now() + 1).contains(&found.st_mtime), "{}", found.st_mtime);
    Ok(())
}

fn futimens_equals_utimensat(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    rustix::fs::futimens(&fd, &os::times((10, 1), (20, 2)))?;
    equal!(os::mtime(&stat(ctx.path("f"))?), (20, 2));
    Ok(())
}

fn nofollow_sets_the_symlink(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let link = ctx.path("l");
    symlink("f", &link)?;
    os::utimens(&link, &os::times((10, 1), (20, 2)))?;
    equal!(os::mtime(&stat(&path)?), (20, 2));
    let times = os::times((30, 3), (40, 4));
    rustix::fs::utimensat(CWD, &link, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    equal!(os::mtime(&lstat(&link)?), (40, 4));
    equal!(os::mtime(&stat(&path)?), (20, 2));
    Ok(())
}

fn bad_nanoseconds(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(os::utimens(&path, &os::times((1, 1_000_000_000), (1, 0))), INVAL);
    fails!(os::utimens(ctx.path("no"), &os::times((1, 0), (1, 0))), NOENT);
    Ok(())
}

fn write_moves_mtime_and_ctime(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    for _ in 0..3 {
        let before = fstat(&fd)?;
        os::tick();
        os::write_at(&fd, 0, b"y")?;
        let after = stat(ctx.path("f"))?;
        ensure!(os::mtime(&after) > os::mtime(&before));
        ensure!(os::ctime(&after) > os::ctime(&before));
    }
    Ok(())
}

fn read_leaves_mtime_and_ctime(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"x")?;
    let before = stat(&path)?;
    os::tick();
    os::read_all(&path)?;
    let after = stat(&path)?;
    equal!((os::mtime(&after), os::ctime(&after)), (os::mtime(&before), os::ctime(&before)));
    Ok(())
}

fn stat_right_after_close_shows_the_write(ctx: &Ctx) -> Outcome {
    for i in 1..300_usize {
        let path = ctx.file("f", &vec![7; i])?;
        let first = stat(&path)?;
        equal!(first.st_size as usize, i);
        os::chmod(&path, 0o600)?;
        let second = stat(&path)?;
        equal!((second.st_size as usize, os::mtime(&second)), (i, os::mtime(&first)));
    }
    Ok(())
}

fn chmod_moves_ctime_only(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"x")?;
    let before = stat(&path)?;
    os::tick();
    os::chmod(&path, 0o600)?;
    let after = stat(&path)?;
    ensure!(os::ctime(&after) > os::ctime(&before));
    equal!(os::mtime(&after), os::mtime(&before));
    Ok(())
}

fn moves_directory(ctx: &Ctx, change: impl FnOnce() -> os::Call) -> Outcome {
    let before = stat(ctx.dir())?;
    os::tick();
    change()?;
    let after = stat(ctx.dir())?;
    ensure!(os::mtime(&after) > os::mtime(&before), "mtime of the directory stayed");
    ensure!(os::ctime(&after) > os::ctime(&before), "ctime of the directory stayed");
    Ok(())
}

fn create_moves_the_directory(ctx: &Ctx) -> Outcome {
    moves_directory(ctx, || os::write_file(ctx.path("f"), b""))
}

fn mkdir_and_symlink_move_the_directory(ctx: &Ctx) -> Outcome {
    moves_directory(ctx, || os::mkdir(ctx.path("d"), 0o755))?;
    moves_directory(ctx, || symlink("x", ctx.path("l")))?;
    moves_directory(ctx, || os::mknod(ctx.path("p"), os::FileType::Fifo, 0o600, 0))?;
    moves_directory(ctx, || rustix::fs::rmdir(ctx.path("d")))
}

fn new_file_has_now(ctx: &Ctx) -> Outcome {
    let start = now() - 1;
    let found = stat(ctx.file("f", b"")?)?;
    for (seconds, _) in [os::atime(&found), os::mtime(&found), os::ctime(&found)] {
        ensure!((start..=now() + 1).contains(&seconds), "{seconds} is not now");
    }
    Ok(())
}

fn times_never_run_backwards(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    let mut last = (0, 0);
    for i in 0..200 {
        os::write_at(&fd, i, b"x")?;
        let now = os::mtime(&fstat(&fd)?);
        ensure!(now >= last, "{now:?} after {last:?}");
        last = now;
    }
    Ok(())
}

fn explicit_time_survives_close(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let fd = os::open(&path, OFlags::WRONLY, 0)?;
    os::write_all(&fd, b"content")?;
    rustix::fs::futimens(&fd, &os::times((10, 1), (20, 2)))?;
    drop(fd);
    std::thread::sleep(std::time::Duration::from_millis(30));
    equal!(os::mtime(&stat(&path)?), (20, 2));
    Ok(())
}

fn explicit_time_survives_later_reads(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"content")?;
    os::utimens(&path, &os::times((10, 1), (20, 2)))?;
    equal!(os::read_all(&path)?, b"content");
    drop(os::open(&path, OFlags::RDWR, 0)?);
    equal!(os::mtime(&stat(&path)?), (20, 2));
    Ok(())
}

fn stat_equals_fstat(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    for i in 0..20 {
        os::write_at(&fd, i, b"x")?;
        let (a, b) = (fstat(&fd)?, stat(ctx.path("f"))?);
        equal!(three(&a), three(&b));
        equal!(a.st_size, b.st_size);
    }
    Ok(())
}

fn statx_birth_time_if_present(ctx: &Ctx) -> Outcome {
    use rustix::fs::{StatxFlags, statx};
    let path = ctx.file("f", b"123")?;
    let found = statx(CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    equal!((found.stx_size, found.stx_nlink), (3, 1));
    let plain = stat(&path)?;
    equal!(found.stx_ino, plain.st_ino);
    equal!(found.stx_mtime.tv_sec, plain.st_mtime);
    if found.stx_mask & StatxFlags::BTIME.bits() != 0 {
        let born = found.stx_btime.tv_sec;
        ensure!((now() - 60..=now() + 1).contains(&born), "born at {born}");
        os::utimens(&path, &os::times((10, 1), (20, 2)))?;
        let later =
            statx(CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        equal!(later.stx_btime.tv_sec, born);
    }
    Ok(())
}

fn atime_can_be_set_alone(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    os::utimens(&path, &os::times((10, 1), (20, 2)))?;
    os::utimens(&path, &os::times((15, 5), (0, libc::UTIME_OMIT)))?;
    let found = stat(&path)?;
    equal!((os::atime(&found), os::mtime(&found)), ((15, 5), (20, 2)));
    Ok(())
}

fn write_of_nothing_moves_nothing(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    os::utimens(ctx.path("f"), &os::times((10, 1), (20, 2)))?;
    equal!(rustix::io::write(&fd, b"")?, 0);
    equal!(os::mtime(&fstat(&fd)?), (20, 2));
    Ok(())
}

fn readers_of_directory_leave_mtime(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    let before = stat(ctx.dir())?;
    os::tick();
    os::names(ctx.dir())?;
    stat(ctx.path("f"))?;
    equal!(os::mtime(&stat(ctx.dir())?), os::mtime(&before));
    Ok(())
}
