//! Others put something of theirs in the place of a name before any operation of the store that a
//! worker makes: for each kind of work, each name and each such moment.

use std::os::unix::fs::FileTypeExt;

use forebay_store::decorators::RenumberedBacking;

use super::*;

type Deed = Box<dyn FnOnce() + Send>;

/// Has others act before one operation of those that follow.
#[derive(Default)]
struct Moment {
    next: Mutex<Option<(usize, Deed)>>,
    seen: Mutex<Vec<String>>,
}

impl Moment {
    fn arm(&self, at: usize, deed: impl FnOnce() + Send + 'static) {
        self.seen.lock().clear();
        *self.next.lock() = Some((at, Box::new(deed)));
    }

    /// Whether the moment has come.
    fn has_come(&self) -> bool {
        self.next.lock().is_none()
    }
}

impl Interceptor for Moment {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn before_at(&self, operation: Operation, _: u64, label: &Path) -> Verdict {
        let mut next = self.next.lock();
        if let Some((left, _)) = &mut *next {
            self.seen.lock().push(format!("{operation:?} {}", label.display()));
            if *left > 0 {
                *left -= 1;
            } else if let Some((_, deed)) = next.take() {
                deed();
            }
        }
        Verdict::Pass
    }
}

/// What others put in the place of a name.
#[derive(Clone, Copy, Debug)]
enum Theirs {
    File,
    Directory,
    EmptyDirectory,
    Symlink,
    /// A file; what had the name is there still, by a name of theirs.
    FileAndAside,
}

const ALL: [Theirs; 5] = [
    Theirs::File,
    Theirs::Directory,
    Theirs::EmptyDirectory,
    Theirs::Symlink,
    Theirs::FileAndAside,
];

const OF_OTHERS: &str = "of others, and the only copy";

fn put(root: &Path, name: &str, theirs: Theirs) {
    let (at, new, aside) = (root.join(name), root.join(".theirs"), root.join("aside"));
    match theirs {
        Theirs::File | Theirs::FileAndAside => fs::write(&new, OF_OTHERS).expect("written"),
        Theirs::Directory => {
            fs::create_dir(&new).expect("made");
            fs::write(new.join("in"), OF_OTHERS).expect("written");
        }
        Theirs::EmptyDirectory => fs::create_dir(&new).expect("made"),
        Theirs::Symlink => std::os::unix::fs::symlink(OF_OTHERS, &new).expect("made"),
    }
    // Whoever keeps a handle on the old directory keeps it.
    if matches!(theirs, Theirs::FileAndAside) {
        fs::rename(&at, &aside).ok();
    } else {
        fs::remove_file(&at).or_else(|_| fs::remove_dir_all(&at)).ok();
    }
    fs::rename(&new, &at).expect("renamed");
}

/// Where theirs is, in names that users see.
fn places(dir: &Path, theirs: Theirs, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("its type"));
        if entry.file_name() == ".forebay" {
            continue;
        }
        let is_theirs = match theirs {
            Theirs::File | Theirs::Directory | Theirs::FileAndAside => {
                kind.is_file() && fs::read(&path).expect("read") == OF_OTHERS.as_bytes()
            }
            Theirs::Symlink => {
                kind.is_symlink() && fs::read_link(&path).expect("read") == Path::new(OF_OTHERS)
            }
            // Only that a directory is there: an empty one is like another.
            Theirs::EmptyDirectory => kind.is_dir(),
        };
        if is_theirs {
            found.push(path.clone());
        }
        if kind.is_dir() {
            places(&path, theirs, found);
        }
    }
}

fn kind_below(found: &fs::Metadata) -> FileKind {
    let kind = found.file_type();
    match () {
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () if kind.is_fifo() => FileKind::Fifo,
        () => FileKind::Regular,
    }
}

