//! Conflicts with what others do in the backing store: the list of them, and what resolves them.

mod site;

use std::fs;
use std::path::Path;
use std::time::Duration;

use site::*;

/// What `forebay conflicts list` shows of a mount: the paths of both versions below it, and why.
fn listed(site: &Site) -> Vec<[String; 3]> {
    // Longer than anything counts as fresh.
    std::thread::sleep(Duration::from_millis(300));
    let (code, text) = site.run(&["conflicts", "list", "--json", &site.text("mnt")]);
    assert_eq!(code, 0, "{text}");
    let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let mnt = site.text("mnt/");
    let below = |value: &serde_json::Value| value.as_str().unwrap().replace(&mnt, "");
    let mut listed: Vec<_> =
        all.iter().map(|one| ["path", "kept_as", "why"].map(|field| below(&one[field]))).collect();
    listed.sort();
    listed
}

fn paths(listed: &[[String; 3]]) -> Vec<&str> {
    listed.iter().map(|[path, ..]| path.as_str()).collect()
}

/// A mount with a conflict in each of these files.
fn in_conflict(names: &[&str]) -> Site {
    let site = Site::new();
    for name in names {
        let path = site.path("backing").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"base").unwrap();
    }
    site.mount(&["--writeback", "evict", "--attr-timeout", "100ms", "--entry-timeout", "100ms"]);
    for name in names {
        fs::write(site.path("mnt").join(name), b"from here").unwrap();
        fs::write(site.path("backing").join(name), b"from others").unwrap();
    }
    site.run(&["sync", "--quiet", &site.text("mnt")]);
    assert_eq!(listed(&site).len(), names.len());
    site
}

fn moved_below(site: &Site, from: &str, to: &str) {
    fs::rename(site.path("backing").join(from), site.path("backing").join(to)).unwrap();
}

