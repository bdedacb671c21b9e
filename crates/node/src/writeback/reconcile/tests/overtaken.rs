//! Others change a name between the look of a worker at it and what the worker does with it.

use super::*;

type Deed = Box<dyn Fn() + Send + Sync>;

/// Does something once, after a name was looked at and before the next operation of the store.
#[derive(Default)]
pub(super) struct Meddler {
    armed: Mutex<Option<(&'static str, Deed)>>,
    due: Mutex<Option<Deed>>,
    asked: Mutex<Vec<(Operation, PathBuf)>>,
}

impl Meddler {
    fn after_a_look_at(&self, name: &'static str, deed: impl Fn() + Send + Sync + 'static) {
        *self.armed.lock() = Some((name, Box::new(deed)));
    }

    fn forget(&self) {
        self.asked.lock().clear();
    }

    /// How often this was asked of a name.
    fn count(&self, operation: Operation, name: &str) -> usize {
        let asked = self.asked.lock();
        asked.iter().filter(|(of, label)| *of == operation && label == Path::new(name)).count()
    }

    fn has_acted(&self) -> bool {
        self.armed.lock().is_none() && self.due.lock().is_none()
    }
}

impl Interceptor for Meddler {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, bytes: u64, label: &Path) -> Verdict {
        if let Some(deed) = self.due.lock().take() {
            deed();
        }
        self.asked.lock().push((operation, label.to_owned()));
        let mut armed = self.armed.lock();
        if operation == Operation::Stat
            && let Some((_, deed)) = armed.take_if(|(name, _)| Path::new(*name) == label)
        {
            *self.due.lock() = Some(deed);
        }
        self.before(operation, bytes)
    }
}

impl Bench {
    /// One inode is brought in line, and then all that is left.
    fn turn(&self, ino: Ino) {
        drop(self.node.writeback.reconcile(ino));
        self.drained();
    }
}

fn bench() -> (Bench, Arc<Meddler>) {
    let meddler = Arc::new(Meddler::default());
    (Bench::with(meddler.clone(), |_| {}), meddler)
}

/// Others put another file in the place of `name`, or write to the file itself.
fn others_write(bench: &Bench, name: &str, in_place: bool) -> impl Fn() + Send + Sync + 'static {
    let (path, new) = (bench.root.join(name), bench.root.join("theirs"));
    move || match in_place {
        true => fs::write(&path, "of others").expect("written"),
        false => {
            fs::write(&new, "of others").expect("written");
            fs::rename(&new, &path).expect("renamed");
        }
    }
}

/// Both versions are there: that of others under the name, ours beside it.
fn assert_both(bench: &Bench, name: &str, ours: &[u8]) {
    assert_eq!(bench.read(name), b"of others");
    let prefix = format!("{name}.forebay-conflict-");
    let names = bench.names("");
    let kept: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
    assert_eq!(kept.len(), 1, "{names:?}");
    assert_eq!(bench.read(kept[0]), ours);
}

#[test]
fn move_over_a_removed_file_when_others_write_it_after_the_look_then_both_are_kept() {
    for in_place in [false, true] {
        let (bench, meddler) = bench();
        bench.write("f", b"old");
        let ino = bench.write("g", b"new");
        bench.drained();
        bench.rename("g", "f", false);
        meddler.after_a_look_at("f", others_write(&bench, "f", in_place));
        bench.turn(ino);
        assert!(meddler.has_acted());
        assert_both(&bench, "f", b"new");
    }
}

#[test]
fn publication_over_a_removed_file_when_others_write_it_after_the_look_then_both_are_kept() {
    for in_place in [false, true] {
        let (bench, meddler) = bench();
        bench.write("f", b"old");
        bench.drained();
        let ino = bench.write("g", b"new");
        bench.rename("g", "f", false);
        meddler.after_a_look_at("f", others_write(&bench, "f", in_place));
        bench.turn(ino);
        assert!(meddler.has_acted());
        assert_both(&bench, "f", b"new");
    }
}

#[test]
fn removal_when_others_write_the_file_after_the_look_then_theirs_comes_back() {
    for in_place in [false, true] {
        let (bench, meddler) = bench();
        let ino = bench.write("f", b"old");
        bench.drained();
        bench.unlink("f");
        meddler.after_a_look_at("f", others_write(&bench, "f", in_place));
        bench.turn(ino);
        assert!(meddler.has_acted());
        assert_eq!(bench.read("f"), b"of others");
        assert!(bench.find(Ino::ROOT, "f").is_some());
    }
}

#[test]
fn second_name_over_a_removed_file_when_others_write_it_after_the_look_then_both_are_kept() {
    for in_place in [false, true] {
        let (bench, meddler) = bench();
        bench.write("f", b"old");
        let ino = bench.write("g", b"new");
        bench.drained();
        bench.unlink("f");
        bench.node.meta.link(ino, Ino::ROOT, b"f", clock::wall_time()).expect("linked");
        meddler.after_a_look_at("f", others_write(&bench, "f", in_place));
        bench.turn(ino);
        assert!(meddler.has_acted());
        assert_both(&bench, "f", b"new");
        assert_eq!(bench.read("g"), b"new");
    }
}

#[test]
fn move_over_a_removed_file_when_the_daemon_died_before_the_removal_then_only_the_new_one_is_there()
{
    let (bench, _) = bench();
    let old = bench.write("f", b"old");
    let new = bench.write("g", b"new");
    bench.drained();
    bench.rename("g", "f", false);
    // As the worker notes it before it exchanges the two.
    let meta = &bench.node.meta;
    meta.claim(new, &Link::new(Ino::ROOT, &b"f"[..])).expect("claimed");
    meta.claim(old, &Link::new(Ino::ROOT, &b"g"[..])).expect("claimed");
    let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    let (f, g) = (bench.root.join("f"), bench.root.join("g"));
    rustix::fs::renameat_with(cwd, f, cwd, g, flags).expect("exchanged");
    bench.drained();
    assert_eq!(bench.names(""), ["f"]);
    assert_eq!(bench.read("f"), b"new");
    assert_eq!(bench.node.writeback.conflicts().0, 0);
}

#[test]
fn move_over_a_file_and_removal_when_counted_then_a_look_where_it_went_is_all_that_they_cost_more()
{
    let (bench, meddler) = bench();
    let [moved, _, removed] = ["a", "b", "c"].map(|name| bench.write(name, b"bytes"));
    bench.drained();
    bench.rename("a", "b", false);
    meddler.forget();
    bench.turn(moved);
    let moves = [Operation::Stat, Operation::Rename, Operation::Remove];
    let count = |name| moves.map(|operation| meddler.count(operation, name));
    // One look before the move, and what is moved is looked at before it, by either name after it.
    assert_eq!((count("a"), count("b")), ([1, 1, 0], [2, 0, 0]));
    bench.unlink("c");
    bench.turn(removed);
    // The store looks at it once more, where it has moved it to.
    assert_eq!(count("c"), [1, 0, 1]);
}
