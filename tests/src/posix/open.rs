//! The flags of open.

use rustix::fs::{fcntl_getfl, fcntl_setfl, fstat, stat, symlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, AlignedBuffer, OFlags};
use crate::random::pattern;

checks!("open":
    append_writes_at_the_end, append_ignores_the_position, append_of_two_descriptors_interleaves,
    append_between_processes_loses_nothing, append_can_be_switched_on, trunc_empties,
    trunc_keeps_inode_and_mode, trunc_of_new_file, excl_needs_creat_to_matter, directory_flag,
    nofollow_flag, path_descriptor_has_no_data, path_descriptor_names_the_file,
    direct_reads_and_writes, direct_and_buffered_agree, access_mode_is_enforced,
    write_only_cannot_read, directory_cannot_be_written, creat_on_directory,
    positions_are_per_description, dup_shares_the_position, sync_flags_write,
    lseek_bounds, creat_with_read_only_mode, trailing_slash_means_directory, sparse_write,
    read_beyond_end_is_empty, zero_length_io, descriptor_survives_exec_flag, large_offsets,
    many_descriptors_of_one_file, openat_relative_to_descriptor, mixed_flags_on_one_file,
);

fn append_writes_at_the_end(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"one")?;
    let fd = os::open(&path, OFlags::WRONLY | OFlags::APPEND, 0)?;
    os::write_all(&fd, b"two")?;
    os::write_all(&fd, b"three")?;
    equal!(os::read_all(&path)?, b"onetwothree");
    Ok(())
}

fn append_ignores_the_position(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"one")?;
    let fd = os::open(&path, OFlags::RDWR | OFlags::APPEND, 0)?;
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
    os::write_all(&fd, b"two")?;
    equal!(rustix::fs::tell(&fd)?, 6);
    // Linux appends on pwrite too, whatever the offset.
    os::write_at(&fd, 0, b"3")?;
    equal!(os::read_all(&path)?, b"onetwo3");
    Ok(())
}

fn append_of_two_descriptors_interleaves(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let a = os::open(&path, OFlags::WRONLY | OFlags::APPEND, 0)?;
    let b = os::open(&path, OFlags::WRONLY | OFlags::APPEND, 0)?;
    for _ in 0..3 {
        os::write_all(&a, b"a")?;
        os::write_all(&b, b"b")?;
    }
    equal!(os::read_all(&path)?, b"ababab");
    Ok(())
}

fn append_between_processes_loses_nothing(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    let write = |id: u8| -> Outcome {
        let fd = os::open(&path, OFlags::WRONLY | OFlags::APPEND, 0)?;
        for _ in 0..200 {
            equal!(rustix::io::write(&fd, &[id; 16])?, 16);
        }
        Ok(())
    };
    let children = [1, 2, 3, 4].map(|id| crate::process::Child::start(move || write(id)));
    for child in children {
        child?.join()?;
    }
    let content = os::read_all(&path)?;
    equal!(content.len(), 4 * 200 * 16);
    for record in content.chunks(16) {
        ensure!(record.iter().all(|byte| *byte == record[0]), "a record is torn: {record:?}");
    }
    Ok(())
}

fn append_can_be_switched_on(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    fcntl_setfl(&fd, OFlags::APPEND)?;
    ensure!(fcntl_getfl(&fd)?.contains(OFlags::APPEND));
    os::write_all(&fd, b"6")?;
    equal!(os::read_all(ctx.path("f"))?, b"123456");
    fcntl_setfl(&fd, OFlags::empty())?;
    os::write_at(&fd, 0, b"x")?;
    equal!(os::read_all(ctx.path("f"))?, b"x23456");
    Ok(())
}

fn trunc_empties(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"content")?;
    let reader = os::open(&path, OFlags::RDONLY, 0)?;
    let fd = os::open(&path, OFlags::RDWR | OFlags::TRUNC, 0)?;
    equal!(fstat(&fd)?.st_size, 0);
    equal!(os::read_at(&reader, 0, 9)?, b"");
    equal!(os::size(&path)?, 0);
    Ok(())
}

