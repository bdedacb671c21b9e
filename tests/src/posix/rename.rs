//! rename in all its cases.

use rustix::fs::{link, rename, renameat_with, stat, symlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, CWD, FileType, OFlags, RenameFlags};

checks!("rename":
    file_to_new_name, file_over_file, directory_to_new_name, directory_over_empty_directory,
    directory_over_full_directory, directory_over_file, file_over_directory, into_itself,
    onto_itself, onto_another_link_of_itself, symlink_is_renamed_not_followed,
    over_symlink_replaces_the_symlink, every_type, missing_source, missing_target_directory,
    dot_and_dotdot, across_directories_updates_parent, nlink_of_parents_follows,
    open_descriptor_survives, open_target_survives_replacement, noreplace, exchange_files,
    exchange_file_and_directory, exchange_into_own_child, exchange_missing, bad_flags,
    updates_directory_times, keeps_mtime_of_the_file, replaced_file_loses_a_link,
    subtree_moves_whole, over_target_while_reading_is_atomic, trailing_slash_on_file,
    open_directory_descriptor_follows,
);

fn with(from: std::path::PathBuf, to: std::path::PathBuf, flags: RenameFlags) -> os::Call {
    renameat_with(CWD, from, CWD, to, flags)
}

fn file_to_new_name(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"x")?;
    rename(&path, ctx.path("b"))?;
    fails!(stat(&path), NOENT);
    equal!(os::read_all(ctx.path("b"))?, b"x");
    equal!(os::names(ctx.dir())?, ["b"]);
    Ok(())
}

fn file_over_file(ctx: &Ctx) -> Outcome {
    let number = stat(ctx.file("a", b"new")?)?.st_ino;
    ctx.file("b", b"old")?;
    rename(ctx.path("a"), ctx.path("b"))?;
    equal!(os::read_all(ctx.path("b"))?, b"new");
    equal!(stat(ctx.path("b"))?.st_ino, number);
    equal!(os::names(ctx.dir())?, ["b"]);
    Ok(())
}

fn directory_to_new_name(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o750)?;
    os::write_file(dir.join("f"), b"x")?;
    rename(&dir, ctx.path("e"))?;
    equal!(os::read_all(ctx.path("e/f"))?, b"x");
    equal!(os::permissions(ctx.path("e"))?, 0o750);
    fails!(stat(dir.join("f")), NOENT);
    Ok(())
}

fn directory_over_empty_directory(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::write_file(dir.join("f"), b"x")?;
    ctx.subdir("e", 0o755)?;
    rename(&dir, ctx.path("e"))?;
    equal!(os::names(ctx.path("e"))?, ["f"]);
    equal!(os::names(ctx.dir())?, ["e"]);
    Ok(())
}

fn directory_over_full_directory(ctx: &Ctx) -> Outcome {
    let (d, e) = (ctx.subdir("d", 0o755)?, ctx.subdir("e", 0o755)?);
    os::write_file(e.join("f"), b"x")?;
    fails!(rename(&d, &e), NOTEMPTY | EXIST);
    equal!(os::names(&e)?, ["f"]);
    Ok(())
}

fn directory_over_file(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    let file = ctx.file("f", b"x")?;
    fails!(rename(&dir, &file), NOTDIR);
    symlink("d", ctx.path("l"))?;
    fails!(rename(&dir, ctx.path("l")), NOTDIR);
    Ok(())
}

fn file_over_directory(ctx: &Ctx) -> Outcome {
    let file = ctx.file("f", b"x")?;
    fails!(rename(&file, ctx.subdir("d", 0o755)?), ISDIR);
    equal!(os::read_all(&file)?, b"x");
    Ok(())
}

fn into_itself(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::mkdir(dir.join("e"), 0o755)?;
    fails!(rename(&dir, dir.join("x")), INVAL);
    fails!(rename(&dir, dir.join("e/x")), INVAL);
    fails!(rename(&dir, dir.join("e")), INVAL);
    fails!(rename(dir.join("e"), &dir), NOTEMPTY | EXIST);
    Ok(())
}

