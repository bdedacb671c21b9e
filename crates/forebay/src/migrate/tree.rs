//! What the kernel says of a process tree: its processes, what they have open, whom they talk to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Processes that a tree may have.
const MAX_PROCESSES: usize = 10_000;

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number on this machine.
    pub pid: i32,
    /// Its number in the task.
    pub inner: i32,
    /// Its name.
    pub name: String,
    /// Whether a signal has stopped it.
    pub stopped: bool,
}

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plain file, or a directory.
    File {
        /// Whether it may be written to.
        writable: bool,
    },
    /// A terminal.
    Terminal,
    /// A graphics processor, or another device with a state of its own.
    Accelerator,
    /// A socket, by its inode.
    Socket(u64),
    /// A pipe, an event, a device without a state.
    Other,
}

/// Something that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// What the kernel has of it below `/proc/PID`: a descriptor, or a mapping.
    pub by: String,
    /// Its path, or what the kernel calls it.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
}

impl Opened {
    /// Opens the file once more. One that was removed has no name, and what is opened through the
    /// process is it. But where another node has written the file, the kernel knows it by another number
    /// now, and the daemon answers `ESTALE` for the old one, on which the kernel looks a name up once
    /// more, and this is none: then it is opened by the name that it had, if that is still its own.
    fn open_again(&self) -> io::Result<File> {
        let refused = match File::open(format!("/proc/{}/{}", self.pid, self.by)) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => error,
            opened => return opened,
        };
        // Without asking the file system.
        let info = format!("/proc/{}/{}", self.pid, self.by.replace("fd/", "fdinfo/"));
        let (inode, mount) = (field_of(&info, "ino:"), field_of(&info, "mnt_id:"));
        let named = |name: &[u8]| {
            let name = Path::new(OsStr::from_bytes(name));
            let name = name.strip_prefix("/").unwrap_or(name);
            // What others have put there may be a pipe, a device, or a link to somewhere else.
            let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
            let path = Path::new(&format!("/proc/{}/root", self.pid)).join(name);
            let plain = |found: &fs::Metadata| found.is_file() || found.is_dir();
            // Before it is opened: to open a device may do something.
            fs::symlink_metadata(&path).ok().filter(plain)?;
            let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
            let found = file.metadata().ok().filter(plain)?;
            let own = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
            let same = inode == Some(found.ino()) && mount == field_of(&own, "mnt_id:");
            same.then_some(file)
        };
        let path = self.path.as_os_str().as_bytes();
        // So says the kernel of the old one, too.
        let without = path.strip_suffix(b" (deleted)");
        named(path).or_else(|| named(without?)).ok_or(refused)
    }
}

/// A number that the kernel says of a descriptor.
fn field_of(info: &str, name: &str) -> Option<u64> {
    field_in(&fs::read_to_string(info).ok()?, name)
}

fn field_in(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// A TCP connection of the tree: both ends as the kernel writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The end of the tree.
    pub local: String,
    /// The other end.
    pub remote: String,
}

/// A process tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Its processes, the first one in front.
    pub processes: Vec<Process>,
    /// What they have open.
    pub opened: Vec<Opened>,
    /// Connections whose other end is not in the tree.
    pub outside: Vec<Connection>,
}

impl Tree {
    /// Looks at the tree below this process.
    pub fn of(init: i32) -> io::Result<Self> {
        let mut tree = Self::default();
        let parents = parents();
        let mut next = vec![init];
        while let Some(pid) = next.pop() {
            next.extend(parents.iter().filter(|(_, of)| **of == pid).map(|(child, _)| *child));
            let Some(process) = process(pid) else {
                if pid == init {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the task has ended"));
                }
                continue;
            };
            if tree.processes.len() == MAX_PROCESSES {
                return Err(io::Error::other(format!("more than {MAX_PROCESSES} processes")));
            }
            tree.opened.extend(opened(&process));
            tree.opened.extend(mapped(&process));
            tree.processes.push(process);
        }
        tree.outside = outside(init, &tree.opened);
        Ok(tree)
    }

