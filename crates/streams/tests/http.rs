//! The HTTP server, asked by real clients and by plain sockets.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_streams::http::{Limits, Origins};
use support::*;

#[test]
fn ranges_when_asked_for_then_the_right_bytes_and_headers() {
    let site = site("ssd", 16 << 20, open(), &[("a.mp4", 300_007), ("empty", 0)]);
    let (address, all) = (site.server.address(), content(300_007));
    let whole = get(address, "/a.mp4?rate=80M", "");
    assert_eq!((whole.status, whole.field("content-type")), (200, Some("video/mp4")));
    assert!(whole.body == all && whole.field("accept-ranges") == Some("bytes"));
    assert_eq!(whole.field("forebay-rate-bytes-per-second"), Some("10000000"));
    for (range, from, to) in [
        ("0-0", 0, 1),
        ("299999-", 299_999, 300_007),
        ("-7", 300_000, 300_007),
        ("65535-65537", 65_535, 65_538),
        ("1-999999999", 1, 300_007),
    ] {
        let part = get(address, "/a.mp4?rate=80M", &format!("Range: bytes={range}\r\n"));
        assert_eq!(part.status, 206, "{range}");
        let expected = format!("bytes {from}-{}/300007", to - 1);
        assert_eq!(part.field("content-range"), Some(&expected[..]));
        assert!(part.body == all[from..to], "{range}");
    }
    let beyond = get(address, "/a.mp4", "Range: bytes=300007-\r\n");
    assert_eq!((beyond.status, beyond.field("content-range")), (416, Some("bytes */300007")));
    let several = get(address, "/a.mp4?rate=80M", "Range: bytes=0-1,5-6\r\n");
    assert_eq!((several.status, several.body.len()), (200, 300_007));
    assert_eq!(get(address, "/empty?rate=1M", "").status, 200);
    assert_eq!(get(address, "/empty", "Range: bytes=0-\r\n").status, 416);

    let tag = whole.field("etag").unwrap();
    let fields = format!("Range: bytes=0-4\r\nIf-Range: {tag}\r\n");
    assert_eq!(get(address, "/a.mp4?rate=80M", &fields).status, 206);
    let fields = "Range: bytes=0-4\r\nIf-Range: \"other\"\r\n";
    assert_eq!(get(address, "/a.mp4?rate=80M", fields).status, 200);
    let fields = format!("If-None-Match: \"x\", {tag}\r\n");
    assert_eq!(get(address, "/a.mp4", &fields).status, 304);
}

#[test]
fn dates_when_asked_by_then_as_the_tags_and_tags_come_first() {
    let site = site("ssd", 16 << 20, open(), &[("a.mp4", 100_000)]);
    let address = site.server.address();
    let path = site.service.library().path().join("a.mp4");
    let modified = std::time::UNIX_EPOCH + Duration::from_millis(784_111_777_500);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    let whole = get(address, "/a.mp4?rate=80M", "");
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    assert_eq!(whole.field("last-modified"), Some(date));
    let status = |fields: &str| get(address, "/a.mp4?rate=80M", fields).status;
    let since = |date: &str| format!("If-Modified-Since: {date}\r\n");
    assert_eq!(status(&since(date)), 304);
    assert_eq!(status(&since("Sun, 06 Nov 1994 08:49:36 GMT")), 200);
    assert_eq!(status(&since("yesterday")), 200);
    assert_eq!(status(&(since(date) + "If-None-Match: \"x\"\r\n")), 200, "the tag counts");
    let range = |version: &str| format!("Range: bytes=0-4\r\nIf-Range: {version}\r\n");
    assert_eq!(status(&range(date)), 206);
    assert_eq!(status(&range("Sun, 06 Nov 1994 08:49:38 GMT")), 200, "only the very same");
}

