//! The program as users have it: real daemons, real mounts, in directories of their own.

mod site;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use site::*;

/// Files of several sizes in nested directories.
fn plant_tree(dir: &Path, files: usize) {
    for index in 0..files {
        let sub = dir.join(format!("d{}/e{}", index % 7, index % 3));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join(format!("f{index}")), vec![index as u8; index * 37 % 20_000]).unwrap();
    }
}

fn same_trees(one: &Path, other: &Path) {
    let (code, text) =
        outcome(Command::new("diff").args(["-r", "-x", ".forebay"]).args([one, other]));
    assert_eq!(code, 0, "{text}");
}

#[test]
fn what_is_written_is_reported_and_then_drained() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/new"), [7; 10_000]).unwrap();
    fs::create_dir(site.path("mnt/dir")).unwrap();
    for _ in 0..5 {
        assert_eq!(fs::read(site.path("mnt/new")).unwrap().len(), 10_000);
    }
    let status = site.status();
    assert_eq!(status["dirty"]["files"], 1, "{status}");
    assert_eq!(status["dirty"]["list"][0]["path"], "new");
    assert_eq!(status["dirty"]["list"][0]["open"], false);
    assert!(status["dirty"]["list"][0]["age_s"].as_u64().unwrap() < 60, "{status}");
    assert_eq!(status["busiest"][0]["path"], "new");
    assert_eq!(status["busiest"][0]["opens"], 6);
    assert_eq!(status["errors"], 0);
    let (code, metrics) = site.run(&["debug", "metrics", &site.text("mnt")]);
    assert_eq!(code, 0);
    assert!(metrics.contains("forebay_op_seconds_count{op=\"create\"} 1\n"), "{metrics}");
    assert!(metrics.contains("forebay_dirty_files 1\n"), "{metrics}");
    let daemon = site.daemon();
    site.umount();
    assert!(!alive(daemon) && !site.is_mounted());
    assert_eq!(fs::read(site.path("backing/new")).unwrap(), [7; 10_000]);
    assert!(site.path("backing/dir").is_dir());
    assert_eq!(site.left_in_backing(), ["dir", "new"], "only plain files");
}

#[test]
fn passthrough_refusals_have_their_real_reason() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), b"text").unwrap();
    site.mount(&["--passthrough", "off"]);
    fs::read(site.path("mnt/file")).unwrap();
    let state = site.status()["passthrough"].clone();
    assert_eq!(state["mode"], "off");
    assert_eq!(state["refusals"][0]["reason"], "off");
    site.umount();
    site.mount(&["--writeback", "through"]);
    let state = site.status()["passthrough"].clone();
    if state["mode"] == "off" {
        eprintln!("skipped: the rest: {}", state["reason"]);
        return site.umount();
    }
    assert_eq!(state["mode"], "read", "the default");
    let began = Instant::now();
    fs::write(site.path("mnt/file"), b"changed").unwrap();
    let mut kept_open = fs::File::create(site.path("mnt/new")).unwrap();
    kept_open.write_all(b"first").unwrap();
    kept_open.sync_all().unwrap();
    assert_eq!(fs::read(site.path("backing/new")).unwrap(), b"first", "fsync waits");
    drop(kept_open);
    assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"changed", "close waits");
    let reasons = site.status()["passthrough"]["refusals"].to_string();
    assert!(reasons.contains("write-through") || reasons.contains("not-resident"), "{reasons}");
    site.umount();
}

#[test]
fn the_reserve_is_kept_free() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tier = format!("{}=32M", site.text("tier"));
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let args = ["mount", &backing, &mnt, "--tier", &tier, "--reserve", "16M"];
    assert_eq!(site.run(&args).0, 0);
    for index in 0..40 {
        fs::write(site.path(&format!("mnt/f{index}")), vec![1; 1 << 20]).unwrap();
    }
    let tier = site.status()["tiers"][0].clone();
    assert_eq!(tier["size_bytes"], 32 << 20);
    assert!(tier["used_bytes"].as_u64().unwrap() <= 16 << 20, "{tier}");
    site.umount();
    let args = ["mount", &backing, &mnt, "--tier", args[4], "--reserve", "100%"];
    let (code, text) = site.run(&args);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("leaves nothing"), "{text}");
}

