//! Random namespace and data operations on two directories that must stay equal.
//!
//! Every operation names paths and open files by plain numbers, taken modulo what exists when it
//! runs, so that any subsequence is a valid sequence and shrinking needs no repair.

pub(crate) mod apply;
pub(crate) mod tree;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use crate::failure::{Failure, Outcome};
use crate::os::{self, Errno};
use crate::random::Random;
use crate::shrink::minimise;
use crate::watchdog::{self, LOOK_LIMIT, OPERATION_LIMIT};

/// Chooses a path: an existing one or a combination that may or may not exist.
pub type Place = u32;
/// Chooses one of the open files.
pub type Slot = u8;

/// One operation, always valid, on whatever its numbers mean when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields of every variant are those of the system call it names.
pub enum Op {
    Create { at: Place, mode: u32, excl: bool },
    Mkdir { at: Place, mode: u32 },
    Mknod { at: Place, kind: u8, mode: u32 },
    Symlink { at: Place, target: Place },
    Link { from: Place, to: Place },
    Rename { from: Place, to: Place, flags: u8 },
    Unlink { at: Place },
    Rmdir { at: Place },
    Chmod { at: Place, mode: u32 },
    Chown { at: Place, uid: u8, gid: u8 },
    Utimens { at: Place, seconds: u32, nanos: u32 },
    Truncate { at: Place, len: u32 },
    SetXattr { at: Place, name: u8, len: u16, tag: u32 },
    RemoveXattr { at: Place, name: u8 },
    Stat { at: Place },
    Readlink { at: Place },
    Readdir { at: Place },
    ReadAll { at: Place },
    Open { slot: Slot, at: Place, how: u8 },
    Close { slot: Slot },
    Read { slot: Slot, at: u32, len: u32 },
    Write { slot: Slot, at: u32, len: u32, tag: u32 },
    MapWrite { slot: Slot, at: u32, len: u32, tag: u32 },
    Ftruncate { slot: Slot, len: u32 },
    Allocate { slot: Slot, mode: u8, at: u32, len: u32 },
    Copy { from: Slot, to: Slot, at: u32, len: u32 },
    Fstat { slot: Slot },
    Fsync { slot: Slot },
    Unnamed { at: Place, len: u32, tag: u32 },
    User { user: u8 },
}

/// What an operation answered, apart from errors; what may legitimately differ is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// A number: bytes written, a size.
    Number(u64),
    /// Bytes read, as length and hash.
    Bytes(usize, u64),
    /// A name or names.
    Names(Vec<std::ffi::OsString>),
    /// (mode, links, uid, gid, size); sizes and links of directories are left out.
    Attributes(u32, u64, u32, u32, u64),
}

fn random_op(random: &mut Random, users: bool) -> Op {
    let at = random.bits() as u32;
    let other = random.bits() as u32;
    let slot = random.bits() as u8;
    let tag = random.bits() as u32;
    let offset = random.below(70_000) as u32;
    let len = random.between(1, 20_000) as u32;
    let mode = *random.pick(&[0o644, 0o600, 0o666, 0o755, 0o777, 0o4755, 0o2770, 0o1777, 0o400, 0]);
    let small = random.bits() as u8;
    match random.below(if users { 104 } else { 100 }) {
        0..9 => Op::Create { at, mode, excl: random.one_in(2) },
        9..16 => Op::Mkdir { at, mode: mode | 0o700 },
        16..18 => Op::Mknod { at, kind: small, mode },
        18..21 => Op::Symlink { at, target: other },
        21..25 => Op::Link { from: at, to: other },
        25..36 => Op::Rename { from: at, to: other, flags: small },
        36..42 => Op::Unlink { at },
        42..45 => Op::Rmdir { at },
        45..48 => Op::Chmod { at, mode },
        48..50 => Op::Chown { at, uid: small, gid: slot },
        50..52 => Op::Utimens { at, seconds: tag % 1_000_000_000, nanos: other % 1_000_000_000 },
        52..55 => Op::Truncate { at, len: offset },
        55..57 => Op::SetXattr { at, name: small, len: (tag % 200) as u16, tag },
        57..58 => Op::RemoveXattr { at, name: small },
        58..62 => Op::Stat { at },
        62..63 => Op::Readlink { at },
        63..65 => Op::Readdir { at },
        65..69 => Op::ReadAll { at },
        69..77 => Op::Open { slot, at, how: small },
        77..80 => Op::Close { slot },
        80..83 => Op::Read { slot, at: offset, len },
        83..90 => Op::Write { slot, at: offset, len, tag },
        90..92 => Op::MapWrite { slot, at: offset, len, tag },
        92..94 => Op::Ftruncate { slot, len: offset },
        94..96 => Op::Allocate { slot, mode: small, at: offset, len },
        96..97 => Op::Copy { from: slot, to: small, at: offset, len },
        97..98 => Op::Fstat { slot },
        98..100 => Op::Fsync { slot },
        _ => Op::User { user: small },
    }
}

