//! Whether a history could have come of one call after the other.

use std::collections::BTreeSet;

use super::{Op, World};

/// States that are looked at for one history. What takes more counts as explained.
const MAX: usize = 100_000;

/// Bytes that a call writes or has read, on some pages only.
struct Atom {
    bytes: Vec<(usize, u8)>,
    writes: bool,
    /// Whether it may never have happened: a dead process's.
    optional: bool,
    /// Calls that had ended when it began.
    before: Vec<usize>,
    call: usize,
}

/// Each call takes effect as a whole, in an order that respects which ended before others began; the
/// file has what comes of it. Of a process that has died, each page of each write may be missing.
pub fn check(world: &World) -> Result<(), String> {
    if explained(world, &|_| true) {
        return Ok(());
    }
    let line = |record: &super::Record| format!("\n  {record:?}");
    let lines = || world.history.iter().map(line).collect::<String>();
    let story = || format!("file {:?}{}", world.file, lines());
    if world.endangered.is_empty() && !world.broken {
        return Err(format!("no order of calls explains this: {}", story()));
    }
    if world.broken {
        return Ok(());
    }
    if !explained(world, &|page| !world.endangered.contains(&page)) {
        return Err(format!(
            "pages that nobody lost are wrong; lost: {:?}; {}",
            world.endangered,
            story()
        ));
    }
    if !world.said {
        return Err(format!("lost and not said: {:?}; {}", world.endangered, story()));
    }
    synced_is_there(world).map_err(|error| format!("{error}; {}", story()))
}

fn bytes_of(op: &Op, read: &[u8]) -> Vec<(usize, u8)> {
    let (list, value) = match op {
        Op::Read(list) | Op::ReadAll(list) => (list, None),
        Op::Write(list, value) | Op::WriteAll(list, value) => (list, Some(*value)),
        Op::Sync | Op::Close => return Vec::new(),
    };
    let places = list.iter().flat_map(|(offset, len)| *offset..offset + len);
    places
        .enumerate()
        .map(|(at, place)| {
            (place as usize, value.unwrap_or_else(|| read.get(at).copied().unwrap_or(0)))
        })
        .collect()
}

fn explained(world: &World, good: &dyn Fn(u64) -> bool) -> bool {
    let page = |place: usize| place as u64 / world.page_size;
    let mut atoms = Vec::new();
    for (call, record) in world.history.iter().enumerate() {
        let dead = !world.alive[record.rank];
        let writes = matches!(record.op, Op::Write(..) | Op::WriteAll(..));
        if !writes && !record.ended {
            continue;
        }
        let mut bytes = bytes_of(&record.op, &record.read);
        bytes.retain(|(place, _)| good(page(*place)));
        let before: Vec<usize> = record.before.iter().copied().collect();
        // Collective calls are atomic page by page only.
        let apart = dead && writes || matches!(record.op, Op::WriteAll(..) | Op::ReadAll(..));
        let mut groups: Vec<Vec<(usize, u8)>> = Vec::new();
        for (place, value) in bytes {
            match groups.last_mut() {
                Some(group) if !apart || page(group[0].0) == page(place) => {
                    group.push((place, value));
                }
                _ => groups.push(vec![(place, value)]),
            }
        }
        for bytes in groups {
            let before = before.clone();
            atoms.push(Atom { bytes, writes, optional: dead && writes, before, call });
        }
    }
    let end = world.history.iter().flat_map(|it| bytes_of(&it.op, &it.read));
    let size = end.map(|(place, _)| place + 1).max().unwrap_or(0).max(world.file.len());
    let mut seen = BTreeSet::new();
    let wanted: Vec<Option<u8>> = (0..size)
        .map(|place| good(page(place)).then(|| world.file.get(place).copied().unwrap_or(0)))
        .collect();
    search(&atoms, 0, &mut vec![0; size], &wanted, &mut seen)
}

/// Whether the atoms not in `done` can follow.
fn search(
    atoms: &[Atom],
    done: u64,
    bytes: &mut Vec<u8>,
    wanted: &[Option<u8>],
    seen: &mut BTreeSet<(u64, Vec<u8>)>,
) -> bool {
    let open = |at: &usize| done & (1 << at) == 0;
    if (0..atoms.len()).all(|at| done & (1 << at) != 0) {
        return bytes.iter().zip(wanted).all(|(byte, wanted)| wanted.is_none_or(|it| it == *byte));
    }
    if seen.len() > MAX {
        return true;
    }
    if !seen.insert((done, bytes.clone())) {
        return false;
    }
    for at in (0..atoms.len()).filter(open) {
        let atom = &atoms[at];
        let held_up =
            (0..atoms.len()).filter(open).any(|other| atom.before.contains(&atoms[other].call));
        if held_up {
            continue;
        }
        let next = done | 1 << at;
        if !atom.writes {
            let same = atom.bytes.iter().all(|(place, value)| bytes[*place] == *value);
            if same && search(atoms, next, bytes, wanted, seen) {
                return true;
            }
            continue;
        }
        if atom.optional && search(atoms, next, bytes, wanted, seen) {
            return true;
        }
        let old: Vec<u8> = atom.bytes.iter().map(|(place, _)| bytes[*place]).collect();
        for (place, value) in &atom.bytes {
            bytes[*place] = *value;
        }
        if search(atoms, next, bytes, wanted, seen) {
            return true;
        }
        for ((place, _), old) in atom.bytes.iter().zip(old) {
            bytes[*place] = old;
        }
    }
    false
}

/// No byte is older than what all processes had synced.
fn synced_is_there(world: &World) -> Result<(), String> {
    for place in 0..world.file.len() {
        let writes = |record: &super::Record| match &record.op {
            Op::Write(list, value) | Op::WriteAll(list, value) => {
                let here =
                    |(offset, len): &(u64, u64)| (*offset..offset + len).contains(&(place as u64));
                list.iter().any(here).then_some(*value)
            }
            _ => None,
        };
        let found = world.file[place];
        let of: Vec<_> =
            world.history.iter().enumerate().filter(|(_, it)| writes(it).is_some()).collect();
        let synced: Vec<_> = of.iter().filter(|(_, it)| it.synced).collect();
        let Some(writer) = of.iter().find(|(_, it)| writes(it) == Some(found)) else {
            if synced.is_empty() {
                continue;
            }
            return Err(format!("byte {place} was synced, and is {found}"));
        };
        if synced.iter().any(|(_, it)| it.before.contains(&writer.0)) {
            return Err(format!("byte {place} is older than what was synced: {found}"));
        }
    }
    Ok(())
}
