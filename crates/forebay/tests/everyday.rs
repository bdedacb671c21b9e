//! What a command says and does on an ordinary day.

mod site;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use forebay_testing::wait_until;
use site::{NOBODY, Site, can_mount, outcome};

fn set_old_time(dir: &Path) {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(dir).unwrap().set_modified(old).unwrap();
}

#[test]
fn root_directory_when_the_mount_has_ended_then_has_the_time_that_programs_saw() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::create_dir(site.path("backing/dir")).unwrap();
    set_old_time(&site.path("backing"));
    site.mount(&[]);
    fs::write(site.path("mnt/dir/file"), b"below").unwrap();
    assert_eq!(fs::metadata(site.path("mnt")).unwrap().mtime(), 1_000_000_000);
    site.umount();
    assert_eq!(fs::read(site.path("backing/dir/file")).unwrap(), b"below");
    assert_eq!(fs::metadata(site.path("backing")).unwrap().mtime(), 1_000_000_000);
    // And with a change of the root itself.
    site.mount(&[]);
    fs::write(site.path("mnt/file"), b"in the root").unwrap();
    let seen = fs::metadata(site.path("mnt")).unwrap();
    site.umount();
    let found = fs::metadata(site.path("backing")).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (seen.mtime(), seen.mtime_nsec()));
}

#[test]
fn link_that_others_point_elsewhere_when_refreshed_then_followed_there() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let below = |name: &str| site.path("backing").join(name);
    for release in ["r1", "r2"] {
        fs::create_dir(below(release)).unwrap();
        fs::write(below(release).join("version"), release).unwrap();
    }
    std::os::unix::fs::symlink("r1", below("current")).unwrap();
    site.mount(&[]);
    let current = || fs::read_to_string(site.path("mnt/current/version")).unwrap();
    assert_eq!(current(), "r1");
    std::os::unix::fs::symlink("r2", below("new")).unwrap();
    fs::rename(below("new"), below("current")).unwrap();
    assert_eq!(site.run(&["refresh", &site.text("mnt")]).0, 0);
    assert_eq!(current(), "r2");
    site.umount();
}

/// It said that all was in the backing store, and had looked at the link alone.
#[test]
fn sync_when_a_symbolic_link_is_named_then_what_it_leads_to_is_written_back() {
    use std::os::unix::fs::symlink;
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    let [run, file, outside] = ["mnt/run", "mnt/file", "outside"].map(|name| site.path(name));
    fs::create_dir(&run).unwrap();
    symlink("run", site.path("mnt/latest")).unwrap();
    symlink("file", site.path("mnt/link")).unwrap();
    symlink(&run, &outside).unwrap();
    for (round, named) in
        ["mnt/latest/", "mnt/latest", "outside/", "outside"].into_iter().enumerate()
    {
        let result = format!("result {round}");
        fs::write(run.join("result"), &result).unwrap();
        assert_eq!(site.run(&["sync", &site.text(named)]).0, 0, "{named}");
        let below = fs::read_to_string(site.path("backing/run/result")).unwrap();
        assert_eq!(below, result, "{named}");
    }
    fs::write(&file, "bytes").unwrap();
    assert_eq!(site.run(&["sync", &site.text("mnt/link")]).0, 0);
    assert_eq!(fs::read_to_string(site.path("backing/link")).unwrap(), "bytes");
    symlink("/etc/hostname", site.path("mnt/elsewhere")).unwrap();
    symlink("nowhere", site.path("mnt/dangling")).unwrap();
    let (exit, said) = site.run(&["sync", &site.text("mnt/elsewhere"), &site.text("mnt/dangling")]);
    assert!(exit == 0 && said.contains("is on no Forebay mount"), "{exit}: {said}");
    assert!(site.path("backing/dangling").is_symlink());
    assert_eq!(site.run(&["sync", &site.text("mnt/dangling/")]).0, 1);
    site.umount();
}

