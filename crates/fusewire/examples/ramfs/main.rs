//! Mounts a file system in memory: `ramfs MOUNTPOINT`. Unmount it with `fusermount3 -u`.

mod fs;

use std::sync::Arc;

use fusewire::{Mount, Options, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(mountpoint) = std::env::args_os().nth(1) else {
        return Err("usage: ramfs MOUNTPOINT".into());
    };
    let options = Options { fs_name: "ramfs".into(), ..Options::default() };
    let mount = Mount::new(mountpoint, &options)?;
    println!("serving {}", mount.path().display());
    let end = Session::new(mount, &options, Arc::new(fs::Ramfs::default()))?.run()?;
    println!("{end:?}");
    Ok(())
}
