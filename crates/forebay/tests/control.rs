//! The control socket between a real server and a real client, with a control in memory.

mod fake;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fake::FakeControl;
use forebay::control::{
    Client, Control, Coverage, HintPart, Reply, Request, Server, ServerLimits, Shutdown, Status,
};

struct Site {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    control: Arc<FakeControl>,
    server: Option<Server>,
}

impl Site {
    fn new(limits: ServerLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let control = Arc::new(FakeControl::default());
        let listener = UnixListener::bind(&path).unwrap();
        let server =
            Server::start(listener, Arc::clone(&control) as Arc<dyn Control>, limits).unwrap();
        Self { _dir: dir, path, control, server: Some(server) }
    }

    fn stream(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn client(&self) -> Client {
        Client::over("/m".into(), self.stream()).unwrap()
    }

    /// Sends raw bytes and returns the first line of the answer.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.stream();
        stream.write_all(bytes).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn client_when_it_asks_many_things_on_one_connection_then_each_is_answered() {
    let site = Site::new(ServerLimits::default());
    *site.control.status.lock().unwrap() =
        Status { hits: 7, mountpoint: "/m".into(), ..Status::default() };
    let mut client = site.client();
    assert_eq!(client.status().unwrap().hits, 7);
    assert_eq!(client.metrics().unwrap(), "forebay_hits_total 3\n");
    let places = client.locate(vec!["a".into(), "b/c".into()]).unwrap();
    assert_eq!((places.len(), places[1].residency), (2, Coverage::Whole));
    let part = HintPart { job: "j".into(), paths: vec!["x".into()], ..HintPart::default() };
    let outcome = client.work(Request::Hint(part), None, &mut |_| {}).unwrap();
    assert_eq!((outcome.files, site.control.hints.lock().unwrap().len()), (1, 1));
    let withdraw = Request::Withdraw { job: "j".into() };
    client.order(withdraw, Duration::from_secs(5)).unwrap();
    assert_eq!(site.control.hints.lock().unwrap().len(), 0);
    client.order(Request::TraceStart, Duration::from_secs(5)).unwrap();
    assert_eq!(client.trace(10, true).unwrap().lost, 7);
    assert_eq!(client.pid(), std::process::id() as i32);
}

#[test]
fn work_when_it_takes_long_then_progress_arrives_and_failures_are_told() {
    let site = Site::new(ServerLimits {
        progress_interval: Duration::from_millis(50),
        ..ServerLimits::default()
    });
    let mut seen = Vec::new();
    let paths = vec!["slow".into(), "x/slow".into(), "y/bad".into()];
    let outcome = site
        .client()
        .work(Request::Warm { paths }, Some(Duration::from_secs(10)), &mut |p| {
            seen.push(p.files_done);
        })
        .unwrap();
    assert_eq!((outcome.files, outcome.failed), (2, 1));
    assert!(seen.len() >= 2 && seen.is_sorted(), "{seen:?}");
}

#[test]
fn work_when_the_client_leaves_then_it_is_cancelled() {
    let site = Site::new(ServerLimits {
        progress_interval: Duration::from_millis(10),
        ..ServerLimits::default()
    });
    let mut stream = site.stream();
    let paths: Vec<String> = (0..200).map(|n| format!("\"{n}/slow\"")).collect();
    writeln!(stream, "{{\"v\":1,\"op\":\"warm\",\"paths\":[{}]}}", paths.join(",")).unwrap();
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(10);
    while site.control.cancelled.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "the operation was not cancelled");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn server_when_requests_are_malformed_then_it_says_so_and_goes_on() {
    let limits = ServerLimits { request_bytes: 1000, ..ServerLimits::default() };
    let site = Site::new(limits);
    for (bytes, part) in [
        (&b"hello\n"[..], "request not understood"),
        (b"{\"v\":1,\"op\":\"dance\"}\n", "request not understood"),
        (b"{\"v\":9,\"op\":\"status\"}\n", "speaks version 1"),
        (&[b'x'; 2000], "longer than 1000 bytes"),
        (b"\xff\xfe\n", "request not understood"),
        (b"{\"v\":1,\"op\":\"warm\",\"paths\":[3]}\n", "request not understood"),
    ] {
        let answer = site.raw(bytes);
        assert!(answer.contains(part) && answer.contains("\"reply\":\"error\""), "{answer}");
    }
    assert!(site.client().status().is_ok());
}

#[test]
fn server_when_too_many_connect_then_the_rest_is_refused_until_one_leaves() {
    let site = Site::new(ServerLimits { connections: 2, ..ServerLimits::default() });
    let (mut first, mut second) = (site.client(), site.client());
    first.status().unwrap();
    second.status().unwrap();
    assert!(site.raw(b"").contains("too many control connections"));
    drop(first);
    let deadline = Instant::now() + Duration::from_secs(5);
    while site.client().status().is_err() {
        assert!(Instant::now() < deadline, "the place was not given back");
    }
}

#[test]
fn server_when_a_client_is_silent_then_it_is_dropped() {
    let site =
        Site::new(ServerLimits { idle: Duration::from_millis(100), ..ServerLimits::default() });
    let mut stream = site.stream();
    stream.write_all(b"{\"v\":1").unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn server_when_stopped_then_a_running_request_still_gets_its_answer() {
    let mut site = Site::new(ServerLimits::default());
    let mut client = site.client();
    let worker = std::thread::spawn(move || {
        let paths = vec!["slow".into(), "slow".into()];
        client.work(Request::Sync { paths }, Some(Duration::from_secs(10)), &mut |_| {})
    });
    while site.control.worked.lock().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    site.server.take().unwrap().stop();
    assert!(worker.join().unwrap().unwrap().complete);
    assert!(UnixStream::connect(&site.path).is_err());
}

#[test]
fn shutdown_when_busy_then_the_client_sees_why() {
    let site = Site::new(ServerLimits::default());
    let mut client = site.client();
    client.order(Request::Shutdown { how: Shutdown::IfIdle }, Duration::from_secs(5)).unwrap();
    let request = Request::LogLevel { filter: "info".into() };
    let error = client.order(request, Duration::from_secs(5)).unwrap_err();
    assert!(error.to_string().contains("does not log"), "{error}");
}

#[test]
fn reply_when_the_daemon_is_mute_then_the_client_gives_up_in_time() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut client = Client::over("/m".into(), ours).unwrap();
    let started = Instant::now();
    let result = client.call(Request::Status, Some(Duration::from_millis(200)), &mut |_| {});
    assert!(result.is_err() && started.elapsed() < Duration::from_secs(30));
    assert!(!matches!(result, Ok(Reply::Done)));
}
