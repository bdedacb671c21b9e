//! unlink and rmdir, and files that live on without a name.

use rustix::fs::{fstat, rmdir, stat, symlink, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, FallocateFlags, FileType, Map, OFlags};

checks!("unlink":
    name_is_gone, every_type_can_go, of_directory_is_refused, rmdir_of_file_is_refused,
    rmdir_of_full_directory, rmdir_of_dot, missing_names, open_file_reads_and_writes,
    open_file_has_no_links, open_file_keeps_its_attributes, open_file_can_change_attributes,
    open_file_can_grow_and_shrink, open_file_has_extended_attributes, open_file_can_be_mapped,
    two_descriptors_share_the_nameless_file, new_file_of_same_name_is_another,
    open_directory_after_rmdir, open_directory_can_change_all_attributes,
    replaced_directory_can_change_all_attributes, open_file_can_change_owner_and_lists, symlink_target_stays, updates_directory_times,
    parent_becomes_removable_while_open, many_open_unlinked_files, opened_right_after_close_then_removed, reopened_through_proc,
);

fn name_is_gone(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"x")?;
    unlink(&path)?;
    fails!(stat(&path), NOENT);
    fails!(os::open(&path, OFlags::RDONLY, 0), NOENT);
    fails!(unlink(&path), NOENT);
    equal!(os::names(ctx.dir())?.len(), 0);
    Ok(())
}

fn every_type_can_go(ctx: &Ctx) -> Outcome {
    for kind in [FileType::RegularFile, FileType::Fifo, FileType::Socket] {
        os::mknod(ctx.path("n"), kind, 0o600, 0)?;
        unlink(ctx.path("n"))?;
    }
    symlink("x", ctx.path("n"))?;
    unlink(ctx.path("n"))?;
    os::mkdir(ctx.path("n"), 0o700)?;
    rmdir(ctx.path("n"))?;
    equal!(os::names(ctx.dir())?.len(), 0);
    Ok(())
}

fn of_directory_is_refused(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    // POSIX says EPERM, Linux EISDIR.
    fails!(unlink(&dir), ISDIR | PERM);
    ensure!(os::exists(&dir)?);
    Ok(())
}

fn rmdir_of_file_is_refused(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(rmdir(&path), NOTDIR);
    ctx.subdir("d", 0o755)?;
    symlink("d", ctx.path("l"))?;
    fails!(rmdir(ctx.path("l")), NOTDIR);
    Ok(())
}

fn rmdir_of_full_directory(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    for (make, name) in [(true, "sub"), (false, "file")] {
        if make {
            os::mkdir(dir.join(name), 0o755)?;
        } else {
            os::write_file(dir.join(name), b"")?;
        }
        fails!(rmdir(&dir), NOTEMPTY | EXIST);
        if make { rmdir(dir.join(name))? } else { unlink(dir.join(name))? }
    }
    Ok(rmdir(&dir)?)
}

fn rmdir_of_dot(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    fails!(rmdir(dir.join(".")), INVAL);
    fails!(rmdir(dir.join("..")), NOTEMPTY | EXIST);
    Ok(())
}

fn missing_names(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    fails!(unlink(ctx.path("no")), NOENT);
    fails!(unlink(ctx.path("no/f")), NOENT);
    fails!(unlink(ctx.path("f/x")), NOTDIR);
    fails!(unlink(ctx.path("f/")), NOTDIR);
    fails!(rmdir(ctx.path("no")), NOENT);
    Ok(())
}

fn open_file_reads_and_writes(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"before")?;
    unlink(ctx.path("f"))?;
    equal!(os::read_at(&fd, 0, 99)?, b"before");
    os::write_at(&fd, 6, b" and after")?;
    equal!(os::read_at(&fd, 0, 99)?, b"before and after");
    Ok(rustix::fs::fsync(&fd)?)
}

fn open_file_has_no_links(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"1234")?;
    let number = fstat(&fd)?.st_ino;
    unlink(ctx.path("f"))?;
    let found = fstat(&fd)?;
    equal!((found.st_nlink, found.st_size, found.st_ino), (0, 4, number));
    Ok(())
}

fn open_file_keeps_its_attributes(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"1234")?;
    os::fchmod(&fd, 0o741)?;
    os::utimens(ctx.path("f"), &os::times((11, 1), (22, 2)))?;
    unlink(ctx.path("f"))?;
    let found = fstat(&fd)?;
    equal!(found.st_mode & 0o7777, 0o741);
    equal!(os::mtime(&found), (22, 2));
    Ok(())
}

fn open_file_can_change_attributes(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"1234")?;
    unlink(ctx.path("f"))?;
    os::fchmod(&fd, 0o606)?;
    rustix::fs::futimens(&fd, &os::times((11, 1), (22, 2)))?;
    let found = fstat(&fd)?;
    equal!(found.st_mode & 0o7777, 0o606);
    equal!(os::mtime(&found), (22, 2));
    Ok(())
}

