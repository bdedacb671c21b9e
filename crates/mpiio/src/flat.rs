//! Datatypes without their structure, from how they were made.

use crate::view::Flat;

/// How a datatype was made of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combiner {
    /// Of bytes.
    Bytes,
    /// A short and an int, the one basic type with a gap.
    ShortInt,
    /// As the other one.
    Dup,
    /// Several beside each other.
    Contiguous,
    /// Blocks at a stride in units of the other.
    Vector,
    /// Blocks at a stride in bytes.
    Hvector,
    /// Blocks of any length, at places in units of the other.
    Indexed,
    /// Blocks of any length, at places in bytes.
    Hindexed,
    /// Blocks of one length, at places in units of the other.
    IndexedBlock,
    /// Blocks of one length, at places in bytes.
    HindexedBlock,
    /// Blocks of several types.
    Struct,
    /// A part of an array.
    Subarray,
    /// A process's part of an array.
    Darray,
}

impl Combiner {
    const ALL: [Self; 13] = [
        Self::Bytes,
        Self::ShortInt,
        Self::Dup,
        Self::Contiguous,
        Self::Vector,
        Self::Hvector,
        Self::Indexed,
        Self::Hindexed,
        Self::IndexedBlock,
        Self::HindexedBlock,
        Self::Struct,
        Self::Subarray,
        Self::Darray,
    ];

    /// By the shim's number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// One level of a datatype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// How it was made.
    pub combiner: Combiner,
    /// Bytes from one to the next of several.
    pub extent: i64,
    /// Bytes of data.
    pub size: u64,
    /// The integers that it was made with.
    pub numbers: Vec<i64>,
    /// The addresses.
    pub addresses: Vec<i64>,
    /// The types.
    pub types: Vec<u64>,
    /// What stands for: Fortran's order; no distribution, by block, cyclic; the default argument.
    pub constants: [i64; 5],
}

/// More blocks than this are not kept: such a type passes through.
const MAX_BLOCKS: usize = 1 << 24;

/// What is done with a node.
pub type Use<'a> = &'a mut dyn FnMut(&Node) -> Option<Flat>;

/// Gives the node of a type for use.
pub type Describe<'a> = &'a dyn Fn(u64, Use) -> Option<Flat>;

/// Flattens a datatype. `None` if it has something that is not known, or too many blocks.
pub fn flatten(datatype: u64, describe: Describe) -> Option<Flat> {
    describe(datatype, &mut |node| of_node(node, describe))
}

fn of_node(node: &Node, describe: Describe) -> Option<Flat> {
    let mut flat = Flat::default();
    let number = |at: usize| node.numbers.get(at).copied();
    let child = || flatten(*node.types.first()?, describe);
    match node.combiner {
        Combiner::Bytes => flat.push(0, node.size),
        Combiner::ShortInt => {
            flat.push(0, 2);
            flat.push(4, 4);
        }
        Combiner::Dup => flat = child()?,
        Combiner::Contiguous => repeat(&mut flat, &child()?, 0, number(0)?)?,
        Combiner::Vector => {
            let child = child()?;
            let stride = number(2)?.checked_mul(child.extent)?;
            strided(&mut flat, &child, number(0)?, number(1)?, stride)?;
        }
        Combiner::Hvector => {
            let stride = *node.addresses.first()?;
            strided(&mut flat, &child()?, number(0)?, number(1)?, stride)?;
        }
        Combiner::Indexed | Combiner::Hindexed => {
            let (child, count) = (child()?, usize::try_from(number(0)?).ok()?);
            for at in 1..=count {
                let place = match node.combiner {
                    Combiner::Indexed => number(count + at)?.checked_mul(child.extent)?,
                    _ => *node.addresses.get(at - 1)?,
                };
                repeat(&mut flat, &child, place, number(at)?)?;
            }
        }
        Combiner::IndexedBlock | Combiner::HindexedBlock => {
            let (child, count) = (child()?, usize::try_from(number(0)?).ok()?);
            for at in 0..count {
                let place = match node.combiner {
                    Combiner::IndexedBlock => number(2 + at)?.checked_mul(child.extent)?,
                    _ => *node.addresses.get(at)?,
                };
                repeat(&mut flat, &child, place, number(1)?)?;
            }
        }
        Combiner::Struct => {
            for (at, datatype) in node.types.iter().enumerate() {
                let child = flatten(*datatype, describe)?;
                repeat(&mut flat, &child, *node.addresses.get(at)?, number(1 + at)?)?;
            }
        }
        Combiner::Subarray => subarray(&mut flat, &child()?, node)?,
        Combiner::Darray => darray(&mut flat, &child()?, node)?,
    }
    flat.extent = node.extent;
    (flat.size == node.size).then_some(flat)
}

