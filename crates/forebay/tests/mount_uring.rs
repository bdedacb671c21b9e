//! Daemons served by io_uring that take over from each other, or are killed, under programs that
//! check all that they see. Skipped, with the reason printed, where the kernel does not offer it:
//! `echo Y > /sys/module/fuse/parameters/enable_uring` switches it on (Linux 6.14).

mod load;
mod site;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use load::Load;
use site::*;

/// How often daemons change, and die, in the tests of every run; `FOREBAY_TEST_HANDOVERS` and
/// `FOREBAY_TEST_KILLS` ask for more.
const HANDOVERS: u32 = 4;
const KILLS: u32 = 4;
const LIMIT: Duration = Duration::from_secs(60);

fn times(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn can_use_rings() -> bool {
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let on = switch.is_ok_and(|text| text.starts_with('Y'));
    if !on {
        eprintln!("skipped: FUSE over io_uring is not enabled in this kernel");
    }
    on && can_mount()
}

/// Mounts; false, with the reason printed, where the kernel does not let this process have rings.
fn mount_on_rings(site: &Site, more: &[&str]) -> bool {
    let (code, text) = site.mount_with(&[&["--transport", "uring"], more].concat());
    if code != 0 && text.contains("io_uring is not possible") {
        eprintln!("skipped: {text}");
        return false;
    }
    assert_eq!(code, 0, "{text}");
    true
}

fn upgrade(site: &Site, more: &[&str]) -> (i32, String) {
    let mnt = site.text("mnt");
    let mut args = vec!["upgrade", &mnt, "--json"];
    args.extend(more);
    site.run(&args)
}

/// Upgrades; refused while requests wait for too long, it is tried again.
fn upgrade_at_last(site: &Site) -> serde_json::Value {
    let last = RefCell::new(String::new());
    let done = wait_for(LIMIT, || {
        let (code, text) = upgrade(site, &[]);
        last.replace(text);
        code == 0
    });
    let last = last.into_inner();
    assert!(done, "{last}");
    serde_json::from_str(&last).unwrap()
}

/// Process and transport, however long a busy machine takes to tell.
fn daemon(site: &Site) -> (i32, String) {
    let known = RefCell::new(String::new());
    let mnt = site.text("mnt");
    let told = wait_for(LIMIT, || {
        let (code, text) = site.run(&["status", "--json", &mnt]);
        known.replace(text);
        code == 0
    });
    let known = known.into_inner();
    assert!(told, "{known}");
    let status: serde_json::Value = serde_json::from_str(&known).unwrap();
    let pid = status["pid"].as_i64().unwrap().try_into().unwrap();
    (pid, status["transport"].as_str().unwrap().to_owned())
}

fn transport(site: &Site) -> String {
    daemon(site).1
}

/// Until all programs are past their beginnings.
fn await_work(load: &Load) {
    let enough = load.operations() + 1000;
    assert!(wait_for(LIMIT, || load.operations() > enough || load.has_failed()), "no work is done");
}

fn check_end(site: &Site) {
    let mnt = site.text("mnt");
    // Files whose close was lost with a daemon count as open until that is found out.
    let unmounted = wait_for(LIMIT, || site.run(&["umount", &mnt]).0 == 0);
    let log = || fs::read_to_string(site.path("tier/state/forebay.log")).unwrap_or_default();
    assert!(unmounted, "{}", log());
    assert!(!site.is_mounted());
    let (code, text) = site.run(&["fsck", &format!("{}=256M", site.text("tier"))]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_dir(site.path("backing/load/listing")).unwrap().count(), 400);
}

#[test]
fn daemons_on_rings_when_they_change_under_a_load_then_programs_see_no_error() {
    if !can_use_rings() {
        return;
    }
    let site = Site::new();
    if !mount_on_rings(&site, &[]) {
        return;
    }
    let load = Load::start(&site.path("mnt"));
    let mut last = daemon(&site).0;
    let mut pauses = Vec::new();
    for round in 0..times("FOREBAY_TEST_HANDOVERS", HANDOVERS) {
        await_work(&load);
        assert!(!load.has_failed(), "round {round}: {:?}", load.stop(LIMIT));
        let outcome = upgrade_at_last(&site);
        pauses.push(outcome["pause_us"].as_u64().unwrap());
        assert!(outcome["open_files"].as_u64().unwrap() >= 6, "{outcome}");
        let (now, transport) = daemon(&site);
        assert_ne!(now, last);
        assert_eq!(transport, "uring");
        assert!(wait_for(LIMIT, || !alive(last)), "the old daemon goes on");
        last = now;
    }
    // One that accepts, and can't open what it was given: the old one must take all back.
    let crashing = site.path("home/crashing");
    let program = env!("CARGO_BIN_EXE_forebay");
    fs::write(&crashing, format!("#!/bin/sh\nulimit -n 14\nexec {program} \"$@\"\n")).unwrap();
    fs::set_permissions(&crashing, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, text) = upgrade(&site, &["--program", crashing.to_str().unwrap()]);
    assert_ne!(code, 0, "{text}");
    assert_eq!(daemon(&site).0, last, "{text}");
    await_work(&load);
    let result = load.stop(LIMIT);
    pauses.sort_unstable();
    eprintln!("pauses in us: {pauses:?}; {result:?}");
    assert!(result.complaints.is_empty(), "{result:?}");
    check_end(&site);
}

#[test]
fn daemon_on_rings_when_killed_under_a_load_then_calls_are_done_once_or_cancelled() {
    if !can_use_rings() {
        return;
    }
    let site = Site::new();
    if !mount_on_rings(&site, &["--restart-limit", "10000"]) {
        return;
    }
    let load = Load::start_forgiving(&site.path("mnt"));
    for round in 0..times("FOREBAY_TEST_KILLS", KILLS) {
        await_work(&load);
        let (victim, _) = daemon(&site);
        std::thread::sleep(Duration::from_millis(u64::from(round) * 37 % 250));
        signal(victim, rustix::process::Signal::KILL);
        assert!(wait_for(LIMIT, || !alive(victim)), "it does not die");
        await_work(&load);
        assert!(!load.has_failed(), "round {round}: {:?}", load.stop(LIMIT));
        let (next, transport) = daemon(&site);
        assert_ne!(next, victim);
        assert_eq!(transport, "uring");
    }
    // Killed daemons and upgraded ones take turns.
    upgrade_at_last(&site);
    await_work(&load);
    let result = load.stop(LIMIT);
    eprintln!("{result:?}");
    assert!(result.complaints.is_empty(), "{result:?}");
    check_end(&site);
}

#[test]
fn transport_when_auto_then_rings_serve_only_without_a_supervisor() {
    if !can_use_rings() {
        return;
    }
    let site = Site::new();
    if !mount_on_rings(&site, &[]) {
        return;
    }
    site.umount();
    site.mount(&[]);
    assert_eq!(transport(&site), "classic");
    site.umount();
    site.mount(&["--no-supervisor"]);
    assert_eq!(transport(&site), "uring");
    fs::write(site.path("mnt/file"), "text").unwrap();
    let (last, _) = daemon(&site);
    upgrade_at_last(&site);
    let (now, transport) = daemon(&site);
    assert_ne!(now, last);
    assert_eq!(transport, "uring");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text");
}
