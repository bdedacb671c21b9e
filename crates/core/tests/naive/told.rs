//! Policies that know all requests.

use super::Run;
use super::families::Trace;

/// Bytes of the files in the cache, with the position of each one's next request.
type Files = Vec<(u64, u64, usize)>;

fn held(files: &Files) -> u64 {
    files.iter().map(|file| file.1).sum()
}

/// HyCache+, algorithms 2 and 3, on positions from 0 with the corrections of `heuristic.rs`.
pub fn heuristic(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut cached: Vec<(u64, u64)> = Vec::new();
    for (i, &(id, size)) in trace.requests.iter().enumerate() {
        let uses = |id: u64| trace.requests[i + 1..].iter().filter(|r| r.0 == id).count() as u64;
        if cached.iter().any(|file| file.0 == id) {
            run.note(size, size);
            continue;
        }
        run.note(size, 0);
        if uses(id) == 0 || size > trace.capacity {
            continue;
        }
        let mut used: u64 = cached.iter().map(|file| file.1).sum();
        let mut by_cost: Vec<(u64, u64, u64)> =
            cached.iter().map(|&(id, size)| (uses(id) * size, id, size)).collect();
        by_cost.sort_unstable();
        let (mut cost, mut discard) = (0, Vec::new());
        for (worth, id, size_of) in by_cost {
            if used + size <= trace.capacity {
                break;
            }
            cost += worth;
            used -= size_of;
            discard.push(id);
        }
        if discard.is_empty() || cost < uses(id) * size {
            cached.retain(|file| !discard.contains(&file.0));
            cached.push((id, size));
        }
    }
    run
}

/// Serves a request from whole files; whether it was a hit.
fn hit(files: &mut Files, run: &mut Run, (id, size): (u64, u64), next: Option<usize>) -> bool {
    let file = files.iter_mut().find(|file| file.0 == id);
    run.note(size, if file.is_some() { size } else { 0 });
    file.map(|file| file.2 = next.unwrap_or(usize::MAX)).is_some()
}

pub fn belady(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut files = Files::new();
    for (&(id, size), next) in trace.requests.iter().zip(trace.next()) {
        if hit(&mut files, &mut run, (id, size), next) || size > trace.capacity {
            continue;
        }
        while held(&files) + size > trace.capacity {
            let farthest = (0..files.len()).max_by_key(|at| files[*at].2).expect("files");
            files.remove(farthest);
        }
        files.push((id, size, next.unwrap_or(usize::MAX)));
    }
    run
}

/// What is never used again goes at once, and is not kept.
pub fn belady_size(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut files = Files::new();
    for (t, (&(id, size), next)) in trace.requests.iter().zip(trace.next()).enumerate() {
        let was_hit = hit(&mut files, &mut run, (id, size), next);
        files.retain(|file| file.2 != usize::MAX);
        if was_hit || size > trace.capacity {
            continue;
        }
        while held(&files) + size > trace.capacity {
            let product = |at: &usize| {
                let (id, size, next) = files[*at];
                (size as u128 * (next - t) as u128, std::cmp::Reverse(id))
            };
            let largest = (0..files.len()).max_by_key(product).expect("files");
            files.remove(largest);
        }
        if let Some(next) = next {
            files.push((id, size, next));
        }
    }
    run
}

pub fn min_whole(trace: &Trace) -> Run {
    let mut run = Run::default();
    let mut files = Files::new();
    for (&(id, size), next) in trace.requests.iter().zip(trace.next()) {
        let was_hit = hit(&mut files, &mut run, (id, size), next);
        files.retain(|file| file.2 != usize::MAX);
        let Some(next) = next.filter(|_| !was_hit && size <= trace.capacity) else { continue };
        // Farthest first, until there is room; then what was not needed back, nearest first.
        files.sort_by_key(|file| std::cmp::Reverse(file.2));
        let mut need = (held(&files) + size).saturating_sub(trace.capacity);
        let mut leaving = Vec::new();
        let mut freed = 0;
        for file in files.iter().take_while(|file| file.2 > next) {
            if freed >= need {
                break;
            }
            freed += file.1;
            leaving.push(*file);
        }
        if freed < need {
            continue;
        }
        need = freed - need;
        for file in leaving.clone().iter().rev() {
            if file.1 <= need {
                need -= file.1;
                leaving.retain(|other| other.0 != file.0);
            }
        }
        files.retain(|file| !leaving.iter().any(|gone| gone.0 == file.0));
        files.push((id, size, next));
    }
    run
}

/// MIN with bypass that keeps heads of files in chunks.
pub fn min(trace: &Trace, chunk: u64) -> Run {
    let mut run = Run::default();
    let mut files = Files::new();
    for (&(id, size), next) in trace.requests.iter().zip(trace.next()) {
        let there = files.iter().find(|file| file.0 == id).map_or(0, |file| file.1);
        run.note(size, there);
        files.retain(|file| file.0 != id);
        let Some(next) = next else { continue };
        files.sort_by_key(|file| std::cmp::Reverse(file.2));
        let mut need = (held(&files) + size).saturating_sub(trace.capacity);
        for file in files.iter_mut().filter(|file| file.2 > next) {
            let keep = file.1.saturating_sub(need) / chunk * chunk;
            if need > 0 {
                need = need.saturating_sub(file.1 - keep);
                file.1 = keep;
            }
        }
        files.retain(|file| file.1 > 0);
        let head = if need == 0 { size } else { size.saturating_sub(need) / chunk * chunk };
        let head = head.max(there);
        if head > 0 {
            files.push((id, head, next));
        }
    }
    run
}