/// A random sequence; with `users` it also changes the user that acts.
pub fn random_ops(seed: u64, count: usize, users: bool) -> Vec<Op> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random_op(&mut random, users)).collect()
}

/// Operations between two comparisons of the whole trees.
const INTERVAL: usize = 250;

/// Applies `ops` to fresh directories inside `subject` and `reference` and compares every answer,
/// and now and then everything. `after` is called after each operation with the subject's root;
/// self tests break something there.
pub fn run_ops(
    subject: &Path,
    reference: &Path,
    ops: &[Op],
    mut after: impl FnMut(usize, Op, &Path) -> Outcome + Send,
) -> Outcome {
    let roots = [subject.join("model"), reference.join("model")];
    for root in &roots {
        os::mkdir(root, 0o777)?;
        os::chmod(root, 0o777)?;
    }
    let outcome = std::thread::scope(|scope| {
        // A thread of its own, because acting as another user is a property of a thread.
        let work = scope.spawn(|| compare(&roots, ops, &mut after));
        work.join().unwrap_or_else(|_| Err(Failure::at("the model panicked")))
    });
    let removed = roots.iter().try_for_each(|root| {
        std::fs::remove_dir_all(root)
            .map_err(|error| Failure::at(format_args!("cannot remove {}: {error}", root.display())))
    });
    outcome.and(removed)
}

