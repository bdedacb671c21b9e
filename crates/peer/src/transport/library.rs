//! Libraries of the system that are looked for when they are needed, so that Forebay is built and
//! runs without them.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Result};

/// Finds a library by the first of `names` that the system has.
///
/// # Errors
/// [`Error::Settings`] that says what to install.
pub(super) fn open(names: &[&str], what: &str) -> Result<Library> {
    let mut why = String::new();
    for name in names {
        // SAFETY: the callers name libraries whose initialization does nothing but set up their own
        // tables. Modules that a library loads itself must find its symbols, hence RTLD_GLOBAL.
        match unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok(library),
            Err(error) => why = error.to_string(),
        }
    }
    Err(Error::Settings(format!("{what}: {why}")))
}

/// A function, or the address of a variable, of a library.
///
/// # Safety
/// The symbol must be of the type `T`, which must be one pointer.
///
/// # Errors
/// [`Error::Settings`] if there is none of this name.
pub(super) unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
    let found = |error: libloading::Error| Error::Settings(format!("{name}: {error}"));
    // SAFETY: as promised by the caller.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|symbol| *symbol).map_err(found)
}
