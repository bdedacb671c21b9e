//! Mounts of those who may not do everything in the backing store: a plain user, and root where the
//! store gives it no rights of its own (root_squash of NFS): what is acknowledged gets there, and what
//! can't is refused at the open.

mod site;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use site::*;

const USER: u32 = 65_534;
/// Who else has files in the store.
const OTHER: u32 = 4321;

/// A file in the backing store.
fn put(site: &Site, name: &str, (owner, group, mode): (u32, u32, u32)) {
    let path = site.path("backing").join(name);
    fs::write(&path, "theirs").unwrap();
    chown(&path, Some(owner), Some(group)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

fn about(path: &Path) -> (u64, u32, u32, u32) {
    let found = fs::metadata(path).unwrap();
    (found.ino(), found.uid(), found.gid(), found.mode() & 0o7777)
}

/// Runs a script as the user, with the program at `$F` and the site at `$S`.
fn as_user(site: &Site, script: &str) -> (i32, String) {
    let mut command = site.command("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["env", "-u", "FOREBAY_RUNTIME_DIR", "sh", "-c", script]);
    command.env("S", site.path("")).env("F", site.path("forebay"));
    outcome(command.env("XDG_RUNTIME_DIR", site.path("run")))
}

/// Lets everybody use /dev/fuse, as udev has it, in this thread's own mounts.
fn let_all_use_fuse() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    use rustix::mount::mount_bind;
    if about(Path::new("/dev/fuse")).3 & 0o666 == 0o666 {
        return;
    }
    use_own_mounts();
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("fuse");
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, &device, FileType::CharacterDevice, mode, makedev(10, 229)).unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
    mount_bind(&device, "/dev/fuse").unwrap();
}

/// A site of the user; `None` where he can't mount.
fn site_of_the_user() -> Option<Site> {
    if !can_mount() {
        return None;
    }
    let_all_use_fuse();
    let helper = fs::metadata("/usr/bin/fusermount3").or_else(|_| fs::metadata("/bin/fusermount3"));
    if !helper.is_ok_and(|helper| helper.mode() & 0o4000 != 0) {
        eprintln!("skipped: fusermount3 is not set-uid");
        return None;
    }
    let site = Site::new();
    fs::set_permissions(site.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_forebay"), site.path("forebay")).unwrap();
    for dir in ["backing", "mnt", "run", "home"] {
        chown(site.path(dir), Some(USER), Some(USER)).unwrap();
    }
    fs::set_permissions(site.path("run"), fs::Permissions::from_mode(0o700)).unwrap();
    Some(site)
}

/// What plain users do to directories that they have closed to themselves, as for a package that nobody is
/// to change. In each step the modes follow at once, before anything is written back.
const CLOSED: [&str; 4] = [
    "mkdir -p pkg/sub deep/a/b; mkdir -m 555 alone; echo a >pkg/a; echo b >pkg/sub/b; echo c >deep/a/b/c; ln -s a pkg/l
     chmod 444 pkg/a pkg/sub/b; chmod 555 pkg/sub pkg; chmod 000 deep/a/b; chmod 500 deep/a deep",
    "chmod u+w pkg; echo n >pkg/new; rm -f pkg/a; mv pkg/sub pkg/other; mkfifo pkg/p; chmod u-w pkg
     chmod u+w deep deep/a; chmod 700 deep/a/b; echo more >>deep/a/b/c; mv deep/a/b/c out
     chmod 000 deep/a/b; chmod 000 deep/a",
    "mkdir box; mv box deep/; chmod u+w pkg; mv pkg deep/box/; chmod 555 deep/box/pkg deep/box
     chmod u+w alone; setfattr -n user.name -v value alone; chmod u-w alone",
    "chmod -R u+rwx deep; rm -rf deep; mkdir deep; echo again >deep/file; chmod 0 deep",
];

/// What they do to files that they have closed to themselves. Each step finds in the backing store what the
/// one before left there, and nothing on the tier.
const CLOSED_FILES: [&str; 6] = [
    "for name in a c d e g i; do seq 100 >$name; done; ln a b; ln e f; ln i j
     chmod 444 a c; chmod 000 d g i",
    "chmod u+w a; echo more >>a; chmod 444 b; chmod u+r d; cat d >copy; chmod 000 d
     chmod u+w c; exec 3>>c; chmod 000 c; echo more >&3; exec 3>&-",
    "setfattr -n user.name -v value e; chmod 444 f; chmod 600 g; exec 3<g; chmod 000 g; cat <&3 >copy
     exec 3<&-; chmod 600 i; truncate -s 10 j; chmod 000 j",
    "chmod u+w a; : >b; chmod 400 a; chmod 600 c; ln c h; seq 5 >h; chmod 000 c
     setfattr -n user.name -v other f; setfattr -n user.more -v 1 g; chmod 200 g; echo more >>g
     chmod u+w i; setfattr -n user.name -v value i; chmod 400 j
     mkdir closed listed; echo one >closed/k; ln closed/k k; chmod 000 closed; echo two >>k
     for name in copy e listed; do chmod u+w $name; setfattr -n user.list -v value $name
     setfacl -m u::r--,u:4321:rw $name; done",
    "mkdir shut; echo one >shut/m; setfattr -n user.name -v value shut shut/m; chmod 000 shut/m shut",
    "chmod 700 shut; chmod 600 shut/m; echo two >>shut/m; chmod 000 shut/m shut
     cat k >copy2; echo more >>k; chmod 600 a; seq 10 >>b; exec 3<e; chmod 000 f; cat <&3 >copy3
     mkdir away; seq 30 >away/l; exec 4<away/l; chmod 000 away; cat <&4 >copy4; exec 3<&- 4<&-",
];

/// Does the steps in a plain directory and on a mount, each on a mount of its own, and compares what is in
/// the backing store then.
fn assert_as_in_a_plain_directory(steps: &[&str], each_on_a_tier_of_its_own: bool) {
    let Some(site) = site_of_the_user() else { return };
    for (number, step) in steps.iter().enumerate() {
        let tier = if each_on_a_tier_of_its_own { number } else { 0 };
        let script = format!(
            r#"
            do_it() {{ mkdir -p "$1" && cd "$1" && umask 022 && {{ chmod u+w deep 2>/dev/null; {step}
            }}; }}
            do_it "$S/home/native"
            "$F" mount "$S/backing" "$S/mnt" --tier "$S/home/tier{tier}=64M" || exit 1
            do_it "$S/mnt"
            cd / && "$F" umount --timeout 60s "$S/mnt" && echo drained
            "#
        );
        let (code, text) = as_user(&site, &script);
        assert!(code == 0 && text.contains("drained"), "step {number}: {text}");
        let (below, native) = (tree(&site, "backing"), tree(&site, "home/native"));
        assert_eq!(below, native, "step {number}: {text}");
    }
}

/// Modes, links, sizes and names of all in a directory; bytes and extended attributes of its files.
fn tree(site: &Site, dir: &str) -> Vec<String> {
    let script = "find . -name .forebay -prune -o -mindepth 1 -type d -printf '%M %P\\n'
        find . -name .forebay -prune -o -mindepth 1 ! -type d -printf '%M %n %s %P\\n'
        find . -name .forebay -prune -o -type f -exec md5sum {} +
        find . -name .forebay -prune -o ! -type l -exec getfattr -d -m - {} +";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).current_dir(site.path(dir));
    let found = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    let mut lines: Vec<_> = found.lines().map(str::to_string).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn directories_that_a_plain_user_has_closed_when_their_modes_come_first_then_all_gets_there() {
    assert_as_in_a_plain_directory(&CLOSED, false);
}

#[test]
fn files_that_a_plain_user_has_closed_when_changed_then_all_gets_there() {
    for is_each_on_a_tier_of_its_own in [true, false] {
        assert_as_in_a_plain_directory(&CLOSED_FILES, is_each_on_a_tier_of_its_own);
    }
}

#[test]
fn directory_of_a_plain_user_that_others_close_when_changed_here_then_it_stays_closed() {
    let Some(site) = site_of_the_user() else { return };
    let script = |script: &str| as_user(&site, &format!("set -e; cd \"$S\"; {script}"));
    let (code, text) = script(
        r#"mkdir backing/d; echo a >backing/d/file
        "$F" mount backing mnt --tier "$S/home/tier=64M"; ls -lR mnt
        chmod 555 backing/d; echo b >mnt/d/new; rm mnt/d/file
        "$F" umount --timeout 60s mnt; echo drained"#,
    );
    assert!(code == 0 && text.contains("drained"), "{text}");
    assert_eq!(about(&site.path("backing/d")).3, 0o555);
    let names = fs::read_dir(site.path("backing/d")).unwrap().map(|name| name.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["new"]);
}

/// The daemon of a user's mount, who restarts it, and who sends its notices.
fn served_by(site: &Site) -> Vec<i32> {
    let mountpoint = site.text("mnt");
    let processes = fs::read_dir("/proc").unwrap().filter_map(|process| {
        let process = process.ok()?.path();
        let command = fs::read_to_string(process.join("cmdline")).ok()?;
        let serves = command.starts_with("forebay") && command.contains(&mountpoint);
        serves.then(|| process.file_name()?.to_str()?.parse().ok()).flatten()
    });
    processes.collect()
}

#[test]
fn mount_of_a_plain_user_when_it_died_with_changes_in_a_closed_directory_then_it_goes_on() {
    for (tier, sync) in [("64M", ""), ("1M", "sync mnt/top/closed/large")] {
        let Some(site) = site_of_the_user() else { return };
        let mount =
            format!(r#""$F" mount backing mnt --tier "$S/home/tier={tier}" --writeback 30s"#);
        let script = |script: &str| as_user(&site, &format!("set -e; cd \"$S\"; {script}"));
        let (code, text) = script(&format!(
            r#"mkdir -p backing/top/closed; echo one >backing/top/closed/file
            {mount}
            echo two >>mnt/top/closed/file; seq 400000 >mnt/top/closed/large; {sync}
            chmod 000 mnt/top/closed; chmod 500 mnt/top"#
        ));
        assert_eq!(code, 0, "{text}");
        let mode = |dir: &str| about(&site.path("backing").join(dir)).3;
        let is_closed = || (mode("top"), mode("top/closed")) == (0o500, 0);
        assert!(wait_for(Duration::from_secs(20), is_closed), "their modes are written back");
        // Again, until nobody is there to start another one: one that begins has no name for a moment.
        let is_dead = || {
            served_by(&site).iter().for_each(|&one| signal(one, rustix::process::Signal::KILL));
            std::thread::sleep(Duration::from_millis(50));
            served_by(&site).is_empty()
        };
        assert!(wait_for(Duration::from_secs(20), || (0..5).all(|_| is_dead())));
        let (code, text) = script(&format!(
            r#"{mount}
            chmod 700 mnt/top mnt/top/closed
            tail -n 1 mnt/top/closed/large; chmod 000 mnt/top/closed
            "$F" umount --timeout 60s mnt; echo drained"#
        ));
        assert!(code == 0 && text.contains("400000") && text.contains("drained"), "{text}");
        let closed = site.path("backing/top/closed");
        assert_eq!(fs::read_to_string(closed.join("file")).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(closed.join("large")).unwrap().lines().count(), 400_000);
        assert_eq!((mode("top"), mode("top/closed")), (0o700, 0));
    }
}

#[test]
fn mount_of_a_plain_user_when_files_of_others_are_changed_then_they_get_there_and_it_drains() {
    let Some(site) = site_of_the_user() else { return };
    put(&site, "group", (OTHER, USER, 0o664));
    put(&site, "roots", (0, USER, 0o660));
    put(&site, "closed", (OTHER, USER, 0o640));
    put(&site, "emptied", (OTHER, USER, 0o664));
    let before =
        ["group", "roots", "closed", "emptied"].map(|name| about(&site.path("backing").join(name)));
    let (code, text) = as_user(
        &site,
        r#"
        set -e
        "$F" mount "$S/backing" "$S/mnt" --tier "$S/home/tier=64M" --writeback evict
        printf ' and mine' >>"$S/mnt/group"
        printf ' and mine' >>"$S/mnt/roots"
        if printf x 2>/dev/null >>"$S/mnt/closed"; then echo "closed was opened"; fi
        printf anew >"$S/mnt/emptied"
        sync "$S/mnt/group"
        "$F" umount --timeout 60s "$S/mnt"
        echo drained
        "#,
    );
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("drained") && !text.contains("closed was opened"), "{text}");
    let below = |name: &str| fs::read(site.path("backing").join(name)).unwrap();
    assert_eq!(below("group"), b"theirs and mine");
    assert_eq!(below("roots"), b"theirs and mine");
    assert_eq!(below("closed"), b"theirs");
    assert_eq!(below("emptied"), b"anew");
    let after =
        ["group", "roots", "closed", "emptied"].map(|name| about(&site.path("backing").join(name)));
    assert_eq!(after, before, "inode, owner, group and mode stay");
    assert_eq!(site.left_in_backing(), ["closed", "emptied", "group", "roots"]);
}

/// Mounts as root without the rights over files of others, as where the store squashes root.
fn mount_squashed(site: &Site, more: &[&str]) -> (i32, String) {
    let none = "-chown,-dac_override,-dac_read_search,-fowner,-fsetid,-setuid,-setgid,-setpcap";
    let (backing, mnt) = (site.text("backing"), site.text("mnt"));
    let tier = format!("{}=64M", site.text("tier"));
    let mut command = site.command("setpriv");
    command.args(["--inh-caps", none, "--bounding-set", none, env!("CARGO_BIN_EXE_forebay")]);
    command.args(["mount", &backing, &mnt, "--tier", &tier, "--writeback", "evict"]);
    outcome(command.args(more))
}

/// A program of another user, on a mount that others may use.
fn as_other(site: &Site, script: &str) -> (i32, String) {
    let mut command = site.command("setpriv");
    let other = OTHER.to_string();
    command.args(["--reuid", &other, "--regid", &other, "--clear-groups", "sh", "-c", script]);
    outcome(command.env("S", site.path("")))
}

#[test]
fn root_when_the_store_gives_it_no_rights_then_what_is_acknowledged_gets_there() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::set_permissions(site.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    put(&site, "group", (OTHER, 0, 0o664));
    put(&site, "all", (OTHER, OTHER, 0o666));
    put(&site, "emptied", (OTHER, OTHER, 0o666));
    put(&site, "closed", (OTHER, OTHER, 0o600));
    put(&site, "readable", (OTHER, OTHER, 0o644));
    let names = ["group", "all", "emptied", "closed", "readable"];
    let before = names.map(|name| about(&site.path("backing").join(name)));
    let (code, text) = mount_squashed(&site, &[]);
    if text.contains("setpriv:") {
        eprintln!("skipped: {text}");
        return;
    }
    assert_eq!(code, 0, "{text}");
    let append = |name: &str| {
        use std::io::Write;
        let file = fs::OpenOptions::new().append(true).open(site.path("mnt").join(name));
        file.and_then(|mut file| {
            file.write_all(b" and ours")?;
            file.sync_all()
        })
    };
    append("group").unwrap();
    append("all").unwrap();
    fs::write(site.path("mnt/emptied"), "anew").unwrap();
    // What could never get there is refused, however it is opened.
    let refused = [
        append("closed").is_err(),
        append("readable").is_err(),
        fs::write(site.path("mnt/closed"), "anew").is_err(),
        fs::write(site.path("mnt/readable"), "anew").is_err(),
    ];
    // A new file of somebody else is kept with its owner, and its bytes are written.
    fs::create_dir(site.path("mnt/public")).unwrap();
    fs::set_permissions(site.path("mnt/public"), fs::Permissions::from_mode(0o777)).unwrap();
    let (code, text) = as_other(&site, "printf new >\"$S/mnt/public/new\"");
    assert_eq!(code, 0, "{text}");
    let (code, text) = site.run(&["umount", "--timeout", "30s", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    let below = |name: &str| fs::read(site.path("backing").join(name)).unwrap();
    assert_eq!(below("group"), b"theirs and ours");
    assert_eq!(below("all"), b"theirs and ours");
    assert_eq!(below("emptied"), b"anew");
    assert_eq!(below("public/new"), b"new");
    for (name, refused) in
        [("readable", refused[1] && refused[3]), ("closed", refused[0] && refused[2])]
    {
        assert_eq!(below(name), b"theirs");
        assert!(refused, "{name}: acknowledged, and it can never get there: {refused:?} {text}");
    }
    let after = names.map(|name| about(&site.path("backing").join(name)));
    assert_eq!(after, before, "inode, owner, group and mode stay");
}

/// A right that is missing says nothing of what there is.
#[test]
fn object_that_a_plain_user_may_not_read_then_no_check_sets_it_aside_or_gives_it_up() {
    let Some(site) = site_of_the_user() else { return };
    let script = r#"
        T="$S/home/tier"
        "$F" mount "$S/backing" "$S/mnt" --tier "$T=64M" --writeback evict || exit 1
        echo kept >"$S/mnt/file"; sync "$S/mnt/file"
        "$F" umount --no-drain "$S/mnt" || exit 1
        chmod 000 "$T"/objects/*/*
        for how in "" --repair --accept-loss; do "$F" fsck $how "$T"; echo "code $?"; done
        "$F" fsck --rebuild --backing "$S/backing" "$T"; echo "code $?"
        chmod 600 "$T"/objects/*/*
        "$F" fsck --rebuild --backing "$S/backing" "$T" || exit 1
        "$F" mount "$S/backing" "$S/mnt" --tier "$T=64M" || exit 1
        cat "$S/mnt/file"; "$F" umount "$S/mnt"
    "#;
    let (code, text) = as_user(&site, script);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("code 6").count(), 4, "{text}");
    assert_eq!(text.matches("can't be looked at").count(), 3, "{text}");
    for wrong in ["are gone", "set aside as", "given up"] {
        assert!(!text.contains(wrong), "{wrong}: {text}");
    }
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"kept\n");
}
