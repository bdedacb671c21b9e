//! A rebuild that meets what it can't go on with: it can be run again, and nothing loses its name.

mod disk;
mod site;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use disk::{Disk, Immutable, fill};
use site::{Site, can_mount, outcome};

/// A mount whose tier is on a disk of its own.
struct Scene {
    site: Site,
    disk: Disk,
}

impl Scene {
    fn new(size: u64) -> Option<Self> {
        let site = Site::new();
        let disk = Disk::new(&site, "disk", size)?;
        Some(Scene { site, disk })
    }

    fn tier(&self) -> PathBuf {
        self.disk.dir.join("t")
    }

    fn mount(&self) {
        let tier = format!("{}=20M", self.tier().display());
        let (backing, mnt) = (self.site.text("backing"), self.site.text("mnt"));
        let args = ["mount", &backing, &mnt, "--tier", &tier, "--writeback", "evict"];
        let (code, text) = self.site.run(&args);
        assert_eq!(code, 0, "{text}");
    }

    fn leave(&self) {
        let (code, text) = self.site.run(&["umount", "--no-drain", &self.site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
    }

    fn fsck(&self, how: &[&str]) -> (i32, String) {
        let (backing, tier) = (self.site.text("backing"), self.tier().display().to_string());
        self.site.run(&[&["fsck"], how, &["--backing", &backing, &tier]].concat())
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

/// The room ends at another place of the rebuild each time.
#[test]
fn rebuild_when_its_disk_is_full_then_it_can_be_run_again_and_every_file_has_its_name() {
    if !can_mount() {
        return;
    }
    let mut rounds = 0;
    for kib in [550, 650, 750] {
        let Some(scene) = Scene::new(40 << 20) else { return };
        scene.mount();
        for number in 0..300 {
            fs::write(scene.at(&format!("s{number}")), format!("{number}")).unwrap();
        }
        let bytes = |number: u32| vec![number as u8 + 1; 1_000_000];
        for number in 0..8 {
            fs::write(scene.at(&format!("f{number}")), bytes(number)).unwrap();
        }
        synced(&scene.at("past"), b"");
        let filler = fill(&scene.disk.dir);
        // There is room for it in the backing store alone; the index may have none for that any more.
        if fs::write(scene.at("past"), vec![9; 3_000_000]).is_err() {
            continue;
        }
        fs::File::open(scene.at("past")).unwrap().sync_all().unwrap();
        rounds += 1;
        let spills = scene.site.path("backing/.forebay/spill");
        assert!(fs::read_dir(&spills).unwrap().count() > 0, "nothing is past the tier");
        scene.leave();
        let _there_or_not = fs::remove_file(scene.tier().join("state/meta.ballast"));
        let second = scene.disk.dir.join("filler2");
        fs::rename(&filler, &second).unwrap();
        let more = fill(&scene.disk.dir);
        let len = fs::metadata(&second).unwrap().len();
        fs::File::options().write(true).open(&second).unwrap().set_len(len - kib * 1024).unwrap();
        let (code, text) = scene.fsck(&["--rebuild"]);
        println!("{kib} KiB: {code} {text}");
        if code != 0 {
            assert!(text.contains("run") && text.contains("again"), "{kib} KiB: {text}");
            assert!(!text.contains("by themselves"), "{kib} KiB: {text}");
            assert!(!text.contains("set aside as"), "{kib} KiB: {text}");
        }
        fs::remove_file(second).unwrap();
        fs::remove_file(more).unwrap();
        let (code, text) = scene.fsck(&["--rebuild"]);
        assert_eq!(code, 0, "{kib} KiB: {text}");
        scene.mount();
        assert_eq!(fs::read(scene.at("past")).unwrap(), vec![9; 3_000_000], "{kib} KiB");
        for number in 0..8 {
            let found = fs::read(scene.at(&format!("f{number}"))).unwrap();
            assert!(found == bytes(number), "{kib} KiB: f{number}");
        }
        assert_eq!(fs::read_dir(scene.site.path("mnt")).unwrap().count(), 309, "{kib} KiB");
        scene.site.umount();
    }
    assert!(rounds > 0);
}

#[test]
fn rebuild_when_the_backing_store_is_full_then_a_spill_file_waits_with_its_name() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let (store, mnt) = (site.text("backing"), site.text("mnt"));
    let (tier, state) = (site.text("small"), format!("--state-dir={}", site.text("state")));
    fs::create_dir(&tier).unwrap();
    let mounted = |dir: &str, how: &str| {
        let mut mount = site.command("mount");
        let (code, text) = outcome(mount.args(["-t", "tmpfs", "-o", how, "none", dir]));
        assert_eq!(code, 0, "{text}");
    };
    mounted(&tier, "size=2m");
    mounted(&store, "size=4m");
    let bytes = vec![7; 3 << 20];
    let tier_of = format!("{tier}=1M");
    let args = ["mount", &store, &mnt, "--tier", &tier_of, &state, "--writeback", "evict"];
    let mount = || site.run(&args);
    let (code, text) = mount();
    assert_eq!(code, 0, "{text}");
    synced(&site.path("mnt/past"), &bytes);
    let (code, text) = site.run(&["umount", "--no-drain", &mnt]);
    assert_eq!(code, 0, "{text}");
    let rebuild = || site.run(&["fsck", "--rebuild", "--backing", &store, &state, &tier]);
    for _ in 0..2 {
        let (code, text) = rebuild();
        let waits = text.contains("past") && text.contains("it stays where it is");
        assert!(code == 6 && waits && text.contains("run the rebuild again"), "{code} {text}");
        assert!(!text.contains("set aside as"), "{text}");
    }
    let (code, text) = mount();
    assert!(code == 6 && text.contains("fsck --rebuild"), "{code} {text}");
    mounted(&store, "remount,size=16m");
    let (code, text) = rebuild();
    assert_eq!(code, 0, "{text}");
    let (code, text) = mount();
    assert_eq!(code, 0, "{text}");
    assert!(fs::read(site.path("mnt/past")).unwrap() == bytes);
    site.umount();
    assert!(fs::read(site.path("backing/past")).unwrap() == bytes);
    for dir in [&tier, &store] {
        drop(outcome(site.command("umount").args(["-l", dir])));
    }
}

#[test]
fn rebuild_when_an_object_gives_no_answer_then_it_is_not_complete_until_it_was_run_again() {
    if !can_mount() {
        return;
    }
    let Some(scene) = Scene::new(64 << 20) else { return };
    scene.mount();
    synced(&scene.at("a"), b"keep");
    synced(&scene.at("b"), b"keep too");
    let object = scene.object_of("a");
    scene.leave();
    let immutable = Immutable::new(object);
    let (code, text) = scene.fsck(&["--rebuild"]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("of a: ") && text.contains("again"), "{text}");
    for how in [&[][..], &["--repair"], &["--accept-loss"]] {
        let (code, text) = scene.fsck(how);
        assert!(code == 6 && text.contains("fsck --rebuild"), "{how:?}: {code} {text}");
    }
    drop(immutable);
    let (code, text) = scene.fsck(&["--rebuild"]);
    assert_eq!(code, 0, "{text}");
    scene.mount();
    assert_eq!(fs::read(scene.at("a")).unwrap(), b"keep");
    assert_eq!(fs::read(scene.at("b")).unwrap(), b"keep too");
    scene.site.umount();
    assert_eq!(fs::read(scene.site.path("backing/a")).unwrap(), b"keep");
}

/// Nothing but a note says that nobody needs an object any more.
#[test]
fn object_that_the_index_does_not_know_then_fsck_says_so_and_it_is_kept_and_named() {
    if !can_mount() {
        return;
    }
    let Some(scene) = Scene::new(64 << 20) else { return };
    scene.mount();
    synced(&scene.at("a"), b"keep");
    synced(&scene.at("b"), b"keep too");
    let object = scene.object_of("a");
    scene.leave();
    let immutable = Immutable::new(object);
    let (code, text) = scene.fsck(&["--rebuild", "--accept-loss"]);
    assert!(code == 6 && text.contains("of a: "), "{code} {text}");
    drop(immutable);
    for how in [&[][..], &["--repair"]] {
        let (code, text) = scene.fsck(how);
        let named = text.contains("(a)") && text.contains("fsck --rebuild");
        assert!(code == 6 && named, "{how:?}: {code} {text}");
    }
    scene.mount();
    let (_, status) = scene.site.run(&["status", &scene.site.text("mnt")]);
    let kept = fs::read_dir(scene.tier().join("lost")).unwrap().next().unwrap().unwrap().path();
    assert!(status.contains(kept.to_str().unwrap()), "{status}");
    assert_eq!(fs::read(kept).unwrap(), b"keep");
    scene.site.umount();
}
