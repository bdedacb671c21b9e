//! flock and record locks, within and between processes.

use std::time::Duration;

use rustix::fs::{FlockOperation as Flock, flock};

use super::{Ctx, checks};
use crate::failure::{Failure, Outcome};
use crate::os::LockKind::{Read, Unlock, Write};
use crate::os::LockOwner::{Description, Process};
use crate::os::{self, LockRange, OFlags, lock_record, query_record};
use crate::process::{Child, Gate, in_child};

checks!("locks":
    flock_excludes_other_descriptions, flock_shared_allows_shared, flock_upgrade_and_downgrade,
    flock_ends_with_the_last_close, flock_is_inherited_by_dup, flock_between_processes,
    flock_blocks_until_released, flock_ends_with_the_process, record_excludes_other_processes,
    record_does_not_exclude_own_process, record_ranges_are_independent, record_split_and_query,
    record_read_locks_share, record_needs_matching_mode, record_ends_with_any_close,
    record_ends_with_the_process, record_blocks_until_released, record_deadlock_is_detected,
    record_is_not_inherited, ofd_excludes_other_descriptions, ofd_and_record_exclude_each_other,
    flock_and_record_are_independent, record_beyond_the_end, record_on_write_of_others_is_advisory,
);

const ALL: LockRange = LockRange { start: 0, len: 0 };

fn range(start: i64, len: i64) -> LockRange {
    LockRange { start, len }
}

fn again(ctx: &Ctx) -> Outcome<std::os::fd::OwnedFd> {
    Ok(os::open(ctx.path("f"), OFlags::RDWR, 0)?)
}

fn flock_excludes_other_descriptions(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let b = again(ctx)?;
    flock(&a, Flock::LockExclusive)?;
    fails!(flock(&b, Flock::NonBlockingLockExclusive), AGAIN);
    fails!(flock(&b, Flock::NonBlockingLockShared), AGAIN);
    flock(&a, Flock::Unlock)?;
    Ok(flock(&b, Flock::NonBlockingLockExclusive)?)
}

fn flock_shared_allows_shared(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let (b, c) = (again(ctx)?, again(ctx)?);
    flock(&a, Flock::LockShared)?;
    flock(&b, Flock::NonBlockingLockShared)?;
    fails!(flock(&c, Flock::NonBlockingLockExclusive), AGAIN);
    Ok(())
}

fn flock_upgrade_and_downgrade(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let b = again(ctx)?;
    flock(&a, Flock::LockShared)?;
    flock(&a, Flock::NonBlockingLockExclusive)?;
    fails!(flock(&b, Flock::NonBlockingLockShared), AGAIN);
    flock(&a, Flock::LockShared)?;
    Ok(flock(&b, Flock::NonBlockingLockShared)?)
}

fn flock_ends_with_the_last_close(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let b = again(ctx)?;
    flock(&a, Flock::LockExclusive)?;
    drop(a);
    // A network of processes may release with a delay of its own; the close must still do it.
    let free = crate::process::eventually(Duration::from_secs(5), || {
        flock(&b, Flock::NonBlockingLockExclusive).is_ok()
    });
    ensure!(free, "the lock outlived its description");
    Ok(())
}

fn flock_is_inherited_by_dup(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let copy = rustix::io::dup(&a)?;
    let b = again(ctx)?;
    flock(&a, Flock::LockExclusive)?;
    drop(a);
    fails!(flock(&b, Flock::NonBlockingLockExclusive), AGAIN);
    flock(&copy, Flock::Unlock)?;
    Ok(flock(&b, Flock::NonBlockingLockExclusive)?)
}

fn flock_between_processes(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    flock(&a, Flock::LockExclusive)?;
    in_child(|| {
        fails!(flock(again(ctx)?, Flock::NonBlockingLockShared), AGAIN);
        Ok(())
    })?;
    flock(&a, Flock::Unlock)?;
    in_child(|| Ok(flock(again(ctx)?, Flock::NonBlockingLockExclusive)?))
}

