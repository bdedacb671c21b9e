//! When a written file goes to the backing store, by `--writeback`.

mod site;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use site::*;

const BYTES: &[u8] = b"written here";

/// Longer than anything here takes on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(60);

fn mounted(writeback: &str) -> Site {
    let site = Site::new();
    site.mount(&["--writeback", writeback]);
    site
}

/// Whether the backing store has the file as it was written.
fn is_below(site: &Site, name: &str) -> bool {
    fs::read(site.path("backing").join(name)).is_ok_and(|found| found == BYTES)
}

fn comes(site: &Site, name: &str) -> bool {
    wait_for(LIMIT, || is_below(site, name))
}

#[test]
fn file_when_its_time_has_passed_since_its_last_close_then_goes_to_the_backing_store() {
    if !can_mount() {
        return;
    }
    let site = mounted("2s");
    let mut open = File::create(site.path("mnt/open")).unwrap();
    open.write_all(BYTES).unwrap();
    let mut file = File::create(site.path("mnt/file")).unwrap();
    file.write_all(BYTES).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let closed = Instant::now();
    drop(file);
    assert!(comes(&site, "file"));
    let took = closed.elapsed();
    assert!(took >= Duration::from_millis(1500), "{took:?} after its last close");
    // What is open waits: also when as much time has passed once more.
    std::thread::sleep(Duration::from_secs(3));
    assert!(!is_below(&site, "open"), "it is open");
    drop(open);
    assert!(comes(&site, "open"));
    site.umount();
}

#[test]
fn names_and_attributes_when_bytes_have_much_time_then_go_to_the_backing_store_at_once() {
    if !can_mount() {
        return;
    }
    let site = mounted("1h");
    for name in ["mnt/file", "mnt/named"] {
        fs::write(site.path(name), BYTES).unwrap();
    }
    let (code, text) = site.run(&["sync", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    fs::set_permissions(site.path("mnt/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(site.path("mnt/dir")).unwrap();
    fs::rename(site.path("mnt/named"), site.path("mnt/dir/renamed")).unwrap();
    fs::write(site.path("mnt/bytes"), BYTES).unwrap();
    let mode = || fs::metadata(site.path("backing/file")).unwrap().permissions().mode() & 0o777;
    assert!(wait_for(LIMIT, || mode() == 0o640));
    assert!(comes(&site, "dir/renamed"));
    assert!(!is_below(&site, "bytes"), "its time has not come");
    site.umount();
    assert!(is_below(&site, "bytes"));
}

#[test]
fn file_when_written_back_at_its_close_then_goes_there_without_a_sync() {
    if !can_mount() {
        return;
    }
    let site = mounted("close");
    let mut file = File::create(site.path("mnt/file")).unwrap();
    file.write_all(BYTES).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!is_below(&site, "file"), "it is open");
    drop(file);
    assert!(comes(&site, "file"));
    site.umount();
}

#[test]
fn file_when_written_through_then_is_there_as_soon_as_a_close_or_a_sync_returns() {
    if !can_mount() {
        return;
    }
    let site = mounted("through");
    for round in 0..10 {
        let (synced, closed) = (format!("synced{round}"), format!("closed{round}"));
        let mut file = File::create(site.path("mnt").join(&synced)).unwrap();
        file.write_all(BYTES).unwrap();
        file.sync_all().unwrap();
        assert!(is_below(&site, &synced), "{synced}");
        drop(file);
        fs::write(site.path("mnt").join(&closed), BYTES).unwrap();
        assert!(is_below(&site, &closed), "{closed}");
    }
    site.umount();
}

#[test]
fn file_when_written_back_to_make_room_only_then_waits_for_a_sync_or_the_end() {
    if !can_mount() {
        return;
    }
    let site = mounted("evict");
    fs::write(site.path("mnt/synced"), BYTES).unwrap();
    std::thread::sleep(Duration::from_secs(7));
    assert!(!is_below(&site, "synced"), "nobody needs its room");
    let (code, text) = site.run(&["sync", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(is_below(&site, "synced"));
    fs::write(site.path("mnt/last"), BYTES).unwrap();
    site.umount();
    assert!(is_below(&site, "last"));
}
