//! A node over directories, with faulty devices under it, and what its tests compare with.

// Each test program uses a part of it.
#![allow(dead_code)]

pub mod device;
pub mod hold;
pub mod kept;
pub mod passing;

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use forebay_node::{
    CheckRequest, Context, Ino, NewFile, Node, NodeConfig, NodeError, TierConfig, WritebackPolicy,
};
use forebay_store::backing::BackingStore;
use forebay_store::decorators::{InterceptedBacking, InterceptedTier, Interceptor, Transparent};
use forebay_store::tier::DirTier;
use forebay_store::{DirBacking, StoreError, Tier};
use forebay_testing::{memory, new_dir, wait_until};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const CONTEXT: Context = Context::DAEMON;

/// Makes another tier of one.
pub type InFront = dyn Fn(Arc<dyn Tier>) -> Arc<dyn Tier> + Send + Sync;

/// Fail points are those of the process: whoever sets one is alone in it with its rigs.
static OTHERS: RwLock<()> = RwLock::new(());

thread_local! {
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// While a test has it, no other has a rig.
pub struct Alone(#[allow(unused)] RwLockWriteGuard<'static, ()>);

/// Waits until no other test has a rig.
pub fn alone() -> Alone {
    let others = OTHERS.write();
    IS_ALONE.set(true);
    Alone(others)
}

impl Drop for Alone {
    fn drop(&mut self) {
        fail::list().into_iter().for_each(|(point, _)| fail::remove(point));
        IS_ALONE.set(false);
    }
}

/// A node with its directories, which outlive it and go with the rig.
pub struct Rig {
    pub dir: PathBuf,
    pub config: NodeConfig,
    by: Arc<dyn Interceptor>,
    hold: Arc<hold::Hold>,
    /// Nothing stands between the node and the backing store, so that the kernel can be given its files.
    pub bare: bool,
    /// Is asked about the operations of tiers, if there is one.
    pub by_tier: Option<Arc<dyn Interceptor>>,
    /// Makes another of each tier, if there is one.
    pub in_front: Option<Box<InFront>>,
    pub node: Option<Arc<Node>>,
    /// No test that sets fail points works beside it. Goes after the node.
    _beside: Option<RwLockReadGuard<'static, ()>>,
}

impl Rig {
    pub fn new(
        tiers: &[u64],
        by: Arc<dyn Interceptor>,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Self {
        let mut rig = Self::unstarted(tiers, by, change);
        rig.start();
        rig
    }

    /// A rig in a directory of its own that is not started.
    pub fn unstarted(
        tiers: &[u64],
        by: Arc<dyn Interceptor>,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Self {
        Self::at(new_dir(memory(), "forebay-data"), tiers, by, change)
    }

    /// A rig in a directory, perhaps that of another, that is not started.
    pub fn at(
        dir: PathBuf,
        tiers: &[u64],
        by: Arc<dyn Interceptor>,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Self {
        std::fs::create_dir_all(dir.join("backing")).unwrap();
        let tiers = tiers.iter().enumerate().map(|(index, &size_bytes)| TierConfig {
            dir: dir.join(format!("tier{index}")),
            size_bytes,
        });
        let mut config = NodeConfig::new(dir.join("backing"), tiers.collect());
        config.writeback = WritebackPolicy::After(Duration::from_secs(3600));
        config.extent_bytes = 64 * KIB;
        config.fetch_on_open_bytes = 32 * KIB;
        config.backing_timeout = Duration::from_secs(5);
        change(&mut config);
        let _beside = (!IS_ALONE.get()).then(|| OTHERS.read_recursive());
        let hold = Arc::default();
        let (bare, by_tier, in_front, node) = (false, None, None, None);
        Rig { dir, config, by, hold, bare, by_tier, in_front, node, _beside }
    }

    pub fn small(tier: u64) -> Self {
        Self::new(&[tier], Arc::new(Transparent), |_| {})
    }

    pub fn start(&mut self) {
        let tier = &self.config.tiers[0].dir;
        std::fs::create_dir_all(tier).unwrap();
        let owner = DirTier::open(tier).unwrap().id().to_string();
        let inner = Arc::new(DirBacking::open(self.backing(), &owner).unwrap());
        let backing: Arc<dyn BackingStore> = match self.bare {
            true => inner,
            false => {
                let asked = Arc::new(InterceptedBacking::new(inner, self.by.clone()));
                Arc::new(InterceptedBacking::new(asked, self.hold.clone()))
            }
        };
        let in_front = |tier: Arc<dyn Tier>| -> Arc<dyn Tier> {
            let tier =
                self.in_front.as_ref().map_or_else(|| tier.clone(), |make| make(tier.clone()));
            match &self.by_tier {
                Some(by) => Arc::new(InterceptedTier::new(tier, by.clone())),
                None => tier,
            }
        };
        let until = Instant::now() + Duration::from_secs(60);
        self.node = Some(loop {
            match Node::start_between(self.config.clone(), backing.clone(), &in_front) {
                // A thread of the one before is at its last breath.
                Err(NodeError::Store(StoreError::Locked { .. })) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                started => break started.unwrap(),
            }
        });
    }

    pub fn node(&self) -> &Arc<Node> {
        self.node.as_ref().unwrap()
    }

    /// Until what it gives is dropped, the backing store has no answer for any thread but this one: no worker
    /// comes between what a test does here and what it does there, however slow the machine is.
    pub fn hold_workers(&self) -> hold::Held {
        self.hold.begin()
    }

    pub fn backing(&self) -> PathBuf {
        self.dir.join("backing")
    }

    /// The names that users see in the root of the backing store.
    pub fn names_below(&self) -> Vec<String> {
        let mut names = self.left_in_backing();
        names.retain(|name| !name.starts_with(".forebay/"));
        names
    }

    /// What is written to a file below from now on has another time.
    pub fn age(&self, name: &str) {
        let then = SystemTime::now() - Duration::from_secs(100);
        let file = std::fs::File::options().write(true).open(self.backing().join(name)).unwrap();
        file.set_modified(then).unwrap();
    }

    /// Everything that makes the node look at the backing store: at an inode, and at the name `file`.
    pub fn look(&self, ino: Ino) {
        let node = self.node();
        for _ in 0..2 {
            drop(node.getattr(&CONTEXT, ino));
            drop(node.lookup(&CONTEXT, Ino::ROOT, b"file"));
            drop(node.read_dir(&CONTEXT, Ino::ROOT, 0, 100, true, &mut |_| true));
        }
    }

    /// The names in the backing store, and whatever Forebay has left of its own.
    pub fn left_in_backing(&self) -> Vec<String> {
        let list = |dir: PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        };
        let own = list(self.backing().join(".forebay")).filter(|name| name != "store");
        let users = list(self.backing()).filter(|name| name != ".forebay");
        let mut names: Vec<_> = users.chain(own.map(|name| format!(".forebay/{name}"))).collect();
        names.sort();
        names
    }

    /// Lets go of the node without stopping it: nothing is settled or noted, as in a crash.
    pub fn crash(&mut self) {
        let node = self.node.take().unwrap();
        let gone = Arc::downgrade(&node);
        drop(node);
        wait_until("no thread keeps the node", || gone.strong_count() == 0);
        // The last who had it may still be at its end.
        let lock = std::fs::File::open(self.dir.join("tier0/lock")).unwrap();
        let free = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        wait_until("the tier is free", || rustix::fs::flock(&lock, free).is_ok());
    }

    pub fn create(&self, name: &str) -> u64 {
        let made = self.node().create_and_open(
            &CONTEXT,
            Ino::ROOT,
            name.as_bytes(),
            NewFile { mode: 0o644, umask: 0o022 },
            libc::O_RDWR,
        );
        match made {
            // The kernel looks it up then, and opens what it finds.
            Err(NodeError::Posix(Errno::STALE)) => self.open(name, libc::O_RDWR),
            made => made.unwrap().1.fh,
        }
    }

    #[track_caller]
    pub fn ino(&self, name: &str) -> Ino {
        let found = self.node().lookup(&CONTEXT, Ino::ROOT, name.as_bytes()).unwrap();
        let Some(found) = found else { panic!("{name} is gone") };
        found.ino
    }

    #[track_caller]
    pub fn open(&self, name: &str, flags: i32) -> u64 {
        self.node().open(&CONTEXT, self.ino(name), flags).unwrap().fh
    }

    pub fn write(&self, fh: u64, at: u64, data: &[u8]) {
        assert_eq!(self.node().write(&CONTEXT, fh, at, data).unwrap(), data.len());
    }

    pub fn put(&self, name: &str, data: &[u8]) {
        let fh = self.create(name);
        for (index, piece) in data.chunks(100_000).enumerate() {
            self.write(fh, index as u64 * 100_000, piece);
        }
        self.node().release(fh);
    }

    #[track_caller]
    pub fn get(&self, name: &str) -> Vec<u8> {
        let fh = self.open(name, libc::O_RDONLY);
        let data = self.read_all(fh);
        self.node().release(fh);
        data
    }

    pub fn read_all(&self, fh: u64) -> Vec<u8> {
        let mut data = Vec::new();
        let mut buffer = vec![0; 90_000];
        loop {
            let read = self.node().read(&CONTEXT, fh, data.len() as u64, &mut buffer).unwrap();
            if read == 0 {
                return data;
            }
            data.extend_from_slice(&buffer[..read]);
        }
    }

    pub fn size(&self, name: &str) -> u64 {
        self.node().getattr(&CONTEXT, self.ino(name)).unwrap().attr.size
    }

    pub fn drain(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        let left = self.node().writeback().drain(until, &mut |_| true).unwrap();
        assert_eq!(
            (left.entries, left.bytes),
            (0, 0),
            "{:?}",
            self.node().writeback().last_backlog_error()
        );
    }

    pub fn used(&self) -> u64 {
        self.node().tier_reports().iter().map(|tier| tier.used).sum()
    }

    /// Runs `work` and looks all the while whether any tier holds more than its size, both as the
    /// node counts it and as its files occupy it.
    pub fn watch_sizes(&self, work: impl FnOnce()) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut looks = 0;
                while looks == 0 || !over.load(Ordering::Acquire) {
                    looks += 1;
                    for (index, tier) in self.node().tier_reports().iter().enumerate() {
                        assert!(tier.used <= tier.size, "{tier:?}");
                        let occupied = self.occupied(index);
                        assert!(occupied <= tier.size, "{occupied} bytes in {tier:?}");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let end = SetOnDrop(&over);
            work();
            drop(end);
            watch.join().unwrap();
        });
    }

    /// Bytes that the objects of a tier and their maps occupy.
    pub fn occupied(&self, tier: usize) -> u64 {
        let fans = std::fs::read_dir(self.config.tiers[tier].dir.join("objects"));
        let files = fans.into_iter().flatten().flatten().flat_map(|fan| {
            std::fs::read_dir(fan.path()).into_iter().flatten().flatten().collect::<Vec<_>>()
        });
        // What goes while it is looked at occupies nothing.
        files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512).sum()
    }

    pub fn plain(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.backing().join(name)).unwrap()
    }

    pub fn check(&self, rebuild: bool) -> forebay_node::Checked {
        let request = CheckRequest {
            tiers: self.config.tiers.iter().map(|tier| tier.dir.clone()).collect(),
            backing: Some(self.backing()),
            rebuild,
            ..CheckRequest::default()
        };
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match forebay_node::check(&request, &mut |_| true) {
                // A thread of the node before is at its last breath.
                Err(NodeError::Store(StoreError::Locked { .. })) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                checked => return checked.unwrap(),
            }
        }
    }
}

/// Ends a watch, also when the work that it watches panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop(Duration::from_secs(5));
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// Bytes that look random, the same for the same seed.
pub fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Compares without printing megabytes.
pub fn same(found: &[u8], wanted: &[u8], what: &str) {
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert!(
        found == wanted,
        "{what}: {} bytes, not {}, first difference at {first:?}",
        found.len(),
        wanted.len()
    );
}
