//! What ends: room for the state, a tier, descriptors, memory.

mod disk;
mod site;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use disk::{Disk, fill};
use site::{Site, can_mount, outcome, wait_for};

/// A file system in memory, for one test.
struct Memory(PathBuf);

impl Memory {
    fn new(site: &Site, name: &str, size: &str) -> Self {
        let dir = site.path(name);
        fs::create_dir(&dir).unwrap();
        let size = format!("size={size}");
        let mut mount = site.command("mount");
        let (code, text) = outcome(mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(&dir));
        assert_eq!(code, 0, "{text}");
        Memory(dir)
    }

    fn fill(&self) -> PathBuf {
        fill(&self.0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(&self.0, flags);
    }
}

/// What a process has used of processors.
fn processor_time(pid: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn errno_of<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Makes files `new0`, `new1`, ... on the mount until the state has no room for one more; how many.
fn make_until_there_is_no_room(site: &Site) -> u32 {
    for made in 0..200_000 {
        if let Err(error) = fs::File::create(site.path("mnt").join(format!("new{made}"))) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "after {made}");
            return made;
        }
    }
    panic!("nothing was refused");
}

#[test]
fn state_when_its_disk_is_full_then_changes_get_enospc_and_all_that_is_known_can_be_read() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let disk = Memory::new(&site, "disk", "80m");
    fs::write(site.path("backing/known"), b"known").unwrap();
    let state = format!("--state-dir={}/state", disk.0.display());
    site.mount(&[&state, "--writeback", "evict"]);
    let at = |name: &str| site.path("mnt").join(name);
    fs::write(at("before"), b"written before").unwrap();
    assert_eq!(fs::read(at("known")).unwrap(), b"known");
    let pid = site.daemon();
    let filler = disk.fill();
    let before = processor_time(pid);
    let made = make_until_there_is_no_room(&site);
    let each_made = (processor_time(pid) - before) / made;
    // While nobody asks it rests, however much waits to be written.
    let (begun, before) = (Instant::now(), processor_time(pid));
    std::thread::sleep(Duration::from_secs(4));
    let (passed, used) = (begun.elapsed(), processor_time(pid) - before);
    assert!(used < passed / 8, "{used:?} of a processor in {passed:?}, with {made} files to write");
    // A refusal costs no more than a creation, by far less than to open the state anew.
    let before = processor_time(pid);
    for _ in 0..500 {
        assert_eq!(errno_of(fs::create_dir(at("dir"))), Some(libc::ENOSPC));
    }
    let each = (processor_time(pid) - before) / 500;
    assert!(each < 3 * each_made, "{each:?} for a refusal, {each_made:?} for a file");
    for _ in 0..5 {
        assert_eq!(errno_of(fs::create_dir(at("dir"))), Some(libc::ENOSPC));
        assert_eq!(fs::metadata(at("before")).unwrap().len(), 14);
        assert_eq!(fs::read(at("before")).unwrap(), b"written before");
        assert!(fs::read_dir(at("")).unwrap().count() >= made as usize);
    }
    let told = site.run(&["status", &site.text("mnt")]).1;
    assert!(!told.contains("EIO"), "{told}");
    fs::remove_file(filler).unwrap();
    let again = || fs::create_dir(at("dir")).is_ok();
    assert!(wait_for(Duration::from_secs(60), again), "it goes on when there is room");
    site.umount();
    assert_eq!(fs::read(site.path("backing/before")).unwrap(), b"written before");
    assert!(site.path("backing/dir").is_dir());
}

/// ext4 keeps blocks that count as free and that not even root gets.
#[test]
fn state_when_its_disk_is_a_full_ext4_then_changes_get_enospc_until_there_is_room() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let Some(disk) = Disk::new(&site, "disk", 256 << 20) else { return };
    let state = format!("--state-dir={}/state", disk.dir.display());
    site.mount(&[&state, "--writeback", "evict"]);
    let at = |name: &str| site.path("mnt").join(name);
    fs::write(at("before"), b"written before").unwrap();
    let filler = fill(&disk.dir);
    let mut made = make_until_there_is_no_room(&site);
    // Now all that there was for removals is taken as well.
    while fs::remove_file(at(&format!("new{}", made - 1))).is_ok() {
        made -= 1;
    }
    for _ in 0..20 {
        assert_eq!(errno_of(fs::create_dir(at("dir"))), Some(libc::ENOSPC));
        assert!([None, Some(libc::ENOSPC)].contains(&errno_of(fs::remove_file(at("new0")))));
        assert_eq!(fs::read(at("before")).unwrap(), b"written before");
    }
    let told = site.run(&["sync", &site.text("mnt"), "--drain-timeout", "2s"]).1;
    assert!(!told.contains("check the file system"), "{told}");
    fs::remove_file(filler).unwrap();
    let again = || fs::create_dir(at("dir")).is_ok();
    assert!(wait_for(Duration::from_secs(60), again), "it goes on when there is room");
    site.umount();
}

