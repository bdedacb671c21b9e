//! The one binary of Forebay.

mod node_engine;

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay::run(std::env::args_os().collect(), &node_engine::NodeEngine).into()
}
