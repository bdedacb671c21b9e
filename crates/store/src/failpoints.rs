//! Fail points: places where tests make the process fail or die. They cost nothing unless the crate
//! is built with the feature `failpoints`.

/// All fail points of this crate. Each can be set to `return` (the step fails with EIO), `panic`,
/// `sleep(ms)` or an `exit` by a callback, with the crate `fail`.
pub const FAILPOINTS: &[&str] = &[
    "store.header.before_set",
    "store.header.after_set",
    "store.create.before_header",
    "store.remove.before",
    "store.remove.before_map",
    "store.presence.before_write",
    "store.presence.before_sync",
    "store.presence.after_clear",
    "store.commit.before_sync",
    "store.commit.before_rename",
    "store.commit.before_exchange",
    "store.commit.after_exchange",
    "store.commit.before_unlink",
    "store.commit.after_rename",
    "store.commit.before_copy_beside",
    "store.commit.answer_of_rename",
    "store.commit.answer_of_exchange",
    "store.commit.answer_of_stat",
    "store.commit.answer_of_unlink",
    "store.replace.before_exchange",
    "store.replace.after_exchange",
    "store.replace.before_swap_back",
    "store.replace.answer_of_exchange",
    "store.replace.answer_of_unlink",
    "store.make.before_mode",
    "store.sync_held.before",
    "store.copy.before_chunk",
    "store.limbo.before_move",
];

/// Fails with EIO where the fail point says so.
macro_rules! fail_at {
    ($name:literal, $path:expr) => {
        fail::fail_point!($name, |_| Err($crate::StoreError::errno_of($name, $path, libc::EIO)));
    };
}

/// The outcome of a system call that was carried out; where the fail point says so, its answer was
/// lost on the way and is EIO.
macro_rules! answer_at {
    ($name:literal, $outcome:expr) => {{
        let outcome = $outcome;
        let answer = move || {
            fail::fail_point!($name, |_| Err(rustix::io::Errno::IO));
            outcome
        };
        answer()
    }};
}

pub(crate) use {answer_at, fail_at};
