//! A disk with bad sectors: ext4 on a loop device on a file that this process serves. What lies on a bad
//! sector can't be read until it is written again or the disk is well.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fusewire::{
    Attr, Entry, Handler, Mount, OpenOutFlags, Opened, Operation, Options, ROOT_NODE, Reply,
    Request, Running, Session,
};
use parking_lot::Mutex;

use crate::site::outcome;

const SIZE: u64 = 160 << 20;
const NAME: &[u8] = b"disk";
const NODE: u64 = 2;
const SECTOR: u64 = 4096;
const VALID: Duration = Duration::from_secs(3600);

/// The sectors of a disk.
struct Sectors {
    bytes: File,
    bad: Mutex<Vec<Range<u64>>>,
    /// Those that can't be written.
    refused: Mutex<Vec<Range<u64>>>,
}

impl Sectors {
    fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, i32> {
        let wanted = offset..(offset + size).min(SIZE);
        if self.bad.lock().iter().any(|bad| bad.start < wanted.end && wanted.start < bad.end) {
            return Err(libc::EIO);
        }
        let mut data = vec![0; wanted.end.saturating_sub(wanted.start) as usize];
        self.bytes.read_exact_at(&mut data, offset).map_err(|_| libc::EREMOTEIO)?;
        Ok(data)
    }

    /// A sector that is written as a whole is well again, as disks have spare ones.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), i32> {
        let written = offset..offset + data.len() as u64;
        let meets = |part: &Range<u64>| part.start < written.end && written.start < part.end;
        if self.refused.lock().iter().any(meets) {
            return Err(libc::EIO);
        }
        self.bytes.write_all_at(data, offset).map_err(|_| libc::EREMOTEIO)?;
        let end = offset + data.len() as u64;
        self.bad.lock().retain(|bad| bad.start < offset || end < bad.end);
        Ok(())
    }

    fn attr(node: u64) -> Attr {
        let (mode, size) = match node {
            ROOT_NODE => (libc::S_IFDIR | 0o700, 0),
            _ => (libc::S_IFREG | 0o600, SIZE),
        };
        Attr { ino: node, mode, size, nlink: 1, blksize: 4096, ..Attr::default() }
    }
}

struct Served(Arc<Sectors>);

