//! Test programs: what cargo builds for `cargo test`, and one run of them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::guard::{LEFT, SIGNAL};
use super::slow::More;

/// The longest for which a program may say nothing. It says when a test ends, and no test takes a tenth of
/// this on an idle machine.
const SILENT: Duration = Duration::from_secs(600);
/// What takes longest: begun last it would leave one lane to itself.
const LONGEST: [&str; 5] = [
    "tests/mount_",
    "crates/node/src/lib.rs",
    "crates/streams/src/lib.rs",
    "crates/peer/tests/conformance.rs",
    "sim/tests/streams.rs",
];
const LOOK: Duration = Duration::from_millis(20);
/// For a guard to end a program that took too long, and what belongs to it.
const STUCK: Duration = Duration::from_secs(90);
/// For the rest of what a program printed, once it has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// A test program.
#[derive(Debug, Clone)]
pub struct Program {
    /// Package and target, for people.
    pub name: String,
    executable: PathBuf,
    /// Where cargo would start it: the root of its package.
    home: PathBuf,
    /// Only these of its tests, with more cases.
    pub more: Option<&'static More>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// Of what.
    pub program: Program,
    /// All tests passed.
    pub passed: bool,
    /// It came to its end by itself, whatever the result.
    pub ended: bool,
    /// What it printed, without what tests that passed printed.
    pub said: String,
    /// Tests that passed without having tested: their names, and what they said of it.
    pub skipped: Vec<(String, String)>,
    /// How long it took.
    pub took: Duration,
}

/// Builds all test programs, those first that take long.
pub fn build(root: &Path, arguments: &[String], scratch: &Path) -> Result<Vec<Program>> {
    let mut cargo = cargo(root, scratch);
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    cargo.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = cargo.spawn().context("cargo can't be started")?;
    let _owned = child.stdin.take();
    let output = child.wait_with_output().context("cargo's messages")?;
    if !output.status.success() {
        bail!("the tests could not be built");
    }
    let text = String::from_utf8(output.stdout).context("cargo's messages")?;
    let mut programs: Vec<Program> = text.lines().filter_map(|line| program(root, line)).collect();
    programs.sort_by_key(|program| !LONGEST.iter().any(|part| program.name.contains(part)));
    Ok(programs)
}

/// Runs the examples in the documentation. True if all passed.
pub fn documents(root: &Path, arguments: &[String], scratch: &Path) -> Result<bool> {
    let mut cargo = cargo(root, scratch);
    cargo.args(["test", "--workspace", "--doc"]).args(arguments);
    let mut child = cargo.spawn().context("cargo can't be started")?;
    let _owned = child.stdin.take();
    Ok(child.wait()?.success())
}

/// Cargo, for as long as somebody holds the standard input.
fn cargo(root: &Path, scratch: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = guarded(scratch, Path::new(&program));
    cargo.current_dir(root);
    // What `cargo run` has set for this program would have build scripts that look at it, and all that
    // depends on them, built anew each time.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// The program that one of cargo's messages speaks of.
fn program(root: &Path, line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let home = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let name = source.strip_prefix(root).unwrap_or(source).display().to_string();
    Some(Program { name, executable, home, more: None })
}

impl Program {
    /// Whether this is what cargo calls a target.
    pub fn is(&self, target: &str) -> bool {
        Path::new(&self.name).file_stem().is_some_and(|stem| stem == target)
    }

    /// Runs it, and ends what it leaves, and itself when it is silent for [`SILENT`]. Also where the kernel
    /// does not let go of it, this comes back.
    pub fn run(&self, scratch: &Path) -> Result<Outcome> {
        let began = Instant::now();
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = guarded(scratch, &self.executable);
        command.arg("--show-output");
        if let Some(more) = self.more {
            command.arg(more.tests).env(more.cases.0, more.cases.1);
        }
        command.current_dir(&self.home).env("CARGO_MANIFEST_DIR", &self.home);
        // Daemons that a test starts would warn of variables that they don't know.
        for name in ["FOREBAY_TEST_SET", "FOREBAY_TEST_SKIPS"] {
            command.env_remove(name);
        }
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| self.name.clone())?;
        // Its ends of the pipe are the child's alone from here on.
        drop(command);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = std::thread::spawn({
            let heard = heard.clone();
            move || listen(&mut reader, &heard)
        });
        let is_alive = wait_while_it_speaks(&mut child, &heard)?;
        if is_alive {
            // The guard ends the program when nobody holds this any more.
            drop(child.stdin.take());
            until(STUCK, || Ok(child.try_wait()?.is_some()))?;
        }
        let code = child.try_wait()?.and_then(|status| status.code()).filter(|_| !is_alive);
        // A process that outlives its program may hold the pipe: it is not waited for.
        until(OUTPUT_TIMEOUT, || Ok(listener.is_finished()))?;
        let mut said = heard
            .lock()
            .map_or_else(|_| String::new(), |b| String::from_utf8_lossy(&b).into_owned());
        if code != Some(0) {
            said.push_str(&format!("\n{}: {}\n", self.name, how_it_ended(code)));
        }
        let (said, skipped) = tell_skips(&said);
        Ok(Outcome {
            program: self.clone(),
            passed: code == Some(0),
            // libtest ends with 101 when tests failed.
            ended: matches!(code, Some(0 | 101)),
            said,
            skipped,
            took: began.elapsed(),
        })
    }
}

