//! A ledger of what a program was told is written, and of what others did: nothing that was written here
//! goes but by the program's own doing or by that of others, and where these did nothing all is as it
//! would be without them.

use std::collections::HashSet;

use super::*;
use crate::error::NodeError;
use crate::writeback::reconcile::is_own;

/// What the program writes begins with this.
const MINE: &str = "mine ";

/// Slashes in the longest of paths.
const MAX_DEPTH: usize = 4;

/// Inode number and mode, and contents, by path.
type Names = BTreeMap<PathBuf, ((u64, u32), Vec<u8>)>;

/// What is known of a run of several lives.
#[derive(Default)]
pub(super) struct Ledger(Mutex<Book>);

#[derive(Default)]
struct Book {
    serial: u64,
    /// The path that was written last.
    latest: Option<String>,
    written: BTreeMap<u64, Written>,
    /// Inodes of which the program took a name away, or was about to.
    doomed: HashSet<u64>,
    /// What need not be there any more.
    excused: HashSet<Vec<u8>>,
    /// Paths at which others did something.
    touched: Vec<String>,
    /// What they made, changed, moved or removed, counted by name.
    deeds: u64,
    /// The program's own moves.
    moves: Vec<(String, String)>,
    /// A crash has taken bytes, and older versions show in their place.
    was_cut: bool,
}

/// The last of what the program wrote into one file.
#[derive(Default)]
struct Written {
    told: Vec<u8>,
    /// What it was about to write when its daemon was killed, or refused.
    begun: Vec<u8>,
}

