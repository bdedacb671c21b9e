//! mmap, shared and private, and its coherence with read and write.

use std::os::fd::AsFd;

use rustix::fs::{fstat, stat, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, Map, OFlags};
use crate::process::{Child, End, TIMEOUT, in_child};
use crate::random::pattern;

const PAGE: usize = 4096;

checks!("mapping":
    reads_the_content, store_is_read_by_read, write_is_seen_by_mapping, private_store_stays_private,
    survives_close, store_after_close_is_kept, store_after_unlink, msync_succeeds,
    two_mappings_share, between_processes, tail_of_last_page_is_zero,
    access_beyond_the_end_raises_sigbus, truncate_below_mapping_raises_sigbus,
    grown_file_shows_in_mapping, offset_mapping, shared_write_needs_write_descriptor,
    private_write_needs_read_only, write_only_descriptor_cannot_be_mapped,
    mtime_moves_after_store_and_msync, directory_cannot_be_mapped, large_mapping,
    store_then_reopen, mapping_of_new_hole, mapping_and_append, executable_can_be_run_and_replaced,
);

fn reads_the_content(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(1, 3 * PAGE + 100))?;
    let map = Map::new(fd.as_fd(), 0, 3 * PAGE + 100, false, true)?;
    equal!(map.read(0, 3 * PAGE + 100), pattern(1, 3 * PAGE + 100));
    Ok(())
}

fn store_is_read_by_read(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; 2 * PAGE])?;
    let other = os::open(ctx.path("f"), OFlags::RDONLY, 0)?;
    let mut map = Map::new(fd.as_fd(), 0, 2 * PAGE, true, true)?;
    map.write(PAGE - 2, b"across");
    equal!(os::read_at(&fd, PAGE as u64 - 2, 6)?, b"across");
    equal!(os::read_at(&other, PAGE as u64 - 2, 6)?, b"across");
    Ok(())
}

fn write_is_seen_by_mapping(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; PAGE])?;
    let map = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
    equal!(map.read(10, 3), [0; 3]);
    os::write_at(&fd, 10, b"abc")?;
    equal!(map.read(10, 3), b"abc");
    os::write_at(os::open(ctx.path("f"), OFlags::WRONLY, 0)?, 10, b"xyz")?;
    equal!(map.read(10, 3), b"xyz");
    Ok(())
}

fn private_store_stays_private(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[b'o'; PAGE])?;
    let mut map = Map::new(fd.as_fd(), 0, PAGE, true, false)?;
    map.write(0, b"mine");
    equal!(map.read(0, 5), b"mineo");
    equal!(os::read_at(&fd, 0, 4)?, b"oooo");
    drop(map);
    equal!(os::read_all(ctx.path("f"))?, [b'o'; PAGE]);
    Ok(())
}

fn survives_close(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(2, 8 * PAGE))?;
    let map = Map::new(fd.as_fd(), 0, 8 * PAGE, false, true)?;
    drop(fd);
    equal!(map.read(0, 8 * PAGE), pattern(2, 8 * PAGE));
    Ok(())
}

fn store_after_close_is_kept(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; 4 * PAGE])?;
    let mut map = Map::new(fd.as_fd(), 0, 4 * PAGE, true, true)?;
    drop(fd);
    std::thread::sleep(std::time::Duration::from_millis(50));
    map.write(2 * PAGE, b"late");
    map.sync()?;
    drop(map);
    equal!(&os::read_all(ctx.path("f"))?[2 * PAGE..2 * PAGE + 4], b"late");
    Ok(())
}

fn store_after_unlink(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; PAGE])?;
    let mut map = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
    unlink(ctx.path("f"))?;
    map.write(0, b"gone");
    map.sync()?;
    equal!(os::read_at(&fd, 0, 4)?, b"gone");
    Ok(())
}

