//! What is said and done where it is a tier that refuses something, not the backing store.

mod disk;
mod site;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use disk::{Disk, Immutable};
use site::{Site, can_mount, wait_for};

/// A command that waits for something is ended by the tests only after this.
const SOON: Duration = Duration::from_secs(30);

/// A mount with its state elsewhere, and a tier on a disk of its own.
struct Scene {
    site: Site,
    disk: Disk,
}

impl Scene {
    fn new() -> Option<Self> {
        let site = Site::new();
        let disk = Disk::new(&site, "disk", 64 << 20)?;
        Some(Scene { site, disk })
    }

    fn tier(&self) -> PathBuf {
        self.disk.dir.join("t")
    }

    fn try_to_mount(&self) -> (i32, String) {
        let tier = format!("{}=20M", self.tier().display());
        let state = format!("--state-dir={}", self.site.text("state"));
        let (backing, mnt) = (self.site.text("backing"), self.site.text("mnt"));
        let args = ["mount", &backing, &mnt, "--tier", &tier, &state, "--writeback", "evict"];
        self.site.run(&args)
    }

    fn mount(&self) {
        let (code, text) = self.try_to_mount();
        assert_eq!(code, 0, "{text}");
    }

    fn of_mount(&self, command: &[&str]) -> (i32, String) {
        self.site.run(&[command, &[&self.site.text("mnt")]].concat())
    }

    fn fsck(&self, how: &[&str]) -> (i32, String) {
        let (backing, tier) = (self.site.text("backing"), self.tier().display().to_string());
        let state = format!("--state-dir={}", self.site.text("state"));
        self.site.run(&[&["fsck"], how, &["--backing", &backing, &state, &tier]].concat())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.site.path("mnt").join(name)
    }

    /// The object of a file on the mount.
    fn object_of(&self, name: &str) -> PathBuf {
        let ino = fs::metadata(self.at(name)).unwrap().ino();
        let fans = fs::read_dir(self.tier().join("objects")).unwrap();
        let mut paths = fans.map(|fan| fan.unwrap().path().join(format!("{ino:016x}")));
        paths.find(|path| path.exists()).expect("an object")
    }
}

