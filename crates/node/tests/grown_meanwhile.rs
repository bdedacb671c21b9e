//! A file that grows while a part of it is copied to where the rest is: its spill file, or the file below that
//! is written in place as it has two names. The write-back is repeated then, and nothing of the first turn is
//! taken for done that the second one takes away.
#![cfg(feature = "failpoints")]

mod rig;

use std::sync::Arc;
use std::time::Duration;

use forebay_node::SetAttr;
use forebay_store::decorators::Transparent;
use parking_lot::Mutex;
use rig::{CONTEXT, MIB, Rig, alone, noise, same};

/// The write-back stands here in each piece that it copies.
const IN_THE_MIDDLE: &str = "store.copy.before_chunk";
const LEN: usize = 600_000;
const GROWS_BY: u64 = 150_000;
/// Which noise it grows by.
const GREW: u64 = 6;
/// By then a writer has come to where it waits for the write-back, if it has to.
const COMES_BY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    InSpillFile,
    BelowTwoNames,
}

struct Scene {
    rig: Rig,
    fh: u64,
    content: Vec<u8>,
}

impl Scene {
    /// A file of which a part has changed on the tier, and the rest is elsewhere.
    fn new(rest: Rest) -> Self {
        let rig = Rig::new(&[MIB], Arc::new(Transparent), |config| {
            config.backing_timeout = Duration::from_millis(60);
        });
        let content = noise(1, LEN as u64);
        std::fs::write(rig.backing().join("file"), &content).unwrap();
        if rest == Rest::BelowTwoNames {
            std::fs::hard_link(rig.backing().join("file"), rig.backing().join("link")).unwrap();
            rig.ino("link");
        }
        let fh = rig.open("file", libc::O_RDWR);
        let mut scene = Self { rig, fh, content };
        scene.write(0, &noise(2, 100_000));
        // Its end is on the tier, too.
        scene.write(LEN - 10_000, &noise(5, 10_000));
        if rest == Rest::InSpillFile {
            let filler = scene.rig.create("filler");
            scene.rig.write(filler, 0, &noise(3, 700_000));
            scene.write(200_000, &noise(4, 300_000));
            assert!(!rig::kept::files_below(&rig::kept::spills(&scene.rig)).is_empty());
            let emptied = SetAttr { size: Some(0), ..SetAttr::default() };
            let ino = scene.rig.ino("filler");
            scene.rig.node().setattr(&CONTEXT, ino, &emptied).unwrap();
            scene.rig.node().release(filler);
        }
        scene
    }

    fn expect(&mut self, at: usize, data: &[u8]) {
        let len = self.content.len().max(at + data.len());
        self.content.resize(len, 0);
        self.content[at..][..data.len()].copy_from_slice(data);
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        self.expect(at, data);
        self.rig.write(self.fh, at as u64, data);
    }

    /// A turn of the write-back, in which somebody opens the file after so many pieces, and makes it longer.
    /// Whether there are as many pieces.
    fn grow_while_written_back(&mut self, pieces: usize) -> bool {
        self.rig.node().release(self.fh);
        let (ino, at) = (self.rig.ino("file"), LEN);
        let node = Arc::downgrade(self.rig.node());
        let data = noise(GREW, GROWS_BY);
        let (writer, left) = (Arc::new(Mutex::new(None)), Mutex::new(pieces));
        let begun = writer.clone();
        fail::cfg_callback(IN_THE_MIDDLE, move || {
            let mut left = left.lock();
            if *left > 0 {
                *left -= 1;
                return;
            }
            let (node, data) = (node.upgrade().unwrap(), data.clone());
            begun.lock().get_or_insert_with(|| {
                let writer = std::thread::spawn(move || {
                    let fh = node.open(&CONTEXT, ino, libc::O_RDWR).unwrap().fh;
                    let written = node.write(&CONTEXT, fh, at as u64, &data).unwrap();
                    node.release(fh);
                    written as u64
                });
                // It may have to wait for this piece; then it comes before the next one.
                std::thread::sleep(COMES_BY);
                writer
            });
        })
        .unwrap();
        // It may be all written, or be left for later, as it was changed meanwhile.
        let turn = self.rig.node().writeback().reconcile(ino);
        fail::remove(IN_THE_MIDDLE);
        let Some(writer) = writer.lock().take() else { return false };
        assert_eq!(writer.join().unwrap(), GROWS_BY, "{turn:?}");
        true
    }

    fn ends_well(&mut self, what: &str) {
        same(&self.rig.get("file"), &self.content, &format!("{what}: before the drain"));
        self.rig.drain();
        same(&self.rig.get("file"), &self.content, what);
        same(&self.rig.plain("file"), &self.content, &format!("{what}: below"));
        assert_eq!(self.rig.node().writeback().conflicts().0, 0, "{what}");
    }
}

/// The file grows after each number of pieces that the write-back copies.
fn grows(rest: Rest) {
    let _alone = alone();
    for pieces in 0.. {
        let mut scene = Scene::new(rest);
        if !scene.grow_while_written_back(pieces) {
            assert!(pieces > 1, "nothing was copied");
            return;
        }
        scene.expect(LEN, &noise(GREW, GROWS_BY));
        scene.ends_well(&format!("{rest:?}, after {pieces} pieces"));
    }
}

#[test]
fn file_past_the_tier_when_it_grows_while_it_is_written_back_then_all_of_it_is_written() {
    grows(Rest::InSpillFile);
}

#[test]
fn file_with_two_names_when_it_grows_while_it_is_written_back_then_all_of_it_is_written() {
    grows(Rest::BelowTwoNames);
}
