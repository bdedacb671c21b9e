//! Small files of a state directory that are replaced as a whole: after a power cut there is what was there
//! before or what was written, never a part of it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file, durably.
///
/// # Errors
/// What the file system says. The file may be the new one all the same, if only its name is not durable.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let mut new = OsString::from(name);
    new.push(".new");
    let new = dir.join(new);
    // Of one that died here. Another user's is not written to.
    remove_if_there(&new)?;
    let written = write(&new, bytes).and_then(|()| std::fs::rename(&new, dir.join(name)));
    if let Err(error) = written {
        drop(std::fs::remove_file(&new));
        return Err(error);
    }
    sync(&File::open(dir)?)
}

/// Writes over a file in its place, durably, with bytes of the same length, where there may be no room for
/// another one. A power cut in the midst of it leaves a mixture: of use for what has a checksum.
///
/// # Errors
/// What the file system says.
pub(crate) fn overwrite(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(dir.join(name))?;
    file.write_all(bytes)?;
    sync(&file)
}

fn write(new: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    // Not among those at which a mounted daemon dies: most are written before it is mounted.
    fail::fail_point!("node.state_file.made", |_| Err(rustix::io::Errno::NOSPC.into()));
    file.write_all(bytes)?;
    sync(&file)
}

/// Takes a file away, durably. None is no error; that there is none may be what was not durable before.
///
/// # Errors
/// What the file system says.
pub(crate) fn remove(dir: &Path, name: &str) -> Result<()> {
    remove_if_there(&dir.join(name))?;
    match File::open(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        dir => sync(&dir?),
    }
}

/// Makes a file or a directory durable. A file system that goes down meanwhile may confirm that, and is
/// asked whether it is up.
///
/// # Errors
/// What the file system says.
pub(crate) fn sync(file: &File) -> Result<()> {
    file.sync_all()?;
    Ok(forebay_store::is_up(file)?)
}

fn remove_if_there(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
