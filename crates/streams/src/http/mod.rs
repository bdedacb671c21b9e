//! Streams over HTTP/1.1, with ranges. A stream is paced by the machine that reads it, so a client
//! gets its first seconds at once and the rest at its rate.

mod activity;
mod answer;
mod body;
mod clients;
mod cors;
mod date;
mod film;
mod index;
mod manifest;
mod player;
mod probe;
mod range;
mod session;
mod token;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::error::Error;
use crate::service::{Service, Status};
use activity::Activity;
use clients::{Client, Clients, Reached, Share};

pub use clients::ClientLimits;
pub use cors::Origins;
pub use probe::ProbeConfig;
pub use token::Tokens;

/// Threads that answer clients; the bytes come from the service's own.
const WORKERS: usize = 2;
/// Threads for what blocks: opening files, asking for their extents.
const BLOCKING: usize = 8;
/// What a request's head may take up.
const HEAD_MAX: usize = 16 * 1024;
/// How long a client may take to send a request, and to think of the next one.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Clients that are told at a time that there are too many.
const TURNED_AWAY: usize = 256;
/// How often connections that do not move are looked for, and the longest that one is turned away.
const WATCH: Duration = Duration::from_secs(1);
/// Without limits of its own an address gets this part of what the device reads.
const SHARE: u64 = 4;
/// Bytes of a connection that the kernel keeps and has not sent: what a client that reads nothing
/// has of our memory.
const UNSENT: libc::c_int = 128 << 10;

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
    /// How long a client may take nothing before it has taken the beginning of what it asked for.
    pub stall: Duration,
    /// What one address may have.
    pub client: ClientLimits,
    /// Who may ask; everybody if none.
    pub tokens: Option<Tokens>,
    /// How the rates of files are found out that say nothing of it.
    pub probe: ProbeConfig,
    /// Whose pages may read what is served, in a browser.
    pub origins: Origins,
    /// Whether the names in directories are shown.
    pub index: bool,
    /// A stream begins at so many times its rate, for the first seconds, and a segment of a session
    /// comes so fast, as long as nobody else needs it.
    pub burst: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            idle: Duration::from_secs(300),
            default_rate: None,
            stall: Duration::from_secs(10),
            client: ClientLimits::default(),
            tokens: None,
            probe: ProbeConfig::default(),
            origins: Origins::default(),
            index: false,
            burst: 1.0,
        }
    }
}

/// What all connections share.
struct HttpState {
    service: Service,
    limits: Limits,
    clients: Arc<Clients>,
    probe: probe::Probe,
    sessions: session::Sessions,
    films: film::Films,
    begun: Instant,
}

impl HttpState {
    fn status(&self) -> Status {
        let (probed, without_rate) = self.probe.counts();
        let turned_away = self.clients.turned_away();
        let sessions = self.sessions.count();
        Status { turned_away, probed, without_rate, sessions, ..self.service.status() }
    }
}

/// A running server; dropping it closes all connections.
pub struct Server {
    address: SocketAddr,
    shared: Arc<HttpState>,
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
        let clients = Clients::new(limits.client.clone(), service.slowest_rate() / SHARE);
        let probe = probe::Probe::start(limits.probe.clone())?;
        let (sessions, films) = (session::Sessions::default(), film::Films::default());
        let begun = Instant::now();
        let shared =
            Arc::new(HttpState { service, limits, clients, probe, sessions, films, begun });
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(network)?
        };
        runtime.spawn(look_after_sessions(Arc::clone(&shared), stopped.clone()));
        runtime.spawn(accept(Arc::clone(&shared), listener, stopped));
        Ok(Self { address, shared, stop, runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks for what the service does and has done, and whom this server has turned away; also after
    /// the server has gone.
    pub fn reporter(&self) -> impl Fn() -> Status + Clone + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.status()
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

async fn look_after_sessions(shared: Arc<HttpState>, mut stopped: watch::Receiver<bool>) {
    let mut watch = tokio::time::interval(5 * WATCH);
    loop {
        tokio::select! {
            _ = watch.tick() => shared.sessions.look_after(),
            _ = stopped.changed() => return,
        }
    }
}

async fn accept(
    shared: Arc<HttpState>,
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
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: those that end give theirs back.
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let permit = Arc::clone(&room).try_acquire_owned();
        // A proxy has the connections of all its clients.
        let proxy = shared.clients.is_proxy(peer.ip());
        let client = Client::of(peer.ip());
        let share = (!proxy).then(|| shared.clients.take(client, Share::Connection)).transpose();
        let (permit, share) = match (permit, share) {
            (Ok(permit), Ok(share)) => (permit, share),
            (_, share) => {
                let answer = too_many(share.err());
                // Beyond those it is closed at once.
                if let Ok(permit) = Arc::clone(&outside).try_acquire_owned() {
                    tokio::spawn(async move {
                        refuse(stream, answer).await;
                        drop(permit);
                    });
                }
                continue;
            }
        };
        let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
        tokio::spawn(async move {
            serve(shared, stream, peer, stopped).await;
            drop((permit, share));
        });
    }
}

fn too_many(reached: Option<Reached>) -> &'static [u8] {
    match reached {
        Some(_) => {
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\nContent-Length: 39\r\n\
              Content-Type: text/plain\r\nConnection: close\r\n\r\n\
              too many connections from your address\n"
        }
        None => {
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 21\r\n\
              Content-Type: text/plain\r\nConnection: close\r\n\r\ntoo many connections\n"
        }
    }
}

/// Tells a client that there are too many. What it sends is read until it has gone, though not for
/// long: a connection that is closed with something unread is reset, and a reset can overtake the answer.
async fn refuse(mut stream: TcpStream, answer: &[u8]) {
    let all = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        let mut sent = stream.take(HEAD_MAX as u64);
        tokio::io::copy(&mut sent, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(WATCH, all).await;
}

/// Has the kernel keep little of what it has not sent, else that is megabytes for whoever reads
/// nothing.
fn keep_little(stream: &TcpStream) {
    let most: libc::c_int = UNSENT;
    // SAFETY: the kernel reads an int, which outlives the call. It may refuse.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const most).cast(),
            size_of_val(&most) as libc::socklen_t,
        );
    }
}

async fn serve(
    shared: Arc<HttpState>,
    stream: TcpStream,
    peer: SocketAddr,
    mut stopped: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    keep_little(&stream);
    let activity = Arc::new(Activity::default());
    activity.begin_answer(shared.begun);
    let at_watch = Arc::clone(&shared);
    let handler = {
        let activity = Arc::clone(&activity);
        service_fn(move |request| {
            let (shared, activity) = (Arc::clone(&shared), Arc::clone(&activity));
            answer::answer(shared, activity, peer.ip(), request)
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
                if activity.is_stuck(&at_watch.limits, at_watch.begun) {
                    tracing::debug!("a client took nothing for too long; closed");
                    at_watch.clients.count("stalled");
                    return;
                }
            }
            _ = stopped.changed() => return,
        }
    }
}
