//! Who does not have the cluster's secret gets nothing.

mod stranger;

use forebay_peer::conformance::service::Known;
use forebay_peer::transport::tcp::Tcp;
use forebay_peer::transport::unix::Unix;
use forebay_peer::transport::{Listener, TimeLimits, Transport};
use forebay_peer::{Address, Client, ClientConfig, ClusterSecret, Error, Limits, Security, Server};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stranger::*;

const LONG: Duration = Duration::from_secs(60);

fn tls(secret: &ClusterSecret) -> Tcp {
    Tcp::new(Security::Tls(secret.identity().unwrap()))
}

struct Stage {
    service: Arc<Counting>,
    _server: Server,
    address: Address,
    secret: ClusterSecret,
}

fn stage() -> Stage {
    let secret = ClusterSecret::generate().unwrap();
    let service = Arc::new(Counting::default());
    let limits = Limits { handshake: Duration::from_millis(500), ..Limits::default() };
    let mut server = Server::start(service.clone(), me(1), limits).unwrap();
    let address = server.listen(&tls(&secret), &"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    Stage { service, _server: server, address, secret }
}

fn raw(address: &Address) -> TcpStream {
    let stream = TcpStream::connect(address.to_string().trim_start_matches("tcp://")).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// All that a stream still says, and nothing of it may be ours.
fn nothing_from(mut stream: impl Read) {
    let mut heard = Vec::new();
    let ended = stream.read_to_end(&mut heard);
    assert!(
        !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "the connection was left open"
    );
    nothing_of_ours(&heard);
}

#[test]
fn stranger_without_tls_when_it_talks_then_hears_nothing_from() {
    let stage = stage();
    // A hello as it would be right on a plain connection.
    let hello = [b"FBP\x01\x01\0\x01\0".as_slice(), &[0; 24]].concat();
    for said in [b"".as_slice(), b"GET / HTTP/1.1\r\n\r\n", &hello] {
        let mut stream = raw(&stage.address);
        stream.write_all(said).unwrap();
        nothing_from(stream);
    }
    assert_eq!(stage.service.0.load(Ordering::Acquire), 0);
}

#[test]
fn stranger_with_tls_and_no_certificate_when_it_talks_then_hears_nothing_from() {
    let stage = stage();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    let name = ServerName::try_from("node").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = raw(&stage.address);
    let mut both = rustls::Stream::new(&mut tls, &mut stream);
    // In TLS 1.3 a client may talk before the server has seen that there is no certificate.
    let _ = both.write_all(&[b"FBP\x01\x01\0\x01\0".as_slice(), &[0; 24]].concat());
    nothing_from(both);
    assert_eq!(stage.service.0.load(Ordering::Acquire), 0);
}

#[test]
fn node_with_another_secret_when_it_connects_then_neither_side_talks() {
    let stage = stage();
    let limits = Limits { handshake: Duration::from_millis(500), ..Limits::default() };
    let config = ClientConfig { limits: limits.clone(), ..ClientConfig::new(me(2)) };
    let stranger = tls(&ClusterSecret::generate().unwrap());
    let client = Client::new(Arc::new(stranger.clone()), stage.address.clone(), config.clone());
    let answer = client.ping(LONG);
    assert!(matches!(answer, Err(Error::Connect { .. })), "{answer:?}");
    assert_eq!(stage.service.0.load(Ordering::Acquire), 0);

    // The other way round: a member does not talk to somebody at a member's address.
    let impostor = Arc::new(Counting::default());
    let mut server = Server::start(impostor.clone(), me(1), limits).unwrap();
    let address = server.listen(&stranger, &"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    let client = Client::new(Arc::new(tls(&stage.secret)), address, config.clone());
    assert!(matches!(client.ping(LONG), Err(Error::Connect { .. })));
    assert_eq!(impostor.0.load(Ordering::Acquire), 0);

    let member = Client::new(Arc::new(tls(&stage.secret)), stage.address.clone(), config);
    member.ping(LONG).unwrap();
    assert_eq!(stage.service.0.load(Ordering::Acquire), 1);
}

#[test]
fn secret_when_it_is_changed_node_by_node_then_all_talk_at_every_step() {
    let [old, new] = [(); 2].map(|()| ClusterSecret::generate().unwrap());
    let ways = |own: &ClusterSecret, other: Option<&ClusterSecret>| {
        Tcp::new(Security::Tls(own.identity_beside(other).unwrap()))
    };
    let limits = Limits { handshake: Duration::from_millis(500), ..Limits::default() };
    let config = ClientConfig { limits: limits.clone(), ..ClientConfig::new(me(2)) };
    let talk = |one: &dyn Fn() -> Tcp, two: &dyn Fn() -> Tcp| {
        [(one, two), (two, one)].into_iter().all(|(listens, asks)| {
            let service = Arc::new(Counting::default());
            let mut server = Server::start(service, me(1), limits.clone()).unwrap();
            let address = server.listen(&listens(), &"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
            Client::new(Arc::new(asks()), address, config.clone()).ping(LONG).is_ok()
        })
    };
    let steps: [&dyn Fn() -> Tcp; 4] =
        [&|| ways(&old, None), &|| ways(&old, Some(&new)), &|| ways(&new, Some(&old)), &|| {
            ways(&new, None)
        }];
    for pair in steps.windows(2) {
        assert!(talk(pair[0], pair[1]));
    }
    assert!(!talk(steps[0], steps[3]));
    assert!(!talk(steps[0], steps[2]), "who knows only the old one believes nobody with the new");
}

#[test]
fn strangers_when_many_are_silent_then_a_member_still_gets_in() {
    let stage = stage();
    // More than are let in at a time; they are turned away, and those let in have little time.
    let silent: Vec<_> = (0..100).map(|_| raw(&stage.address)).collect();
    let config = ClientConfig::new(me(2));
    let member = Client::new(Arc::new(tls(&stage.secret)), stage.address.clone(), config);
    let end = std::time::Instant::now() + LONG;
    while member.ping(LONG).is_err() {
        assert!(std::time::Instant::now() < end, "nobody gets in any more");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(silent);
}

#[test]
fn unix_socket_when_the_other_process_is_of_another_user_then_refused() {
    let path = std::env::temp_dir().join(format!("fb-stranger-{}", std::process::id()));
    let address: Address = format!("unix:{}", path.display()).parse().unwrap();
    let mut server = Server::start(Arc::new(Known::default()), me(1), Limits::default()).unwrap();
    server.listen(&Unix::default(), &address).unwrap();
    let client = |way: Unix| {
        let config = ClientConfig::new(me(2));
        Client::new(Arc::new(way), address.clone(), config).ping(LONG)
    };
    client(Unix::default()).unwrap();
    let timeout = TimeLimits { connect: LONG, handshake: LONG, stall: LONG };
    // This process seen by a listener of another user; root is let in by everybody.
    if !rustix::process::geteuid().is_root() {
        assert!(client(Unix::of_user(12345)).is_err());
        return;
    }
    let theirs = path.with_extension("theirs");
    let theirs_at: Address = format!("unix:{}", theirs.display()).parse().unwrap();
    let door: Arc<dyn Listener> = Unix::default().listen(&theirs_at).unwrap().into();
    std::fs::set_permissions(&theirs, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let talk = format!(
        "my $s = IO::Socket::UNIX->new(Peer => '{}') or die; print sysread($s, my $b, 9);",
        theirs.display()
    );
    let nobody = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["timeout", "10", "perl", "-MIO::Socket::UNIX", "-e", &talk])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(nobody) = nobody else {
        door.close();
        eprintln!("skipped: there is no setpriv");
        return;
    };
    // Should it not come, nobody waits for it longer than it lives.
    let closer = door.clone();
    let heard = std::thread::spawn(move || {
        let output = nobody.wait_with_output();
        closer.close();
        output.unwrap().stdout
    });
    let admitted = door.accept().expect("the other user's process connects").admit(timeout);
    assert!(matches!(admitted, Err(Error::Refused { .. })), "{admitted:?}");
    assert_eq!(heard.join().unwrap(), b"0", "bytes that it heard");
    door.close();
}

#[test]
fn unix_socket_when_its_listener_is_dead_then_taken_over_and_a_live_one_is_not() {
    let path = std::env::temp_dir().join(format!("fb-abandoned-{}", std::process::id()));
    let address: Address = format!("unix:{}", path.display()).parse().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let door = Unix::default().listen(&address).unwrap();
    assert!(matches!(Unix::default().listen(&address), Err(Error::Listen { .. })));
    door.close();
    std::fs::write(&path, "no socket").unwrap();
    assert!(matches!(Unix::default().listen(&address), Err(Error::Listen { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"no socket");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn unix_socket_when_nobody_accepts_then_connecting_ends_in_time() {
    let path = std::env::temp_dir().join(format!("fb-full-{}", std::process::id()));
    let address: Address = format!("unix:{}", path.display()).parse().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let timeout = TimeLimits { connect: Duration::from_millis(100), handshake: LONG, stall: LONG };
    let begun = std::time::Instant::now();
    let wires: Vec<_> = (0..3).map(|_| Unix::default().connect(&address, timeout)).collect();
    assert!(wires.iter().any(|wire| matches!(wire, Err(Error::Connect { .. }))));
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
    std::fs::remove_file(&path).unwrap();
}
