//! Tiers that lose with the power what nobody had synced: what was acknowledged is there afterwards, also
//! in the moment in which it has just been moved to another tier.

mod rig;

use std::sync::Arc;

use forebay_node::NewFile;
use forebay_store::Tier;
use forebay_store::decorators::{Transparent, VolatileTier};
use parking_lot::Mutex;
use rig::{CONTEXT, KIB, MIB, Rig, noise, same};

/// A node whose tiers forget.
struct Machine {
    rig: Rig,
    tiers: Arc<Mutex<Vec<Arc<VolatileTier>>>>,
}

impl Machine {
    fn new(tiers: &[u64]) -> Self {
        let mut rig = Rig::unstarted(tiers, Arc::new(Transparent), |_| {});
        let made: Arc<Mutex<Vec<Arc<VolatileTier>>>> = Arc::default();
        let all = made.clone();
        rig.in_front = Some(Box::new(move |tier: Arc<dyn Tier>| {
            let tier = Arc::new(VolatileTier::new(tier));
            all.lock().push(tier.clone());
            tier
        }));
        rig.start();
        Machine { rig, tiers: made }
    }

    /// The power goes, and comes back.
    fn restart(&mut self) {
        self.rig.crash();
        for tier in self.tiers.lock().drain(..) {
            tier.crash(&mut |_| false).unwrap();
        }
        std::fs::write(self.rig.dir.join("tier0/state/running"), "another boot").unwrap();
        self.rig.start();
    }

    fn has(&self, name: &str, bytes: &[u8], what: &str) {
        same(&self.rig.get(name), bytes, what);
        self.rig.drain();
        same(&self.rig.plain(name), bytes, what);
        assert_eq!(self.rig.node().writeback().conflicts().0, 0, "{what}");
    }

    /// Has a file moved to the second tier: others take its place.
    fn demote(&self, name: &str) {
        let object = format!("{:016x}", self.rig.ino(name).0);
        let is_on = |tier: usize| {
            let fans = std::fs::read_dir(self.rig.config.tiers[tier].dir.join("objects"));
            let fans = fans.into_iter().flatten().flatten();
            fans.into_iter().any(|fan| fan.path().join(&object).exists())
        };
        assert!(is_on(0) && !is_on(1), "{name} is not on the first tier");
        let mut fillers = (0..50).map(|number| format!("filler{number}"));
        while is_on(0) {
            let filler = fillers.next().expect("it was moved long ago");
            self.rig.put(&filler, &noise(77, 300 * KIB));
        }
        assert!(is_on(1), "{name} is on no tier");
    }
}

#[test]
fn object_that_was_synced_when_the_power_goes_right_after_its_move_then_all_of_it_is_there() {
    let mut machine = Machine::new(&[MIB, 16 * MIB]);
    let bytes = noise(1, 600 * KIB);
    let fh = machine.rig.create("file");
    machine.rig.write(fh, 0, &bytes);
    machine.rig.node().fsync(&CONTEXT, fh, false).unwrap();
    machine.rig.node().release(fh);
    machine.demote("file");
    machine.restart();
    machine.has("file", &bytes, "after its move");
}

#[test]
fn version_that_was_changed_and_synced_when_the_power_goes_right_after_its_move_then_the_change_is_there()
 {
    let mut machine = Machine::new(&[MIB, 16 * MIB]);
    let mut bytes = noise(2, 600 * KIB);
    std::fs::write(machine.rig.backing().join("file"), &bytes).unwrap();
    machine.rig.node().residency().warm_file(machine.rig.ino("file"), &mut |_| true).unwrap();
    let fh = machine.rig.open("file", libc::O_RDWR);
    machine.rig.write(fh, 4000, b"what was acknowledged");
    bytes[4000..4021].copy_from_slice(b"what was acknowledged");
    machine.rig.node().fsync(&CONTEXT, fh, true).unwrap();
    machine.rig.node().release(fh);
    machine.demote("file");
    machine.restart();
    machine.has("file", &bytes, "after its move");
}

/// How large the tier is, for a file of 300 KiB that the backing store has (or not).
#[derive(Debug)]
enum File {
    New,
    Whole,
    Part,
    PastTheTier,
}

#[test]
fn writes_that_sync_by_themselves_when_the_power_goes_then_are_there_on_every_kind_of_file() {
    for flag in [libc::O_SYNC, libc::O_DSYNC] {
        for kind in [File::New, File::Whole, File::Part, File::PastTheTier] {
            let what = format!("{kind:?}, flag {flag:#o}");
            let tier = if matches!(kind, File::PastTheTier) { 128 * KIB } else { 16 * MIB };
            let mut machine = Machine::new(&[tier]);
            let mut bytes = match kind {
                File::New => Vec::new(),
                _ => noise(3, 300 * KIB),
            };
            if !bytes.is_empty() {
                std::fs::write(machine.rig.backing().join("file"), &bytes).unwrap();
            }
            let fh = match kind {
                File::New => {
                    drop(machine.rig.node().lookup(&CONTEXT, forebay_node::Ino::ROOT, b"file"));
                    let made = machine.rig.node().create_and_open(
                        &CONTEXT,
                        forebay_node::Ino::ROOT,
                        b"file",
                        NewFile { mode: 0o644, umask: 0o022 },
                        libc::O_RDWR | flag,
                    );
                    made.unwrap().1.fh
                }
                File::Whole => {
                    let ino = machine.rig.ino("file");
                    machine.rig.node().residency().warm_file(ino, &mut |_| true).unwrap();
                    machine.rig.open("file", libc::O_RDWR | flag)
                }
                File::Part | File::PastTheTier => machine.rig.open("file", libc::O_RDWR | flag),
            };
            for (at, seed) in [(0, 4), (130_000, 5), (250_000, 6)] {
                let piece = noise(seed, 5000);
                let data_only = flag == libc::O_DSYNC;
                let node = machine.rig.node();
                let written = node.write_durably(&CONTEXT, fh, at, &piece, data_only).unwrap();
                assert_eq!(written, piece.len(), "{what}");
                let end = at as usize + piece.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[at as usize..end].copy_from_slice(&piece);
            }
            // It is open when the power goes.
            machine.restart();
            machine.has("file", &bytes, &what);
        }
    }
}
