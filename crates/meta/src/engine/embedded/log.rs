//! The files of the log below the engine, as files: what the database does not look after.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long threads of a database may take to be done with its directory.
const THE_END: Duration = Duration::from_secs(1);

/// What the names of the parts of the log end in.
pub(super) const LOG: &str = "jnl";

/// What the name of the note ends in that the log is in doubt.
pub(super) const DOUBTFUL: &str = "doubtful";

/// Whether this process has a part of the log in a directory open.
fn log_is_open(directory: &Path) -> bool {
    let directory = std::fs::canonicalize(directory);
    let (Ok(directory), Ok(files)) = (directory, std::fs::read_dir("/proc/self/fd")) else {
        return false;
    };
    files.flatten().any(|file| {
        std::fs::read_link(file.path()).is_ok_and(|path| {
            path.starts_with(&directory) && path.extension().is_some_and(|found| found == LOG)
        })
    })
}

/// Waits until all threads of a database that was let go of are done with its directory, for a moment at most.
pub(super) fn wait_for_the_end(directory: &Path) {
    let until = Instant::now() + THE_END;
    while log_is_open(directory) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes the log once more, as it was read back, and says whether that went well. A sync that fails
/// tells so once, and the kernel takes what it could not write for written: the next sync would succeed
/// without it.
pub(super) fn settled(directory: &Path) -> bool {
    let rewritten = || {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == LOG) {
                rewrite(&path)?;
            }
        }
        std::fs::File::open(directory)?.sync_all()
    };
    if let Err(error) = rewritten() {
        // It goes on as well as it can, but no sync succeeds.
        tracing::error!(
            %error,
            "the log of the namespace can't be synced, so no sync succeeds: check the device of the \
             first tier"
        );
        return false;
    }
    drop(std::fs::remove_file(directory.with_extension(DOUBTFUL)));
    true
}

/// Writes a file over itself, and syncs it.
fn rewrite(path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return file.sync_all();
        }
        for page in buffer[..read].chunks(4096) {
            // Behind what was written so far there is a hole, for which a full disk has no room.
            if page.iter().any(|byte| *byte != 0) {
                file.write_all_at(page, at)?;
            }
            at += page.len() as u64;
        }
    }
}