#[test]
fn page_of_another_origin_when_it_asks_before_it_asks_then_told_what_it_may() {
    let origins = Origins::new(&["https://films.example".to_owned()]).unwrap();
    let site = site("ssd", 16 << 20, Limits { origins, ..open() }, &[("a.mp4", 1000)]);
    let send = |method: &str, target: &str, fields: &str| {
        let mut stream = connect(site.server.address());
        write!(stream, "{method} {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").unwrap();
        receive(&mut stream)
    };
    let page = "Origin: https://films.example\r\nAccess-Control-Request-Method: GET\r\n\
        Access-Control-Request-Headers: range, authorization\r\n";
    let before = send("OPTIONS", "/a.mp4", page);
    assert_eq!((before.status, before.field("allow")), (204, Some("GET, HEAD, OPTIONS")));
    assert_eq!(before.field("access-control-allow-origin"), Some("https://films.example"));
    let fields = before.field("access-control-allow-headers").unwrap();
    assert!(fields.contains("Range") && fields.contains("Authorization"), "{fields}");
    for target in ["/a.mp4?rate=80M", "/none"] {
        let answer = send("GET", target, "Origin: https://films.example\r\n");
        let allowed = answer.field("access-control-allow-origin");
        assert_eq!(allowed, Some("https://films.example"), "also of an error: {target}");
        assert!(answer.field("access-control-expose-headers").unwrap().contains("Retry-After"));
    }
    let other = send("GET", "/a.mp4?rate=80M", "Origin: https://evil.example\r\n");
    assert_eq!((other.status, other.field("access-control-allow-origin")), (200, None));
    let post = send("POST", "/a.mp4", "Content-Length: 0\r\n");
    assert_eq!((post.status, post.field("allow")), (405, Some("GET, HEAD, OPTIONS")));
}

#[test]
fn directory_when_its_index_is_asked_for_then_its_names_and_nothing_hidden_or_outside() {
    let files = [("b & c.mp4", 10), (".hidden", 10), ("sub dir/d.mp4", 7)];
    let site = site("ssd", 16 << 20, Limits { index: true, ..open() }, &files);
    let address = site.server.address();
    let page = get(address, "/?token=t", "");
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    let text = String::from_utf8(page.body).unwrap();
    assert!(text.contains("<a href=\"./b%20%26%20c.mp4?token=t\">b &amp; c.mp4</a> 10"), "{text}");
    assert!(text.contains("<a href=\"./sub%20dir/?token=t\">sub dir/</a>"), "{text}");
    assert!(!text.contains("hidden") && !text.contains("link"), "{text}");
    let moved = get(address, "/sub%20dir?x=1", "");
    assert_eq!((moved.status, moved.field("location")), (301, Some("/sub%20dir/?x=1")));
    let list = get(address, "/sub%20dir/", "Accept: application/json\r\n");
    let list: serde_json::Value = serde_json::from_slice(&list.body).unwrap();
    assert_eq!(list, serde_json::json!([{"name": "d.mp4", "link": "d.mp4", "bytes": 7}]));
    for outside in ["/../", "/%2e%2e/", "//", "/none/", "/sub%20dir/../../", "/b%20%26%20c.mp4/"] {
        assert_eq!(get(address, outside, "").status, 404, "{outside}");
    }
}

#[test]
fn requests_when_wrong_or_hostile_then_refused_and_nothing_outside_is_served() {
    let site = site("ssd", 16 << 20, open(), &[("a", 1000), ("sub dir/b", 10)]);
    let address = site.server.address();
    for target in [
        "/../secret",
        "/%2e%2e/secret",
        "/sub%20dir/../../secret",
        "/link",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/none",
        "/",
        "/sub%20dir",
        "/a%00",
    ] {
        let answer = get(address, target, "");
        assert_eq!(answer.status, 404, "{target}: {}", answer.head);
    }
    assert_eq!(get(address, "/sub%20dir/b", "").body, content(10));
    for target in ["/a?rate=fast", "/a?rate=0", "/a?class=royal"] {
        assert_eq!(get(address, target, "").status, 400, "{target}");
    }
    let mut stream = connect(address);
    stream.write_all(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(receive(&mut stream).status, 405);
    for noise in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"] {
        let mut stream = connect(address);
        stream.write_all(noise).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    }
    assert_eq!(get(address, "/a?rate=1M", "").status, 200, "it goes on");
}

#[test]
fn connection_when_kept_alive_then_it_serves_one_request_after_the_other() {
    let site = site("ssd", 16 << 20, open(), &[("a", 50_000)]);
    let mut stream = connect(site.server.address());
    for from in [0, 10, 49_999] {
        let fields = format!("Host: x\r\nRange: bytes={from}-\r\n");
        write!(stream, "GET /a?rate=80M HTTP/1.1\r\n{fields}\r\n").unwrap();
        let answer = receive(&mut stream);
        assert!(answer.status == 206 && answer.body == content(50_000)[from..]);
    }
}