#[test]
fn command_whose_messages_nobody_reads_then_ends_as_ever() {
    let nowhere = Path::new("/nowhere at all");
    let site = Site::new();
    let code = |heard: bool| {
        let mut child = site
            .command(env!("CARGO_BIN_EXE_forebay"))
            .arg("status")
            .arg(nowhere)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = child.stderr.take();
        if !heard {
            messages = None;
        }
        let code = child.wait().unwrap().code();
        drop(messages);
        code
    };
    assert_eq!(code(false), code(true));
}

#[test]
fn requests_when_followed_then_the_log_has_each_with_its_inode_handle_process_and_result() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let log = site.text("requests.log");
    site.mount(&["--log-level", "warn", "--log-file", &log]);
    fs::write(site.path("mnt/quiet"), "q").unwrap();
    let level = "warn,forebay::request=debug";
    assert_eq!(site.run(&["debug", "log-level", &site.text("mnt"), level]).0, 0);
    let file = site.path("mnt/followed");
    fs::write(&file, "f").unwrap();
    assert!(rustix::fs::getxattr(&file, "user.none", &mut [0; 8]).is_err());
    let inode = fs::metadata(&file).unwrap().ino();
    assert_eq!(site.run(&["debug", "log-level", &site.text("mnt"), "warn"]).0, 0);
    fs::write(site.path("mnt/quiet again"), "q").unwrap();
    let text = fs::read_to_string(log).unwrap();
    let of = |operation: &str| {
        let operation = format!("operation=\"{operation}\"");
        // One that is handed over says so before.
        let answered = text.lines().filter(|line| !line.contains("has to wait"));
        answered.filter(|line| line.contains(&operation)).collect::<Vec<_>>()
    };
    let pid = format!("pid={}", rustix::thread::gettid().as_raw_nonzero());
    assert_eq!(of("create").len(), 1, "{text}");
    assert!(of("create")[0].contains("opened=") && of("create")[0].contains("us="), "{text}");
    let closes = of("last close");
    assert!(!closes.is_empty(), "{text}");
    assert!(
        closes
            .iter()
            .all(|line| line.contains(&format!("inode={inode}")) && line.contains("handle=")),
        "{text}"
    );
    let failed = of("getxattr");
    assert!(failed.len() == 1 && failed[0].contains("errno=61"), "{text}");
    assert!(failed[0].contains(&pid), "{text}");
}

#[test]
fn files_below_a_bind_mount_of_a_directory_when_named_to_commands_then_these_are_meant() {
    if !can_mount() {
        return;
    }
    site::use_own_mounts();
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    fs::create_dir(site.path("mnt/dir")).unwrap();
    fs::create_dir(site.path("bind")).unwrap();
    fs::write(site.path("mnt/dir/file"), b"in the directory").unwrap();
    fs::write(site.path("mnt/file"), b"of the same name above it").unwrap();
    rustix::mount::mount_bind(site.path("mnt/dir"), site.path("bind")).unwrap();
    let (code, text) = site.run(&["where", &site.text("bind/file")]);
    assert!(code == 0 && text.starts_with("dir/file: file, resident"), "{code} {text}");
    let (code, text) = site.run(&["sync", "--quiet", &site.text("bind/file")]);
    let (code_of_all, of_all) = site.run(&["conflicts", "list", &site.text("bind")]);
    rustix::mount::unmount(site.path("bind"), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!((code, text.contains("wrote 1 file, 16 B")), (0, true), "{text}");
    assert_eq!((code_of_all, of_all.as_str()), (0, "no conflicts\n"));
    assert_eq!(fs::read(site.path("backing/dir/file")).unwrap(), b"in the directory");
    assert!(!site.path("backing/file").exists());
}

/// Nobody said that what was written stayed on the tier, which a reboot may empty.
#[test]
fn mount_when_umount_8_removes_it_then_the_daemon_writes_everything_back_before_it_ends() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    // One that is refused changes nothing.
    let in_use = fs::File::create(site.path("mnt/in-use")).unwrap();
    assert_eq!(site.run(&["umount", "--no-drain", &site.text("mnt")]).0, 1);
    drop(in_use);
    fs::write(site.path("mnt/file"), "written").unwrap();
    let unmount = || rustix::mount::unmount(site.path("mnt"), rustix::mount::UnmountFlags::empty());
    wait_until("it is unmounted", || unmount().is_ok());
    let below = site.path("backing/file");
    wait_until("it is written back", || fs::read(&below).is_ok_and(|bytes| bytes == b"written"));
    // And the tiers are free then.
    site.mount(&[]);
    fs::write(site.path("mnt/more"), "and more").unwrap();
    site.umount();
}

