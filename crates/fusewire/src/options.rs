use crate::error::{Error, Result};
use crate::flags::Features;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By io_uring where the kernel offers it and all its queues can be set up; else by the device.
    Auto,
    /// By reading the device.
    #[default]
    Classic,
    /// By io_uring; mounting fails where that is impossible.
    Uring,
}

/// How to mount and what to negotiate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The source that mount(8) and df(1) show.
    pub fs_name: String,
    /// The type shown is `fuse.<subtype>`; empty: `fuse`.
    pub subtype: String,
    /// Others than the mounting user may use the mount. For plain users `/etc/fuse.conf` must
    /// allow it.
    pub allow_other: bool,
    /// The kernel checks permissions from mode, owner and group of the attributes.
    pub default_permissions: bool,
    /// Mount read-only.
    pub read_only: bool,
    /// Say that reads leave access times as they are. The handler sees to it.
    pub noatime: bool,
    /// Ignore setuid and setgid bits (always so for plain users).
    pub nosuid: bool,
    /// Ignore device files (always so for plain users).
    pub nodev: bool,
    /// Forbid execution.
    pub noexec: bool,
    /// Largest WRITE in bytes, and the size of the buffers; 4 KiB to 16 MiB. The kernel caps it
    /// at the sysctl `fs.fuse.max_pages_limit` (1 MiB by default).
    pub max_write: u32,
    /// Read-ahead in bytes; the kernel's own value is an upper bound.
    pub max_readahead: u32,
    /// Background requests (read-ahead, write-back, asynchronous I/O) in flight at most.
    pub max_background: u16,
    /// Background requests from which on the mount counts as congested.
    pub congestion_threshold: u16,
    /// Reader threads. 0: one per CPU. More than CPUs is slower; slow work belongs elsewhere.
    pub threads: usize,
    /// Requests above 4 KiB and [`Buffer`](crate::Buffer)s that handlers may hold at once before
    /// readers wait for one to be dropped. Bounds memory at about this number times `max_write`.
    pub large_requests: usize,
    /// How requests come from the kernel. With io_uring `threads` does not count: there is one for
    /// every possible CPU, and one for the device.
    pub transport: Transport,
    /// Bytes that the entries of all rings may take; they are touched only as far as they are used.
    /// On machines with many CPUs `max_write` becomes smaller instead.
    pub ring_memory: usize,
    /// Capabilities to ask for; what the kernel does not offer is left out.
    pub features: Features,
    /// With [`Features::PASSTHROUGH`]: how deep the backing files may be stacked, 1 or 2. With 2,
    /// overlayfs and other passthrough mounts can be backing files, but overlayfs can no longer
    /// be mounted above.
    pub max_stack_depth: u32,
    /// With [`Features::REQUEST_TIMEOUT`]: seconds after which the kernel aborts the connection.
    pub request_timeout: u16,
    /// Signal used to interrupt readers for parking, as offset from `SIGRTMIN`. The session
    /// installs an empty handler for it, process-wide.
    pub park_signal: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fs_name: "fusewire".into(),
            subtype: String::new(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            noatime: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            threads: 0,
            large_requests: 64,
            transport: Transport::default(),
            ring_memory: 128 << 20,
            features: Features::ASYNC_READ
                | Features::ASYNC_DIO
                | Features::PARALLEL_DIROPS
                | Features::DO_READDIRPLUS
                | Features::READDIRPLUS_AUTO
                | Features::AUTO_INVAL_DATA
                | Features::HAS_EXPIRE_ONLY,
            max_stack_depth: 1,
            request_timeout: 0,
            park_signal: 6,
        }
    }
}

impl Options {
    /// Checks that the values can work.
    pub fn validate(&self) -> Result<()> {
        let wrong = |name, reason: &str| Err(Error::Option { name, reason: reason.into() });
        if !(4096..=16 << 20).contains(&self.max_write) || !self.max_write.is_multiple_of(4096) {
            return wrong("max_write", "must be a multiple of 4096 from 4 KiB to 16 MiB");
        }
        if self.features.contains(Features::PASSTHROUGH) {
            if self.features.contains(Features::WRITEBACK_CACHE) {
                return wrong("features", "PASSTHROUGH and WRITEBACK_CACHE exclude each other");
            }
            if !(1..=2).contains(&self.max_stack_depth) {
                return wrong("max_stack_depth", "must be 1 or 2");
            }
        }
        if self.large_requests == 0 {
            return wrong("large_requests", "must be at least 1");
        }
        if self.park_signal > 20 {
            return wrong("park_signal", "must be 0 to 20");
        }
        for (name, value) in [("fs_name", &self.fs_name), ("subtype", &self.subtype)] {
            if value.contains([',', '\0', '\n', '\\']) {
                return wrong(name, "must not contain a comma, backslash, line break or zero byte");
            }
        }
        Ok(())
    }

    pub(crate) fn reader_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(2, usize::from),
            threads => threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validate_when_values_cannot_work_then_names_the_option() {
        assert!(Options::default().validate().is_ok());
        let wrong = [
            Options { max_write: 5000, ..Options::default() },
            Options { large_requests: 0, ..Options::default() },
            Options { fs_name: "a,suid".into(), ..Options::default() },
            Options {
                features: Features::PASSTHROUGH | Features::WRITEBACK_CACHE,
                ..Options::default()
            },
            Options { features: Features::PASSTHROUGH, max_stack_depth: 3, ..Options::default() },
        ];
        for options in wrong {
            assert!(matches!(options.validate(), Err(Error::Option { .. })), "{options:?}");
        }
    }
}