#[test]
fn streams_beyond_what_the_device_carries_then_503_with_advice_and_room_again_later() {
    let site = site("table1", 8 << 20, open(), &[("a", 4_000_000)]);
    let address = site.server.address();
    let mut admitted = Vec::new();
    let refused = loop {
        // Each from another place of the file, so that they share nothing.
        let mut stream = connect(address);
        let from = admitted.len() * 50_000;
        let target = "/a?rate=8M";
        write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\nRange: bytes={from}-\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        if head.ends_with(b"503") {
            break get(address, target, "Range: bytes=3999999-\r\n");
        }
        assert!(head.ends_with(b"206") && admitted.len() < 30);
        admitted.push(stream);
    };
    assert!(!admitted.is_empty());
    assert_eq!(refused.status, 503, "{}", refused.head);
    let after: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!(after >= 1);
    let why: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert!(["device", "memory"].contains(&why["reason"].as_str().unwrap()), "{why}");
    assert!(why["retry_after_ms"].as_u64().unwrap() > 0 && why["message"].is_string());
    // Whoever vanishes gives its place to others.
    drop(admitted);
    let begun = Instant::now();
    while get(address, "/a?rate=8M", "Range: bytes=3999999-\r\n").status != 206 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", site.service.status());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn connections_beyond_the_limit_then_told_to_come_again() {
    let limits = Limits { connections: 2, ..open() };
    let site = site("ssd", 16 << 20, limits, &[("a", 1000)]);
    let address = site.server.address();
    let held: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = connect(address);
            stream.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            assert_eq!(receive(&mut stream).status, 200);
            stream
        })
        .collect();
    let answer = receive(&mut connect(address));
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("2")));
    drop(held);
    let begun = Instant::now();
    while get(address, "/a", "").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

/// Also one that is slow to send its request is answered, and not cut off by a reset.
#[test]
fn client_when_turned_away_while_it_sends_then_reads_why() {
    let limits = Limits { connections: 1, ..open() };
    let site = site("ssd", 16 << 20, limits, &[("a", 1000)]);
    let mut held = connect(site.server.address());
    held.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(receive(&mut held).status, 200);
    let mut stream = connect(site.server.address());
    for part in ["GET /a ", "HTTP/1.1\r\n", "Host: x\r\n", "\r\n"] {
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(part.as_bytes()).unwrap();
    }
    assert_eq!(receive(&mut stream).status, 503);
}

