//! Goes through all states that can be reached.

use std::collections::HashSet;
use std::rc::Rc;

use forebay_coop::Message;

use super::{Mutation, Op, Step, World};

/// States that a test may have. More is a mistake in the test.
const MAX: usize = 4_000_000;

/// How a state was reached.
struct Trail {
    what: (Step, Option<Message>),
    before: Option<Rc<Trail>>,
}

fn told(trail: Option<&Rc<Trail>>) -> String {
    let mut steps: Vec<_> = std::iter::successors(trail, |trail| trail.before.as_ref())
        .map(|trail| format!("\n  {:?} {:?}", trail.what.0, trail.what.1))
        .collect();
    steps.reverse();
    steps.concat()
}

/// How many states there are, or the first defect found.
fn explore(start: World) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut open = vec![(start, None)];
    while let Some((world, trail)) = open.pop() {
        if !seen.insert(world.hash_of()) {
            continue;
        }
        assert!(seen.len() <= MAX, "more than {MAX} states");
        let steps = world.steps();
        if steps.is_empty() {
            world.check_end().map_err(|error| format!("{error}{}", told(trail.as_ref())))?;
        }
        for step in steps {
            let mut next = world.clone();
            let what = world.tell(step);
            let trail = Some(Rc::new(Trail { what, before: trail.clone() }));
            next.step(step).map_err(|error| format!("{error}{}", told(trail.as_ref())))?;
            open.push((next, trail));
        }
    }
    Ok(seen.len())
}

/// No order violates anything.
pub fn sound(name: &str, world: World) {
    let began = std::time::Instant::now();
    match explore(world) {
        Ok(states) => println!("{name}: {states} states in {:.1?}", began.elapsed()),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// The defect shows in some order.
pub fn found(mutation: Mutation, world: World) {
    let result = explore(world.mutated(mutation));
    let error = result.expect_err(&format!("{mutation:?} is not found"));
    println!("{mutation:?}: {}", error.lines().next().unwrap_or_default());
}

pub fn read(at: u64, len: u64) -> Op {
    Op::Read(vec![(at, len)])
}

pub fn write(at: u64, len: u64, value: u8) -> Op {
    Op::Write(vec![(at, len)], value)
}
