//! What the paper's programs do, one step of one process after the other.

/// A step of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reads or writes by itself.
    Access {
        /// Whether it writes.
        writes: bool,
        /// Where.
        extents: Vec<(u64, u64)>,
    },
    /// All read or write together.
    Collective {
        /// Whether they write.
        writes: bool,
        /// Where this process does.
        extents: Vec<(u64, u64)>,
        /// The bytes of all, one after the other: the first, and how many.
        whole: (u64, u64),
    },
    /// Waits for all.
    Barrier,
}

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Each process reads and writes two pages, then those of the next, through a segment of the file;
    /// then the next segment (figure 4).
    Window {
        /// Bytes of the file.
        file: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// A cube of cells of 40 bytes, appended 40 times and read back (figure 5).
    Btio {
        /// Cells along an edge.
        edge: u64,
    },
    /// A checkpoint of 24 variables and two plot files of 4, by variable and process (figure 6).
    Flash {
        /// Cells along the edge of a block.
        edge: u64,
    },
}

const CELL: u64 = 40;
const TIMES: u64 = 40;

/// Blocks of a process, about 80.
fn blocks(rank: u32) -> u64 {
    78 + u64::from(rank * 7 % 5)
}

impl Load {
    /// The numbers of processes that it can have, from those asked for.
    #[must_use]
    pub fn fits(self, ranks: u32) -> bool {
        match self {
            Self::Window { file, page } => file >= 2 * page * u64::from(ranks),
            Self::Btio { edge } => {
                let root = u64::from(ranks.isqrt());
                root * root == u64::from(ranks) && edge / root >= 1
            }
            Self::Flash { .. } => true,
        }
    }

    /// How long the file is before.
    #[must_use]
    pub fn length(self) -> u64 {
        match self {
            Self::Window { file, .. } => file,
            Self::Btio { .. } | Self::Flash { .. } => 0,
        }
    }

    /// The step with this number of a process.
    #[must_use]
    pub fn step(self, ranks: u32, rank: u32, number: u64) -> Option<Step> {
        match self {
            Self::Window { file, page } => window(ranks, rank, number, file, page),
            Self::Btio { edge } => btio(ranks, rank, number, edge),
            Self::Flash { edge } => flash(ranks, rank, number, edge),
        }
    }
}

fn window(ranks: u32, rank: u32, number: u64, file: u64, page: u64) -> Option<Step> {
    let pair = 2 * page;
    let segments = file / (pair * u64::from(ranks));
    let (turn, what) = (number / 3, number % 3);
    let (segment, shift) = (turn / u64::from(ranks), turn % u64::from(ranks));
    if segment >= segments {
        return None;
    }
    let place = segment * u64::from(ranks) + (u64::from(rank) + shift) % u64::from(ranks);
    let access = |writes| Step::Access { writes, extents: vec![(place * pair, pair)] };
    Some(match what {
        0 => access(false),
        1 => access(true),
        _ => Step::Barrier,
    })
}

/// The rows of the cubes that a process has: as many cubes as the root of the processes, along a
/// diagonal (multi-partition).
fn btio(ranks: u32, rank: u32, number: u64, edge: u64) -> Option<Step> {
    let whole = edge * edge * edge * CELL;
    if number >= 2 * TIMES {
        return None;
    }
    let root = u64::from(ranks.isqrt());
    let (row, column) = (u64::from(rank) / root, u64::from(rank) % root);
    let start = |part: u64| part * edge / root;
    let base = number % TIMES * whole;
    let mut extents = Vec::new();
    for layer in 0..root {
        let (across, along) = ((column + layer) % root, (row + layer) % root);
        for z in start(layer)..start(layer + 1) {
            for y in start(along)..start(along + 1) {
                let first = (z * edge + y) * edge + start(across);
                let cells = start(across + 1) - start(across);
                extents.push((base + first * CELL, cells * CELL));
            }
        }
    }
    Some(Step::Collective { writes: number < TIMES, extents, whole: (base, whole) })
}

fn flash(ranks: u32, rank: u32, number: u64, edge: u64) -> Option<Step> {
    // Bytes of a block in each of the variables of the three files.
    let files = [(24, edge.pow(3) * 8), (4, edge.pow(3) * 4), (4, (edge + 1).pow(3) * 4)];
    let all: u64 = (0..ranks).map(blocks).sum();
    let before: u64 = (0..rank).map(blocks).sum();
    let mut base = 0;
    let mut first = 0;
    for (variables, bytes) in files {
        if number < first + variables {
            let offset = base + (number - first) * all * bytes + before * bytes;
            let extents = vec![(offset, blocks(rank) * bytes)];
            return Some(Step::Access { writes: true, extents });
        }
        first += variables;
        base += variables * all * bytes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(load: Load, ranks: u32) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for rank in 0..ranks {
            for number in 0.. {
                match load.step(ranks, rank, number) {
                    None => break,
                    Some(Step::Barrier | Step::Collective { writes: false, .. }) => {}
                    Some(Step::Access { extents, .. } | Step::Collective { extents, .. }) => {
                        all.extend(extents);
                    }
                }
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn btio_when_all_write_then_each_byte_once_and_as_much_as_the_paper_says() {
        for ranks in [4, 9, 16] {
            let all = bytes_of(Load::Btio { edge: 64 }, ranks);
            let mut end = 0;
            for (offset, len) in all {
                assert_eq!(offset, end, "{ranks}");
                end += len;
            }
            assert_eq!((2 * end) >> 20, 800);
        }
    }

    #[test]
    fn flash_when_all_write_then_each_byte_once_and_as_much_as_the_paper_says() {
        for (edge, ranks, least, most) in
            [(8, 4, 34, 38), (16, 4, 276, 292), (16, 64, 4_400, 4_800)]
        {
            let all = bytes_of(Load::Flash { edge }, ranks);
            let mut end = 0;
            for (offset, len) in all {
                assert_eq!(offset, end, "{ranks}");
                end += len;
            }
            assert!((least..=most).contains(&(end >> 20)), "{} MiB", end >> 20);
        }
    }
}
