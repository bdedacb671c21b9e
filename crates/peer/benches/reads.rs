//! Reads from a node over the loopback against a plain copy over TCP, in turns, as ratios: of the
//! time that passed, and of the processor's time of both ends, which other work on the machine
//! disturbs less.
//!
//! The copy reads it into a buffer and writes that to a socket; its other
//! end reads the socket into a buffer. Reads are of 1 MiB, four under way. `SIZE_MIB` is the size of
//! the file (64), `DIRECTORY` is where it lies (/dev/shm); elsewhere it is in the page cache.

use forebay_peer::message::{Fault, Read, Request};
use forebay_peer::transport::Transport;
#[cfg(feature = "quic")]
use forebay_peer::transport::quic::Quic;
use forebay_peer::transport::tcp::Tcp;
use forebay_peer::transport::udp::Udp;
use forebay_peer::transport::unix::Unix;
use forebay_peer::{
    Body, BufferPool, Call, Client, ClientConfig, ClusterSecret, FileRange, Found, Identity,
    Limits, Security, Server, Service,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EXTENT: u32 = 1 << 20;
const ROUNDS: usize = 7;
const LONG: Duration = Duration::from_secs(20);

/// Bytes of the file.
fn size() -> u64 {
    let given = std::env::var("SIZE_MIB").ok().and_then(|text| text.parse::<u64>().ok());
    given.unwrap_or(64) << 20
}

/// Answers from a file, by reading it first or while it is sent.
struct Files {
    file: Arc<File>,
    buffers: Arc<BufferPool>,
    read_first: bool,
}

impl Service for Files {
    fn read(&self, _call: &Call, read: &Read) -> Result<Found, Fault> {
        let body = match self.read_first {
            true => {
                let mut bytes = self.buffers.take(read.len as usize);
                self.file.read_exact_at(&mut bytes, read.offset).map_err(|_| Fault::NotHere)?;
                Body::Buffer(bytes)
            }
            false => {
                let (file, offset, len) = (self.file.clone(), read.offset, read.len);
                Body::File(FileRange { file, offset, len })
            }
        };
        Ok(Found { version: 1, body })
    }
}

struct Way {
    name: &'static str,
    client: Client,
    _server: Server,
}

fn way(name: &'static str, file: &Arc<File>, transport: Arc<dyn Transport>, sums: bool) -> Way {
    let me = |node| Identity::new("bench".into(), node, 1);
    let limits = Limits { sum_files: sums, ..Limits::default() };
    let at = match name.split(',').next() {
        Some("unix") => format!("unix:/dev/shm/forebay-peer-{}-{}", std::process::id(), name.len()),
        Some("udp") => "udp://127.0.0.1:0".into(),
        Some("quic") => "quic://127.0.0.1:0".into(),
        _ => "tcp://127.0.0.1:0".into(),
    };
    let (read_first, buffers) = (name.ends_with("read first"), BufferPool::new(64 << 20));
    let files = Files { file: file.clone(), buffers, read_first };
    let mut server = Server::start(Arc::new(files), me(1), limits.clone()).unwrap();
    let address = server.listen(&*transport, &at.parse().unwrap()).unwrap();
    let config = ClientConfig { limits, ..ClientConfig::new(me(2)) };
    Way { name, client: Client::new(transport, address, config), _server: server }
}

/// Seconds that passed and that the processor worked.
fn timed(run: impl FnOnce()) -> (f64, f64) {
    let worked = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (begun, before) = (Instant::now(), worked());
    run();
    (begun.elapsed().as_secs_f64(), worked() - before)
}

/// Gets all of the file by reads.
fn by_reads(client: &Client) {
    let deadline = Instant::now() + LONG;
    let mut under_way = VecDeque::new();
    let mut got = 0;
    for offset in (0..size()).step_by(EXTENT as usize) {
        let read = Request::Read(Read { ino: 1, version: Some(1), offset, len: EXTENT });
        under_way.push_back(client.start(&read, &Body::Empty, deadline).unwrap());
        if under_way.len() == 4 {
            got += under_way.pop_front().unwrap().wait().unwrap().1.len();
        }
    }
    for call in under_way {
        got += call.wait().unwrap().1.len();
    }
    assert_eq!(got as u64, size());
}

/// A thread that copies the file to a socket whenever it is sent a byte.
fn copier(file: &Arc<File>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (file, mut sender) = (file.clone(), listener.accept().unwrap().0);
    std::thread::spawn(move || {
        let mut buffer = vec![0; EXTENT as usize];
        while sender.read_exact(&mut buffer[..1]).is_ok() {
            for offset in (0..size()).step_by(EXTENT as usize) {
                file.read_exact_at(&mut buffer, offset).unwrap();
                sender.write_all(&buffer).unwrap();
            }
        }
    });
    stream
}

/// Gets all of the file by a plain copy over a connection that is there.
fn by_copy(stream: &mut TcpStream) {
    stream.write_all(&[1]).unwrap();
    let mut buffer = vec![0; EXTENT as usize];
    for _ in (0..size()).step_by(EXTENT as usize) {
        stream.read_exact(&mut buffer).unwrap();
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() {
    let directory = std::env::var("DIRECTORY").unwrap_or_else(|_| "/dev/shm".into());
    let path = format!("{directory}/forebay-peer-reads-{}", std::process::id());
    let piece: Vec<u8> = (0..EXTENT).map(|at| (at >> 3) as u8).collect();
    let mut file = File::create(&path).unwrap();
    (0..size()).step_by(EXTENT as usize).for_each(|_| file.write_all(&piece).unwrap());
    let file = Arc::new(File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut copier = copier(&file);
    let tls = ClusterSecret::generate().unwrap().identity().unwrap();
    let plain = || Arc::new(Tcp::new(Security::Off));
    let encrypted = Arc::new(Tcp::new(Security::Tls(tls.clone())));
    let ways = [
        way("tcp, read first", &file, plain(), true),
        way("tcp", &file, plain(), true),
        way("tcp, sums only of heads", &file, plain(), false),
        way("tcp, with tls", &file, encrypted.clone(), true),
        way("tcp, with tls, read first", &file, encrypted, true),
        way("unix, read first", &file, Arc::new(Unix::default()), true),
        way("unix", &file, Arc::new(Unix::default()), true),
        #[cfg(feature = "quic")]
        way("quic", &file, Arc::new(Quic::new(&Security::Tls(tls)).unwrap()), true),
        way("udp", &file, Arc::new(Udp::new(&Security::Off).unwrap()), true),
    ];
    let mut measured = vec![(Vec::new(), Vec::new()); ways.len() + 1];
    // Connections come about, and buffers are made.
    ways.iter().for_each(|way| by_reads(&way.client));
    for _ in 0..ROUNDS {
        let copy = timed(|| by_copy(&mut copier));
        let reads = ways.iter().map(|way| timed(|| by_reads(&way.client)));
        for (all, one) in measured.iter_mut().zip(std::iter::once(copy).chain(reads)) {
            all.0.push(one.0);
            all.1.push(one.1);
        }
    }
    let mut medians = measured.into_iter().map(|(passed, worked)| (median(passed), median(worked)));
    let copy = medians.next().expect("the copy is the first");
    let per_gb = |worked: f64| worked * 1e9 / size() as f64;
    println!(
        "plain copy: {:.0} MB/s, {:.2} s of work per GB",
        size() as f64 / copy.0 / 1e6,
        per_gb(copy.1)
    );
    for (way, (passed, worked)) in ways.iter().zip(medians) {
        let (speed, ratio) = (size() as f64 / passed / 1e6, copy.0 / passed);
        let work = worked / copy.1;
        println!(
            "{}: {speed:.0} MB/s, {ratio:.2} of the copy, {work:.2} times its work, {:.2} s per GB",
            way.name,
            per_gb(worked)
        );
    }
}