fn onto_itself(ctx: &Ctx) -> Outcome {
    let file = ctx.file("f", b"x")?;
    rename(&file, &file)?;
    equal!(os::read_all(&file)?, b"x");
    let dir = ctx.subdir("d", 0o755)?;
    rename(&dir, &dir)?;
    equal!(os::file_type(&dir)?, FileType::Directory);
    Ok(())
}

fn onto_another_link_of_itself(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"x")?;
    link(&path, ctx.path("b"))?;
    rename(&path, ctx.path("b"))?;
    // POSIX: both names stay.
    equal!(os::names(ctx.dir())?, ["a", "b"]);
    equal!(stat(&path)?.st_nlink, 2);
    Ok(())
}

fn symlink_is_renamed_not_followed(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    rename(ctx.path("l"), ctx.path("m"))?;
    equal!(os::readlink(ctx.path("m"))?, "f");
    equal!(os::names(ctx.dir())?, ["f", "m"]);
    Ok(())
}

fn over_symlink_replaces_the_symlink(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"kept")?;
    symlink("f", ctx.path("l"))?;
    rename(ctx.file("g", b"new")?, ctx.path("l"))?;
    equal!(os::file_type(ctx.path("l"))?, FileType::RegularFile);
    equal!(os::read_all(ctx.path("f"))?, b"kept");
    Ok(())
}

fn every_type(ctx: &Ctx) -> Outcome {
    for (i, kind) in [FileType::Fifo, FileType::Socket, FileType::RegularFile].iter().enumerate() {
        let (from, to) = (ctx.path(format!("from{i}")), ctx.path(format!("to{i}")));
        os::mknod(&from, *kind, 0o600, 0)?;
        ctx.file(&format!("to{i}"), b"old")?;
        rename(&from, &to)?;
        equal!(os::file_type(&to)?, *kind);
    }
    Ok(())
}

fn missing_source(ctx: &Ctx) -> Outcome {
    let file = ctx.file("f", b"")?;
    fails!(rename(ctx.path("no"), &file), NOENT);
    fails!(rename(ctx.path("f/x"), ctx.path("g")), NOTDIR);
    fails!(rename(&file, ctx.path("f/x")), NOTDIR);
    Ok(())
}

fn missing_target_directory(ctx: &Ctx) -> Outcome {
    let file = ctx.file("f", b"")?;
    fails!(rename(&file, ctx.path("no/f")), NOENT);
    ensure!(os::exists(&file)?);
    Ok(())
}

fn dot_and_dotdot(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    fails!(rename(dir.join("."), ctx.path("e")), BUSY | INVAL);
    fails!(rename(dir.join(".."), ctx.path("e")), BUSY | INVAL);
    fails!(rename(&dir, ctx.path("d/..")), BUSY | INVAL | NOTEMPTY | EXIST);
    Ok(())
}

fn across_directories_updates_parent(ctx: &Ctx) -> Outcome {
    let (a, b) = (ctx.subdir("a", 0o755)?, ctx.subdir("b", 0o755)?);
    os::mkdir(a.join("d"), 0o755)?;
    rename(a.join("d"), b.join("d"))?;
    equal!(stat(b.join("d/.."))?.st_ino, stat(&b)?.st_ino);
    equal!(os::names(&a)?.len(), 0);
    Ok(rustix::fs::rmdir(&a)?)
}

fn nlink_of_parents_follows(ctx: &Ctx) -> Outcome {
    let (a, b) = (ctx.subdir("a", 0o755)?, ctx.subdir("b", 0o755)?);
    os::mkdir(a.join("d"), 0o755)?;
    let before = (stat(&a)?.st_nlink, stat(&b)?.st_nlink);
    rename(a.join("d"), b.join("d"))?;
    let after = (stat(&a)?.st_nlink, stat(&b)?.st_nlink);
    ensure!(after == (before.0 - 1, before.1 + 1) || before == (1, 1), "{before:?} {after:?}");
    Ok(())
}