/// So many of a type beside each other.
fn repeat(flat: &mut Flat, child: &Flat, place: i64, count: i64) -> Option<()> {
    let count = u64::try_from(count).ok()?;
    if let Some(at) = child.dense(count) {
        flat.push(place + at, child.size.checked_mul(count)?);
        return Some(());
    }
    let blocks = child.blocks.len().checked_mul(usize::try_from(count).ok()?)?;
    if blocks.checked_add(flat.blocks.len())? > MAX_BLOCKS {
        return None;
    }
    child.each(count, |at, len| flat.push(place + at, len));
    Some(())
}

fn strided(flat: &mut Flat, child: &Flat, count: i64, len: i64, stride: i64) -> Option<()> {
    for at in 0..count {
        if flat.blocks.len() > MAX_BLOCKS {
            return None;
        }
        repeat(flat, child, at.checked_mul(stride)?, len)?;
    }
    Some(())
}

/// The runs of an array that are picked in each dimension, slowest dimension first.
fn pick(flat: &mut Flat, child: &Flat, dims: &[(i64, Vec<(i64, i64)>)], base: i64) -> Option<()> {
    let Some(((_, runs), inner)) = dims.split_first() else {
        return repeat(flat, child, base.checked_mul(child.extent)?, 1);
    };
    let stride = inner.iter().try_fold(1i64, |all, (size, _)| all.checked_mul(*size))?;
    for (start, len) in runs {
        if inner.is_empty() {
            repeat(flat, child, (base + start).checked_mul(child.extent)?, *len)?;
            continue;
        }
        for index in *start..start + len {
            pick(flat, child, inner, base + index * stride)?;
        }
    }
    Some(())
}

fn subarray(flat: &mut Flat, child: &Flat, node: &Node) -> Option<()> {
    let count = usize::try_from(*node.numbers.first()?).ok()?;
    let list = |which: usize| node.numbers.get(1 + which * count..1 + (which + 1) * count);
    let (sizes, parts, starts) = (list(0)?, list(1)?, list(2)?);
    let mut dims: Vec<_> = sizes
        .iter()
        .zip(parts.iter().zip(starts))
        .map(|(size, (part, start))| (*size, vec![(*start, *part)]))
        .collect();
    if *node.numbers.get(1 + 3 * count)? == node.constants[0] {
        dims.reverse();
    }
    pick(flat, child, &dims, 0)
}