fn trunc_keeps_inode_and_mode(ctx: &Ctx) -> Outcome {
    let path = ctx.file_with_mode("f", 0o640)?;
    os::write_file(&path, b"content")?;
    let before = stat(&path)?;
    os::tick();
    os::open(&path, OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC, 0o777)?;
    let after = stat(&path)?;
    equal!((after.st_ino, after.st_mode), (before.st_ino, before.st_mode));
    ensure!(os::mtime(&after) > os::mtime(&before));
    Ok(())
}

fn trunc_of_new_file(ctx: &Ctx) -> Outcome {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::RDWR;
    let fd = os::open(ctx.path("f"), flags, 0o600)?;
    os::write_all(&fd, b"x")?;
    equal!(os::size(ctx.path("f"))?, 1);
    Ok(())
}

fn excl_needs_creat_to_matter(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    fails!(os::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, 0o600), EXIST);
    os::open(&path, OFlags::CREATE | OFlags::RDWR, 0o600)?;
    Ok(())
}

fn directory_flag(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    ctx.subdir("d", 0o755)?;
    fails!(os::open(ctx.path("f"), OFlags::RDONLY | OFlags::DIRECTORY, 0), NOTDIR);
    os::open(ctx.path("d"), OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    Ok(())
}

fn nofollow_flag(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    symlink("f", ctx.path("l"))?;
    fails!(os::open(ctx.path("l"), OFlags::RDONLY | OFlags::NOFOLLOW, 0), LOOP);
    os::open(ctx.path("f"), OFlags::RDONLY | OFlags::NOFOLLOW, 0)?;
    os::open(ctx.path("l"), OFlags::RDONLY, 0)?;
    Ok(())
}

fn path_descriptor_has_no_data(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file_with_mode("f", 0)?, OFlags::PATH, 0)?;
    fails!(os::read_at(&fd, 0, 1), BADF);
    fails!(os::write_at(&fd, 0, b"x"), BADF);
    fails!(rustix::fs::ftruncate(&fd, 0), BADF);
    equal!(fstat(&fd)?.st_size, 0);
    Ok(())
}

fn path_descriptor_names_the_file(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"x")?;
    symlink("f", ctx.path("l"))?;
    let link = os::open(ctx.path("l"), OFlags::PATH | OFlags::NOFOLLOW, 0)?;
    equal!(os::FileType::from_raw_mode(fstat(&link)?.st_mode), os::FileType::Symlink);
    let dir = os::open(ctx.dir(), OFlags::PATH, 0)?;
    equal!(rustix::fs::statat(&dir, "f", os::AtFlags::empty())?.st_size, 1);
    Ok(())
}

fn direct(ctx: &Ctx) -> Outcome<std::os::fd::OwnedFd> {
    match os::open(ctx.path("f"), OFlags::RDWR | OFlags::DIRECT, 0) {
        Err(os::Errno::INVAL) => Err(crate::Failure::Skipped("O_DIRECT is not supported".into())),
        other => Ok(other?),
    }
}

fn direct_reads_and_writes(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    let fd = direct(ctx)?;
    let mut buffer = AlignedBuffer::new(65_536);
    buffer.as_mut_slice().copy_from_slice(&pattern(1, 65_536));
    equal!(rustix::io::pwrite(&fd, buffer.as_slice(), 0)?, 65_536);
    equal!(rustix::io::pwrite(&fd, &buffer.as_slice()[..4096], 65_536)?, 4096);
    let mut back = AlignedBuffer::new(131_072);
    equal!(rustix::io::pread(&fd, back.as_mut_slice(), 0)?, 65_536 + 4096);
    equal!(back.as_slice()[..65_536], pattern(1, 65_536)[..]);
    equal!(back.as_slice()[65_536..69_632], pattern(1, 65_536)[..4096]);
    Ok(())
}

