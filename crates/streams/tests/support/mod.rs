//! A server over an emulated disk, and clients of it.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

pub mod film;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::streams::admission::Assurance;
use forebay_streams::device::{Control, Emulated, Model};
use forebay_streams::http::{ClientLimits, Limits, Server};
use forebay_streams::{Service, ServiceConfig, Status};
use forebay_testing::{LIMIT, wait_for};

pub const RATE: u64 = 250_000;

pub struct Site {
    pub service: Service,
    pub server: Server,
    pub control: Arc<Control>,
    pub dir: tempfile::TempDir,
}

pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 100 + at / 65_536) as u8).collect()
}

/// Limits for many clients at one address.
pub fn open() -> Limits {
    Limits { client: ClientLimits::none(), ..Limits::default() }
}

pub fn site(model: &str, memory: u64, limits: Limits, files: &[(&str, usize)]) -> Site {
    let memory_dir = Path::new("/dev/shm");
    let dir = if memory_dir.is_dir() {
        tempfile::tempdir_in(memory_dir).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    let library = dir.path().join("library");
    std::fs::create_dir_all(library.join("sub dir")).unwrap();
    for (name, bytes) in files {
        std::fs::write(library.join(name), content(*bytes)).unwrap();
    }
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", library.join("link")).unwrap();
    let model = Model::named(model).unwrap();
    let profile = model.profile("emulated");
    let device = Arc::new(Emulated::start(model, 1).unwrap());
    let control = device.control();
    let assurance = Assurance::Deterministic;
    let (chunk, idle) = (16 << 10, forebay_streams::IDLE);
    let config = ServiceConfig { library, memory, chunk, assurance, beginnings: 0, idle };
    let service = Service::start(config, device, profile).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(service.clone(), listener, limits).unwrap();
    Site { service, server, control, dir }
}

/// An answer as it came over the wire.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Reads one answer to a request other than HEAD; the connection may go on.
pub fn receive(stream: &mut TcpStream) -> Answer {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert!(stream.read(&mut byte).unwrap() == 1, "the connection ended in the head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { status, head, body: Vec::new() };
    let length = answer.field("content-length").map_or(0, |length| length.parse().unwrap());
    answer.body = vec![0; length];
    stream.read_exact(&mut answer.body).unwrap();
    answer
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    stream
}

/// As a player: goes where it is sent. Gives the path that it ended at, too.
pub fn follow(address: SocketAddr, target: &str) -> (String, Answer) {
    let answer = get(address, target, "");
    if answer.status != 302 {
        return (target.to_owned(), answer);
    }
    let to = beside(target, answer.field("location").unwrap());
    let answer = get(address, &to, "");
    (to, answer)
}

/// What a relative reference means on a page.
pub fn beside(page: &str, reference: &str) -> String {
    let page = page.split('?').next().unwrap();
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in reference.split('/') {
        match part {
            ".." => parts.truncate(parts.len() - 1),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

pub fn get(address: SocketAddr, target: &str, fields: &str) -> Answer {
    let mut stream = connect(address);
    write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").unwrap();
    receive(&mut stream)
}

pub fn undisturbed(status: &Status) -> bool {
    status.glitches.keys().all(|cause| cause == "host-busy")
}

/// Waits for something that the service does in its own time.
pub fn until(site: &Site, what: &str, done: impl Fn(&Status) -> bool) {
    let came = wait_for(LIMIT, || done(&site.service.status()));
    assert!(came, "{what}: {:?}", site.service.status());
}
