//! copy_file_range, sendfile, splice.

use rustix::fs::{copy_file_range, sendfile};
use rustix::pipe::{SpliceFlags, pipe, splice};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};
use crate::random::pattern;

checks!("copy":
    copy_whole_file, copy_with_offsets_keeps_positions, copy_moves_positions, copy_within_one_file,
    copy_beyond_end_copies_nothing, copy_grows_the_target, copy_overlap_is_refused,
    copy_needs_right_descriptors, copy_to_append_is_refused, copy_moves_mtime,
    sendfile_to_pipe_and_file, splice_from_and_to_pipe, copy_by_cp, copy_of_dirty_data,
);

fn copy_whole_file(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", &pattern(1, 300_000))?;
    let to = ctx.open_new("b", b"")?;
    let mut left = 300_000;
    while left > 0 {
        let n = copy_file_range(&from, None, &to, None, left)?;
        ensure!(n > 0, "nothing copied with {left} bytes left");
        left -= n;
    }
    ensure!(os::read_all(ctx.path("b"))? == pattern(1, 300_000));
    Ok(())
}

fn copy_with_offsets_keeps_positions(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"0123456789")?;
    let to = ctx.open_new("b", b"..........")?;
    let (mut source, mut target) = (2, 5);
    equal!(copy_file_range(&from, Some(&mut source), &to, Some(&mut target), 3)?, 3);
    equal!((source, target), (5, 8));
    equal!((rustix::fs::tell(&from)?, rustix::fs::tell(&to)?), (0, 0));
    equal!(os::read_all(ctx.path("b"))?, b".....234..");
    Ok(())
}

fn copy_moves_positions(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"0123456789")?;
    let to = ctx.open_new("b", b"")?;
    equal!(copy_file_range(&from, None, &to, None, 4)?, 4);
    equal!((rustix::fs::tell(&from)?, rustix::fs::tell(&to)?), (4, 4));
    Ok(())
}

fn copy_within_one_file(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("a", b"0123456789")?;
    let (mut source, mut target) = (0, 20);
    equal!(copy_file_range(&fd, Some(&mut source), &fd, Some(&mut target), 5)?, 5);
    equal!(&os::read_all(ctx.path("a"))?[18..], b"\0\x0001234");
    Ok(())
}

fn copy_beyond_end_copies_nothing(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"01234")?;
    let to = ctx.open_new("b", b"kept")?;
    let mut source = 5;
    equal!(copy_file_range(&from, Some(&mut source), &to, None, 10)?, 0);
    source = 3;
    equal!(copy_file_range(&from, Some(&mut source), &to, None, 10)?, 2);
    equal!(os::read_all(ctx.path("b"))?, b"34pt");
    Ok(())
}

fn copy_grows_the_target(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"01234")?;
    let to = ctx.open_new("b", b"")?;
    let mut target = 100_000;
    equal!(copy_file_range(&from, None, &to, Some(&mut target), 5)?, 5);
    equal!(os::size(ctx.path("b"))?, 100_005);
    Ok(())
}

fn copy_overlap_is_refused(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("a", &[1; 1000])?;
    let (mut source, mut target) = (0, 10);
    fails!(copy_file_range(&fd, Some(&mut source), &fd, Some(&mut target), 100), INVAL);
    Ok(())
}

fn copy_needs_right_descriptors(ctx: &Ctx) -> Outcome {
    let read = os::open(ctx.file("a", b"0")?, OFlags::RDONLY, 0)?;
    let write = os::open(ctx.file("b", b"")?, OFlags::WRONLY, 0)?;
    fails!(copy_file_range(&write, None, &read, None, 1), BADF);
    equal!(copy_file_range(&read, None, &write, None, 1)?, 1);
    let dir = os::open(ctx.dir(), OFlags::RDONLY, 0)?;
    fails!(copy_file_range(&dir, None, &write, None, 1), ISDIR);
    Ok(())
}

fn copy_to_append_is_refused(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"0")?;
    let to = os::open(ctx.file("b", b"")?, OFlags::WRONLY | OFlags::APPEND, 0)?;
    fails!(copy_file_range(&from, None, &to, None, 1), BADF);
    Ok(())
}

fn copy_moves_mtime(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"0")?;
    let to = ctx.open_new("b", b"")?;
    let before = rustix::fs::fstat(&to)?;
    os::tick();
    equal!(copy_file_range(&from, None, &to, None, 1)?, 1);
    ensure!(os::mtime(&rustix::fs::fstat(&to)?) > os::mtime(&before));
    Ok(())
}

fn sendfile_to_pipe_and_file(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"0123456789")?;
    let (reader, writer) = pipe()?;
    let mut offset = 3;
    equal!(sendfile(&writer, &from, Some(&mut offset), 4)?, 4);
    equal!(offset, 7);
    drop(writer);
    equal!(os::read_to_end(&reader)?, b"3456");
    let to = ctx.open_new("b", b"")?;
    equal!(sendfile(&to, &from, None, 100)?, 10);
    equal!(os::read_all(ctx.path("b"))?, b"0123456789");
    Ok(())
}

fn splice_from_and_to_pipe(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", &pattern(2, 20_000))?;
    let to = ctx.open_new("b", b"")?;
    let (reader, writer) = pipe()?;
    let mut done = 0;
    while done < 20_000 {
        let n = splice(&from, None, &writer, None, 20_000, SpliceFlags::empty())?;
        ensure!(n > 0, "splice stopped after {done} bytes");
        let mut left = n;
        while left > 0 {
            left -= splice(&reader, None, &to, None, left, SpliceFlags::empty())?;
        }
        done += n;
    }
    ensure!(os::read_all(ctx.path("b"))? == pattern(2, 20_000));
    Ok(())
}

fn copy_by_cp(ctx: &Ctx) -> Outcome {
    let from = ctx.file("a", &pattern(3, 500_000))?;
    for how in ["--reflink=auto", "--reflink=never", "--sparse=always"] {
        let to = ctx.path("b");
        let status = std::process::Command::new("cp").arg(how).arg(&from).arg(&to).status()?;
        ensure!(status.success(), "cp {how}: {status}");
        ensure!(os::read_all(&to)? == pattern(3, 500_000), "cp {how} changed the content");
    }
    Ok(())
}

fn copy_of_dirty_data(ctx: &Ctx) -> Outcome {
    let from = ctx.open_new("a", b"old old")?;
    let to = ctx.open_new("b", b"")?;
    os::write_at(&from, 0, b"new")?;
    equal!(copy_file_range(&from, None, &to, None, 7)?, 7);
    equal!(os::read_all(ctx.path("b"))?, b"new old");
    os::write_at(&from, 0, b"xxx")?;
    equal!(os::read_all(ctx.path("b"))?, b"new old");
    Ok(())
}
