//! `cargo xtask test`: runs all tests, several test programs side by side.
//!
//! Most tests wait for devices, time limits and other processes, so that one program after the
//! other leaves the processors idle for half of the time. A test that fails has failed: there is no
//! second run. Each program is run by a guard ([`guard`]), which ends what the program leaves, also when
//! this one is interrupted or killed. Tests that skipped what they are for, as a program or a right was
//! missing, are listed at the end; where `FOREBAY_TEST_SKIPS` says what may be missing, any other skip
//! fails the run.

pub mod guard;
mod own_mounts;
mod program;
mod skips;
mod slow;
mod stuck;

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};

use self::program::{Outcome, Program};

/// Builds and runs all tests with the arguments for cargo (features) as given. True if all passed.
///
/// Environment: `FOREBAY_TEST_LANES`, test programs side by side (3; 5 of those that take long, which
/// mostly wait); `FOREBAY_TEST_ONLY`, names of
/// test programs, separated by blanks, runs these and no examples of the documentation;
/// `FOREBAY_TEST_SET`, `quick` or `long`, leaves out the programs that take long ([`slow`]), or runs
/// only these; `FOREBAY_TEST_SKIPS`, words of which one must be in the reason of each skip
/// ([`skips`]).
///
/// # Errors
/// When tests can't be built or started.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let set = slow::Set::chosen()?;
    let lanes = match std::env::var("FOREBAY_TEST_LANES") {
        Ok(text) => match text.parse::<usize>() {
            Ok(lanes @ 1..=64) => lanes,
            _ => bail!("FOREBAY_TEST_LANES is {text}: give a number from 1 to 64"),
        },
        Err(_) => set.lanes(),
    };
    let only = std::env::var("FOREBAY_TEST_ONLY").ok();
    let begin = Instant::now();
    let scratch = std::env::temp_dir().join(format!("t{}", std::process::id()));
    let mut programs = program::build(root, arguments, &scratch)?;
    slow::check(&programs)?;
    match &only {
        Some(only) => programs.retain(|program| only.split(' ').any(|name| program.is(name))),
        None => programs.retain(|program| set.has(&program.name)),
    }
    for program in &mut programs {
        program.more = set.more_of(&program.name);
    }
    println!("{} test programs, built in {} s", programs.len(), begin.elapsed().as_secs());
    let outcomes = side_by_side(programs, lanes, &scratch)?;
    let documents =
        only.is_some() || set == slow::Set::Long || program::documents(root, arguments, &scratch)?;
    tell_longest(&outcomes);
    let skipped = tell_skipped(&outcomes);
    let unexplained = skips::unexplained(&outcomes);
    let passed = tell_failed(&outcomes);
    for skip in &unexplained {
        println!("FAILED: {skip}, although nothing that this needs is missing");
    }
    println!("\ntests took {} s, {skipped} of them skipped", begin.elapsed().as_secs());
    Ok(documents && passed && unexplained.is_empty())
}

/// Runs all programs, `lanes` at a time, and prints what each said when it ends.
fn side_by_side(programs: Vec<Program>, lanes: usize, scratch: &Path) -> Result<Vec<Outcome>> {
    let queue = Mutex::new(VecDeque::from(programs));
    let outcomes = Mutex::new(Vec::new());
    let lane = || -> Result<()> {
        loop {
            let next = queue.lock().ok().and_then(|mut queue| queue.pop_front());
            let Some(program) = next else { return Ok(()) };
            let outcome = program.run(scratch)?;
            show(&outcome);
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes.push(outcome);
            }
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            match lane.join() {
                Ok(result) => result?,
                Err(_) => bail!("a lane ended early"),
            }
        }
        Ok(())
    })?;
    Ok(outcomes.into_inner().unwrap_or_default())
}

fn show(outcome: &Outcome) {
    let mut out = std::io::stdout().lock();
    let seconds = outcome.took.as_secs_f64();
    writeln!(out, "\n     Running {} ({seconds:.1} s)\n{}", outcome.program.name, outcome.said)
        .ok();
}

/// Lists the programs that took longest.
fn tell_longest(outcomes: &[Outcome]) {
    let mut longest: Vec<_> = outcomes.iter().map(|it| (it.took, &it.program.name)).collect();
    longest.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
    println!("\nthe longest:");
    for (took, name) in longest.iter().take(10) {
        println!("{:8.1} s  {name}", took.as_secs_f64());
    }
}

/// Lists tests that passed without having tested anything. How many there are.
fn tell_skipped(outcomes: &[Outcome]) -> usize {
    let all =
        || outcomes.iter().flat_map(|outcome| outcome.skipped.iter().map(move |it| (outcome, it)));
    for (outcome, (test, why)) in all() {
        println!("SKIPPED: {} {test}: {why}", outcome.program.name);
    }
    all().count()
}

/// The tests of a program that failed; the empty name for a program that did not end as it should.
fn failures(outcome: &Outcome) -> Vec<String> {
    let tests = failed_tests(&outcome.said);
    if tests.is_empty() || !outcome.ended { vec![String::new()] } else { tests }
}

/// Names what failed. True if nothing did.
fn tell_failed(outcomes: &[Outcome]) -> bool {
    let failed = || outcomes.iter().filter(|outcome| !outcome.passed);
    for outcome in failed() {
        for name in failures(outcome) {
            println!("FAILED: {} {name}", outcome.program.name);
            for line in reason(&outcome.said, &name) {
                println!("FAILED:     {line}");
            }
        }
    }
    failed().next().is_none()
}

/// What a failed test said when it panicked, without the stack: its first lines.
fn reason(said: &str, test: &str) -> Vec<String> {
    const LINES: usize = 12;
    const LENGTH: usize = 400;
    let own = said.split_once(&format!("---- {test} stdout ----\n")).map_or("", |(_, own)| own);
    let lines = own.lines().take_while(|line| !line.starts_with("---- "));
    let panic = lines.skip_while(|line| !line.contains("panicked at"));
    let panic = panic.take_while(|line| !line.starts_with("stack backtrace:"));
    panic.take(LINES).map(|line| line.chars().take(LENGTH).collect()).collect()
}

/// The names in the last list of failures that libtest prints.
fn failed_tests(said: &str) -> Vec<String> {
    let Some((_, list)) = said.rsplit_once("\nfailures:\n") else { return Vec::new() };
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    names.map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_when_two_failed_then_each_has_its_own_without_the_stack() {
        let said = "---- a stdout ----\nnoise\n\nthread 'a' panicked at a.rs:1:2:\nleft\nright\n\
                    stack backtrace:\n   0: main\n\n---- b stdout ----\n\
                    thread 'b' panicked at b.rs:3:4:\nno\n\nfailures:\n    a\n    b\n";
        let of = |test| reason(said, test);
        assert_eq!(of("a"), ["thread 'a' panicked at a.rs:1:2:", "left", "right"]);
        assert_eq!(of("b")[..2], ["thread 'b' panicked at b.rs:3:4:", "no"]);
        assert!(of("c").is_empty());
    }

    #[test]
    fn failed_tests_when_some_failed_then_named_and_nothing_else() {
        let said = "running 3 tests\ntest a ... ok\n\nfailures:\n\n---- b stdout ----\nfailures:\n\
                    oh\n\n\nfailures:\n    b\n    c::d\n\ntest result: FAILED. 1 passed; 2 failed\n";
        assert_eq!(failed_tests(said), ["b", "c::d"]);
        assert!(failed_tests("test result: ok. 3 passed").is_empty());
    }
}
