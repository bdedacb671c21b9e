//! A witness of what workers do to files: none of others is lost that nobody here knew of, and none of the
//! program that it did not give up.

use std::sync::Weak;

use super::ledger::{Ledger, is_mine};
use super::*;
use crate::writeback::reconcile::is_own;

/// What others write begins with this.
pub(super) const OTHERS: &str = "others ";

/// What the store has of files whose bytes tell who wrote them, by these.
type Files = HashMap<Vec<u8>, forebay_store::Attributes>;

/// Looks at the whole store before and after each operation of a worker that may take a name away.
#[derive(Default)]
pub(super) struct Witness {
    node: Mutex<Weak<Node>>,
    root: PathBuf,
    store: Option<Arc<dyn BackingStore>>,
    ledger: Arc<Ledger>,
    /// What was there before the operation in hand, by whose it is: others go on in the middle of one.
    there: Mutex<HashMap<&'static str, Files>>,
}

impl Witness {
    /// Attends a run in a store, if there is one, which it asks without anybody's turn.
    pub(super) fn of(
        root: &Path,
        store: Option<Arc<dyn BackingStore>>,
        ledger: &Arc<Ledger>,
    ) -> Self {
        Witness { root: root.to_owned(), store, ledger: ledger.clone(), ..Witness::default() }
    }

    pub(super) fn follow(&self, node: &Arc<Node>) {
        *self.node.lock() = Arc::downgrade(node);
    }

    fn takes_names(operation: Operation) -> bool {
        use Operation::{Commit, Limbo, Remove, Rename};
        (ROLE.get().starts_with("worker") || ROLE.get() == "drain")
            && [Commit, Limbo, Remove, Rename].contains(&operation)
    }

    pub(super) fn before(&self, operation: Operation) {
        if Self::takes_names(operation) {
            let there = self.files_of_all();
            self.there.lock().insert(ROLE.get(), there);
        }
    }

    /// Each file of others that is gone now was known here as it was: so a program has seen it, or could.
    pub(super) fn after(&self, operation: Operation) {
        if !Self::takes_names(operation) {
            return;
        }
        let mut all = self.there.lock();
        let before = all.remove(ROLE.get()).unwrap_or_default();
        if before.is_empty() {
            return;
        }
        let now = self.files_of_all();
        let Some(node) = self.node.lock().upgrade() else { return };
        for (bytes, found) in before.iter().filter(|(bytes, _)| !now.contains_key(*bytes)) {
            // Each loss is one worker's, or that of others.
            for there in all.values_mut() {
                there.remove(bytes);
            }
            if self.ledger.is_excused(bytes) {
                continue;
            }
            if is_mine(bytes) {
                self.ledger.taken_away(&node, bytes, found);
                continue;
            }
            let queued = node.meta.backlog(forebay_meta::Seq(0), 1000).expect("the backlog");
            let mut records = queued.iter().filter_map(|(_, ino)| node.meta.get(*ino).ok());
            let known = records.any(|record| is_own(&record, found));
            let bytes = String::from_utf8_lossy(bytes);
            assert!(known, "{bytes:?} of others is lost unseen: {found:?}");
        }
    }

    fn files_of_all(&self) -> Files {
        let mut files = HashMap::new();
        if let Some(store) = &self.store {
            add_files(store, &store.root(), &self.root, &mut files);
        }
        files
    }
}

fn add_files(
    store: &Arc<dyn BackingStore>,
    dir: &forebay_store::Dir,
    path: &Path,
    files: &mut Files,
) {
    for entry in fs::read_dir(path).expect("a directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            let below = store.open_dir(dir, &name).expect("it is there");
            add_files(store, &below, &path, files);
        } else if let Ok(bytes) = fs::read(&path)
            && (bytes.starts_with(OTHERS.as_bytes()) || is_mine(&bytes) && !is_temporary(&path))
        {
            files.insert(bytes, store.stat(dir, &name).expect("it is there"));
        }
    }
}

/// What has no name yet is written anew if it gets none.
fn is_temporary(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with(".forebay/tmp"))
}