fn tree_below(root: &Path, path: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(root.join(path)).expect("a directory").flatten() {
        let below = path.join(entry.file_name());
        if below == Path::new(".forebay") {
            continue;
        }
        let found = fs::symlink_metadata(entry.path()).expect("there");
        tree.insert(below.clone(), format!("{:?}", kind_below(&found)));
        if found.is_dir() {
            tree_below(root, &below, tree);
        }
    }
}

fn tree_of(bench: &Bench, dir: Ino, path: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    let node = &bench.node;
    for item in node.meta.entries_plus(dir, 0, 1000).expect("entries") {
        let path = path.join(super::super::names::os(&item.entry.name));
        tree.insert(path.clone(), format!("{:?}", item.record.attr.kind));
        if item.record.is_directory() {
            node.writeback.doubt_listing(item.record.ino).expect("in doubt");
            node.writeback.doubt_directory(item.record.ino);
            // Others may have replaced it.
            drop(node.writeback.ensure_listed(&Context::DAEMON, item.record.ino));
            tree_of(bench, item.record.ino, &path, tree);
        }
    }
}

/// What is done here, and the inode that a worker takes in hand then.
type Act = fn(&Bench) -> Ino;

/// A kind of work.
struct Scene {
    what: &'static str,
    /// Names that others may take.
    names: &'static [&'static str],
    prepare: fn(&Bench),
    act: Act,
}

/// Runs one scene with each thing of others at each moment, until no more comes.
fn run(scene: &Scene) {
    let mut wrong = Vec::new();
    for name in scene.names {
        for (kind, theirs) in ALL.into_iter().enumerate() {
            for at in 0.. {
                let (told, more) = run_once(scene, name, theirs, (at, (at + kind) % 3));
                wrong.extend(told);
                if !more {
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);
}

/// One of three stores: with numbers that are not used again; that uses them again at once, as disks do;
/// that does so as well, and does not know when its objects were made.
fn bench(by: Arc<Moment>, store: usize) -> Bench {
    let scratch = Scratch::new();
    let contents = Arc::new(Contents::default());
    let inner = Arc::new(DirBacking::open(&scratch.0, "test").expect("opens"));
    let inner: Arc<dyn BackingStore> = match store {
        0 => inner,
        1 => Arc::new(RenumberedBacking::with_births(inner)),
        _ => Arc::new(RenumberedBacking::new(inner)),
    };
    let backing = Arc::new(InterceptedBacking::new(inner, by));
    let meta = MetaStore::open(Box::new(Memory::new()), &Options::default()).expect("opens");
    let node = node_on(backing, meta, &contents, |_| {});
    node.writeback.import_root().expect("the root is there");
    Bench { node, contents, root: scratch.0.clone(), _scratch: scratch }
}

fn run_once(
    scene: &Scene,
    name: &'static str,
    theirs: Theirs,
    (at, store): (usize, usize),
) -> (Option<String>, bool) {
    let moment = Arc::new(Moment::default());
    let bench = bench(moment.clone(), store);
    (scene.prepare)(&bench);
    bench.drained();
    let ino = (scene.act)(&bench);
    let root = bench.root.clone();
    moment.arm(at, move || put(&root, name, theirs));
    drop(bench.node.writeback.reconcile(ino));
    let left = bench.drain();
    if !moment.has_come() {
        return (None, false);
    }
    let before = moment.seen.lock().last().cloned().unwrap_or_default();
    let mut told = Vec::new();
    if left != Remaining::default() {
        let error = bench.node.writeback.last_backlog_error();
        told.push(format!("{left:?} {error:?} {:?}", bench.node.writeback.unwritten(5)));
    }
    let mut found = Vec::new();
    places(&bench.root, theirs, &mut found);
    // Where what was meant lives on elsewhere, nobody can tell when it went: theirs may stay where it
    // came to.
    let names = if matches!(theirs, Theirs::FileAndAside) { scene.names } else { &[name] };
    let is_in_place =
        |path: &PathBuf| names.iter().any(|name| path.starts_with(bench.root.join(name)));
    if !found.iter().any(is_in_place) {
        told.push(format!("theirs is at {found:?}; there is {:?}", bench.names("")));
    }
    bench.contents.open.lock().clear();
    for ino in bench.node.meta.orphans().expect("orphans") {
        bench.node.meta.release_orphan(ino, clock::wall_time()).expect("released");
    }
    bench.drain();
    let (mut logical, mut physical) = (BTreeMap::new(), BTreeMap::new());
    // What was busy at the first look is seen by the second.
    for _ in 0..2 {
        bench.node.writeback.doubt_listing(Ino::ROOT).expect("in doubt");
        bench.node.writeback.doubt_directory(Ino::ROOT);
        bench.node.writeback.ensure_listed(&Context::DAEMON, Ino::ROOT).expect("listed");
        logical.clear();
        tree_of(&bench, Ino::ROOT, Path::new(""), &mut logical);
        bench.drain();
    }
    tree_below(&bench.root, Path::new(""), &mut physical);
    if logical != physical {
        told.push(format!("here is {logical:?}, below {physical:?}"));
    }
    let parked = bench.node.backing.list_parked().expect("limbo");
    if !parked.is_empty() {
        told.push(format!("in limbo: {parked:?}"));
    }
    let counts = bench.node.meta.counts();
    if (counts.queued, counts.stale_names) != (0, 0) {
        told.push(format!("{counts:?}"));
    }
    let who = format!(
        "{}: {theirs:?} at {name} before operation {at} of store {store}, {before}",
        scene.what
    );
    ((!told.is_empty()).then(|| format!("{who}: {}", told.join("; "))), true)
}

fn ino_of(bench: &Bench, name: &str) -> Ino {
    bench.find(Ino::ROOT, name).expect("it is there").ino
}

fn two_files(bench: &Bench) {
    bench.write("f", b"first");
    bench.write("g", b"second");
}

#[test]
fn removal_when_others_replace_the_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "removal",
        names: &["f"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            bench.unlink("f");
            ino
        },
    });
}

