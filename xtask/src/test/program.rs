//! Test programs: what cargo builds for `cargo test`, and one run of them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::stuck::Before;

/// The longest that one program may take; more than four times what the longest takes here.
const LIMIT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(20);
/// For a program that was killed to be gone.
const STUCK: Duration = Duration::from_secs(30);
/// For the rest of what a program printed, once it has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A test program.
#[derive(Debug, Clone)]
pub struct Program {
    /// Package and target, for people.
    pub name: String,
    executable: PathBuf,
    /// Where cargo would start it: the root of its package.
    home: PathBuf,
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
pub fn build(root: &Path, arguments: &[String]) -> Result<Vec<Program>> {
    let mut cargo = cargo(root);
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let output = output.context("cargo can't be started")?;
    if !output.status.success() {
        bail!("the tests could not be built");
    }
    let text = String::from_utf8(output.stdout).context("cargo's messages")?;
    let mut programs: Vec<Program> = text.lines().filter_map(|line| program(root, line)).collect();
    // The suites on mounts are at the end of the alphabet and take longest: begun last they would
    // leave one lane to itself.
    programs.sort_by_key(|program| !program.name.contains("tests/mount_"));
    Ok(programs)
}

/// Runs the examples in the documentation. True if all passed.
pub fn documents(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut cargo = cargo(root);
    cargo.args(["test", "--workspace", "--doc"]).args(arguments);
    Ok(cargo.status().context("cargo can't be started")?.success())
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
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
    Some(Program { name, executable, home })
}

impl Program {
    /// Whether this is what cargo calls a target.
    pub fn is(&self, target: &str) -> bool {
        Path::new(&self.name).file_stem().is_some_and(|stem| stem == target)
    }

    /// Runs it with the arguments given, for [`LIMIT`] at most. Also where the kernel does not let
    /// go of it, this comes back.
    pub fn run(&self, arguments: &[&str], before: &Before) -> Result<Outcome> {
        let began = Instant::now();
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = Command::new(&self.executable);
        command.args(arguments).arg("--show-output");
        command.current_dir(&self.home).env("CARGO_MANIFEST_DIR", &self.home);
        // Daemons that a test starts would warn of variables that they don't know.
        for name in ["FOREBAY_TEST_SET", "FOREBAY_TEST_SKIPS"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| self.name.clone())?;
        // Its ends of the pipe are the child's alone from here on.
        drop(command);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = std::thread::spawn({
            let heard = heard.clone();
            move || listen(&mut reader, &heard)
        });
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if began.elapsed() > LIMIT {
                end(&mut child, before)?;
                break None;
            }
            std::thread::sleep(LOOK);
        };
        // A process that outlives its program may hold the pipe: it is not waited for.
        let until = Instant::now() + PATIENCE;
        while !listener.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        let mut said = heard
            .lock()
            .map_or_else(|_| String::new(), |b| String::from_utf8_lossy(&b).into_owned());
        if !status.is_some_and(|status| status.success()) {
            let how =
                status.map_or(format!("stopped after {} s", LIMIT.as_secs()), |s| s.to_string());
            said.push_str(&format!("\n{}: {how}\n", self.name));
        }
        let (said, skipped) = tell_skips(&said);
        Ok(Outcome {
            program: self.clone(),
            passed: status.is_some_and(|status| status.success()),
            // libtest ends with 101 when tests failed.
            ended: status.is_some_and(|status| matches!(status.code(), Some(0 | 101))),
            said,
            skipped,
            took: began.elapsed(),
        })
    }
}

/// Ends a program that took too long. One that the kernel holds for a file system without a daemon
/// is freed first; should even that not help it is left alone.
fn end(child: &mut Child, before: &Before) -> Result<()> {
    child.kill()?;
    let until = Instant::now() + STUCK;
    while child.try_wait()?.is_none() && Instant::now() < until {
        before.abort_waiting();
    }
    Ok(())
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

    fn shell(script: &str) -> (Program, Vec<String>) {
        let program = Program { name: "sh".into(), executable: "/bin/sh".into(), home: "/".into() };
        (program, vec!["-c".to_owned(), script.to_owned()])
    }

    fn run(script: &str) -> Outcome {
        let (program, arguments) = shell(script);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        program.run(&arguments, &Before::look()).expect("it runs")
    }

    #[test]
    fn run_when_it_passes_fails_or_dies_then_told_apart() {
        let fine = run("echo one; echo two >&2");
        assert!(fine.passed && fine.ended && fine.said == "one\ntwo\n");
        let failed = run("exit 101");
        assert!(!failed.passed && failed.ended);
        let died = run("kill -9 $$");
        assert!(!died.passed && !died.ended && died.said.contains("signal: 9"));
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
