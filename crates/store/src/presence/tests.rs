use super::*;
use crate::local::LocalFile;
use proptest::prelude::*;

const EXTENT: u64 = 4096;
const MAX: u64 = 6 * EXTENT;

fn map_file(dir: &tempfile::TempDir) -> MapFile {
    let path = dir.path().join("map");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .unwrap();
    MapFile::new(file.into(), path)
}

/// Rewrites the boot id in a sidecar, as if the machine had restarted since.
fn restart_machine(dir: &tempfile::TempDir) {
    let path = dir.path().join("map");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    let sum = xxh3_64(&bytes[..56]);
    bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
}

/// As a start reads it after a crash of the machine.
fn load_after_a_crash(dir: &tempfile::TempDir, was_writing: bool) -> Presence {
    restart_machine(dir);
    let mut map = Presence::load(map_file(dir), 7, Believed::Synced).unwrap();
    assert!(!map.is_of_this_boot().unwrap());
    map.believe_what_was_synced(was_writing).unwrap();
    drop(map);
    // That lasts.
    let map = Presence::load(map_file(dir), 7, Believed::Written).unwrap();
    assert!(map.is_of_this_boot().unwrap());
    map
}

fn object(dir: &tempfile::TempDir) -> LocalFile {
    let path = dir.path().join("object");
    LocalFile::new(std::fs::File::create(&path).unwrap().into(), path)
}

/// What the map is for: truth can always be put together from object and base.
struct Model {
    map: Presence,
    truth: Vec<u8>,
    object: Vec<u8>,
    base: Vec<u8>,
    flush: Option<(Flush, Vec<u8>)>,
    next: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64),
    Truncate(u64),
    Fetch(u64, u64),
    Clear(u64, u64),
    Take(u64),
    Finish,
    Abort,
    Reload,
}

impl Model {
    fn new(file: Option<MapFile>, size: u64) -> Self {
        let map = match file {
            Some(file) => Presence::create(file, 7, EXTENT, size).unwrap(),
            None => Presence::in_memory(EXTENT, size).unwrap(),
        };
        let base: Vec<u8> = (0..size).map(|i| (i % 251) as u8 + 1).collect();
        let object = vec![0; size as usize];
        Self { map, truth: base.clone(), object, base, flush: None, next: 0 }
    }

    fn fetch(&mut self, runs: &[Range<u64>]) {
        for run in runs {
            let span = run.start as usize..run.end as usize;
            assert!(run.end <= self.map.base_limit(), "a fetch beyond the base limit");
            self.object[span.clone()].copy_from_slice(&self.base[span]);
            self.map.mark_clean(run.clone()).unwrap();
        }
    }

    fn step(&mut self, step: &Step, dir: &tempfile::TempDir) {
        match *step {
            Step::Write(start, len) => {
                let range = start..start + len;
                let mut runs = Vec::new();
                self.map.fill_before_write(range.clone(), &mut runs);
                self.fetch(&runs);
                self.next = self.next.wrapping_add(1);
                for bytes in [&mut self.truth, &mut self.object] {
                    bytes.resize(bytes.len().max(range.end as usize), 0);
                    bytes[start as usize..range.end as usize].fill(self.next);
                }
                self.map.mark_dirty(range).unwrap();
            }
            Step::Truncate(len) => {
                self.truth.resize(len as usize, 0);
                self.object.resize(len as usize, 0);
                self.map.set_len(len).unwrap();
            }
            Step::Fetch(start, len) => {
                let mut runs = Vec::new();
                self.map.missing_runs(start..start + len, &mut runs);
                self.fetch(&runs);
                assert!(self.map.is_present(start..start + len));
            }
            Step::Clear(start, len) => {
                for run in self.map.clear(start..start + len).unwrap() {
                    self.object[run.start as usize..run.end as usize].fill(0);
                }
            }
            Step::Take(max) if self.flush.is_none() => {
                self.flush = self.map.take_flush(max).map(|f| (f, self.object.clone()));
            }
            Step::Finish => {
                if let Some((flush, copy)) = self.flush.take() {
                    for run in flush.runs() {
                        let end = run.end as usize;
                        self.base.resize(self.base.len().max(end), 0);
                        self.base[run.start as usize..end]
                            .copy_from_slice(&copy[run.start as usize..end]);
                    }
                    self.map.finish_flush(flush).unwrap();
                }
            }
            Step::Abort => {
                if let Some((flush, _)) = self.flush.take() {
                    self.map.abort_flush(flush);
                }
            }
            Step::Reload => {
                // What a daemon finds that was killed: no flush in hand, nothing else lost.
                self.flush = None;
                self.map = Presence::load(map_file(dir), 7, Believed::Written).unwrap();
            }
            Step::Take(_) => {}
        }
    }

