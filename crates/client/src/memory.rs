//! Memory that processes have in common: a file without a name, whose size is sealed.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};

/// What can't be done with it any more. Nobody can cut it off under a reader, and nobody can take the
/// right to write from members that come later.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes memory of so many bytes, all zeros, that takes room once it is written.
pub fn make(bytes: u64) -> io::Result<OwnedFd> {
    // To go beyond the limit of files is a signal that ends the process.
    let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if most.is_some_and(|most| most < bytes) {
        return Err(rustix::io::Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let name = "forebay-group";
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // An older kernel.
        Err(rustix::io::Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Memory that is mapped here.
#[derive(Debug)]
pub struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: plain memory; who touches which of it when is the business of those who have it.
unsafe impl Send for Memory {}
// SAFETY: as above; a reference gives out addresses only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps what another process has made, if its size is as said and sealed.
    pub fn map(file: &OwnedFd, bytes: u64) -> io::Result<Self> {
        let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(wrong("memory whose size is not sealed"));
        }
        if rustix::fs::fstat(file)?.st_size as u64 != bytes {
            return Err(wrong("memory of another size"));
        }
        let len =
            usize::try_from(bytes).map_err(|_| wrong("more memory than there are addresses"))?;
        let all = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, wherever the system likes.
        let at = unsafe { rustix::mm::mmap(null, len, all, MapFlags::SHARED, file, 0)? };
        // Each member's core would have all of it. Where that can't be said it is no error.
        // SAFETY: what was mapped right now; nothing is done to its bytes.
        let _ = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxDontDump) };
        Ok(Self { at: at.cast(), len })
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where so many bytes are, if they are within it. They stay as long as the memory does.
    #[must_use]
    pub fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.len as u64).then(|| self.at.wrapping_add(offset as usize))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and whoever has addresses in it has the memory as well.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_when_mapped_twice_then_the_same_bytes_and_nothing_beyond() {
        let file = make(10_000).unwrap();
        let (one, other) =
            (Memory::map(&file, 10_000).unwrap(), Memory::map(&file, 10_000).unwrap());
        // SAFETY: within the memory.
        unsafe { one.at(9_999, 1).unwrap().write(42) };
        // SAFETY: as above.
        assert_eq!(unsafe { other.at(9_999, 1).unwrap().read() }, 42);
        assert!(one.at(9_999, 2).is_none() && one.at(u64::MAX, 2).is_none());
        assert!(one.at(10_000, 0).is_some());
    }

    #[test]
    fn memory_when_its_size_is_changed_or_misstated_then_refused() {
        let file = make(8192).unwrap();
        assert!(rustix::fs::ftruncate(&file, 4096).is_err());
        assert!(rustix::fs::ftruncate(&file, 16384).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        assert!(Memory::map(&file, 4096).is_err());
        assert!(Memory::map(&file, 16384).is_err());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(Memory::map(&open, 4096).is_err());
    }
}
