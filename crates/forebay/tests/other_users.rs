//! What other users of the machine have made beforehand, or would like to exchange; and what their
//! writes take away.

mod site;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use site::{NOBODY, Site, can_mount};

const BAD_STATE: i32 = 6;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn give_away(path: &Path) {
    chown(path, Some(NOBODY.parse().unwrap()), None).unwrap();
}

/// The mount is refused with the path and a way on.
fn is_refused(site: &Site, path: &str, way_on: &str) {
    let (code, text) = site.mount_with(&[]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains(&site.text(path)) && text.contains(way_on), "{text}");
    assert!(!site.is_mounted());
}

#[test]
fn private_area_when_another_user_has_made_it_then_the_mount_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    set_mode(&site.path("backing"), 0o1777);
    let private = site.path("backing/.forebay");
    fs::create_dir(&private).unwrap();
    set_mode(&private, 0o700);
    give_away(&private);
    is_refused(&site, "backing/.forebay", "remove it");
    fs::remove_dir(&private).unwrap();
    site.mount(&[]);
    fs::write(site.path("mnt/file"), "mine").unwrap();
    site.umount();
    let kept = fs::symlink_metadata(&private).expect("or another user could make it now");
    assert_eq!((kept.uid(), kept.mode() & 0o7777), (0, 0o700));
    assert_eq!(fs::read(site.path("backing/file")).unwrap(), b"mine");
}

#[test]
fn tier_when_another_user_owns_it_or_has_prepared_it_then_the_mount_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tier = site.path("tier");
    fs::create_dir(&tier).unwrap();
    give_away(&tier);
    is_refused(&site, "tier", "name another directory");
    assert_eq!(fs::read_dir(&tier).unwrap().count(), 0, "nothing was made there");
    chown(&tier, Some(0), None).unwrap();
    set_mode(&tier, 0o777);
    let victim = site.path("victim");
    fs::create_dir(&victim).unwrap();
    symlink(&victim, tier.join("state")).unwrap();
    is_refused(&site, "tier/state", "name another directory");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "nothing was made there");
    fs::remove_file(tier.join("state")).unwrap();
    site.mount(&[]);
    fs::write(site.path("mnt/file"), "mine").unwrap();
    for dir in ["tier", "tier/objects", "tier/state"] {
        assert_eq!(fs::metadata(site.path(dir)).unwrap().mode() & 0o777, 0o700, "{dir}");
    }
    site.umount();
    let (state, elsewhere) = (tier.join("state"), site.path("elsewhere"));
    fs::rename(&state, &elsewhere).unwrap();
    symlink(&elsewhere, &state).unwrap();
    is_refused(&site, "tier/state", "name another directory");
    let (code, text) = site.run(&["fsck", &site.text("tier")]);
    assert_eq!(code, BAD_STATE, "{text}");
    assert!(text.contains(&site.text("tier/state")), "{text}");
}

/// The mode alone, as `stat -c %a` asks for it: the kernel answers that from memory if it can.
fn mode_alone(path: &Path) -> u32 {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    u32::from(statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap().stx_mode) & 0o7777
}

/// Calls with the rights that a plain user has on files.
fn as_nobody<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls, for this thread alone.
    unsafe { libc::setfsuid(NOBODY.parse().unwrap()) };
    let result = call();
    // SAFETY: as above.
    unsafe { libc::setfsuid(0) };
    result
}

#[test]
fn set_id_bits_when_a_users_call_took_them_away_then_the_next_look_at_the_mode_shows_it() {
    if !can_mount() {
        return;
    }
    let write = |file: &fs::File| file.write_at(b"A", 0).map(|_| ());
    let truncate = |file: &fs::File| file.set_len(3);
    let allocate = |file: &fs::File| {
        // SAFETY: a plain call on an open file.
        match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 100_000) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let none = |_: &fs::File| Ok(());
    type Call<'a> = &'a dyn Fn(&fs::File) -> std::io::Result<()>;
    let calls: [(&str, bool, Call); 4] = [
        ("write", false, &write),
        ("truncate", false, &truncate),
        ("allocate", false, &allocate),
        ("open", true, &none),
    ];
    for passthrough in ["off", "readwrite"] {
        let site = Site::new();
        set_mode(site.root.path(), 0o755);
        site.mount(&["--passthrough", passthrough]);
        for round in 0..100 {
            for (name, truncates, call) in calls {
                let path = site.path(&format!("mnt/{name}-{round}"));
                fs::write(&path, "a program").unwrap();
                set_mode(&path, 0o6777);
                assert_eq!(mode_alone(&path), 0o6777);
                as_nobody(|| {
                    let mut options = fs::File::options();
                    let file = options.write(true).truncate(truncates).open(&path).unwrap();
                    call(&file).unwrap();
                    let left = mode_alone(&path);
                    assert_eq!(left, 0o777, "{name}, round {round}, passthrough {passthrough}");
                });
            }
        }
        site.umount();
    }
}
