//! fjall against redb under the namespace's own mix of keys, on one thread.
//!
//! `cargo bench -p forebay-meta --bench engines -- [fjall|redb] [FILES] [DIRECTORY]`
//!
//! Both must survive the death of the process after each commit, not the loss of power: fjall
//! writes its log to the operating system; redb commits immediately on a file whose `sync` does
//! nothing. Memory is the process's resident set, so run one engine per process to compare it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use forebay_meta::{
    Embedded, EmbeddedOptions, Engine, EngineError, FileKind, Ino, Key, MetaStore, MiniTransaction,
    NewInode, Options, Outcome, Page, Timestamp, Write,
};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

const PER_DIRECTORY: usize = 1000;
const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("namespace");

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let engine = arguments.first().map_or("fjall", String::as_str);
    let files = arguments.get(1).map_or(300_000, |n| n.parse().expect("a number of files"));
    let place = arguments.get(2).map_or_else(std::env::temp_dir, Into::into);
    let directory = tempfile::tempdir_in(place).expect("a directory for the store");
    println!("engine {engine}, {files} files, {PER_DIRECTORY} per directory");
    let before = resident_mib();
    let dirs = fill(&open(engine, &directory.path().join("meta")), files);
    println!("resident after creates: {:.0} MiB (at start {before:.0})", resident_mib());
    look_up(&open(engine, &directory.path().join("meta")), &dirs, files);
    println!("resident after lookups: {:.0} MiB", resident_mib());
    let size: u64 = walk(&directory.path().join("meta"));
    println!("disk: {} MiB", size >> 20);
}

fn open(engine: &str, directory: &Path) -> MetaStore {
    let engine: Box<dyn Engine> = match engine {
        "fjall" => {
            let options = EmbeddedOptions::default();
            Box::new(Embedded::open(directory, &options).expect("fjall opens"))
        }
        "redb" => Box::new(Redb::open(&directory.join("redb")).expect("redb opens")),
        other => panic!("unknown engine {other}: fjall or redb"),
    };
    MetaStore::open(engine, &Options::default()).expect("the store opens")
}

fn fill(store: &MetaStore, files: usize) -> Vec<Ino> {
    let now = Timestamp::new(1_700_000_000, 1);
    let mut dirs = Vec::new();
    let mut slowest = 0;
    let start = Start::now();
    for n in 0..files {
        if n % PER_DIRECTORY == 0 {
            let name = format!("directory-{}", dirs.len());
            let new = NewInode::new(FileKind::Directory, 0o755, 1000, 1000);
            dirs.push(store.create(Ino::ROOT, name.as_bytes(), new, now).expect("mkdir").ino);
        }
        let new = NewInode::new(FileKind::Regular, 0o644, 1000, 1000);
        let begin = Instant::now();
        store.create(dirs[n / PER_DIRECTORY], name(n).as_bytes(), new, now).expect("create");
        slowest = slowest.max(begin.elapsed().as_micros());
    }
    report("create", files, start);
    println!("  slowest create: {slowest} us");
    dirs
}

fn look_up(store: &MetaStore, dirs: &[Ino], files: usize) {
    let lookups = files.min(200_000);
    let pick = |n: usize| n.wrapping_mul(2_654_435_761) % files;
    for pass in ["cold lookup + stat", "again (cache of 65536)"] {
        let start = Start::now();
        for n in (0..lookups).map(pick) {
            let found = store.lookup(dirs[n / PER_DIRECTORY], name(n).as_bytes());
            assert!(found.expect("lookup").is_some(), "file {n} is missing");
        }
        report(pass, lookups, start);
    }
    let start = Start::now();
    let mut hot = 0;
    for n in 0..lookups {
        let n = n % 1000;
        hot += usize::from(store.lookup(dirs[0], name(n).as_bytes()).expect("lookup").is_some());
    }
    report("hot lookup + stat", hot, start);
    let start = Start::now();
    let listed: usize = (dirs.iter())
        .map(|dir| store.entries_plus(*dir, 0, usize::MAX).expect("listing").len())
        .sum();
    report("readdirplus", listed, start);
    let start = Start::now();
    let listed: usize =
        dirs.iter().map(|dir| store.entries(*dir, 0, usize::MAX).expect("listing").len()).sum();
    report("readdir", listed, start);
    let now = Timestamp::new(1_700_000_001, 1);
    let removals = files / 10;
    let start = Start::now();
    for n in (0..files).step_by(10) {
        store.unlink(dirs[n / PER_DIRECTORY], name(n).as_bytes(), now, false).expect("unlink");
    }
    report("cold unlink", removals, start);
}

