//! What a mount does when a tier, its index or an object is not what it was: it refuses by name, or
//! sets aside what it can't use; what may be the only copy is never unlinked.

mod site;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use site::*;

/// The exit code of state that can't be used as it is.
const UNSUPPORTED: i32 = 5;
const BAD_STATE: i32 = 6;

/// Two tiers, of which the second has what is large.
fn two_tiers(site: &Site) -> [String; 2] {
    [format!("{}=8M", site.text("one")), format!("{}=64M", site.text("two"))]
}

fn mount_tiers(site: &Site, tiers: &[&str], more: &[&str]) -> (i32, String) {
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut args = vec!["mount", &backing, &mnt, "--writeback", "evict"];
    for tier in tiers {
        args.extend(["--tier", tier]);
    }
    args.extend(more);
    site.run(&args)
}

fn umount_dirty(site: &Site) {
    let (code, text) = site.run(&["umount", "--no-drain", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
}

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let kind = entry.file_type().unwrap();
            match kind.is_dir() {
                true => dirs.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}

/// The object that holds these bytes.
fn object_with(tier: &Path, bytes: &[u8]) -> PathBuf {
    let holds = |path: &PathBuf| fs::read(path).is_ok_and(|found| found == bytes);
    files_below(&tier.join("objects")).into_iter().find(holds).expect("an object has the bytes")
}

fn set_header(object: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut header = vec![0; 4096];
    let len = rustix::fs::getxattr(object, "user.forebay", &mut header[..]).unwrap();
    header.truncate(len);
    change(&mut header);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(object, "user.forebay", &header, flags).unwrap();
}

#[test]
fn tier_when_it_is_missing_then_the_mount_is_refused_by_name_until_it_is_given_up() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let names = ["a", "b", "c"];
    for name in names {
        fs::write(site.path("backing").join(name), "old").unwrap();
    }
    let tiers = two_tiers(&site);
    let both = [&*tiers[0], &*tiers[1]];
    assert_eq!(mount_tiers(&site, &both, &[]).0, 0);
    let (new, mnt) = (vec![7; 5 << 20], site.path("mnt"));
    // More than the first tier holds.
    for name in names {
        fs::write(mnt.join(name), &new).unwrap();
    }
    umount_dirty(&site);
    assert!(!files_below(&site.path("two/objects")).is_empty());
    // Its device is not mounted: an empty directory is there in its place.
    fs::rename(site.path("two"), site.path("elsewhere")).unwrap();
    fs::create_dir(site.path("two")).unwrap();
    for given in [&both[..], &both[..1]] {
        let (code, text) = mount_tiers(&site, given, &[]);
        assert_eq!(code, BAD_STATE, "{text}");
        assert!(text.contains(&site.text("two")) && text.contains("fsck --accept-loss"), "{text}");
    }
    assert_eq!(fs::read_dir(site.path("two")).unwrap().count(), 0, "nothing was made there");
    // It is back: nothing has happened.
    fs::remove_dir(site.path("two")).unwrap();
    fs::rename(site.path("elsewhere"), site.path("two")).unwrap();
    let (code, text) = mount_tiers(&site, &both, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(names.iter().all(|name| fs::read(mnt.join(name)).unwrap() == new));
    umount_dirty(&site);
    // It is lost for good, and given up knowingly.
    fs::remove_dir_all(site.path("two")).unwrap();
    let one = site.text("one");
    let (code, text) = site.run(&["fsck", &one]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains("its bytes are gone") && text.contains("--accept-loss"), "{text}");
    let (code, text) = site.run(&["fsck", "--accept-loss", &one]);
    assert_eq!(code, 0, "{text}");
    let given_up: Vec<&str> = names
        .into_iter()
        .filter(|name| text.contains(&format!("{name}: what was written")))
        .collect();
    assert!(!given_up.is_empty(), "what is given up is named: {text}");
    let (code, text) = mount_tiers(&site, &both, &[]);
    assert_eq!(code, 0, "{text}");
    for name in names {
        let found = fs::read(mnt.join(name)).unwrap();
        assert!(if given_up.contains(&name) { found == b"old" } else { found == new }, "{name}");
    }
    site.umount();
}

#[test]
fn tier_when_it_is_the_only_one_and_not_there_then_the_backing_store_knows() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/file"), "new").unwrap();
    umount_dirty(&site);
    fs::rename(site.path("tier"), site.path("elsewhere")).unwrap();
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(site.path("tier")).unwrap();
        }
        let (code, text) = site.mount_with(&[]);
        assert_eq!(code, BAD_STATE, "{text}");
        assert!(text.contains(&site.text("tier")) && text.contains("--accept-loss"), "{text}");
    }
    let (backing, tier) = (site.text("backing"), site.text("tier"));
    let (code, text) = site.run(&["fsck", "--accept-loss", "--backing", &backing, &tier]);
    assert_eq!(code, 0, "{text}");
    site.mount(&[]);
    assert!(!site.path("mnt/file").exists());
    site.umount();
    assert!(site.left_in_backing().is_empty(), "nothing is left of a mount that is drained");
}