#[test]
fn client_that_takes_nothing_for_too_long_then_its_connection_is_closed() {
    let limits = Limits { idle: Duration::from_secs(2), ..open() };
    let site = site("ssd", 64 << 20, limits, &[("a", 40_000_000)]);
    let mut stream = connect(site.server.address());
    stream.write_all(b"GET /a?rate=80M HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let begun = Instant::now();
    while site.service.status().opened == 0 || site.service.status().guaranteed > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", site.service.status());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(undisturbed(&site.service.status()));
}

#[test]
fn thousand_connections_then_all_get_their_bytes_in_time() {
    const CONNECTIONS: usize = 1000;
    const BYTES: usize = 300_000;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if maximum.is_some_and(|maximum| maximum < 4 * CONNECTIONS as u64) {
        eprintln!("skipped: only {maximum:?} open files allowed");
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(4 * CONNECTIONS as u64), maximum }).unwrap();
    let names: Vec<String> = (0..4).map(|at| format!("f{at}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&name[..], BYTES)).collect();
    let site = site("disk", 256 << 20, open(), &files);
    let address = site.server.address();
    let expected = content(BYTES);
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(address)).collect();
    for (at, stream) in streams.iter_mut().enumerate() {
        let name = &names[at % names.len()];
        write!(stream, "GET /{name}?rate=800K HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    for stream in &mut streams {
        let answer = receive(stream);
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert!(answer.body == expected);
    }
    let status = site.service.status();
    assert_eq!(status.opened, CONNECTIONS as u64);
    assert!(status.shared > 900 && undisturbed(&status), "{status:?}");
}

#[test]
fn flash_crowd_of_one_title_when_some_vanish_and_some_dawdle_then_the_others_play_in_time() {
    const SECONDS: usize = 6;
    let bytes = SECONDS * RATE as usize;
    let files = [("film", bytes), ("other", bytes)];
    let site = site("table1", 64 << 20, open(), &files);
    let (address, expected) = (site.server.address(), Arc::new(content(bytes)));
    let ask = |name: &str| {
        let mut stream = connect(address);
        write!(stream, "GET /{name}?rate=2M HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream
    };
    let play = |mut stream: TcpStream| {
        let expected = Arc::clone(&expected);
        std::thread::spawn(move || {
            let answer = receive(&mut stream);
            assert!(answer.status == 200 && answer.body == *expected, "{}", answer.head);
        })
    };
    // They come at the same moment, however long it takes to start them here: before the first of
    // them has anything.
    site.control.hold();
    let other = ask("other");
    let crowd: Vec<TcpStream> = (0..150).map(|_| ask("film")).collect();
    until(&site, "all have asked", |status| status.joining == 149);
    let begun = Instant::now();
    site.control.release();
    let (mut players, mut dawdlers) = (vec![play(other)], Vec::new());
    for (at, mut stream) in crowd.into_iter().enumerate() {
        match at % 3 {
            0 => players.push(play(stream)),
            1 => dawdlers.push(stream),
            _ => {
                stream.read_exact(&mut [0; 100]).unwrap();
                drop(stream);
            }
        }
    }
    players.into_iter().for_each(|player| player.join().unwrap());
    // Nobody waits for those who dawdle, who would keep them for ever.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10 * SECONDS as u64), "{took:?}");
    let status = site.service.status();
    assert!(undisturbed(&status), "{status:?}");
    assert!(status.memory_peak <= status.memory_limit, "{status:?}");
    // And once more for whoever fell behind, since nobody waits for him.
    let readers = 4 + status.behind;
    assert!(status.bytes_read < readers * bytes as u64, "about once each: {status:?}");
    // Who dawdled gets everything, late; who vanished holds nothing.
    dawdlers.into_iter().map(play).for_each(|player| player.join().unwrap());
    while site.service.status().guaranteed > 0 || site.service.status().memory_used > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", site.service.status());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a program is there; says so if not.
fn installed(program: &str) -> bool {
    let there = Command::new(program).arg("-version").output().is_ok();
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

#[test]
fn curl_when_it_asks_for_ranges_and_resumes_then_the_file() {
    if !installed("curl") {
        return;
    }
    let site = site("table1", 16 << 20, open(), &[("a b.bin", 700_001)]);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("got");
    let url = format!("http://{}/a%20b.bin?rate=16M", site.server.address());
    let curl = |args: &[&str]| {
        let limits = ["-sS", "--max-time", "15", "-o", path.to_str().unwrap()];
        let output = Command::new("curl").args(limits).args(args).arg(&url).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(&path).unwrap()
    };
    let all = content(700_001);
    assert!(curl(&[]) == all);
    assert!(curl(&["-r", "1000-1999"]) == all[1000..2000]);
    assert!(curl(&["-r", "-5"]) == all[700_001 - 5..]);
    std::fs::write(&path, &all[..300_000]).unwrap();
    assert!(curl(&["-C", "-"]) == all);
    let head = Command::new("curl").args(["-sSI", "--max-time", "15", &url]).output().unwrap();
    let head = String::from_utf8(head.stdout).unwrap().to_ascii_lowercase();
    assert!(head.contains("200 ok") && head.contains("content-length: 700001"), "{head}");
}

#[test]
fn player_at_native_rate_when_it_plays_a_film_then_it_never_waits() {
    if !installed("ffmpeg") || !installed("ffprobe") {
        return;
    }
    let site = site("table1", 16 << 20, open(), &[("filler", 1)]);
    let library = site.service.library().path().to_path_buf();
    let film = library.join("film.mp4");
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=24", "-t", "4"])
        .args(["-c:v", "mpeg4", "-b:v", "1500k", "-minrate", "1500k", "-maxrate", "1500k"])
        .args(["-bufsize", "400k", "-movflags", "+faststart"])
        .arg(&film)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // Without a rate: ffprobe finds it.
    let url = format!("http://{}/film.mp4", site.server.address());
    let begun = Instant::now();
    let played = Command::new("timeout")
        .args(["15", "ffmpeg", "-v", "error", "-re", "-i", &url, "-f", "null", "-"])
        .output()
        .unwrap();
    let took = begun.elapsed();
    assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
    assert!((3.5..9.0).contains(&took.as_secs_f64()), "{took:?}");
    let status = site.service.status();
    assert!(undisturbed(&status) && status.opened >= 1, "{status:?}");
    let head = get(site.server.address(), "/film.mp4", "Range: bytes=0-99\r\n");
    let rate: u64 = head.field("forebay-rate-bytes-per-second").unwrap().parse().unwrap();
    assert!((RATE / 4..RATE * 2).contains(&rate), "{rate}");
}
