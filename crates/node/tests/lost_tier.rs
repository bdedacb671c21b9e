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
