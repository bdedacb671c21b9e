//! fallocate in its modes, and the search for holes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{SeekFrom, fallocate, fstat, ftruncate, seek};

use super::{Ctx, checks};
use crate::failure::{Failure, Outcome};
use crate::os::{self, FallocateFlags as Mode, OFlags};
use crate::random::pattern;

checks!("allocate":
    plain_grows_the_file, plain_keeps_content, keep_size_keeps_size, punch_makes_zeros,
    punch_keeps_size, punch_beyond_end, punch_within_a_page, zero_range_makes_zeros,
    zero_range_grows, zero_range_keep_size, collapse_or_refuse, insert_or_refuse, bad_arguments,
    needs_write_descriptor, of_directory_is_refused, data_and_hole_positions, seek_data_after_end,
    seek_of_dense_file, punched_hole_is_found_or_ignored, posix_fallocate_reserves_blocks,
    punch_is_seen_by_mapping, closed_sparse_file_takes_no_more_than_it_has,
);

/// Skips the check when the file system does not offer the mode at all.
fn allocate(fd: &OwnedFd, mode: Mode, offset: u64, len: u64) -> Outcome {
    match fallocate(fd, mode, offset, len) {
        Err(os::Errno::OPNOTSUPP) => Err(Failure::Skipped(format!("{mode:?} is not supported"))),
        other => Ok(other?),
    }
}

fn plain_grows_the_file(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"x")?;
    fallocate(&fd, Mode::empty(), 1000, 9000)?;
    equal!(fstat(&fd)?.st_size, 10_000);
    let content = os::read_at(&fd, 0, 20_000)?;
    ensure!(content[0] == b'x' && content[1..].iter().all(|byte| *byte == 0));
    Ok(())
}

fn plain_keeps_content(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(1, 10_000))?;
    fallocate(&fd, Mode::empty(), 100, 5000)?;
    equal!(os::read_at(&fd, 0, 20_000)?, pattern(1, 10_000));
    Ok(())
}

fn keep_size_keeps_size(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    allocate(&fd, Mode::KEEP_SIZE, 0, 100_000)?;
    equal!(fstat(&fd)?.st_size, 5);
    equal!(os::read_all(ctx.path("f"))?, b"12345");
    Ok(())
}

const PUNCH: Mode = Mode::PUNCH_HOLE.union(Mode::KEEP_SIZE);

fn punch_makes_zeros(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(2, 40_000))?;
    allocate(&fd, PUNCH, 5000, 20_000)?;
    let mut want = pattern(2, 40_000);
    want[5000..25_000].fill(0);
    equal!(os::read_at(&fd, 0, 50_000)? == want, true);
    Ok(())
}

fn punch_keeps_size(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 10_000])?;
    allocate(&fd, PUNCH, 5000, 100_000)?;
    equal!(fstat(&fd)?.st_size, 10_000);
    fails!(fallocate(&fd, Mode::PUNCH_HOLE, 0, 100), OPNOTSUPP | INVAL);
    Ok(())
}

fn punch_beyond_end(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    allocate(&fd, PUNCH, 100_000, 100_000)?;
    equal!(os::read_all(ctx.path("f"))?, b"12345");
    Ok(())
}

fn punch_within_a_page(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[3; 4096])?;
    allocate(&fd, PUNCH, 10, 20)?;
    let content = os::read_at(&fd, 0, 4096)?;
    ensure!(content[10..30].iter().all(|byte| *byte == 0));
    ensure!(content[..10].iter().chain(&content[30..]).all(|byte| *byte == 3));
    Ok(())
}

fn zero_range_makes_zeros(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(3, 40_000))?;
    allocate(&fd, Mode::ZERO_RANGE, 5001, 20_000)?;
    let mut want = pattern(3, 40_000);
    want[5001..25_001].fill(0);
    ensure!(os::read_at(&fd, 0, 50_000)? == want);
    Ok(())
}

fn zero_range_grows(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 100])?;
    allocate(&fd, Mode::ZERO_RANGE, 50, 1000)?;
    equal!(fstat(&fd)?.st_size, 1050);
    ensure!(os::read_at(&fd, 50, 2000)?.iter().all(|byte| *byte == 0));
    Ok(())
}

fn zero_range_keep_size(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 100])?;
    allocate(&fd, Mode::ZERO_RANGE | Mode::KEEP_SIZE, 50, 1000)?;
    equal!(fstat(&fd)?.st_size, 100);
    ensure!(os::read_at(&fd, 50, 2000)? == [0; 50]);
    Ok(())
}

