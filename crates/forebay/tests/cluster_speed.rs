//! What a cluster leaves to the kernel, and that nobody sees anything old for it.

mod ring;
mod site;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use ring::{Ring, can_cluster};
use site::wait_for;

const LONG: Duration = Duration::from_secs(60);

fn writer(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Opens that the kernel serves by itself, of a node so far.
fn passed(ring: &Ring, node: usize) -> u64 {
    ring.status(node)["passthrough"]["opens"].as_u64().unwrap()
}

/// Whether this machine's kernel serves files by itself.
fn can_pass(ring: &Ring) -> bool {
    let state = &ring.status(0)["passthrough"];
    let able = state["mode"] != "off";
    if !able {
        eprintln!("skipped: {}", state["reason"]);
    }
    able
}

fn at(file: &File, len: usize, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// The first byte of a file as a mapping shows it.
struct Mapping(*mut libc::c_void);

impl Mapping {
    fn of(file: &File) -> Self {
        // SAFETY: a new mapping of an open file, at an address that the kernel chooses.
        let address = unsafe {
            let (protection, kind) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), 4096, protection, kind, file.as_raw_fd(), 0)
        };
        assert_ne!(address, libc::MAP_FAILED);
        Mapping(address)
    }

    fn first(&self) -> u8 {
        // SAFETY: the mapping lives as long as this and is of a file that is not shorter.
        unsafe { self.0.cast::<u8>().read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length and nobody keeps a pointer into it.
        unsafe { libc::munmap(self.0, 4096) };
    }
}

#[test]
fn file_of_a_node_when_rewritten_then_by_passthrough_and_all_see_it() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "evict"]);
    if !can_pass(&ring) {
        return;
    }
    let mut model = vec![1; 3_000_000];
    fs::write(ring.at(0, "f"), &model).unwrap();
    let before = (passed(&ring, 0), ring.bytes(0, "tier"));
    let file = writer(&ring.at(0, "f"));
    file.write_all_at(&[2; 1_000_000], 500_000).unwrap();
    model[500_000..1_500_000].fill(2);
    assert_eq!((passed(&ring, 0), ring.bytes(0, "tier")), (before.0 + 1, before.1));
    // Nobody has closed it, but what is read elsewhere comes from here.
    assert!(fs::read(ring.at(1, "f")).unwrap() == model);
    let other = writer(&ring.at(1, "f"));
    other.write_all_at(&[3; 10], 999_995).unwrap();
    assert_eq!(at(&file, 10, 999_995), [3; 10]);
    model[999_995..1_000_005].fill(3);
    // Appenders of both take turns, and what the kernel writes beyond the end counts, too.
    let append = |node: usize| OpenOptions::new().append(true).open(ring.at(node, "f")).unwrap();
    let (here, there) = (append(0), append(1));
    for round in 0..20_u8 {
        let (len, byte) = (usize::from(round) * 100 + 1, round + 10);
        match round % 3 {
            0 => std::io::Write::write_all(&mut &here, &vec![byte; len]).unwrap(),
            1 => std::io::Write::write_all(&mut &there, &vec![byte; len]).unwrap(),
            _ => file.write_all_at(&vec![byte; len], model.len() as u64).unwrap(),
        }
        model.extend(vec![byte; len]);
    }
    assert_eq!(fs::metadata(ring.at(0, "f")).unwrap().len(), model.len() as u64);
    drop((here, there, other));
    drop(file);
    for node in 0..2 {
        assert!(fs::read(ring.at(node, "f")).unwrap() == model, "node {node}");
    }
    ring.umount_all();
    assert!(fs::read(ring.backing("f")).unwrap() == model);
}

#[test]
fn file_read_by_passthrough_when_changed_elsewhere_then_the_next_open_shows_it() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "1s"]);
    if !can_pass(&ring) {
        return;
    }
    fs::write(ring.at(0, "f"), vec![0; 300_000]).unwrap();
    for round in 1..20_u8 {
        // Of its own file, of one that the other has, of one that is clean.
        let reader = File::open(ring.at(0, "f")).unwrap();
        assert_eq!(at(&reader, 3, 100_000), [round - 1; 3], "round {round}");
        let mapping = Mapping::of(&reader);
        assert_eq!(mapping.first(), round - 1);
        // As it is, replaced from the start, or with nobody here who has it open.
        let reader = (round % 3 > 0).then_some(reader);
        let options = OpenOptions::new().write(true).truncate(round % 4 == 0).clone();
        let other = options.open(ring.at(1, "f")).unwrap();
        other.write_all_at(&vec![round; 300_000], 0).unwrap();
        drop(other);
        let again = File::open(ring.at(0, "f")).unwrap();
        assert_eq!(at(&again, 3, 200_000), [round; 3], "round {round}");
        assert_eq!(Mapping::of(&again).first(), round, "round {round}");
        assert!(fs::read(ring.at(1, "f")).unwrap() == vec![round; 300_000], "round {round}");
        if round % 5 == 0 {
            // Nobody keeps it: it is written back and given up.
            drop((reader, mapping, again));
            let clean =
                || ring.status(0)["dirty"]["bytes"] == 0 && ring.status(1)["dirty"]["bytes"] == 0;
            assert!(wait_for(LONG, clean), "{}{}", ring.log(0), ring.log(1));
        }
    }
    ring.umount_all();
    assert!(fs::read(ring.backing("f")).unwrap() == vec![19; 300_000]);
}

/// Of direct I/O and of handles that change sides in between.
#[test]
fn file_when_its_kernel_reader_stays_and_others_write_then_it_is_given_up_at_the_end() {
    if !can_cluster() {
        return;
    }
    let ring = Ring::talking(2);
    ring.mount_all(&["--writeback", "close"]);
    fs::write(ring.at(0, "f"), vec![1; 100_000]).unwrap();
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(ring.at(0, "f"));
    let reader = reader.unwrap();
    let other = writer(&ring.at(1, "f"));
    other.write_all_at(&[2; 50_000], 0).unwrap();
    assert_eq!(at(&reader, 2, 10), [2; 2]);
    drop(reader);
    other.write_all_at(&[3; 50_000], 50_000).unwrap();
    drop(other);
    assert_eq!(fs::read(ring.at(0, "f")).unwrap()[49_999..50_001], [2, 3]);
    // The one who writes next gets it, as nobody else needs it.
    let reads = ring.bytes(1, "owners");
    let other = writer(&ring.at(1, "f"));
    assert!(wait_for(LONG, || {
        drop(writer(&ring.at(1, "f")));
        ring.bytes(1, "owners") == reads
    }));
    other.write_all_at(&[4; 10], 0).unwrap();
    drop(other);
    assert_eq!(fs::read(ring.at(0, "f")).unwrap()[9..11], [4, 2]);
    ring.umount_all();
}