fn compare(
    roots: &[std::path::PathBuf; 2],
    ops: &[Op],
    after: &mut (dyn FnMut(usize, Op, &Path) -> Outcome + '_),
) -> Outcome {
    let guard = watchdog::guard(OPERATION_LIMIT, "model");
    let mut world = apply::World::new(roots);
    let mut epochs = tree::Epochs::start();
    for (index, op) in ops.iter().enumerate() {
        guard.renew(OPERATION_LIMIT);
        let [got, want] = world.apply(*op);
        ensure!(
            got == want || tolerated(*op, &got, &want),
            "operation {index} {op:?} on {}: got {got:?}, wanted {want:?}",
            world.describe(*op)
        );
        guard.renew(LOOK_LIMIT);
        after(index, *op, &roots[0])
            .map_err(|why| Failure::Failed(format!("after operation {index} {op:?}: {why}")))?;
        if (index + 1) % INTERVAL == 0 {
            guard.renew(OPERATION_LIMIT);
            tree::compare(&roots[0], &roots[1], &epochs)
                .map_err(|why| Failure::Failed(format!("after operation {index}: {why}")))?;
            epochs.next();
        }
    }
    guard.renew(OPERATION_LIMIT);
    world.close_all();
    tree::compare(&roots[0], &roots[1], &epochs)
        .map_err(|why| Failure::Failed(format!("at the end: {why}")))
}

/// A mode of fallocate may be missing on either side without being wrong.
fn tolerated(op: Op, got: &Result<Answer, Errno>, want: &Result<Answer, Errno>) -> bool {
    matches!(op, Op::Allocate { .. })
        && (*got == Err(Errno::OPNOTSUPP)) != (*want == Err(Errno::OPNOTSUPP))
}

/// Runs `count` random operations, with several users when root; a failure names the seed and the
/// smallest failing sequence as a test to paste.
pub fn run(subject: &Path, reference: &Path, seed: u64, count: usize) -> Outcome {
    let ops = random_ops(seed, count, os::is_root());
    run_ops(subject, reference, &ops, |_, _, _| Ok(())).map_err(|failure| {
        let fails = |ops: &[Op]| run_ops(subject, reference, ops, |_, _, _| Ok(())).is_err();
        explain(seed, &minimise(&ops, 600, fails), &failure)
    })
}

/// As [`run`], with what is to be looked at after each operation.
pub fn run_with(
    subject: &Path,
    reference: &Path,
    seed: u64,
    count: usize,
    mut after: impl FnMut(usize, Op, &Path) -> Outcome + Send,
) -> Outcome {
    let ops = random_ops(seed, count, os::is_root());
    run_ops(subject, reference, &ops, &mut after).map_err(|failure| {
        let until = Instant::now() + LOOK_LIMIT;
        let fails = |ops: &[Op]| {
            Instant::now() < until && run_ops(subject, reference, ops, &mut after).is_err()
        };
        explain(seed, &minimise(&ops, LOOKED_AT_ATTEMPTS, fails), &failure)
    })
}

/// Sequences tried to shrink one whose steps are looked at, which takes long.
const LOOKED_AT_ATTEMPTS: usize = 40;

fn explain(seed: u64, small: &[Op], failure: &Failure) -> Failure {
    let mut text = format!("model seed {seed}: {failure}\nsmallest sequence:\n#[test]\n");
    let _ = writeln!(text, "fn model_seed_{seed}() {{\n    let ops = [");
    for op in small {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "        Op::{op:?},");
    }
    text.push_str(
        "    ];\n    run_ops(subject.dir(), reference.dir(), &ops, |_, _, _| Ok(())).unwrap();\n}\n",
    );
    Failure::Failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{NativeDir, Subject};

    fn dirs() -> (NativeDir, NativeDir) {
        (NativeDir::in_memory().unwrap(), NativeDir::in_memory().unwrap())
    }

    #[test]
    fn run_ops_when_a_rename_loses_a_mode_then_it_fails_and_shrinks() {
        let (subject, reference) = dirs();
        let broken = |_: usize, op: Op, root: &Path| {
            if matches!(op, Op::Rename { .. }) {
                for name in os::names(root).unwrap() {
                    let path = root.join(name);
                    if os::file_type(&path) == Ok(os::FileType::RegularFile) {
                        os::chmod(path, 0o123)?;
                    }
                }
            }
            Ok(())
        };
        let ops = random_ops(5, 400, false);
        let failure = run_ops(subject.dir(), reference.dir(), &ops, broken).unwrap_err();
        let fails = |ops: &[Op]| run_ops(subject.dir(), reference.dir(), ops, broken).is_err();
        let text = explain(5, &minimise(&ops, 600, fails), &failure).to_string();
        assert!(text.matches("Op::").count() <= 4, "{text}");
        assert!(text.contains("Op::Rename"), "{text}");
    }

    #[test]
    fn run_ops_when_a_byte_changes_outside_then_the_comparison_sees_it() {
        let (subject, reference) = dirs();
        let ops = random_ops(6, 600, false);
        let broken = |index: usize, _: Op, root: &Path| {
            if index == 500 {
                os::write_file(root.join("extra"), b"x")?;
            }
            Ok(())
        };
        assert!(run_ops(subject.dir(), reference.dir(), &ops, broken).is_err());
    }
}
