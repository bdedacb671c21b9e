//! Datagrams in bad weather.

mod lossy;

use forebay_peer::conformance::service::Known;
use forebay_peer::message::Read;
use forebay_peer::transport::udp::Udp;
use forebay_peer::{
    Body, Client, ClientConfig, ClusterSecret, Error, Identity, Limits, Security, Server,
};
use forebay_testing::wait_until;
use lossy::Weather;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

struct Stage {
    service: Arc<Known>,
    server: Server,
    client: Client,
}

fn stage(weather: &Arc<Weather>) -> Stage {
    let me = |node| Identity::new("c".into(), node, 1);
    let limits = Limits { stall: Duration::from_millis(300), ..Limits::default() };
    let udp = lossy::udp(weather);
    let service = Arc::new(Known::default());
    let mut server = Server::start(service.clone(), me(1), limits.clone()).unwrap();
    let address = server.listen(&udp, &"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    let config = ClientConfig { limits, ..ClientConfig::new(me(2)) };
    Stage { service, server, client: Client::new(Arc::new(udp), address, config) }
}

#[test]
fn datagrams_when_lost_doubled_reordered_and_changed_then_all_bytes_arrive_once() {
    let kinds = [(10, 0, 0, 0), (0, 20, 0, 0), (0, 0, 20, 0), (0, 0, 0, 5), (5, 5, 5, 2)];
    for (lost, doubled, held, changed) in kinds {
        let weather = Weather { lost, doubled, held, changed, ..Weather::default() };
        let weather = Arc::new(weather);
        let stage = stage(&weather);
        for round in 0..3_u8 {
            let sent: Vec<u8> = (0..500_000_u32).map(|at| (at >> 3) as u8 ^ round).collect();
            let echo = stage.client.other(1, &Body::Bytes(sent.clone()), 500_000, LONG).unwrap();
            assert!(echo[..] == sent[..]);
        }
        assert!(weather.harmed.load(Ordering::Relaxed) > 50, "the weather was too good");
        assert_eq!(stage.server.connections(), 1, "it took more than one connection");
    }
}

#[test]
fn sender_when_it_crashes_in_the_middle_of_a_message_then_its_orphans_are_collected() {
    let weather = Arc::new(Weather::default());
    let stage = stage(&weather);
    let read = Read { ino: 1, version: None, offset: 0, len: 10 };
    stage.client.read(read, LONG).unwrap();
    weather.until_dead.store(200, Ordering::Release);
    let body = Body::Bytes(vec![1; 4 << 20]);
    let request = forebay_peer::message::Request::Other { kind: 1, answer: 4 << 20 };
    let begun = Instant::now();
    let call = stage.client.start(&request, &body, Instant::now() + LONG);
    assert!(call.is_err(), "who can't send any more finds out");
    assert!(begun.elapsed() < LONG, "but not for {:?}", begun.elapsed());
    // The first one, of small calls, has nothing under way and may stay; what was begun may not.
    wait_until("the orphan's connection goes", || {
        stage.service.connection_ended.load(Ordering::Acquire) >= 1
    });
}

#[test]
fn udp_when_encryption_is_wanted_then_refused() {
    let security = Security::Tls(ClusterSecret::generate().unwrap().identity().unwrap());
    assert!(matches!(Udp::new(&security), Err(Error::Settings(_))));
}

#[test]
fn udp_when_nobody_listens_then_fails_in_time() {
    let mut stage = stage(&Arc::new(Weather::default()));
    stage.server.close(Duration::ZERO);
    let begun = Instant::now();
    assert!(stage.client.ping(Duration::from_millis(500)).is_err());
    assert!(begun.elapsed() < LONG);
}
