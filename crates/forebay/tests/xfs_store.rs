//! A backing store on XFS, which shows access lists once more, as attributes that root can list.

mod disk;
mod site;

use std::fs;
use std::path::Path;

use disk::StoreDisk;
use site::*;

fn run(site: &Site, program: &str, args: &[&str]) -> String {
    let (code, text) = outcome(site.command(program).args(args));
    assert_eq!(code, 0, "{program} {args:?}: {text}");
    text
}

fn list(site: &Site, path: &Path) -> String {
    run(site, "getfacl", &["-cpn", path.to_str().unwrap()])
}

/// A directory that inherits a list had none below, with rights for its group that it never had; a list that
/// `chmod` had narrowed was as wide as before there.
#[test]
fn access_lists_when_the_store_is_xfs_then_are_there_as_on_the_mount() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let Some(_xfs) = StoreDisk::new(&site, 320 << 20, "mkfs.xfs", &["-q"]) else { return };
    let below = |name: &str| site.path("backing").join(name);
    let above = |name: &str| site.path("mnt").join(name);
    fs::write(below("known"), "bytes").unwrap();
    run(&site, "setfacl", &["-m", "u:99:rwx,g::r", below("known").to_str().unwrap()]);
    run(&site, "chmod", &["o+r", below("known").to_str().unwrap()]);
    site.mount(&["--writeback", "200ms"]);
    run(&site, "getfattr", &["-d", "-m", "-", above("known").to_str().unwrap()]);
    run(&site, "chmod", &["600", above("known").to_str().unwrap()]);
    fs::create_dir(above("parent")).unwrap();
    run(&site, "setfacl", &["-d", "-m", "u:99:rwx", above("parent").to_str().unwrap()]);
    fs::create_dir(above("parent/dir")).unwrap();
    fs::write(above("parent/file"), "bytes").unwrap();
    fs::create_dir(above("moved")).unwrap();
    run(&site, "setfacl", &["-m", "u:99:rwx", above("moved").to_str().unwrap()]);
    fs::rename(above("moved"), above("parent/moved")).unwrap();
    site.run(&["sync", &site.text("mnt")]);
    let names = ["known", "parent", "parent/dir", "parent/file", "parent/moved"];
    let shown = names.map(|name| list(&site, &above(name)));
    assert!(shown[0].contains("mask::---"), "{}", shown[0]);
    assert!(shown[1..].iter().all(|shown| shown.contains("user:99:rwx")), "{shown:?}");
    for (name, shown) in names.iter().zip(&shown) {
        assert_eq!(&list(&site, &below(name)), shown, "{name}");
    }
    site.umount();
    for (name, shown) in names.iter().zip(&shown) {
        assert_eq!(&list(&site, &below(name)), shown, "{name}");
    }
}