#[test]
fn umount_while_a_file_is_open_names_the_holder() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let mut holder: Child = Command::new("sleep")
        .arg("60")
        .stdout(fs::File::create(site.path("mnt/held")).unwrap())
        .spawn()
        .unwrap();
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    let listed = text.contains(&format!("{} (sleep)", holder.id())) && text.contains("mnt/held");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(code, 1, "{text}");
    assert!(listed, "{text}");
    assert!(site.is_mounted());
    site.umount();
    assert!(site.path("backing/held").exists());
}

#[test]
fn umount_while_a_removed_file_is_open_names_the_holder_and_goes_on_when_it_is_closed() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    let held = fs::File::create(site.path("mnt/held")).unwrap();
    held.write_all_at(&[7; 4096], 0).unwrap();
    let mut holder: Child = Command::new("sleep").arg("60").stdout(held).spawn().unwrap();
    fs::remove_file(site.path("mnt/held")).unwrap();
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    let listed = text.contains(&format!("{} (sleep)", holder.id()));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(code, 1, "{text}");
    assert!(listed, "{text}");
    site.umount();
    assert!(!site.path("backing/held").exists());
}

/// A reader of the object that holds it for good, as the kernel did for a daemon that was killed.
#[test]
fn umount_when_all_that_remains_may_be_mapped_then_it_goes_on() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/file"), [7; 10_000]).unwrap();
    let children = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let objects: Vec<_> = children(&site.path("tier/objects"))
        .flat_map(|dir| children(&dir).collect::<Vec<_>>())
        .filter(|path| fs::metadata(path).is_ok_and(|found| found.len() == 10_000))
        .map(|path| fs::File::open(path).unwrap())
        .collect();
    assert_eq!(objects.len(), 1);
    site.umount();
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), [7; 10_000]);
    drop(objects);
    site.mount(&[]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), [7; 10_000]);
    site.umount();
    assert_eq!(site.left_in_backing(), ["file"], "nothing is left behind");
}

