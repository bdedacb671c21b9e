//! What jobs print, line by line with the name of the job in front, or into files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use super::local::Event;
use crate::error::Error;

/// The longest line that is kept together.
const LINE_MAX: u64 = 64 << 10;

/// Where what jobs print goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Where that of `forebay run` goes, as it is: one job alone.
    Inherit,
    /// There, line by line.
    Lines {
        /// What is printed on standard output goes to standard error, too.
        all_to_stderr: bool,
    },
    /// Into `NAME.out` and `NAME.err` of this directory.
    Files(PathBuf),
}

/// The files of a job in a directory of logs, made anew at its first try.
pub fn files(dir: &Path, name: &str, again: bool) -> Result<(File, File), Error> {
    let open = |end: &str| {
        let path = dir.join(format!("{name}.{end}"));
        let opened =
            File::options().create(true).append(again).write(true).truncate(!again).open(&path);
        opened.map_err(Error::io(path.display().to_string()))
    };
    Ok((open("out")?, open("err")?))
}

/// Copies what a job prints, and says when it prints no more.
pub fn follow(
    from: impl Read + Send + 'static,
    name: String,
    number: usize,
    to_stderr: bool,
    events: Sender<Event>,
) -> io::Result<()> {
    std::thread::Builder::new().name("output".into()).spawn(move || {
        copy(from, &name, to_stderr);
        let _ = events.send(Event::Silent { number });
    })?;
    Ok(())
}

fn copy(from: impl Read, name: &str, to_stderr: bool) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut whole = format!("{name}: ").into_bytes();
        whole.extend_from_slice(&line);
        // Whoever does not listen any more loses it; the job goes on.
        let _ = match to_stderr {
            true => io::stderr().lock().write_all(&whole),
            false => io::stdout().lock().write_all(&whole),
        };
    }
}