fn name(n: usize) -> String {
    format!("result-{n:08}.dat")
}

fn report(what: &str, count: usize, start: Start) {
    let seconds = start.wall.elapsed().as_secs_f64();
    let (rate, each) = (count as f64 / seconds, seconds * 1e6 / count as f64);
    let cpu = (cpu_seconds() - start.cpu) * 1e6 / count as f64;
    println!("{what:24} {rate:9.0}/s  {each:7.2} us, of it {cpu:7.2} us on the CPU");
}

struct Start {
    wall: Instant,
    cpu: f64,
}

impl Start {
    fn now() -> Self {
        Start { wall: Instant::now(), cpu: cpu_seconds() }
    }
}

/// Time this thread spent on a CPU: tells the work from the machine's other load.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("procfs");
    let nanoseconds = stat.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.expect("nanoseconds") / 1e9
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("KiB") / 1024.0
}

fn walk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(directory).expect("readable").filter_map(Result::ok);
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// A file for redb whose writes reach the operating system at once and are never synced.
#[derive(Debug)]
struct Unsynced(File);

impl StorageBackend for Unsynced {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

struct Redb(Database);

impl Redb {
    fn open(path: &Path) -> Result<Self, redb::Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(redb::Error::from)?;
        let database =
            Database::builder().set_cache_size(64 << 20).create_with_backend(Unsynced(file))?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        Ok(Redb(database))
    }

    fn commit(&self, t: &MiniTransaction) -> Result<Outcome, redb::Error> {
        let transaction = self.0.begin_write()?;
        let mut reads = Vec::new();
        {
            let mut table = transaction.open_table(TABLE)?;
            for compare in &t.compare {
                let found = table.get(compare.key.raw())?;
                let found = found.as_ref().map(redb::AccessGuard::value);
                if !compare.expect.holds(found) {
                    return Ok(Outcome::Conflict);
                }
            }
            for key in &t.read {
                reads.push(table.get(key.raw())?.map(|value| value.value().to_vec()));
            }
            for write in &t.write {
                match write {
                    Write::Put(key, value) => {
                        table.insert(key.raw(), value.as_slice())?;
                    }
                    Write::Delete(key) => {
                        table.remove(key.raw())?;
                    }
                }
            }
        }
        transaction.commit()?;
        Ok(Outcome::Committed(reads))
    }

    fn read(&self, t: &MiniTransaction) -> Result<Outcome, redb::Error> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let mut reads = Vec::new();
        for key in &t.read {
            reads.push(table.get(key.raw())?.map(|value| value.value().to_vec()));
        }
        Ok(Outcome::Committed(reads))
    }

    fn range(&self, from: &[u8], prefix: &[u8], limit: usize) -> Result<Page, redb::Error> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let mut page = Page::default();
        for item in table.range(from..)? {
            let (key, value) = item?;
            if !key.value().starts_with(prefix) {
                break;
            }
            if page.items.len() == limit {
                page.more = true;
                break;
            }
            page.items.push((key.value()[2..].to_vec(), value.value().to_vec()));
        }
        Ok(page)
    }
}

fn failed(error: redb::Error) -> EngineError {
    EngineError::Io(Box::new(error))
}

impl Engine for Redb {
    fn execute(&self, t: &MiniTransaction) -> Result<Outcome, EngineError> {
        let done =
            if t.write.is_empty() && t.compare.is_empty() { self.read(t) } else { self.commit(t) };
        done.map_err(failed)
    }

    fn scan(
        &self,
        partition: u16,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let start = Key::new(partition, prefix);
        let mut from = start.raw().to_vec();
        if let Some(after) = after.filter(|after| *after >= prefix) {
            from = Key::new(partition, after).raw().to_vec();
            from.push(0);
        }
        self.range(&from, start.raw(), limit).map_err(failed)
    }

    fn sweep(&self, _: Option<&Key>, _: usize) -> Result<Vec<(Key, Vec<u8>)>, EngineError> {
        unreachable!("the measurement does not sweep")
    }

    fn spans_partitions(&self) -> bool {
        true
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }
}
