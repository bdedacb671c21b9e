//! What one client can take from all others of a server, and what a medium can do to it.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_streams::http::{ClientLimits, Limits, ProbeConfig, Server, Tokens};
use support::*;

/// A connection from another address of the loopback network.
fn connect_from(from: &str, site: &Site) -> TcpStream {
    let source = std::net::SocketAddr::new(from.parse().unwrap(), 0);
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &source).unwrap();
    rustix::net::connect(&socket, &site.server.address()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, target: &str, fields: &str) {
    write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").unwrap();
}

/// Takes all that it can: connections, streams at any rate, and reads nothing.
#[test]
fn client_that_takes_all_it_can_and_reads_nothing_then_others_play() {
    let stall = Duration::from_secs(2);
    let site = site(
        "table1",
        16 << 20,
        Limits { stall, ..Limits::default() },
        &[("film", 8_000_000), ("other", 1_500_000)],
    );
    let mut hoard = Vec::new();
    // As many as let it in; a rate that six times is more than the device has.
    for at in 0..100 {
        let mut stream = connect_from("127.0.0.66", &site);
        let rate = ["16M", "2M", "800K"][at % 3];
        let from = at * 70_000;
        ask(&mut stream, &format!("/film?rate={rate}"), &format!("Range: bytes={from}-\r\n"));
        hoard.push(stream);
    }
    let status = site.server.reporter();
    let begun = Instant::now();
    let quarter = site.service.slowest_rate() / 4;
    let all_came = || {
        let away = status().turned_away;
        away.contains_key("client-rate")
            && away.get("client-connections").is_some_and(|count| *count >= 30)
    };
    while !all_came() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(status().guaranteed_rate <= quarter, "{:?}", status());
    // Somebody else plays beside it.
    let mut player = connect_from("127.0.0.7", &site);
    ask(&mut player, "/other?rate=4M", "");
    let answer = receive(&mut player);
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.body == content(1_500_000));
    assert!(undisturbed(&status()), "{:?}", status());
    // And what reads nothing is cut off, so that its share is free again as well.
    while status().guaranteed > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", status());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(status().turned_away["stalled"] > 0, "{:?}", status());
    drop(hoard);
}

#[test]
fn client_that_has_its_share_when_it_asks_for_more_then_429_and_the_rate_that_is_left() {
    let client = ClientLimits { streams: 2, rate: Some(3_000_000), ..ClientLimits::default() };
    let files = [("film", 40_000_000)];
    let site = site("ssd", 64 << 20, Limits { client, ..Limits::default() }, &files);
    let mut held = connect(site.server.address());
    ask(&mut held, "/film?rate=16M", "");
    held.read_exact(&mut [0; 100]).unwrap();
    let refused = get(site.server.address(), "/film?rate=16M", "");
    assert_eq!(refused.status, 429, "{}", refused.head);
    let why: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!((&why["reason"], &why["suggested_rate"]), (&"client".into(), &1_000_000.into()));
    assert!(refused.field("retry-after").is_some());
    let part = get(site.server.address(), "/film?rate=8M", "Range: bytes=0-9\r\n");
    assert_eq!(part.status, 206, "{}", part.head);
    drop(held);
    let begun = Instant::now();
    while get(site.server.address(), "/film?rate=16M", "Range: bytes=0-9\r\n").status != 206 {
        assert!(begun.elapsed() < Duration::from_secs(20), "what it has given back is its again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_behind_a_proxy_then_each_has_its_own_share() {
    let proxies = vec!["127.0.0.1".parse().unwrap()];
    let client = ClientLimits { streams: 1, connections: 1, rate: Some(u64::MAX), proxies };
    let files = [("film", 40_000_000)];
    let site = site("ssd", 64 << 20, Limits { client, ..Limits::default() }, &files);
    let of = |address: &str| format!("X-Forwarded-For: 9.9.9.9, {address}\r\n");
    let mut first = connect(site.server.address());
    ask(&mut first, "/film?rate=16M", &of("192.0.2.1"));
    first.read_exact(&mut [0; 100]).unwrap();
    let range = "Range: bytes=0-9\r\n";
    let again = get(site.server.address(), "/film?rate=16M", &(of("192.0.2.1") + range));
    assert_eq!(again.status, 429);
    let other = get(site.server.address(), "/film?rate=16M", &(of("192.0.2.2") + range));
    assert_eq!(other.status, 206);
    // Who is no proxy is who he is, whatever he says.
    let mut liar = connect_from("127.0.0.9", &site);
    ask(&mut liar, "/film?rate=16M", &of("192.0.2.3"));
    liar.read_exact(&mut [0; 100]).unwrap();
    let mut second = connect_from("127.0.0.9", &site);
    assert_eq!(receive(&mut second).status, 429, "its second connection");
}

#[test]
fn server_with_tokens_when_asked_without_one_then_401_and_with_one_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).unwrap();
    let tokens = Some(Tokens::read(file.path()).unwrap());
    let site = site("ssd", 16 << 20, Limits { tokens, ..open() }, &[("a", 1000)]);
    let address = site.server.address();
    for (target, fields) in [
        ("/a", ""),
        ("/none", ""),
        ("/a?token=0123456789abcdee", ""),
        ("/a", "Authorization: Bearer 0123456789abcde\r\n"),
    ] {
        let answer = get(address, target, fields);
        assert_eq!(answer.status, 401, "{target}");
        assert_eq!(answer.field("www-authenticate"), Some("Bearer realm=\"forebay\""));
    }
    let bearer = "Authorization: Bearer 0123456789abcdef\r\n";
    let answer = get(address, "/a?rate=1M", bearer);
    assert_eq!((answer.status, answer.field("cache-control")), (200, Some("private")));
    assert_eq!(get(address, "/a?rate=1M&token=0123456789abcdef", "").body, content(1000));
    assert_eq!(site.server.reporter()().turned_away["token"], 4);
}