#[test]
fn room_of_the_store_when_asked_for_after_a_pause_then_is_that_of_now() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::remove_dir(site.path("backing")).unwrap();
    let store = Memory::new(&site, "backing", "64m");
    site.mount(&[]);
    let free = || {
        let found = rustix::fs::statvfs(site.path("mnt")).unwrap();
        found.f_bavail * found.f_frsize
    };
    assert!(free() > 32 << 20);
    let _filler = store.fill();
    std::thread::sleep(Duration::from_secs(6));
    assert!(free() < 1 << 20, "the first answer is as old as the last question");
    site.umount();
}

#[test]
fn backing_store_when_it_is_full_then_status_and_sync_say_so_and_what_to_do() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::remove_dir(site.path("backing")).unwrap();
    let store = Memory::new(&site, "backing", "4m");
    site.mount(&["--writeback", "evict", "--drain-timeout", "3s"]);
    let filler = store.fill();
    fs::write(site.path("mnt/kept"), vec![7; 1 << 20]).unwrap();
    let (code, text) = site.run(&["sync", &site.text("mnt")]);
    let why = |text: &str| {
        let line = text.lines().find(|line| line.contains("/kept: ") && line.contains("No space"));
        line.is_some_and(|line| {
            line.contains("the backing store is full") && line.contains("make room")
        })
    };
    assert_eq!(code, 1, "{text}");
    let line = |start| text.lines().find(|line: &&str| line.starts_with(start)).unwrap_or_default();
    assert!(why(line("not written: ")), "while it waits: {text}");
    assert!(line("  kept: ").contains("make room"), "at its end: {text}");
    let (_, text) = site.run(&["status", &site.text("mnt")]);
    assert!(!text.contains("trouble      none"), "{text}");
    assert!(why(&text), "{text}");
    fs::remove_file(filler).unwrap();
    let (code, text) = site.run(&["sync", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    let (_, text) = site.run(&["status", &site.text("mnt")]);
    assert!(text.contains("trouble      none"), "{text}");
    site.umount();
    assert_eq!(fs::read(site.path("backing/kept")).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn tier_when_its_file_system_is_shut_down_then_named_and_passed_by() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let Some(disk) = Disk::new(&site, "disk", 256 << 20) else { return };
    for name in ["resident", "open", "emptied", "appended", "cold", "cold-emptied"] {
        fs::write(site.path("backing").join(name), vec![name.len() as u8; 20_000]).unwrap();
    }
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let tier = format!("{}/tier=100M", disk.dir.display());
    let state = format!("--state-dir={}", site.text("state"));
    let options = ["--writeback", "evict", "--passthrough", "off"];
    let args = [&["mount", &backing, &mnt, "--tier", &tier, &state][..], &options].concat();
    let (code, text) = site.run(&args);
    assert_eq!(code, 0, "{text}");
    let at = |name: &str| site.path("mnt").join(name);
    let check = |name: &str| {
        assert_eq!(fs::read(at(name)).unwrap(), vec![name.len() as u8; 20_000], "{name}");
    };
    for name in ["resident", "open", "emptied", "appended"] {
        check(name);
    }
    fs::write(at("dirty"), b"nowhere else").unwrap();
    let open = fs::File::open(at("open")).unwrap();
    disk.shut_down();
    for name in ["resident", "cold", "open"] {
        check(name);
    }
    let mut buffer = [0; 3];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut buffer, 15_000).unwrap();
    assert_eq!(buffer, [4; 3], "also where it was open before");
    for name in ["emptied", "cold-emptied", "new"] {
        fs::write(at(name), b"written past the tier").unwrap();
        assert_eq!(fs::read(at(name)).unwrap(), b"written past the tier");
    }
    fs::File::options().append(true).open(at("appended")).unwrap().write_all(b"more").unwrap();
    assert_eq!(fs::metadata(at("appended")).unwrap().len(), 20_004);
    assert_eq!(errno_of(fs::read(at("dirty"))), Some(libc::EIO), "that is nowhere else");
    let told = site.run(&["status", &mnt]).1;
    assert!(told.contains("FAILED: its file system says") && told.contains("dirty"), "{told}");
    let (code, text) = site.run(&["umount", "--timeout", "3s", &mnt]);
    assert!(code == 4 && text.contains("dirty"), "{code} {text}");
    drop(open);
    let (code, text) = site.run(&["umount", "--no-drain", &mnt]);
    assert_eq!(code, 0, "{text}");
    for name in ["emptied", "cold-emptied", "new"] {
        let found = fs::read(site.path("backing").join(name)).unwrap();
        assert_eq!(found, b"written past the tier");
    }
}

#[test]
fn backing_store_when_renamed_replaced_or_mounted_over_then_status_says_so() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let told = |what: &str| {
        let status = || site.run(&["status", &site.text("mnt")]).1;
        let said =
            || what.is_empty() != status().contains("  displaced ") && status().contains(what);
        assert!(wait_for(Duration::from_secs(60), said), "{what}: {}", status());
    };
    told("");
    fs::rename(site.path("backing"), site.path("elsewhere")).unwrap();
    told("nothing is there any more");
    fs::create_dir(site.path("backing")).unwrap();
    told("another directory is there now");
    fs::write(site.path("mnt/file"), b"for the old one").unwrap();
    fs::remove_dir(site.path("backing")).unwrap();
    fs::rename(site.path("elsewhere"), site.path("backing")).unwrap();
    told("");
    let mut over = site.command("mount");
    let (code, text) = outcome(over.args(["-t", "tmpfs", "none"]).arg(site.path("backing")));
    assert_eq!(code, 0, "{text}");
    let over = Memory(site.path("backing"));
    told("another directory is there now");
    drop(over);
    told("");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"for the old one");
}