#[test]
fn what_is_left_without_a_drain_comes_at_the_next_mount() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    plant_tree(&site.path("mnt"), 30);
    let (code, text) = site.run(&["umount", "--no-drain", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    // Not `f0`: it is empty, so that only its name is brought there, and that waits for no eviction.
    assert!(!site.path("backing/d1/e1/f1").exists());
    site.mount(&["--writeback", "evict"]);
    assert_eq!(site.status()["dirty"]["files"].as_u64().unwrap(), 29, "f0 is empty");
    let plain = site.path("plain");
    plant_tree(&plain, 30);
    same_trees(&plain, &site.path("mnt"));
    site.umount();
    same_trees(&plain, &site.path("backing"));
}

#[test]
fn a_slow_backing_store_leaves_umount_within_its_limit() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict", "--throttle", "64K/50", "--backing-timeout", "5s"]);
    for index in 0..8 {
        fs::write(site.path(&format!("mnt/large{index}")), vec![1; 1 << 20]).unwrap();
    }
    let began = Instant::now();
    let (code, text) = site.run(&["umount", "--timeout", "2s", &site.text("mnt")]);
    assert_eq!(code, 4, "{text}");
    assert!(began.elapsed() < Duration::from_secs(15), "took {:?}", began.elapsed());
    assert!(text.contains("not yet in the backing store") && text.contains("large"), "{text}");
    assert!(site.is_mounted());
    let daemon = site.daemon();
    let began = Instant::now();
    let (code, text) = site.run(&["umount", "--no-drain", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(began.elapsed() < Duration::from_secs(60) && !alive(daemon));
    site.mount(&[]);
    site.umount();
    for index in 0..8 {
        assert_eq!(fs::read(site.path(&format!("backing/large{index}"))).unwrap().len(), 1 << 20);
    }
}

#[test]
fn a_foreign_umount_and_a_signal_end_the_daemon() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/one"), b"1").unwrap();
    let daemon = site.daemon();
    let (code, text) = outcome(Command::new("umount").arg(site.path("mnt")));
    assert_eq!(code, 0, "{text}");
    assert!(wait_for(Duration::from_secs(60), || !alive(daemon)), "the daemon goes on");
    site.mount(&["--writeback", "evict"]);
    assert_eq!(fs::read(site.path("mnt/one")).unwrap(), b"1");
    fs::write(site.path("mnt/two"), b"2").unwrap();
    let daemon = site.daemon();
    signal(daemon, rustix::process::Signal::TERM);
    assert!(wait_for(Duration::from_secs(60), || !alive(daemon)), "the daemon goes on");
    assert!(!site.is_mounted());
    for (name, content) in [("one", b"1"), ("two", b"2")] {
        assert_eq!(fs::read(site.path("backing").join(name)).unwrap(), content);
    }
}

#[test]
fn bad_directories_are_refused_with_their_exit_codes() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    for dir in ["other", "other-mnt", "full", "backing/inner"] {
        fs::create_dir(site.path(dir)).unwrap();
    }
    let p = |name: &str| site.text(name);
    let tier = |name: &str| format!("{}=64M", p(name));
    let refused = |backing: &str, mnt: &str, tier_dir: &str, code: i32, part: &str| {
        let (got, text) = site.run(&["mount", &p(backing), &p(mnt), "--tier", &tier(tier_dir)]);
        assert_eq!(got, code, "{backing} {mnt} {tier_dir}: {text}");
        assert!(text.contains(part), "{backing} {mnt} {tier_dir}: {text}");
    };
    refused("other", "other-mnt", "tier", 7, "in use by process");
    refused("backing", "mnt", "tier2", 7, "a Forebay mount is here already");
    refused("mnt/inner", "other-mnt", "tier2", 2, "lies on a Forebay mount itself");
    refused("other", "mnt/inner", "tier2", 2, "nested mounts are not possible");
    refused("other", "other-mnt", "other/tier", 2, "lies inside the backing store");
    refused("backing", "backing/inner", "tier2", 2, "lies inside the backing store");
    refused("other-mnt/missing", "other-mnt", "tier2", 2, "does not exist");
    site.umount();

    refused("other", "other-mnt", "tier", 6, "holds the cache of");
    fs::create_dir(site.path("foreign")).unwrap();
    fs::write(site.path("foreign/letter"), b"dear").unwrap();
    refused("other", "other-mnt", "foreign", 6, "is not a Forebay tier");
    assert_eq!(fs::read_dir(site.path("foreign")).unwrap().count(), 1, "left as it was");

    let marker = site.path("tier/forebay-tier");
    let original = fs::read(&marker).unwrap();
    let mut newer = original.clone();
    newer[8] = 99;
    fs::write(&marker, newer).unwrap();
    refused("backing", "mnt", "tier", 6, "format version 99");
    fs::write(&marker, original).unwrap();

    let (code, list) =
        outcome(Command::new("find").arg(site.path("tier/state/meta")).args(["-type", "f"]));
    assert!(code == 0 && !list.is_empty(), "{list}");
    for file in list.lines() {
        let len = fs::metadata(file).unwrap().len();
        fs::write(file, vec![0xa5; len.min(1 << 16) as usize]).unwrap();
    }
    refused("backing", "mnt", "tier", 6, "fsck");
    assert!(!site.is_mounted());
}

#[test]
fn a_full_disk_at_mount_time_is_told_plainly() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let full = site.path("full");
    fs::create_dir(&full).unwrap();
    let mounted =
        outcome(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&full));
    if mounted.0 != 0 {
        eprintln!("skipped: no tmpfs here: {}", mounted.1);
        return;
    }
    let _ = fs::write(full.join("filler"), vec![0; 1 << 20]);
    let tier = format!("{}=32K", site.text("full/tier"));
    let (code, text) =
        site.run(&["mount", &site.text("backing"), &site.text("mnt"), "--tier", &tier]);
    let ended = outcome(Command::new("umount").arg("-l").arg(&full));
    assert_eq!(ended.0, 0, "{}", ended.1);
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("No space left") && !text.contains("panicked"), "{text}");
    assert!(!site.is_mounted());
}

