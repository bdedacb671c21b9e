//! What was made right now gets its mode, and not what others have put in its place.
#![cfg(feature = "failpoints")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use forebay_store::BackingStore;
use forebay_store::backing::{DirBacking, Node};

const BEFORE_MODE: &str = "store.make.before_mode";

#[test]
fn made_when_others_put_something_else_in_its_place_then_theirs_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    let (root, name) = (store.root(), OsStr::new("made"));
    let path = dir.path().join("made");
    let mode = || fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777;
    let makes: [&dyn Fn(); 2] = [&|| store.mkdir(&root, name, 0o751).unwrap(), &|| {
        store.mknod(&root, name, Node::Fifo, 0o751).unwrap();
    }];
    for make in makes {
        make();
        assert_eq!(mode(), 0o751);
        fs::remove_dir(&path).or_else(|_| fs::remove_file(&path)).unwrap();
        let others = path.clone();
        let replace = move || {
            fs::remove_dir(&others).or_else(|_| fs::remove_file(&others)).unwrap();
            fs::write(&others, "of others").unwrap();
            fs::set_permissions(&others, fs::Permissions::from_mode(0o600)).unwrap();
        };
        fail::cfg_callback(BEFORE_MODE, replace).unwrap();
        make();
        fail::remove(BEFORE_MODE);
        assert_eq!(mode(), 0o600);
        fs::remove_file(&path).unwrap();
    }
}
