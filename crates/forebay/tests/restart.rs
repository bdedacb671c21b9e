//! Daemons that are killed under programs that must not notice, and daemons that can't live.

mod load;
mod site;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::Duration;

use load::Load;
use site::*;

/// How often the daemon dies in the tests of every run; `FOREBAY_TEST_KILLS` asks for more.
const KILLS: u32 = 6;

fn times(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn kill(pid: i32) {
    signal(pid, rustix::process::Signal::KILL);
}

/// The daemon of the mount once it is another one than `last`.
fn next_daemon(site: &Site, last: i32) -> i32 {
    let record = || {
        let files = fs::read_dir(site.path("run")).unwrap().flatten();
        let json = files
            .map(|file| file.path())
            .find(|path| path.extension().is_some_and(|e| e == "json"))?;
        let value: serde_json::Value = serde_json::from_slice(&fs::read(json).ok()?).ok()?;
        i32::try_from(value["pid"].as_i64()?).ok().filter(|pid| *pid != last)
    };
    assert!(wait_for(Duration::from_secs(60), || record().is_some()), "no daemon after {last}");
    record().unwrap()
}

fn supervisor_of(daemon: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn daemon_when_killed_under_a_load_then_programs_see_no_error() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--restart-limit", "10000"]);
    let load = Load::start(&site.path("mnt"));
    let mut daemon = site.daemon();
    let supervisor = supervisor_of(daemon);
    for round in 0..times("FOREBAY_TEST_KILLS", KILLS) {
        std::thread::sleep(Duration::from_millis(100 + u64::from(round) * 37 % 250));
        kill(daemon);
        daemon = next_daemon(&site, daemon);
        assert_eq!(supervisor_of(daemon), supervisor);
        assert!(!load.has_failed(), "round {round}: {:?}", load.stop(Duration::from_secs(5)));
    }
    // Killed daemons and upgraded ones take turns.
    let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    std::thread::sleep(Duration::from_millis(300));
    let result = load.stop(Duration::from_secs(60));
    eprintln!("{result:?}");
    assert!(result.complaints.is_empty(), "{result:?}");
    assert!(result.operations > 100, "{result:?}");
    let upgraded = site.daemon();
    assert_ne!(upgraded, daemon);
    assert_eq!(supervisor_of(upgraded), supervisor);
    site.umount();
    assert!(wait_for(Duration::from_secs(60), || !alive(supervisor)), "the supervisor stays");
    assert!(!site.is_mounted());
    let (code, text) = site.run(&["fsck", &format!("{}=256M", site.text("tier"))]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_dir(site.path("backing/load/listing")).unwrap().count(), 400);
}

#[test]
fn daemon_when_it_dies_again_and_again_then_clean_errors_and_no_hang() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--log-file", &site.text("log")]);
    fs::write(site.path("mnt/file"), "text").unwrap();
    let open = fs::File::open(site.path("mnt/file")).unwrap();
    let mut daemon = site.daemon();
    let supervisor = supervisor_of(daemon);
    for _ in 0..5 {
        kill(daemon);
        daemon = next_daemon(&site, daemon);
        assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    }
    kill(daemon);
    assert!(wait_for(Duration::from_secs(60), || !alive(supervisor)), "it does not give up");
    let log = || fs::read_to_string(site.path("log")).unwrap_or_default();
    let told = || log().contains("no other is started and programs get errors");
    assert!(wait_for(Duration::from_secs(60), told), "{}", log());
    let error = fs::metadata(site.path("mnt/file")).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    drop(open);
    // A new mount takes the dead one away and continues.
    site.mount(&["--no-supervisor"]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    let daemon = site.daemon();
    assert!(!fs::read_to_string(format!("/proc/{daemon}/cmdline")).unwrap().contains("supervised"));
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text");
}

#[test]
fn request_when_it_ends_a_daemon_by_a_defect_then_the_next_refuses_it_and_serves_on() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let has = !site.run(&["debug", "failpoints"]).1.is_empty();
    assert!(has || cfg!(not(feature = "failpoints")), "no fail point to die at");
    if !has {
        eprintln!("skipped: built without fail points");
        return;
    }
    let (tier, log) = (format!("{}=64M", site.text("tier")), site.text("log"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut mount = site.command(env!("CARGO_BIN_EXE_forebay"));
    mount.args(["mount", &backing, &mnt, "--tier", &tier, "--log-file", &log]);
    let (code, text) = outcome(mount.env("FAILPOINTS", "node.unlink.asked=panic"));
    assert_eq!(code, 0, "{text}");
    fs::write(site.path("mnt/kept"), "text").unwrap();
    let first = site.daemon();
    let error = fs::remove_file(site.path("mnt/kept")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    let second = site.daemon();
    assert_ne!(second, first);
    assert_eq!(fs::read(site.path("mnt/kept")).unwrap(), b"text");
    let log = fs::read_to_string(site.path("log")).unwrap();
    assert!(log.contains("a request that ended a daemon is refused"), "{log}");
    assert_eq!(site.daemon(), second, "no other daemon had to die");
    site.umount();
    assert_eq!(fs::read(site.path("backing/kept")).unwrap(), b"text");
}

/// A mount on which the data of `poisoned`, which has two names, can't be written back: that ends the
/// daemon. `None` if it can't be had here.
fn poisoned_mount(settings: &[&str]) -> Option<Site> {
    if !can_mount() {
        return None;
    }
    let site = Site::new();
    let has = !site.run(&["debug", "failpoints"]).1.is_empty();
    assert!(has || cfg!(not(feature = "failpoints")), "no fail point to die at");
    if !has {
        eprintln!("skipped: built without fail points");
        return None;
    }
    fs::write(site.path("backing/poisoned"), "old").unwrap();
    fs::hard_link(site.path("backing/poisoned"), site.path("backing/twin")).unwrap();
    let (tier, log) = (format!("{}=64M", site.text("tier")), site.text("log"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut mount = site.command(env!("CARGO_BIN_EXE_forebay"));
    mount.args(["mount", &backing, &mnt, "--tier", &tier, "--log-file", &log]);
    mount.args(settings);
    // Files with several names are written in place, and no others.
    let (code, text) = outcome(mount.env("FAILPOINTS", "node.flush.in_place=panic"));
    assert_eq!(code, 0, "{text}");
    Some(site)
}

/// What was poisoned is written back by a mount that has no defect.
fn written_back_by_the_next_mount(site: &Site, text: &str) {
    assert_eq!(fs::read(site.path("backing/poisoned")).unwrap(), b"old");
    site.mount(&[]);
    assert_eq!(fs::read_to_string(site.path("mnt/poisoned")).unwrap(), text);
    site.umount();
    assert_eq!(fs::read_to_string(site.path("backing/poisoned")).unwrap(), text);
}

#[test]
fn write_back_when_it_ends_a_daemon_then_it_is_set_aside_and_all_else_goes_on() {
    let Some(site) = poisoned_mount(&["--writeback", "100ms"]) else { return };
    let first = site.daemon();
    fs::write(site.path("mnt/poisoned"), "new").unwrap();
    let second = next_daemon(&site, first);
    fs::write(site.path("mnt/fine"), "fine").unwrap();
    let arrived = || fs::read(site.path("backing/fine")).is_ok_and(|text| text == b"fine");
    assert!(wait_for(Duration::from_secs(90), arrived), "the others are not written back");
    let (code, text) = site.run(&["status", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    let named = |line: &str| {
        line.contains("defect") && (line.contains("poisoned") || line.contains("twin"))
    };
    assert!(text.lines().any(named), "{text}");
    let (code, text) = site.run(&["sync", &site.text("mnt")]);
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("ended a daemon by a defect of Forebay"), "{text}");
    assert_eq!(site.daemon(), second, "no other daemon had to die");
    assert_eq!(fs::read(site.path("mnt/poisoned")).unwrap(), b"new");
    let log = fs::read_to_string(site.path("log")).unwrap();
    let told = log.lines().filter(|line| line.contains("a daemon ended by a defect")).count();
    assert_eq!(told, 1, "{log}");
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("poisoned") || text.contains("twin"), "{text}");
    assert!(!site.is_mounted());
    written_back_by_the_next_mount(&site, "new");
}

#[test]
fn umount_when_writing_back_ends_the_daemon_then_the_next_drains_the_rest_and_it_says_what_is_left()
{
    let Some(site) = poisoned_mount(&["--writeback", "1h"]) else { return };
    fs::write(site.path("mnt/poisoned"), "new").unwrap();
    for number in 0..20 {
        fs::write(site.path(&format!("mnt/{number}")), "fine").unwrap();
    }
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("poisoned") || text.contains("twin"), "{text}");
    assert!(!site.is_mounted(), "{text}");
    for number in 0..20 {
        assert_eq!(fs::read(site.path(&format!("backing/{number}"))).unwrap(), b"fine");
    }
    written_back_by_the_next_mount(&site, "new");
}

#[test]
fn fsync_when_it_ends_a_daemon_then_it_fails_and_later_ones_do_without_another_death() {
    let settings = ["--writeback", "1h", "--durability", "backing"];
    let Some(site) = poisoned_mount(&settings) else { return };
    let first = site.daemon();
    let mut file = fs::File::create(site.path("mnt/poisoned")).unwrap();
    file.write_all(b"new").unwrap();
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    let second = site.daemon();
    assert_ne!(second, first);
    for _ in 0..3 {
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(site.daemon(), second, "no other daemon had to die");
    drop(file);
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert_eq!(code, 4, "{text}");
    written_back_by_the_next_mount(&site, "new");
}

/// Has a daemon wait in the removal of a file, which holds the lock of the directory, and send a notice
/// about another name in there, which waits for that lock.
fn waiting_notice(site: &Site, more: &[&str]) -> std::thread::JoinHandle<std::io::Result<()>> {
    let tier = format!("{}=64M", site.text("tier"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut mount = site.command(env!("CARGO_BIN_EXE_forebay"));
    mount.args(["mount", &backing, &mnt, "--tier", &tier, "--writeback", "close"]);
    mount.args(["--attr-timeout", "100ms", "--entry-timeout", "60s"]).args(more);
    let (code, text) = outcome(mount.env("FAILPOINTS", "node.unlink.done=sleep(6000)"));
    assert_eq!(code, 0, "{text}");
    for name in ["removed", "changed"] {
        fs::write(site.path("mnt").join(name), "text").unwrap();
    }
    let (code, text) = site.run(&["sync", &mnt]);
    assert_eq!(code, 0, "{text}");
    // Others take it away, which shows when it is next opened.
    fs::remove_file(site.path("backing/changed")).unwrap();
    let (removed, changed) = (site.path("mnt/removed"), site.path("mnt/changed"));
    let removing = std::thread::spawn(move || fs::remove_file(removed));
    std::thread::sleep(Duration::from_millis(500));
    std::thread::spawn(move || fs::read(changed));
    let waits = || notice_waits(site.daemon());
    assert!(wait_for(Duration::from_secs(60), waits), "no notice waits");
    removing
}

/// Whether what sends the notices of a daemon waits in the kernel and can't be interrupted.
fn notice_waits(daemon: i32) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |path: String| fs::read_to_string(path).unwrap_or_default();
    let own = pids.filter(|pid| {
        let parent = stat(format!("/proc/{pid}/stat"));
        let parent = parent.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        *pid == daemon || parent == Some(&daemon.to_string())
    });
    let threads =
        own.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
    threads.flatten().any(|thread| {
        let stat = stat(thread.path().join("stat").display().to_string());
        let sends = stat.contains("(fuse-notify)") || stat.contains("(forebay-notices)");
        sends && stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D'))
    })
}

#[test]
fn daemon_when_killed_while_a_notice_waits_in_the_kernel_then_the_next_serves_on() {
    if !can_mount() || Site::new().run(&["debug", "failpoints"]).1.is_empty() {
        return;
    }
    let site = Site::new();
    let removing = waiting_notice(&site, &[]);
    let daemon = site.daemon();
    kill(daemon);
    next_daemon(&site, daemon);
    removing.join().unwrap().unwrap();
    assert!(!site.path("mnt/removed").exists());
    site.umount();
    assert!(!site.path("backing/removed").exists());
}

#[test]
fn daemon_when_killed_right_after_it_removed_a_directory_then_who_is_in_there_is_told_so() {
    if !can_mount() || Site::new().run(&["debug", "failpoints"]).1.is_empty() {
        return;
    }
    let site = Site::new();
    let tier = format!("{}=64M", site.text("tier"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut mount = site.command(env!("CARGO_BIN_EXE_forebay"));
    mount.args(["mount", &backing, &mnt, "--tier", &tier]);
    // Attributes in the kernel's cache would answer for the daemon.
    mount.args(["--attr-timeout", "0"]);
    let (code, text) = outcome(mount.env("FAILPOINTS", "node.rmdir.made=sleep(60000)"));
    assert_eq!(code, 0, "{text}");
    let path = site.path("mnt/gone");
    fs::create_dir(&path).unwrap();
    let dir = fs::File::open(&path).unwrap();
    let removing = std::thread::spawn(move || fs::remove_dir(path));
    std::thread::sleep(Duration::from_secs(2));
    assert!(!removing.is_finished());
    let daemon = site.daemon();
    kill(daemon);
    next_daemon(&site, daemon);
    removing.join().unwrap().unwrap();
    let known = dir.metadata().unwrap();
    assert!(known.is_dir() && known.nlink() == 0, "{known:?}");
    drop(dir);
    site.umount();
    assert!(!site.path("backing/gone").exists());
}

#[test]
fn daemon_alone_when_killed_while_a_notice_waits_in_the_kernel_then_programs_get_errors() {
    if !can_mount() || Site::new().run(&["debug", "failpoints"]).1.is_empty() {
        return;
    }
    let site = Site::new();
    let removing = waiting_notice(&site, &["--no-supervisor"]);
    kill(site.daemon());
    assert!(wait_for(Duration::from_secs(60), || removing.is_finished()), "it waits for ever");
    assert!(removing.join().unwrap().is_err());
    site.mount(&["--no-supervisor"]);
    site.umount();
}

#[test]
fn upgrade_when_the_supervisor_is_dead_then_the_mount_goes_on_without_one() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--log-file", &site.text("log")]);
    fs::write(site.path("mnt/file"), "text").unwrap();
    let daemon = site.daemon();
    let supervisor = supervisor_of(daemon);
    kill(supervisor);
    assert!(wait_for(Duration::from_secs(60), || !alive(supervisor)));
    let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert_ne!(site.daemon(), daemon);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    let log = fs::read_to_string(site.path("log")).unwrap();
    assert!(log.contains("if this daemon dies it is not restarted"), "{log}");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text");
}

/// A file that is open for writing, by root or by the user, when its set-id bits are set.
fn made_set_id_while_open(site: &Site, user: bool) -> fs::File {
    let path = site.path("mnt/program");
    let _ = fs::remove_file(&path);
    fs::write(&path, "a program").unwrap();
    if user {
        std::os::unix::fs::chown(&path, Some(USER), Some(USER)).unwrap();
    }
    let open = || fs::File::options().read(true).write(true).open(&path).unwrap();
    let file = if user { as_user(open) } else { open() };
    set_mode(&path, 0o4755);
    file
}

const USER: u32 = 65_534;

/// Calls with the rights that a plain user has on files.
fn as_user<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls, for this thread alone.
    unsafe { libc::setfsuid(USER) };
    let result = call();
    // SAFETY: as above.
    unsafe { libc::setfsuid(0) };
    result
}

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(site: &Site) -> u32 {
    fs::metadata(site.path("mnt/program")).unwrap().mode() & 0o7777
}

/// A site whose daemon takes another's place by an upgrade, and by a death.
fn with_other_daemons(options: &[&str], test: impl Fn(&Site, &dyn Fn())) {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    set_mode(site.root.path(), 0o755);
    site.mount(&[&["--restart-limit", "100"], options].concat());
    test(&site, &|| {
        let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
    });
    test(&site, &|| {
        let daemon = site.daemon();
        kill(daemon);
        next_daemon(&site, daemon);
    });
    site.umount();
}

#[test]
fn set_id_bits_when_root_writes_after_another_daemon_came_then_they_stay() {
    with_other_daemons(&["--allow-other", "--suid"], |site, other_daemon| {
        let old = made_set_id_while_open(site, false);
        assert!(site.status()["passthrough"].to_string().contains("opens"), "{}", site.status());
        other_daemon();
        let new = fs::File::options().write(true).open(site.path("mnt/program")).unwrap();
        for (which, file) in [("new", &new), ("old", &old)] {
            file.write_at(b"A", 0).unwrap();
            assert_eq!(mode(site), 0o4755, "written through the {which} handle");
        }
        drop((old, new));
        assert_eq!(mode(site), 0o4755);
    });
}

#[test]
fn set_id_bits_when_a_user_writes_after_another_daemon_came_then_they_go() {
    with_other_daemons(&["--allow-other", "--suid"], |site, other_daemon| {
        let old = made_set_id_while_open(site, true);
        other_daemon();
        assert_eq!(mode(site), 0o4755);
        as_user(|| old.write_at(b"A", 0).unwrap());
        assert_eq!(mode(site), 0o755);
    });
}

#[test]
fn set_id_bits_when_a_user_wrote_just_before_an_upgrade_then_they_go() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    set_mode(site.root.path(), 0o755);
    site.mount(&["--allow-other", "--suid"]);
    let old = made_set_id_while_open(&site, true);
    as_user(|| old.write_at(b"A", 0).unwrap());
    let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(mode(&site), 0o755);
    drop(old);
    site.umount();
}

/// Whatever changes a file through a handle of `O_SYNC` or `O_DSYNC` is where the mount's durability wants
/// it when the call returns, also for the daemon that did not open it.
fn synchronous_handle_then_all_is_below(passthrough: &str, flag: i32) {
    let how = ["--durability", "backing", "--writeback", "evict", "--passthrough", passthrough];
    with_other_daemons(&how, |site, other_daemon| {
        let (path, below) = (site.path("mnt/file"), site.path("backing/file"));
        let _none_of_the_last_round = fs::remove_file(&path);
        fs::write(site.path("mnt/source"), b"copied").unwrap();
        let mut options = fs::File::options();
        let file =
            options.read(true).write(true).create(true).custom_flags(flag).open(&path).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        other_daemon();
        let found = |what: &str, wanted: &[u8]| {
            let found = fs::read(&below).unwrap_or_default();
            assert_eq!(found, wanted, "{what}, passthrough {passthrough}, flag {flag:o}");
        };
        found("before", b"first");
        file.write_all_at(b", second", 5).unwrap();
        found("a write", b"first, second");
        let source = fs::File::open(site.path("mnt/source")).unwrap();
        let (mut from, mut to) = (0, 13);
        let copied =
            rustix::fs::copy_file_range(&source, Some(&mut from), &file, Some(&mut to), 6).unwrap();
        assert_eq!(copied, 6);
        found("a copy", b"first, secondcopied");
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, 20).unwrap();
        found("an allocation", b"first, secondcopied\0");
    });
}

#[test]
fn synchronous_handles_when_another_daemon_came_then_changes_are_durable_when_they_return() {
    for passthrough in ["off", "readwrite"] {
        for flag in [libc::O_SYNC, libc::O_DSYNC] {
            synchronous_handle_then_all_is_below(passthrough, flag);
        }
    }
}