fn open_file_can_grow_and_shrink(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"1234")?;
    unlink(ctx.path("f"))?;
    rustix::fs::ftruncate(&fd, 100_000)?;
    equal!(fstat(&fd)?.st_size, 100_000);
    rustix::fs::ftruncate(&fd, 2)?;
    equal!(os::read_at(&fd, 0, 9)?, b"12");
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192)?;
    equal!(fstat(&fd)?.st_size, 8192);
    Ok(())
}

fn open_file_has_extended_attributes(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    unlink(ctx.path("f"))?;
    rustix::fs::fsetxattr(&fd, "user.late", b"value", os::XattrFlags::empty())?;
    let mut value = [0; 16];
    let len = rustix::fs::fgetxattr(&fd, "user.late", &mut value[..])?;
    equal!(&value[..len], b"value");
    Ok(())
}

fn open_file_can_be_mapped(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsFd;
    let fd = ctx.open_new("f", &[b'm'; 4096])?;
    unlink(ctx.path("f"))?;
    let mut map = Map::new(fd.as_fd(), 0, 4096, true, true)?;
    equal!(map.read(0, 4), b"mmmm");
    map.write(0, b"MAPS");
    equal!(os::read_at(&fd, 0, 5)?, b"MAPSm");
    drop(fd);
    equal!(map.read(0, 5), b"MAPSm");
    Ok(())
}

fn two_descriptors_share_the_nameless_file(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"")?;
    let b = os::open(ctx.path("f"), OFlags::RDWR, 0)?;
    unlink(ctx.path("f"))?;
    os::write_at(&a, 0, b"shared")?;
    equal!(os::read_at(&b, 0, 9)?, b"shared");
    drop(a);
    equal!(os::read_at(&b, 0, 9)?, b"shared");
    Ok(())
}

fn new_file_of_same_name_is_another(ctx: &Ctx) -> Outcome {
    let old = ctx.open_new("f", b"old")?;
    unlink(ctx.path("f"))?;
    let new = ctx.open_new("f", b"newer")?;
    ensure!(fstat(&old)?.st_ino != fstat(&new)?.st_ino);
    os::write_at(&old, 0, b"OLD")?;
    equal!(os::read_at(&new, 0, 9)?, b"newer");
    equal!(os::read_at(&old, 0, 9)?, b"OLD");
    equal!(os::size(ctx.path("f"))?, 5);
    Ok(())
}

fn open_directory_after_rmdir(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    let fd = os::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    rmdir(&dir)?;
    fails!(rustix::fs::mkdirat(&fd, "x", rustix::fs::Mode::RWXU), NOENT);
    fails!(
        rustix::fs::openat(&fd, "y", OFlags::CREATE | OFlags::RDWR, rustix::fs::Mode::RWXU),
        NOENT
    );
    equal!(FileType::from_raw_mode(fstat(&fd)?.st_mode), FileType::Directory);
    Ok(())
}

fn open_directory_can_change_all_attributes(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::setxattr(&dir, "user.early", b"first", os::XattrFlags::empty())?;
    let fd = os::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    rmdir(&dir)?;
    attributes_of_nameless_directory(&fd)
}

fn replaced_directory_can_change_all_attributes(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::setxattr(&dir, "user.early", b"first", os::XattrFlags::empty())?;
    let fd = os::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    rustix::fs::rename(ctx.subdir("other", 0o755)?, &dir)?;
    attributes_of_nameless_directory(&fd)
}

/// All that can be asked of a directory without a name that has the attribute `user.early`, twice: its
/// name may be gone from more than one place meanwhile.
fn attributes_of_nameless_directory(fd: &std::os::fd::OwnedFd) -> Outcome {
    let value = |name: &str| -> rustix::io::Result<Vec<u8>> {
        let mut value = [0; 16];
        let len = rustix::fs::fgetxattr(fd, name, &mut value[..])?;
        Ok(value[..len].to_vec())
    };
    for round in 0..2 {
        equal!(value("user.early")?, b"first");
        fails!(value("user.late"), NODATA);
        rustix::fs::fsetxattr(fd, "user.late", b"value", os::XattrFlags::CREATE)?;
        fails!(rustix::fs::fsetxattr(fd, "user.late", b"x", os::XattrFlags::CREATE), EXIST);
        rustix::fs::fsetxattr(fd, "user.late", b"other", os::XattrFlags::REPLACE)?;
        fails!(rustix::fs::fsetxattr(fd, "user.no", b"x", os::XattrFlags::REPLACE), NODATA);
        equal!(value("user.late")?, b"other");
        let mut names = [0; 256];
        let len = rustix::fs::flistxattr(fd, &mut names[..])?;
        let mut names: Vec<&[u8]> = names[..len].split_inclusive(|byte| *byte == 0).collect();
        names.retain(|name| name.starts_with(b"user."));
        names.sort_unstable();
        equal!(names, [&b"user.early\0"[..], b"user.late\0"]);
        rustix::fs::fremovexattr(fd, "user.late")?;
        fails!(rustix::fs::fremovexattr(fd, "user.late"), NODATA);
        os::fchmod(fd, 0o751)?;
        os::fchown(fd, None, Some(1234))?;
        rustix::fs::futimens(fd, &os::times((11, 1), (22, 2)))?;
        let found = fstat(fd)?;
        equal!(found.st_mode & 0o7777, 0o751);
        equal!(found.st_gid, 1234);
        equal!(os::mtime(&found), (22, 2));
        equal!(FileType::from_raw_mode(found.st_mode), FileType::Directory);
        if round == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1200));
        }
    }
    Ok(())
}