    /// Memory of its own: about what its image will have. The kernel looks at each page for it.
    pub fn bytes(&self) -> u64 {
        self.processes.iter().map(|process| bytes_of(process.pid)).sum()
    }

    /// Those that a signal had stopped, by their numbers in the task.
    pub fn stopped(&self) -> BTreeSet<i32> {
        let stopped = self.processes.iter().filter(|process| process.stopped);
        stopped.map(|process| process.inner).collect()
    }

    /// Brings what was written to files below this directory to where other nodes see it.
    pub fn sync(&self, below: &Path) -> io::Result<usize> {
        let mut files = 0;
        self.each_file(below, true, &mut |file, _| {
            files += 1;
            file.sync_all()
        })?;
        Ok(files)
    }

    /// A file below this directory on which a lock is held, by the tree or by others: on a mount the
    /// kernel does not know by whom, and CRIU sees no locks there at all.
    pub fn locked(&self, below: &Path) -> io::Result<Option<PathBuf>> {
        let mut locked = None;
        self.each_file(below, false, &mut |file, path| {
            if is_locked(file)? {
                locked = Some(path.to_owned());
            }
            Ok(())
        })?;
        Ok(locked)
    }

    /// Opens each file of the tree below a directory once.
    fn each_file(
        &self,
        below: &Path,
        only_written: bool,
        act: &mut dyn FnMut(&File, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = BTreeSet::new();
        for one in &self.opened {
            let Kind::File { writable } = one.kind else { continue };
            if only_written && !writable || !one.path.starts_with(below) {
                continue;
            }
            let file = match one.open_again() {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let found = file.metadata()?;
            // While the task runs, the number may be another file's, or a pipe's, by now.
            if found.is_file() && done.insert((found.dev(), found.ino())) {
                act(&file, &one.path)?;
            }
        }
        Ok(())
    }
}

/// Names that CRIU gives to open files whose own it does not find, while a task is being moved. The
/// kernel forgets names of open files on a mount when another node changes their directory.
#[derive(Debug)]
pub struct Remaps {
    dirs: BTreeSet<PathBuf>,
    before: BTreeSet<PathBuf>,
}

impl Remaps {
    /// What there is of them before.
    pub fn of(tree: &Tree) -> Self {
        let Some(init) = tree.processes.first() else {
            return Self { dirs: BTreeSet::new(), before: BTreeSet::new() };
        };
        let nameless = tree.opened.iter().filter(|one| {
            matches!(one.kind, Kind::File { .. })
                && one.path.to_string_lossy().ends_with(" (deleted)")
        });
        // As the task sees its mounts.
        let root = PathBuf::from(format!("/proc/{}/root", init.pid));
        let dirs: BTreeSet<PathBuf> = nameless
            .filter_map(|one| Some(root.join(one.path.parent()?.strip_prefix("/").ok()?)))
            .collect();
        let before = remaps_in(&dirs);
        Self { dirs, before }
    }

    /// Takes away what was added and nobody needs.
    pub fn remove_new(&self) {
        for path in remaps_in(&self.dirs).difference(&self.before) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether anybody has a lock of either kind on a file that was opened for this question.
fn is_locked(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock)?,
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    // SAFETY: zeros are a valid flock: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, and the pointer valid for the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) } {
        0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

fn remaps_in(dirs: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let is_remap = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("link_remap.");
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    entries.map(|entry| entry.path()).filter(is_remap).collect()
}

fn parents() -> BTreeMap<i32, i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
    };
    pids.filter_map(parent).collect()
}

/// The parent of a process.
pub fn parent_of(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Processes whose parent this is, also those that have ended and were not waited for.
pub fn children_of(pid: i32) -> Vec<i32> {
    parents().into_iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child).collect()
}

fn process(pid: i32) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status_of(pid, &status)
}

pub(super) fn bytes_of(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let field = |name: &str| rollup.lines().find_map(|line| kib(line.strip_prefix(name)?));
    let own = field("Private_Dirty:").unwrap_or(0) + field("Shared_Dirty:").unwrap_or(0);
    own + field("Swap:").unwrap_or(0)
}

fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A process by what `/proc/PID/status` says; none if it has ended.
fn status_of(pid: i32, text: &str) -> Option<Process> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let state = field("State:")?.trim_start().chars().next()?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let inner = field("NSpid:")?.split_whitespace().next_back()?.parse().ok()?;
    let name = field("Name:")?.trim().to_owned();
    Some(Process { pid, inner, name, stopped: matches!(state, 'T') })
}

