//! One test for each wrong layout, on real directories with the machine's answers replaced where
//! a test can't bring them about.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::{Origin, Setting, Settings};

/// The real machine, except for what a test says otherwise.
struct Machine {
    fuse: Option<io::ErrorKind>,
    may_mount: bool,
    fusermount: bool,
    user_allow_other: bool,
    mounts: Vec<Mount>,
    /// A directory below which everything is on a device of its own.
    other_device: RefCell<Option<PathBuf>>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            fuse: None,
            may_mount: true,
            fusermount: true,
            user_allow_other: true,
            mounts: Vec::new(),
            other_device: RefCell::new(None),
        }
    }
}

impl Facts for Machine {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        SystemFacts.canonical(path)
    }
    fn directory(&self, path: &Path) -> io::Result<Directory> {
        SystemFacts.directory(path)
    }
    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        let own = self.other_device.borrow().as_ref().is_some_and(|dir| path.starts_with(dir));
        let device = if own { 2 } else { 1 };
        Ok(FileSystem { device, total_bytes: 10 << 30, free_bytes: 5 << 30 })
    }
    fn writable(&self, path: &Path) -> io::Result<()> {
        SystemFacts.writable(path)
    }
    fn mounts(&self) -> Vec<Mount> {
        self.mounts.clone()
    }
    fn fuse_device(&self) -> io::Result<()> {
        self.fuse.map_or(Ok(()), |kind| Err(kind.into()))
    }
    fn may_mount(&self) -> bool {
        self.may_mount
    }
    fn has_fusermount(&self) -> bool {
        self.fusermount
    }
    fn user_allow_other(&self) -> bool {
        self.user_allow_other
    }
}

/// Directories for one test, and the findings that a configuration over them gives.
struct Site {
    root: tempfile::TempDir,
    machine: Machine,
}

impl Site {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for dir in ["backing", "mnt", "tier"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        let machine = Machine::default();
        machine.other_device.replace(Some(fs::canonicalize(root.path()).unwrap().join("tier")));
        Self { root, machine }
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.root.path()).unwrap().join(name)
    }

    fn findings(&self, backing: &str, mountpoint: &str, tiers: &[&str]) -> Vec<Finding> {
        self.findings_with(backing, mountpoint, tiers, &[])
    }

    fn findings_with(
        &self,
        backing: &str,
        mountpoint: &str,
        tiers: &[&str],
        more: &[(&str, &str)],
    ) -> Vec<Finding> {
        let mut settings = Settings::default();
        let mut offer = |key: &str, texts: Vec<std::ffi::OsString>| {
            settings.offer(Setting::find(key).unwrap(), texts, Origin::Flag);
        };
        offer("backing", vec![self.path(backing).into()]);
        offer("mountpoint", vec![self.path(mountpoint).into()]);
        offer("tier", tiers.iter().map(|tier| self.path(tier).into()).collect());
        for (key, text) in more {
            offer(key, vec![text.into()]);
        }
        settings.fill_defaults();
        let config = MountConfig::from_settings(&settings, &["s3fifo"]).unwrap();
        validate(&config, &self.machine)
    }
}

/// Asserts that there is exactly one finding, an error with this text in it.
fn assert_error(findings: &[Finding], part: &str) {
    assert!(
        matches!(findings, [Finding::Error(text)] if text.contains(part)),
        "wanted one error with {part:?}, got {findings:#?}"
    );
}

fn assert_warning(findings: &[Finding], part: &str) {
    assert!(
        matches!(findings, [Finding::Warning(text)] if text.contains(part)),
        "wanted one warning with {part:?}, got {findings:#?}"
    );
}

#[test]
fn validate_when_all_is_well_then_nothing_is_found() {
    assert_eq!(Site::new().findings("backing", "mnt", &["tier=1G"]), []);
    assert_eq!(Site::new().findings("backing", "mnt", &["tier/a=1G", "tier/b=50%"]), []);
}

#[test]
fn validate_when_backing_is_missing_or_no_directory_then_error() {
    let site = Site::new();
    assert_error(
        &site.findings("nowhere", "mnt", &["tier=1G"]),
        "does not exist; is its file system mounted?",
    );
    fs::write(site.path("file"), "x").unwrap();
    assert_error(&site.findings("file", "mnt", &["tier=1G"]), "is not a directory");
}