fn open_descriptor_survives(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("a", b"one")?;
    rename(ctx.path("a"), ctx.path("b"))?;
    os::write_at(&fd, 0, b"two")?;
    equal!(os::read_all(ctx.path("b"))?, b"two");
    Ok(())
}

fn open_target_survives_replacement(ctx: &Ctx) -> Outcome {
    let old = ctx.open_new("b", b"old")?;
    rename(ctx.file("a", b"new")?, ctx.path("b"))?;
    equal!(os::read_at(&old, 0, 9)?, b"old");
    equal!(rustix::fs::fstat(&old)?.st_nlink, 0);
    os::write_at(&old, 0, b"OLD")?;
    equal!(os::read_at(&old, 0, 9)?, b"OLD");
    equal!(os::read_all(ctx.path("b"))?, b"new");
    Ok(())
}

fn noreplace(ctx: &Ctx) -> Outcome {
    ctx.file("a", b"a")?;
    ctx.file("b", b"b")?;
    fails!(with(ctx.path("a"), ctx.path("b"), RenameFlags::NOREPLACE), EXIST);
    equal!(os::read_all(ctx.path("b"))?, b"b");
    with(ctx.path("a"), ctx.path("c"), RenameFlags::NOREPLACE)?;
    equal!(os::names(ctx.dir())?, ["b", "c"]);
    ctx.subdir("d", 0o755)?;
    fails!(with(ctx.path("b"), ctx.path("d"), RenameFlags::NOREPLACE), EXIST);
    Ok(())
}

fn exchange_files(ctx: &Ctx) -> Outcome {
    let (a, b) = (stat(ctx.file("a", b"A")?)?.st_ino, stat(ctx.file("b", b"BB")?)?.st_ino);
    with(ctx.path("a"), ctx.path("b"), RenameFlags::EXCHANGE)?;
    equal!(os::read_all(ctx.path("a"))?, b"BB");
    equal!(os::read_all(ctx.path("b"))?, b"A");
    equal!((stat(ctx.path("a"))?.st_ino, stat(ctx.path("b"))?.st_ino), (b, a));
    Ok(())
}

fn exchange_file_and_directory(ctx: &Ctx) -> Outcome {
    let (x, y) = (ctx.subdir("x", 0o755)?, ctx.subdir("y", 0o755)?);
    os::write_file(x.join("a"), b"file")?;
    os::mkdir(y.join("a"), 0o755)?;
    os::write_file(y.join("a/in"), b"in")?;
    let before = (stat(&x)?.st_nlink, stat(&y)?.st_nlink);
    with(x.join("a"), y.join("a"), RenameFlags::EXCHANGE)?;
    equal!(os::read_all(x.join("a/in"))?, b"in");
    equal!(os::read_all(y.join("a"))?, b"file");
    equal!(stat(x.join("a/.."))?.st_ino, stat(&x)?.st_ino);
    let after = (stat(&x)?.st_nlink, stat(&y)?.st_nlink);
    ensure!(after == (before.0 + 1, before.1 - 1) || before == (1, 1), "{before:?} {after:?}");
    Ok(())
}

fn exchange_into_own_child(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::mkdir(dir.join("e"), 0o755)?;
    fails!(with(dir.clone(), dir.join("e"), RenameFlags::EXCHANGE), INVAL);
    fails!(with(dir.join("e"), dir, RenameFlags::EXCHANGE), INVAL | NOTEMPTY);
    Ok(())
}

fn exchange_missing(ctx: &Ctx) -> Outcome {
    ctx.file("a", b"")?;
    fails!(with(ctx.path("a"), ctx.path("no"), RenameFlags::EXCHANGE), NOENT);
    fails!(with(ctx.path("no"), ctx.path("a"), RenameFlags::EXCHANGE), NOENT);
    equal!(os::names(ctx.dir())?, ["a"]);
    Ok(())
}

