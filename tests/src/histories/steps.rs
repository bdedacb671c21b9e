//! The steps of a history, from its seed.

use super::Settings;
use crate::model::{Op, Place};
use crate::random::Random;

/// Names of new files and directories, and of those that are there at first.
pub const NAMES: [&str; 10] = ["d0", "d1", "d2", "d3", "f0", "f1", "f2", "f3", "f4", "f5"];

/// How a phase ends. Mount, backing store and twin are compared then, as far as they must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A clean `forebay umount`; the next phase has a new daemon.
    Umount,
    /// kill -9 of the daemon; the next phase has a new one.
    Kill,
    /// `forebay sync`, with files open.
    Sync,
    /// All files are closed, and workers write everything back by themselves.
    Worker,
}

/// How the phases of a history end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// All in the same way, but for the last one: that is a clean unmount.
    All(End),
    /// Each as the seed has it; the last one is a clean unmount.
    Mixed,
}

/// A step of a history. Any of them may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A call of a program, on both sides.
    Op(Op),
    /// Workers get time, in milliseconds.
    Pause(u16),
    /// `forebay evict`.
    Evict(Place),
    /// The end of a phase.
    End(End),
}

/// The history of a seed.
pub fn random_steps(seed: u64, settings: &Settings) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut steps = Vec::new();
    for phase in 0..settings.phases {
        steps.extend((0..settings.ops).map(|_| random_step(&mut random)));
        let drawn = *random.pick(&[End::Umount, End::Kill, End::Sync, End::Worker]);
        steps.push(Step::End(match settings.ends {
            _ if phase + 1 == settings.phases => End::Umount,
            Ends::All(end) => end,
            Ends::Mixed => drawn,
        }));
    }
    steps
}

fn random_step(random: &mut Random) -> Step {
    match random.below(150) {
        0..10 => Step::Pause(random.between(1, 60) as u16),
        // Longer than names and attributes wait.
        10 => Step::Pause(1100),
        11..14 => Step::Evict(random.bits() as u32),
        _ => Step::Op(random_op(random)),
    }
}

/// Half of them leave files and directories open to their owner.
const MODES: [u32; 14] =
    [0o755, 0o755, 0o755, 0o700, 0o777, 0o644, 0o600, 0o500, 0o500, 0o300, 0o400, 0o200, 0o100, 0];

fn random_op(random: &mut Random) -> Op {
    let [at, other, tag] = [(); 3].map(|()| random.bits() as u32);
    let [slot, small] = [(); 2].map(|()| random.bits() as u8);
    let offset = random.below(70_000) as u32;
    let len = random.between(1, 20_000) as u32;
    let mode = *random.pick(&MODES);
    match random.below(110) {
        0..6 => Op::Create { at, mode, excl: random.one_in(2) },
        6..10 => Op::Mkdir { at, mode },
        10..12 => Op::Symlink { at, target: other },
        12..20 => Op::Link { from: at, to: other },
        20..38 => Op::Rename { from: at, to: other, flags: small },
        38..45 => Op::Unlink { at },
        45..48 => Op::Rmdir { at },
        48..60 => Op::Chmod { at, mode },
        60..63 => Op::Utimens { at, seconds: tag % 1_000_000_000, nanos: other % 1_000_000_000 },
        63..66 => Op::Truncate { at, len: offset },
        66..69 => Op::SetXattr { at, name: small, len: (tag % 200) as u16, tag },
        69..71 => Op::RemoveXattr { at, name: small },
        71..73 => Op::Stat { at },
        73..75 => Op::Readdir { at },
        75..79 => Op::ReadAll { at },
        79..88 => Op::Open { slot, at, how: small },
        88..91 => Op::Close { slot },
        91..93 => Op::Read { slot, at: offset, len },
        93..101 => Op::Write { slot, at: offset, len, tag },
        101..103 => Op::Ftruncate { slot, len: offset },
        103..104 => Op::Fstat { slot },
        104..106 => Op::Fsync { slot },
        106..107 => Op::MapWrite { slot, at: offset, len, tag },
        _ => Op::Unnamed { at, len, tag },
    }
}