fn read_below(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn conflict_when_others_rename_what_its_directory_is_in_then_the_list_follows() {
    if !can_mount() {
        return;
    }
    let site = in_conflict(&["a/b/c/file", "a/other"]);
    moved_below(&site, "a", "z");
    assert_eq!(paths(&listed(&site)), ["z/b/c/file", "z/other"]);
    moved_below(&site, "z/b", "z/y");
    moved_below(&site, "z", "x");
    let all = listed(&site);
    assert_eq!(paths(&all), ["x/other", "x/y/c/file"]);
    site.umount();
    site.mount(&[]);
    assert_eq!(listed(&site), all, "after a restart");
    for [path, ..] in &all {
        let path = site.path("mnt").join(path);
        let resolved =
            site.run(&["conflicts", "resolve", "--keep", "ours", path.to_str().unwrap()]);
        assert_eq!(resolved.0, 0, "{}", resolved.1);
        assert_eq!(fs::read(&path).unwrap(), b"from here");
    }
    assert_eq!(listed(&site), [[""; 3]; 0]);
    site.umount();
}

#[test]
fn conflict_when_others_move_its_directory_away_then_it_stays_listed_until_forgotten() {
    if !can_mount() {
        return;
    }
    let site = in_conflict(&["a/b/file", "elsewhere/file"]);
    moved_below(&site, "a/b", "elsewhere/b");
    for round in 0..2 {
        let all = listed(&site);
        assert_eq!(paths(&all), ["a/b/file", "elsewhere/file"], "round {round}");
        assert!(all[0][2].contains("moved or removed in the backing store"), "{all:?}");
        assert!(!all[1][2].contains("moved or removed"), "{all:?}");
    }
    // Others make the path anew: that is another directory with other files.
    fs::create_dir(site.path("backing/a/b")).unwrap();
    fs::write(site.path("backing/a/b/file"), b"another file").unwrap();
    let all = listed(&site);
    assert_eq!(paths(&all), ["a/b/file", "elsewhere/file"]);
    let before = ["a/b", "elsewhere/b"].map(|dir| read_below(&site.path("backing").join(dir)));
    for keep in ["ours", "theirs"] {
        for path in &all[0][..2] {
            let path = site.path("mnt").join(path);
            let (code, text) =
                site.run(&["conflicts", "resolve", "--keep", keep, path.to_str().unwrap()]);
            assert!(code == 1 && text.contains("is not there"), "{code} {text}");
        }
    }
    site.run(&["sync", "--quiet", &site.text("mnt")]);
    let after = ["a/b", "elsewhere/b"].map(|dir| read_below(&site.path("backing").join(dir)));
    assert_eq!(after, before, "nothing was removed or replaced");
    let (_, text) = site.run(&["status", &site.text("mnt")]);
    assert!(text.contains("2 files were changed here and by others"), "{text}");
    site.umount();
    fs::remove_dir_all(site.path("backing/a")).unwrap();
    site.mount(&[]);
    assert_eq!(paths(&listed(&site)), ["a/b/file", "elsewhere/file"], "after a restart");
    let forgotten = site.run(&["conflicts", "forget", &site.text("mnt/a/b/file")]);
    assert_eq!(forgotten, (0, "forgot 1 conflict\n".to_owned()));
    assert_eq!(paths(&listed(&site)), ["elsewhere/file"]);
    site.umount();
}

#[test]
fn conflict_when_its_directory_is_removed_through_the_mount_then_it_is_resolved() {
    if !can_mount() {
        return;
    }
    let site = in_conflict(&["a/b/file", "moved/file"]);
    fs::remove_dir_all(site.path("mnt/a")).unwrap();
    let kept_as = listed(&site)[0][1].clone();
    fs::rename(site.path("mnt").join(kept_as), site.path("mnt/elsewhere")).unwrap();
    fs::remove_dir_all(site.path("mnt/moved")).unwrap();
    assert_eq!(listed(&site), [[""; 3]; 0]);
    site.umount();
    site.mount(&[]);
    assert_eq!(listed(&site), [[""; 3]; 0], "after a restart");
    site.umount();
}

#[test]
fn conflicts_when_resolved_in_any_way_then_the_list_has_them_no_more() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let names = ["ours", "theirs", "forgotten", "removed"];
    for name in names {
        fs::write(site.path("backing").join(name), b"base").unwrap();
    }
    site.mount(&["--writeback", "evict"]);
    for name in names {
        fs::write(site.path("mnt").join(name), b"from here").unwrap();
        fs::write(site.path("backing").join(name), b"from others").unwrap();
    }
    site.run(&["sync", "--quiet", &site.text("mnt")]);
    let listed = || -> Vec<(String, String)> {
        let (code, text) = site.run(&["conflicts", "list", "--json", &site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
        let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let path = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        all.iter().map(|conflict| (path(&conflict["path"]), path(&conflict["kept_as"]))).collect()
    };
    assert_eq!(listed().len(), 4);
    // A restart forgets none.
    site.umount();
    site.mount(&[]);
    let all = listed();
    assert_eq!(all.len(), 4);
    for (path, kept_as) in &all {
        assert_eq!(fs::read(path).unwrap(), b"from others");
        assert_eq!(fs::read(kept_as).unwrap(), b"from here");
    }
    let resolve = |name: &str, keep: &str| {
        let path = site.text(&format!("mnt/{name}"));
        let (code, text) = site.run(&["conflicts", "resolve", "--keep", keep, &path]);
        assert_eq!(code, 0, "{text}");
    };
    resolve("ours", "ours");
    assert_eq!(fs::read(site.path("mnt/ours")).unwrap(), b"from here");
    resolve("theirs", "theirs");
    assert_eq!(fs::read(site.path("mnt/theirs")).unwrap(), b"from others");
    let forget = ["conflicts", "forget", &site.text("mnt/forgotten")];
    assert_eq!(site.run(&forget), (0, "forgot 1 conflict\n".to_owned()));
    assert_eq!(site.run(&forget).0, 1, "it is forgotten already");
    let (_, kept_as) = all.iter().find(|(path, _)| path.ends_with("/removed")).unwrap();
    let (_, text) = site.run(&["status", &site.text("mnt")]);
    assert!(text.contains("1 file was changed here and by others"), "{text}");
    fs::remove_file(kept_as).unwrap();
    let (_, text) = site.run(&["status", &site.text("mnt")]);
    assert!(text.contains("trouble      none"), "{text}");
    assert_eq!(listed(), []);
    let there = |name: &str| {
        let entries = fs::read_dir(site.path("mnt")).unwrap();
        let starts = format!("{name}.forebay-conflict");
        entries
            .filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(&starts)
            })
            .count()
    };
    assert_eq!(["ours", "theirs", "forgotten", "removed"].map(there), [0, 0, 1, 0]);
}

