//! What each failure of the node is to a program.

use forebay_node::{
    EngineError, ErrorClass, MetaError, NodeConfig, NodeError, StoreError, metrics,
};

/// The errno that answers a failed request.
#[must_use]
pub fn errno(error: &NodeError) -> i32 {
    match error {
        NodeError::Posix(errno) => errno.raw_os_error(),
        NodeError::Meta(error) => meta(error),
        NodeError::Store(error) => store(error),
        NodeError::Busy => libc::EAGAIN,
        // EIO: the backing store is silent, the mount goes down, the configuration can't work; and
        // for failures that this table has yet to learn about.
        _ => libc::EIO,
    }
}

/// The class under which a failure is counted that is not the program's own doing; `None` for
/// ordinary refusals.
#[must_use]
pub fn error_class(error: &NodeError, config: &NodeConfig) -> Option<metrics::ErrorClass> {
    use metrics::ErrorClass as Class;
    Some(match error {
        NodeError::Posix(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => Class::NoSpace,
        NodeError::Posix(rustix::io::Errno::IO) => Class::Backing,
        NodeError::Posix(rustix::io::Errno::NFILE) | NodeError::Busy => Class::Busy,
        NodeError::RestGone => Class::Backing,
        NodeError::BackingTimeout { .. } => Class::BackingTimeout,
        NodeError::Meta(MetaError::Corrupt { .. } | MetaError::NewerFormat { .. }) => {
            Class::Corrupt
        }
        NodeError::Meta(MetaError::Engine(EngineError::NoSpace { .. })) => Class::NoSpace,
        NodeError::Meta(error) if meta(error) == libc::EIO => Class::Meta,
        NodeError::Store(error) => match (error.class(), error) {
            (ErrorClass::NoSpace, _) => Class::NoSpace,
            (ErrorClass::Descriptors, _) => Class::Busy,
            (_, StoreError::Damaged { .. }) => Class::Corrupt,
            (ErrorClass::Io, StoreError::Io { path, .. }) if store(error) == libc::EIO => {
                let on_tier = config.tiers.iter().any(|tier| path.starts_with(&tier.dir));
                if on_tier { Class::Tier } else { Class::Backing }
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn meta(error: &MetaError) -> i32 {
    match error {
        MetaError::NotFound => libc::ENOENT,
        MetaError::Stale(_) => libc::ESTALE,
        MetaError::Exists => libc::EEXIST,
        MetaError::NotDirectory => libc::ENOTDIR,
        MetaError::IsDirectory => libc::EISDIR,
        MetaError::NotEmpty => libc::ENOTEMPTY,
        MetaError::NotPermitted(_) => libc::EPERM,
        MetaError::Invalid(_) => libc::EINVAL,
        MetaError::NameTooLong => libc::ENAMETOOLONG,
        MetaError::TooManyLinks => libc::EMLINK,
        MetaError::NoXattr => libc::ENODATA,
        MetaError::Conflict(_) => libc::EAGAIN,
        MetaError::Unsupported(_) => libc::EOPNOTSUPP,
        MetaError::Engine(EngineError::NoSpace { .. }) => libc::ENOSPC,
        // EIO: the engine failed, its data are damaged or newer, attributes were never imported.
        _ => libc::EIO,
    }
}

/// Failures of the slow store and the tiers keep their errno where a program can act on it. The
/// rest say something about Forebay's own files, which is no business of the caller's: `EIO`.
fn store(error: &StoreError) -> i32 {
    let own = error.errno();
    match error.class() {
        ErrorClass::NoSpace => own,
        ErrorClass::NotFound | ErrorClass::Exists | ErrorClass::Stale => own,
        ErrorClass::Denied | ErrorClass::Unsupported => own,
        ErrorClass::Cancelled => libc::EINTR,
        ErrorClass::Busy if own == libc::ETXTBSY => own,
        ErrorClass::Busy => libc::EAGAIN,
        ErrorClass::Descriptors => libc::ENFILE,
        ErrorClass::Invalid | ErrorClass::Io => match own {
            libc::EINVAL | libc::ENAMETOOLONG | libc::EFBIG | libc::EISDIR | libc::ELOOP => own,
            libc::EMLINK | libc::ERANGE | libc::E2BIG | libc::ENXIO => own,
            _ => libc::EIO,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_node::Ino;
    use rustix::io::Errno;

    #[test]
    fn errno_of_the_nodes_own_failures() {
        let table = [
            (NodeError::Posix(Errno::NOTEMPTY), libc::ENOTEMPTY),
            (NodeError::Busy, libc::EAGAIN),
            (NodeError::ShuttingDown, libc::EIO),
            (NodeError::BackingTimeout { limit_s: 30 }, libc::EIO),
            (NodeError::Config("x".into()), libc::EIO),
        ];
        for (error, expected) in table {
            assert_eq!(errno(&error), expected, "{error}");
        }
    }

    #[test]
    fn class_when_a_device_fails_then_which_one() {
        use metrics::ErrorClass as Class;
        let tier = forebay_node::TierConfig { dir: "/t".into(), size_bytes: 1 };
        let config = NodeConfig::new("/b".into(), vec![tier]);
        let store = |path, errno| NodeError::Store(StoreError::errno_of("read", path, errno));
        let table = [
            (store("/t/files/1", libc::EIO), Some(Class::Tier)),
            (store("/b/1", libc::EIO), Some(Class::Backing)),
            (store("/b/1", libc::ENOSPC), Some(Class::NoSpace)),
            (store("/b/1", libc::ENOENT), None),
            (NodeError::Busy, Some(Class::Busy)),
            (NodeError::Meta(MetaError::NotEmpty), None),
            (NodeError::Meta(MetaError::XattrsUnknown(Ino(7))), Some(Class::Meta)),
            (NodeError::BackingTimeout { limit_s: 30 }, Some(Class::BackingTimeout)),
            (NodeError::Posix(Errno::EXIST), None),
        ];
        for (error, expected) in table {
            assert_eq!(error_class(&error, &config), expected, "{error}");
        }
    }

    #[test]
    fn errno_of_the_namespaces_failures() {
        let table = [
            (MetaError::NotFound, libc::ENOENT),
            (MetaError::Stale(Ino(7)), libc::ESTALE),
            (MetaError::Exists, libc::EEXIST),
            (MetaError::NotDirectory, libc::ENOTDIR),
            (MetaError::IsDirectory, libc::EISDIR),
            (MetaError::NotEmpty, libc::ENOTEMPTY),
            (MetaError::NotPermitted("x"), libc::EPERM),
            (MetaError::Invalid("x"), libc::EINVAL),
            (MetaError::NameTooLong, libc::ENAMETOOLONG),
            (MetaError::TooManyLinks, libc::EMLINK),
            (MetaError::NoXattr, libc::ENODATA),
            (MetaError::XattrsUnknown(Ino(7)), libc::EIO),
            (MetaError::Corrupt { key: "k".into(), reason: "r".into() }, libc::EIO),
            (MetaError::NewerFormat { what: "x".into(), found: 2, known: 1 }, libc::EIO),
            (MetaError::Conflict(9), libc::EAGAIN),
            (MetaError::Unsupported("x"), libc::EOPNOTSUPP),
        ];
        for (error, expected) in table {
            let text = error.to_string();
            assert_eq!(errno(&NodeError::Meta(error)), expected, "{text}");
        }
    }

    #[test]
    fn errno_of_the_stores_failures() {
        let kept = [
            libc::ENOSPC,
            libc::EDQUOT,
            libc::ENOENT,
            libc::EEXIST,
            libc::ESTALE,
            libc::EACCES,
            libc::EPERM,
            libc::EROFS,
            libc::EOPNOTSUPP,
            libc::ETXTBSY,
            libc::EINVAL,
            libc::EFBIG,
            libc::ENAMETOOLONG,
        ];
        let changed = [
            (libc::EMFILE, libc::ENFILE),
            (libc::EBUSY, libc::EAGAIN),
            (libc::EBADF, libc::EIO),
            (libc::EFAULT, libc::EIO),
            (libc::EIO, libc::EIO),
        ];
        for (own, expected) in kept.map(|own| (own, own)).into_iter().chain(changed) {
            let error = StoreError::errno_of("read", "/b/x", own);
            assert_eq!(errno(&NodeError::Store(error)), expected, "errno {own}");
        }
        let damaged = StoreError::Damaged { path: "/t/x".into(), what: "header" };
        let table = [
            (StoreError::Cancelled, libc::EINTR),
            (StoreError::Shrunk { path: "/b/x".into(), at: 1, wanted: 2 }, libc::ESTALE),
            (damaged, libc::EIO),
        ];
        for (error, expected) in table {
            assert_eq!(errno(&NodeError::Store(error)), expected);
        }
    }
}