/// A program in the place of ffprobe, for which files that begin with other bytes are other media.
fn fake_ffprobe(dir: &Path) -> PathBuf {
    let path = dir.join("ffprobe");
    let text = "#!/bin/sh\nread -r kind < /dev/stdin\ncase $kind in\n\
        hang*) exec sleep 1000;;\n\
        spin*) while :; do :; done;;\n\
        crash*) exit 139;;\n\
        flood*) while :; do echo '{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}'; done;;\n\
        *) echo '{\"format\": {\"bit_rate\": \"800000\"}}';;\nesac\n";
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn media_whose_probe_hangs_or_crashes_then_others_play_and_nobody_waits_for_ever() {
    let kinds = ["hang1", "hang2", "hang3", "spin", "flood", "crash"];
    let files: Vec<(&str, usize)> = kinds.iter().map(|name| (*name, 1)).collect();
    let tools = tempfile::tempdir().unwrap();
    std::fs::set_permissions(tools.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let kept = tools.path().join("rates");
    let probe = ProbeConfig { program: Some(fake_ffprobe(tools.path())), kept: Some(kept.clone()) };
    let site = site("ssd", 16 << 20, Limits { probe: probe.clone(), ..open() }, &files);
    let library = site.service.library().path().to_path_buf();
    for kind in kinds {
        std::fs::write(library.join(kind), format!("{kind}\n")).unwrap();
    }
    std::fs::write(library.join("good"), "a good film\n").unwrap();
    let begun = Instant::now();
    let mut waiting: Vec<TcpStream> = kinds
        .iter()
        .map(|kind| {
            let mut stream = connect(site.server.address());
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            ask(&mut stream, &format!("/{kind}"), "");
            stream
        })
        .collect();
    // Meanwhile whoever says the rate, or asks for none, is served at once.
    let mut player = connect_from("127.0.0.7", &site);
    for target in ["/good?rate=1M", "/good?class=best-effort"] {
        ask(&mut player, target, "");
        assert_eq!(receive(&mut player).status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    for stream in &mut waiting {
        let answer = receive(stream);
        assert_eq!((answer.status, answer.field("forebay-class")), (200, Some("best-effort")));
    }
    let report = site.server.reporter();
    while get(site.server.address(), "/good", "").field("forebay-class").is_some() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", report());
    }
    let answer = get(site.server.address(), "/good", "");
    assert_eq!(answer.field("forebay-rate-bytes-per-second"), Some("110000"));
    assert!(report().without_rate >= 6, "{:?}", report());
    // Another server knows what this one found out, without looking.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let limits = Limits { probe, ..open() };
    let next = Server::start(site.service.clone(), listener, limits).unwrap();
    let answer = get(next.address(), "/good", "");
    assert_eq!(answer.field("forebay-rate-bytes-per-second"), Some("110000"));
    assert_eq!(get(next.address(), "/crash", "").field("forebay-class"), Some("best-effort"));
    assert_eq!(next.reporter()().probed, 0);
}

#[test]
fn medium_when_probed_by_the_real_ffprobe_in_its_sandbox_then_its_rate() {
    let made = std::process::Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=160x90:rate=24", "-t", "2"])
        .args(["-c:v", "mpeg4", "-f", "matroska", "-"])
        .output();
    let Ok(made) = made else {
        eprintln!("skipped: ffmpeg is not installed");
        return;
    };
    let site = site("ssd", 16 << 20, open(), &[("a", 1)]);
    std::fs::write(site.service.library().path().join("film.mkv"), &made.stdout).unwrap();
    let answer = get(site.server.address(), "/film.mkv", "Range: bytes=0-9\r\n");
    let rate: f64 = answer.field("forebay-rate-bytes-per-second").unwrap().parse().unwrap();
    let average = made.stdout.len() as f64 / 2.0 * 1.1;
    assert!((rate / average - 1.0).abs() < 0.05, "{rate} {average}");
}
