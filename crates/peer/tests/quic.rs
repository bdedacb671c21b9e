//! QUIC: who does not have the cluster's secret gets nothing.
#![cfg(feature = "quic")]

mod stranger;

use forebay_peer::transport::quic::Quic;
use forebay_peer::{Address, Client, ClientConfig, ClusterSecret, Error, Limits, Security, Server};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stranger::*;

const LONG: Duration = Duration::from_secs(60);

fn quic(secret: &ClusterSecret) -> Quic {
    Quic::new(&Security::Tls(secret.identity().unwrap())).unwrap()
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
    let mut server = Server::start(service.clone(), me(1), Limits::default()).unwrap();
    let address = server.listen(&quic(&secret), &"quic://127.0.0.1:0".parse().unwrap()).unwrap();
    Stage { service, _server: server, address, secret }
}

impl Stage {
    fn at(&self) -> SocketAddr {
        self.address.to_string().trim_start_matches("quic://").parse().unwrap()
    }

    fn member(&self) -> Client {
        let config = ClientConfig::new(me(2));
        Client::new(Arc::new(quic(&self.secret)), self.address.clone(), config)
    }
}

#[test]
fn node_with_another_secret_when_it_connects_by_quic_then_neither_side_talks() {
    let stage = stage();
    let stranger = quic(&ClusterSecret::generate().unwrap());
    let config = ClientConfig::new(me(2));
    let client = Client::new(Arc::new(stranger.clone()), stage.address.clone(), config.clone());
    let answer = client.ping(LONG);
    assert!(matches!(answer, Err(Error::Connect { .. })), "{answer:?}");
    assert_eq!(stage.service.0.load(Ordering::Acquire), 0);

    // The other way round: a member does not talk to somebody at a member's address.
    let impostor = Arc::new(Counting::default());
    let mut server = Server::start(impostor.clone(), me(1), Limits::default()).unwrap();
    let address = server.listen(&stranger, &"quic://127.0.0.1:0".parse().unwrap()).unwrap();
    let client = Client::new(Arc::new(quic(&stage.secret)), address, config);
    assert!(matches!(client.ping(LONG), Err(Error::Connect { .. })));
    assert_eq!(impostor.0.load(Ordering::Acquire), 0);

    stage.member().ping(LONG).unwrap();
    assert_eq!(stage.service.0.load(Ordering::Acquire), 1);
}

#[test]
fn stranger_with_quic_and_no_certificate_when_it_talks_then_hears_nothing_of_ours() {
    let stage = stage();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let heard = runtime.block_on(async {
        let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        // A client may talk before the server has seen that there is no certificate.
        let connection = endpoint.connect_with(config, stage.at(), "node").unwrap().await;
        let Ok(connection) = connection else { return Vec::new() };
        let Ok((mut send, mut receive)) = connection.open_bi().await else { return Vec::new() };
        let hello = [b"FBP\x01\x01\0\x01\0".as_slice(), &[0; 24]].concat();
        let _ = send.write_all(&hello).await;
        let mut heard = vec![0; 4096];
        let reading = tokio::time::timeout(LONG, receive.read(&mut heard)).await;
        let len = match reading.expect("the connection was left open") {
            Ok(some) => some.unwrap_or(0),
            Err(_) => 0,
        };
        heard.truncate(len);
        heard
    });
    assert_eq!(heard, b"");
    assert_eq!(stage.service.0.load(Ordering::Acquire), 0);
}

#[test]
fn strangers_when_they_send_datagrams_of_nonsense_then_hear_nothing_of_ours_and_members_get_in() {
    let stage = stage();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut nonsense = vec![0x9e_u8; 1400];
    for round in 0..200_u32 {
        // Long heads and short ones, known versions and unknown ones.
        nonsense[0] = [0x40, 0xc0, 0xff, 0][round as usize % 4];
        nonsense[1..5]
            .copy_from_slice(&[0, 1, round, 0xdead_beef][round as usize % 4].to_be_bytes());
        nonsense[5] = (round % 21) as u8;
        let len = 20 + (round as usize * 7) % 1380;
        let _ = socket.send_to(&nonsense[..len], stage.at());
    }
    let member = stage.member();
    let end = Instant::now() + LONG;
    while member.ping(LONG).is_err() {
        assert!(Instant::now() < end, "nobody gets in any more");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut heard = vec![0; 2000];
    while let Ok(len) = socket.recv(&mut heard) {
        nothing_of_ours(&heard[..len]);
    }
    assert_eq!(stage.service.0.load(Ordering::Acquire), 1);
}

#[test]
fn quic_when_encryption_is_off_then_refused() {
    assert!(matches!(Quic::new(&Security::Off), Err(Error::Settings(_))));
}

#[test]
fn quic_when_nobody_listens_then_fails_in_time() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("quic://{}", nobody.local_addr().unwrap()).parse().unwrap();
    let secret = ClusterSecret::generate().unwrap();
    let client = Client::new(Arc::new(quic(&secret)), address, ClientConfig::new(me(2)));
    // Shorter than the library's own limits, which nobody waits for.
    assert!(matches!(client.ping(Duration::from_millis(300)), Err(Error::Connect { .. })));
}
