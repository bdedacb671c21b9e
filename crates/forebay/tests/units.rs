//! The units for systemd, as systemd itself judges them.

mod site;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use site::{Site, can_mount, outcome};

/// The exposure that docs/guide/operations.md gives; systemd calls up to 4.9 "OK".
const EXPOSURE: f64 = 3.8;

/// A directory with the shipped units, as an administrator enables them; nothing without systemd.
fn enabled() -> Option<tempfile::TempDir> {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: systemd-analyze is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
    fs::copy(shipped.join("data.mount"), dir.path().join("data.mount")).unwrap();
    // What it runs need not be installed, and the manual neither.
    let service = fs::read_to_string(shipped.join("forebay@.service")).unwrap();
    let service = service.replace("/usr/local/bin/forebay", "/bin/true");
    let service = service.replace("Documentation=man:forebay(1)\n", "");
    fs::write(dir.path().join("forebay@x.service"), service).unwrap();
    let wants = dir.path().join("remote-fs.target.wants");
    fs::create_dir(&wants).unwrap();
    symlink("../data.mount", wants.join("data.mount")).unwrap();
    Some(dir)
}

fn analyze(dir: &Path, arguments: &[&str]) -> String {
    let mut path = dir.as_os_str().to_owned();
    // An empty last part stands for the directories of the system.
    path.push(":");
    let mut command = Command::new("systemd-analyze");
    let output = command.args(arguments).env("SYSTEMD_UNIT_PATH", path).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn units_when_verified_then_no_fault_and_no_ordering_cycle() {
    let Some(dir) = enabled() else { return };
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let with_network = path("forebay@x.service.d");
    for _ in 0..2 {
        for unit in ["data.mount", "forebay@x.service"] {
            let unit = path(unit);
            let said = analyze(dir.path(), &["verify", unit.to_str().unwrap(), "remote-fs.target"]);
            let ours =
                said.lines().filter(|line| line.contains("data") || line.contains("forebay"));
            assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
        }
        if !with_network.exists() {
            fs::create_dir(&with_network).unwrap();
            let part = "../../dist/systemd/forebay@.service.d/network.conf";
            let part = Path::new(env!("CARGO_MANIFEST_DIR")).join(part);
            fs::copy(part, with_network.join("network.conf")).unwrap();
        }
    }
}

#[test]
fn service_unit_when_its_exposure_is_measured_then_as_documented() {
    let Some(dir) = enabled() else { return };
    let unit = dir.path().join("forebay@x.service");
    let said = analyze(dir.path(), &["security", "--offline=true", unit.to_str().unwrap()]);
    let line = said.lines().find(|line| line.contains("Overall exposure level")).unwrap_or(&said);
    let level = line.rsplit(": ").next().and_then(|rest| rest.split(' ').next()?.parse().ok());
    let level: f64 = level.unwrap_or_else(|| panic!("no level in {said}"));
    assert!(level <= EXPOSURE, "{line}");
}

#[test]
fn mount_when_its_daemon_has_a_network_of_its_own_then_everybody_sees_it() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), b"text").unwrap();
    let tier = format!("{}=64M", site.text("tier"));
    let mut command = site.command("unshare");
    command.args(["--net", env!("CARGO_BIN_EXE_forebay"), "mount"]);
    command.args([&site.text("backing"), &site.text("mnt"), "--tier", &tier]);
    let (code, text) = outcome(&mut command);
    if text.contains("unshare failed") {
        eprintln!("skipped: {text}");
        return;
    }
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    fs::write(site.path("mnt/new"), b"written").unwrap();
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
    assert_ne!(network(&site.daemon().to_string()), network("self"));
    site.umount();
    assert_eq!(fs::read(site.path("backing/new")).unwrap(), b"written");
}
