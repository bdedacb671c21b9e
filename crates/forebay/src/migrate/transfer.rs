//! An image on its way: sent while it is written, and put into a directory where it arrives.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::channel::{self, MAX_PIECE, Message, Outgoing};

/// What CRIU only ever adds to while it writes an image: the memory.
const MEMORY: &str = "pages-";
/// Between two looks at what was written.
const LOOK: Duration = Duration::from_millis(2);

/// An image that is sent while it is written.
pub struct Sending {
    complete: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Sending {
    /// Begins: memory is sent as it comes, all else when the image is complete.
    pub fn start(dir: &Path, out: &Outgoing) -> io::Result<Self> {
        let (dir, out, complete) = (dir.to_owned(), out.clone(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&complete);
        let run = move || send(&dir, &out, &seen);
        let thread = std::thread::Builder::new().name("image".into()).spawn(run)?;
        Ok(Self { complete, thread: Some(thread) })
    }

    /// The image is complete: waits until all of it was sent.
    pub fn finish(mut self) -> io::Result<()> {
        self.complete.store(true, Ordering::Release);
        let panicked = || Err(io::Error::other("the thread panicked"));
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| panicked()))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // Whoever gives up has closed the connection, or has it go on with what there is.
        self.complete.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn send(dir: &Path, out: &Outgoing, complete: &AtomicBool) -> io::Result<()> {
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    let mut buffer = vec![0; MAX_PIECE];
    let mut current = String::new();
    loop {
        let last = complete.load(Ordering::Acquire);
        let mut moved = false;
        for name in channel::images_in(dir)? {
            if !last && !name.starts_with(MEMORY) {
                continue;
            }
            if !files.contains_key(&name) {
                files.insert(name.clone(), File::open(dir.join(&name))?);
                // Also of a file without bytes the other side must hear.
                out.say(&Message::File(name.clone()))?;
                current.clone_from(&name);
            }
            let Some(file) = files.get_mut(&name) else { continue };
            loop {
                let read = file.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                if current != name {
                    out.say(&Message::File(name.clone()))?;
                    current.clone_from(&name);
                }
                out.piece(&buffer[..read])?;
                moved = true;
            }
        }
        if last {
            return Ok(());
        }
        if !moved {
            std::thread::sleep(LOOK);
        }
    }
}

/// An image that arrives.
pub struct Arriving {
    dir: PathBuf,
    files: BTreeMap<String, File>,
    current: Option<String>,
}

impl Arriving {
    /// Into this directory, which is private.
    pub fn into(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), files: BTreeMap::new(), current: None }
    }

    /// Bytes of this file follow.
    pub fn file(&mut self, name: &str) -> io::Result<()> {
        if !channel::is_image(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no name of an image"));
        }
        if !self.files.contains_key(name) {
            let mut options = File::options();
            let options = options.write(true).create_new(true).mode(0o600);
            self.files.insert(name.to_owned(), options.open(self.dir.join(name))?);
        }
        self.current = Some(name.to_owned());
        Ok(())
    }

    /// Takes these.
    pub fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.current.as_ref().and_then(|name| self.files.get_mut(name));
        file.ok_or(io::ErrorKind::InvalidData)?.write_all(bytes)
    }
}