impl Handler for Served {
    fn handle(&self, request: Request, reply: Reply) {
        let node = request.header().node;
        match request.operation() {
            Ok(Operation::Lookup { name: NAME }) => {
                let (attr_valid, entry_valid) = (VALID, VALID);
                let attr = Sectors::attr(NODE);
                let entry = Entry { node: NODE, attr, attr_valid, entry_valid, ..Entry::default() };
                reply.entry(&entry);
            }
            Ok(Operation::Lookup { .. }) => reply.error(libc::ENOENT),
            Ok(Operation::Getattr { .. } | Operation::Setattr { .. }) => {
                reply.attr(&Sectors::attr(node), VALID);
            }
            Ok(Operation::Open { .. }) => {
                reply.open(&Opened { flags: OpenOutFlags::DIRECT_IO, ..Opened::default() });
            }
            Ok(Operation::Read { offset, size, .. }) => {
                match self.0.read(offset, u64::from(size)) {
                    Ok(data) => reply.data(&data),
                    Err(errno) => reply.error(errno),
                }
            }
            Ok(Operation::Write { offset, data, .. }) => match self.0.write(offset, data) {
                Ok(()) => reply.written(data.len() as u32),
                Err(errno) => reply.error(errno),
            },
            Ok(Operation::Fsync { .. } | Operation::Flush { .. } | Operation::Release { .. }) => {
                reply.ok();
            }
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn forget(&self, _node: u64, _lookups: u64) {}
}

/// The disk, mounted. Dropped, it is unmounted, and its directory goes.
pub struct BadDisk {
    dir: PathBuf,
    sectors: Arc<Sectors>,
    served: Option<Running>,
    device: tempfile::TempDir,
}

impl BadDisk {
    /// Mounts it on a directory. Nothing where there are no loop devices or tools.
    pub fn mounted_on(dir: &Path) -> Option<Self> {
        let sectors = Sectors {
            bytes: tempfile::tempfile().unwrap(),
            bad: Mutex::default(),
            refused: Mutex::default(),
        };
        sectors.bytes.set_len(SIZE).unwrap();
        let sectors = Arc::new(sectors);
        let device = tempfile::tempdir().unwrap();
        let options = Options::default();
        let mount = Mount::new(device.path(), &options).unwrap();
        let handler = Arc::new(Served(sectors.clone()));
        let served = Session::new(mount, &options, handler).unwrap().spawn().unwrap();
        let disk = BadDisk { dir: dir.to_owned(), sectors, served: Some(served), device };
        let image = disk.image();
        disk.run("mkfs.ext4", &["-q", "-F", "-b", "4096", &image])?;
        disk.mount()?;
        Some(disk)
    }

    fn image(&self) -> String {
        self.device.path().join("disk").to_str().unwrap().to_owned()
    }

    /// What a program says; nothing if it fails.
    fn run(&self, program: &str, args: &[&str]) -> Option<String> {
        let mut command = Command::new("timeout");
        let (code, text) = outcome(command.arg("60").arg(program).args(args));
        if code != 0 {
            eprintln!("skipped: {program}: {text}");
        }
        (code == 0).then_some(text)
    }

    fn mount(&self) -> Option<()> {
        let (image, dir) = (self.image(), self.dir.to_str().unwrap().to_owned());
        self.run("mount", &["-o", "loop", &image, &dir]).map(drop)
    }

    /// Says whether nobody uses it any more.
    fn unmount(&self) -> bool {
        for _ in 0..100 {
            let flags = rustix::mount::UnmountFlags::empty();
            match rustix::mount::unmount(&self.dir, flags) {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(50)),
                done => return done.is_ok(),
            }
        }
        false
    }

    /// From now on the extended attributes of a file can't be read; nobody may use the disk meanwhile.
    /// Whether they lie in a block of their own.
    pub fn spoil_attributes(&self, path: &Path) -> bool {
        let below = path.strip_prefix(fs::canonicalize(&self.dir).unwrap()).unwrap();
        // Nothing of it is in memory afterwards.
        assert!(self.unmount(), "the disk is in use");
        let request = format!("stat /{}", below.display());
        let said = self.run("debugfs", &["-R", &request, &self.image()]).unwrap_or_default();
        let block = said.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let block = block.and_then(|block| block.parse::<u64>().ok()).filter(|block| *block > 0);
        let place = block.map(|block| block * SECTOR..(block + 1) * SECTOR);
        self.sectors.bad.lock().extend(place);
        self.mount().expect("it is mounted again");
        block.is_some()
    }

    /// From now on what a file has can't be read. Whether it has anything.
    pub fn spoil(&self, path: &Path) -> bool {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        let len = file.metadata().unwrap().len();
        let places = (0..len).step_by(SECTOR as usize);
        let bad: Vec<Range<u64>> = places
            .filter_map(|offset| forebay_streams::place_of(file.as_fd(), offset))
            .map(|place| place..place + SECTOR)
            .collect();
        let any = !bad.is_empty();
        self.sectors.bad.lock().extend(bad);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        any
    }

    /// Where the bytes of a file lie that has no holes and was synced.
    fn places(file: &File) -> Vec<Range<u64>> {
        let len = file.metadata().unwrap().len();
        let offsets = (0..len).step_by(SECTOR as usize);
        let places = offsets.map(|offset| {
            forebay_streams::place_of(file.as_fd(), offset).expect("it has no holes")
        });
        places.map(|place| place..place + SECTOR).collect()
    }

    /// From now on what a file has can't be written over.
    pub fn refuse_writes(&self, path: &Path) {
        self.sectors.refused.lock().extend(Self::places(&File::open(path).unwrap()));
    }

    /// The disk is away for a moment, and has nothing of a file when it is back; nobody may use it
    /// meanwhile.
    pub fn is_away_and_loses(&self, path: &Path) {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        let places = Self::places(&file);
        drop(file);
        assert!(self.unmount(), "the disk is in use");
        for place in places {
            self.sectors.write(place.start, &[0; SECTOR as usize]).unwrap();
        }
        self.mount().expect("it is mounted again");
    }

    /// What the disk has of a file, whatever the kernel has.
    pub fn has_of(&self, path: &Path) -> Vec<u8> {
        let file = File::open(path).unwrap();
        let mut bytes = Vec::new();
        for place in Self::places(&file) {
            bytes.extend(self.sectors.read(place.start, SECTOR).unwrap());
        }
        bytes.truncate(usize::try_from(file.metadata().unwrap().len()).unwrap());
        bytes
    }

    /// The disk is well: all can be read that was not written over, and all can be written.
    pub fn heal(&self) {
        self.sectors.bad.lock().clear();
        self.sectors.refused.lock().clear();
    }
}

impl Drop for BadDisk {
    fn drop(&mut self) {
        self.unmount();
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.dir);
        drop(self.served.take());
    }
}