#[test]
fn removal_in_use_when_others_replace_the_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "removal in use",
        names: &["f"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            let now = clock::wall_time();
            bench.node.meta.unlink(Ino::ROOT, b"f", now, true).expect("unlinked");
            drop(bench.node.writeback.reconcile(ino));
            bench.node.meta.release_orphan(ino, now).expect("released");
            ino
        },
    });
}

#[test]
fn parking_when_others_replace_the_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "parking",
        names: &["f"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            let now = clock::wall_time();
            bench.contents.open.lock().insert(ino.0);
            bench.node.meta.unlink(Ino::ROOT, b"f", now, true).expect("unlinked");
            let again = bench.write("f", b"made again");
            bench.node.meta.update(ino, None, |_| Queue::Yes).ok();
            again
        },
    });
}

#[test]
fn move_when_others_replace_a_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "move",
        names: &["f", "h"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            bench.rename("f", "h", false);
            ino
        },
    });
}

#[test]
fn move_over_a_file_when_others_replace_a_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "move over a file",
        names: &["f", "g"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            bench.rename("f", "g", false);
            ino
        },
    });
}

#[test]
fn exchange_when_others_replace_a_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "exchange",
        names: &["f", "g"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            bench.rename("f", "g", true);
            ino
        },
    });
}

#[test]
fn second_name_when_others_replace_a_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "second name",
        names: &["f", "h"],
        prepare: two_files,
        act: |bench| {
            let ino = ino_of(bench, "f");
            bench.node.meta.link(ino, Ino::ROOT, b"h", clock::wall_time()).expect("linked");
            ino
        },
    });
}

#[test]
fn new_names_when_others_take_them_at_any_moment_then_theirs_stays() {
    for kind in [FileKind::Directory, FileKind::Symlink, FileKind::Fifo, FileKind::Regular] {
        let act: Act = match kind {
            FileKind::Directory => |bench| bench.mkdir("n"),
            FileKind::Symlink => |bench| bench.make("n", FileKind::Symlink, 0o777),
            FileKind::Fifo => |bench| bench.make("n", FileKind::Fifo, 0o600),
            _ => |bench| bench.write("n", b"new"),
        };
        run(&Scene { what: "new name", names: &["n"], prepare: two_files, act });
    }
}

