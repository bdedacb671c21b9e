//! truncate, ftruncate.

use rustix::fs::{fstat, ftruncate, stat};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};
use crate::random::pattern;

checks!("truncate":
    down_cuts_the_end, up_adds_zeros, down_then_up_shows_zeros, to_same_size, to_zero_and_refill,
    in_the_middle_of_a_page, moves_mtime_and_ctime, seen_by_other_descriptors, negative_is_refused,
    of_missing, of_fifo_and_directory, needs_write_descriptor, does_not_move_position,
    writer_beyond_cut_leaves_hole, large_sizes, every_size_around_a_page, frees_blocks,
);

fn down_cuts_the_end(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", &pattern(1, 10_000))?;
    os::truncate(&path, 5001)?;
    equal!(os::size(&path)?, 5001);
    equal!(os::read_all(&path)?, pattern(1, 10_000)[..5001]);
    Ok(())
}

fn up_adds_zeros(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"12345")?;
    os::truncate(&path, 100_000)?;
    let content = os::read_all(&path)?;
    equal!(content.len(), 100_000);
    equal!(&content[..5], b"12345");
    ensure!(content[5..].iter().all(|byte| *byte == 0));
    Ok(())
}

fn down_then_up_shows_zeros(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[9; 10_000])?;
    ftruncate(&fd, 100)?;
    ftruncate(&fd, 10_000)?;
    let content = os::read_at(&fd, 0, 20_000)?;
    equal!(content.len(), 10_000);
    ensure!(content[..100].iter().all(|byte| *byte == 9));
    ensure!(content[100..].iter().all(|byte| *byte == 0), "cut bytes came back");
    Ok(())
}

fn to_same_size(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"same")?;
    os::truncate(&path, 4)?;
    equal!(os::read_all(&path)?, b"same");
    Ok(())
}

fn to_zero_and_refill(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[9; 5000])?;
    ftruncate(&fd, 0)?;
    os::write_at(&fd, 10, b"x")?;
    equal!(os::read_at(&fd, 0, 99)?, b"\0\0\0\0\0\0\0\0\0\0x");
    Ok(())
}

fn in_the_middle_of_a_page(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsFd;
    let fd = ctx.open_new("f", &[7; 4096])?;
    let map = os::Map::new(fd.as_fd(), 0, 4096, false, true)?;
    ftruncate(&fd, 1000)?;
    equal!(map.read(998, 4), [7, 7, 0, 0]);
    Ok(())
}

fn moves_mtime_and_ctime(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"12345")?;
    for len in [3, 8] {
        let before = stat(&path)?;
        os::tick();
        os::truncate(&path, len)?;
        let after = stat(&path)?;
        ensure!(os::mtime(&after) > os::mtime(&before), "mtime stayed at size {len}");
        ensure!(os::ctime(&after) > os::ctime(&before), "ctime stayed at size {len}");
    }
    Ok(())
}

fn seen_by_other_descriptors(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"12345")?;
    let b = os::open(ctx.path("f"), OFlags::RDONLY, 0)?;
    ftruncate(&a, 2)?;
    equal!(os::read_at(&b, 0, 9)?, b"12");
    equal!(fstat(&b)?.st_size, 2);
    equal!(rustix::fs::seek(&b, rustix::fs::SeekFrom::End(0))?, 2);
    Ok(())
}

fn negative_is_refused(ctx: &Ctx) -> Outcome {
    fails!(os::truncate(ctx.file("f", b"")?, -1), INVAL);
    Ok(())
}

fn of_missing(ctx: &Ctx) -> Outcome {
    fails!(os::truncate(ctx.path("no"), 0), NOENT);
    ctx.file("f", b"")?;
    fails!(os::truncate(ctx.path("f/x"), 0), NOTDIR);
    Ok(())
}

fn of_fifo_and_directory(ctx: &Ctx) -> Outcome {
    os::mknod(ctx.path("p"), os::FileType::Fifo, 0o600, 0)?;
    fails!(os::truncate(ctx.path("p"), 0), INVAL);
    fails!(os::truncate(ctx.dir(), 0), ISDIR);
    Ok(())
}

fn needs_write_descriptor(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", b"kept")?, OFlags::RDONLY, 0)?;
    fails!(ftruncate(&fd, 0), INVAL | BADF);
    equal!(os::size(ctx.path("f"))?, 4);
    Ok(())
}

fn does_not_move_position(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    os::write_all(&fd, b"12345")?;
    ftruncate(&fd, 0)?;
    os::write_all(&fd, b"6")?;
    equal!(os::read_all(ctx.path("f"))?, b"\0\0\0\0\x006");
    Ok(())
}

fn writer_beyond_cut_leaves_hole(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[5; 20_000])?;
    ftruncate(&fd, 1)?;
    os::write_at(&fd, 19_999, &[6])?;
    let content = os::read_at(&fd, 0, 30_000)?;
    equal!((content[0], content[19_999], content.len()), (5, 6, 20_000));
    ensure!(content[1..19_999].iter().all(|byte| *byte == 0));
    Ok(())
}

fn large_sizes(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"x")?;
    for shift in [31, 32, 33, 40] {
        os::truncate(&path, (1 << shift) + 1)?;
        equal!(os::size(&path)?, (1 << shift) + 1);
    }
    Ok(())
}

fn every_size_around_a_page(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 9000])?;
    let mut model = vec![1_u8; 9000];
    for len in [8193, 8192, 8191, 4097, 4096, 4095, 4096, 4097, 8191, 8192, 8193, 1, 0, 4096] {
        ftruncate(&fd, len)?;
        model.resize(len as usize, 0);
        equal!(os::read_at(&fd, 0, 10_000)?, model);
    }
    Ok(())
}

fn frees_blocks(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &vec![1; 1 << 20])?;
    rustix::fs::fsync(&fd)?;
    let full = fstat(&fd)?.st_blocks;
    ensure!(full >= 2000, "1 MiB uses only {full} blocks");
    ftruncate(&fd, 0)?;
    rustix::fs::fsync(&fd)?;
    let empty = fstat(&fd)?.st_blocks;
    ensure!(empty < full / 2, "{full} blocks became {empty}");
    Ok(())
}
