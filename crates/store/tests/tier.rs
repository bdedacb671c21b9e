//! Tiers: labels, leases and mappings, volatile and hanging devices.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_store::decorators::{
    Flaky, InterceptedTier, Operation, Rule, Stuck, Throttled, Verdict, VolatileTier,
};
use forebay_store::tier::DirTier;
use forebay_store::{ErrorClass, Header, Object, StoreError, Tier};

fn header(ino: u64) -> Header {
    Header { ino, ..Header::default() }
}

fn read(object: &dyn Object) -> Vec<u8> {
    let mut bytes = vec![0; object.len().unwrap() as usize];
    object.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn open_of_a_foreign_newer_or_damaged_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    assert!(matches!(DirTier::open(dir.path()), Err(StoreError::Foreign { .. })));
    std::fs::remove_file(dir.path().join("thesis.tex")).unwrap();
    let id = DirTier::open(dir.path()).unwrap().id();
    assert_eq!(DirTier::open(dir.path()).unwrap().id(), id);
    let label = dir.path().join("forebay-tier");
    let good = std::fs::read(&label).unwrap();
    let mut bad = good.clone();
    bad[8] = 2;
    std::fs::write(&label, &bad).unwrap();
    let newer = DirTier::open(dir.path()).map(|tier| tier.id());
    assert!(matches!(newer, Err(StoreError::Version { found: 2, known: 1, .. })), "{newer:?}");
    for len in 0..good.len() {
        std::fs::write(&label, &good[..len]).unwrap();
        assert!(matches!(DirTier::open(dir.path()), Err(StoreError::Damaged { .. })), "{len}");
    }
}

#[test]
fn lease_while_a_mapping_outlives_its_descriptor_is_refused() {
    for base in ["/tmp", "/dev/shm"] {
        let dir = tempfile::tempdir_in(base).unwrap();
        let tier = DirTier::open(dir.path()).unwrap();
        let object = tier.create(1, &header(1)).unwrap();
        object.write_at(&[1; 4096], 0).unwrap();
        let other = tier.open(1).unwrap();
        let fd = other.fd().unwrap().as_raw_fd();
        // SAFETY: a new shared mapping of one page at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        drop(other);
        assert!(object.exclusive().unwrap().is_none(), "mapped on {base}");
        // SAFETY: the mapping made above, which nothing refers to.
        unsafe { libc::munmap(map, 4096) };
        assert!(object.exclusive().unwrap().is_some(), "free on {base}");
    }
}

#[test]
fn lease_when_someone_opens_the_object_is_seen_as_broken_and_the_process_lives() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tier = DirTier::open(dir.path()).unwrap();
    let object = tier.create(1, &header(1)).unwrap();
    let lease = object.exclusive().unwrap().unwrap();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| tier.open(1).map(|_| ()));
        while !lease.broken() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(lease);
        opener.join().unwrap().unwrap();
    });
}

#[test]
fn crash_of_a_volatile_tier_keeps_what_was_synced_and_nothing_else() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tier = VolatileTier::new(Arc::new(DirTier::open(dir.path()).unwrap()));
    let object = tier.create(1, &header(1)).unwrap();
    object.write_at(b"synced bytes", 0).unwrap();
    object.set_header(&Header { size: 12, ..header(1) }).unwrap();
    object.sync(false).unwrap();
    object.write_at(b"LOST", 0).unwrap();
    object.write_at(b"growth", 20).unwrap();
    object.set_len(3).unwrap();
    object.set_len(9).unwrap();
    object.punch(0, 2).unwrap();
    object.set_header(&Header { size: 99, ..header(1) }).unwrap();
    drop(object);
    tier.crash(&mut |_| false).unwrap();
    let object = tier.open(1).unwrap();
    assert_eq!(read(&*object), b"synced bytes");
    assert_eq!(object.header().unwrap().size, 12);
    object.write_at(b"data", 0).unwrap();
    object.set_header(&Header { size: 77, ..header(1) }).unwrap();
    object.sync(true).unwrap();
    tier.crash(&mut |_| false).unwrap();
    assert_eq!(read(&*object), b"dataed bytes");
    assert_eq!(object.header().unwrap().size, 12, "a sync of data keeps no header");
}

#[test]
fn torn_write_leaves_its_first_bytes_and_fails() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let flaky = Arc::new(Flaky::new(7));
    let tier = InterceptedTier::new(Arc::new(DirTier::open(dir.path()).unwrap()), flaky.clone());
    let object = tier.create(1, &header(1)).unwrap();
    let torn = Verdict::Torn { bytes: 2, errno: libc::EIO };
    flaky.set_rules([Rule { fault: torn, ..Rule::nth(Operation::Write, 1, 0) }]);
    assert_eq!(object.write_at(b"whole", 0).unwrap_err().class(), ErrorClass::Io);
    assert_eq!(read(&*object), b"wh");
    object.write_at(b"whole", 0).unwrap();
    assert_eq!(read(&*object), b"whole");
}

#[test]
fn faults_by_probability_follow_from_the_seed() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let inner: Arc<dyn Tier> = Arc::new(DirTier::open(dir.path()).unwrap());
    inner.create(1, &header(1)).unwrap();
    let pattern = |seed| {
        let flaky = Arc::new(Flaky::new(seed));
        flaky.set_rules([Rule { per_mille: 300, ..Rule::always(Operation::Open, libc::EIO) }]);
        let tier = InterceptedTier::new(inner.clone(), flaky);
        (0..200).map(|_| tier.open(1).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(pattern(1), pattern(1));
    assert_ne!(pattern(1), pattern(2));
    let failed = pattern(3).iter().filter(|ok| !**ok).count();
    assert!((30..90).contains(&failed), "{failed} of 200");
}

#[test]
fn stuck_device_hangs_until_released_and_throttled_one_takes_its_time() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let inner: Arc<dyn Tier> = Arc::new(DirTier::open(dir.path()).unwrap());
    inner.create(1, &header(1)).unwrap();
    let stuck = Arc::new(Stuck::default());
    let tier = InterceptedTier::new(inner.clone(), stuck.clone());
    stuck.hang(&[Operation::Open]);
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| tier.open(1).is_ok());
        while stuck.waiting() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        tier.usage().expect("other operations go on");
        assert!(!opener.is_finished());
        stuck.release();
        assert!(opener.join().unwrap());
    });
    let slow = Arc::new(Throttled::new(1 << 20, 0, Duration::from_millis(1)));
    let object = InterceptedTier::new(inner, slow).open(1).unwrap();
    let start = std::time::Instant::now();
    object.write_at(&[0; 256 << 10], 0).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}
