//! Directories that other users own or can write in.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use forebay_store::backing::DirBacking;
use forebay_store::tier::DirTier;
use forebay_store::{BackingStore, Expect, StoreError, Tier};

const OTHER: u32 = 65_534;

/// Only root can make what belongs to others.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Whether the private area is refused, by all that use it, and named.
fn is_refused(store: &DirBacking, path: &Path) {
    let named = |result: Result<(), StoreError>| match result {
        Err(error @ StoreError::Untrusted { .. }) => {
            assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
        }
        other => panic!("{other:?}"),
    };
    named(store.claim_private_area());
}

#[test]
fn private_area_when_another_user_owns_it_or_can_write_in_it_then_it_is_not_used() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let store = || DirBacking::open(dir.path(), "n").unwrap();
    let private = dir.path().join(".forebay");
    std::fs::create_dir(&private).unwrap();
    chown(&private, Some(OTHER), Some(OTHER)).unwrap();
    set_mode(&private, 0o700);
    is_refused(&store(), &private);
    assert!(store().temporary(1).is_err() && store().spill(1).is_err());
    assert!(store().open_spill(1).is_err() && store().list_spills().is_err());
    assert!(store().clean_temporaries("n").is_err() && store().note_mount(b"n").is_err());
    assert_eq!(std::fs::read_dir(&private).unwrap().count(), 0, "nothing was made there");
    chown(&private, Some(0), Some(0)).unwrap();
    for writable in [0o720, 0o777, 0o1777] {
        set_mode(&private, writable);
        is_refused(&store(), &private);
    }
    set_mode(&private, 0o755);
    store().claim_private_area().unwrap();
    assert_eq!(mode(&private), 0o700);
    for area in ["tmp", "spill", "limbo", "lost", "mounts"] {
        let area = private.join(area);
        std::fs::create_dir(&area).unwrap();
        chown(&area, Some(OTHER), Some(OTHER)).unwrap();
        is_refused(&store(), &area);
        std::fs::remove_dir(&area).unwrap();
    }
    std::fs::remove_dir(&private).unwrap();
    symlink("/dev/shm", &private).unwrap();
    is_refused(&store(), &private);
}