#[test]
fn tier_when_the_state_directory_is_another_then_the_mount_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tier = format!("{}=64M", site.text("one"));
    let (state, other) = (site.text("state"), site.text("other"));
    assert_eq!(mount_tiers(&site, &[&tier], &["--state-dir", &state]).0, 0);
    fs::write(site.path("mnt/file"), "new").unwrap();
    umount_dirty(&site);
    for wrong in [&["--state-dir", &*other][..], &[]] {
        let (code, text) = mount_tiers(&site, &[&tier], wrong);
        assert_eq!(code, BAD_STATE, "{text}");
        assert!(text.contains(&site.text("one")) && text.contains(&state), "{text}");
    }
    let (code, text) = mount_tiers(&site, &[&tier], &["--state-dir", &state]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"new");
    site.umount();
}

#[test]
fn tiers_when_all_is_written_back_then_they_may_be_put_together_anew() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tiers = two_tiers(&site);
    assert_eq!(mount_tiers(&site, &[&tiers[0], &tiers[1]], &[]).0, 0);
    fs::write(site.path("mnt/file"), vec![7; 12 << 20]).unwrap();
    site.umount();
    for given in [&tiers[1..], &tiers[..1]] {
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let (code, text) = mount_tiers(&site, &given, &[]);
        assert_eq!(code, 0, "{text}");
        assert_eq!(fs::read(site.path("mnt/file")).unwrap(), vec![7; 12 << 20]);
        site.umount();
    }
}

#[test]
fn tier_when_all_was_written_back_and_it_is_not_there_then_it_is_not_made_anew_by_itself() {
    if !can_mount() {
        return;
    }
    // On a disk: what is in memory goes with the machine.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let site = Site::in_dir(place);
    let tiers = two_tiers(&site);
    let both = [&*tiers[0], &*tiers[1]];
    assert_eq!(mount_tiers(&site, &both, &[]).0, 0);
    fs::write(site.path("mnt/file"), vec![7; 12 << 20]).unwrap();
    site.umount();
    // The first has the state of the mount.
    for away in ["two", "one"] {
        fs::rename(site.path(away), site.path("elsewhere")).unwrap();
        for exists in [false, true] {
            if exists {
                fs::create_dir(site.path(away)).unwrap();
            }
            let (code, text) = mount_tiers(&site, &both, &[]);
            assert_eq!(code, BAD_STATE, "{text}");
            assert!(text.contains(&site.text(away)) && text.contains("--create-tier"), "{text}");
            assert_eq!(files_below(&site.path(away)), Vec::<PathBuf>::new(), "nothing is made");
        }
        fs::remove_dir(site.path(away)).unwrap();
        fs::rename(site.path("elsewhere"), site.path(away)).unwrap();
    }
    fs::remove_dir_all(site.path("two")).unwrap();
    for more in [&["--create-tier"][..], &[]] {
        let (code, text) = mount_tiers(&site, &both, more);
        assert_eq!(code, 0, "{text}");
        assert_eq!(fs::read(site.path("mnt/file")).unwrap(), vec![7; 12 << 20]);
        site.umount();
    }
}

