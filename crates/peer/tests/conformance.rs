//! All transports under one suite.

mod lossy;

use forebay_peer::conformance::{CHECKS, Way};
use forebay_peer::transport::tcp::Tcp;
use forebay_peer::transport::udp::Udp;
use forebay_peer::transport::unix::Unix;
use forebay_peer::{ClusterSecret, Security};
use std::sync::Arc;

/// Runs one check, on a thread that is not waited for longer than any check may take.
fn check(way: Way, name: &str) {
    let (_, check) = CHECKS.iter().find(|(known, _)| *known == name).expect("a check of the suite");
    let (to, done) = std::sync::mpsc::channel();
    let run = std::thread::spawn(move || {
        check(&way);
        let _ = to.send(());
    });
    match done.recv_timeout(std::time::Duration::from_secs(40)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{name} hangs"),
        _ => run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

fn tcp(security: Security) -> Way {
    Way { transport: Arc::new(Tcp::new(security)), address: "tcp://127.0.0.1:0".parse().unwrap() }
}

fn plain_tcp(_: &str) -> Way {
    tcp(Security::Off)
}

fn tls(_: &str) -> Way {
    tcp(Security::Tls(ClusterSecret::generate().unwrap().identity().unwrap()))
}

fn udp(_: &str) -> Way {
    let transport = Arc::new(Udp::new(&Security::Off).unwrap());
    Way { transport, address: "udp://127.0.0.1:0".parse().unwrap() }
}

fn lossy_udp(_: &str) -> Way {
    let weather = lossy::Weather { lost: 3, doubled: 3, held: 3, changed: 1, ..Default::default() };
    let transport = Arc::new(lossy::udp(&Arc::new(weather)));
    Way { transport, address: "udp://127.0.0.1:0".parse().unwrap() }
}

#[cfg(feature = "quic")]
fn quic(_: &str) -> Way {
    let security = Security::Tls(ClusterSecret::generate().unwrap().identity().unwrap());
    let transport = Arc::new(forebay_peer::transport::quic::Quic::new(&security).unwrap());
    Way { transport, address: "quic://127.0.0.1:0".parse().unwrap() }
}

fn unix(name: &str) -> Way {
    let directory = std::env::temp_dir().join(format!("fb-peer-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let address = format!("unix:{}/{}", directory.display(), name.len());
    let at = CHECKS.iter().position(|(known, _)| *known == name).unwrap();
    let address = format!("{address}-{at}").parse().unwrap();
    Way { transport: Arc::new(Unix::default()), address }
}

macro_rules! suite {
    ($($name:ident)*) => {
        mod over_tcp { $( #[test] fn $name() { let n = stringify!($name); super::check(super::plain_tcp(n), n); } )* }
        mod over_tls { $( #[test] fn $name() { let n = stringify!($name); super::check(super::tls(n), n); } )* }
        mod over_udp { $( #[test] fn $name() { let n = stringify!($name); super::check(super::udp(n), n); } )* }
        mod over_lossy_udp { $( #[test] fn $name() { let n = stringify!($name); super::check(super::lossy_udp(n), n); } )* }
        #[cfg(feature = "quic")]
        mod over_quic { $( #[test] fn $name() { let n = stringify!($name); super::check(super::quic(n), n); } )* }
        mod over_unix { $( #[test] fn $name() { let n = stringify!($name); super::check(super::unix(n), n); } )* }

        #[test]
        fn suite_when_run_then_no_check_is_left_out() {
            let run = [$(stringify!($name)),*];
            let known: Vec<_> = CHECKS.iter().map(|(name, _)| *name).collect();
            assert_eq!(run[..], known[..]);
        }
    };
}

suite! {
    every_request_when_made_then_answered
    large_and_empty_bodies_when_sent_then_arrive_whole
    file_range_when_answered_then_arrives_and_a_short_file_is_noticed
    many_callers_on_one_connection_when_at_once_then_each_gets_his_answer
    slow_call_when_under_way_then_others_overtake_it
    stranger_of_another_cluster_or_node_when_met_then_refused
    nodes_of_two_versions_when_they_meet_then_speak_the_highest_of_both
    node_that_knows_one_version_alone_when_it_says_hello_then_let_in
    nonsense_and_hostile_lengths_when_received_then_only_that_connection_ends
    window_when_full_then_callers_wait_and_time_out
    server_when_overloaded_then_says_so_and_loses_nothing
    call_when_its_time_is_over_then_cancelled_and_the_connection_goes_on
    call_when_dropped_then_cancelled
    client_when_vanished_then_its_calls_are_cancelled
    server_when_closed_then_finishes_what_it_began
    connection_when_cut_then_only_what_is_safe_is_made_again
    server_when_gone_then_reached_again_after_a_pause
    bytes_when_changed_on_the_way_then_never_believed
    peer_when_it_falls_silent_then_the_connection_is_given_up
}
