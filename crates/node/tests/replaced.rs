//! A file that takes the name of another one while some of it is not synced: after a power cut the name shows
//! the old one or the new one, whole.

mod rig;

use std::sync::Arc;

use forebay_node::{Ino, NameIn};
use forebay_store::decorators::Transparent;
use rig::device::{Device, TierSyncs};
use rig::{CONTEXT, MIB, Rig, noise};

/// A rig whose backing store has a file `name`, and the device of its tier.
fn rig_with_a_name() -> (Rig, Arc<Device>) {
    let device = Arc::new(Device::default());
    let mut rig = Rig::unstarted(&[8 * MIB], Arc::new(Transparent), |_| {});
    device.objects.set(rig.dir.join("tier0/objects")).unwrap();
    rig.by_tier = Some(Arc::new(TierSyncs(device.clone())));
    std::fs::write(rig.backing().join("name"), noise(1, 20_480)).unwrap();
    (rig, device)
}

/// `new`, of these bytes, takes the name of the other, and the power fails: one of them is shown, whole.
fn replace_and_cut_the_power(rig: &mut Rig, device: &Device, bytes: &[u8], what: &str) {
    let (from, to) = (NameIn::new(Ino::ROOT, b"new"), NameIn::new(Ino::ROOT, b"name"));
    rig.node().rename(&CONTEXT, from, to, 0).unwrap();
    device.note_header();
    rig.crash();
    device.bring_back();
    std::fs::write(rig.dir.join("tier0/state/running"), "another boot").unwrap();
    rig.start();
    let shown = rig.get("name");
    assert!(shown == bytes || shown == noise(1, 20_480), "{} bytes, {what}", shown.len());
}

/// The object counts, as it was synced: nobody can tell that it is less than the new file was.
#[test]
fn file_that_grew_since_its_sync_when_it_replaces_another_and_the_power_fails_then_no_part_is_shown()
 {
    let (mut rig, device) = rig_with_a_name();
    rig.start();
    let bytes = noise(2, 20_480);
    let fh = rig.create("new");
    rig.write(fh, 0, &bytes[..8192]);
    rig.node().fsync(&CONTEXT, fh, false).unwrap();
    rig.write(fh, 8192, &bytes[8192..]);
    rig.node().release(fh);
    replace_and_cut_the_power(&mut rig, &device, &bytes, "grown");
}

/// As above, of what stood in the place of a hole; the hole was there at the sync, or in the version that the
/// file is a copy of.
#[test]
fn file_whose_hole_was_filled_since_its_sync_when_it_replaces_another_then_no_part_is_shown() {
    for copied in [false, true] {
        let (mut rig, device) = rig_with_a_name();
        let bytes = noise(2, 20_480);
        if copied {
            use std::os::unix::fs::FileExt;
            let below = std::fs::File::create(rig.backing().join("new")).unwrap();
            below.write_all_at(&bytes[..4096], 0).unwrap();
            below.write_all_at(&bytes[8192..], 8192).unwrap();
        }
        rig.start();
        let fh = if copied { rig.open("new", libc::O_RDWR) } else { rig.create("new") };
        if copied {
            assert_eq!(rig.read_all(fh).len(), bytes.len());
        } else {
            rig.write(fh, 0, &bytes[..4096]);
            rig.write(fh, 8192, &bytes[8192..]);
            rig.node().fsync(&CONTEXT, fh, false).unwrap();
        }
        rig.write(fh, 4096, &bytes[4096..8192]);
        rig.node().release(fh);
        replace_and_cut_the_power(&mut rig, &device, &bytes, &format!("a copy: {copied}"));
    }
}

/// Takes bytes of the new file away, which is open by this handle.
type TakeAway<'a> = &'a dyn Fn(&Rig, u64);

/// As above, of what was cut off or punched out since the sync; that was on the device, and what was written
/// there then was not.
#[test]
fn file_cut_and_written_since_its_sync_when_it_replaces_another_then_no_part_is_shown() {
    let emptied = |rig: &Rig, _: u64| {
        let fh = rig.open("new", libc::O_RDWR | libc::O_TRUNC);
        rig.node().release(fh);
    };
    let cut = |rig: &Rig, _: u64| {
        let set = forebay_node::SetAttr { size: Some(4096), ..Default::default() };
        let _set = rig.node().setattr(&CONTEXT, rig.ino("new"), &set).unwrap();
    };
    let punched = |rig: &Rig, fh| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        rig.node().fallocate(&CONTEXT, fh, 4096, 8192, mode).unwrap();
    };
    let ways: [TakeAway<'_>; 3] = [&emptied, &cut, &punched];
    for (way, take_away) in ways.iter().enumerate() {
        let (mut rig, device) = rig_with_a_name();
        rig.start();
        let bytes = noise(2, 20_480);
        let fh = rig.create("new");
        rig.write(fh, 0, &bytes);
        rig.node().fsync(&CONTEXT, fh, false).unwrap();
        take_away(&rig, fh);
        device.note_bytes();
        rig.write(fh, 0, &bytes);
        rig.node().release(fh);
        replace_and_cut_the_power(&mut rig, &device, &bytes, &format!("way {way}"));
    }
}
