//! A file of many names: what one more or less costs to write back.

use super::*;

/// Operations of the backing store for a hundred names more, and a hundred less, of a file of `count`.
fn cost(count: usize) -> u64 {
    let counter = Arc::new(Counter::default());
    let bench = Bench::with(counter.clone(), |_| {});
    let file = bench.write("name-0", b"bytes");
    let link = |name: usize| {
        let name = format!("name-{name}");
        bench.node.meta.link(file, Ino::ROOT, name.as_bytes(), clock::wall_time()).expect("linked");
    };
    (1..count).for_each(link);
    bench.drained();
    let before = counter.all.load(Ordering::Relaxed);
    for step in 0..100 {
        link(count + step);
        bench.node.writeback.reconcile(file).expect("the new name is there");
        bench.unlink(&format!("name-{step}"));
        bench.node.writeback.reconcile(file).expect("the old one is gone");
    }
    let cost = counter.all.load(Ordering::Relaxed) - before;
    bench.drained();
    assert_eq!(bench.names("").len(), count);
    cost
}

#[test]
fn names_of_a_file_when_there_are_many_then_one_more_is_written_back_as_with_few() {
    let (few, many) = (cost(10), cost(1000));
    // The root may be listed in the background.
    assert!(many <= few + few / 4, "{many} operations with a thousand names, {few} with ten");
}