#[test]
fn conflicts_when_their_directory_is_renamed_then_the_list_follows() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let names = ["file", "dir/file"];
    for dir in ["dir", "elsewhere"] {
        fs::create_dir(site.path("backing").join(dir)).unwrap();
    }
    for name in names {
        fs::write(site.path("backing").join(name), b"base").unwrap();
    }
    site.mount(&["--writeback", "evict", "--attr-timeout", "100ms", "--entry-timeout", "100ms"]);
    for name in names {
        fs::write(site.path("mnt").join(name), b"from here").unwrap();
        fs::write(site.path("backing").join(name), b"from others").unwrap();
    }
    site.run(&["sync", "--quiet", &site.text("mnt")]);
    let listed = || -> Vec<String> {
        std::thread::sleep(Duration::from_millis(300));
        let (code, text) = site.run(&["conflicts", "list", "--json", &site.text("mnt")]);
        assert_eq!(code, 0, "{text}");
        let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let mut paths = Vec::new();
        for conflict in all {
            let (path, kept_as) = (conflict["path"].as_str(), conflict["kept_as"].as_str());
            let read = |path: Option<&str>| fs::read(path.unwrap()).unwrap_or_default();
            assert_eq!(read(path), b"from others", "{text}");
            assert_eq!(read(kept_as), b"from here", "{text}");
            paths.push(path.unwrap().strip_prefix(&site.text("mnt/")).unwrap().to_owned());
        }
        paths.sort();
        paths
    };
    assert_eq!(listed(), ["dir/file", "file"]);
    // By others below, and here.
    fs::rename(site.path("backing/dir"), site.path("backing/other-dir")).unwrap();
    assert_eq!(listed(), ["file", "other-dir/file"]);
    fs::rename(site.path("mnt/other-dir"), site.path("mnt/elsewhere/dir")).unwrap();
    let last = ["elsewhere/dir/file", "file"];
    assert_eq!(listed(), last);
    site.umount();
    site.mount(&[]);
    assert_eq!(listed(), last, "after a restart");
    for name in last {
        let path = site.path("mnt").join(name);
        let (code, text) =
            site.run(&["conflicts", "resolve", "--keep", "ours", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{text}");
        assert_eq!(fs::read(&path).unwrap(), b"from here");
    }
    assert_eq!(listed(), [""; 0]);
}

#[test]
fn conflict_when_the_others_version_has_another_name_then_neither_is_removed_for_the_other() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/file"), b"base").unwrap();
    site.mount(&["--writeback", "evict", "--attr-timeout", "100ms", "--entry-timeout", "100ms"]);
    fs::write(site.path("mnt/file"), b"from here").unwrap();
    fs::write(site.path("backing/file"), b"from others").unwrap();
    site.run(&["sync", "--quiet", &site.text("mnt")]);
    // It may as well be another file with the inode number of one that is gone.
    fs::rename(site.path("backing/file"), site.path("backing/other")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let resolve =
        |keep: &str| site.run(&["conflicts", "resolve", "--keep", keep, &site.text("mnt/file")]);
    let (code, text) = resolve("theirs");
    assert!(code == 1 && text.contains("is the only version"), "{code} {text}");
    let (code, text) = resolve("ours");
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"from here");
    assert_eq!(fs::read(site.path("mnt/other")).unwrap(), b"from others");
    site.umount();
}

#[test]
fn conflict_when_the_version_to_be_kept_is_gone_then_the_other_one_is_not_removed() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    for name in ["file", "other"] {
        fs::write(site.path("backing").join(name), b"base").unwrap();
    }
    site.mount(&["--writeback", "evict"]);
    fs::write(site.path("mnt/file"), b"from here").unwrap();
    fs::write(site.path("backing/file"), b"from others").unwrap();
    fs::create_dir(site.path("mnt/dir")).unwrap();
    fs::write(site.path("mnt/dir/within"), b"from here").unwrap();
    fs::write(site.path("backing/dir"), b"from others").unwrap();
    site.run(&["sync", "--quiet", &site.text("mnt")]);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"from others");
    // The kernel remembers it still.
    fs::remove_file(site.path("backing/file")).unwrap();
    let resolve =
        |name: &str, keep: &str| site.run(&["conflicts", "resolve", "--keep", keep, name]);
    let (code, text) = resolve(&site.text("mnt/file"), "theirs");
    assert!(code == 1 && text.contains("is the only version"), "{code} {text}");
    assert_eq!(resolve(&site.text("mnt/file"), "ours").0, 0);
    assert_eq!(fs::read(site.path("mnt/file")).unwrap(), b"from here");
    for keep in ["ours", "theirs"] {
        let (code, text) = resolve(&site.text("mnt/dir"), keep);
        assert!(code == 1 && text.contains("is a directory: move or remove"), "{code} {text}");
    }
}

/// The mount of the directory above was asked, and its answer taken for one about the path.
#[test]
fn conflicts_when_the_path_is_not_there_then_the_command_says_so() {
    let site = Site::new();
    site.mount(&[]);
    let (code, text) = site.run(&["conflicts", "list", &site.text("mnt/none")]);
    assert!(code != 0 && text.contains("mnt/none"), "{code}: {text}");
}
