//! Mounts that talk to each other in all ways that `--cluster-transport` knows.

mod ring;
mod site;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::Duration;

use ring::{Ring, SECRET, can_cluster};
use site::wait_for;

const SIZE: usize = 3_000_000;

fn contents() -> Vec<u8> {
    (0..SIZE as u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// The file of the cluster's secret, made now.
fn secret(ring: &Ring) -> String {
    let path = ring.site.path("secret");
    fs::write(&path, SECRET).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    ring.site.text("secret")
}

/// Each of two nodes reads what the other one has brought from the backing store.
fn each_reads_from_the_other(ring: &Ring) {
    for node in 0..2 {
        fs::write(ring.backing(&format!("f{node}")), contents()).unwrap();
    }
    let met = |node| ring.log(node).contains("another node can be talked to");
    assert!(wait_for(Duration::from_secs(60), || met(0) && met(1)), "they do not meet");
    for node in 0..2 {
        for by in [node, 1 - node] {
            let read = fs::read(ring.at(by, &format!("f{node}"))).unwrap();
            assert!(read == contents(), "node {by}\n{}", ring.log(by));
        }
        assert_eq!(ring.bytes(1 - node, "peers"), SIZE as u64, "{}", ring.log(node));
    }
}

#[test]
fn nodes_with_quic_and_tcp_when_they_meet_then_read_from_each_other() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    let secret = secret(&ring);
    for (node, transport) in ["quic", "tcp"].iter().enumerate() {
        let args = ["--cluster-listen", "127.0.0.1:0", "--cluster-transport", transport];
        ring.mount(node, &[&args[..], &["--cluster-secret", &secret]].concat());
        assert!(ring.log(node).contains(&format!("reach=\"{transport}://127.0.0.1:")));
    }
    each_reads_from_the_other(&ring);
    ring.umount_all();
}

#[test]
fn nodes_without_encryption_when_they_meet_by_datagrams_then_read_from_each_other() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    let open = |node, transport| {
        let args = ["--cluster-listen", "127.0.0.1:0", "--cluster-transport", transport];
        ring.mount_with(node, &[&args[..], &["--cluster-tls", "off"]].concat())
    };
    assert_eq!(open(0, "udp").0, 0);
    // Where there is no libudt, or no such feature, the message says so.
    let (code, text) = open(1, "udt");
    if code != 0 {
        assert!(text.contains("libudt") || text.contains("--features udt"), "{text}");
        eprintln!("without UDT: {text}");
        assert_eq!(open(1, "udp").0, 0);
    }
    each_reads_from_the_other(&ring);
    ring.umount_all();
}

#[test]
fn mpi_when_not_started_by_mpirun_then_the_mount_says_so() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(1);
    let args = ["--cluster-transport", "mpi", "--cluster-listen", "self:0"];
    let (code, text) =
        ring.mount_with(0, &[&args[..], &["--foreground", "--cluster-tls", "off"]].concat());
    assert!(code != 0, "{text}");
    assert!(text.contains("mpirun") || text.contains("--features mpi"), "{text}");
}

/// A job of `mpirun`, whose standard error is in a file; killed with the value.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Job {
    /// `mpirun` with two processes, each of which runs a shell command.
    fn start(ring: &Ring, command: &str) -> Job {
        let log = fs::File::create(ring.site.path("job.log")).unwrap();
        let child = ring
            .site
            .command("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"])
            .args(["--mca", "mpi_yield_when_idle", "1", "-np", "2", "sh", "-c", command])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Job(child)
    }
}

#[test]
fn processes_of_an_mpi_job_when_each_mounts_then_they_read_from_each_other_and_end_well() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::new(2);
    let said = || fs::read_to_string(ring.site.path("job.log")).unwrap_or_default();
    // Where MPI itself does not run, nothing can be said of what is built on it.
    let mut probe = Job::start(&ring, "true");
    if !probe.0.wait().unwrap().success() {
        return eprintln!("skipped: no job of two processes: {}", said());
    }
    for node in 0..2 {
        fs::write(ring.backing(&format!("f{node}")), contents()).unwrap();
    }
    let root = ring.site.text("");
    let mut job = Job::start(
        &ring,
        &format!(
            "r=$OMPI_COMM_WORLD_RANK; exec {} mount {root}backing {root}mnt$r --foreground --no-supervisor \
             --tier {root}tier$r=64M --cluster {} --cluster-transport mpi --cluster-listen self:0 \
             --cluster-tls off",
            env!("CARGO_BIN_EXE_forebay"),
            ring.address()
        ),
    );
    let without = || said().contains("--features mpi");
    let met = || without() || said().matches("another node can be talked to").count() == 2;
    assert!(wait_for(Duration::from_secs(60), met), "{}", said());
    if without() {
        return eprintln!("skipped: {}", said());
    }
    for node in 0..2 {
        for by in [node, 1 - node] {
            assert!(fs::read(ring.at(by, &format!("f{node}"))).unwrap() == contents());
        }
        assert_eq!(ring.bytes(1 - node, "peers"), SIZE as u64, "{}", said());
    }
    // Who has left waits for the others.
    std::thread::scope(|scope| {
        for node in 0..2 {
            let ring = &ring;
            scope.spawn(move || ring.umount(node));
        }
    });
    let end = job.0.wait().unwrap();
    assert!(end.success(), "{end}: {}", said());
}
