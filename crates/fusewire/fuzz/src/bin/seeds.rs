//! Writes what the fuzzers begin with: `seeds CORPUS`, a directory with one directory for each.

use std::path::Path;
use std::{env, fs, io};

use fusewire::fuzzing::{ARGUMENTS, entry_seeds, joined, seeds};

fn main() -> io::Result<()> {
    let corpus = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: seeds CORPUS"))?;
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let dir = Path::new(&corpus).join(target);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(name), bytes)
    };
    for (number, seed) in seeds().iter().enumerate() {
        write("request", &format!("seed{number}"), seed)?;
        write("init", &format!("seed{number}"), &seed[ARGUMENTS..])?;
    }
    for (number, few) in seeds().chunks(6).enumerate() {
        write("requests", &format!("seed{number}"), &joined(few))?;
    }
    for (number, seed) in entry_seeds().iter().enumerate() {
        write("entry", &format!("seed{number}"), seed)?;
    }
    Ok(())
}