    fn check(&self) {
        assert_eq!(self.map.size(), self.truth.len() as u64);
        let mut present = 0;
        for (at, truth) in self.truth.iter().enumerate() {
            let at64 = at as u64;
            let is_present = self.map.is_present(at64..at64 + 1);
            present += u64::from(is_present);
            let read = match is_present {
                true => self.object[at],
                false if at64 < self.map.base_limit() => self.base[at],
                false => 0,
            };
            assert_eq!(read, *truth, "byte {at}, present {is_present}");
        }
        assert_eq!(self.map.present_bytes(), present);
        // Every byte in which the base differs is dirty, so that a flush of all dirty runs after a
        // cut of the backing file to the base limit makes it equal.
        let mut flushed = self.base.clone();
        flushed.truncate(self.map.base_limit() as usize);
        flushed.resize(self.truth.len(), 0);
        for index in 0..self.map.states.len() {
            if self.map.states[index] & (DIRTY | FLUSHING) != 0 {
                let run = self.map.extent(index);
                let span = run.start as usize..run.end as usize;
                flushed[span.clone()].copy_from_slice(&self.object[span]);
            }
        }
        let limit = (self.map.base_limit() as usize).min(self.truth.len());
        assert_eq!(flushed[..limit], self.truth[..limit]);
    }
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..MAX, 1..2 * EXTENT);
    prop_oneof![
        4 => range().prop_map(|(s, l)| Step::Write(s, l)),
        2 => (0..MAX).prop_map(Step::Truncate),
        3 => range().prop_map(|(s, l)| Step::Fetch(s, l)),
        2 => (0..MAX, 1..MAX).prop_map(|(s, l)| Step::Clear(s, l)),
        2 => (1..MAX).prop_map(Step::Take),
        2 => Just(Step::Finish),
        1 => Just(Step::Abort),
        1 => Just(Step::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_steps_when_composed_give_the_true_bytes(
        size in 0..MAX, steps in prop::collection::vec(step(), 1..40),
    ) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut model = Model::new(Some(map_file(&dir)), size);
        for step in &steps {
            model.step(step, &dir);
            model.check();
        }
    }

    #[test]
    fn load_of_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 8usize..56) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        drop(Presence::create(map_file(&dir), 7, EXTENT, 40 * EXTENT).unwrap());
        let path = dir.path().join("map");
        let mut good = std::fs::read(&path).unwrap();
        for (out, byte) in good[at..].iter_mut().zip(&bytes) {
            *out = *byte;
        }
        let sum = xxh3_64(&good[..56]);
        good[56..64].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(&path, &good).unwrap();
        let _ = Presence::load(map_file(&dir), 7, Believed::Written);
    }
}

#[test]
fn write_during_a_flush_stays_dirty_after_it() {
    let mut map = Presence::in_memory(EXTENT, 4 * EXTENT).unwrap();
    map.mark_dirty(0..2 * EXTENT).unwrap();
    let flush = map.take_flush(u64::MAX).unwrap();
    assert!(map.take_flush(u64::MAX).is_none());
    map.mark_dirty(10..11).unwrap();
    map.finish_flush(flush).unwrap();
    assert_eq!(map.dirty_bytes(), EXTENT);
    let again = map.take_flush(u64::MAX).unwrap();
    assert_eq!((again.runs().len(), again.bytes()), (1, EXTENT));
    map.abort_flush(again);
    assert_eq!(map.dirty_bytes(), EXTENT);
}

#[test]
fn load_after_a_machine_crash_keeps_only_what_was_synced() {
    let dir = tempfile::tempdir().unwrap();
    let object = object(&dir);
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 8 * EXTENT).unwrap();
    map.mark_clean(0..EXTENT).unwrap();
    map.mark_dirty(EXTENT..2 * EXTENT).unwrap();
    map.sync(&object).unwrap();
    map.mark_clean(2 * EXTENT..3 * EXTENT).unwrap();
    map.mark_dirty(3 * EXTENT..4 * EXTENT).unwrap();
    drop(map);
    let same_boot = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    assert_eq!((same_boot.present_bytes(), same_boot.dirty_bytes()), (4 * EXTENT, 2 * EXTENT));
    drop(same_boot);
    let next_boot = load_after_a_crash(&dir, false);
    assert_eq!((next_boot.present_bytes(), next_boot.dirty_bytes()), (2 * EXTENT, EXTENT));
    drop(next_boot);
    let writing = load_after_a_crash(&dir, true);
    assert_eq!((writing.present_bytes(), writing.dirty_bytes()), (2 * EXTENT, 2 * EXTENT));
}

