//! `cargo xtask tidy`, `audit`, `site` and `test`: checks of the repository itself, and its book.
//!
//! `tidy` holds the rules that no compiler and no linter knows; `audit` looks at the dependencies,
//! also without a network. Both print one line for each finding and fail if there is any. `test` runs
//! all tests.
#![forbid(unsafe_code)]

mod audit;
mod finding;
mod repository;
mod site;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::finding::Finding;
use crate::repository::Repository;

const USAGE: &str = "\
Usage: cargo xtask tidy|audit [ROOT]
       cargo xtask site DIR
       cargo xtask test [ARGUMENT FOR cargo test]...

  tidy     check the rules of the repository
  audit    check the dependencies: licences, sources, banned and repeated crates, and advisories
           where their database can be had
  site     put the sources of the book of documents together in DIR, for mdBook
  test     run all tests, several test programs side by side (FOREBAY_TEST_LANES, 3)

ROOT is that of the workspace of the current directory unless another one is named.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    if command.as_deref() == Some("test") {
        return tests(&arguments.collect::<Vec<_>>());
    }
    // Not for people: how `test` runs each program.
    if command.as_deref() == Some("guard") {
        return test::guard::run(&arguments.collect::<Vec<_>>());
    }
    if command.as_deref() == Some("site") {
        return site(arguments.next().as_deref());
    }
    let root = arguments.next().map_or_else(repository::root, |root| Ok(PathBuf::from(root)));
    match root.and_then(|root| run(command.as_deref(), &root)) {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            for finding in &findings {
                eprintln!("{finding}");
            }
            eprintln!("{} to fix", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn site(to: Option<&str>) -> ExitCode {
    let staged = to.map(|to| {
        let root = repository::root()?;
        let repository = Repository::read(&root)?;
        site::stage(&repository, &root, Path::new(to))
    });
    match staged {
        Some(Ok(count)) => {
            println!("site: {count} files");
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tests(arguments: &[String]) -> ExitCode {
    match repository::root().and_then(|root| test::run(&root, arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Option<&str>, root: &Path) -> Result<Vec<Finding>> {
    match command {
        Some("tidy") => {
            let repository = Repository::read(root)?;
            let findings = tidy::check(&repository);
            println!("tidy: {} files, {} findings", repository.files().len(), findings.len());
            Ok(findings)
        }
        Some("audit") => {
            let report = audit::run(root)?;
            print!("{}", report.summary);
            Ok(report.findings)
        }
        _ => bail!("{USAGE}"),
    }
}