#[test]
fn mount_that_is_bound_to_other_places_when_unmounted_then_they_are_named() {
    if !can_mount() {
        return;
    }
    site::use_own_mounts();
    let site = Site::new();
    site.mount(&[]);
    fs::create_dir(site.path("mnt/dir")).unwrap();
    fs::create_dir(site.path("bind")).unwrap();
    rustix::mount::mount_bind(site.path("mnt/dir"), site.path("bind")).unwrap();
    let (code, text) = site.run(&["umount", &site.text("bind")]);
    assert!(code == 2 && text.contains("is a bind mount of a part"), "{code} {text}");
    fs::write(site.path("mnt/dir/file"), b"served on").unwrap();
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert!(code == 1 && text.contains(&site.text("bind")), "{code} {text}");
    assert_eq!(fs::read(site.path("bind/file")).unwrap(), b"served on");
    rustix::mount::unmount(site.path("bind"), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(fs::read(site.path("backing/dir/file")).unwrap(), b"served on");
}

#[test]
fn sync_when_files_are_there_open_or_mapped_then_says_so_and_succeeds() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "evict"]);
    let sync = || site.run(&["sync", "--quiet", &site.text("mnt")]);
    fs::write(site.path("mnt/file"), vec![7; 3000]).unwrap();
    let (code, text) = sync();
    assert_eq!(
        (code, text.as_str()),
        (0, "synced: wrote 1 file, 2.93 KiB; all of it is in the backing store now\n")
    );
    let (code, text) = sync();
    assert_eq!((code, text.as_str()), (0, "synced: all of it was in the backing store\n"));
    let mut open = fs::File::create(site.path("mnt/open")).unwrap();
    open.write_all(b"as it is now").unwrap();
    let (code, text) = sync();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("1 file is open for writing or mapped"), "{text}");
    assert_eq!(fs::read(site.path("backing/open")).unwrap(), b"as it is now");
    open.write_all(b", and later").unwrap();
    let (code, text) = sync();
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("backing/open")).unwrap(), b"as it is now, and later");
    drop(open);
    site.umount();
}

#[test]
fn plain_users_when_the_daemon_or_the_device_is_not_found_then_are_told_what_to_do() {
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
    fs::copy(env!("CARGO_BIN_EXE_forebay"), site.path("forebay")).unwrap();
    for dir in ["backing", "mnt", "run", "home"] {
        chown(site.path(dir), Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(site.path("run"), fs::Permissions::from_mode(0o700)).unwrap();
    let script = r#"
        set -e
        mount --make-rprivate /
        mknod "$S/fuse" c 10 229; chmod 600 "$S/fuse"; mount --bind "$S/fuse" /dev/fuse
        as="setpriv --reuid $U --regid $U --clear-groups env -u FOREBAY_RUNTIME_DIR"
        $as "$S/forebay" doctor || echo "doctor: $?"
        $as XDG_RUNTIME_DIR="$S/run" "$S/forebay" mount "$S/backing" "$S/mnt" \
            --tier "$S/home/tier=64M" || echo "closed device: $?"
        chmod 666 "$S/fuse"
        $as XDG_RUNTIME_DIR="$S/run" "$S/forebay" mount "$S/backing" "$S/mnt" \
            --tier "$S/home/tier=64M" --writeback evict
        $as sh -c 'echo text >"$S/mnt/file"'
        $as "$S/forebay" umount "$S/mnt" || echo "without the variable: $?"
        $as cat "$S/mnt/file"
        $as XDG_RUNTIME_DIR="$S/run" "$S/forebay" umount "$S/mnt"
        cat "$S/backing/file"
        "#;
    let mut unshare = site.command("unshare");
    unshare.args(["-m", "sh", "-c", script]).env("S", site.path("")).env("U", NOBODY);
    let (code, text) = outcome(&mut unshare);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("MISSING  /dev/fuse"), "{text}");
    assert!(text.contains("chmod 666 /dev/fuse"), "{text}");
    assert!(text.contains("doctor: 5") && text.contains("closed device: 5"), "{text}");
    assert!(text.contains("without the variable: 3"), "{text}");
    assert!(text.contains("its daemon is alive") && !text.contains("dead"), "{text}");
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"text\n");
}