#[test]
fn extent_marked_between_begin_and_finish_of_a_sync_is_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 4 * EXTENT).unwrap();
    map.mark_dirty(0..EXTENT).unwrap();
    map.begin_sync();
    map.mark_dirty(EXTENT..2 * EXTENT).unwrap();
    map.finish_sync().unwrap().sync().unwrap();
    drop(map);
    let map = load_after_a_crash(&dir, false);
    assert!(map.is_present(0..EXTENT) && !map.is_present(EXTENT..EXTENT + 1));
}

#[test]
fn load_of_a_newer_or_foreign_map_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    drop(Presence::create(map_file(&dir), 7, EXTENT, EXTENT).unwrap());
    let other = Presence::load(map_file(&dir), 8, Believed::Written);
    assert!(matches!(other, Err(StoreError::Damaged { .. })));
    let path = dir.path().join("map");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 9;
    std::fs::write(&path, bytes).unwrap();
    let newer = Presence::load(map_file(&dir), 7, Believed::Written);
    assert!(matches!(newer, Err(StoreError::Version { found: 9, known: 2, .. })));
}

#[test]
fn map_when_its_device_was_away_then_only_what_was_synced_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 3 * EXTENT).unwrap();
    map.mark_clean(0..EXTENT).unwrap();
    map.sync(&object(&dir)).unwrap();
    map.mark_clean(EXTENT..2 * EXTENT).unwrap();
    assert!(map.may_be_durable(0..3 * EXTENT) && !map.may_be_durable(EXTENT..3 * EXTENT));
    drop(map);
    let mut map = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    assert_eq!(map.present_bytes(), 2 * EXTENT);
    map.believe_what_was_synced(false).unwrap();
    assert_eq!((map.present_bytes(), map.dirty_bytes()), (EXTENT, 0));
    assert!(map.is_present(0..EXTENT));
}

#[test]
fn sync_of_a_map_looks_only_at_what_changed_since_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let object = object(&dir);
    let extents = 100_000;
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, extents * EXTENT).unwrap();
    map.mark_clean(0..extents * EXTENT).unwrap();
    map.sync(&object).unwrap();
    // All of it is durable: there is nothing to look at.
    map.begin_sync();
    assert_eq!(map.syncing.len(), 0);
    map.finish_sync().unwrap().sync().unwrap();
    map.mark_dirty(70_000 * EXTENT..70_003 * EXTENT).unwrap();
    map.begin_sync();
    assert_eq!(map.syncing.len(), 0, "what is overwritten was durable already");
    map.finish_sync().unwrap().sync().unwrap();
    map.clear(5 * EXTENT..7 * EXTENT).unwrap();
    map.mark_clean(5 * EXTENT..7 * EXTENT).unwrap();
    map.begin_sync();
    assert_eq!(map.syncing, 5..7);
    // What fails is looked at again, with what comes meanwhile.
    map.set_len((extents + 1) * EXTENT).unwrap();
    map.abort_sync();
    map.begin_sync();
    assert_eq!(map.syncing, 5..extents as usize + 1);
    map.set_len(6 * EXTENT).unwrap();
    map.finish_sync().unwrap().sync().unwrap();
    drop(map);
    let map = load_after_a_crash(&dir, false);
    assert_eq!(map.present_bytes(), 6 * EXTENT);
}

#[test]
fn sync_of_a_loaded_map_covers_what_was_present_before() {
    let dir = tempfile::tempdir().unwrap();
    let object = object(&dir);
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 8 * EXTENT).unwrap();
    map.mark_clean(0..3 * EXTENT).unwrap();
    drop(map);
    let mut map = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    map.sync(&object).unwrap();
    drop(map);
    let map = load_after_a_crash(&dir, false);
    assert_eq!(map.present_bytes(), 3 * EXTENT);
}

#[test]
fn map_of_another_boot_when_it_is_read_then_nothing_of_it_is_changed_or_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 8 * EXTENT).unwrap();
    map.mark_dirty(0..3 * EXTENT).unwrap();
    drop(map);
    restart_machine(&dir);
    let path = dir.path().join("map");
    let before = std::fs::read(&path).unwrap();
    let mut map = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    assert_eq!((map.present_bytes(), map.dirty_bytes()), (3 * EXTENT, 3 * EXTENT));
    assert!(std::fs::read(&path).unwrap() == before, "to read it has changed it");
    // The last daemon has ended in order: all of it lasts, also over the next crash.
    map.believe_all(true).unwrap();
    drop(map);
    let map = load_after_a_crash(&dir, false);
    assert_eq!((map.present_bytes(), map.dirty_bytes()), (3 * EXTENT, 3 * EXTENT));
}

/// What stands in the sidecar, with its header made right.
fn rewrite(dir: &tempfile::TempDir, change: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.path().join("map");
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    let sum = xxh3_64(&bytes[..56]);
    bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
}

