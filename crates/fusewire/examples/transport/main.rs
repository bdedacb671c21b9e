//! What a transport costs: the same directory shown by fusewire (reading the device, or by
//! io_uring) and by fuser, and clients that measure. `bench/transport.sh` runs both.
//!
//!     transport serve classic|uring|fuser DIRECTORY MOUNTPOINT     says "ready", ends at the unmount
//!     transport measure MOUNTPOINT SERVER_PID CLIENTS OPERATIONS   prints CSV

mod by_fuser;
mod by_fusewire;
mod load;
mod mirror;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fusewire::{Features, Mount, Options, Session, Transport};

use by_fuser::ByFuser;
use by_fusewire::ByFusewire;
use mirror::Mirror;

/// How long the kernel may believe what it was told: nobody else changes anything.
const VALID: Duration = Duration::from_secs(60);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["serve", "fuser", directory, mountpoint] => serve_by_fuser(directory, mountpoint),
        ["serve", "classic", directory, mountpoint] => {
            serve_by_fusewire(Transport::Classic, directory, mountpoint)
        }
        ["serve", "uring", directory, mountpoint] => {
            serve_by_fusewire(Transport::Uring, directory, mountpoint)
        }
        ["measure", mountpoint, pid, clients, operations] => {
            load::measure(Path::new(mountpoint), pid, clients, operations)
        }
        _ => {
            eprintln!(
                "usage: transport serve classic|uring|fuser DIRECTORY MOUNTPOINT\n       \
                 transport measure MOUNTPOINT SERVER_PID CLIENTS OPERATIONS"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transport: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_by_fusewire(transport: Transport, directory: &str, mountpoint: &str) -> Outcome {
    let usual = Options::default();
    let features = usual.features | Features::PASSTHROUGH;
    let options = Options { fs_name: "transport".into(), transport, features, ..usual };
    let handler = Arc::new(ByFusewire::new(Mirror::new(Path::new(directory))?, VALID, true));
    let mount = Mount::new(mountpoint, &options)?;
    let running = Session::new(mount, &options, handler)?.spawn()?;
    println!("ready");
    running.join()?;
    Ok(())
}

fn serve_by_fuser(directory: &str, mountpoint: &str) -> Outcome {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        fuser::MountOption::FSName("transport".into()),
        fuser::MountOption::DefaultPermissions,
    ];
    // The best that it has: as many threads as CPUs, each with a descriptor of its own.
    config.n_threads = Some(std::thread::available_parallelism()?.get());
    config.clone_fd = true;
    let handler = ByFuser::new(Mirror::new(Path::new(directory))?, VALID, true);
    let session = fuser::Session::new(handler, mountpoint, &config)?;
    println!("ready");
    session.run()?;
    Ok(())
}