#[test]
fn object_when_its_header_is_damaged_then_it_is_set_aside_and_named_and_repaired_on_demand() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/whole"), "all is well").unwrap();
    fs::write(site.path("mnt/hurt"), "the only copy").unwrap();
    umount_dirty(&site);
    let object = object_with(&site.path("tier"), b"the only copy");
    set_header(&object, |header| header[20] ^= 4);
    site.mount(&["--writeback", "evict"]);
    assert_eq!(fs::read(site.path("mnt/whole")).unwrap(), b"all is well");
    let read = fs::read(site.path("mnt/hurt"));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
    let aside = site.path("tier/lost").join(object.file_name().unwrap());
    assert_eq!(fs::read(&aside).unwrap(), b"the only copy");
    let status = site.status();
    assert_eq!(status["set_aside"]["files"], 1, "{status}");
    assert_eq!(status["set_aside"]["list"][0], aside.to_str().unwrap(), "{status}");
    assert_eq!(status["lost"]["files"], 1, "{status}");
    assert_eq!(status["lost"]["list"][0], "hurt", "{status}");
    // It stays dirty, and says what to do.
    let (code, text) = site.run(&["umount", "--timeout", "20s", &site.text("mnt")]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("hurt") && text.contains("fsck --repair"), "{text}");
    umount_dirty(&site);
    assert!(!site.path("backing/hurt").exists());
    let (code, text) = site.run(&["fsck", &site.text("tier")]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains("hurt"), "{text}");
    let (code, text) = site.run(&["fsck", "--repair", &site.text("tier")]);
    assert_eq!(code, 0, "{text}");
    site.mount(&[]);
    assert_eq!(fs::read(site.path("mnt/hurt")).unwrap(), b"the only copy");
    site.umount();
    assert_eq!(fs::read(site.path("backing/hurt")).unwrap(), b"the only copy");
}

/// A file of which a mount without room on its tier has all bytes in the backing store's private
/// area.
fn spilled(site: &Site) -> Vec<u8> {
    let bytes = vec![9; 6 << 20];
    let tier = format!("{}=32K", site.text("tier"));
    assert_eq!(mount_tiers(site, &[&tier], &[]).0, 0);
    // The second file finds no room at all.
    fs::write(site.path("mnt/first"), vec![8; 2 << 20]).unwrap();
    fs::write(site.path("mnt/spilled"), &bytes).unwrap();
    umount_dirty(site);
    assert!(!files_below(&site.path("backing/.forebay/spill")).is_empty());
    bytes
}

#[test]
fn spill_files_when_the_index_is_built_anew_then_their_files_are_kept() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let bytes = spilled(&site);
    let (tier, backing) = (site.text("tier"), site.text("backing"));
    let (code, text) = site.run(&["fsck", "--rebuild", "--backing", &backing, &tier]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("spilled"), "{text}");
    let tier = format!("{}=32K", site.text("tier"));
    assert_eq!(mount_tiers(&site, &[&tier], &[]).0, 0);
    assert!(fs::read(site.path("mnt/spilled")).unwrap() == bytes);
    site.umount();
    assert!(fs::read(site.path("backing/spilled")).unwrap() == bytes);
}

#[test]
fn spill_files_when_the_index_does_not_know_them_then_they_are_set_aside_and_named() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    spilled(&site);
    let (tier, backing) = (site.text("tier"), site.text("backing"));
    fs::remove_dir_all(site.path("tier/state/meta")).unwrap();
    fs::remove_dir_all(site.path("tier/objects")).unwrap();
    let size = |dir: &Path| -> u64 {
        files_below(dir).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    };
    let before = size(&site.path("backing/.forebay/spill"));
    let tier_of = format!("{tier}=32K");
    let (code, text) = mount_tiers(&site, &[&tier_of], &[]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains("fsck --rebuild"), "{text}");
    let (code, text) = site.run(&["fsck", "--rebuild", "--backing", &backing, &tier]);
    assert_eq!(code, BAD_STATE, "somebody has to look: {text}");
    assert!(text.contains(".forebay/lost"), "{text}");
    assert_eq!(size(&site.path("backing/.forebay/lost")), before);
    let (code, text) = mount_tiers(&site, &[&tier_of], &[]);
    assert_eq!(code, 0, "{text}");
    assert!(site.status()["set_aside"]["files"].as_u64().unwrap() >= 1);
    site.umount();
    assert_eq!(size(&site.path("backing/.forebay/lost")), before);
}

