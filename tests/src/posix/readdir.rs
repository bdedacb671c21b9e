//! Reading directories.

use std::collections::BTreeSet;
use std::ffi::OsString;

use rustix::fs::{rename, stat, symlink, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, DirStream, FileType, OFlags};

checks!("readdir":
    dot_and_dotdot_come_once, types_match, inode_numbers_match, ten_thousand_entries,
    rewind_sees_changes, tell_and_seek_return, every_position_can_be_sought,
    removing_while_reading, adding_while_reading_loses_nothing, renaming_while_reading,
    read_of_removed_directory, two_streams_are_independent, empty_after_removal,
    position_survives_other_readers, needs_a_directory, exact_set_after_many_changes,
);

fn read_all(stream: &mut DirStream) -> Outcome<Vec<OsString>> {
    let mut names = Vec::new();
    while let Some(name) = stream.read()? {
        names.push(name);
    }
    Ok(names)
}

fn fill(ctx: &Ctx, count: usize) -> Outcome {
    for i in 0..count {
        os::mknod(ctx.path(format!("entry-{i:05}")), FileType::RegularFile, 0o600, 0)?;
    }
    Ok(())
}

fn dot_and_dotdot_come_once(ctx: &Ctx) -> Outcome {
    fill(ctx, 3)?;
    let names = read_all(&mut DirStream::open(ctx.dir())?)?;
    equal!(names.iter().filter(|name| *name == ".").count(), 1);
    equal!(names.iter().filter(|name| *name == "..").count(), 1);
    equal!(names.len(), 5);
    Ok(())
}

fn types_match(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    ctx.subdir("d", 0o755)?;
    symlink("f", ctx.path("l"))?;
    os::mknod(ctx.path("p"), FileType::Fifo, 0o600, 0)?;
    let mut stream = DirStream::open(ctx.dir())?;
    while let Some((name, _, kind)) = stream.read_entry()? {
        let want = match name.to_str() {
            Some("f") => libc::DT_REG,
            Some("l") => libc::DT_LNK,
            Some("p") => libc::DT_FIFO,
            _ => libc::DT_DIR,
        };
        ensure!(kind == want || kind == libc::DT_UNKNOWN, "{name:?} has d_type {kind}");
    }
    Ok(())
}

fn inode_numbers_match(ctx: &Ctx) -> Outcome {
    fill(ctx, 50)?;
    let mut stream = DirStream::open(ctx.dir())?;
    while let Some((name, number, _)) = stream.read_entry()? {
        if name != ".." {
            let found = stat(ctx.path(&name))?.st_ino;
            ensure!(number == found, "{name:?}: d_ino {number}, st_ino {found}");
        }
    }
    Ok(())
}

fn ten_thousand_entries(ctx: &Ctx) -> Outcome {
    fill(ctx, 10_000)?;
    let names = read_all(&mut DirStream::open(ctx.dir())?)?;
    equal!(names.len(), 10_002);
    let unique: BTreeSet<_> = names.into_iter().collect();
    equal!(unique.len(), 10_002);
    Ok(())
}

fn rewind_sees_changes(ctx: &Ctx) -> Outcome {
    fill(ctx, 10)?;
    let mut stream = DirStream::open(ctx.dir())?;
    equal!(read_all(&mut stream)?.len(), 12);
    ctx.file("new", b"")?;
    unlink(ctx.path("entry-00003"))?;
    unlink(ctx.path("entry-00004"))?;
    stream.rewind();
    let names = read_all(&mut stream)?;
    equal!(names.len(), 11);
    ensure!(names.contains(&"new".into()) && !names.contains(&"entry-00003".into()));
    Ok(())
}

fn tell_and_seek_return(ctx: &Ctx) -> Outcome {
    fill(ctx, 2000)?;
    let mut stream = DirStream::open(ctx.dir())?;
    for _ in 0..700 {
        stream.read()?;
    }
    let position = stream.tell();
    let rest = read_all(&mut stream)?;
    stream.seek(position);
    equal!(read_all(&mut stream)?, rest);
    Ok(())
}

fn every_position_can_be_sought(ctx: &Ctx) -> Outcome {
    fill(ctx, 100)?;
    let mut stream = DirStream::open(ctx.dir())?;
    let mut seen = Vec::new();
    loop {
        let position = stream.tell();
        match stream.read()? {
            Some(name) => seen.push((position, name)),
            None => break,
        }
    }
    for (position, name) in seen.iter().rev() {
        stream.seek(*position);
        equal!(stream.read()?.as_ref(), Some(name));
    }
    Ok(())
}