fn opened(process: &Process) -> Vec<Opened> {
    let pid = process.pid;
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all = Vec::new();
    for entry in entries {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some((path, kind)) = looked_at(&entry.path(), pid, fd) else { continue };
        let (name, by) = (process.name.clone(), format!("fd/{fd}"));
        all.push(Opened { pid, name, by, path, kind });
    }
    all
}

/// What a descriptor is. The process runs, and may give the number to something else between two looks:
/// so all is asked of what the number stood for at one moment.
fn looked_at(entry: &Path, pid: i32, fd: i32) -> Option<(PathBuf, Kind)> {
    const LOOKS: usize = 16;
    let theirs = format!("/proc/{pid}/fdinfo/{fd}");
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    for _ in 0..LOOKS {
        let held = rustix::fs::open(entry, flags, rustix::fs::Mode::empty()).ok()?;
        let number = held.as_raw_fd();
        let own = format!("/proc/self/fdinfo/{number}");
        let link = PathBuf::from(format!("/proc/self/fd/{number}"));
        let path = fs::read_link(&link).ok()?;
        // How it was opened is the one thing that what is held does not say.
        let info = fs::read_to_string(&theirs).unwrap_or_default();
        let is_it = |name| field_in(&info, name) == field_of(&own, name);
        if is_it("ino:") && is_it("mnt_id:") {
            let kind = kind(&link, &path, &info);
            return Some((path, kind));
        }
    }
    // Nobody can say what it is going to be when the task is stopped.
    None
}

/// Files that it has mapped so that what it writes to memory reaches them: their descriptors may be
/// closed.
fn mapped(process: &Process) -> Vec<Opened> {
    let maps = fs::read(format!("/proc/{}/maps", process.pid)).unwrap_or_default();
    let file = |(range, path): (&str, &[u8])| Opened {
        pid: process.pid,
        name: process.name.clone(),
        by: format!("map_files/{range}"),
        path: OsStr::from_bytes(path).into(),
        kind: Kind::File { writable: true },
    };
    shared_and_writable(&maps).into_iter().map(file).collect()
}

/// Mappings by what `/proc/PID/maps` says, but for those of memory that has no file, or none any more.
fn shared_and_writable(maps: &[u8]) -> Vec<(&str, &[u8])> {
    maps.split(|byte| *byte == b'\n').filter_map(shared_mapping).collect()
}

/// Its range and its path.
fn shared_mapping(line: &[u8]) -> Option<(&str, &[u8])> {
    // Range, rights, offset, device, inode; then the path after some spaces.
    let (head, path) = line.split_at(line.iter().position(|byte| *byte == b'/')?);
    let mut fields = std::str::from_utf8(head).ok()?.split_whitespace();
    let (range, rights) = (fields.next()?, fields.next()?);
    let of_memory = [&b"/memfd:"[..], b"/SYSV", b"/dev/zero", b"/dev/shm"];
    let gone = path.ends_with(b" (deleted)") && of_memory.iter().any(|of| path.starts_with(of));
    (rights.starts_with("rw") && rights.ends_with('s') && !gone).then_some((range, path))
}

fn kind(entry: &Path, path: &Path, info: &str) -> Kind {
    let text = path.to_string_lossy();
    if let Some(inode) = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
        return inode.parse().map_or(Kind::Other, Kind::Socket);
    }
    if let Some(kind) = device(&text) {
        return kind;
    }
    match fs::metadata(entry) {
        Ok(found) if found.is_file() || found.is_dir() => {
            Kind::File { writable: is_writable(info) }
        }
        Ok(found) if found.file_type().is_char_device() && is_terminal(found.rdev()) => {
            Kind::Terminal
        }
        _ => Kind::Other,
    }
}