fn msync_succeeds(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; 2 * PAGE])?;
    let mut map = Map::new(fd.as_fd(), 0, 2 * PAGE, true, true)?;
    map.sync()?;
    map.write(0, b"x");
    Ok(map.sync()?)
}

fn two_mappings_share(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; PAGE])?;
    let other = os::open(ctx.path("f"), OFlags::RDWR, 0)?;
    let mut a = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
    let b = Map::new(other.as_fd(), 0, PAGE, false, true)?;
    let private = Map::new(other.as_fd(), 0, PAGE, false, false)?;
    a.write(100, b"shared");
    equal!(b.read(100, 6), b"shared");
    equal!(private.read(100, 6), b"shared");
    Ok(())
}

fn between_processes(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; PAGE])?;
    let map = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
    in_child(|| {
        let fd = os::open(ctx.path("f"), OFlags::RDWR, 0)?;
        Map::new(fd.as_fd(), 0, PAGE, true, true)?.write(5, b"child");
        Ok(())
    })?;
    equal!(map.read(5, 5), b"child");
    Ok(())
}

fn tail_of_last_page_is_zero(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"short")?;
    let mut map = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
    equal!(map.read(5, PAGE - 5), vec![0; PAGE - 5]);
    // Stores behind the end are allowed within the page and must never become content.
    map.write(5, b"beyond");
    map.sync()?;
    drop(map);
    equal!(os::read_all(ctx.path("f"))?, b"short");
    rustix::fs::ftruncate(&fd, 20)?;
    equal!(os::read_at(&fd, 0, 5)?, b"short");
    Ok(())
}

fn sigbus(work: impl FnOnce() -> Outcome) -> Outcome {
    match Child::start(work)?.end(TIMEOUT)? {
        End::Killed(libc::SIGBUS) => Ok(()),
        other => Err(crate::Failure::at(format_args!("no SIGBUS but {other:?}"))),
    }
}

fn access_beyond_the_end_raises_sigbus(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; PAGE])?;
    sigbus(|| {
        Map::new(fd.as_fd(), 0, 3 * PAGE, false, true)?.read(2 * PAGE, 1);
        Ok(())
    })
}

fn truncate_below_mapping_raises_sigbus(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; 4 * PAGE])?;
    sigbus(|| {
        let map = Map::new(fd.as_fd(), 0, 4 * PAGE, false, true)?;
        map.read(3 * PAGE, 1);
        rustix::fs::ftruncate(&fd, PAGE as u64)?;
        map.read(3 * PAGE, 1);
        Ok(())
    })
}

fn grown_file_shows_in_mapping(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[1; PAGE])?;
    let map = Map::new(fd.as_fd(), 0, 4 * PAGE, false, true)?;
    equal!(map.read(0, 1), [1]);
    os::write_at(&fd, 3 * PAGE as u64, &[9; PAGE])?;
    equal!(map.read(3 * PAGE, 1), [9]);
    equal!(map.read(2 * PAGE, 1), [0]);
    Ok(())
}

fn offset_mapping(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &pattern(3, 8 * PAGE))?;
    let map = Map::new(fd.as_fd(), 5 * PAGE as u64, PAGE, false, true)?;
    equal!(map.read(0, PAGE), pattern(3, 8 * PAGE)[5 * PAGE..6 * PAGE]);
    fails!(Map::new(fd.as_fd(), 100, PAGE, false, true), INVAL);
    Ok(())
}

fn shared_write_needs_write_descriptor(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", &[0; PAGE])?, OFlags::RDONLY, 0)?;
    fails!(Map::new(fd.as_fd(), 0, PAGE, true, true), ACCESS);
    Map::new(fd.as_fd(), 0, PAGE, false, true)?;
    Ok(())
}

fn private_write_needs_read_only(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", &[0; PAGE])?, OFlags::RDONLY, 0)?;
    Map::new(fd.as_fd(), 0, PAGE, true, false)?.write(0, b"x");
    Ok(())
}