#[test]
fn umount_when_another_mount_namespace_has_the_mount_then_says_who_keeps_the_daemon() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    fs::write(site.path("mnt/file"), b"written back").unwrap();
    // The mounts of other tests, which are copied as well, must be able to end.
    let script = "grep -F ' - fuse' /proc/self/mountinfo | cut -d ' ' -f 5 | grep -vxF \"$M\" |
        while read -r point; do umount -l \"$point\"; done
        echo ready; read end";
    let mut other = site.command("unshare");
    other.args(["-m", "--propagation", "private", "sh", "-c", script]).env("M", site.text("mnt"));
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    other.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let (code, text) = site.run(&["umount", &site.text("mnt")]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("other mount namespaces") && text.contains("(sh)"), "{text}");
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"written back");
    drop(other.stdin.take());
    other.wait().unwrap();
    // Nothing keeps it any more.
    let until = Instant::now() + Duration::from_secs(30);
    while site.mount_with(&[]).0 != 0 {
        assert!(Instant::now() < until, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    site.umount();
}

#[test]
fn fsck_when_attributes_were_changed_before_a_clean_end_then_it_finds_nothing() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/below"), "from below").unwrap();
    let script = r#"
        set -e
        cd "$M"
        cat below >/dev/null
        mkdir dir; echo text >dir/file; echo other >other; ln other link; ln -s file dir/pointer
        "#;
    let shell = |script: &str| {
        let (code, text) =
            outcome(site.command("sh").args(["-c", script]).env("M", site.path("mnt")));
        assert_eq!(code, 0, "{text}");
    };
    site.mount(&[]);
    shell(script);
    site.umount();
    site.mount(&[]);
    shell(
        r#"
        set -e
        cd "$M"
        cat dir/file below >/dev/null
        chmod 600 dir/file below; chown 12:34 other dir; touch -d 2001-02-03 dir/file dir below
        mv dir/file dir/moved; chmod 750 dir; ln below second
        "#,
    );
    site.umount();
    let backing = site.text("backing");
    for how in [&[][..], &["--repair"]] {
        let (code, text) =
            site.run(&[&["fsck", "--backing", &backing], how, &[&site.text("tier")]].concat());
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("no problems") && !text.contains("killed"), "{text}");
    }
    let found = fs::metadata(site.path("backing/dir/moved")).unwrap();
    assert_eq!(found.mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(site.path("backing/other")).unwrap().uid(), 12);
}