#[test]
fn limbo_when_it_has_what_no_record_knows_then_it_is_named_and_set_aside_or_adopted() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tier = format!("{}=8M", site.text("tier"));
    assert_eq!(mount_tiers(&site, &[&tier], &[]).0, 0);
    fs::write(site.path("mnt/file"), "known").unwrap();
    let ino = fs::metadata(site.path("mnt/file")).unwrap().ino();
    let noted = files_below(&site.path("backing/.forebay/mounts"));
    let id = noted[0].file_name().unwrap().to_str().unwrap().to_owned();
    site.umount();
    let (limbo, lost) = (site.path("backing/.forebay/limbo"), site.path("backing/.forebay/lost"));
    let unknown = format!("{id}.123456789abcdef");
    let fill = |number: u32| {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&limbo).unwrap();
        fs::write(limbo.join(&unknown), format!("the only copy {number}")).unwrap();
        // A directory with all in it, of the same unknown kind.
        fs::create_dir(limbo.join(format!("{id}.fedcba98765{number}"))).unwrap();
        fs::write(limbo.join(format!("{id}.fedcba98765{number}/file")), "in it").unwrap();
        // A second name of a file that is known.
        fs::hard_link(site.path("backing/file"), limbo.join(format!("{id}.{ino:x}"))).unwrap();
    };
    let kept = |name: &str| fs::read_to_string(lost.join(format!("limbo-{name}"))).unwrap();

    // By a start.
    fill(1);
    let (code, text) = site.run(&["fsck", &site.text("tier")]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains(&format!(".forebay/limbo/{unknown}")), "{text}");
    assert_eq!(mount_tiers(&site, &[&tier], &[]).0, 0);
    assert_eq!(site.status()["set_aside"]["files"], 2);
    assert_eq!(kept(&unknown), "the only copy 1");
    assert_eq!(kept(&format!("{id}.fedcba987651/file")), "in it");
    site.umount();
    let file = fs::metadata(site.path("backing/file")).unwrap();
    assert_eq!((file.nlink(), limbo.exists()), (1, false), "the second name of the file is gone");
    assert_eq!(fs::read_to_string(site.path("backing/file")).unwrap(), "known");

    // By a repair.
    fill(2);
    let (code, text) = site.run(&["fsck", "--repair", &site.text("tier")]);
    assert!(text.contains("(repaired)") && text.contains(".forebay/lost"), "{code} {text}");
    assert_eq!(kept(&format!("{unknown}-1")), "the only copy 2");
    assert_eq!(mount_tiers(&site, &[&tier], &[]).0, 0);
    site.umount();
    assert_eq!(fs::metadata(site.path("backing/file")).unwrap().nlink(), 1);
    // What is of a mount that nobody knows any more stays where it is, and is named.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&limbo).unwrap();
    fs::write(limbo.join("gone.12"), "of another mount").unwrap();
    let (_, text) = site.run(&["fsck", &site.text("tier")]);
    assert!(text.contains(".forebay/limbo/gone.12"), "{text}");
}

#[test]
fn tier_when_it_is_relative_then_it_is_below_the_callers_directory() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut command = site.command(env!("CARGO_BIN_EXE_forebay"));
    command.current_dir(site.path("home"));
    command.args(["mount", &backing, &mnt, "--tier", "here=16M", "--state-dir", "state"]);
    let (code, text) = outcome(&mut command);
    assert_eq!(code, 0, "{text}");
    site.umount();
    assert!(site.path("home/here/forebay-tier").exists() && site.path("home/state/meta").exists());
    assert!(!Path::new("/here").exists());
}

