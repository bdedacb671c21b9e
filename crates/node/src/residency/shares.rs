//! Open files: no user takes what all need, and some descriptors stay for control, names and write-back.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::Resource;

/// What an open file takes at most, as soon as it is written past the tiers, or when a daemon takes it over:
/// its object or spill file, the map of that, and the version below.
const EACH: u64 = 3;
/// Kept for everything but open files: a quarter, at most this many.
const RESERVE: u64 = 1024;
/// Descriptors that are not of open files, at most: above all 256 directories of objects in each tier.
const OTHERS: u64 = 4096;
/// Where a process may have any number.
const NO_LIMIT: u64 = 1 << 20;

/// How many files may be open, and who has them open.
pub(crate) struct Shares {
    /// Descriptors that open files may take all together.
    descriptors: u64,
    /// Files that one user may have open, but for root and the daemon's own.
    of_one: u64,
    /// The daemon's user.
    own: u32,
    open: AtomicU64,
    by_user: Mutex<HashMap<u32, u64>>,
}

/// One open file of a user; it counts until it is dropped.
pub(crate) struct Share {
    of: Arc<Shares>,
    user: Option<u32>,
}

impl Shares {
    /// By this process's limit of open files.
    pub fn of_process() -> Self {
        let most = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(NO_LIMIT);
        Self::new(most, rustix::process::geteuid().as_raw())
    }

    fn new(most: u64, own: u32) -> Self {
        let descriptors = most - (most / 4).min(RESERVE);
        let of_one = (descriptors / 2 / EACH).max(1);
        let (open, by_user) = Default::default();
        Shares { descriptors, of_one, own, open, by_user }
    }

    /// Counts one more open file.
    ///
    /// # Errors
    /// `EMFILE` when this user has had his share, `ENFILE` when only the reserve is left.
    pub fn take(self: &Arc<Self>, uid: u32) -> Result<Share, Errno> {
        let open = self.open.load(Ordering::Relaxed);
        // Whoever has a file open is not refused a write for want of a descriptor, nor loses it to the next daemon.
        let promised = open * EACH >= self.descriptors;
        if promised || open * 2 * EACH + OTHERS >= self.descriptors && self.is_used_up() {
            return Err(Errno::NFILE);
        }
        let user = (uid != 0 && uid != self.own).then_some(uid);
        if let Some(user) = user {
            let mut by_user = self.by_user.lock();
            let has = by_user.entry(user).or_default();
            if *has >= self.of_one {
                return Err(Errno::MFILE);
            }
            *has += 1;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(Share { of: self.clone(), user })
    }

    /// Counts one that the daemon before had open: it can't be refused any more.
    pub fn taken_over(self: &Arc<Self>) -> Share {
        self.open.fetch_add(1, Ordering::Relaxed);
        Share { of: self.clone(), user: None }
    }

    /// Whether only the reserve of descriptors is left.
    fn is_used_up(&self) -> bool {
        // Linux 6.2 and later say so how many there are.
        if let Ok(stat) = rustix::fs::stat(c"/proc/self/fd")
            && stat.st_size > 0
        {
            return u64::try_from(stat.st_size).is_ok_and(|open| open >= self.descriptors);
        }
        // They are given out from below: this is too low while any number below is free.
        match rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 0) {
            Ok(next) => u64::try_from(next.as_raw_fd()).is_ok_and(|next| next >= self.descriptors),
            Err(error) => error == Errno::MFILE,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.open.fetch_sub(1, Ordering::Relaxed);
        let Some(user) = self.user else { return };
        let mut by_user = self.of.by_user.lock();
        if let Some(has) = by_user.get_mut(&user) {
            *has -= 1;
            if *has == 0 {
                by_user.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_when_he_has_his_share_of_open_files_then_others_go_on() {
        let shares = Arc::new(Shares::new(400, 1));
        let mut taken: Vec<Share> = Vec::new();
        let refused = loop {
            match shares.take(1000) {
                Ok(share) => taken.push(share),
                Err(error) => break error,
            }
        };
        assert_eq!((refused, taken.len()), (Errno::MFILE, 50));
        for uid in [0, 1, 1001] {
            assert!(shares.take(uid).is_ok(), "{uid}");
        }
        taken.pop();
        assert!(shares.take(1000).is_ok(), "one in place of another");
        let mut roots = Vec::new();
        let refused = loop {
            match shares.take(0) {
                Ok(share) => roots.push(share),
                Err(error) => break error,
            }
        };
        assert_eq!((refused, (roots.len() + taken.len()) as u64 * EACH), (Errno::NFILE, 300));
        let before = shares.taken_over();
        drop(roots.pop());
        assert!(shares.take(0).is_err(), "what was taken over counts");
        drop(before);
        assert!(shares.take(0).is_ok());
        drop((roots, taken));
        assert!(shares.by_user.lock().is_empty());
        assert_eq!(shares.open.load(Ordering::Relaxed), 0);
    }
}