fn is_damaged(dir: &tempfile::TempDir, believed: Believed) -> bool {
    matches!(Presence::load(map_file(dir), 7, believed), Err(StoreError::Damaged { .. }))
}

/// A map with a state of each kind, the first ones durable.
fn with_all_states(dir: &tempfile::TempDir) {
    let mut map = Presence::create(map_file(dir), 7, EXTENT, 6 * EXTENT).unwrap();
    map.mark_clean(0..EXTENT).unwrap();
    map.mark_dirty(EXTENT..2 * EXTENT).unwrap();
    map.sync(&object(dir)).unwrap();
    map.mark_clean(2 * EXTENT..3 * EXTENT).unwrap();
    map.mark_dirty(3 * EXTENT..4 * EXTENT).unwrap();
}

#[test]
fn state_of_which_any_bit_is_flipped_then_the_map_is_damaged() {
    for (index, bit) in (0..6).flat_map(|index| (0..8).map(move |bit| (index, bit))) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        with_all_states(&dir);
        rewrite(&dir, |bytes| bytes[HEADER_LEN + index] ^= 1 << bit);
        for believed in [Believed::Written, Believed::Synced] {
            assert!(is_damaged(&dir, believed), "bit {bit} of state {index}, {believed:?}");
        }
    }
}

#[test]
fn map_whose_states_are_cut_or_zeros_then_they_are_absent_only_after_a_crash() {
    for cut in [false, true] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        with_all_states(&dir);
        rewrite(&dir, |bytes| match cut {
            true => bytes.truncate(HEADER_LEN + 2),
            false => bytes[HEADER_LEN + 2..].fill(0),
        });
        assert!(is_damaged(&dir, Believed::Written), "cut: {cut}");
        let map = load_after_a_crash(&dir, false);
        assert_eq!((map.present_bytes(), map.dirty_bytes()), (2 * EXTENT, EXTENT), "cut: {cut}");
    }
}

#[test]
fn map_of_the_first_version_then_it_is_read_and_stays_so_and_no_impossible_state_is_believed() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    with_all_states(&dir);
    let first = |bytes: &mut Vec<u8>| {
        bytes[8] = 1;
        // What was never written need not be there.
        bytes.truncate(HEADER_LEN);
        bytes.extend_from_slice(&[5, 7, 1, 3]);
    };
    rewrite(&dir, first);
    let mut map = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    assert_eq!((map.present_bytes(), map.dirty_bytes()), (4 * EXTENT, 2 * EXTENT));
    map.mark_dirty(5 * EXTENT..6 * EXTENT).unwrap();
    drop(map);
    let bytes = std::fs::read(dir.path().join("map")).unwrap();
    assert_eq!((bytes[8], &bytes[HEADER_LEN..]), (1, &[5, 7, 1, 3, 0, 3][..]));
    for impossible in [2, 4, 6, 8, 0x11, 0x80] {
        rewrite(&dir, |bytes| bytes[HEADER_LEN] = impossible);
        assert!(is_damaged(&dir, Believed::Written), "{impossible}");
    }
}

#[test]
fn extents_between_an_end_and_what_is_left_to_the_base_when_the_map_was_longer_once_then_are_absent()
 {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 6 * EXTENT).unwrap();
    map.mark_dirty(0..6 * EXTENT).unwrap();
    map.set_len(EXTENT).unwrap();
    map.leave_to_base(4 * EXTENT..5 * EXTENT).unwrap();
    assert_eq!(map.present_bytes(), EXTENT);
    drop(map);
    let map = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    assert_eq!(map.present_bytes(), EXTENT);
}

#[test]
fn map_when_the_daemon_died_before_it_was_synced_then_the_next_one_does_not_trust_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = Presence::create(map_file(&dir), 7, EXTENT, 3 * EXTENT).unwrap();
    map.mark_clean(0..3 * EXTENT).unwrap();
    map.sync(&object(&dir)).unwrap();
    map.leave_to_base(0..EXTENT).unwrap();
    // Killed: the device still says that this one lasts.
    drop(map);
    let mut map = Presence::load(map_file(&dir), 7, Believed::Written).unwrap();
    map.mark_dirty(0..EXTENT).unwrap();
    assert!(map.may_be_durable(0..EXTENT));
    map.sync_map().unwrap();
    assert!(!map.may_be_durable(0..EXTENT));
    // What is punched is not called durable on the device any more.
    let cleared = map.clear(EXTENT..2 * EXTENT).unwrap();
    assert_eq!((cleared.len(), &cleared[0]), (1, &(EXTENT..2 * EXTENT)));
    assert!(!map.may_be_durable(0..2 * EXTENT));
}
