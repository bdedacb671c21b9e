//! Vectored I/O.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::{ReadWriteFlags, preadv, preadv2, pwritev, pwritev2, readv, writev};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os;

checks!("vectored":
    writev_then_readv, positioned_calls_keep_the_position, many_vectors, empty_vectors,
    short_at_the_end, append_flag, nowait_reads_or_refuses, minus_one_uses_the_position,
);

fn writev_then_readv(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    equal!(writev(&fd, &[IoSlice::new(b"ab"), IoSlice::new(b"cde"), IoSlice::new(b"f")])?, 6);
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
    let (mut a, mut b) = ([0; 4], [0; 2]);
    equal!(readv(&fd, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)])?, 6);
    equal!((&a, &b), (b"abcd", b"ef"));
    Ok(())
}

fn positioned_calls_keep_the_position(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"0123456789")?;
    equal!(pwritev(&fd, &[IoSlice::new(b"x"), IoSlice::new(b"y")], 4)?, 2);
    let mut a = [0; 4];
    equal!(preadv(&fd, &mut [IoSliceMut::new(&mut a)], 3)?, 4);
    equal!(&a, b"3xy6");
    equal!(rustix::fs::tell(&fd)?, 0);
    Ok(())
}

fn many_vectors(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    let bytes: Vec<[u8; 7]> = (0..1024_u32).map(|i| [i as u8; 7]).collect();
    let slices: Vec<IoSlice<'_>> = bytes.iter().map(|b| IoSlice::new(b)).collect();
    equal!(pwritev(&fd, &slices, 0)?, 7 * 1024);
    ensure!(os::read_all(ctx.path("f"))? == bytes.concat());
    Ok(())
}

fn empty_vectors(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    equal!(writev(&fd, &[])?, 0);
    equal!(writev(&fd, &[IoSlice::new(b""), IoSlice::new(b"x"), IoSlice::new(b"")])?, 1);
    equal!(os::size(ctx.path("f"))?, 1);
    Ok(())
}

fn short_at_the_end(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    let (mut a, mut b) = ([0; 3], [0; 3]);
    equal!(preadv(&fd, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 1)?, 4);
    equal!((&a, b[0]), (b"234", b'5'));
    Ok(())
}

fn append_flag(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    equal!(pwritev2(&fd, &[IoSlice::new(b"6")], 0, ReadWriteFlags::APPEND)?, 1);
    equal!(os::read_all(ctx.path("f"))?, b"123456");
    equal!(pwritev2(&fd, &[IoSlice::new(b"x")], 0, ReadWriteFlags::DSYNC)?, 1);
    equal!(os::read_all(ctx.path("f"))?, b"x23456");
    Ok(())
}

fn nowait_reads_or_refuses(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    let mut a = [0; 5];
    match preadv2(&fd, &mut [IoSliceMut::new(&mut a)], 0, ReadWriteFlags::NOWAIT) {
        Ok(n) => equal!(&a[..n], &b"12345"[..n]),
        refused => fails!(refused, AGAIN | OPNOTSUPP),
    }
    Ok(())
}

fn minus_one_uses_the_position(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    equal!(pwritev2(&fd, &[IoSlice::new(b"ab")], u64::MAX, ReadWriteFlags::empty())?, 2);
    equal!(pwritev2(&fd, &[IoSlice::new(b"cd")], u64::MAX, ReadWriteFlags::empty())?, 2);
    equal!(os::read_all(ctx.path("f"))?, b"abcd");
    Ok(())
}