fn synced(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn tier_when_its_file_system_is_read_only_then_a_sync_names_its_files_and_ends() {
    const NAMES: [&str; 3] = ["first", "second", "third"];
    if !can_mount() {
        return;
    }
    let Some(scene) = Scene::new() else { return };
    scene.mount();
    for name in NAMES {
        synced(&scene.at(name), name.as_bytes());
    }
    scene.disk.make_read_only(&scene.site);
    for _ in 0..2 {
        let began = Instant::now();
        let (code, text) = scene.of_mount(&["sync"]);
        assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
        assert_eq!(code, 1, "{text}");
        for name in NAMES {
            assert!(text.contains(name), "{name} is not named: {text}");
        }
        assert!(!text.contains("backing store does not take"), "{text}");
        let tier = scene.tier().display().to_string();
        assert!(text.contains(&tier) && text.contains("Read-only"), "{text}");
    }
    let began = Instant::now();
    let (code, text) = scene.of_mount(&["umount"]);
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    assert!(code == 4 && text.contains("first"), "{code} {text}");
    let tells = |text: &str| {
        text.contains(&format!("{}: its file system is read-only", scene.tier().display()))
    };
    let (code, text) = scene.try_to_mount();
    assert!(code == 6 && tells(&text), "{code} {text}");
    let (code, text) = scene.fsck(&[]);
    let counts = text.contains("checked 3 objects") && text.contains("3 not yet in the backing");
    assert!(code == 6 && tells(&text) && counts, "{code} {text}");
    assert!(!text.contains("sets it aside") && !text.contains("are gone"), "{text}");
    for how in ["--repair", "--rebuild"] {
        let (code, text) = scene.fsck(&[how]);
        assert!(code == 6 && tells(&text), "{how}: {code} {text}");
    }
    scene.disk.repair(&scene.site);
    scene.mount();
    for name in NAMES {
        assert_eq!(fs::read(scene.at(name)).unwrap(), name.as_bytes());
    }
    scene.site.umount();
    assert_eq!(fs::read(scene.site.path("backing/second")).unwrap(), b"second");
}

#[test]
fn object_that_can_not_be_opened_then_the_tier_is_named_and_a_repair_reports_all() {
    if !can_mount() {
        return;
    }
    let Some(scene) = Scene::new() else { return };
    scene.mount();
    for name in ["one", "two"] {
        synced(&scene.at(name), name.as_bytes());
    }
    let objects = ["one", "two"].map(|name| scene.object_of(name));
    // What is open needs no right any more.
    let (code, text) = scene.of_mount(&["umount", "--no-drain"]);
    assert_eq!(code, 0, "{text}");
    scene.mount();
    let immutable = objects.clone().map(Immutable::new);
    let (code, text) = scene.of_mount(&["sync"]);
    assert_eq!(code, 1, "{text}");
    let names_tier = |text: &str| text.contains("that is the tier, not the backing store");
    assert!(text.contains("one") && text.contains("two") && names_tier(&text), "{text}");
    let (_, text) = scene.of_mount(&["status"]);
    assert!(text.contains("one: its tier does not give its bytes"), "{text}");
    assert!(!text.contains("backing store does not take"), "{text}");
    let (code, text) = scene.of_mount(&["umount", "--no-drain"]);
    assert_eq!(code, 0, "{text}");
    for how in [&[][..], &["--repair"], &["--accept-loss"]] {
        let (code, text) = scene.fsck(how);
        assert_eq!(code, 6, "{how:?}: {text}");
        for object in &objects {
            assert!(text.contains(object.to_str().unwrap()), "{how:?}: {text}");
        }
        assert!(!text.contains("set aside as") && !text.contains("are gone"), "{how:?}: {text}");
    }
    drop(immutable);
    let (code, text) = scene.fsck(&[]);
    assert_eq!(code, 0, "{text}");
    scene.mount();
    assert_eq!(fs::read(scene.at("one")).unwrap(), b"one");
    scene.site.umount();
    assert_eq!(fs::read(scene.site.path("backing/two")).unwrap(), b"two");
}

#[test]
fn object_that_a_start_can_not_open_then_its_file_is_not_called_lost() {
    if !can_mount() {
        return;
    }
    let Some(scene) = Scene::new() else { return };
    scene.mount();
    for name in ["kept", "removed"] {
        synced(&scene.at(name), name.as_bytes());
    }
    let objects = ["kept", "removed"].map(|name| scene.object_of(name));
    let end = || {
        let (code, text) = scene.of_mount(&["umount", "--no-drain"]);
        assert_eq!(code, 0, "{text}");
    };
    end();
    let immutable = objects.map(Immutable::new);
    scene.mount();
    let (_, text) = scene.of_mount(&["status"]);
    assert!(text.contains("unseen       2 files") && text.contains("mount again"), "{text}");
    for wrong in ["nothing is left", "bytes are gone", "accept-loss"] {
        assert!(!text.contains(wrong), "{text}");
    }
    let (code, text) = scene.of_mount(&["sync"]);
    assert!(
        code == 1 && text.contains("kept: what there is of it could not be looked at"),
        "{text}"
    );
    assert!(fs::read(scene.at("kept")).is_err());
    fs::remove_file(scene.at("removed")).unwrap();
    let named = || scene.of_mount(&["status"]).1;
    assert!(wait_for(SOON, || named().contains("unseen       1 files")), "{}", named());
    let text = named();
    let lines: Vec<&str> = text.lines().collect();
    assert!(!lines.iter().any(|line| line.trim().is_empty()), "a file without a name: {text}");
    let (code, text) = scene.of_mount(&["upgrade"]);
    assert_eq!(code, 0, "{text}");
    assert!(named().contains("unseen       1 files"), "{}", named());
    end();
    drop(immutable);
    let (code, text) = scene.fsck(&["--repair"]);
    assert_eq!(code, 0, "{text}");
    scene.mount();
    assert_eq!(fs::read(scene.at("kept")).unwrap(), b"kept");
    assert!(!scene.at("removed").exists());
    scene.site.umount();
    assert!(!scene.site.path("backing/removed").exists());
}