/// Has a directory hand an access list on to what is made in it, by which another user may do all
/// that the mode grants to the group. Whether its file system has such lists.
fn hands_on_a_list(dir: &Path) -> bool {
    let mut list = 2_u32.to_le_bytes().to_vec();
    // Its owner, a user, its group, the mask, everybody else (posix_acl_xattr.h).
    for (tag, id) in
        [(1_u16, u32::MAX), (2, OTHER), (4, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(7_u16.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(dir, "system.posix_acl_default", &list, flags);
    if let Err(error) = set {
        eprintln!("skipped: no access lists here: {error}");
    }
    set.is_ok()
}

fn has_list(path: &Path) -> bool {
    let lists = ["system.posix_acl_access", "system.posix_acl_default"];
    lists.iter().any(|list| rustix::fs::lgetxattr(path, *list, &mut [0; 256]).is_ok())
}

#[test]
fn root_that_hands_access_lists_on_when_files_are_published_then_they_have_none_of_them() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let quiet = dir.path().join("quiet");
    std::fs::create_dir(&quiet).unwrap();
    if !hands_on_a_list(dir.path()) {
        return;
    }
    // As an older daemon has made it.
    std::fs::create_dir_all(dir.path().join(".forebay/tmp")).unwrap();
    for made in [".forebay", ".forebay/tmp"] {
        set_mode(&dir.path().join(made), 0o700);
    }
    assert!(has_list(&dir.path().join(".forebay/tmp")));
    let store = DirBacking::open(dir.path(), "n").unwrap();
    store.claim_private_area().unwrap();
    let root = store.root();
    let below = store.open_dir(&root, OsStr::new("quiet")).unwrap();
    let publish = |mut made: forebay_store::Temporary, name: &str| {
        let set = forebay_store::backing::SetAttributes { mode: Some(0o664), ..Default::default() };
        made.file().set_attributes(&set).unwrap();
        store.commit(&mut made, &below, OsStr::new(name), Expect::Absent).unwrap();
        assert!(!has_list(&quiet.join(name)), "{name} has the list of another directory");
        assert_eq!(mode(&quiet.join(name)), 0o664);
    };
    publish(store.temporary(1).unwrap(), "temporary");
    publish(store.spill(2).unwrap(), "spilled");
    publish(store.temporary_beside(3, &root).unwrap(), "beside");
    for area in ["", "tmp", "spill"] {
        assert!(!has_list(&dir.path().join(".forebay").join(area)), "{area} hands it on");
    }
}

#[test]
fn private_area_when_nothing_is_left_in_it_then_it_stays_so_that_nobody_else_makes_it() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    store.claim_private_area().unwrap();
    drop(store.temporary(1).unwrap());
    store.tidy().unwrap();
    let private = dir.path().join(".forebay");
    assert_eq!(mode(&private), 0o700);
    assert_eq!(std::fs::read_dir(&private).unwrap().count(), 0);
}

#[test]
fn commit_when_a_temporary_beside_its_target_was_exchanged_then_it_does_not_count_as_published() {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let root = store.root();
    std::fs::write(dir.path().join("old"), "old").unwrap();
    let version = store.stat(&root, OsStr::new("old")).unwrap().fingerprint();
    for (name, expect) in
        [("any", Expect::Any), ("new", Expect::Absent), ("old", Expect::Version(version))]
    {
        let mut temporary = store.temporary_beside(1, &root).unwrap();
        temporary.file().write_at(b"secret", 0).unwrap();
        let entries = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let own = entries.into_iter().find(|path| path.to_string_lossy().contains(".forebay.tmp."));
        std::fs::write(dir.path().join("theirs"), "theirs").unwrap();
        std::fs::rename(dir.path().join("theirs"), own.unwrap()).unwrap();
        let outcome = store.commit(&mut temporary, &root, OsStr::new(name), expect);
        assert!(outcome.is_err(), "{name}: {outcome:?}");
    }
}

#[test]
fn tier_when_another_user_owns_it_or_something_in_it_then_it_is_refused_by_name() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tier = dir.path().join("tier");
    let refused = |path: &Path| match DirTier::open(&tier) {
        Err(error @ StoreError::Untrusted { .. }) => {
            assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
        }
        other => panic!("{:?}", other.map(|tier| tier.id())),
    };
    std::fs::create_dir(&tier).unwrap();
    chown(&tier, Some(OTHER), Some(OTHER)).unwrap();
    refused(&tier);
    assert_eq!(std::fs::read_dir(&tier).unwrap().count(), 0, "nothing was made there");
    chown(&tier, Some(0), Some(0)).unwrap();
    // Everybody could make names until now.
    set_mode(&tier, 0o777);
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    symlink(&victim, tier.join("forebay-tier.new")).unwrap();
    refused(&tier.join("forebay-tier.new"));
    std::fs::remove_file(tier.join("forebay-tier.new")).unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    drop(DirTier::open(&tier).unwrap());
    assert_eq!((mode(&tier), mode(&tier.join("objects"))), (0o700, 0o700));
    for name in ["state", "lost", "members", "lock"] {
        let path = tier.join(name);
        symlink(&victim, &path).unwrap();
        refused(&path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        chown(&path, Some(OTHER), None).unwrap();
        refused(&path);
        std::fs::remove_file(&path).unwrap();
    }
    let objects = tier.join("objects");
    set_mode(&objects, 0o777);
    std::fs::create_dir(objects.join("00")).unwrap();
    chown(objects.join("00"), Some(OTHER), None).unwrap();
    refused(&objects.join("00"));
    std::fs::remove_dir(objects.join("00")).unwrap();
    drop(DirTier::open(&tier).unwrap());
    assert_eq!(mode(&objects), 0o700);
}
