//! The command line with an engine that keeps everything in memory and mounts nothing. The tests
//! run it to see daemons start, drain and end without a file system.

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay::run(std::env::args_os().collect(), &fake::FakeEngine).into()
}
