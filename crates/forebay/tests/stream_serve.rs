//! `forebay stream serve` as users have it: the program, tokens and limits.

mod site;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use site::*;

const TOKEN: &str = "a-token-that-nobody-guesses";

/// A server, ended with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(site: &Site, more: &[&str]) -> Self {
        fs::write(site.path("backing/film"), vec![7; 3_000_000]).unwrap();
        let (backing, state) = (site.text("backing"), site.text("home/state"));
        let child = site
            .command(env!("CARGO_BIN_EXE_forebay"))
            .args(["stream", "serve", &backing, "--listen", "127.0.0.1:0", "--emulate", "ssd"])
            .args(["--memory", "16M", "--state-dir", &state, "--log-level", "debug"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(site.path("log")).unwrap())
            .spawn();
        let mut served = Self { child: child.unwrap(), address: String::new() };
        let mut line = String::new();
        let output = served.child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let (_, address) = line.trim().rsplit_once("http://").expect("it says where it listens");
        served.address = address.trim_end_matches('/').to_owned();
        served
    }

    /// The first line of an answer; the connection stays open.
    fn ask(&self, target: &str, fields: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (stream, String::from_utf8_lossy(&head).into_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // `timeout` passes it on.
        signal(self.child.id() as i32, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
fn server_with_a_token_file_then_the_token_opens_it_and_is_seen_nowhere() {
    let site = Site::new();
    let file = site.text("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let args =
        ["stream", "serve", &site.text("backing"), "--emulate", "ssd", "--token-file", &file];
    let (code, text) = site.run(&args);
    assert!(code == 2 && text.contains("chmod 600"), "{code} {text}");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let served = Served::start(&site, &["--token-file", &file]);
    assert_eq!(served.ask("/film?rate=1M", "").1, "HTTP/1.1 401");
    assert_eq!(served.ask("/film?rate=1M&token=a-token-that-nobody-guesseS", "").1, "HTTP/1.1 401");
    let (_open, line) = served.ask(&format!("/film?rate=1M&token={TOKEN}"), "");
    assert_eq!(line, "HTTP/1.1 200");
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(served.ask("/film?rate=1M", &bearer).1, "HTTP/1.1 200");
    let (code, status) = site.run(&["stream", "status"]);
    assert!(code == 0 && status.contains("2 token"), "{status}");
    let mut seen = fs::read_to_string(site.path("log")).unwrap() + &status;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.windows(5).any(|word| word == b"serve") {
            seen += &String::from_utf8_lossy(&line);
        }
    }
    assert!(seen.contains("serve") && !seen.contains(TOKEN), "{seen}");
}

#[test]
fn address_with_its_share_when_it_asks_for_more_then_refused_and_it_can_be_set() {
    let site = Site::new();
    let served = Served::start(&site, &["--client-streams", "2"]);
    let held = [0, 1].map(|_| served.ask("/film?rate=1M", ""));
    assert!(held.iter().all(|(_, line)| line == "HTTP/1.1 200"), "{held:?}");
    assert_eq!(served.ask("/film?rate=1M", "").1, "HTTP/1.1 429");
    drop(served);
    let served = Served::start(&site, &["--client-streams", "0", "--client-rate", "0"]);
    let held: Vec<_> = (0..20).map(|_| served.ask("/film?rate=1M", "")).collect();
    assert!(held.iter().all(|(_, line)| line == "HTTP/1.1 200"), "{held:?}");
}
