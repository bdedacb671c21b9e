//! Mounts a file system in memory: `ramfs MOUNTPOINT`. Unmount it with `fusermount3 -u`.

mod fs;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use fusewire::{End, Mount, Options, Session};

fn main() -> ExitCode {
    let Some(mountpoint) = std::env::args_os().nth(1) else {
        eprintln!("usage: ramfs MOUNTPOINT");
        return ExitCode::from(2);
    };
    match serve(Path::new(&mountpoint)) {
        Ok(end) => {
            println!("{end:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ramfs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(mountpoint: &Path) -> fusewire::Result<End> {
    let options = Options { fs_name: "ramfs".into(), ..Options::default() };
    let mount = Mount::new(mountpoint, &options)?;
    println!("serving {}", mount.path().display());
    Session::new(mount, &options, Arc::new(fs::Ramfs::default()))?.run()
}