fn collapse_or_refuse(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(4, 3 * 65_536))?;
    match fallocate(&fd, Mode::COLLAPSE_RANGE, 65_536, 65_536) {
        Ok(()) => {
            let want = [&pattern(4, 3 * 65_536)[..65_536], &pattern(4, 3 * 65_536)[131_072..]];
            ensure!(os::read_at(&fd, 0, 1 << 20)? == want.concat());
        }
        refused => {
            fails!(refused, OPNOTSUPP | INVAL);
            ensure!(os::read_at(&fd, 0, 1 << 20)? == pattern(4, 3 * 65_536));
        }
    }
    Ok(())
}

fn insert_or_refuse(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(5, 2 * 65_536))?;
    let mut want = pattern(5, 2 * 65_536);
    match fallocate(&fd, Mode::INSERT_RANGE, 65_536, 65_536) {
        Ok(()) => drop(want.splice(65_536..65_536, vec![0; 65_536])),
        refused => fails!(refused, OPNOTSUPP | INVAL),
    }
    ensure!(os::read_at(&fd, 0, 1 << 20)? == want);
    Ok(())
}

fn bad_arguments(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    fails!(fallocate(&fd, Mode::empty(), 0, 0), INVAL);
    fails!(fallocate(&fd, Mode::empty(), u64::MAX, 10), INVAL);
    fails!(fallocate(&fd, Mode::empty(), i64::MAX as u64 - 5, 10), FBIG);
    Ok(())
}

fn needs_write_descriptor(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", b"")?, OFlags::RDONLY, 0)?;
    fails!(fallocate(&fd, Mode::empty(), 0, 10), BADF);
    Ok(())
}

fn of_directory_is_refused(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.dir(), OFlags::RDONLY, 0)?;
    fails!(fallocate(&fd, Mode::empty(), 0, 10), BADF);
    Ok(())
}

fn data_and_hole_positions(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    ftruncate(&fd, 1 << 20)?;
    os::write_at(&fd, 512 << 10, &[1; 4096])?;
    let size = 1 << 20;
    // A file system may report no holes at all, but never a hole where data are.
    let data = seek(&fd, SeekFrom::Data(0))?;
    ensure!(data <= 512 << 10, "data reported at {data} only");
    let hole = seek(&fd, SeekFrom::Hole(512 << 10))?;
    ensure!(hole >= (512 << 10) + 4096 && hole <= size, "a hole inside data, at {hole}");
    let hole = seek(&fd, SeekFrom::Hole(0))?;
    ensure!(hole == 0 || hole >= (512 << 10) + 4096, "hole reported at {hole}");
    Ok(())
}

fn seek_data_after_end(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    fails!(seek(&fd, SeekFrom::Data(5)), NXIO);
    fails!(seek(&fd, SeekFrom::Hole(5)), NXIO);
    fails!(seek(&fd, SeekFrom::Data(1000)), NXIO);
    Ok(())
}

fn seek_of_dense_file(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 100_000])?;
    equal!(seek(&fd, SeekFrom::Data(70_000))?, 70_000);
    equal!(seek(&fd, SeekFrom::Hole(0))?, 100_000);
    Ok(())
}

fn punched_hole_is_found_or_ignored(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; 1 << 20])?;
    allocate(&fd, PUNCH, 256 << 10, 256 << 10)?;
    let hole = seek(&fd, SeekFrom::Hole(0))?;
    ensure!(hole == 256 << 10 || hole == 1 << 20, "hole at {hole}");
    if hole == 256 << 10 {
        equal!(seek(&fd, SeekFrom::Data(hole))?, 512 << 10);
    }
    Ok(())
}

fn posix_fallocate_reserves_blocks(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    fallocate(&fd, Mode::empty(), 0, 1 << 20)?;
    ensure!(fstat(&fd)?.st_blocks >= 2048, "only {} blocks", fstat(&fd)?.st_blocks);
    Ok(())
}

fn closed_sparse_file_takes_no_more_than_it_has(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    os::write_at(&fd, 64 << 20, &[1; 4096])?;
    drop(fd);
    for wait in [0, 100, 1500] {
        std::thread::sleep(Duration::from_millis(wait));
        let blocks = rustix::fs::stat(ctx.path("f"))?.st_blocks;
        ensure!((8..2048).contains(&blocks), "4 KiB behind a hole take {blocks} blocks");
    }
    Ok(())
}

fn punch_is_seen_by_mapping(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsFd;
    let fd = ctx.open_new("f", &[1; 16_384])?;
    let map = os::Map::new(fd.as_fd(), 0, 16_384, true, true)?;
    equal!(map.read(4095, 3), [1; 3]);
    allocate(&fd, PUNCH, 4096, 4096)?;
    equal!(map.read(4095, 3), [1, 0, 0]);
    Ok(())
}