#[test]
fn whole_trees_are_warmed_pinned_evicted_and_synced() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    plant_tree(&site.path("backing/tree"), 300);
    site.mount(&["--writeback", "evict"]);
    let tree = site.text("mnt/tree");
    let (code, text) = site.run(&["warm", "--quiet", &tree]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(site.status()["tiers"][0]["objects"], 299, "one is empty");
    let (code, text) = site.run(&["where", &site.text("mnt/tree/d1/e1/f1")]);
    assert!(code == 0 && text.contains("resident on") && text.contains("clean"), "{text}");
    let pinned = site.text("mnt/tree/d1");
    assert_eq!(site.run(&["pin", "--quiet", &pinned]).0, 0);
    assert!(site.status()["tiers"][0]["pinned_bytes"].as_u64().unwrap() > 0);
    let (code, text) = site.run(&["evict", "--quiet", &tree]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("is pinned"), "{text}");
    assert_eq!(site.run(&["unpin", "--quiet", &pinned]).0, 0);
    let (code, text) = site.run(&["evict", "--quiet", &tree]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(site.status()["tiers"][0]["objects"], 0);
    fs::write(site.path("mnt/tree/d1/e1/f1"), b"new").unwrap();
    let (code, text) = site.run(&["sync", "--quiet", &tree]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("backing/tree/d1/e1/f1")).unwrap(), b"new");
    site.umount();
}

#[test]
fn commands_when_they_can_not_do_it_then_say_what_and_why() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/large"), vec![1; 20 << 20]).unwrap();
    std::os::unix::fs::symlink("large", site.path("backing/link")).unwrap();
    let tier = format!("{}=8M", site.text("tier"));
    let (code, text) =
        site.run(&["mount", &site.text("backing"), &site.text("mnt"), "--tier", &tier]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = site.run(&["warm", &site.text("mnt/large")]);
    assert!(code == 1 && text.contains("large: no tier has room for it"), "{text}");
    let (code, text) = site.run(&["sync", &site.text("mnt/nothing")]);
    assert!(code == 1 && text.contains("nothing: No such file"), "{text}");
    let (code, text) = site.run(&["fsck", &site.text("backing")]);
    assert!(code == 6 && text.contains("backing is not a Forebay tier"), "{text}");
    site.umount();
}

#[test]
fn a_warm_that_is_interrupted_harms_nothing() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    plant_tree(&site.path("backing/tree"), 200);
    site.mount(&["--throttle", "1M/100"]);
    let mut warm = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["warm", "--quiet", &site.text("mnt/tree")])
        .env("FOREBAY_RUNTIME_DIR", site.path("run"))
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    signal(warm.id().try_into().unwrap(), rustix::process::Signal::INT);
    assert!(wait_for(Duration::from_secs(60), || !alive(warm.id().try_into().unwrap())));
    assert!(!warm.wait().unwrap().success());
    let objects = || site.status()["tiers"][0]["objects"].as_u64().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let before = objects();
    std::thread::sleep(Duration::from_secs(1));
    assert!(before < 199 && objects() == before, "the daemon goes on for nobody");
    assert_eq!(fs::read(site.path("mnt/tree/d1/e1/f1")).unwrap(), vec![1; 37]);
    site.umount();
}

#[test]
fn fsck_checks_and_rebuilds_a_tier() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    plant_tree(&site.path("backing"), 50);
    site.mount(&["--writeback", "evict"]);
    assert_eq!(site.run(&["warm", "--quiet", &site.text("mnt")]).0, 0);
    fs::write(site.path("mnt/d1/dirty"), [9; 5000]).unwrap();
    assert_eq!(site.run(&["fsck", &site.text("tier")]).0, 7, "in use");
    assert_eq!(site.run(&["umount", "--no-drain", &site.text("mnt")]).0, 0);
    let (code, text) = site.run(&["fsck", &site.text("tier")]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("1 not yet in the backing store"), "{text}");
    fs::remove_dir_all(site.path("tier/state/meta")).unwrap();
    let (code, text) = site.run(&["fsck", &site.text("tier")]);
    assert!(code == 6 && text.contains("--rebuild"), "{code} {text}");
    let backing = site.text("backing");
    let (code, text) = site.run(&["fsck", "--rebuild", "--backing", &backing, &site.text("tier")]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("d1/dirty"), "{text}");
    site.mount(&[]);
    assert_eq!(fs::read(site.path("mnt/d1/dirty")).unwrap(), [9; 5000]);
    site.umount();
    assert_eq!(fs::read(site.path("backing/d1/dirty")).unwrap(), [9; 5000]);
}