fn darray(flat: &mut Flat, child: &Flat, node: &Node) -> Option<()> {
    let count = usize::try_from(*node.numbers.get(2)?).ok()?;
    let list = |which: usize| node.numbers.get(3 + which * count..3 + (which + 1) * count);
    let (sizes, distributions, arguments, grid) = (list(0)?, list(1)?, list(2)?, list(3)?);
    // Ranks are in row order of the grid, whatever the order of the array.
    let mut rest = *node.numbers.get(1)?;
    let mut dims = Vec::new();
    for at in (0..count).rev() {
        let (size, processes) = (sizes[at], grid[at].max(1));
        let (me, argument) = (rest % processes, arguments[at]);
        rest /= processes;
        let [_, none, block, _, default] = node.constants;
        let length = match distributions[at] {
            it if it == none => size,
            _ if argument != default => argument,
            it if it == block => (size + processes - 1) / processes,
            _ => 1,
        };
        let me = if distributions[at] == none { 0 } else { me };
        let step = length.max(1) * if distributions[at] == none { 1 } else { processes };
        let mut runs = Vec::new();
        let mut start = me * length.max(1);
        while start < size {
            runs.push((start, length.max(1).min(size - start)));
            start += step;
        }
        dims.push((size, runs));
    }
    dims.reverse();
    if *node.numbers.get(3 + 4 * count)? == node.constants[0] {
        dims.reverse();
    }
    pick(flat, child, &dims, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSTANTS: [i64; 5] = [57, 1, 2, 3, -1];

    fn node(combiner: Combiner, extent: i64, size: u64, numbers: &[i64]) -> Node {
        Node {
            combiner,
            extent,
            size,
            numbers: numbers.to_vec(),
            addresses: Vec::new(),
            types: vec![0],
            constants: CONSTANTS,
        }
    }

    /// Type 0 is an int, type 1 the node.
    fn flat(node: &Node) -> Option<Flat> {
        let int = Node { types: Vec::new(), ..self::node(Combiner::Bytes, 4, 4, &[]) };
        flatten(1, &|datatype, then| then(if datatype == 0 { &int } else { node }))
    }

    #[test]
    fn vector_then_its_blocks() {
        let vector = node(Combiner::Vector, 44, 24, &[3, 2, 4]);
        assert_eq!(flat(&vector).unwrap().blocks, [(0, 8), (16, 8), (32, 8)]);
        let dense = node(Combiner::Vector, 24, 24, &[3, 2, 2]);
        assert_eq!(flat(&dense).unwrap().blocks, [(0, 24)]);
    }

    #[test]
    fn indexed_then_its_blocks_in_the_order_given() {
        let indexed = node(Combiner::Indexed, 28, 12, &[2, 1, 2, 5, 0]);
        assert_eq!(flat(&indexed).unwrap().blocks, [(20, 4), (0, 8)]);
        let mut hindexed = node(Combiner::HindexedBlock, 20, 8, &[2, 1]);
        hindexed.addresses = vec![3, 16];
        assert_eq!(flat(&hindexed).unwrap().blocks, [(3, 4), (16, 4)]);
    }

    #[test]
    fn struct_then_the_blocks_of_all_members() {
        let mut record = node(Combiner::Struct, 16, 12, &[2, 1, 2]);
        (record.addresses, record.types) = (vec![0, 8], vec![0, 0]);
        assert_eq!(flat(&record).unwrap().blocks, [(0, 4), (8, 8)]);
    }

    #[test]
    fn subarray_in_both_orders_then_its_rows() {
        let c = node(Combiner::Subarray, 80, 16, &[2, 4, 5, 2, 2, 1, 3, 56]);
        assert_eq!(flat(&c).unwrap().blocks, [(32, 8), (52, 8)]);
        let fortran = node(Combiner::Subarray, 80, 16, &[2, 4, 5, 2, 2, 1, 3, 57]);
        assert_eq!(flat(&fortran).unwrap().blocks, [(52, 8), (68, 8)]);
    }

    #[test]
    fn darray_by_block_and_cyclic_then_the_runs_of_its_process() {
        // 4 processes in a grid of 2 by 2, this is 3: rows by block, columns cyclic by 2.
        let numbers = [4, 3, 2, 4, 5, 2, 3, -1, 2, 2, 2, 56];
        let part = node(Combiner::Darray, 80, 16, &numbers);
        assert_eq!(flat(&part).unwrap().blocks, [(48, 8), (68, 8)]);
    }

    #[test]
    fn size_that_does_not_fit_then_refused() {
        assert_eq!(flat(&node(Combiner::Contiguous, 40, 44, &[10])), None);
        assert_eq!(flat(&node(Combiner::Subarray, 40, 44, &[2, 1])), None);
    }
}
