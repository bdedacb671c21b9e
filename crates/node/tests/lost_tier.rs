//! What lies in the backing store of files whose names were on a tier that is lost.

mod rig;

use std::time::Duration;

use forebay_node::{CheckRequest, Node, NodeConfig, TierConfig, WritebackPolicy, check};
use forebay_node::{Context, Ino, NewFile};
use rig::kept::files_below;
use rig::{KIB, noise, same};

const CONTEXT: Context = Context::DAEMON;

#[test]
fn files_past_the_tier_when_the_only_tier_is_given_up_then_each_is_set_aside_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, tier) = (dir.path().join("backing"), dir.path().join("tier"));
    for made in [&backing, &tier] {
        std::fs::create_dir(made).unwrap();
    }
    let tiers = vec![TierConfig { dir: tier.clone(), size_bytes: 4 * KIB }];
    let mut config = NodeConfig::new(backing.clone(), tiers);
    config.writeback = WritebackPolicy::OnEviction;
    config.create_tier = true;
    let node = Node::start(config.clone()).unwrap();
    let files = [("one", noise(1, 100 * KIB)), ("two", noise(2, 300 * KIB))];
    for (name, bytes) in &files {
        let new = NewFile { mode: 0o600, umask: 0 };
        let flags = libc::O_RDWR | libc::O_CREAT;
        let made = node.create_and_open(&CONTEXT, Ino::ROOT, name.as_bytes(), new, flags);
        let fh = made.unwrap().1.fh;
        assert_eq!(node.write(&CONTEXT, fh, 0, bytes).unwrap(), bytes.len());
        node.fsync(&CONTEXT, fh, false).unwrap();
        node.release(fh);
    }
    assert!(node.stop(Duration::from_secs(10)));
    drop(node);
    assert_eq!(files_below(&backing.join(".forebay/spill")).len(), 2);
    std::fs::remove_dir_all(&tier).unwrap();
    std::fs::create_dir(&tier).unwrap();
    let request = CheckRequest {
        tiers: vec![tier],
        backing: Some(backing.clone()),
        accept_loss: true,
        ..CheckRequest::default()
    };
    let checked = check(&request, &mut |_| true).unwrap();
    let said = checked.details.join("\n");
    assert!(checked.problems > checked.repaired, "nothing is said to be lost: {said}");
    let kept = files_below(&backing.join(".forebay/lost"));
    assert_eq!(kept.len(), 2, "{said}");
    for (path, (name, bytes)) in kept.iter().zip(&files) {
        assert!(said.contains(&*path.to_string_lossy()), "{said}");
        same(&std::fs::read(path).unwrap(), bytes, name);
    }
    // It is said once, and stays known.
    assert_eq!(check(&request, &mut |_| true).unwrap().problems, 0);
    let node = Node::start(config).unwrap();
    assert_eq!(node.residency().set_aside().files, 2);
    assert!(node.stop(Duration::from_secs(10)));
}

/// Their names are in an index that is still there.
#[test]
fn files_past_the_tiers_when_their_index_is_there_then_none_is_set_aside() {
    for lower in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for made in ["backing", "tier0", "tier1", "state"] {
            std::fs::create_dir(at(made)).unwrap();
        }
        let tiers =
            ["tier0", "tier1"].map(|name| TierConfig { dir: at(name), size_bytes: 4 * KIB });
        let mut config = NodeConfig::new(at("backing"), tiers.to_vec());
        config.writeback = WritebackPolicy::OnEviction;
        config.create_tier = true;
        config.state_dir = Some(at("state")).filter(|_| !lower);
        let node = Node::start(config).unwrap();
        let new = NewFile { mode: 0o600, umask: 0 };
        let flags = libc::O_RDWR | libc::O_CREAT;
        let fh = node.create_and_open(&CONTEXT, Ino::ROOT, b"file", new, flags).unwrap().1.fh;
        let bytes = noise(1, 100 * KIB);
        assert_eq!(node.write(&CONTEXT, fh, 0, &bytes).unwrap(), bytes.len());
        node.fsync(&CONTEXT, fh, false).unwrap();
        node.release(fh);
        assert!(node.stop(Duration::from_secs(10)));
        drop(node);
        let spills = files_below(&at("backing/.forebay/spill"));
        assert!(!spills.is_empty());
        let gone = at(if lower { "tier1" } else { "tier0" });
        std::fs::remove_dir_all(&gone).unwrap();
        std::fs::create_dir(&gone).unwrap();
        let request = CheckRequest {
            tiers: vec![gone],
            backing: Some(at("backing")),
            accept_loss: true,
            ..CheckRequest::default()
        };
        let checked = check(&request, &mut |_| true).unwrap();
        assert_eq!(checked.problems, checked.repaired, "lower: {lower}: {:?}", checked.details);
        assert_eq!(files_below(&at("backing/.forebay/spill")), spills, "lower: {lower}");
    }
}