fn direct_and_buffered_agree(ctx: &Ctx) -> Outcome {
    let buffered = ctx.open_new("f", &pattern(2, 16_384))?;
    let fd = direct(ctx)?;
    let mut buffer = AlignedBuffer::new(4096);
    rustix::io::pread(&fd, buffer.as_mut_slice(), 8192)?;
    equal!(buffer.as_slice(), &pattern(2, 16_384)[8192..12_288]);
    buffer.as_mut_slice().fill(7);
    rustix::io::pwrite(&fd, buffer.as_slice(), 4096)?;
    equal!(os::read_at(&buffered, 4096, 4096)?, [7; 4096]);
    os::write_at(&buffered, 4096, &[8; 4096])?;
    rustix::io::pread(&fd, buffer.as_mut_slice(), 4096)?;
    equal!(buffer.as_slice(), [8; 4096]);
    Ok(())
}

fn access_mode_is_enforced(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", b"x")?, OFlags::RDONLY, 0)?;
    fails!(os::write_at(&fd, 0, b"y"), BADF);
    fails!(rustix::fs::ftruncate(&fd, 0), INVAL | BADF);
    fails!(rustix::fs::fallocate(&fd, os::FallocateFlags::empty(), 0, 1), BADF);
    Ok(())
}

fn write_only_cannot_read(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.file("f", b"x")?, OFlags::WRONLY, 0)?;
    fails!(os::read_at(&fd, 0, 1), BADF);
    Ok(os::write_at(&fd, 0, b"y")?)
}

fn directory_cannot_be_written(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    fails!(os::open(&dir, OFlags::WRONLY, 0), ISDIR);
    fails!(os::open(&dir, OFlags::RDWR, 0), ISDIR);
    let fd = os::open(&dir, OFlags::RDONLY, 0)?;
    fails!(os::read_at(&fd, 0, 1), ISDIR);
    fails!(os::truncate(&dir, 0), ISDIR);
    Ok(())
}

fn creat_on_directory(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    fails!(os::open(&dir, OFlags::CREATE | OFlags::WRONLY, 0o600), ISDIR);
    fails!(os::open(&dir, OFlags::CREATE | OFlags::RDONLY, 0o600), ISDIR);
    Ok(())
}

fn positions_are_per_description(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"abcdef")?;
    let b = os::open(ctx.path("f"), OFlags::RDONLY, 0)?;
    let mut two = [0; 2];
    rustix::io::read(&a, &mut two)?;
    rustix::io::read(&a, &mut two)?;
    equal!(&two, b"cd");
    rustix::io::read(&b, &mut two)?;
    equal!(&two, b"ab");
    Ok(())
}

fn dup_shares_the_position(ctx: &Ctx) -> Outcome {
    let a = ctx.open_new("f", b"abcdef")?;
    let b = rustix::io::dup(&a)?;
    let mut two = [0; 2];
    rustix::io::read(&a, &mut two)?;
    rustix::io::read(&b, &mut two)?;
    equal!(&two, b"cd");
    drop(a);
    rustix::io::read(&b, &mut two)?;
    equal!(&two, b"ef");
    Ok(())
}

fn sync_flags_write(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"")?;
    for flag in [OFlags::SYNC, OFlags::DSYNC] {
        let fd = os::open(&path, OFlags::WRONLY | flag, 0)?;
        os::write_at(&fd, 0, b"synced")?;
        equal!(os::read_all(&path)?, b"synced");
    }
    Ok(())
}

fn lseek_bounds(ctx: &Ctx) -> Outcome {
    use rustix::fs::{SeekFrom, seek};
    let fd = ctx.open_new("f", b"12345")?;
    equal!(seek(&fd, SeekFrom::End(0))?, 5);
    equal!(seek(&fd, SeekFrom::End(10))?, 15);
    equal!(seek(&fd, SeekFrom::Current(-14))?, 1);
    fails!(seek(&fd, SeekFrom::Current(-2)), INVAL);
    fails!(seek(&fd, SeekFrom::End(-6)), INVAL);
    equal!(seek(&fd, SeekFrom::Current(0))?, 1);
    Ok(())
}

fn creat_with_read_only_mode(ctx: &Ctx) -> Outcome {
    let fd = os::open(ctx.path("f"), OFlags::CREATE | OFlags::RDWR, 0o444)?;
    os::write_all(&fd, b"still writable")?;
    equal!(os::permissions(ctx.path("f"))?, 0o444);
    Ok(())
}