#[test]
fn mount_of_the_system_finds_the_helper() {
    if !can_mount() {
        return;
    }
    let link = Path::new("/sbin/mount.forebay");
    if fs::symlink_metadata(link).is_ok() {
        eprintln!("skipped: {} is there already", link.display());
        return;
    }
    if std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), link).is_err() {
        eprintln!("skipped: {} can't be made", link.display());
        return;
    }
    struct Remove<'a>(&'a Path);
    impl Drop for Remove<'_> {
        fn drop(&mut self) {
            let _ = fs::remove_file(self.0);
        }
    }
    let _remove = Remove(link);
    let site = Site::new();
    fs::write(site.path("backing/file"), b"text").unwrap();
    let options = format!("tier={}=64M,policy=sieve,nofail,_netdev", site.text("tier"));
    let fstab = site.path("fstab");
    let line = format!("{} {} forebay {options} 0 0\n", site.text("backing"), site.text("mnt"));
    fs::write(&fstab, line).unwrap();
    let mut mount = site.command("mount");
    let (code, text) = outcome(mount.arg("-T").arg(&fstab).arg(site.path("mnt")));
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"text");
    assert_eq!(site.status()["policy"]["name"], "sieve");
    site.umount();
}

#[test]
fn a_plain_user_has_everything_but_passthrough() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let helper = fs::metadata("/usr/bin/fusermount3").or_else(|_| fs::metadata("/bin/fusermount3"));
    if !helper.is_ok_and(|helper| helper.mode() & 0o4000 != 0) {
        eprintln!("skipped: fusermount3 is not set-uid");
        return;
    }
    fs::set_permissions(site.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = site.path("forebay");
    fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    for dir in ["backing", "mnt", "run", "home"] {
        std::os::unix::fs::chown(site.path(dir), Some(65534), Some(65534)).unwrap();
    }
    // In a mount namespace of its own: a device that everybody may open, and mounts that nobody
    // else sees and that go with the last process.
    let script = r#"
        set -e
        mount --make-rprivate /
        mknod "$S/fuse" c 10 229; chmod 666 "$S/fuse"; mount --bind "$S/fuse" /dev/fuse
        exec setpriv --reuid "$U" --regid "$U" --clear-groups sh -e -c '
            "$S/forebay" mount "$S/backing" "$S/mnt" --tier "$S/home/tier=64M" --writeback evict
            echo text >"$S/mnt/file"; mkdir "$S/mnt/dir"; cat "$S/mnt/file"
            "$S/forebay" status "$S/mnt"
            "$S/forebay" where "$S/mnt/file"
            "$S/forebay" umount "$S/mnt"
            cat "$S/backing/file"
            "$S/forebay" mount "$S/backing" "$S/mnt" --tier "$S/home/tier=64M" --writeback evict
            echo more >"$S/mnt/file2"
            pid=$("$S/forebay" debug pid "$S/mnt"); kill -TERM "$pid"
            for i in $(seq 200); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
            [ ! -e "/proc/$pid" ]; cat "$S/backing/file2"
            "$S/forebay" mount "$S/backing" "$S/mnt" --tier "$S/home/t2=64M" --allow-other && exit 1
            echo "refused: $?"
        '"#;
    let mut unshare = site.command("unshare");
    unshare.args(["-m", "sh", "-c", script]).env("S", site.path("")).env("U", NOBODY);
    let (code, text) = outcome(&mut unshare);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("CAP_SYS_ADMIN"), "the status says why there is no passthrough: {text}");
    assert!(text.contains("refused: 5") || text.contains("refused: 2"), "{text}");
    assert!(text.contains("user_allow_other"), "{text}");
    let file = fs::metadata(site.path("backing/file")).unwrap();
    assert_eq!((file.uid(), file.gid()), (65534, 65534));
    assert_eq!(fs::read(site.path("backing/file2")).unwrap(), b"more\n");
}

#[test]
fn units_of_systemd_name_what_exists() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
    let mut seen = 0;
    for unit in fs::read_dir(dist).unwrap().flatten().filter(|unit| unit.path().is_file()) {
        let text = fs::read_to_string(unit.path()).unwrap();
        seen += 1;
        if unit.file_name().to_string_lossy().ends_with(".service") {
            assert!(text.contains("forebay mount --foreground --config"), "{text}");
            assert!(text.contains("Type=notify") && text.contains("KillSignal=SIGTERM"), "{text}");
        } else {
            assert!(text.contains("Type=forebay") && text.contains("Options=tier="), "{text}");
        }
    }
    assert!(seen >= 2);
}

