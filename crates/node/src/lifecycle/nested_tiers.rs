//! Tiers are apart: what lies inside the tier of another mount is in the hands of two daemons.

use std::path::{Path, PathBuf};

use crate::config::NodeConfig;
use crate::error::{NodeError, Result};

/// A path without symbolic links, as far as it exists.
fn true_path(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (std::fs::canonicalize(above), path.strip_prefix(above)) {
            return real.join(rest);
        }
    }
    path.to_owned()
}

/// Checks that no directory of a mount lies inside the tier of another one, whether that is mounted now
/// or not: its label tells. (What has a tier inside is no empty directory, and so becomes no tier.)
///
/// # Errors
/// [`NodeError::BadState`] with the names of both.
pub(crate) fn check(config: &NodeConfig) -> Result<()> {
    let own: Vec<PathBuf> = config.tiers.iter().map(|tier| true_path(&tier.dir)).collect();
    let tiers = config.tiers.iter().map(|tier| ("tier", &tier.dir));
    let state = config.state_dir.iter().map(|dir| ("state directory", dir));
    for (what, dir) in tiers.chain(state) {
        let real = true_path(dir);
        let is_foreign_tier = |above: &&Path| {
            !own.iter().any(|own| own == above)
                && matches!(forebay_store::tier::identity(above), Ok(Some(_)))
        };
        if let Some(outer) = real.ancestors().skip(1).find(is_foreign_tier) {
            return Err(NodeError::BadState(format!(
                "the {what} {} lies inside {}, which is a tier of another mount: name a directory \
                 outside of it, and move there what this one may have already",
                dir.display(),
                outer.display(),
            )));
        }
    }
    Ok(())
}