#[test]
fn mount_when_it_can_not_be_right_then_it_is_refused_with_the_reason() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tier = format!("{}=16M", site.text("no/such/tier"));
    let (code, text) = mount_tiers(&site, &[&tier], &[]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains(&site.text("no")) && text.contains("--create-tier"), "{text}");
    assert!(!site.path("no").exists());
    let (code, text) =
        site.run(&["doctor", &site.text("backing"), "--tier", &site.text("no/tier")]);
    assert!(code != 0 && text.contains("no/tier"), "{text}");
    let (code, text) = mount_tiers(&site, &[&tier], &["--create-tier"]);
    assert_eq!(code, 0, "{text}");
    site.umount();
    let tiny = format!("{}=1K", site.text("tiny"));
    let (code, text) = mount_tiers(&site, &[&tiny], &[]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("at least"), "{text}");
    let tier = format!("{}=16M", site.text("tier"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let mut command = site.command(env!("CARGO_BIN_EXE_forebay"));
    command.env("FOREBAY_DURABILTY", "backing");
    let (code, text) = outcome(command.args(["mount", &backing, &mnt, "--tier", &tier]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("FOREBAY_DURABILITY"), "{text}");
}

/// Gone with the value.
struct Memory(PathBuf);

impl Memory {
    fn new(site: &Site, name: &str, size: &str) -> Self {
        let memory = Memory(site.path(name));
        fs::create_dir(&memory.0).unwrap();
        memory.mounted(&format!("size={size}"));
        memory
    }

    fn mounted(&self, how: &str) {
        let mut mount = std::process::Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", how, "none"]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn tier_or_state_when_its_place_is_missing_read_only_or_tiny_then_refused_with_the_reason() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let (tier, state) = (format!("{}=16M", site.text("tier")), site.text("no/such/state"));
    let (code, text) = mount_tiers(&site, &[&tier], &["--state-dir", &state]);
    let told = text.contains(&site.text("no/such")) && text.contains("--create-tier");
    assert!(code == 2 && told && !site.path("no").exists(), "{code} {text}");

    let tiny = Memory::new(&site, "tiny", "64k");
    let on_tiny = |size: &str| format!("{}/t={size}", tiny.0.display());
    let (code, text) = mount_tiers(&site, &[&on_tiny("16M")], &[]);
    assert!(code == 2 && text.contains("more than its file system has"), "{code} {text}");
    let state = tiny.0.join("state").display().to_string();
    for (tier, how) in [(&on_tiny("60K"), &[][..]), (&tier, &["--state-dir", &state])] {
        let (code, text) = mount_tiers(&site, &[tier], how);
        let told = text.contains("make room") || text.contains("at least");
        let named = text.contains(tiny.0.to_str().unwrap());
        assert!(code != 0 && told && named, "{tier} {how:?}: {code} {text}");
    }

    let memory = Memory::new(&site, "memory", "64m");
    let known = format!("{}/known=16M", memory.0.display());
    let (code, text) = mount_tiers(&site, &[&known], &[]);
    assert_eq!(code, 0, "{text}");
    fs::write(site.path("mnt/file"), "only there").unwrap();
    let (code, text) = site.run(&["umount", "--no-drain", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    memory.mounted("remount,ro");
    let new = format!("{}/new=16M", memory.0.display());
    let state = memory.0.join("state").display().to_string();
    let elsewhere = site.text("elsewhere");
    let cases: [(&[&str], &[&str]); 5] = [
        (&[&known], &[]),
        (&[&new], &[]),
        (&[&new], &["--state-dir", &elsewhere]),
        (&[&tier, &new], &[]),
        (&[&tier], &["--state-dir", &state]),
    ];
    for (tiers, how) in cases {
        let (code, text) = mount_tiers(&site, tiers, how);
        let told = text.contains(memory.0.to_str().unwrap()) && text.contains("is read-only");
        assert!(code == 6 && told, "{tiers:?} {how:?}: {code} {text}");
        assert!(!site.is_mounted(), "{tiers:?} {how:?}");
    }
    let (code, text) = site.run(&["fsck", &memory.0.join("known").display().to_string()]);
    assert!(code == 6 && text.contains("is read-only"), "{code} {text}");
    memory.mounted("remount,rw");
    let (code, text) = mount_tiers(&site, &[&known], &[]);
    assert_eq!(code, 0, "{text}");
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"only there");
}

/// A mount of a directory on itself, read-only; gone with the value.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn of(dir: PathBuf) -> Self {
        let mount = |args: &[&str]| {
            let dir = dir.to_str().unwrap();
            let done = std::process::Command::new("mount").args(args).arg(dir).status().unwrap();
            assert!(done.success());
        };
        mount(&["--bind", dir.to_str().unwrap()]);
        mount(&["-o", "remount,bind,ro"]);
        ReadOnly(dir)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn backing_store_when_it_is_read_only_then_only_read_only_mounts() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), "there").unwrap();
    let _backing = ReadOnly::of(site.path("backing"));
    let (code, text) = site.mount_with(&[]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("read-only") && text.contains("--read-only"), "{text}");
    site.mount(&["--read-only"]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"there");
    site.umount();
}

#[test]
fn tier_when_it_is_reached_by_a_link_then_it_is_the_same_tier() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/file"), "new").unwrap();
    umount_dirty(&site);
    symlink(site.path("tier"), site.path("link")).unwrap();
    let (code, text) = mount_tiers(&site, &[&format!("{}=16M", site.text("link"))], &[]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"new");
    site.umount();
}