#[test]
fn validate_when_backing_is_unreadable_then_error() {
    struct Unreadable(Machine, PathBuf);
    impl Facts for Unreadable {
        fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
            self.0.canonical(path)
        }
        fn directory(&self, path: &Path) -> io::Result<Directory> {
            if path == self.1 {
                Err(io::ErrorKind::PermissionDenied.into())
            } else {
                self.0.directory(path)
            }
        }
        fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
            self.0.file_system(path)
        }
        fn writable(&self, path: &Path) -> io::Result<()> {
            SystemFacts.writable(path)
        }
        fn mounts(&self) -> Vec<Mount> {
            Vec::new()
        }
        fn fuse_device(&self) -> io::Result<()> {
            Ok(())
        }
        fn may_mount(&self) -> bool {
            true
        }
        fn has_fusermount(&self) -> bool {
            true
        }
        fn user_allow_other(&self) -> bool {
            true
        }
    }
    let site = Site::new();
    let mut settings = Settings::default();
    for (key, text) in [("backing", "backing"), ("mountpoint", "mnt"), ("tier", "tier=1G")] {
        settings.offer(Setting::find(key).unwrap(), vec![site.path(text).into()], Origin::Flag);
    }
    settings.fill_defaults();
    let config = MountConfig::from_settings(&settings, &["s3fifo"]).unwrap();
    let machine =
        Machine { other_device: RefCell::new(Some(site.path("tier"))), ..Machine::default() };
    let facts = Unreadable(machine, site.path("backing"));
    assert_error(&validate(&config, &facts), "can't be read by this user");
}

#[test]
fn validate_when_mountpoint_is_missing_then_it_tells_how_to_make_it() {
    assert_error(
        &Site::new().findings("backing", "none", &["tier=1G"]),
        "create it with `mkdir -p",
    );
}

#[test]
fn validate_when_mountpoint_is_not_empty_then_warning() {
    let site = Site::new();
    fs::write(site.path("mnt/file"), "x").unwrap();
    assert_warning(&site.findings("backing", "mnt", &["tier=1G"]), "is not empty");
}

#[test]
fn validate_when_the_store_must_be_mounted_then_only_the_root_file_system_is_an_error() {
    let mut site = Site::new();
    let mount = |mountpoint: PathBuf| Mount { mountpoint, kind: "ext4".into(), ..Mount::default() };
    site.machine.mounts = vec![mount("/".into())];
    let findings = |site: &Site| {
        site.findings_with("backing", "mnt", &["tier=1G"], &[("require-mounted", "true")])
    };
    assert_error(&findings(&site), "is on the root file system");
    assert_eq!(site.findings("backing", "mnt", &["tier=1G"]), []);
    site.machine.mounts.push(mount(site.path("backing")));
    assert_eq!(findings(&site), []);
}

#[test]
fn validate_when_others_can_exchange_a_tier_then_warning() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let site = Site::new();
    let shared = site.path("shared");
    fs::create_dir(&shared).unwrap();
    let mode = |mode| fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
    let own_device = |site: &Site| {
        site.machine.other_device.replace(Some(shared.clone()));
        site.findings("backing", "mnt", &["shared/tier=1G"])
    };
    for fine in [0o755, 0o1777] {
        mode(fine);
        assert_eq!(own_device(&site), [], "{fine:o}");
    }
    mode(0o777);
    assert_warning(&own_device(&site), "can be written by others");
    mode(0o755);
    if rustix::process::geteuid().is_root() {
        chown(&shared, Some(65_534), None).unwrap();
        assert_warning(&own_device(&site), "belongs to user 65534");
    }
}

#[test]
fn validate_when_already_mounted_then_error_even_if_the_daemon_is_dead() {
    let mut site = Site::new();
    let mount =
        Mount { mountpoint: site.path("mnt"), kind: "fuse.forebay".into(), ..Mount::default() };
    site.machine.mounts = vec![mount];
    assert_error(&site.findings("backing", "mnt", &["tier=1G"]), "a Forebay mount is here already");
}

#[test]
fn validate_when_mounts_are_nested_then_error() {
    let mut site = Site::new();
    fs::create_dir(site.path("mnt/inner")).unwrap();
    let mount =
        Mount { mountpoint: site.path("mnt"), kind: "fuse.forebay".into(), ..Mount::default() };
    site.machine.mounts = vec![mount];
    assert_error(
        &site.findings("backing", "mnt/inner", &["tier=1G"]),
        "nested mounts are not possible",
    );
    fs::create_dir(site.path("other")).unwrap();
    assert_error(
        &site.findings("mnt/inner", "other", &["tier=1G"]),
        "lies on a Forebay mount itself",
    );
}

#[test]
fn validate_when_mountpoint_and_backing_overlap_then_error() {
    let site = Site::new();
    fs::create_dir_all(site.path("backing/in")).unwrap();
    assert_error(
        &site.findings("backing", "backing/in", &["tier=1G"]),
        "would then contain itself",
    );
    assert_error(&site.findings("backing", "backing", &["tier=1G"]), "is the backing store itself");
    let site = Site::new();
    fs::create_dir_all(site.path("mnt/data")).unwrap();
    let findings = site.findings("mnt/data", "mnt", &["tier=1G"]);
    assert!(
        findings
            .iter()
            .any(|f| matches!(f, Finding::Error(t) if t.contains("which the mount would hide"))),
        "{findings:?}"
    );
}

