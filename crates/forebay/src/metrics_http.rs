//! Metrics over HTTP: one path, one method, one connection at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Error;

/// Bytes of a request, headers included.
const REQUEST_BYTES_MAX: u64 = 8192;

/// How long a client may take to ask and to read, all in all.
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
    client: Arc<Mutex<Option<TcpStream>>>,
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
        let client = Arc::new(Mutex::new(None));
        let current = Arc::clone(&client);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            for stream in listener.incoming() {
                *current.lock() = stream.as_ref().ok().and_then(|stream| stream.try_clone().ok());
                // After the client can be seen by whoever ends this thread.
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let answered = stream.and_then(|stream| answer(stream, &render));
                *current.lock() = None;
                if let Err(error) = answered {
                    tracing::debug!(%error, "metrics client");
                }
            }
        })?;
        Ok(Self { address, stop, client, thread: Some(thread) })
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
        // Nobody waits for a client.
        if let Some(client) = &*self.client.lock() {
            let _ = client.shutdown(Shutdown::Both);
        }
        // A connection wakes the thread from accept(2).
        let _ = TcpStream::connect_timeout(&self.address, CLIENT_LIMIT);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection with one deadline for all that is read and written.
struct Client {
    stream: TcpStream,
    deadline: Instant,
}

impl Client {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Client {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: TcpStream, render: &dyn Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT_LIMIT;
    let mut client = Client { stream, deadline };
    let mut reader = BufReader::new((&mut client).take(REQUEST_BYTES_MAX));
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
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    client.write_all(answer.as_bytes())
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

    /// Sends a byte now and then until the connection ends; tells how long that took.
    fn drip(address: SocketAddr) -> std::thread::JoinHandle<Duration> {
        let mut stream = TcpStream::connect(address).unwrap();
        let since = Instant::now();
        std::thread::spawn(move || {
            while since.elapsed() < Duration::from_secs(30) && stream.write_all(b"G").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
            since.elapsed()
        })
    }

    #[test]
    fn client_when_it_drips_then_it_is_cut_off_and_the_next_is_answered() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::start(listener, || "forebay_hits_total 3\n".into()).unwrap();
        let dripping = drip(endpoint.address());
        std::thread::sleep(Duration::from_millis(200));
        let text = ask(endpoint.address(), "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        assert!(dripping.join().unwrap() < Duration::from_secs(15));
    }

    #[test]
    fn endpoint_when_dropped_while_a_client_drips_then_does_not_wait_for_it() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::start(listener, String::new).unwrap();
        let dripping = drip(endpoint.address());
        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        drop(endpoint);
        assert!(since.elapsed() < CLIENT_LIMIT / 2, "{:?}", since.elapsed());
        dripping.join().unwrap();
    }

    #[test]
    fn listen_when_the_address_is_taken_then_usage_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = listen(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("choose a free address"), "{error}");
    }
}
