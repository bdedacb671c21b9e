//! inotify for changes made on the same mount.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{rename, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os;
use crate::process::readable;

checks!("notify": create_and_delete, modify_and_close, rename_gives_both_halves, attribute_change);

fn watch(ctx: &Ctx) -> Outcome<OwnedFd> {
    let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&fd, ctx.dir(), WatchFlags::ALL_EVENTS)?;
    Ok(fd)
}

/// The events that have arrived, as (what, name); waits for the first one.
fn events(fd: &OwnedFd) -> Outcome<Vec<(ReadFlags, String)>> {
    ensure!(readable(fd, Duration::from_secs(5)), "no event within five seconds");
    let mut buffer = os::inotify_buffer();
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    let mut found = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                found.push((event.events(), name.unwrap_or_default()));
            }
            Err(os::Errno::AGAIN) => return Ok(found),
            Err(other) => return Err(other.into()),
        }
    }
}

fn has(events: &[(ReadFlags, String)], what: ReadFlags, name: &str) -> bool {
    events.iter().any(|(flags, found)| flags.contains(what) && found == name)
}

fn create_and_delete(ctx: &Ctx) -> Outcome {
    let fd = watch(ctx)?;
    ctx.file("f", b"")?;
    ctx.subdir("d", 0o755)?;
    unlink(ctx.path("f"))?;
    let found = events(&fd)?;
    ensure!(has(&found, ReadFlags::CREATE, "f"), "{found:?}");
    ensure!(has(&found, ReadFlags::CREATE | ReadFlags::ISDIR, "d"), "{found:?}");
    ensure!(has(&found, ReadFlags::DELETE, "f"), "{found:?}");
    Ok(())
}

fn modify_and_close(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let fd = watch(ctx)?;
    os::write_file(&path, b"x")?;
    os::read_all(&path)?;
    let found = events(&fd)?;
    for what in [ReadFlags::MODIFY, ReadFlags::CLOSE_WRITE, ReadFlags::OPEN, ReadFlags::ACCESS] {
        ensure!(has(&found, what, "f"), "no {what:?} in {found:?}");
    }
    Ok(())
}

fn rename_gives_both_halves(ctx: &Ctx) -> Outcome {
    ctx.file("a", b"")?;
    let fd = watch(ctx)?;
    rename(ctx.path("a"), ctx.path("b"))?;
    let found = events(&fd)?;
    ensure!(has(&found, ReadFlags::MOVED_FROM, "a"), "{found:?}");
    ensure!(has(&found, ReadFlags::MOVED_TO, "b"), "{found:?}");
    Ok(())
}

fn attribute_change(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let fd = watch(ctx)?;
    os::chmod(&path, 0o600)?;
    ensure!(has(&events(&fd)?, ReadFlags::ATTRIB, "f"));
    Ok(())
}