fn bad_flags(ctx: &Ctx) -> Outcome {
    ctx.file("a", b"")?;
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    fails!(with(ctx.path("a"), ctx.path("b"), both), INVAL);
    Ok(())
}

fn updates_directory_times(ctx: &Ctx) -> Outcome {
    let (a, b) = (ctx.subdir("a", 0o755)?, ctx.subdir("b", 0o755)?);
    os::write_file(a.join("f"), b"")?;
    let before = (stat(&a)?, stat(&b)?);
    os::tick();
    rename(a.join("f"), b.join("f"))?;
    ensure!(os::mtime(&stat(&a)?) > os::mtime(&before.0));
    ensure!(os::mtime(&stat(&b)?) > os::mtime(&before.1));
    ensure!(os::ctime(&stat(&a)?) > os::ctime(&before.0));
    Ok(())
}

fn keeps_mtime_of_the_file(ctx: &Ctx) -> Outcome {
    let path = ctx.file("a", b"x")?;
    os::utimens(&path, &os::times((10, 1), (20, 2)))?;
    rename(&path, ctx.path("b"))?;
    equal!(os::mtime(&stat(ctx.path("b"))?), (20, 2));
    Ok(())
}

fn replaced_file_loses_a_link(ctx: &Ctx) -> Outcome {
    let path = ctx.file("b", b"old")?;
    link(&path, ctx.path("other"))?;
    rename(ctx.file("a", b"new")?, &path)?;
    equal!(stat(ctx.path("other"))?.st_nlink, 1);
    equal!(os::read_all(ctx.path("other"))?, b"old");
    Ok(())
}

fn subtree_moves_whole(ctx: &Ctx) -> Outcome {
    let top = ctx.subdir("top", 0o755)?;
    for i in 0..20 {
        os::mkdir(top.join(format!("d{i}")), 0o755)?;
        os::write_file(top.join(format!("d{i}/f")), format!("{i}").as_bytes())?;
    }
    ctx.subdir("elsewhere", 0o755)?;
    rename(&top, ctx.path("elsewhere/moved"))?;
    for i in 0..20 {
        let path = ctx.path(format!("elsewhere/moved/d{i}/f"));
        equal!(os::read_all(path)?, format!("{i}").as_bytes());
    }
    Ok(())
}

fn over_target_while_reading_is_atomic(ctx: &Ctx) -> Outcome {
    let target = ctx.file("t", &[b'0'; 5000])?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let reader = scope.spawn(|| -> Outcome {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let content = os::read_all(&target)?;
                ensure!(content.len() == 5000, "read {} bytes", content.len());
                ensure!(content.iter().all(|byte| *byte == content[0]), "two versions mixed");
            }
            Ok(())
        });
        let writer = (0..200_u8).try_for_each(|i| -> Outcome {
            rename(ctx.file("new", &[b'0' + i % 10; 5000])?, &target)?;
            Ok(())
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let read = reader.join().map_err(|_| crate::Failure::at("the reader panicked"))?;
        writer.and(read)
    })
}

fn trailing_slash_on_file(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    fails!(rename(ctx.path("f/"), ctx.path("g")), NOTDIR);
    fails!(rename(ctx.path("f"), ctx.path("g/")), NOTDIR | NOENT);
    let dir = ctx.subdir("d", 0o755)?;
    rename(dir, ctx.path("e/"))?;
    equal!(os::names(ctx.dir())?, ["e", "f"]);
    Ok(())
}

fn open_directory_descriptor_follows(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    let fd = os::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    rename(&dir, ctx.path("e"))?;
    rustix::fs::mkdirat(&fd, "in", rustix::fs::Mode::RWXU)?;
    ensure!(os::exists(ctx.path("e/in"))?);
    Ok(())
}
