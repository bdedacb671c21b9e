//! A plain copy of a file over TCP, as the reference for copies between nodes: no names, no checks, no encryption.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Error;

/// As much as a node asks for at a time.
const BLOCK: usize = 1 << 20;
/// Nobody waits longer for the other side.
const LIMIT: Duration = Duration::from_secs(60);

/// What came of a copy.
#[derive(Debug, Serialize)]
pub struct Outcome {
    bytes: u64,
    seconds: f64,
}

/// Sends a file to whoever connects, one after the other, by `sendfile`, until the process is ended or nobody comes
/// for a minute.
///
/// # Errors
/// If the address can't be listened on or the file can't be read.
pub fn serve(file: &Path, listen: SocketAddr) -> Result<(), Error> {
    let listener = TcpListener::bind(listen).map_err(Error::io(listen.to_string()))?;
    serve_on(&listener, file)
}

fn serve_on(listener: &TcpListener, path: &Path) -> Result<(), Error> {
    listener.set_nonblocking(true).map_err(Error::io("listen"))?;
    let mut idle = Instant::now();
    while idle.elapsed() < LIMIT {
        let mut peer = match listener.accept() {
            Ok((peer, _)) => peer,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => return Err(Error::io("accept")(error)),
        };
        let mut file = File::open(path).map_err(Error::io(path.display().to_string()))?;
        let sent = peer.set_nonblocking(false).and_then(|()| io::copy(&mut file, &mut peer));
        // Whoever goes away has his reasons; the next one may come.
        if let Err(error) = sent {
            eprintln!("forebay-bench: sending {}: {error}", path.display());
        }
        idle = Instant::now();
    }
    Ok(())
}

/// Gets what is sent at an address into a file.
///
/// # Errors
/// If nobody sends there, or the file can't be written.
pub fn get(address: SocketAddr, to: &Path) -> Result<Outcome, Error> {
    let began = Instant::now();
    let mut peer =
        TcpStream::connect_timeout(&address, LIMIT).map_err(Error::io(address.to_string()))?;
    peer.set_read_timeout(Some(LIMIT)).map_err(Error::io(address.to_string()))?;
    let mut file = File::create(to).map_err(Error::io(to.display().to_string()))?;
    let (mut block, mut bytes) = (vec![0; BLOCK], 0);
    loop {
        let read = peer.read(&mut block).map_err(Error::io(address.to_string()))?;
        if read == 0 {
            return Ok(Outcome { bytes, seconds: began.elapsed().as_secs_f64() });
        }
        file.write_all(&block[..read]).map_err(Error::io(to.display().to_string()))?;
        bytes += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_when_got_from_its_server_then_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let contents: Vec<u8> = (0..3_000_001u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&from, &contents).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Ends with the test program.
        std::thread::spawn(move || serve_on(&listener, &from));
        for _ in 0..2 {
            let outcome = get(address, &to).unwrap();
            assert_eq!(outcome.bytes, contents.len() as u64);
            assert!(std::fs::read(&to).unwrap() == contents);
        }
    }
}