/// A device by its name.
fn device(path: &str) -> Option<Kind> {
    const ACCELERATORS: [&str; 6] =
        ["/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/infiniband/", "/dev/accel", "/dev/xe"];
    if ACCELERATORS.iter().any(|start| path.starts_with(start)) {
        return Some(Kind::Accelerator);
    }
    let terminal = path.starts_with("/dev/pts/") || path.starts_with("/dev/tty");
    terminal.then_some(Kind::Terminal)
}

/// Terminals by their numbers, as in Documentation/admin-guide/devices.txt of Linux.
fn is_terminal(device: u64) -> bool {
    matches!(libc::major(device), 4 | 5 | 136..=143)
}

fn is_writable(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|text| i32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0);
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

fn outside(init: i32, opened: &[Opened]) -> Vec<Connection> {
    let own: BTreeSet<u64> = opened
        .iter()
        .filter_map(|one| match one.kind {
            Kind::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|name| fs::read_to_string(format!("/proc/{init}/net/{name}")).unwrap_or_default());
    connections_outside(&tables.concat(), &own)
}

/// Connections of these sockets to others, by what `/proc/net/tcp` says.
fn connections_outside(table: &str, own: &BTreeSet<u64>) -> Vec<Connection> {
    const LISTENS: &str = "0A";
    const CLOSED: &str = "07";
    let mut found = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = fields.get(9).and_then(|text| text.parse().ok());
        let (Some(inode), Some(state)) = (inode, fields.get(3)) else { continue };
        if own.contains(&inode) && ![LISTENS, CLOSED].contains(state) {
            found.push(Connection { local: fields[1].into(), remote: fields[2].into() });
        }
    }
    let ends: BTreeSet<String> = found.iter().map(|one| one.local.clone()).collect();
    found.retain(|one| !ends.contains(&one.remote));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_when_shared_and_written_then_files_of_the_task_and_others_not() {
        let maps = b"7f00-7f01 rw-s 00000000 08:01 17    /m/a b\n\
            7f02-7f03 rw-p 00000000 08:01 18    /m/private\n\
            7f04-7f05 r--s 00000000 08:01 19    /m/read\n\
            7f06-7f07 rw-s 00000000 00:01 20    /dev/shm/x\n\
            7f08-7f09 rw-s 00000000 00:01 21    /dev/shm/y (deleted)\n\
            7f0a-7f0b rw-s 00000000 00:01 22    /SYSV00000000 (deleted)\n\
            7f0c-7f0d rw-p 00000000 00:00 0     [heap]\n";
        let found = shared_and_writable(maps);
        assert_eq!(found, [("7f00-7f01", &b"/m/a b"[..]), ("7f06-7f07", b"/dev/shm/x")]);
    }

    /// A shell opens pipes for its commands and files for what they print, by the same numbers.
    #[test]
    fn descriptor_when_its_number_changes_hands_meanwhile_then_no_pipe_is_a_file() {
        let file = tempfile::tempfile().unwrap();
        let (_end, pipe) = std::io::pipe().unwrap();
        let mut changing = rustix::io::dup(&file).unwrap();
        let fd = changing.as_raw_fd();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let entry = PathBuf::from(format!("/proc/{own}/fd/{fd}"));
        let stop = std::sync::atomic::AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    rustix::io::dup2(&pipe, &mut changing).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(20));
                    rustix::io::dup2(&file, &mut changing).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            let seen: Vec<_> = (0..5000).filter_map(|_| looked_at(&entry, own, fd)).collect();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            seen
        });
        let is_pipe = |path: &Path| path.to_string_lossy().starts_with("pipe:");
        assert!(
            seen.iter().any(|(path, _)| is_pipe(path)) && seen.iter().any(|it| !is_pipe(&it.0))
        );
        let mixed = seen.iter().find(|(path, kind)| is_pipe(path) != (*kind == Kind::Other));
        assert_eq!(mixed, None);
    }

    #[test]
    fn mapping_when_its_file_is_closed_then_seen_and_synced() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: to open what another process has mapped takes root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mapped");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        let rights = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let shared = rustix::mm::MapFlags::SHARED;
        // SAFETY: a new mapping, which nothing else uses.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, rights, shared, &file, 0) };
        let at = at.unwrap();
        drop(file);
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let tree = Tree::of(own).unwrap();
        let found = tree.opened.iter().find(|one| one.path == path).expect("the mapping");
        assert!(found.by.starts_with("map_files/") && found.kind == Kind::File { writable: true });
        assert_eq!(tree.sync(dir.path()).unwrap(), 1);
        // SAFETY: what was mapped above.
        unsafe { rustix::mm::munmap(at, 4096) }.unwrap();
    }

    #[test]
    fn process_when_read_from_its_status_then_number_in_the_task_and_state() {
        let text = "Name:\ta b\nState:\tT (stopped)\nNSpid:\t4711\t7\n";
        let found = status_of(4711, text).unwrap();
        assert_eq!((found.inner, found.stopped, found.name.as_str()), (7, true, "a b"));
        assert_eq!(status_of(1, "Name:\ta\nState:\tZ (zombie)\nNSpid:\t1\n"), None);
    }

    #[test]
    fn connections_when_both_ends_are_in_the_tree_then_they_are_not_outside() {
        let line = |local: &str, remote: &str, state: &str, inode: u64| {
            format!(
                "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
            )
        };
        let table = [
            line("0100007F:1F90", "0100007F:9C40", "01", 11),
            line("0100007F:9C40", "0100007F:1F90", "01", 12),
            line("0100007F:1F90", "00000000:0000", "0A", 13),
            line("0200000A:1F91", "0300000A:0016", "01", 14),
            line("0200000A:1F92", "0300000A:0016", "01", 99),
        ]
        .concat();
        let own = BTreeSet::from([11, 12, 13, 14]);
        let found = connections_outside(&table, &own);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].remote, "0300000A:0016");
        let half = connections_outside(&table, &BTreeSet::from([11]));
        assert_eq!(half.len(), 1, "the other end is somebody else's");
    }

    #[test]
    fn descriptors_when_of_devices_and_flags_then_told_apart() {
        assert_eq!(device("/dev/nvidia0"), Some(Kind::Accelerator));
        assert_eq!(device("/dev/pts/3"), Some(Kind::Terminal));
        assert_eq!(device("/dev/null"), None);
        assert!(is_writable("pos:\t0\nflags:\t0102001\n"));
        assert!(!is_writable("pos:\t0\nflags:\t0100000\n"));
        assert!(is_terminal(libc::makedev(136, 2)) && !is_terminal(libc::makedev(1, 3)));
    }

    #[test]
    fn file_when_locked_in_either_way_then_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let holder = File::create(&path).unwrap();
        let asks = || is_locked(&File::open(&path).unwrap()).unwrap();
        assert!(!asks());
        rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockShared).unwrap();
        assert!(asks());
        rustix::fs::flock(&holder, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(!asks(), "the question leaves no lock");
    }

    #[test]
    fn remaps_when_new_then_removed_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let made = |name: &str| drop(File::create(file(name)).unwrap());
        made("link_remap.1");
        made("link_remap.x");
        let dirs = BTreeSet::from([dir.path().to_owned()]);
        let remaps = Remaps { before: remaps_in(&dirs), dirs };
        made("link_remap.2");
        made("other");
        remaps.remove_new();
        let left = ["link_remap.1", "link_remap.2", "link_remap.x", "other"];
        assert_eq!(left.map(|name| file(name).exists()), [true, false, true, true]);
    }

    #[test]
    fn tree_when_of_this_process_then_its_files_are_seen() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("open")).unwrap();
        let tree = Tree::of(own).unwrap();
        let found = tree.opened.iter().find(|one| one.path.ends_with("open")).unwrap();
        assert_eq!(found.kind, Kind::File { writable: true });
        assert_eq!(tree.processes[0].pid, own);
        assert!(tree.bytes() > 0 && tree.sync(dir.path()).unwrap() == 1);
        drop(file);
    }
}