/// Hard links of a whole tree, made in place of one that is removed while it is written back.
#[test]
fn tree_of_hard_links_when_made_over_a_removed_one_then_it_gets_there_and_nothing_stays() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--writeback", "200ms"]);
    let script = r#"
        set -e
        cd "$M"
        make() { for d in 1 2 3 4 5 6; do mkdir -p "$1/$d"
            for f in 1 2 3 4 5; do echo "$1 $d $f" >"$1/$d/$f"; done; done; }
        make first
        for pause in 0 0.3 1.2 0.1 2.1 0 1.5; do
            make tree
            sleep $pause
            rm -rf tree
            cp -al first tree
            sleep $pause
            rm -rf tree first
            make first
        done
        cp -al first tree
        "#;
    let (code, text) = outcome(site.command("sh").args(["-c", script]).env("M", site.path("mnt")));
    assert_eq!(code, 0, "{text}");
    let (code, text) = site.run(&["umount", "--timeout", "60s", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(site.left_in_backing(), ["first", "tree"], "{text}");
    for file in (1..=6).flat_map(|dir| (1..=5).map(move |file| format!("{dir}/{file}"))) {
        let one = fs::metadata(site.path("backing/first").join(&file)).unwrap();
        let two = fs::metadata(site.path("backing/tree").join(&file)).unwrap();
        assert_eq!((one.ino(), one.nlink()), (two.ino(), 2), "{file}");
        let bytes = fs::read_to_string(site.path("backing/tree").join(&file)).unwrap();
        assert_eq!(bytes, format!("first {}\n", file.replace('/', " ")));
    }
}

#[test]
fn where_and_warm_when_one_path_is_missing_then_the_others_are_told_of() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), vec![7; 3000]).unwrap();
    site.mount(&[]);
    let (file, missing) = (site.text("mnt/file"), site.text("mnt/missing"));
    let told = site.run(&["where", &missing, &file]);
    assert_eq!(told.0, 1, "{told:?}");
    assert!(told.1.contains("missing: No such file or directory"), "{told:?}");
    assert!(told.1.contains("file: file, absent, clean"), "{told:?}");
    let warmed = site.run(&["warm", &file, &missing]);
    assert_eq!(warmed.0, 1, "{warmed:?}");
    assert!(warmed.1.contains("warmed 1 file, 2.93 KiB\n"), "{warmed:?}");
    assert!(warmed.1.contains("missing: No such file or directory"), "{warmed:?}");
    let nothing = site.run(&["where", &missing]);
    assert_eq!(nothing.0, 1, "{nothing:?}");
    assert!(
        nothing.1.ends_with("missing: No such file or directory (os error 2)\n"),
        "{nothing:?}"
    );
}

#[test]
fn pin_when_a_file_has_no_room_then_it_is_refused_and_not_pinned() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/small"), vec![7; 100 << 10]).unwrap();
    let large = fs::File::create(site.path("backing/large")).unwrap();
    large.set_len(1 << 30).unwrap();
    site.mount(&[]);
    let (code, text) = site.run(&["pin", "--quiet", &site.text("mnt")]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("pinned 1 file, fetched 100 KiB\n  large: "), "{text}");
    let (_, text) = site.run(&["where", &site.text("mnt/small"), &site.text("mnt/large")]);
    let (small, large) = text.split_once('\n').unwrap();
    assert!(small.contains(", pinned") && !large.contains(", pinned"), "{text}");
    let (code, text) = site.run(&["pin", "--quiet", &site.text("mnt/small")]);
    assert_eq!((code, text.as_str()), (0, "nothing to pin: 1 file is pinned already\n"));
}

#[test]
fn pin_when_the_room_ends_within_a_file_then_that_one_is_refused_and_not_pinned() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    for name in ["a", "b"] {
        let file = fs::File::create(site.path(&format!("backing/{name}"))).unwrap();
        file.set_len(160 << 20).unwrap();
    }
    site.mount(&[]);
    let (code, text) = site.run(&["pin", "--quiet", &site.text("mnt/a"), &site.text("mnt/b")]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("pinned 1 file, fetched 160 MiB\n  b: "), "{text}");
    let (_, text) = site.run(&["where", &site.text("mnt/a"), &site.text("mnt/b")]);
    let (first, second) = text.split_once('\n').unwrap();
    assert!(first.contains(", pinned") && !second.contains(", pinned"), "{text}");
}

