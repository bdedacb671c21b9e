//! UDT under the suite of all transports, where its library is.
#![cfg(feature = "udt")]

use forebay_peer::conformance::{CHECKS, Way, allow_stalls_of};
use forebay_peer::transport::udt::Udt;
use forebay_peer::{ClusterSecret, Error, Security};
use std::sync::Arc;
use std::time::Duration;

/// Checks that run side by side.
const LANES: usize = 3;

fn udt(security: Security) -> Option<Arc<Udt>> {
    // The library paces itself by a busy loop, which a busy machine holds up.
    allow_stalls_of(Duration::from_secs(2));
    match Udt::new(security) {
        Ok(udt) => Some(Arc::new(udt)),
        Err(Error::Settings(missing)) => {
            assert!(missing.contains("libudt"), "{missing}");
            eprintln!("skipped: {missing}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn way(udt: &Arc<Udt>) -> Way {
    Way { transport: udt.clone(), address: "udt://127.0.0.1:0".parse().unwrap() }
}

#[test]
fn suite_when_run_over_udt_then_passes() {
    let Some(udt) = udt(Security::Off) else { return };
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let udt = &udt;
            scope.spawn(move || {
                for (name, check) in CHECKS.iter().skip(lane).step_by(LANES) {
                    println!("{name}");
                    check(&way(udt));
                }
            });
        }
    });
}

/// TLS over UDT is that over TCP, so that what it adds is looked at here, not all of it again.
#[test]
fn udt_when_with_tls_then_requests_are_answered_and_bodies_arrive_whole() {
    let secret = ClusterSecret::generate().unwrap();
    let Some(udt) = udt(Security::Tls(secret.identity().unwrap())) else { return };
    let some = ["every_request_when_", "large_and_empty_bodies_when_", "server_when_closed_then_"];
    for (_, check) in CHECKS.iter().filter(|(name, _)| some.iter().any(|one| name.starts_with(one)))
    {
        check(&way(&udt));
    }
}
