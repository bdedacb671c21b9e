//! Files of which another program has a lease in the backing store, as file servers take them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use forebay_store::BackingStore;
use forebay_store::backing::{Access, DirBacking};

/// Linux, include/uapi/asm-generic/fcntl.h.
const F_SETSIG: libc::c_int = 10;

fn set_lease(file: &File, kind: libc::c_int) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        // SAFETY: commands of fcntl on an open descriptor, with numbers. The signal that tells of a break is
        // one that does nothing if nobody has asked for it.
        let done = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind)
        };
        if done == 0 {
            return;
        }
        // The store closes its files a moment after they were let go of.
        let error = std::io::Error::last_os_error();
        assert!(
            error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < until,
            "{error}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn file_of_which_another_program_has_a_lease_when_opened_then_once_that_is_given_up() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = DirBacking::open(dir.path(), "n").unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        std::fs::write(dir.path().join("file"), "there").unwrap();
        let leased = File::options().read(true).write(true).open(dir.path().join("file")).unwrap();
        set_lease(&leased, libc::F_WRLCK);
        let begun = Instant::now();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            set_lease(&leased, libc::F_UNLCK);
        });
        let opened = store.open_file(&store.root(), OsStr::new("file"), access).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
        assert_eq!(opened.len().unwrap(), 5);
        holder.join().unwrap();
    }
}
