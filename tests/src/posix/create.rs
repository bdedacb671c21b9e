//! Creation of every type of file.

use rustix::fs::{makedev, stat, symlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, FileType, OFlags};
use crate::process::{ALICE, as_user};

checks!("create":
    regular_file_is_empty_and_has_one_link, directory_has_its_own_type, symlink_keeps_its_target,
    symlink_mode_and_size, fifo_carries_bytes, socket_accepts_connections, socket_node_by_mknod,
    char_device_works_or_is_refused, block_device_keeps_its_number, device_needs_privilege,
    mknod_makes_regular_files, existing_name_is_refused, existing_symlink_is_refused,
    dangling_symlink_creates_its_target, missing_parent_is_refused, parent_that_is_a_file,
    creator_owns_the_file, setgid_directory_gives_its_group, setgid_directory_gives_its_bit,
    inode_numbers_differ, inode_number_is_stable, new_directory_is_empty, many_in_one_directory,
    deep_tree, create_is_seen_through_another_descriptor,
);

fn regular_file_is_empty_and_has_one_link(ctx: &Ctx) -> Outcome {
    let path = ctx.path("f");
    os::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o640)?;
    let found = stat(&path)?;
    equal!(os::file_type(&path)?, FileType::RegularFile);
    equal!((found.st_size, found.st_nlink), (0, 1));
    Ok(())
}

fn directory_has_its_own_type(ctx: &Ctx) -> Outcome {
    let path = ctx.subdir("d", 0o755)?;
    equal!(os::file_type(&path)?, FileType::Directory);
    equal!(os::file_type(path.join("."))?, FileType::Directory);
    equal!(stat(path.join(".."))?.st_ino, stat(ctx.dir())?.st_ino);
    Ok(())
}

fn symlink_keeps_its_target(ctx: &Ctx) -> Outcome {
    let long = "x/".repeat(500);
    for (name, target) in [("a", "to"), ("b", "../no/where"), ("c", "/"), ("d", long.as_str())] {
        symlink(target, ctx.path(name))?;
        equal!(os::readlink(ctx.path(name))?, target);
        equal!(os::file_type(ctx.path(name))?, FileType::Symlink);
    }
    Ok(())
}

fn symlink_mode_and_size(ctx: &Ctx) -> Outcome {
    symlink("twelve-bytes", ctx.path("l"))?;
    let found = rustix::fs::lstat(ctx.path("l"))?;
    equal!(found.st_size, 12);
    equal!(found.st_mode & 0o777, 0o777);
    Ok(())
}

fn fifo_carries_bytes(ctx: &Ctx) -> Outcome {
    let path = ctx.path("fifo");
    os::mknod(&path, FileType::Fifo, 0o600, 0)?;
    equal!(os::file_type(&path)?, FileType::Fifo);
    fails!(os::open(&path, OFlags::WRONLY | OFlags::NONBLOCK, 0), NXIO);
    let reader = os::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
    let writer = os::open(&path, OFlags::WRONLY | OFlags::NONBLOCK, 0)?;
    os::write_all(&writer, b"through")?;
    drop(writer);
    equal!(os::read_to_end(&reader)?, b"through");
    Ok(())
}

fn socket_accepts_connections(ctx: &Ctx) -> Outcome {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    // A socket address holds only 108 bytes, so the path goes through the descriptor table.
    let dir = os::open(ctx.dir(), OFlags::PATH | OFlags::DIRECTORY, 0)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&dir);
    let address = format!("/proc/self/fd/{number}/sock");
    let listener = UnixListener::bind(&address)?;
    equal!(os::file_type(ctx.path("sock"))?, FileType::Socket);
    let mut client = UnixStream::connect(&address)?;
    let (mut server, _) = listener.accept()?;
    client.write_all(b"hello")?;
    let mut got = [0; 5];
    server.read_exact(&mut got)?;
    equal!(&got, b"hello");
    fails!(os::open(ctx.path("sock"), OFlags::RDONLY, 0), NXIO);
    Ok(())
}