fn removing_while_reading(ctx: &Ctx) -> Outcome {
    fill(ctx, 3000)?;
    let mut stream = DirStream::open(ctx.dir())?;
    let mut removed = 0;
    while let Some(name) = stream.read()? {
        if name != "." && name != ".." {
            unlink(ctx.path(&name))?;
            removed += 1;
        }
    }
    equal!(removed, 3000);
    equal!(os::names(ctx.dir())?.len(), 0);
    Ok(())
}

fn adding_while_reading_loses_nothing(ctx: &Ctx) -> Outcome {
    fill(ctx, 1000)?;
    let mut stream = DirStream::open(ctx.dir())?;
    let mut seen = Vec::new();
    let mut added = 0;
    while let Some(name) = stream.read()? {
        if name.to_string_lossy().starts_with("entry-") {
            seen.push(name);
        }
        if added < 500 {
            ctx.file(&format!("added-{added}"), b"")?;
            added += 1;
        }
    }
    // POSIX: what was there all the time comes exactly once; what is new may come or not.
    equal!(seen.len(), 1000);
    equal!(seen.into_iter().collect::<BTreeSet<_>>().len(), 1000);
    Ok(())
}

fn renaming_while_reading(ctx: &Ctx) -> Outcome {
    fill(ctx, 500)?;
    ctx.file("stays", b"")?;
    let mut stream = DirStream::open(ctx.dir())?;
    stream.read()?;
    for i in 0..500 {
        rename(ctx.path(format!("entry-{i:05}")), ctx.path(format!("other-{i:05}")))?;
    }
    read_all(&mut stream)?;
    equal!(os::names(ctx.dir())?.len(), 501);
    Ok(())
}

fn read_of_removed_directory(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    let mut stream = DirStream::open(&dir)?;
    rustix::fs::rmdir(&dir)?;
    match stream.read() {
        Ok(None) => {}
        // A stream may still hold what it read ahead.
        Ok(Some(name)) => ensure!(name == "." || name == ".."),
        refused => fails!(refused, NOENT),
    }
    Ok(())
}

fn two_streams_are_independent(ctx: &Ctx) -> Outcome {
    fill(ctx, 1000)?;
    let (mut a, mut b) = (DirStream::open(ctx.dir())?, DirStream::open(ctx.dir())?);
    for _ in 0..500 {
        a.read()?;
    }
    equal!(read_all(&mut b)?.len(), 1002);
    equal!(read_all(&mut a)?.len(), 502);
    Ok(())
}

fn empty_after_removal(ctx: &Ctx) -> Outcome {
    fill(ctx, 300)?;
    for name in os::names(ctx.dir())? {
        unlink(ctx.path(name))?;
    }
    equal!(read_all(&mut DirStream::open(ctx.dir())?)?.len(), 2);
    Ok(())
}

fn position_survives_other_readers(ctx: &Ctx) -> Outcome {
    fill(ctx, 400)?;
    let mut stream = DirStream::open(ctx.dir())?;
    let mut names = Vec::new();
    while let Some(name) = stream.read()? {
        names.push(name);
        if names.len() % 50 == 0 {
            equal!(os::names(ctx.dir())?.len(), 400);
        }
    }
    equal!(names.len(), 402);
    Ok(())
}

fn needs_a_directory(ctx: &Ctx) -> Outcome {
    fails!(DirStream::open(ctx.file("f", b"")?), NOTDIR);
    fails!(DirStream::open(ctx.path("no")), NOENT);
    let fd = os::open(ctx.path("f"), OFlags::RDONLY, 0)?;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
    let first = rustix::fs::RawDir::new(&fd, &mut buffer).next().map(|entry| entry.map(drop));
    fails!(first.unwrap_or(Ok(())), NOTDIR);
    Ok(())
}

fn exact_set_after_many_changes(ctx: &Ctx) -> Outcome {
    let mut want = BTreeSet::new();
    let mut random = crate::random::Random::new(42);
    for _ in 0..1500 {
        let name = format!("n{}", random.below(300));
        if want.contains(&name) {
            unlink(ctx.path(&name))?;
            want.remove(&name);
        } else {
            ctx.file(&name, b"")?;
            want.insert(name);
        }
    }
    let want: Vec<OsString> = want.into_iter().map(Into::into).collect();
    equal!(os::names(ctx.dir())?, want);
    Ok(())
}