#[test]
fn warm_in_the_background_when_it_runs_then_the_status_shows_how_far_it_is() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    for n in 0..8 {
        fs::write(site.path(&format!("backing/{n}")), vec![n; 1 << 20]).unwrap();
    }
    site.mount(&["--throttle", "5M"]);
    let (code, text) = site.run(&["warm", "--background", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("warming in the background, process "), "{text}");
    let told = || {
        let (_, text) = site.run(&["status", "--json", &site.text("mnt")]);
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(60);
    let mut seen = Vec::new();
    while told()["tiers"][0]["objects"] != 8 {
        assert!(Instant::now() < until, "{}", told());
        let status = told();
        let progress = &status["works"][0]["progress"];
        if progress["files_total"] == 8 {
            assert_eq!(status["works"][0]["what"], "warm");
            assert_eq!(progress["bytes_total"], 8 << 20);
            seen.push(progress["bytes_done"].as_u64().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(seen.is_sorted() && seen.first() < seen.last(), "{seen:?}");
}

#[test]
fn refresh_when_others_have_changed_an_exclusive_store_then_the_mount_shows_it() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::create_dir_all(site.path("backing/dir/below")).unwrap();
    for name in ["changed", "removed", "dir/removed", "dir/below/changed"] {
        fs::write(site.path("backing").join(name), b"as it was").unwrap();
    }
    site.mount(&["--coherence", "exclusive"]);
    let read = |name: &str| fs::read_to_string(site.path("mnt").join(name));
    let list = |dir: &str| {
        let entries = fs::read_dir(site.path(dir)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for name in ["changed", "removed", "dir/removed", "dir/below/changed"] {
        assert_eq!(read(name).unwrap(), "as it was");
    }
    assert!(read("new").is_err() && read("dir/new").is_err());
    for dir in ["mnt", "mnt/dir", "mnt/dir/below"] {
        list(dir);
    }
    for name in ["removed", "dir/removed"] {
        fs::remove_file(site.path("backing").join(name)).unwrap();
    }
    for name in ["changed", "new", "dir/new", "dir/below/changed"] {
        fs::write(site.path("backing").join(name), b"by others").unwrap();
    }
    assert_eq!(read("changed").unwrap(), "as it was", "it never looks by itself");
    let (code, text) = site.run(&["refresh", "--quiet", &site.text("mnt")]);
    assert_eq!((code, text.as_str()), (0, "refreshed: compared 4 files and 3 directories\n"));
    for name in ["changed", "new", "dir/new", "dir/below/changed"] {
        assert_eq!(read(name).unwrap(), "by others", "{name}");
    }
    for dir in ["", "dir", "dir/below"] {
        let (mount, store) = (Path::new("mnt").join(dir), Path::new("backing").join(dir));
        let mut stored = list(store.to_str().unwrap());
        stored.retain(|name| name != ".forebay");
        assert_eq!(list(mount.to_str().unwrap()), stored);
    }
    // One file, also one that has come meanwhile.
    fs::write(site.path("backing/dir/later"), b"by others").unwrap();
    fs::write(site.path("backing/new"), b"once more").unwrap();
    let paths = [site.text("mnt/new"), site.text("mnt/dir")];
    assert_eq!(site.run(&["refresh", "--quiet", &paths[0], &paths[1]]).0, 0);
    assert_eq!(read("new").unwrap(), "once more");
    assert_eq!(read("dir/later").unwrap(), "by others");
}

#[test]
fn refresh_when_a_file_was_written_here_then_its_bytes_stay() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), b"as it was").unwrap();
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/file"), b"written here").unwrap();
    fs::write(site.path("mnt/new"), b"made here").unwrap();
    fs::write(site.path("backing/file"), b"by others").unwrap();
    assert_eq!(site.run(&["refresh", "--quiet", &site.text("mnt")]).0, 0);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"written here");
    assert_eq!(fs::read(site.path("mnt/new")).unwrap(), b"made here");
}

#[test]
fn file_that_others_renamed_when_they_link_it_then_both_names_are_one_file() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), b"base").unwrap();
    site.mount(&["--attr-timeout", "100ms", "--entry-timeout", "100ms"]);
    let names = || {
        std::thread::sleep(Duration::from_millis(300));
        let entries = fs::read_dir(site.path("mnt")).unwrap().map(|entry| entry.unwrap());
        let mut all: Vec<_> =
            entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect();
        all.sort();
        all
    };
    assert_eq!(names().len(), 1);
    fs::rename(site.path("backing/file"), site.path("backing/moved")).unwrap();
    assert_eq!(names().len(), 1);
    fs::hard_link(site.path("backing/moved"), site.path("backing/other")).unwrap();
    let [(_, first), (_, second)] = &names()[..] else { panic!("{:?}", names()) };
    assert_eq!(first, second);
    for name in ["moved", "other"] {
        fs::write(site.path("mnt").join(name), name).unwrap();
        assert_eq!(site.run(&["sync", "--quiet", &site.text("mnt")]).0, 0);
    }
    assert_eq!(site.status()["conflicts"], serde_json::json!([]));
    assert_eq!(fs::read(site.path("backing/moved")).unwrap(), b"other");
    site.umount();
}

