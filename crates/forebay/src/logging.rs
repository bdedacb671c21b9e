//! Where log lines go, and how their filter is changed while the daemon runs.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::config::{LogFormat, MountConfig};
use crate::control::{ControlError, ControlResult, ErrorKind};
use crate::error::Error;
use crate::printable::{json_line, one_line};

type SetFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// Starts logging to standard error. The daemon has made that its log file before.
pub fn start(config: &MountConfig) -> Result<(), Error> {
    start_with(&config.log_level, config.log_format)
}

/// Starts logging to standard error by this filter.
pub fn start_with(filter: &str, format: LogFormat) -> Result<(), Error> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Error::Usage(format!("--log-level: {error}")))?;
    let (filter, handle) = reload::Layer::new(filter);
    let base = tracing_subscriber::registry().with(filter);
    let layer = fmt::layer().with_ansi(false);
    let started = match format {
        LogFormat::Text => {
            base.with(layer.with_writer(|| OneLine(io::stderr(), one_line))).try_init()
        }
        LogFormat::Json => {
            base.with(layer.json().with_writer(|| OneLine(io::stderr(), json_line))).try_init()
        }
    };
    started.map_err(|error| Error::Failed(format!("logging: {error}")))?;
    let _ =
        SET_FILTER.set(Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string())));
    Ok(())
}

/// Writes each event as one line without hidden characters, which names of files can hold.
struct OneLine<W>(W, fn(&str) -> String);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = match event.strip_suffix(b"\n") {
            Some(text) => (text, "\n"),
            None => (event, ""),
        };
        let is_plain = |byte: &u8| byte.is_ascii() && !byte.is_ascii_control();
        if text.iter().all(is_plain) {
            self.0.write_all(event)?;
        } else {
            let escaped = self.1(&String::from_utf8_lossy(text));
            self.0.write_all((escaped + end).as_bytes())?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Makes a panic of any thread end the process, logged. A daemon with a thread missing can't be
/// trusted, and its death is safe by design: the next mount continues where this one ended.
///
/// `is_in_request` is told of each panic first, to note what the thread was busy with. One that is in a
/// request is left to whoever notes the request's number.
pub fn abort_on_panic(is_in_request: fn() -> bool) {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tracing::error!(thread = name, %panic, "the daemon aborts; mount again to continue");
        print(panic);
        if !is_in_request() {
            std::process::abort();
        }
    }));
}

/// Changes what is logged from now on.
pub fn set_filter(filter: &str) -> ControlResult<()> {
    let wrong = |message: String| ControlError::new(ErrorKind::Usage, message);
    let parsed =
        EnvFilter::try_new(filter).map_err(|error| wrong(format!("'{filter}': {error}")))?;
    let set = SET_FILTER.get().ok_or_else(|| wrong("this process does not log".into()))?;
    set(parsed).map_err(wrong)
}

/// Opens the log file for appending, and makes its directory if need be. The state lies in `state_dir`.
pub fn open_file(path: &Path, state_dir: &Path) -> Result<File, Error> {
    let dir = path.parent().unwrap_or(path);
    let opened = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .and_then(|()| File::options().append(true).create(true).mode(0o600).open(path));
    opened.map_err(|error| not_opened(path, state_dir, error))
}

fn not_opened(path: &Path, state_dir: &Path, error: io::Error) -> Error {
    let is_read_only = error.kind() == io::ErrorKind::ReadOnlyFilesystem;
    if !is_read_only || device_of(path) != device_of(state_dir) {
        return Error::io(format!("log file {}", path.display()))(error);
    }
    // It lies where the state does, which can't be used, either.
    Error::BadState(format!(
        "{}: its file system is read-only, mostly after an error of its device (`dmesg` says which): \
         unmount that file system, check it, mount it writable, and mount again. What is on it stays \
         as it is",
        path.parent().unwrap_or(path).display()
    ))
}

/// The file system on which a path lies, or would.
fn device_of(path: &Path) -> Option<u64> {
    let found = path.ancestors().find_map(|at| std::fs::metadata(at).ok());
    found.map(|found| found.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_place_of_the_log_when_the_state_lies_elsewhere_then_nothing_is_said_of_the_state()
    {
        let read_only = || io::Error::from_raw_os_error(libc::EROFS);
        let state = Path::new("/nowhere/state");
        let beside = not_opened(Path::new("/nowhere/log/file"), state, read_only());
        assert!(matches!(beside, Error::BadState(_)), "{beside}");
        let elsewhere = not_opened(Path::new("/proc/log"), state, read_only());
        assert!(!matches!(elsewhere, Error::BadState(_)), "{elsewhere}");
    }

    #[test]
    fn event_when_a_name_has_line_ends_and_escapes_then_one_plain_line() {
        let mut written = Vec::new();
        let mut write = |text: &str, escape: fn(&str) -> String| {
            OneLine(&mut written, escape).write_all(text.as_bytes()).unwrap();
        };
        write("file a\nERROR forged \x1b[2J\n", one_line);
        write("plain \u{e9}\n", one_line);
        // A command as well, in one character; and a name that is shown the wrong way round.
        write("file \u{9b}2J \u{202e}gnp.exe\n", one_line);
        write("{\"name\":\"\u{202e}\"}\n", json_line);
        let text = String::from_utf8(written).unwrap();
        assert_eq!(
            text,
            "file a\\nERROR forged \\u{1b}[2J\nplain \u{e9}\nfile \\u{9b}2J \\u{202e}gnp.exe\n\
             {\"name\":\"\\u202e\"}\n"
        );
    }
}
