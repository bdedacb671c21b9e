//! Daemons that take over from each other under programs that must not notice.

mod load;
mod site;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use load::Load;
use rustix::process::Signal;
use site::*;

/// How often daemons change in the tests of every run; `FOREBAY_TEST_HANDOVERS` asks for more.
const HANDOVERS: u32 = 5;

fn times(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn upgrade(site: &Site, more: &[&str]) -> (i32, String) {
    let mnt = site.text("mnt");
    let mut args = vec!["upgrade", &mnt];
    args.extend(more);
    site.run(&args)
}

fn assert_unnoticed(load: Load) -> load::Result {
    let result = load.stop(Duration::from_secs(20));
    assert!(result.complaints.is_empty(), "{result:?}");
    assert!(result.operations > 100, "{result:?}");
    result
}

#[test]
fn daemons_when_they_change_under_a_load_then_programs_see_no_error() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let load = Load::start(&site.path("mnt"));
    let mut pauses = Vec::new();
    let mut last = site.daemon();
    for round in 0..times("FOREBAY_TEST_HANDOVERS", HANDOVERS) {
        std::thread::sleep(Duration::from_millis(300));
        let (code, text) = upgrade(&site, &["--json"]);
        assert_eq!(code, 0, "round {round}: {text}");
        let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
        pauses.push(outcome["pause_us"].as_u64().unwrap());
        assert!(outcome["open_files"].as_u64().unwrap() >= 6, "{outcome}");
        let now = site.daemon();
        assert_ne!(now, last);
        assert!(wait_for(Duration::from_secs(60), || !alive(last)), "the old daemon goes on");
        last = now;
        assert!(!load.has_failed(), "round {round}: {:?}", load.stop(Duration::from_secs(5)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let result = assert_unnoticed(load);
    pauses.sort_unstable();
    eprintln!("pauses in us: {pauses:?}; {result:?}");
    site.umount();
    assert!(!alive(last) && !site.is_mounted());
    let (code, text) = site.run(&["fsck", &format!("{}=256M", site.text("tier"))]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_dir(site.path("backing/load/listing")).unwrap().count(), 400);
    let count = fs::read(site.path("backing/load/counter0")).unwrap();
    assert!(u64::from_le_bytes(count.try_into().unwrap()) > 0);
    assert_eq!(site.left_in_backing(), ["load"], "only what was written");
}

#[test]
fn upgrade_when_the_new_program_can_not_then_the_old_daemon_serves_on() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let load = Load::start(&site.path("mnt"));
    let daemon = site.daemon();
    // Refuses: another version of the state.
    let fake = std::path::Path::new(env!("CARGO_BIN_EXE_forebay"))
        .parent()
        .unwrap()
        .join("examples/fake_forebay");
    let (code, text) = upgrade(&site, &["--program", fake.to_str().unwrap()]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("version 0 of the state") && text.contains("version 1"), "{text}");
    // Ends before it answers; can't be started; is not there.
    assert_eq!(upgrade(&site, &["--program", "/bin/false"]).0, 1);
    let text = site.path("home/text");
    fs::write(&text, "no program").unwrap();
    assert_eq!(upgrade(&site, &["--program", text.to_str().unwrap()]).0, 1);
    assert_eq!(upgrade(&site, &["--program", "/nowhere/forebay"]).0, 1);
    assert_eq!(site.daemon(), daemon);
    // Accept, and can't open what they were given, or die at it: the old one must take all back.
    let program = env!("CARGO_BIN_EXE_forebay");
    for limit in ["-n 14", "-f 0"] {
        let crashing = site.path("home/crashing");
        fs::write(&crashing, format!("#!/bin/sh\nulimit {limit}\nexec {program} \"$@\"\n"))
            .unwrap();
        fs::set_permissions(&crashing, fs::Permissions::from_mode(0o755)).unwrap();
        let (code, text) = upgrade(&site, &["--program", crashing.to_str().unwrap()]);
        assert_eq!(code, 1, "{limit}: {text}");
        assert_eq!(site.daemon(), daemon, "{limit}: {text}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let log = fs::read_to_string(site.path("tier/state/forebay.log")).unwrap();
    assert_eq!(log.matches("forebay_node::lifecycle::hand_over: taken over").count(), 2, "{log}");
    // And then it still can be upgraded, by the configuration that a service unit has.
    let config = site.path("home/site.toml");
    fs::write(&config, format!("mountpoint = {:?}\n", site.text("mnt"))).unwrap();
    let (code, text) = site.run(&["upgrade", "--config", config.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    assert_ne!(site.daemon(), daemon);
    assert_unnoticed(load);
    site.umount();
}

/// A program that goes on until it has opened the state and the tiers, works on, and fails as told. It
/// leaves its process number in `home/successor`.
fn failing_after_it_began(site: &Site, how: &str) -> String {
    let program = site.path("home/failing");
    let number = site.text("home/successor");
    let script = format!(
        "#!/bin/sh\necho $$ > {number}\nexport FAILPOINTS='{how}'\nexec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_forebay")
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.to_str().unwrap().into()
}

#[test]
fn upgrade_when_the_new_daemon_dies_after_it_has_worked_then_the_old_one_looks_at_the_tier_anew() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "3s"]);
    let daemon = site.daemon();
    let (file, below) = (site.path("mnt/file"), site.path("backing/file"));
    fs::write(&file, "first").unwrap();
    let program = failing_after_it_began(&site, "node.resumed=sleep(60000)");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| upgrade(&site, &["--program", &program]));
        let is_flushed = || fs::read(&below).is_ok_and(|bytes| bytes == b"first");
        assert!(wait_for(Duration::from_secs(50), is_flushed), "nobody writes it back");
        let successor = fs::read_to_string(site.path("home/successor")).unwrap();
        signal(successor.trim().parse().unwrap(), Signal::KILL);
        let (code, text) = asked.join().unwrap();
        assert_eq!(code, 1, "{text}");
    });
    assert_eq!(site.daemon(), daemon);
    // In place: the file that was written back while it did not look.
    let open = fs::File::options().write(true).open(&file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, b"again", 0).unwrap();
    open.sync_all().unwrap();
    signal(daemon, Signal::KILL);
    assert!(wait_for(Duration::from_secs(60), || !alive(daemon)));
    drop(open);
    assert_eq!(fs::read_to_string(&file).unwrap(), "again");
    site.umount();
    assert_eq!(fs::read_to_string(&below).unwrap(), "again");
}

