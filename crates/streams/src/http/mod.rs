//! Streams over HTTP/1.1, with ranges. A stream is paced by the machine that reads it, so a client
//! gets its first seconds at once and the rest at its rate.

mod answer;
mod body;
mod probe;
mod range;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::error::Error;
use crate::service::Service;

/// Threads that answer clients; the bytes come from the service's own.
const WORKERS: usize = 2;
/// Threads for what blocks: opening files, asking for their extents, ffprobe.
const BLOCKING: usize = 8;
/// What a request's head may take up.
const HEAD_MAX: usize = 16 * 1024;
/// How long a client may take to send a request, and to think of the next one.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Clients that are told at a time that there are too many.
const TURNED_AWAY: usize = 256;
/// How often connections that do not move are looked for, and the longest that one is turned away.
const WATCH: Duration = Duration::from_secs(1);

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; further ones are told to come again.
    pub connections: usize,
    /// How long a client may take nothing of what is there for it, as a paused player does.
    pub idle: Duration,
    /// The rate of files of which none is known, in bytes a second; without it they are served as
    /// best the device can beside the admitted streams.
    pub default_rate: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 4096, idle: Duration::from_secs(300), default_rate: None }
    }
}

/// What all connections share.
struct Shared {
    service: Service,
    limits: Limits,
    probe: probe::Probe,
    begun: Instant,
}

/// A running server; dropping it closes all connections.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Server {
    /// Serves the library of `service` on a listening socket.
    ///
    /// # Errors
    /// If the socket can't be used or no thread can be started.
    pub fn start(service: Service, listener: TcpListener, limits: Limits) -> Result<Self, Error> {
        let network = |source| Error::Network { doing: "listening", source };
        listener.set_nonblocking(true).map_err(network)?;
        let address = listener.local_addr().map_err(network)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING)
            .thread_name("stream-http")
            .enable_all()
            .build()
            .map_err(Error::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            service,
            limits,
            probe: probe::Probe::default(),
            begun: Instant::now(),
        });
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(network)?
        };
        runtime.spawn(accept(shared, listener, stopped));
        Ok(Self { address, stop, runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(runtime) = self.runtime.take() {
            // What blocks (an open on a store that hangs) is not waited for.
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

async fn accept(
    shared: Arc<Shared>,
    listener: tokio::net::TcpListener,
    mut stopped: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(shared.limits.connections));
    let outside = Arc::new(Semaphore::new(TURNED_AWAY));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: those that end give theirs back.
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            // Beyond those it is closed at once.
            if let Ok(permit) = Arc::clone(&outside).try_acquire_owned() {
                tokio::spawn(async move {
                    turn_away(stream).await;
                    drop(permit);
                });
            }
            continue;
        };
        let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
        tokio::spawn(async move {
            serve(shared, stream, stopped).await;
            drop(permit);
        });
    }
}

/// Tells a client that there are too many. What it sends is read until it has gone, though not for
/// long: a connection that is closed with something unread is reset, and a reset can overtake the answer.
async fn turn_away(mut stream: TcpStream) {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 21\r\n\
        Content-Type: text/plain\r\nConnection: close\r\n\r\ntoo many connections\n";
    let all = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        let mut sent = stream.take(HEAD_MAX as u64);
        tokio::io::copy(&mut sent, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(WATCH, all).await;
}

/// When something last happened on a connection, as milliseconds since the server's start.
#[derive(Debug, Default)]
struct Activity(AtomicU64);

impl Activity {
    fn note(&self, begun: Instant) {
        self.0.store(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

async fn serve(shared: Arc<Shared>, stream: TcpStream, mut stopped: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let activity = Arc::new(Activity::default());
    activity.note(shared.begun);
    let (begun, idle) = (shared.begun, shared.limits.idle);
    let handler = {
        let activity = Arc::clone(&activity);
        service_fn(move |request| {
            answer::answer(Arc::clone(&shared), Arc::clone(&activity), request)
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), handler);
    tokio::pin!(connection);
    let mut watch = tokio::time::interval(WATCH);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection");
                }
                return;
            }
            _ = watch.tick() => {
                let last = Duration::from_millis(activity.0.load(Ordering::Relaxed));
                if begun.elapsed().saturating_sub(last) > idle {
                    tracing::debug!("a client took nothing for too long; closed");
                    return;
                }
            }
            _ = stopped.changed() => return,
        }
    }
}
