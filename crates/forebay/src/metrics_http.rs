//! Metrics over HTTP: one path, one method, one connection at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::Error;

/// Bytes of a request, headers included.
const REQUEST_BYTES_MAX: u64 = 8192;

/// How long a client may take to ask and to read.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);

/// Takes the address, so that a wrong one is told before anything is mounted.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|error| {
        Error::Usage(format!("--metrics {address}: {error}; choose a free address of this machine"))
    })
}

/// A thread that answers `GET /metrics`.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts to answer with what `render` gives.
    pub fn start(
        listener: TcpListener,
        render: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let answered = stream.and_then(|stream| answer(stream, &render));
                if let Err(error) = answered {
                    tracing::debug!(%error, "metrics client");
                }
            }
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// The address that it listens on.
    #[cfg(test)]
    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // A connection wakes the thread from accept(2).
        let _ = TcpStream::connect_timeout(&self.address, CLIENT_LIMIT);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, render: &dyn Fn() -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_LIMIT))?;
    stream.set_write_timeout(Some(CLIENT_LIMIT))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(REQUEST_BYTES_MAX));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let mut words = first.split_ascii_whitespace();
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", render())
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "text/plain", "see /metrics\n".into()),
        (Some(_), Some(_)) => ("405 Method Not Allowed", "text/plain", "only GET\n".into()),
        _ => ("400 Bad Request", "text/plain", "not HTTP\n".into()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn endpoint_when_asked_then_only_get_metrics_is_answered() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::start(listener, || "forebay_hits_total 3\n".into()).unwrap();
        let address = endpoint.address();
        let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n")
                && text.ends_with("\r\n\r\nforebay_hits_total 3\n"),
            "{text}"
        );
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "\r\n\r\n").starts_with("HTTP/1.1 400"));
        drop(endpoint);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn listen_when_the_address_is_taken_then_usage_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = listen(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("choose a free address"), "{error}");
    }
}