fn trailing_slash_means_directory(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"")?;
    fails!(os::open(ctx.path("f/"), OFlags::RDONLY, 0), NOTDIR);
    fails!(os::open(ctx.path("g/"), OFlags::CREATE | OFlags::WRONLY, 0o600), ISDIR | NOENT);
    os::mkdir(ctx.path("d/"), 0o755)?;
    os::open(ctx.path("d/"), OFlags::RDONLY, 0)?;
    Ok(())
}

fn sparse_write(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"head")?;
    os::write_at(&fd, 1_000_000, b"tail")?;
    let content = os::read_all(ctx.path("f"))?;
    equal!(content.len(), 1_000_004);
    ensure!(content[4..1_000_000].iter().all(|byte| *byte == 0));
    equal!(&content[1_000_000..], b"tail");
    Ok(())
}

fn read_beyond_end_is_empty(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"12345")?;
    equal!(os::read_at(&fd, 5, 10)?, b"");
    equal!(os::read_at(&fd, 1_000_000, 10)?, b"");
    equal!(os::read_at(&fd, 3, 10)?, b"45");
    Ok(())
}

fn zero_length_io(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    equal!(rustix::io::pwrite(&fd, b"", 1000)?, 0);
    equal!(fstat(&fd)?.st_size, 0);
    equal!(rustix::io::pread(&fd, &mut [0_u8; 0][..], 0)?, 0);
    Ok(())
}

fn descriptor_survives_exec_flag(ctx: &Ctx) -> Outcome {
    use std::process::{Command, Stdio};
    let fd = ctx.open_new("f", b"to the child")?;
    let output = Command::new("cat").stdin(Stdio::from(fd)).output()?;
    equal!(output.stdout, b"to the child");
    Ok(())
}

fn large_offsets(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    let far = 6 << 30;
    os::write_at(&fd, far, b"far")?;
    equal!(fstat(&fd)?.st_size as u64, far + 3);
    equal!(os::read_at(&fd, far - 2, 5)?, b"\0\0far");
    ensure!(fstat(&fd)?.st_blocks < 10_000, "a hole took space");
    Ok(())
}

fn many_descriptors_of_one_file(ctx: &Ctx) -> Outcome {
    let path = ctx.file("f", b"x")?;
    let open: Result<Vec<_>, _> = (0..200).map(|_| os::open(&path, OFlags::RDWR, 0)).collect();
    for (i, fd) in open?.iter().enumerate() {
        os::write_at(fd, i as u64, &[i as u8])?;
    }
    let content = os::read_all(&path)?;
    equal!(content, (0..200).collect::<Vec<u8>>());
    Ok(())
}

fn openat_relative_to_descriptor(ctx: &Ctx) -> Outcome {
    let dir = ctx.subdir("d", 0o755)?;
    let fd = os::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let file = rustix::fs::openat(&fd, "f", OFlags::CREATE | OFlags::RDWR, mode)?;
    os::write_all(&file, b"x")?;
    equal!(os::read_all(dir.join("f"))?, b"x");
    fails!(rustix::fs::openat(&file, "f", OFlags::RDONLY, mode), NOTDIR);
    Ok(())
}

fn mixed_flags_on_one_file(ctx: &Ctx) -> Outcome {
    // Readers, writers, appenders and O_DIRECT at the same time, opened and closed in every order.
    let path = ctx.file("f", &pattern(3, 8192))?;
    let kinds = [
        OFlags::RDONLY,
        OFlags::RDWR,
        OFlags::WRONLY | OFlags::APPEND,
        OFlags::RDONLY | OFlags::DIRECT,
        OFlags::RDWR | OFlags::SYNC,
    ];
    for first in kinds {
        for second in kinds {
            let a = os::open(&path, first, 0)?;
            let b = os::open(&path, second, 0)?;
            drop(a);
            let c = os::open(&path, first, 0)?;
            drop((b, c));
        }
    }
    equal!(os::read_all(&path)?, pattern(3, 8192));
    Ok(())
}
