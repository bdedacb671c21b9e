//! `stream open`: a file of a mount, as a stream, to standard output.

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::fs::{XattrFlags, fgetxattr, setxattr};
use rustix::io::Errno;

use super::super::{tell, warn};
use crate::cli::stream::StreamOpenArgs;
use crate::error::{Error, Exit};

/// Bytes a second, of a file.
const RATE: &str = "user.forebay.stream.rate";
/// What became of its last open.
const STATE: &str = "user.forebay.stream.state";
/// The longest text of a state.
const STATE_MAX: usize = 4096;
/// Bytes of a read.
const PIECE: usize = 64 << 10;

/// Plays it.
pub fn run(args: &StreamOpenArgs) -> Result<u8, Error> {
    let name = args.path.display().to_string();
    let at = |errno: Errno| match errno {
        Errno::NOTSUP => Error::Usage(format!(
            "{name}: is not on a mount that serves streams; see `forebay mount --stream-profile`"
        )),
        errno => Error::io(name.clone())(errno.into()),
    };
    if let Some(rate) = args.rate {
        let value = rate.to_string();
        setxattr(&args.path, RATE, value.as_bytes(), XattrFlags::empty()).map_err(at)?;
    }
    let mut file = File::open(&args.path).map_err(Error::io(name.clone()))?;
    let mut state = [0; STATE_MAX];
    let state = match fgetxattr(&file, STATE, &mut state[..]) {
        Ok(bytes) => String::from_utf8_lossy(&state[..bytes]).into_owned(),
        Err(Errno::NODATA) => String::new(),
        Err(errno) => return Err(at(errno)),
    };
    if state.starts_with("refused") && !args.best_effort {
        tell(&format!("{name}: {state}"));
        return Ok(Exit::Failed.code());
    }
    if state.is_empty() {
        warn(&format!(
            "{name}: is no stream: it is small or on a tier already, has no rate, or is on no mount \
             with --stream-profile"
        ));
    }
    let mut piece = vec![0; PIECE];
    let mut out = io::stdout().lock();
    loop {
        let read = file.read(&mut piece).map_err(Error::io(name.clone()))?;
        if read == 0 {
            break;
        }
        match out.write_all(&piece[..read]) {
            // A player that has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written.map_err(Error::io("standard output"))?,
        }
    }
    Ok(Exit::Ok.code())
}
