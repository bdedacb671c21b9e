//! File names and paths.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{link, rename, stat, symlink, unlink};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os::{self, OFlags};

checks!("names":
    of_255_bytes, of_256_bytes, every_byte_but_two, not_utf8, case_matters, unicode_is_not_folded,
    leading_dots_and_spaces, path_of_4095_bytes, dot_and_dotdot_resolve, slashes_collapse,
    empty_path, symlink_target_of_4095_bytes, names_that_look_internal,
);

fn of_255_bytes(ctx: &Ctx) -> Outcome {
    let name = "n".repeat(255);
    ctx.file(&name, b"x")?;
    equal!(os::names(ctx.dir())?, [name.as_str()]);
    rename(ctx.path(&name), ctx.path("m".repeat(255)))?;
    link(ctx.path("m".repeat(255)), ctx.path("l".repeat(255)))?;
    symlink("x", ctx.path("s".repeat(255)))?;
    os::mkdir(ctx.path("d".repeat(255)), 0o755)?;
    equal!(os::names(ctx.dir())?.len(), 4);
    equal!(os::read_all(ctx.path("l".repeat(255)))?, b"x");
    Ok(())
}

fn of_256_bytes(ctx: &Ctx) -> Outcome {
    let long = ctx.path("n".repeat(256));
    let file = ctx.file("f", b"")?;
    fails!(os::open(&long, OFlags::CREATE | OFlags::WRONLY, 0o600), NAMETOOLONG);
    fails!(os::mkdir(&long, 0o700), NAMETOOLONG);
    fails!(symlink("x", &long), NAMETOOLONG);
    fails!(link(&file, &long), NAMETOOLONG);
    fails!(rename(&file, &long), NAMETOOLONG);
    fails!(rename(&long, &file), NAMETOOLONG);
    fails!(stat(&long), NAMETOOLONG);
    fails!(unlink(&long), NAMETOOLONG);
    fails!(os::mknod(&long, os::FileType::Fifo, 0o600, 0), NAMETOOLONG);
    Ok(())
}

fn every_byte_but_two(ctx: &Ctx) -> Outcome {
    let mut want: Vec<OsString> = Vec::new();
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        let name = OsString::from_vec(vec![b'x', byte]);
        os::write_file(ctx.path(&name), &[byte])?;
        want.push(name);
    }
    want.sort();
    equal!(os::names(ctx.dir())?, want);
    for name in want {
        equal!(os::read_all(ctx.path(&name))?, [name.as_bytes()[1]]);
    }
    Ok(())
}

fn not_utf8(ctx: &Ctx) -> Outcome {
    let name = OsStr::from_bytes(b"\xff\xfe\x80 \xc3(");
    os::write_file(ctx.path(name), b"x")?;
    symlink(name, ctx.path("l"))?;
    equal!(os::readlink(ctx.path("l"))?, name);
    equal!(os::read_all(ctx.path("l"))?, b"x");
    let renamed = OsStr::from_bytes(b"\x80\x81");
    rename(ctx.path(name), ctx.path(renamed))?;
    ensure!(os::exists(ctx.path(renamed))?);
    fails!(stat(ctx.path("l")), NOENT);
    Ok(())
}

fn case_matters(ctx: &Ctx) -> Outcome {
    ctx.file("name", b"lower")?;
    ctx.file("NAME", b"UPPER")?;
    equal!(os::read_all(ctx.path("name"))?, b"lower");
    equal!(os::names(ctx.dir())?.len(), 2);
    Ok(())
}

fn unicode_is_not_folded(ctx: &Ctx) -> Outcome {
    // The same letter composed and decomposed: two names.
    ctx.file("\u{e9}", b"1")?;
    ctx.file("e\u{301}", b"2")?;
    equal!(os::names(ctx.dir())?.len(), 2);
    equal!(os::read_all(ctx.path("\u{e9}"))?, b"1");
    Ok(())
}

fn leading_dots_and_spaces(ctx: &Ctx) -> Outcome {
    for name in ["...", " ", ".hidden", "trailing ", "-rf", "a\nb", "\\", "*", "~", "%2e", "a:b"] {
        ctx.file(name, name.as_bytes())?;
        equal!(os::read_all(ctx.path(name))?, name.as_bytes());
    }
    equal!(os::names(ctx.dir())?.len(), 11);
    Ok(())
}

fn path_of_4095_bytes(ctx: &Ctx) -> Outcome {
    let mut path = ctx.dir().to_owned();
    while path.as_os_str().len() < 4095 - 300 {
        path.push("d".repeat(200));
        os::mkdir(&path, 0o755)?;
    }
    let fill = 4095 - path.as_os_str().len() - 1;
    if fill > 255 {
        path.push("e".repeat(100));
        os::mkdir(&path, 0o755)?;
    }
    let fill = 4095 - path.as_os_str().len() - 1;
    os::write_file(path.join("f".repeat(fill)), b"far")?;
    equal!(os::read_all(path.join("f".repeat(fill)))?, b"far");
    fails!(stat(path.join("f".repeat(fill + 1))), NAMETOOLONG);
    Ok(())
}

fn dot_and_dotdot_resolve(ctx: &Ctx) -> Outcome {
    ctx.file("f", b"x")?;
    ctx.subdir("d", 0o755)?;
    equal!(os::read_all(ctx.path("./d/../d/./../f"))?, b"x");
    fails!(stat(ctx.path("f/.")), NOTDIR);
    fails!(stat(ctx.path("f/..")), NOTDIR);
    Ok(())
}

fn slashes_collapse(ctx: &Ctx) -> Outcome {
    ctx.subdir("d", 0o755)?;
    os::write_file(ctx.path("d//f"), b"x")?;
    equal!(os::read_all(ctx.path("d///f"))?, b"x");
    Ok(())
}

fn empty_path(_: &Ctx) -> Outcome {
    fails!(stat(""), NOENT);
    fails!(os::open("", OFlags::RDONLY, 0), NOENT);
    fails!(symlink("", "/tmp/never-made"), NOENT);
    Ok(())
}

fn symlink_target_of_4095_bytes(ctx: &Ctx) -> Outcome {
    let target = "t".repeat(4095);
    match symlink(&target, ctx.path("l")) {
        Ok(()) => equal!(os::readlink(ctx.path("l"))?.len(), 4095),
        // ext4 stores a target in one block and needs a byte of it.
        refused => fails!(refused, NAMETOOLONG),
    }
    fails!(symlink("t".repeat(4096), ctx.path("m")), NAMETOOLONG);
    Ok(())
}

fn names_that_look_internal(ctx: &Ctx) -> Outcome {
    // A user's file may be called anything; a file system must not hide or lose it.
    for name in
        [".forebay", ".forebay-tmp", ".fuse_hidden0001", "lost+found", ".tmp", "index", ".nfs1"]
    {
        ctx.file(name, name.as_bytes())?;
    }
    equal!(os::names(ctx.dir())?.len(), 7);
    equal!(os::read_all(ctx.path(".forebay"))?, b".forebay");
    Ok(())
}