#[test]
fn validate_when_tier_and_others_overlap_then_error() {
    let site = Site::new();
    let findings = site.findings("backing", "mnt", &["backing/t=1G"]);
    assert!(
        findings
            .iter()
            .any(|f| matches!(f, Finding::Error(t) if t.contains("lies inside the backing store"))),
        "{findings:?}"
    );
    fs::create_dir(site.path("tier/b")).unwrap();
    let findings = site.findings("tier/b", "mnt", &["tier=1G"]);
    assert!(
        findings
            .iter()
            .any(|f| matches!(f, Finding::Error(t) if t.contains("contains the backing store"))),
        "{findings:?}"
    );
    fs::create_dir(site.path("tier/m")).unwrap();
    assert_error(&site.findings("backing", "tier/m", &["tier=1G"]), "lies inside the tier");
    site.machine.other_device.replace(Some(site.path("mnt")));
    assert_error(&site.findings("backing", "mnt", &["mnt/t=1G"]), "lies below the mount point");
}

#[test]
fn validate_when_tier_is_behind_a_link_then_its_true_place_counts() {
    let site = Site::new();
    std::os::unix::fs::symlink(site.path("backing"), site.path("link")).unwrap();
    let findings = site.findings("backing", "mnt", &["link/t=1G"]);
    assert!(
        findings
            .iter()
            .any(|f| matches!(f, Finding::Error(t) if t.contains("lies inside the backing store"))),
        "{findings:?}"
    );
}

#[test]
fn validate_when_tier_shares_the_backing_file_system_then_warning() {
    let site = Site::new();
    site.machine.other_device.replace(None);
    assert_warning(
        &site.findings("backing", "mnt", &["tier=1G"]),
        "the backing store's own file system",
    );
}

#[test]
fn validate_when_tier_sizes_are_impossible_then_error() {
    let site = Site::new();
    assert_error(&site.findings("backing", "mnt", &["tier=0"]), "a size of 0 keeps nothing");
    assert_error(&site.findings("backing", "mnt", &["tier=0%"]), "a size of 0 keeps nothing");
    assert_error(
        &site.findings("backing", "mnt", &["tier=20G"]),
        "is more than its file system has (10.0 GiB)",
    );
    assert_warning(
        &site.findings("backing", "mnt", &["tier/new=8G"]),
        "only 5.00 GiB of 8.00 GiB are free",
    );
}

#[test]
fn validate_when_tiers_are_the_same_or_nested_then_error() {
    let site = Site::new();
    assert_error(&site.findings("backing", "mnt", &["tier=1G", "tier=2G"]), "given twice");
    assert_error(
        &site.findings("backing", "mnt", &["tier=1G", "tier/b=2G"]),
        "tiers must be apart",
    );
}

#[test]
fn validate_when_tier_is_a_file_then_error() {
    let site = Site::new();
    fs::write(site.path("tier/file"), "x").unwrap();
    assert_error(&site.findings("backing", "mnt", &["tier/file=1G"]), "is not a directory");
}

#[test]
fn validate_when_fuse_is_missing_then_it_tells_how_to_get_it() {
    let mut site = Site::new();
    site.machine.fuse = Some(io::ErrorKind::NotFound);
    assert_error(&site.findings("backing", "mnt", &["tier=1G"]), "/dev/fuse is missing");
}

#[test]
fn validate_when_a_plain_user_lacks_fusermount_then_error() {
    let mut site = Site::new();
    site.machine.may_mount = false;
    assert_eq!(site.findings("backing", "mnt", &["tier=1G"]), []);
    site.machine.fusermount = false;
    assert_error(&site.findings("backing", "mnt", &["tier=1G"]), "install the package fuse3");
}

#[test]
fn validate_when_a_plain_user_shares_without_permission_then_error() {
    let mut site = Site::new();
    site.machine.may_mount = false;
    site.machine.user_allow_other = false;
    let findings = site.findings_with("backing", "mnt", &["tier=1G"], &[("allow-other", "true")]);
    assert_error(&findings, "user_allow_other");
}

#[test]
fn validate_when_a_plain_user_wants_set_id_bits_then_error() {
    let mut site = Site::new();
    let suid = &[("suid", "true"), ("dev", "false")];
    assert_eq!(site.findings_with("backing", "mnt", &["tier=1G"], suid), []);
    site.machine.may_mount = false;
    assert_error(&site.findings_with("backing", "mnt", &["tier=1G"], suid), "--suid: only root's");
}

#[test]
fn validate_when_everything_is_wrong_then_everything_is_told() {
    let site = Site::new();
    let findings = site.findings("nowhere", "none", &["tier=0", "tier=20G"]);
    let errors = findings.iter().filter(|finding| matches!(finding, Finding::Error(_))).count();
    assert_eq!(errors, 5, "{findings:#?}");
}