/// Reads files of the mount one after the other, as fast as a program with something to do.
fn read_in_order(site: &Site, files: &[usize]) {
    for file in files {
        std::thread::sleep(Duration::from_millis(10));
        let bytes = fs::read(site.path(&format!("mnt/f{file}"))).unwrap();
        assert!(bytes.len() == 64 << 10 && bytes.iter().all(|byte| *byte == *file as u8));
    }
}

#[test]
fn a_recorded_run_is_hinted_followed_and_its_decisions_replay() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    for file in 0..60 {
        fs::write(site.path(&format!("backing/f{file}")), vec![file as u8; 64 << 10]).unwrap();
    }
    let (mnt, tier) = (site.text("mnt"), format!("{}=2M", site.text("tier")));
    let (backing, events, trace) = (site.text("backing"), site.text("events"), site.text("trace"));
    let (code, text) = site.run(&[
        "mount",
        &backing,
        &mnt,
        "--tier",
        &tier,
        "--policy",
        "min",
        "--event-log",
        &events,
    ]);
    assert_eq!(code, 0, "{text}");
    // Two epochs over twice the tier, each in its own order.
    let order: Vec<usize> = (0..120).map(|at| at % 60 * (7 + at / 60 * 4) % 60).collect();
    let mut recording = site.command(env!("CARGO_BIN_EXE_forebay"));
    let recording = recording.args(["trace", "record", &mnt, "-o", &trace, "--seconds", "60"]);
    let recording = recording.stdout(Stdio::piped()).spawn().unwrap();
    assert!(wait_for(Duration::from_secs(60), || fs::metadata(&trace).is_ok_and(|m| m.len() > 0)));
    read_in_order(&site, &order);
    signal(recording.id().try_into().unwrap(), rustix::process::Signal::TERM);
    let ended = recording.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stdout).contains("120 opens"), "{ended:?}");
    let (code, text) = site.run(&["trace", "show", "--json", &trace]);
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &summary["files"], &summary["repeated"]), (0, &60.into(), &60.into()));
    let (code, text) =
        site.run(&["sim", "cache", "--trace", &trace, "--policy", "lru", "--size", "2097152"]);
    assert_eq!(code, 0, "a trace is one for the simulator: {text}");

    let (code, text) = site.run(&["hint", &mnt, "--job", "train", "--trace", &trace, "--json"]);
    assert!(code == 0 && text.contains("\"files\":120"), "{text}");
    let before = site.status();
    read_in_order(&site, &order);
    let status = site.status();
    let hint = &status["hints"][0];
    assert_eq!((&hint["job"], &hint["followed"]), (&"train".into(), &120.into()), "{hint}");
    assert_eq!((&hint["state"], &hint["ahead"]), (&"done".into(), &0.into()), "{hint}");
    let misses = |status: &serde_json::Value| status["misses"].as_u64().unwrap();
    assert!(misses(&status) - misses(&before) <= 12, "{status}");
    let (code, metrics) = site.run(&["debug", "metrics", &mnt]);
    assert!(code == 0 && metrics.contains("forebay_hint_jobs 1\n"), "{metrics}");
    let (_, text) = site.run(&["status", &mnt]);
    assert!(text.contains("120 of 120 files, done"), "{text}");
    site.umount();
    let (code, text) = site.run(&["sim", "replay", &events]);
    assert!(code == 0 && text.contains("all the same"), "{text}");
    let log = fs::read_to_string(&events).unwrap();
    assert!(log.contains("> fetch ") && log.contains("> evict "), "nothing was decided");
}

