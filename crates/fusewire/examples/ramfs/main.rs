//! Mounts a file system in memory: `ramfs MOUNTPOINT [DELAY_US BYTES_PER_S]`. Unmount it with
//! `fusermount3 -u`.
//!
//! With a delay and a rate it is as a server far away that one disk serves, of whose files the kernel
//! keeps nothing: one read or write after the other takes so long, and its bytes at that rate.

mod fs;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fusewire::{Connection, End, Handler, Mount, Operation, Options, Reply, Request, Session};
use parking_lot::Mutex;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let served = match &words[..] {
        [_] => serve(Path::new(&arguments[0]), fs::Ramfs::default()),
        [_, delay, rate] => match (delay.parse(), rate.parse::<u32>()) {
            (Ok(delay), Ok(rate)) if rate > 0 => {
                let mut ramfs = fs::Ramfs::default();
                ramfs.direct = true;
                let delay = Duration::from_micros(delay);
                let slow = Slow { ramfs, delay, rate, disk: Mutex::new(()) };
                serve(Path::new(&arguments[0]), slow)
            }
            _ => return usage(),
        },
        _ => return usage(),
    };
    match served {
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

fn usage() -> ExitCode {
    eprintln!("usage: ramfs MOUNTPOINT [DELAY_US BYTES_PER_S]");
    ExitCode::from(2)
}

fn serve(mountpoint: &Path, handler: impl Handler + 'static) -> fusewire::Result<End> {
    let options = Options { fs_name: "ramfs".into(), ..Options::default() };
    let mount = Mount::new(mountpoint, &options)?;
    println!("serving {}", mount.path().display());
    Session::new(mount, &options, Arc::new(handler))?.run()
}

/// With one disk.
struct Slow {
    ramfs: fs::Ramfs,
    delay: Duration,
    /// Bytes a second.
    rate: u32,
    disk: Mutex<()>,
}

impl Handler for Slow {
    fn init(&self, connection: &Connection) {
        self.ramfs.init(connection);
    }

    fn handle(&self, request: Request, reply: Reply) {
        let bytes = match request.operation() {
            Ok(Operation::Read { size, .. }) => Some(size as usize),
            Ok(Operation::Write { data, .. }) => Some(data.len()),
            _ => None,
        };
        if let Some(bytes) = bytes {
            let moves = Duration::from_secs_f64(bytes as f64 / f64::from(self.rate));
            let _disk = self.disk.lock();
            std::thread::sleep(self.delay + moves);
        }
        self.ramfs.handle(request, reply);
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.ramfs.forget(node, lookups);
    }
}