#[test]
fn tier_when_its_file_system_has_small_attributes_then_it_is_named_as_that() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let (image, device) = (site.text("image"), site.text("device"));
    fs::create_dir(&device).unwrap();
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let made = [
        ("mkfs.ext4", vec!["-q", "-F", "-b", "1024", "-I", "128", &image]),
        ("mount", vec!["-o", "loop", &image, &device]),
    ];
    for (program, args) in made {
        let (code, text) = outcome(site.command(program).args(args));
        if code != 0 {
            eprintln!("skipped: {program}: {text}");
            return;
        }
    }
    let tier = format!("{device}/tier=8M");
    let (code, text) = mount_tiers(&site, &[&tier], &[]);
    let _ = outcome(site.command("umount").args(["-l", &device]));
    assert_eq!(code, UNSUPPORTED, "{text}");
    assert!(text.contains("extended attributes") && text.contains("1 KiB"), "{text}");
}

#[test]
fn tier_inside_the_tier_of_another_mount_then_refused_by_name_also_when_that_does_not_run() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let outer = format!("{}=64M", site.text("outer"));
    let other = |dir: &str, more: &[&str]| {
        let (backing, mnt) = (site.text("other backing"), site.text("other mnt"));
        let tier = format!("{}=64M", site.text(dir));
        let mut args = vec!["mount", &backing, &mnt, "--tier", &tier];
        args.extend(more);
        site.run(&args)
    };
    for dir in ["other backing", "other mnt", "above"] {
        fs::create_dir(site.path(dir)).unwrap();
    }
    symlink(site.path("outer"), site.path("link")).unwrap();
    assert_eq!(mount_tiers(&site, &[&outer], &[]).0, 0);
    for runs in [true, false] {
        for dir in ["outer/x", "outer/objects/x", "link/x"] {
            let (code, text) = other(dir, &["--create-tier"]);
            assert_eq!(code, BAD_STATE, "{dir}: {text}");
            assert!(text.contains(&site.text(dir)) && text.contains(&site.text("outer")), "{text}");
            assert!(!site.path(dir).exists(), "{dir}");
        }
        let state = site.text("outer/state of another");
        let (code, text) = other("apart", &["--state-dir", &state]);
        assert!(code == BAD_STATE && text.contains(&state), "{code} {text}");
        if runs {
            site.umount();
        }
    }
    // And what has a tier inside.
    let inner = format!("{}=64M", site.text("above/inner"));
    let (code, text) = mount_tiers(&site, &[&inner], &[]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = other("above", &[]);
    assert!(code != 0 && text.contains(&site.text("above")), "{code} {text}");
    site.umount();
}