/// A program that is run by a guard ([`super::guard`]), which ends it when this process ends.
fn guarded(scratch: &Path, program: &Path) -> Command {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    // This program, also where the file it was started from was built anew since.
    let mut command = Command::new("/proc/self/exe");
    let run = RUNS.fetch_add(1, Ordering::Relaxed).to_string();
    command.arg("guard").arg(scratch.join(run)).arg(program).stdin(Stdio::piped());
    command
}

/// What to say of the code with which a guard ended; `None` where it had to be told to.
fn how_it_ended(code: Option<i32>) -> String {
    match code {
        None => format!("stopped: no test has ended for {} s", SILENT.as_secs()),
        Some(LEFT) => "all passed, but it left what is named above".into(),
        Some(code @ 129..) => format!("signal: {}", code - SIGNAL),
        Some(code) => format!("exit status: {code}"),
    }
}

/// Waits until a program has ended, or for too long without a word of it; then it is true.
fn wait_while_it_speaks(child: &mut Child, heard: &Mutex<Vec<u8>>) -> Result<bool> {
    let (mut length, mut since) = (0, Instant::now());
    while child.try_wait()?.is_none() {
        let now = heard.lock().map_or(0, |heard| heard.len());
        if now != length {
            (length, since) = (now, Instant::now());
        }
        if since.elapsed() > SILENT {
            return Ok(true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(false)
}

/// Calls `probe` until it is true, for `limit` at most. Whether it was.
fn until(limit: Duration, mut probe: impl FnMut() -> Result<bool>) -> Result<bool> {
    let end = Instant::now() + limit;
    while !probe()? {
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// Takes out what tests that passed printed, and gives the lines by which some of them said that they
/// did not test anything, with their names.
fn tell_skips(said: &str) -> (String, Vec<(String, String)>) {
    const SECTION: &str = "\nsuccesses:\n";
    // Their output first, then their names, up to an empty line.
    let Some((before, rest)) = said.split_once(SECTION) else { return (said.into(), Vec::new()) };
    let Some((outputs, names)) = rest.split_once(SECTION) else { return (said.into(), Vec::new()) };
    let after = names.find("\n\n").map_or("", |end| &names[end..]);
    let (mut skipped, mut test) = (Vec::new(), "");
    for line in outputs.lines() {
        match line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            Some(name) => test = name,
            None if line.starts_with("skip") => skipped.push((test.into(), line.into())),
            None => {}
        }
    }
    (format!("{before}{after}"), skipped)
}

fn listen(reader: &mut impl Read, heard: &Mutex<Vec<u8>>) {
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = reader.read(&mut part) {
        if let Ok(mut heard) = heard.lock() {
            heard.extend_from_slice(&part[..length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tell_skips_when_tests_passed_then_only_what_they_skipped_is_told() {
        let said = "test a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nbegins\n\
                    skipped: no such device\n\n\nsuccesses:\n    a\n    c\n\nfailures:\n\n\
                    ---- b stdout ----\noh\n\n\nfailures:\n    b\n";
        let (said, skipped) = tell_skips(said);
        assert_eq!(skipped, [("a".to_owned(), "skipped: no such device".to_owned())]);
        assert!(said.starts_with("test a ... ok\n") && said.contains("---- b stdout ----\noh"));
        assert!(!said.contains("begins") && !said.contains("successes"), "{said}");
        assert_eq!(tell_skips("test a ... ok\n"), ("test a ... ok\n".to_owned(), vec![]));
    }

    #[test]
    fn program_when_a_message_is_of_a_test_then_found_and_others_not() {
        let line = r#"{"reason":"compiler-artifact","profile":{"test":true},
            "executable":"/t/x-1","target":{"src_path":"/r/tests/a.rs"},"manifest_path":"/r/Cargo.toml"}"#;
        let found = program(Path::new("/r"), &line.replace('\n', " ")).expect("a test");
        assert_eq!(found.name, "tests/a.rs");
        assert!(
            program(Path::new("/r"), &line.replace("\"test\":true", "\"test\":false")).is_none()
        );
        assert!(program(Path::new("/r"), "no json").is_none());
    }
}