#[test]
fn new_version_when_others_replace_the_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "new version",
        names: &["f"],
        prepare: two_files,
        act: |bench| bench.write("f", b"another version"),
    });
}

fn a_directory(bench: &Bench) {
    bench.mkdir("d");
    bench.write("d/x", b"in it");
}

#[test]
fn removal_of_a_directory_when_others_replace_it_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "removal of a directory",
        names: &["d"],
        prepare: a_directory,
        act: |bench| {
            let ino = bench.dir("d");
            bench.unlink("d/x");
            bench.rmdir("d");
            ino
        },
    });
}

#[test]
fn move_of_a_directory_when_others_replace_a_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "move of a directory",
        names: &["d", "e"],
        prepare: a_directory,
        act: |bench| {
            let ino = bench.dir("d");
            bench.rename("d", "e", false);
            ino
        },
    });
}

#[test]
fn exchange_of_directories_when_others_replace_one_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "exchange of directories",
        names: &["d", "e"],
        prepare: |bench| {
            a_directory(bench);
            bench.mkdir("e");
            bench.write("e/y", b"in the other");
        },
        act: |bench| {
            let ino = bench.dir("d");
            bench.rename("d", "e", true);
            ino
        },
    });
}

#[test]
fn move_of_a_symbolic_link_when_others_replace_a_name_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "move of a symbolic link",
        names: &["s", "t"],
        prepare: |bench| _ = bench.make("s", FileKind::Symlink, 0o777),
        act: |bench| {
            let ino = ino_of(bench, "s");
            bench.rename("s", "t", false);
            ino
        },
    });
}

#[test]
fn removal_of_a_symbolic_link_when_others_replace_it_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "removal of a symbolic link",
        names: &["s"],
        prepare: |bench| _ = bench.make("s", FileKind::Symlink, 0o777),
        act: |bench| {
            let ino = ino_of(bench, "s");
            bench.unlink("s");
            ino
        },
    });
}

fn a_full_directory(bench: &Bench) {
    a_directory(bench);
    bench.write("d/y", b"beside it");
}

#[test]
fn work_in_a_directory_when_others_replace_that_at_any_moment_then_theirs_stays() {
    let acts: [(&str, Act); 5] = [
        ("new file in a directory", |bench| bench.write("d/new", b"new")),
        ("new version in a directory", |bench| bench.write("d/x", b"another version")),
        ("new directory in a directory", |bench| bench.mkdir("d/new")),
        ("move in a directory", |bench| {
            let ino = bench.find(bench.dir("d"), "x").expect("it is there").ino;
            bench.rename("d/x", "d/z", false);
            ino
        }),
        ("removal in a directory", |bench| {
            let ino = bench.find(bench.dir("d"), "x").expect("it is there").ino;
            bench.unlink("d/x");
            ino
        }),
    ];
    for (what, act) in acts {
        run(&Scene { what, names: &["d"], prepare: a_full_directory, act });
    }
}

#[test]
fn move_out_of_a_directory_when_others_replace_either_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "move out of a directory",
        names: &["d", "z"],
        prepare: a_full_directory,
        act: |bench| {
            let ino = bench.find(bench.dir("d"), "x").expect("it is there").ino;
            bench.rename("d/x", "z", false);
            ino
        },
    });
}

#[test]
fn names_that_go_round_when_others_replace_one_at_any_moment_then_theirs_stays() {
    run(&Scene {
        what: "names that go round",
        names: &["f", "g", "h"],
        prepare: |bench| {
            two_files(bench);
            bench.write("h", b"third");
        },
        act: |bench| {
            let ino = ino_of(bench, "f");
            bench.rename("f", "g", true);
            bench.rename("g", "h", true);
            ino
        },
    });
}