/// A child takes a lock by `lock` while we hold it; it must wait until `release`.
fn blocks_until(lock: impl FnOnce() -> Outcome, release: impl FnOnce() -> Outcome) -> Outcome {
    let started = Gate::new()?;
    let child = Child::start(|| {
        started.open()?;
        lock()
    })?;
    started.pass()?;
    std::thread::sleep(Duration::from_millis(50));
    ensure!(!child.has_ended(), "the child did not wait for the lock");
    release()?;
    child.join()
}

fn flock_blocks_until_released(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    flock(&a, Flock::LockExclusive)?;
    blocks_until(|| Ok(flock(again(ctx)?, Flock::LockExclusive)?), || Ok(flock(&a, Flock::Unlock)?))
}

/// Starts a child that takes a lock and holds it until it is killed.
fn held(take: impl FnOnce() -> Outcome) -> Outcome<Child> {
    let taken = Gate::new()?;
    let child = Child::start(|| {
        take()?;
        taken.open()?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    })?;
    taken.pass()?;
    Ok(child)
}

fn ends_with(child: Child, probe: impl Fn() -> os::Call) -> Outcome {
    fails!(probe(), AGAIN | ACCESS);
    child.kill()?;
    child.end(crate::process::TIMEOUT)?;
    let free = crate::process::eventually(Duration::from_secs(5), || probe().is_ok());
    if free { Ok(()) } else { Err(Failure::at("the lock outlived its process")) }
}

fn flock_ends_with_the_process(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    let child = held(|| {
        let fd = again(ctx)?;
        flock(&fd, Flock::LockExclusive)?;
        std::mem::forget(fd);
        Ok(())
    })?;
    let fd = again(ctx)?;
    ends_with(child, || flock(&fd, Flock::NonBlockingLockExclusive))
}

fn record_excludes_other_processes(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"0123456789")?;
    lock_record(&fd, Process, Write, range(2, 3), false)?;
    in_child(|| {
        let fd = again(ctx)?;
        fails!(lock_record(&fd, Process, Write, range(4, 1), false), AGAIN | ACCESS);
        fails!(lock_record(&fd, Process, Read, ALL, false), AGAIN | ACCESS);
        lock_record(&fd, Process, Write, range(0, 2), false)?;
        Ok(lock_record(&fd, Process, Write, range(5, 0), false)?)
    })
}

fn record_does_not_exclude_own_process(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, ALL, false)?;
    lock_record(again(ctx)?, Process, Read, ALL, false)?;
    equal!(query_record(&fd, Process, Write, ALL)?, None);
    Ok(())
}

fn record_ranges_are_independent(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    for start in (0..100).step_by(10) {
        lock_record(&fd, Process, Write, range(start, 5), false)?;
    }
    in_child(|| {
        let fd = again(ctx)?;
        for start in (0..100).step_by(10) {
            fails!(lock_record(&fd, Process, Read, range(start + 4, 1), false), AGAIN | ACCESS);
            lock_record(&fd, Process, Write, range(start + 5, 5), false)?;
        }
        Ok(())
    })
}

fn record_split_and_query(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, range(0, 100), false)?;
    lock_record(&fd, Process, Unlock, range(40, 20), false)?;
    let owner = std::process::id() as i32;
    in_child(|| {
        let fd = again(ctx)?;
        equal!(query_record(&fd, Process, Write, range(40, 20))?, None);
        let first = query_record(&fd, Process, Write, range(0, 50))?;
        equal!(first, Some((Write, range(0, 40), owner)));
        let second = query_record(&fd, Process, Read, range(50, 0))?;
        equal!(second, Some((Write, range(60, 40), owner)));
        Ok(())
    })
}

fn record_read_locks_share(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Read, ALL, false)?;
    in_child(|| {
        let fd = again(ctx)?;
        lock_record(&fd, Process, Read, ALL, false)?;
        fails!(lock_record(&fd, Process, Write, range(0, 1), false), AGAIN | ACCESS);
        Ok(())
    })
}

