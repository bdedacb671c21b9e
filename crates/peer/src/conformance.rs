//! What every transport must do, as tests that run over any of them.
//!
//! A test file makes a [`Way`] for its transport and calls each of [`CHECKS`]. A check panics if
//! something is not as it must be.

mod answers;
pub mod faulty;
mod loss;
mod pressure;
pub mod service;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::address::Address;
use crate::client::{Client, ClientConfig};
use crate::limits::Limits;
use crate::server::{Identity, Server};
use crate::transport::Transport;

use faulty::Faulty;
use service::Known;

/// A transport, and an address that its servers may listen on.
pub struct Way {
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// Where to listen; port 0 for any.
    pub address: Address,
}

/// A check and its name.
pub type Check = (&'static str, fn(&Way));

/// What is checked.
pub const CHECKS: &[Check] = &[
    ("every_request_when_made_then_answered", answers::every_request),
    ("large_and_empty_bodies_when_sent_then_arrive_whole", answers::bodies),
    ("file_range_when_answered_then_arrives_and_a_short_file_is_noticed", answers::files),
    ("many_callers_on_one_connection_when_at_once_then_each_gets_his_answer", answers::many),
    ("slow_call_when_under_way_then_others_overtake_it", answers::overtaking),
    ("stranger_of_another_cluster_or_node_when_met_then_refused", answers::strangers),
    ("nodes_of_two_versions_when_they_meet_then_speak_the_highest_of_both", answers::versions),
    ("node_that_knows_one_version_alone_when_it_says_hello_then_let_in", answers::single_version),
    (
        "nonsense_and_hostile_lengths_when_received_then_only_that_connection_ends",
        answers::nonsense,
    ),
    ("window_when_full_then_callers_wait_and_time_out", pressure::window),
    ("server_when_overloaded_then_says_so_and_loses_nothing", pressure::overload),
    ("call_when_its_time_is_over_then_cancelled_and_the_connection_goes_on", pressure::time_out),
    ("call_when_dropped_then_cancelled", pressure::dropped),
    ("client_when_vanished_then_its_calls_are_cancelled", pressure::vanished),
    ("server_when_closed_then_finishes_what_it_began", pressure::clean_end),
    ("connection_when_cut_then_only_what_is_safe_is_made_again", loss::cut),
    ("server_when_gone_then_reached_again_after_a_pause", loss::reconnect),
    ("bytes_when_changed_on_the_way_then_never_believed", loss::corruption),
    ("peer_when_it_falls_silent_then_the_connection_is_given_up", loss::silence),
];

/// A server with a service that is known, and clients of it.
struct Stage {
    service: Arc<Known>,
    server: Server,
    address: Address,
    transport: Arc<dyn Transport>,
}

fn identity(node: u64) -> Identity {
    Identity::new("suite".into(), node, 1)
}

/// Long enough for anything that does not hang.
const LONG: Duration = Duration::from_secs(30);

/// How long nothing may move in the middle of a message, in milliseconds.
static STALL: AtomicU64 = AtomicU64::new(400);

/// Has all checks of this process wait so much longer, for a way that shares its processor with much
/// else. At most two seconds, as one check tells silence from work by it.
pub fn allow_stalls_of(stall: Duration) {
    let milliseconds = stall.min(Duration::from_secs(2)).as_millis();
    STALL.store(u64::try_from(milliseconds).unwrap_or(400), Ordering::Relaxed);
}

fn quick_limits() -> Limits {
    let stall = Duration::from_millis(STALL.load(Ordering::Relaxed));
    Limits { stall, quick_threads: 4, ..Limits::default() }
}

impl Stage {
    fn set(way: &Way, limits: Limits) -> Stage {
        Stage::set_as(way, limits, identity(1))
    }

    fn set_as(way: &Way, limits: Limits, me: Identity) -> Stage {
        let service = Arc::new(Known::default());
        let mut server = Server::start(service.clone(), me, limits).expect("threads");
        let address = server.listen(&*way.transport, &way.address).expect("a free address");
        Stage { service, server, address, transport: way.transport.clone() }
    }

    fn client(&self, limits: Limits) -> Client {
        self.client_by(self.transport.clone(), limits)
    }

    fn client_by(&self, transport: Arc<dyn Transport>, limits: Limits) -> Client {
        let config = ClientConfig { limits, ..ClientConfig::new(identity(2)) };
        Client::new(transport, self.address.clone(), config)
    }

    /// A client whose connections can be made to fail.
    fn faulty_client(&self, limits: Limits) -> (Client, Arc<faulty::Switches>) {
        let faulty = Faulty::around(self.transport.clone());
        let switches = faulty.switches();
        (self.client_by(Arc::new(faulty), limits), switches)
    }
}

/// Waits until something is so.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !so() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
