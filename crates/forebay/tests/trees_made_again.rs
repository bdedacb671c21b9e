//! Trees that are removed and made again while they are written back: `rm -rf build; make`, `git
//! checkout`, `tar x` over what was there.

mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use site::{Site, can_mount};

const DIRECTORIES: usize = 100;
const FILES: usize = 4;
/// Between a removal and the next: shorter and longer than what a write-back waits for.
const PAUSES_MS: [u64; 8] = [200, 1100, 50, 2300, 700, 0, 5200, 300];

fn content(round: usize, directory: usize, file: usize) -> Vec<u8> {
    format!("round {round}, directory {directory}, file {file}\n")
        .repeat(1 + file * 40)
        .into_bytes()
}

/// Makes the tree, and checks what it shows at once.
fn make(tree: &Path, round: usize) {
    fs::create_dir(tree).unwrap();
    for directory in 0..DIRECTORIES {
        let dir = tree.join(format!("d{}", directory / 10)).join(format!("s{directory}"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..FILES {
            let path = dir.join(format!("f{file}"));
            fs::write(&path, content(round, directory, file)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content(round, directory, file), "{path:?}");
        }
    }
}

fn all_below(dir: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}/{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => all_below(&entry.path(), &name, found),
            false => drop(found.insert(name, fs::read(entry.path()).unwrap())),
        }
    }
}

fn contents_of(tree: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    all_below(tree, "", &mut found);
    found
}

/// On one mount, with its options: no error, no conflict, nothing missing, the backlog ends, and the
/// check has nothing to say.
fn remove_and_make_again(options: &[&str]) {
    let site = Site::new();
    site.mount(options);
    let tree = site.path("mnt/build");
    make(&tree, 0);
    for (round, pause) in PAUSES_MS.into_iter().enumerate() {
        std::thread::sleep(Duration::from_millis(pause));
        fs::remove_dir_all(&tree).unwrap();
        make(&tree, round + 1);
    }
    let seen = contents_of(&tree);
    assert_eq!(seen.len(), DIRECTORIES * FILES, "{options:?}");
    let status = site.status();
    assert_eq!(status["conflicts"], serde_json::json!([]), "{options:?}: {status}");
    site.umount();
    let below = contents_of(&site.path("backing/build"));
    assert!(below == seen, "{options:?}: the backing store differs");
    let tier = site.text("tier");
    let (code, text) = site.run(&["fsck", &tier]);
    assert_eq!(code, 0, "{options:?}: {text}");
    assert_eq!(site.left_in_backing(), ["build"], "{options:?}");
}

#[test]
fn trees_removed_and_made_again_on_mounts_of_every_kind_then_as_a_plain_directory() {
    if !can_mount() {
        return;
    }
    let kinds: [&[&str]; 6] = [
        &[],
        &["--writeback", "close"],
        &["--writeback", "200ms"],
        &["--writeback", "1s"],
        &["--writeback", "1s", "--coherence", "exclusive"],
        &["--writeback", "200ms", "--coherence", "exclusive"],
    ];
    std::thread::scope(|scope| {
        for options in kinds {
            scope.spawn(|| remove_and_make_again(options));
        }
    });
}
