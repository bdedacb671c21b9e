//! A small real mount for the tests of this directory, where there is `/dev/fuse`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use forebay_fuse::{MountOptions, Mounted, mount};
use forebay_node::{Node, NodeConfig, TierConfig};

/// A mounted node in a directory of its own. Unmounts whatever happens.
pub struct Lab {
    pub mounted: Option<Mounted>,
    pub node: Arc<Node>,
    pub home: tempfile::TempDir,
}

impl Lab {
    #[allow(dead_code, reason = "some of the tests have options of their own")]
    pub fn start(
        adapt: impl FnOnce(&mut NodeConfig),
        start: impl FnOnce(NodeConfig) -> forebay_node::Result<Arc<Node>>,
    ) -> Option<Self> {
        let options = MountOptions { allow_other: false, ..MountOptions::default() };
        Self::start_with(&options, adapt, start)
    }

    pub fn start_with(
        options: &MountOptions,
        adapt: impl FnOnce(&mut NodeConfig),
        start: impl FnOnce(NodeConfig) -> forebay_node::Result<Arc<Node>>,
    ) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            eprintln!("skipped: /dev/fuse: {error}");
            return None;
        }
        let home = tempfile::Builder::new().prefix("forebay-").tempdir_in("/dev/shm");
        let home = home.expect("a directory");
        for name in ["backing", "tier", "mnt"] {
            fs::create_dir(home.path().join(name)).expect("a directory");
        }
        let tier = TierConfig { dir: home.path().join("tier"), size_bytes: 64 << 20 };
        let mut config = NodeConfig::new(home.path().join("backing"), vec![tier]);
        config.passthrough_reserve_bytes = 4 << 20;
        adapt(&mut config);
        let node = start(config).expect("the node starts");
        let mounted = mount(Arc::clone(&node), home.path().join("mnt"), options, None);
        Some(Lab { mounted: Some(mounted.expect("mounted")), node, home })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join("mnt").join(name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let _ = mounted.unmount(true);
        }
        let _ = Command::new("fusermount3").arg("-uzq").arg(self.path("")).status();
        self.node.stop(Duration::from_secs(5));
    }
}

/// The names in a directory, in order.
pub fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("listed");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}
