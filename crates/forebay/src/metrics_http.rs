//! Metrics over HTTP: one path, one method. One thread serves all connections, none of which it waits for:
//! a client that drips keeps nobody from an answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;

/// Bytes of a request, headers included.
const REQUEST_BYTES_MAX: usize = 8192;

/// How long a client may take to ask and to read, all in all.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);

/// Connections at once: one more ends the oldest.
const MAX: usize = 64;

/// Takes the address, so that a wrong one is told before anything is mounted.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|error| {
        Error::Usage(format!("--metrics {address}: {error}; choose a free address of this machine"))
    })
}

/// A thread that answers `GET /metrics`.
#[derive(Debug)]
pub struct Endpoint {
    #[cfg(test)]
    address: SocketAddr,
    /// The thread ends when this does.
    alive: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts to answer with what `render` gives.
    pub fn start(
        listener: TcpListener,
        render: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        #[cfg(test)]
        let address = listener.local_addr()?;
        let (alive, ended) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            if let Err(error) = serve(&listener, &ended, &render) {
                tracing::error!(%error, "metrics are not served any more");
            }
        })?;
        Ok(Self {
            #[cfg(test)]
            address,
            alive: Some(alive),
            thread: Some(thread),
        })
    }

    /// The address that it listens on.
    #[cfg(test)]
    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection.
struct Client {
    stream: TcpStream,
    deadline: Instant,
    asked: Vec<u8>,
    /// What it is told, once it has asked, less what it has taken of it.
    answer: Option<Vec<u8>>,
}

impl Client {
    /// Reads and writes what can be without waiting; false when there is nothing more to do.
    fn go_on(&mut self, render: &dyn Fn() -> String) -> io::Result<bool> {
        while self.answer.is_none() {
            let mut bytes = [0; 1024];
            let read = self.stream.read(&mut bytes)?;
            self.asked.extend_from_slice(&bytes[..read]);
            let is_whole = [&b"\r\n\r\n"[..], b"\n\n"]
                .iter()
                .any(|end| self.asked.windows(end.len()).any(|part| part == *end));
            if read == 0 || is_whole || self.asked.len() >= REQUEST_BYTES_MAX {
                self.answer = Some(answer(&self.asked, render));
            }
        }
        let Some(answer) = &mut self.answer else { return Ok(true) };
        while !answer.is_empty() {
            let written = self.stream.write(answer)?;
            answer.drain(..written);
        }
        Ok(false)
    }
}

fn serve(
    listener: &TcpListener,
    ended: &UnixStream,
    render: &dyn Fn() -> String,
) -> io::Result<()> {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let soonest = clients.iter().map(|client| client.deadline).min();
        let left = soonest.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ready =
            vec![PollFd::new(ended, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        ready.extend(clients.iter().map(|client| {
            let reads = client.answer.is_none();
            PollFd::new(&client.stream, if reads { PollFlags::IN } else { PollFlags::OUT })
        }));
        match poll(&mut ready, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !ready[0].revents().is_empty() {
            return Ok(());
        }
        let is_ready: Vec<bool> = ready[2..].iter().map(|at| !at.revents().is_empty()).collect();
        let mut is_ready = is_ready.into_iter();
        let now = Instant::now();
        clients.retain_mut(|client| {
            let goes_on = match is_ready.next() {
                Some(true) => client.go_on(render),
                _ => Ok(true),
            };
            let goes_on = goes_on.unwrap_or_else(|error| {
                error.kind() == io::ErrorKind::WouldBlock
                    || error.kind() == io::ErrorKind::Interrupted
            });
            goes_on && now < client.deadline
        });
        accept(listener, &mut clients);
    }
}

/// Takes the connections that wait.
fn accept(listener: &TcpListener, clients: &mut Vec<Client>) {
    for _ in 0..MAX {
        match listener
            .accept()
            .and_then(|(stream, _)| stream.set_nonblocking(true).map(|()| stream))
        {
            Ok(stream) => {
                if clients.len() >= MAX {
                    clients.remove(0);
                }
                let deadline = Instant::now() + CLIENT_LIMIT;
                clients.push(Client { stream, deadline, asked: Vec::new(), answer: None });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // No descriptor is left, perhaps: no reason to try at once again and again.
                tracing::debug!(%error, "metrics client");
                clients.clear();
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
        }
    }
}

fn answer(asked: &[u8], render: &dyn Fn() -> String) -> Vec<u8> {
    let first = asked.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let mut words = first.split_ascii_whitespace();
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", render())
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "text/plain", "see /metrics\n".into()),
        (Some(_), Some(_)) => ("405 Method Not Allowed", "text/plain", "only GET\n".into()),
        _ => ("400 Bad Request", "text/plain", "not HTTP\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
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
    fn clients_when_many_drip_then_they_are_cut_off_and_others_are_answered_meanwhile() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::start(listener, || "forebay_hits_total 3\n".into()).unwrap();
        let dripping: Vec<_> = (0..2 * MAX).map(|_| drip(endpoint.address())).collect();
        let text = ask(endpoint.address(), "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        assert!(dripping.iter().any(|client| !client.is_finished()), "they were waited for");
        for client in dripping {
            assert!(client.join().unwrap() < Duration::from_secs(15));
        }
    }

    #[test]
    fn client_when_it_reads_late_then_it_gets_all_of_a_large_answer() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::start(listener, || "x".repeat(8 << 20)).unwrap();
        let mut stream = TcpStream::connect(endpoint.address()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").unwrap();
        stream.write_all(b"\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with(&"x".repeat(8 << 20)), "{} bytes", text.len());
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
