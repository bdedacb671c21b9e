//! What each command does.

mod cluster;
mod conflicts;
mod doctor;
mod fsck;
mod hint;
mod jobs;
mod migrate;
mod mount;
mod paths;
mod patterns;
mod progress;
mod run;
mod sequence;
mod slurm;
mod status;
mod stream;
mod trace;
mod umount;
mod upgrade;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::{CommandFactory, Parser};

pub(crate) use paths::portions;
pub(crate) use sequence::next_path;

use crate::cli::{Cli, Command, ConfigCommand, DebugCommand};
use crate::config::MountConfig;
use crate::control::{Client, Request, mount_id, runtime_dir};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::migrate::init;
use crate::{courier, daemon, mountinfo, printable, top};

/// Runs one command line, the first argument being the name of the program, and returns the exit
/// code. Errors are printed on standard error.
pub fn run(args: Vec<OsString>, engine: &dyn Engine) -> u8 {
    let program = args.first().map(Path::new).and_then(Path::file_name);
    let result = if program == Some(OsStr::new("mount.forebay")) {
        mount::run_helper(&args[1..], engine)
    } else if args.get(1).is_some_and(|first| first == init::NAME) {
        return init::run(args.get(3..).unwrap_or_default());
    } else {
        match Cli::try_parse_from(args) {
            Ok(cli) => execute(cli.command, engine),
            Err(error) => {
                let _ = error.print();
                return if error.use_stderr() { Exit::Usage.code() } else { Exit::Ok.code() };
            }
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            for line in error.to_string().lines() {
                tell(line);
            }
            error.exit().code()
        }
    }
}

fn execute(command: Command, engine: &dyn Engine) -> Result<u8, Error> {
    let ok = Exit::Ok.code();
    match command {
        Command::Mount(args) => mount::run(&args, engine).map(|()| ok),
        Command::Umount(args) => umount::run(&args).map(|()| ok),
        Command::Upgrade(args) => upgrade::run(&args).map(|()| ok),
        Command::Status(args) => status::run(&args),
        Command::Where(args) => paths::locate(&args),
        Command::Warm(args) => paths::warm(&args),
        Command::Evict(args) => paths::work(paths::Work::Evict, &args),
        Command::Pin(args) => paths::work(paths::Work::Pin, &args),
        Command::Unpin(args) => paths::work(paths::Work::Unpin, &args),
        Command::Sync(args) => paths::work(paths::Work::Sync, &args),
        Command::Refresh(args) => paths::work(paths::Work::Refresh, &args),
        Command::Conflicts(command) => conflicts::run(&command),
        Command::Hint(args) => hint::run(&args),
        Command::Trace(command) => trace::run(&command).map(|()| ok),
        Command::Run(args) => run::run(&args),
        Command::Jobs(args) => jobs::run(&args),
        Command::Migrate(args) => migrate::run(&args).map(|()| ok),
        Command::RunTask(args) => migrate::keep(args),
        Command::HostTask(args) => migrate::host(args),
        Command::Patterns(args) => patterns::run(&args).map(|()| ok),
        Command::RunWatch { run } => crate::run::watch::run(&run).map(|()| ok),
        Command::Fsck(args) => fsck::run(&args, engine),
        Command::Top(args) => top::run(&args).map(|()| ok),
        Command::Doctor(args) => doctor::run(&args, engine),
        Command::Cluster(command) => cluster::run(&command, engine),
        Command::Stream(command) => stream::run(&command),
        Command::Sim(command) => simulate(&command).map(|()| ok),
        Command::Config(ConfigCommand::Show(args)) => mount::show(&args, engine).map(|()| ok),
        Command::Debug(command) => debug(command, engine).map(|()| ok),
        Command::Daemon(args) => daemon::run(&args, engine).map(|()| ok),
        Command::Notices { mountpoint, kept } => courier::run(&mountpoint, kept).map(|()| ok),
        Command::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut out);
            print_as_it_is(&String::from_utf8_lossy(&out)).map(|()| ok)
        }
        Command::Man { dir } => {
            std::fs::create_dir_all(&dir).map_err(Error::io(dir.display().to_string()))?;
            clap_mangen::generate_to(Cli::command(), &dir)
                .map_err(Error::io(dir.display().to_string()))?;
            Ok(ok)
        }
    }
}

/// Runs a simulation. A reader of its results that went away is no error.
fn simulate(command: &forebay_sim::SimCommand) -> Result<(), Error> {
    use forebay_sim::SimError;
    match forebay_sim::run(command, &mut io::stdout().lock()) {
        Err(SimError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(
            error @ (SimError::Usage(_)
            | SimError::Policy(_)
            | SimError::Model(_)
            | SimError::Machine(_)
            | SimError::Trace { .. }
            | SimError::Instance { .. }),
        ) => Err(Error::Usage(error.to_string())),
        other => other.map_err(|error| Error::Failed(error.to_string())),
    }
}

fn debug(command: DebugCommand, engine: &dyn Engine) -> Result<(), Error> {
    match command {
        DebugCommand::Metrics { mountpoint } => {
            print_as_it_is(&Client::for_path(&mountpoint)?.metrics()?)
        }
        DebugCommand::LogLevel { mountpoint, filter } => Client::for_path(&mountpoint)?
            .order(Request::LogLevel { filter }, Duration::from_secs(10)),
        DebugCommand::FailPoints => {
            print(&engine.fail_points().iter().map(|name| format!("{name}\n")).collect::<String>())
        }
        DebugCommand::Pid { mountpoint } => {
            print(&format!("{}\n", Client::for_path(&mountpoint)?.pid()))
        }
        DebugCommand::Socket { mountpoint } => {
            let path = mountinfo::resolve(&mountpoint)
                .map_err(Error::io(mountpoint.display().to_string()))?;
            let dir = runtime_dir(rustix::process::geteuid().as_raw());
            print_as_it_is(&format!(
                "{}\n",
                dir.join(format!("{}.sock", mount_id(&path))).display()
            ))
        }
    }
}

/// Prints lines for people to standard output. What names of files could do to a terminal is escaped.
fn print(text: &str) -> Result<(), Error> {
    print_as_it_is(&printable::lines(text))
}

/// Prints to standard output. A reader that went away is no error.
fn print_as_it_is(text: &str) -> Result<(), Error> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::io("standard output")),
    }
}

/// Prints a record as JSON on one line.
fn print_json(record: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(record).map_err(|error| Error::Failed(error.to_string()))?;
    print_as_it_is(&format!("{text}\n"))
}

/// Prints a warning.
pub(crate) fn warn(text: &str) {
    tell(&format!("warning: {text}"));
}

/// Prints to standard error what people should know.
pub(crate) fn tell(text: &str) {
    // Somebody who does not listen any more is no error.
    let _ = writeln!(io::stderr().lock(), "forebay: {}", printable::lines(text));
}

/// The mount point and backing store without symbolic links, as the daemon must know them.
fn canonical(config: &mut MountConfig) {
    for path in [&mut config.backing, &mut config.mountpoint] {
        if let Ok(real) = std::fs::canonicalize(&*path) {
            *path = real;
        }
    }
}
