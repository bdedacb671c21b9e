//! How a store comes to be.

use std::path::Path;

use super::log::wait_for_the_end;
use super::{EmbeddedOptions, FIRST, Opened};
use crate::engine::EngineError;

/// What the name of a store ends in that is being made.
const BEGUN: &str = "new";

/// Makes a store where there is nothing yet. It comes to its place as a whole: who dies while it is made, or
/// has no room for it, leaves none that is damaged.
pub(super) fn make(directory: &Path, options: &EmbeddedOptions) -> Result<(), EngineError> {
    let path = || directory.to_path_buf();
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::StorageFull => EngineError::NoSpace { path: path() },
        _ => EngineError::Open { path: path(), source: Box::new(source) },
    };
    let is_something = match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(failed(error)),
    };
    if is_something {
        return Ok(());
    }
    let begun = directory.with_extension(BEGUN);
    match std::fs::remove_dir_all(&begun) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    drop(Opened::open(&begun, options)?);
    wait_for_the_end(&begun);
    std::fs::rename(&begun, directory).map_err(failed)?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = std::fs::File::open(parent.unwrap_or(Path::new("."))).map_err(failed)?;
    parent.sync_all().map_err(failed)
}

/// What says which tables there are. A store that has come to its place has it.
const TABLES: &str = "keyspaces/1/current";

/// Where that is gone, the database would take all keys for keys that were never there, and remove their
/// tables.
pub(super) fn refuse_without_keys(directory: &Path) -> Result<(), EngineError> {
    let has = |name: &str| {
        directory.join(name).try_exists().map_err(|source| EngineError::Open {
            path: directory.to_path_buf(),
            source: Box::new(source),
        })
    };
    if has(FIRST)? && directory.extension().is_none_or(|end| end != BEGUN) && !has(TABLES)? {
        let source = format!("{TABLES} is gone").into();
        return Err(EngineError::Damaged { path: directory.to_path_buf(), source });
    }
    Ok(())
}
