//! Files that only the backing store has when the load begins, and a reader of them: what is brought
//! in piece by piece, and leaves the tiers again.

use std::path::Path;

use crate::failure::Outcome;
use crate::os::{self, OFlags};
use crate::random::{Random, pattern};

use super::Progress;

/// Their sizes: too large to be brought in when they are opened, and no whole number of anything.
const SIZES: [usize; 4] = [700_001, 1_500_003, 2_300_005, 1_100_007];

const PIECE: usize = 64 << 10;

fn content(number: usize) -> Vec<u8> {
    pattern(0xc01d + number as u64, SIZES[number])
}

/// Makes the files in a directory of the backing store.
pub fn lay(dir: &Path) -> Outcome {
    os::mkdir(dir, 0o755)?;
    for number in 0..SIZES.len() {
        os::write_file(dir.join(format!("cold{number}")), &content(number))?;
    }
    Ok(())
}

/// Reads them through the mount until told to stop or until it dies: one from its beginning to its
/// end, then single pieces of another.
pub fn read(dir: &Path, progress: &Progress, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let contents: Vec<_> = (0..SIZES.len()).map(content).collect();
    while !progress.is_stopping() {
        let number = random.below(SIZES.len() as u64) as usize;
        let pieces = SIZES[number].div_ceil(PIECE);
        let order: Vec<usize> = if random.below(3) > 0 {
            (0..pieces).collect()
        } else {
            (0..8).map(|_| random.below(pieces as u64) as usize).collect()
        };
        if let Err(why) = compare(dir, number, &contents[number], &order)? {
            ensure!(progress.expects_death(), "cold{number}: {why}");
            return Ok(());
        }
    }
    Ok(())
}

fn compare(
    dir: &Path,
    number: usize,
    content: &[u8],
    order: &[usize],
) -> Outcome<Result<(), os::Errno>> {
    let fd = match os::open(dir.join(format!("cold{number}")), OFlags::RDONLY, 0) {
        Ok(fd) => fd,
        Err(errno) => return Ok(Err(errno)),
    };
    for &piece in order {
        let want = &content[piece * PIECE..content.len().min((piece + 1) * PIECE)];
        match os::read_at(&fd, (piece * PIECE) as u64, want.len()) {
            Ok(read) => ensure!(read == want, "piece {piece} of cold{number} is another"),
            Err(errno) => return Ok(Err(errno)),
        }
    }
    Ok(Ok(()))
}

/// Their paths below the mount in an order in which they may be read, for a hint.
pub fn sequence(dir: &str) -> Vec<String> {
    (0..100).map(|at| format!("{dir}/cold{}", at * 7 % SIZES.len())).collect()
}

/// Whether a directory has them still, and nothing else.
pub fn verify(dir: &Path) -> Outcome {
    equal!(os::names(dir)?.len(), SIZES.len());
    for number in 0..SIZES.len() {
        let read = os::read_all(dir.join(format!("cold{number}")))?;
        ensure!(read == content(number), "cold{number} is another");
    }
    Ok(())
}