#[test]
fn upgrade_when_the_new_daemon_can_not_serve_then_no_clean_end_is_noted() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let daemon = site.daemon();
    fs::write(site.path("mnt/file"), "text").unwrap();
    let program = failing_after_it_began(&site, "node.resumed=return");
    let (code, text) = upgrade(&site, &["--program", &program]);
    assert_ne!(code, 0, "{text}");
    assert!(site.path("home/successor").exists(), "{text}");
    assert_eq!(site.daemon(), daemon, "{text}");
    assert!(!site.path("tier/state/clean-end").exists(), "a power cut would not be noticed");
    assert_eq!(fs::read_to_string(site.path("mnt/file")).unwrap(), "text");
    site.umount();
}

/// Its mount is kept, but who keeps it was told to wait for a daemon that the one before has buried.
#[test]
fn daemon_when_it_dies_at_taking_back_what_its_dead_successor_had_then_another_one_serves() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let (tier, backing, mnt) = (site.text("tier"), site.text("backing"), site.text("mnt"));
    let mut mount = site.command(env!("CARGO_BIN_EXE_forebay"));
    mount.args(["mount", &backing, &mnt, "--tier", &format!("{tier}=64M")]);
    let (code, text) = outcome(mount.env("FAILPOINTS", "node.resumed=sleep(6000)"));
    assert_eq!(code, 0, "{text}");
    let daemon = site.daemon();
    fs::write(site.path("mnt/file"), "text").unwrap();
    let program = failing_after_it_began(&site, "node.kept=return");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| upgrade(&site, &["--program", &program]));
        let successor =
            || fs::read_to_string(site.path("home/successor")).ok()?.trim().parse().ok();
        assert!(wait_for(Duration::from_secs(50), || successor().is_some()));
        let successor: i32 = successor().unwrap();
        // Buried, not only dead.
        let place = std::path::PathBuf::from(format!("/proc/{successor}"));
        assert!(wait_for(Duration::from_secs(50), || !place.exists()), "it does not fail");
        signal(daemon, Signal::KILL);
        assert_ne!(asked.join().unwrap().0, 0);
    });
    let mut read = site.command_within("60", "cat");
    let (code, text) = outcome(read.arg(site.path("mnt/file")));
    assert_eq!((code, text.as_str()), (0, "text"));
    assert_ne!(site.daemon(), daemon);
    site.umount();
}

#[test]
fn upgrades_when_two_are_asked_for_at_once_then_each_has_its_turn() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let mut known = vec![site.daemon()];
    for round in 0..3 {
        let outcomes = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| upgrade(&site, &["--json"]));
            [ask(), ask()].map(|asked| asked.join().unwrap())
        });
        for (code, text) in outcomes {
            assert_eq!(code, 0, "round {round}: {text}");
            let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
            let pid = i32::try_from(outcome["pid"].as_i64().unwrap()).unwrap();
            assert!(!known.contains(&pid), "round {round}: {text}");
            known.push(pid);
        }
        assert!(known[known.len() - 2..].contains(&site.daemon()), "round {round}");
    }
    site.umount();
}
