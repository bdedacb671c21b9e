//! Nodes with networks of their own, made by `tests/testbed.sh`.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A testbed; taken away with the value, whatever has happened.
pub struct Testbed {
    root: tempfile::TempDir,
    /// A variable in the environment of what is started.
    pub env: Option<(&'static str, PathBuf)>,
}

/// What makes it.
pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/testbed.sh");

impl Testbed {
    /// Without daemons yet. Says so and gives nothing where the machine can't.
    pub fn up(options: &[&str]) -> Option<Testbed> {
        if crate::site::can_mount() {
            crate::site::use_own_mounts();
        }
        let bed = Testbed { root: tempfile::tempdir().unwrap(), env: None };
        let (code, text) = bed.run(&["check"]);
        if code != 0 {
            eprintln!("skipped: {text}");
            return None;
        }
        let (code, text) = bed.run(&[&["up", "3", "--no-mount"], options].concat());
        if code != 0 {
            eprintln!("skipped: the testbed does not come up: {text}");
            return None;
        }
        Some(bed)
    }

    pub fn run(&self, args: &[&str]) -> (i32, String) {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]);
        command.arg(SCRIPT).args(args);
        command.envs(self.env.clone());
        command.env("TESTBED_DIR", self.dir());
        command.env("FOREBAY", env!("CARGO_BIN_EXE_forebay"));
        crate::site::outcome(&mut command)
    }

    pub fn tell(&self, args: &[&str]) {
        let (code, text) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {text}");
    }

    pub fn dir(&self) -> PathBuf {
        self.root.path().join("bed")
    }

    pub fn mounts(&self) -> Vec<PathBuf> {
        (1..=3).map(|node| self.dir().join(format!("mnt/{node}"))).collect()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in 1..=3 {
                let log = fs::read_to_string(self.dir().join(format!("log/{node}")));
                eprintln!("--- log of node {node}\n{}", log.unwrap_or_default());
            }
        }
        self.run(&["down"]);
    }
}