#[test]
fn dataset_when_its_daemon_is_upgraded_or_dies_then_programs_read_on() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(site.path("backing/large"), &large).unwrap();
    fs::write(site.path("backing/small"), b"as it was").unwrap();
    let (code, text) = site.mount_with(&["--dataset", "--passthrough", "readwrite"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--passthrough: can't be with --dataset"), "{text}");
    site.mount(&["--dataset"]);
    let mut held = fs::File::open(site.path("mnt/large")).unwrap();
    let mut piece = vec![0; 1_000_000];
    held.read_exact(&mut piece).unwrap();
    assert!(piece == large[..1_000_000]);
    let (code, text) = site.run(&["upgrade", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    held.read_exact(&mut piece).unwrap();
    assert!(piece == large[1_000_000..2_000_000]);
    let daemon = site.daemon();
    site::signal(daemon, rustix::process::Signal::KILL);
    assert!(site::wait_for(Duration::from_secs(60), || !site::alive(daemon)));
    held.read_exact(&mut piece).unwrap();
    assert!(piece == large[2_000_000..]);
    assert_eq!(fs::read(site.path("mnt/small")).unwrap(), b"as it was");
    fs::write(site.path("backing/small"), b"and now it is so").unwrap();
    assert_eq!(fs::read(site.path("mnt/small")).unwrap(), b"as it was", "it never looks");
    assert_eq!(site.run(&["refresh", "--quiet", &site.text("mnt")]).0, 0);
    assert_eq!(fs::read(site.path("mnt/small")).unwrap(), b"and now it is so");
    drop(held);
    site.umount();
}

#[test]
fn directory_that_others_remove_while_a_program_is_in_it_then_is_empty_as_a_native_one() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::create_dir_all(site.path("backing/tree/in/deeper")).unwrap();
    fs::write(site.path("backing/tree/in/file"), b"x").unwrap();
    fs::create_dir_all(site.path("native/tree/in/deeper")).unwrap();
    fs::write(site.path("native/tree/in/file"), b"x").unwrap();
    site.mount(&["--attr-timeout", "0"]);
    // A program of its own has it as its working directory.
    let script =
        "cd \"$1\"/tree/in && ls . > /dev/null && exec 3< . && rm -rf \"$2\"/tree && sleep 1.5
        ls . && echo listed; ls /proc/self/fd/3/ && echo listed by the descriptor
        for create in 'touch new' 'mkdir new' 'ln -s to new' 'mkfifo new' 'cat file' 'rm file' \
            'rmdir deeper' 'mv file new'
        do LC_ALL=C $create; done 2>&1 | sed 's/.*: //'
        stat -c %h .";
    let of = |mount: &str, below: &str| {
        let mut command = site.command("/bin/sh");
        command.args(["-c", script, "sh", &site.text(mount), &site.text(below)]);
        outcome(&mut command)
    };
    let native = of("native", "native");
    assert!(native.1.contains("listed by the descriptor"), "{native:?}");
    assert_eq!(of("mnt", "backing"), native);
    site.umount();
    assert_eq!(site.left_in_backing(), Vec::<String>::new());
}
