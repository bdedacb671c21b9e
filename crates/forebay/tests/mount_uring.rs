//! Daemons served by io_uring that take over from each other, or are killed, under programs that
//! check all that they see. Skipped, with the reason printed, where the kernel does not offer it:
//! `echo Y > /sys/module/fuse/parameters/enable_uring` switches it on (Linux 6.14).

mod load;
mod site;

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

fn upgrade(site: &Site, more: &[&str]) -> (i32, String) {
    let mnt = site.text("mnt");
    let mut args = vec!["upgrade", &mnt, "--json"];
    args.extend(more);
    site.run(&args)
}

fn transport(site: &Site) -> String {
    site.status()["transport"].as_str().unwrap().to_owned()
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
    site.mount(&["--transport", "uring"]);
    let load = Load::start(&site.path("mnt"));
    let mut last = site.daemon();
    let mut pauses = Vec::new();
    for round in 0..times("FOREBAY_TEST_HANDOVERS", HANDOVERS) {
        await_work(&load);
        let (code, text) = upgrade(&site, &[]);
        assert_eq!(code, 0, "round {round}: {text}");
        let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
        pauses.push(outcome["pause_us"].as_u64().unwrap());
        assert!(outcome["open_files"].as_u64().unwrap() >= 6, "{outcome}");
        let now = site.daemon();
        assert_ne!(now, last);
        assert!(wait_for(LIMIT, || !alive(last)), "the old daemon goes on");
        last = now;
        assert_eq!(transport(&site), "uring");
    }
    // One that accepts, and can't open what it was given: the old one must take all back.
    let crashing = site.path("home/crashing");
    let program = env!("CARGO_BIN_EXE_forebay");
    fs::write(&crashing, format!("#!/bin/sh\nulimit -n 14\nexec {program} \"$@\"\n")).unwrap();
    fs::set_permissions(&crashing, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, text) = upgrade(&site, &["--program", crashing.to_str().unwrap()]);
    assert_eq!((code, site.daemon()), (1, last), "{text}");
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
    site.mount(&["--transport", "uring", "--restart-limit", "10000"]);
    let load = Load::start_forgiving(&site.path("mnt"));
    for round in 0..times("FOREBAY_TEST_KILLS", KILLS) {
        await_work(&load);
        let daemon = site.daemon();
        std::thread::sleep(Duration::from_millis(u64::from(round) * 37 % 250));
        signal(daemon, rustix::process::Signal::KILL);
        assert!(wait_for(LIMIT, || !alive(daemon)), "it does not die");
        await_work(&load);
        assert!(!load.has_failed(), "round {round}: {:?}", load.stop(LIMIT));
        assert_ne!(site.daemon(), daemon);
        assert_eq!(transport(&site), "uring");
    }
    // Killed daemons and upgraded ones take turns.
    let (code, text) = upgrade(&site, &[]);
    assert_eq!(code, 0, "{text}");
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
    site.mount(&[]);
    assert_eq!(transport(&site), "classic");
    site.umount();
    site.mount(&["--no-supervisor"]);
    assert_eq!(transport(&site), "uring");
    fs::write(site.path("mnt/file"), "text").unwrap();
    let last = site.daemon();
    let (code, text) = upgrade(&site, &[]);
    assert_eq!(code, 0, "{text}");
    assert_ne!(site.daemon(), last);
    assert_eq!(transport(&site), "uring");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text");
}
