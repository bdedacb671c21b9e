//! Scenes with everything that Forebay keeps, ways to damage it, and what must hold afterwards.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

pub mod case;
pub mod first;
pub mod second;
pub mod trials;
pub mod values;
pub mod ways;

use std::fs;
use std::path::{Path, PathBuf};

pub const HEADER: &str = "user.forebay";

pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}

/// A pattern by which the bytes of each file are found wherever they lie.
pub fn pattern(name: &str, block: usize) -> Vec<u8> {
    let line = format!("{name}:{block:06}\n");
    line.bytes().cycle().take(4096).collect()
}
