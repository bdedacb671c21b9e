//! MPI between two processes of a job: the whole suite, every byte of it through the other one.
#![cfg(feature = "mpi")]

use forebay_peer::conformance::{CHECKS, Way, allow_stalls_of};
use forebay_peer::transport::mpi::Mpi;
use forebay_peer::transport::{Listener, TimeLimits, Transport, Wire};
use forebay_peer::{Address, ClusterSecret, Error, Result, Security};
use std::io::{ErrorKind, IoSlice};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a process of the job is to do.
const PART: &str = "FOREBAY_TEST_MPI";
const LIMITS: TimeLimits = TimeLimits {
    connect: Duration::from_secs(10),
    handshake: Duration::from_secs(10),
    stall: Duration::from_secs(10),
};

fn at(address: &str) -> Address {
    address.parse().unwrap()
}

/// Runs `inside_a_job_then_as_told` in two processes; what they said, and whether all went well.
fn job(part: &str) -> Option<(bool, String)> {
    let job = Command::new("timeout")
        .args(["--kill-after=5", "150", "mpirun", "--allow-run-as-root", "--oversubscribe"])
        .args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-np", "2"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "inside_a_job_then_as_told", "--nocapture"])
        .env(PART, part)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&job.stdout) + String::from_utf8_lossy(&job.stderr);
    Some((job.status.success(), said.into_owned()))
}

#[test]
fn suite_when_run_between_two_processes_of_a_job_then_passes() {
    // Where MPI itself does not run, nothing can be said of what is built on it.
    match job("probe") {
        Some((true, _)) => {}
        Some((false, said)) => return eprintln!("skipped: no job of two processes: {said}"),
        None => return eprintln!("skipped: there is no mpirun"),
    }
    let (well, said) = job("suite").expect("it ran a moment ago");
    assert!(well, "{said}");
    assert!(said.contains("all checks are done"), "{said}");
}

#[test]
fn mpi_when_not_started_by_mpirun_or_with_encryption_then_refused() {
    if std::env::var_os(PART).is_some() {
        return;
    }
    assert!(
        matches!(Mpi::new(&Security::Off), Err(Error::Settings(why)) if why.contains("mpirun"))
    );
    let tls = Security::Tls(ClusterSecret::generate().unwrap().identity().unwrap());
    assert!(matches!(Mpi::new(&tls), Err(Error::Settings(why)) if why.contains("encryption")));
}

#[test]
fn inside_a_job_then_as_told() {
    let Some(part) = std::env::var_os(PART) else { return };
    let mpi = Mpi::new(&Security::Off).unwrap();
    let (rank, size) = mpi.rank_and_size();
    assert_eq!(size, 2);
    match rank {
        _ if part == "probe" => {}
        0 => suite(&mpi),
        _ => relay(&mpi),
    }
}

/// Checks that run side by side, each with a relay and a port of its own.
const LANES: usize = 2;

/// Connects through the other process, which connects back.
struct Relayed(Mpi, usize);

impl Transport for Relayed {
    fn connect(&self, _address: &Address, timeout: TimeLimits) -> Result<Wire> {
        self.0.connect(&at(&format!("mpi://1:{}", 10 + self.1)), timeout)
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        self.0.listen(address)
    }
}

fn suite(mpi: &Mpi) {
    assert!(matches!(mpi.connect(&at("mpi://2:1"), LIMITS), Err(Error::Connect { .. })));
    assert!(matches!(mpi.listen(&at("mpi://1:1")), Err(Error::Listen { .. })));
    // It may not listen yet.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = mpi.connect(&at("mpi://1:2"), LIMITS) {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Each byte goes through four processes' turns, and MPI spins for each.
    allow_stalls_of(Duration::from_secs(2));
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let relayed = Arc::new(Relayed(mpi.clone(), lane));
            scope.spawn(move || {
                for (name, check) in CHECKS.iter().skip(lane).step_by(LANES) {
                    println!("{name}");
                    let address = at(&format!("mpi://self:{}", 20 + lane));
                    check(&Way { transport: relayed.clone(), address });
                }
            });
        }
    });
    println!("all checks are done");
    mpi.connect(&at("mpi://1:3"), LIMITS).unwrap();
}

/// Listens from 10 on for what is to be relayed, at 2 for who asks whether it does, and at 3 for
/// the end.
fn relay(mpi: &Mpi) {
    let doors: Vec<Arc<dyn Listener>> = (0..LANES)
        .map(|lane| mpi.listen(&at(&format!("mpi://1:{}", 10 + lane))).unwrap().into())
        .collect();
    let ends = mpi.listen(&at("mpi://self:3")).unwrap();
    let ready = mpi.listen(&at("mpi://self:2")).unwrap();
    std::thread::scope(|scope| {
        for (lane, door) in doors.iter().enumerate() {
            scope.spawn(move || relay_to(mpi, &format!("mpi://0:{}", 20 + lane), &**door));
        }
        ready.accept().unwrap().admit(LIMITS).unwrap();
        ends.accept().unwrap().admit(LIMITS).unwrap();
        doors.iter().for_each(|door| door.close());
    });
}

fn relay_to(mpi: &Mpi, to: &str, door: &dyn Listener) {
    std::thread::scope(|scope| {
        while let Ok(arrival) = door.accept() {
            scope.spawn(|| {
                let Ok(from) = arrival.admit(LIMITS) else { return };
                match mpi.connect(&at(to), LIMITS) {
                    Ok(to) => both_ways(from, to),
                    Err(_) => from.closer.close(),
                }
            });
        }
    });
}

fn both_ways(one: Wire, other: Wire) {
    let over = AtomicBool::new(false);
    let closers = [one.closer, other.closer];
    let pump = |mut source: Box<dyn forebay_peer::transport::Source>,
                mut sink: Box<dyn forebay_peer::transport::Sink>| {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let moved = match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => sink.send(&mut [IoSlice::new(&buffer[..len])]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
                Err(error) => Err(error),
            };
            if moved.and_then(|()| sink.end_frame()).is_err() {
                break;
            }
        }
        if !over.swap(true, Ordering::AcqRel) {
            closers.iter().for_each(|closer| closer.close());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pump(one.source, other.sink));
        pump(other.source, one.sink);
    });
}