fn record_needs_matching_mode(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let reader = os::open(&path, OFlags::RDONLY, 0)?;
    let writer = os::open(&path, OFlags::WRONLY, 0)?;
    fails!(lock_record(&reader, Process, Write, ALL, false), BADF);
    fails!(lock_record(&writer, Process, Read, ALL, false), BADF);
    Ok(lock_record(&reader, Process, Read, ALL, false)?)
}

fn record_ends_with_any_close(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, ALL, false)?;
    // POSIX: closing any descriptor of the file drops all record locks of the process.
    drop(again(ctx)?);
    in_child(|| Ok(lock_record(again(ctx)?, Process, Write, ALL, false)?))
}

fn record_ends_with_the_process(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    let child = held(|| {
        let fd = again(ctx)?;
        lock_record(&fd, Process, Write, ALL, false)?;
        std::mem::forget(fd);
        Ok(())
    })?;
    let fd = again(ctx)?;
    ends_with(child, || lock_record(&fd, Process, Write, ALL, false))
}

fn record_blocks_until_released(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, range(0, 10), false)?;
    blocks_until(
        || Ok(lock_record(again(ctx)?, Process, Write, range(5, 1), true)?),
        || Ok(lock_record(&fd, Process, Unlock, ALL, false)?),
    )
}

fn record_deadlock_is_detected(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, range(0, 1), false)?;
    let ready = Gate::new()?;
    let child = Child::start(|| {
        let fd = again(ctx)?;
        lock_record(&fd, Process, Write, range(1, 1), false)?;
        ready.open()?;
        Ok(lock_record(&fd, Process, Write, range(0, 1), true)?)
    })?;
    ready.pass()?;
    // Give the child time to wait for our byte; then waiting for its byte closes the circle.
    std::thread::sleep(Duration::from_millis(100));
    fails!(lock_record(&fd, Process, Write, range(1, 1), true), DEADLK);
    lock_record(&fd, Process, Unlock, ALL, false)?;
    child.join()
}

fn record_is_not_inherited(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, ALL, false)?;
    in_child(|| {
        fails!(lock_record(&fd, Process, Write, ALL, false), AGAIN | ACCESS);
        Ok(())
    })
}

fn ofd_excludes_other_descriptions(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let b = again(ctx)?;
    lock_record(&a, Description, Write, range(0, 10), false)?;
    fails!(lock_record(&b, Description, Read, range(9, 1), false), AGAIN | ACCESS);
    lock_record(&b, Description, Write, range(10, 1), false)?;
    drop(again(ctx)?);
    fails!(lock_record(&b, Description, Read, range(9, 1), false), AGAIN | ACCESS);
    let found = query_record(&b, Description, Write, range(0, 1))?;
    equal!(found.map(|(kind, range, _)| (kind, range)), Some((Write, range(0, 10))));
    Ok(())
}

fn ofd_and_record_exclude_each_other(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    lock_record(&a, Description, Write, ALL, false)?;
    fails!(lock_record(again(ctx)?, Process, Write, ALL, false), AGAIN | ACCESS);
    Ok(())
}

fn flock_and_record_are_independent(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    flock(&a, Flock::LockExclusive)?;
    in_child(|| Ok(lock_record(again(ctx)?, Process, Write, ALL, false)?))
}

fn record_beyond_the_end(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    lock_record(&fd, Process, Write, range(1 << 40, 10), false)?;
    equal!(os::size(ctx.path("f"))?, 0);
    fails!(lock_record(&fd, Process, Write, range(-1, 1), false), INVAL);
    Ok(())
}

fn record_on_write_of_others_is_advisory(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"old")?;
    lock_record(&fd, Process, Write, ALL, false)?;
    in_child(|| Ok(os::write_at(again(ctx)?, 0, b"new")?))?;
    equal!(os::read_all(ctx.path("f"))?, b"new");
    Ok(())
}
