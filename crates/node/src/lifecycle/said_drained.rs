//! The list of a mount's tiers where there is no room for a new one. What it says of the last end, that the
//! backing store has everything, is not true any more as soon as the mount takes changes: after a kill a
//! tier that is away would not be missed.

use std::io;
use std::path::Path;

use prost::Message;

use crate::lifecycle::members::{FILE, Found, Members};
use crate::state_files;

/// The field `drained` of [`Members`], said to be false, which is left out otherwise: as long as when it is true.
const NOT_DRAINED: [u8; 2] = [4 << 3, 0];

/// As [`take_back`]; the mount serves on if that fails.
pub(super) fn take_back_or_warn(dir: &Path) {
    if let Err(error) = take_back(dir) {
        tracing::warn!(
            %error, dir = %dir.display(),
            "nor can it be noted that the backing store may lack something from here on: should this \
             mount be killed, see to it that all its tiers are there before the next one. Make room on \
             the device of this directory"
        );
    }
}

/// Has the list in a directory say no more that the backing store has everything. It is changed in its place,
/// which needs no room.
///
/// # Errors
/// What the file system says.
fn take_back(dir: &Path) -> io::Result<()> {
    let Ok(Found::Sound(known)) = Members::read(dir) else { return Ok(()) };
    if !known.drained {
        return Ok(());
    }
    let mut body = Members { drained: false, ..known }.encode_to_vec();
    body.extend(NOT_DRAINED);
    state_files::overwrite(dir, FILE, &Members::file_of(&body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_that_says_drained_when_that_is_taken_back_then_the_rest_and_its_length_stay() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let known = Members { namespace: "n".into(), drained: true, ..Members::default() };
        let before = Members::file_of(&known.encode_to_vec());
        std::fs::write(dir.path().join(FILE), &before).expect("written");
        for _ in 0..2 {
            take_back(dir.path()).expect("taken back");
            let found = Members::read(dir.path());
            let Ok(Found::Sound(found)) = found else { panic!("it is damaged") };
            assert_eq!(found, Members { drained: false, ..known.clone() });
            let after = std::fs::read(dir.path().join(FILE)).expect("read");
            assert_eq!(after.len(), before.len());
        }
    }
}