fn socket_node_by_mknod(ctx: &Ctx) -> Outcome {
    os::mknod(ctx.path("s"), FileType::Socket, 0o640, 0)?;
    equal!(os::file_type(ctx.path("s"))?, FileType::Socket);
    equal!(os::permissions(ctx.path("s"))?, 0o640);
    Ok(())
}

fn char_device_works_or_is_refused(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let path = ctx.path("null");
    os::mknod(&path, FileType::CharacterDevice, 0o666, makedev(1, 3))?;
    equal!(os::file_type(&path)?, FileType::CharacterDevice);
    equal!(stat(&path)?.st_rdev, makedev(1, 3));
    // A mount with the nodev option keeps the node, but does not open it.
    match os::open(&path, OFlags::RDWR, 0) {
        Ok(null) => {
            os::write_all(&null, b"gone")?;
            equal!(os::read_to_end(&null)?, b"");
        }
        refused => fails!(refused, ACCESS),
    }
    Ok(())
}

fn block_device_keeps_its_number(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let number = makedev(259, 70_000);
    os::mknod(ctx.path("b"), FileType::BlockDevice, 0o600, number)?;
    equal!(os::file_type(ctx.path("b"))?, FileType::BlockDevice);
    equal!(stat(ctx.path("b"))?.st_rdev, number);
    Ok(())
}

fn device_needs_privilege(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    as_user(ALICE, || {
        fails!(os::mknod(ctx.path("c"), FileType::CharacterDevice, 0o600, makedev(1, 3)), PERM);
        fails!(os::mknod(ctx.path("b"), FileType::BlockDevice, 0o600, makedev(7, 0)), PERM);
        Ok(os::mknod(ctx.path("fifo"), FileType::Fifo, 0o600, 0)?)
    })
}

fn mknod_makes_regular_files(ctx: &Ctx) -> Outcome {
    os::mknod(ctx.path("f"), FileType::RegularFile, 0o600, 0)?;
    equal!(os::file_type(ctx.path("f"))?, FileType::RegularFile);
    fails!(os::mknod(ctx.path("f"), FileType::RegularFile, 0o600, 0), EXIST);
    Ok(())
}

fn existing_name_is_refused(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"kept")?;
    ctx.subdir("d", 0o755)?;
    for name in ["f", "d"] {
        let path = ctx.path(name);
        fails!(os::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o600), EXIST);
        fails!(os::mkdir(&path, 0o700), EXIST);
        fails!(os::mknod(&path, FileType::Fifo, 0o600, 0), EXIST);
        fails!(symlink("x", &path), EXIST);
    }
    equal!(os::read_all(ctx.path("f"))?, b"kept");
    Ok(())
}

fn existing_symlink_is_refused(ctx: &Ctx) -> Outcome {
    let path = ctx.path("l");
    symlink("nowhere", &path)?;
    fails!(os::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o600), EXIST);
    fails!(os::mkdir(&path, 0o700), EXIST);
    fails!(os::mknod(&path, FileType::Fifo, 0o600, 0), EXIST);
    ensure!(!os::exists(ctx.path("nowhere"))?);
    Ok(())
}

fn dangling_symlink_creates_its_target(ctx: &Ctx) -> Outcome {
    symlink("target", ctx.path("l"))?;
    os::open(ctx.path("l"), OFlags::CREATE | OFlags::WRONLY, 0o600)?;
    equal!(os::file_type(ctx.path("target"))?, FileType::RegularFile);
    equal!(os::file_type(ctx.path("l"))?, FileType::Symlink);
    Ok(())
}

fn missing_parent_is_refused(ctx: &Ctx) -> Outcome {
    let path = ctx.path("no/f");
    fails!(os::open(&path, OFlags::CREATE | OFlags::WRONLY, 0o600), NOENT);
    fails!(os::mkdir(&path, 0o700), NOENT);
    fails!(os::mknod(&path, FileType::Fifo, 0o600, 0), NOENT);
    fails!(symlink("x", &path), NOENT);
    Ok(())
}

fn parent_that_is_a_file(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    let path = ctx.path("f/x");
    fails!(os::open(&path, OFlags::CREATE | OFlags::WRONLY, 0o600), NOTDIR);
    fails!(os::mkdir(&path, 0o700), NOTDIR);
    fails!(os::mknod(&path, FileType::Fifo, 0o600, 0), NOTDIR);
    fails!(symlink("x", &path), NOTDIR);
    Ok(())
}

