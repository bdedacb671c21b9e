//! `forebay sim` without the rest of Forebay, which builds much faster:
//! `cargo run --release -p forebay-sim --example sim -- cluster --figure io`.

use clap::Parser;
use forebay_sim::{SimCommand, SimError, run};

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: SimCommand,
}

fn main() -> Result<(), SimError> {
    run(&Line::parse().command, &mut std::io::stdout().lock())
}