/// Files of 64 to 512 KiB in a random order, popular ones by Zipf's law; the simulator is given what
/// was opened, by name and size, and the size of the tier.
#[test]
fn opens_of_a_mount_when_simulated_then_as_many_miss() {
    if !can_mount() {
        return;
    }
    const FILES: usize = 400;
    for policy in ["lru", "s3fifo"] {
        let site = Site::new();
        let mut state = 7u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let sizes: Vec<u64> = (0..FILES).map(|_| (64 << 10) << (unit() * 4.0) as u32).collect();
        for (file, size) in sizes.iter().enumerate() {
            let planted = fs::File::create(site.path(&format!("backing/f{file}"))).unwrap();
            planted.set_len(*size).unwrap();
        }
        let tier = format!("{}=32M", site.text("tier"));
        let (backing, mnt, trace) = (site.text("backing"), site.text("mnt"), site.text("trace"));
        let mount = ["mount", &backing, &mnt, "--tier", &tier, "--policy", policy];
        let (code, text) = site.run(&mount);
        assert_eq!(code, 0, "{text}");
        let mut opened = String::from("id,size\n");
        for _ in 0..2_500 {
            let file = (FILES as f64).powf(unit()) as usize - 1;
            fs::File::open(site.path(&format!("mnt/f{file}"))).unwrap();
            opened.push_str(&format!("{file},{}\n", sizes[file]));
        }
        let status = site.status();
        fs::write(&trace, opened).unwrap();
        let run = ["sim", "cache", "--trace", &trace, "--size", "32M", "--mounted"];
        let (code, text) = site.run(&[&run[..], &["--policy", policy, "--json"]].concat());
        assert_eq!(code, 0, "{text}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let [mounted, simulated] = [&status, &report].map(|of| of["misses"].as_u64().unwrap());
        assert!(mounted > 500, "{policy}: {mounted} of 2,500 opens missed");
        let apart = mounted.abs_diff(simulated) as f64 / mounted as f64;
        assert!(apart <= 0.02, "{policy}: {mounted} misses, {simulated} in the simulator");
        println!("{policy}: {mounted} misses, {simulated} in the simulator");
    }
}

#[test]
fn hints_from_lists_permutations_and_patterns_are_taken_and_withdrawn() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    plant_tree(&site.path("backing/set"), 30);
    site.mount(&[]);
    let (mnt, list) = (site.text("mnt"), site.text("list"));
    fs::write(&list, "set/d1/e1/f1\nset/d2/e2/f2\nset/nothing\n").unwrap();
    let given = |job: &str| {
        let status = site.status();
        let hints = status["hints"].as_array().unwrap().clone();
        hints.into_iter().find(|hint| hint["job"] == job).map(|hint| hint["references"].clone())
    };
    let (code, text) = site.run(&["hint", &mnt, "--job", "list", &list]);
    assert!(code == 1 && text.contains("set/nothing"), "{text}");
    assert_eq!(given("list"), Some(2.into()), "what is there was taken");
    let (code, text) = site.run(&["hint", &mnt, "--job", "list", "--append", "set/d3/e0/f3"]);
    assert_eq!((code, given("list")), (0, Some(3.into())), "{text}");
    fs::write(&list, "set/d1/e1/f1\nset/d2/e2/f2\n").unwrap();
    let order = site.text("order");
    fs::write(&order, "[1, 0, 1]").unwrap();
    let by_order = ["hint", &mnt, "--job", "order", "--permutation", &order, "--files", &list];
    let (code, text) = site.run(&by_order);
    assert_eq!((code, given("order")), (0, Some(3.into())), "{text}");
    let (code, text) =
        site.run(&["hint", &mnt, "--job", "glob", "set/d[12]/**/f*", "--expires", "1h"]);
    assert_eq!((code, given("glob")), (0, Some(9.into())), "{text}");
    fs::write(&order, "[2]").unwrap();
    let (code, text) = site.run(&by_order);
    assert!(code == 2 && text.contains("entries 0 to 1"), "{text}");
    assert_eq!(site.run(&["hint", &mnt, "--job", "glob", "--withdraw"]).0, 0);
    let (code, text) = site.run(&["hint", &mnt, "--job", "glob", "--withdraw"]);
    assert!(code == 1 && text.contains("no job"), "{text}");
    let (code, text) = site.run(&["hint", &mnt, "--job", "none"]);
    assert!(code == 2 && text.contains("--from"), "{text}");
    site.umount();
}

#[test]
fn umount_with_detach_when_a_file_is_open_then_it_returns_and_says_who_is_served_on() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    fs::write(site.path("mnt/file"), "text").unwrap();
    let (code, text) = site.run(&["umount", &site.text("mnt/file")]);
    assert!(code == 2 && text.contains("can only be unmounted as a whole"), "{code}: {text}");
    let daemon = site.daemon();
    let mut open = fs::File::open(site.path("mnt/file")).unwrap();
    let begun = std::time::Instant::now();
    let (code, text) = site.run(&["umount", "--detach", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("serves on") && text.contains(&std::process::id().to_string()), "{text}");
    // It would wait for a minute.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let mut found = String::new();
    std::io::Read::read_to_string(&mut open, &mut found).unwrap();
    assert_eq!(found, "text");
    drop(open);
    assert!(wait_for(Duration::from_secs(60), || !alive(daemon)));
}
