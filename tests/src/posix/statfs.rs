//! statfs and statvfs.

use rustix::fs::{fstatvfs, statfs as stat_fs, statvfs};

use super::{Ctx, checks};
use crate::failure::Outcome;
use crate::os;

checks!("statfs":
    numbers_make_sense, same_everywhere_on_the_mount, descriptor_equals_path, missing_path,
    names_of_255_bytes_are_announced, df_works,
);

fn numbers_make_sense(ctx: &Ctx) -> Outcome {
    let found = statvfs(ctx.dir())?;
    ensure!(found.f_bsize > 0 && found.f_frsize > 0);
    ensure!(found.f_blocks > 0, "a file system of no blocks");
    ensure!(found.f_bfree <= found.f_blocks && found.f_bavail <= found.f_bfree);
    ensure!(found.f_ffree <= found.f_files);
    Ok(())
}

fn same_everywhere_on_the_mount(ctx: &Ctx) -> Outcome {
    let (dir, file) = (stat_fs(ctx.dir())?, stat_fs(ctx.file("f", b"x")?)?);
    equal!((dir.f_type, dir.f_bsize), (file.f_type, file.f_bsize));
    equal!(statvfs(ctx.dir())?.f_fsid, statvfs(ctx.path("f"))?.f_fsid);
    Ok(())
}

fn descriptor_equals_path(ctx: &Ctx) -> Outcome {
    let fd = ctx.open_new("f", b"")?;
    let (a, b) = (fstatvfs(&fd)?, statvfs(ctx.path("f"))?);
    equal!((a.f_bsize, a.f_namemax, a.f_fsid), (b.f_bsize, b.f_namemax, b.f_fsid));
    Ok(())
}

fn missing_path(ctx: &Ctx) -> Outcome {
    fails!(statvfs(ctx.path("no")), NOENT);
    os::write_file(ctx.path("f"), b"")?;
    fails!(statvfs(ctx.path("f/x")), NOTDIR);
    Ok(())
}

fn names_of_255_bytes_are_announced(ctx: &Ctx) -> Outcome {
    equal!(statvfs(ctx.dir())?.f_namemax, 255);
    Ok(())
}

fn df_works(ctx: &Ctx) -> Outcome {
    let output = std::process::Command::new("df").arg(ctx.dir()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