fn is_at_or_below(path: &str, dir: &str) -> bool {
    dir.is_empty()
        || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Book {
    /// The name in hand, and those that what is at it or below it had before.
    fn was_called(&self, path: &str) -> HashSet<String> {
        let mut names = HashSet::from([path.to_owned()]);
        let mut last = 0;
        while names.len() > last {
            last = names.len();
            let mut more = Vec::new();
            for (from, to) in &self.moves {
                for name in &names {
                    if is_at_or_below(name, to) {
                        more.push(format!("{from}{}", &name[to.len()..]));
                    } else if is_at_or_below(to, name) {
                        more.push(from.clone());
                    }
                }
            }
            // Moves back and forth make ever longer ones.
            names.extend(more.into_iter().filter(|name| name.matches('/').count() <= MAX_DEPTH));
        }
        names
    }

    fn may_be_of_others(&self, path: &str) -> bool {
        let names = self.was_called(path);
        let is_near = |at: &String| {
            names.iter().any(|name| is_at_or_below(name, at) || is_at_or_below(at, name))
        };
        // Where it stood before, nobody says.
        let was_parked = path.starts_with(".forebay/limbo/") && !self.touched.is_empty();
        self.was_cut || was_parked || self.touched.iter().any(is_near)
    }
}

impl Ledger {
    /// What the program is to write into a file now.
    pub(super) fn begin_write(&self, ino: Ino, path: &str, salt: usize) -> Vec<u8> {
        let mut book = self.0.lock();
        book.serial += 1;
        let bytes = format!("{MINE}{} {path} {salt}", book.serial).into_bytes();
        book.written.entry(ino.0).or_default().begun.clone_from(&bytes);
        book.latest = Some(path.to_owned());
        bytes
    }

    /// Where others get in the way of the program.
    pub(super) fn latest_path(&self) -> Option<String> {
        self.0.lock().latest.clone()
    }

    /// It is written.
    pub(super) fn wrote(&self, ino: Ino) {
        if let Some(written) = self.0.lock().written.get_mut(&ino.0) {
            written.told = std::mem::take(&mut written.begun);
        }
    }

    /// What has a name that the program takes away now.
    pub(super) fn begin_removal(&self, node: &Node, dir: Ino, name: &[u8], known: Option<Ino>) {
        let found = node.meta.lookup(dir, name).ok().flatten().map(|record| record.ino);
        // What has gone already did not go by this.
        let inos = found.into_iter().chain(known).map(|ino| ino.0);
        self.0.lock().doomed.extend(inos.filter(|ino| has_names(node, *ino)));
    }

    /// It is done, or failed: what has a name still has to be there. What the program has removed is owed to nobody,
    /// also if others link what the store still has of it, and the same inode shows that older version.
    pub(super) fn end_removal(&self, node: &Node) {
        let mut book = self.0.lock();
        book.doomed.retain(|ino| !has_names(node, *ino));
        let Book { doomed, written, .. } = &mut *book;
        doomed.iter().for_each(|ino| drop(written.remove(ino)));
    }

    pub(super) fn moved(&self, from: &str, to: &str) {
        self.0.lock().moves.push((from.to_owned(), to.to_owned()));
    }

    /// A crash has taken the bytes of a file.
    pub(super) fn cut(&self, ino: u64) {
        let mut book = self.0.lock();
        book.was_cut = true;
        book.written.remove(&ino);
    }

    /// Others do something at these paths of the store.
    pub(super) fn others_do(&self, root: &Path, paths: &[&Path], deed: impl FnOnce()) {
        let before = (files_of(root), names_in(root));
        deed();
        let after = (files_of(root), names_in(root));
        let mut book = self.0.lock();
        book.excused.extend(before.0.difference(&after.0).cloned());
        let changed = |one: &Names, other: &Names| {
            one.iter().filter(|(path, what)| other.get(*path) != Some(*what)).count()
        };
        let changed = changed(&before.1, &after.1).max(changed(&after.1, &before.1));
        if changed > 0 {
            book.deeds += changed as u64;
            let below = |path: &&Path| path.strip_prefix(root).expect("below").to_owned();
            let paths = paths.iter().map(|path| below(path).to_string_lossy().into_owned());
            book.touched.extend(paths);
        }
    }

    /// Whether it may be of others what the program finds at one of some paths.
    pub(super) fn may_be_of_others(&self, paths: &[&str]) -> bool {
        let book = self.0.lock();
        paths.iter().any(|path| book.may_be_of_others(path))
    }

    /// Whether others have removed it, or it may go for another reason.
    pub(super) fn is_excused(&self, bytes: &[u8]) -> bool {
        self.0.lock().excused.contains(bytes)
    }

    /// Workers have taken the last of something away that the program wrote: it had been written anew or
    /// removed here, or others have put it in place of what was.
    pub(super) fn taken_away(&self, node: &Node, bytes: &[u8], found: &forebay_store::Attributes) {
        let mut book = self.0.lock();
        if !book.written.values().any(|written| written.told == bytes) {
            return;
        }
        let queued = node.meta.backlog(forebay_meta::Seq(0), 1000).expect("the backlog");
        let records = queued.iter().filter_map(|(_, ino)| node.meta.get(*ino).ok());
        let mut owners = records.filter(|record| is_own(record, found));
        let is_free = owners.any(|record| {
            let written = book.written.get(&record.ino.0);
            let keeps = |written: &Written| written.told == bytes && written.begun.is_empty();
            record.links.is_empty()
                || book.doomed.contains(&record.ino.0)
                || !written.is_some_and(keeps)
        });
        let what = String::from_utf8_lossy(bytes);
        assert!(is_free, "{what:?} is taken away: {found:?}");
        book.excused.insert(bytes.to_vec());
    }

    /// Each conflict of a life is near something that others did. Those in which nothing of the program is
    /// kept are not more than that, unless what a worker has begun is begun again. (The program can give
    /// a name again and again before what others made there shows, and has each of its files kept.)
    pub(super) fn look_at_conflicts(&self, node: &Node, scene: &Scene) {
        let book = self.0.lock();
        let (_, conflicts) = node.writeback.conflicts();
        for conflict in &conflicts {
            let path = String::from_utf8_lossy(&conflict.path).into_owned();
            assert!(book.may_be_of_others(&path), "nobody else was there: {conflict:?}");
        }
        let may_repeat = book.was_cut || scene.faults > 0 || scene.kills > 0;
        let nothing_kept = conflicts.iter().filter(|conflict| conflict.ours.is_none());
        // What others put into a removed tree keeps all directories above it.
        let (trees, others): (Vec<_>, Vec<_>) =
            nothing_kept.partition(|conflict| conflict.why.starts_with("directory removed"));
        let count = others.len() + usize::from(!trees.is_empty());
        let deeds = usize::try_from(book.deeds).unwrap();
        assert!(may_repeat || count <= deeds, "{count} conflicts of {deeds} changes");
    }

    /// All that was written and not taken away is in the store, under whatever name; and what a file shows
    /// here is what its name has there.
    pub(super) fn check(&self, node: &Node, root: &Path, contents: &Contents) {
        let book = self.0.lock();
        let below = names_in(root);
        let there: HashSet<&[u8]> = below.values().map(|(_, bytes)| &bytes[..]).collect();
        for (ino, written) in &book.written {
            let mut either =
                [&written.told, &written.begun].into_iter().filter(|it| !it.is_empty());
            let is_there = either.any(|it| there.contains(&it[..]));
            let is_removed = book.doomed.contains(ino) && !has_names(node, *ino);
            if written.told.is_empty() || is_there || is_removed {
                continue;
            }
            let what = String::from_utf8_lossy(&written.told);
            assert!(book.excused.contains(&written.told), "{what:?} of inode {ino} is lost");
        }
        let mut made = Made::new();
        made_below(node, Ino::ROOT, "", &mut made);
        for (path, (kind, ino)) in made {
            let bytes = contents.bytes.lock().get(&ino.0).cloned();
            let is_stale = contents.stale.lock().contains(&ino.0);
            if let Some(bytes) = bytes.filter(|_| kind == FileKind::Regular && !is_stale) {
                let found = below.get(Path::new(&path)).map(|(_, bytes)| bytes);
                let found = found.map(|bytes| String::from_utf8_lossy(bytes));
                let bytes = String::from_utf8_lossy(&bytes);
                assert_eq!(found.as_ref(), Some(&bytes), "{path} ({ino})");
            }
        }
    }
}

/// Whether a native directory can give this while others change it.
pub(super) fn is_of_names(error: &NodeError) -> bool {
    use forebay_meta::Error as Meta;
    match error {
        NodeError::Meta(error) => matches!(
            error,
            Meta::NotFound
                | Meta::Exists
                | Meta::Stale(_)
                | Meta::NotDirectory
                | Meta::NotEmpty
                | Meta::IsDirectory
        ),
        NodeError::Posix(errno) => {
            use rustix::io::Errno;
            [Errno::NOENT, Errno::STALE, Errno::NOTDIR, Errno::EXIST, Errno::NOTEMPTY, Errno::ISDIR]
                .contains(errno)
        }
        NodeError::Store(error) => error.class() == forebay_store::ErrorClass::NotFound,
        _ => false,
    }
}

fn has_names(node: &Node, ino: u64) -> bool {
    node.meta.get(Ino(ino)).is_ok_and(|record| !record.links.is_empty())
}

/// Whether a program wrote this.
pub(super) fn is_mine(bytes: &[u8]) -> bool {
    bytes.starts_with(MINE.as_bytes())
}

/// What the store has of files, under whatever name.
fn files_of(root: &Path) -> HashSet<Vec<u8>> {
    let mut found = BTreeMap::new();
    add_names(root, root, &mut found);
    add_names(&root.join(".forebay"), root, &mut found);
    found.into_values().map(|(_, bytes)| bytes).filter(|bytes| !bytes.is_empty()).collect()
}

/// All that has a name in the store.
fn names_in(root: &Path) -> Names {
    let mut found = BTreeMap::new();
    add_names(root, root, &mut found);
    found
}

fn add_names(dir: &Path, root: &Path, found: &mut Names) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(what) = entry.metadata() else { continue };
        if entry.file_name() == ".forebay" {
            continue;
        }
        let bytes = if what.is_dir() { Vec::new() } else { fs::read(&path).unwrap_or_default() };
        let below = path.strip_prefix(root).expect("it is below").to_owned();
        found.insert(below, ((what.ino(), what.mode()), bytes));
        if what.is_dir() {
            add_names(&path, root, found);
        }
    }
}