fn open_file_can_change_owner_and_lists(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"1234")?;
    rustix::fs::fsetxattr(&fd, "user.early", b"first", os::XattrFlags::empty())?;
    unlink(ctx.path("f"))?;
    rustix::fs::fsetxattr(&fd, "user.late", b"value", os::XattrFlags::CREATE)?;
    fails!(rustix::fs::fsetxattr(&fd, "user.late", b"x", os::XattrFlags::CREATE), EXIST);
    let mut names = [0; 256];
    let len = rustix::fs::flistxattr(&fd, &mut names[..])?;
    let mut names: Vec<&[u8]> = names[..len].split_inclusive(|byte| *byte == 0).collect();
    names.retain(|name| name.starts_with(b"user."));
    names.sort_unstable();
    equal!(names, [&b"user.early\0"[..], b"user.late\0"]);
    rustix::fs::fremovexattr(&fd, "user.early")?;
    os::fchown(&fd, None, Some(1234))?;
    equal!(fstat(&fd)?.st_gid, 1234);
    equal!(fstat(&fd)?.st_nlink, 0);
    Ok(())
}

fn symlink_target_stays(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"x")?;
    symlink("f", ctx.path("l"))?;
    unlink(ctx.path("l"))?;
    equal!(os::read_all(ctx.path("f"))?, b"x");
    Ok(())
}

fn updates_directory_times(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    rustix::fs::link(ctx.path("f"), ctx.path("g"))?;
    let (dir, file) = (stat(ctx.dir())?, stat(ctx.path("g"))?);
    os::tick();
    unlink(ctx.path("f"))?;
    ensure!(os::mtime(&stat(ctx.dir())?) > os::mtime(&dir));
    ensure!(os::ctime(&stat(ctx.dir())?) > os::ctime(&dir));
    ensure!(os::ctime(&stat(ctx.path("g"))?) > os::ctime(&file));
    Ok(())
}

fn parent_becomes_removable_while_open(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    os::write_file(dir.join("f"), b"x")?;
    let fd = os::open(dir.join("f"), OFlags::RDWR, 0)?;
    unlink(dir.join("f"))?;
    equal!(os::names(&dir)?.len(), 0);
    rmdir(&dir)?;
    equal!(os::read_at(&fd, 0, 9)?, b"x");
    Ok(())
}

fn opened_right_after_close_then_removed(ctx: &Ctx) -> Outcome {
    // A close may be worked off while the next open and the removal are.
    for i in 0..300_u32 {
        let fd = ctx.open_new("same-name", &i.to_le_bytes())?;
        unlink(ctx.path("same-name"))?;
        equal!(os::read_at(&fd, 0, 9)?, i.to_le_bytes());
        os::write_at(&fd, 4, b"more")?;
        equal!(os::read_at(&fd, 4, 9)?, b"more");
    }
    Ok(())
}

fn many_open_unlinked_files(ctx: &Ctx) -> Outcome {
    let mut open = Vec::new();
    for i in 0..100_u32 {
        let fd = ctx.open_new("same-name", &i.to_le_bytes())?;
        unlink(ctx.path("same-name"))?;
        open.push(fd);
    }
    for (i, fd) in open.iter().enumerate() {
        equal!(os::read_at(fd, 0, 9)?, (i as u32).to_le_bytes());
    }
    Ok(())
}

fn reopened_through_proc(ctx: &Ctx) -> Outcome {
    use std::os::fd::AsRawFd;
    let fd = ctx.open_new("f", b"again")?;
    unlink(ctx.path("f"))?;
    let again = os::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDWR, 0)?;
    drop(fd);
    equal!(os::read_at(&again, 0, 9)?, b"again");
    os::write_at(&again, 0, b"AGAIN")?;
    equal!(os::read_at(&again, 0, 9)?, b"AGAIN");
    Ok(())
}