fn write_only_descriptor_cannot_be_mapped(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", &[0; PAGE])?, OFlags::WRONLY, 0)?;
    fails!(Map::new(fd.as_fd(), 0, PAGE, false, true), ACCESS);
    fails!(Map::new(fd.as_fd(), 0, PAGE, true, true), ACCESS);
    Ok(())
}

fn mtime_moves_after_store_and_msync(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", &[0; PAGE])?;
    os::utimens(ctx.path("f"), &os::times((1, 0), (2, 0)))?;
    let mut map = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
    map.write(0, b"x");
    map.sync()?;
    drop(map);
    rustix::fs::fsync(&fd)?;
    // POSIX: between the store and the next msync at the latest. Attribute caches may delay it.
    let moved = crate::process::eventually(std::time::Duration::from_secs(5), || {
        stat(ctx.path("f")).is_ok_and(|found| os::mtime(&found) > (2, 0))
    });
    ensure!(moved, "mtime stayed at {:?}", os::mtime(&fstat(&fd)?));
    Ok(())
}

fn directory_cannot_be_mapped(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.dir(), OFlags::RDONLY, 0)?;
    fails!(Map::new(fd.as_fd(), 0, PAGE, false, true), NODEV | ACCESS);
    Ok(())
}

fn large_mapping(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    let len = 16 << 20;
    rustix::fs::ftruncate(&fd, len as u64)?;
    let mut map = Map::new(fd.as_fd(), 0, len, true, true)?;
    for at in (0..len).step_by(1 << 18) {
        map.write(at, &(at as u32).to_le_bytes());
    }
    map.sync()?;
    for at in (0..len).step_by(1 << 18) {
        equal!(os::read_at(&fd, at as u64, 4)?, (at as u32).to_le_bytes());
    }
    Ok(())
}

fn store_then_reopen(ctx: &Ctx) -> Outcome {
    for round in 0..5_u8 {
        let fd = os::open(ctx.path("f"), OFlags::RDWR | OFlags::CREATE, 0o600)?;
        rustix::fs::ftruncate(&fd, PAGE as u64)?;
        let mut map = Map::new(fd.as_fd(), 0, PAGE, true, true)?;
        if round > 0 {
            equal!(map.read(0, PAGE), [round; PAGE]);
        }
        map.write(0, &[round + 1; PAGE]);
    }
    equal!(os::read_all(ctx.path("f"))?, [5; PAGE]);
    Ok(())
}

fn mapping_of_new_hole(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    rustix::fs::ftruncate(&fd, 10 * PAGE as u64)?;
    let mut map = Map::new(fd.as_fd(), 0, 10 * PAGE, true, true)?;
    equal!(map.read(5 * PAGE, 16), [0; 16]);
    map.write(5 * PAGE, b"filled");
    equal!(os::read_at(&fd, 5 * PAGE as u64, 6)?, b"filled");
    equal!(os::read_at(&fd, 4 * PAGE as u64, 6)?, [0; 6]);
    Ok(())
}

fn mapping_and_append(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", &[1; PAGE])?;
    let reader = os::open(&path, OFlags::RDONLY, 0)?;
    let map = Map::new(reader.as_fd(), 0, 2 * PAGE, false, true)?;
    let writer = os::open(&path, OFlags::WRONLY | OFlags::APPEND, 0)?;
    os::write_all(&writer, &[2; 10])?;
    equal!(map.read(PAGE, 11), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
    Ok(())
}

fn executable_can_be_run_and_replaced(ctx: &Ctx) -> Outcome {
    let program = std::fs::read("/bin/true")?;
    let path = ctx.file("program", &program)?;
    os::chmod(&path, 0o755)?;
    ensure!(std::process::Command::new(&path).status()?.success());
    rustix::fs::rename(ctx.file("new", &std::fs::read("/bin/false")?)?, &path)?;
    os::chmod(&path, 0o755)?;
    ensure!(!std::process::Command::new(&path).status()?.success());
    Ok(())
}