#[test]
fn umount_when_the_store_can_not_have_all_of_it_then_it_ends_and_its_exit_code_says_so() {
    const NOT_DRAINED: i32 = 4;
    if !can_mount() {
        return;
    }
    let site = Site::new();
    // A directory can't be moved from one file system to another.
    let below = Memory::new(&site, "backing/below", "8m");
    site.mount(&[]);
    fs::create_dir(site.path("mnt/below/dir")).unwrap();
    let (code, text) = site.run(&["sync", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    fs::rename(site.path("mnt/below/dir"), site.path("mnt/moved")).unwrap();
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert_eq!(code, NOT_DRAINED, "{text}");
    assert!(text.contains("unmounted, but"), "{text}");
    assert!(!site.is_mounted());
    // The next mount has it still.
    site.mount(&[]);
    assert!(site.path("mnt/moved").is_dir());
    fs::rename(site.path("mnt/moved"), site.path("mnt/below/dir")).unwrap();
    site.umount();
    drop(below);
}

/// All names of one file, made while workers bring them to the backing store: the end of the mount and the
/// next start cost what that many names cost, not what their square does.
#[test]
fn file_with_thousands_of_names_when_unmounted_without_a_drain_then_it_ends_soon_and_all_come_back()
{
    const NAMES: usize = 4000;
    const LIMIT: Duration = Duration::from_secs(30);
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "close"]);
    let (file, names) = (site.path("mnt/file"), site.path("mnt/names"));
    fs::write(&file, "text").unwrap();
    fs::create_dir(&names).unwrap();
    let before = processor_time(site.daemon());
    for number in 0..NAMES {
        fs::hard_link(&file, names.join(number.to_string())).unwrap();
    }
    fs::write(&file, "other text").unwrap();
    let made = processor_time(site.daemon()) - before;
    let timed = |what: &dyn Fn()| {
        let begun = Instant::now();
        what();
        begun.elapsed()
    };
    let ended = timed(&|| {
        let (code, text) = site.run(&["umount", "--no-drain", &site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
    });
    let started = timed(&|| site.mount(&[]));
    eprintln!(
        "{made:?} of processors for {NAMES} names, ended in {ended:?}, started in {started:?}"
    );
    assert!(ended < LIMIT && started < LIMIT, "{ended:?} {started:?}");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(&file).unwrap().nlink() as usize, NAMES + 1);
    let drained = timed(&|| site.umount());
    assert!(drained < LIMIT, "{drained:?}");
    let below = fs::metadata(site.path("backing/file")).unwrap();
    assert_eq!(below.nlink() as usize, NAMES + 1);
    assert_eq!(fs::read(site.path("backing/names/17")).unwrap(), b"other text");
}

#[test]
fn read_only_store_when_an_earlier_mount_left_files_then_an_unmount_says_so_and_does_not_wait() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let disk = Memory::new(&site, "disk", "24m");
    let store = disk.0.join("store");
    fs::create_dir(&store).unwrap();
    let (tier, mnt) = (format!("{}=8M", site.text("tier")), site.text("mnt"));
    let store_text = store.display().to_string();
    let mount = |more: &[&str]| {
        let how = ["mount", "--tier", &tier, "--writeback", "1h", &store_text, &mnt];
        site.run(&[&how, more].concat())
    };
    let remount = |how: &str| {
        let mut remount = site.command("mount");
        let (code, text) = outcome(remount.args(["-o", how]).arg(&disk.0));
        assert_eq!(code, 0, "{text}");
    };
    assert_eq!(mount(&[]).0, 0);
    fs::write(site.path("mnt/file"), b"waits").unwrap();
    fs::create_dir(site.path("mnt/dir")).unwrap();
    let (code, text) = site.run(&["umount", "--no-drain", &mnt]);
    assert_eq!(code, 0, "{text}");
    remount("remount,ro");
    let (code, text) = mount(&[]);
    assert!(code != 0 && text.contains("--read-only"), "{text}");
    let (code, text) = mount(&["--read-only"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"waits");
    let began = Instant::now();
    let (code, text) = site.run(&["umount", &mnt]);
    assert_eq!(code, 4, "{text}");
    assert!(began.elapsed() < Duration::from_secs(20), "{text}");
    assert!(text.contains("Read-only file system"), "{text}");
    remount("remount,rw");
    assert_eq!(mount(&[]).0, 0);
    site.umount();
    assert_eq!(fs::read(store.join("file")).unwrap(), b"waits");
    assert!(store.join("dir").is_dir());
}

/// What is written at the brim, and how much of it the mount says it has taken.
#[test]
fn store_when_it_is_full_then_files_have_what_was_acknowledged_and_no_more() {
    use std::os::unix::fs::FileExt;
    const KIB: usize = 1 << 10;
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let disk = Memory::new(&site, "disk", "24m");
    let store = disk.0.join("store");
    fs::create_dir(&store).unwrap();
    let known: Vec<u8> = (0..2048 * KIB).map(|at| (at / 61) as u8).collect();
    fs::write(store.join("known"), &known).unwrap();
    let tier = format!("{}=4M", site.text("tier"));
    let (store, mnt) = (store.display().to_string(), site.text("mnt"));
    let how = ["mount", "--tier", &tier, "--writeback", "1h", "--passthrough", "off", &store, &mnt];
    let (code, text) = site.run(&how);
    assert_eq!(code, 0, "{text}");
    // All else goes past the tier, to the full store.
    let mut filler = fs::File::create(site.path("mnt/filler")).unwrap();
    filler.write_all(&vec![1; 4096 * KIB - 8 * KIB]).unwrap();
    let mut short = 0;
    for round in 0..6_u8 {
        // An append to a new file, and writes over a known one, each until there is no room.
        let (new, old) = (site.path(&format!("mnt/new{round}")), site.path("mnt/known"));
        let mut file = fs::File::options().append(true).create(true).open(&new).unwrap();
        let (mut taken, chunk) = (0, vec![round + 1; 100 * KIB]);
        let refused = loop {
            match file.write(&chunk) {
                Ok(written) => {
                    short += usize::from(written < chunk.len());
                    taken += written;
                }
                Err(error) => break error,
            }
        };
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        let found = fs::read(&new).unwrap();
        assert_eq!(found.len(), taken, "round {round}");
        assert!(found.iter().all(|byte| *byte == round + 1));
        let mut expected = fs::read(&old).unwrap();
        let over = fs::File::options().write(true).open(&old).unwrap();
        for at in (0..20).map(|number| (number * 93 + usize::from(round) * 7) * KIB) {
            match over.write_at(&chunk, at as u64) {
                Ok(written) => {
                    short += usize::from(written < chunk.len());
                    let end = (at + written).max(expected.len());
                    expected.resize(end, 0);
                    expected[at..at + written].fill(round + 1);
                }
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSPC)),
            }
            assert!(fs::read(&old).unwrap() == expected, "round {round}, written at {at}");
        }
        // Some more room, and not for whole writes.
        drop((file, over));
        fs::File::options().write(true).open(&new).unwrap().set_len(taken as u64 / 3).unwrap();
    }
    assert!(short > 0, "nothing was cut short, and nothing tried");
    drop(filler);
    for round in 0..6 {
        fs::remove_file(site.path(&format!("mnt/new{round}"))).unwrap();
    }
    let expected = fs::read(site.path("mnt/known")).unwrap();
    site.umount();
    assert!(fs::read(disk.0.join("store/known")).unwrap() == expected);
}