fn creator_owns_the_file(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    as_user(ALICE, || {
        os::write_file(ctx.path("f"), b"")?;
        os::mkdir(ctx.path("d"), 0o755)?;
        symlink("x", ctx.path("l"))?;
        os::mknod(ctx.path("p"), FileType::Fifo, 0o600, 0)?;
        Ok(())
    })?;
    for name in ["f", "d", "l", "p"] {
        let found = rustix::fs::lstat(ctx.path(name))?;
        ensure!((found.st_uid, found.st_gid) == (ALICE.uid, ALICE.gid), "{name}: {found:?}");
    }
    Ok(())
}

fn setgid_directory_gives_its_group(ctx: &Ctx) -> Outcome {
    ctx.need_root()?;
    let dir = ctx.subdir("d", 0o777)?;
    os::chown(&dir, None, Some(4321))?;
    os::chmod(&dir, 0o2777)?;
    as_user(ALICE, || {
        os::write_file(dir.join("f"), b"")?;
        os::mkdir(dir.join("d"), 0o755)?;
        Ok(symlink("x", dir.join("l"))?)
    })?;
    for name in ["f", "d", "l"] {
        let found = rustix::fs::lstat(dir.join(name))?;
        ensure!((found.st_uid, found.st_gid) == (ALICE.uid, 4321), "{name}: {found:?}");
    }
    Ok(())
}

fn setgid_directory_gives_its_bit(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o2777)?;
    os::mkdir(dir.join("d"), 0o755)?;
    os::write_file(dir.join("f"), b"")?;
    equal!(os::permissions(dir.join("d"))? & 0o7000, 0o2000);
    equal!(os::permissions(dir.join("f"))? & 0o7000, 0);
    Ok(())
}

fn inode_numbers_differ(ctx: &Ctx) -> Outcome {
    let mut numbers = std::collections::BTreeSet::new();
    for i in 0..50 {
        let path = ctx.file(&format!("f{i}"), b"")?;
        let found = stat(path)?;
        equal!(found.st_dev, stat(ctx.dir())?.st_dev);
        ensure!(numbers.insert(found.st_ino), "two live files share inode {}", found.st_ino);
    }
    Ok(())
}

fn inode_number_is_stable(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let number = stat(&path)?.st_ino;
    let fd = os::open(&path, OFlags::RDWR, 0)?;
    os::write_all(&fd, b"data")?;
    equal!(rustix::fs::fstat(&fd)?.st_ino, number);
    rustix::fs::rename(&path, ctx.path("g"))?;
    equal!(stat(ctx.path("g"))?.st_ino, number);
    equal!(rustix::fs::fstat(&fd)?.st_ino, number);
    Ok(())
}

fn new_directory_is_empty(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    equal!(os::names(&dir)?, Vec::<std::ffi::OsString>::new());
    Ok(rustix::fs::rmdir(&dir)?)
}

fn many_in_one_directory(ctx: &Ctx) -> Outcome {
    for i in 0..1000 {
        os::mknod(ctx.path(format!("{i:04}")), FileType::RegularFile, 0o600, 0)?;
    }
    equal!(os::names(ctx.dir())?.len(), 1000);
    Ok(())
}

fn deep_tree(ctx: &Ctx) -> Outcome {
    let mut dir = ctx.dir().to_owned();
    for depth in 0..64 {
        dir.push(format!("level{depth}"));
        os::mkdir(&dir, 0o755)?;
    }
    os::write_file(dir.join("leaf"), b"deep")?;
    equal!(os::read_all(dir.join("leaf"))?, b"deep");
    Ok(())
}

fn create_is_seen_through_another_descriptor(ctx: &Ctx) -> Outcome {
    let dir = os::open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    fails!(rustix::fs::statat(&dir, "f", os::AtFlags::empty()), NOENT);
    ctx.file("f", b"12345")?;
    equal!(rustix::fs::statat(&dir, "f", os::AtFlags::empty())?.st_size, 5);
    Ok(())
}
