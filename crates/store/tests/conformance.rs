//! The suites on the file systems of this machine.

use std::sync::Arc;

use forebay_store::backing::DirBacking;
use forebay_store::decorators::{InterceptedBacking, InterceptedTier, Transparent, VolatileTier};
use forebay_store::tier::DirTier;
use forebay_store::{BackingStore, Tier, conformance};

fn directory(base: &str) -> tempfile::TempDir {
    tempfile::tempdir_in(base).unwrap()
}

fn tier_on(base: &str) {
    let base = directory(base);
    conformance::tier(|| {
        let dir = tempfile::tempdir_in(base.path()).unwrap().keep();
        Box::new(DirTier::open(dir).unwrap()) as Box<dyn Tier>
    });
}

fn backing_on(base: &str) {
    let base = directory(base);
    conformance::backing(|| {
        let dir = tempfile::tempdir_in(base.path()).unwrap().keep();
        Box::new(DirBacking::open(dir, "node-1").unwrap()) as Box<dyn BackingStore>
    });
}

#[test]
fn tier_on_disk_conforms() {
    tier_on("/tmp");
}

#[test]
fn tier_in_memory_conforms() {
    tier_on("/dev/shm");
}

#[test]
fn backing_on_disk_conforms() {
    backing_on("/tmp");
}

#[test]
fn backing_in_memory_conforms() {
    backing_on("/dev/shm");
}

#[test]
fn tier_behind_decorators_without_faults_conforms() {
    let base = directory("/dev/shm");
    conformance::tier(|| {
        let dir = tempfile::tempdir_in(base.path()).unwrap().keep();
        let tier = VolatileTier::new(Arc::new(DirTier::open(dir).unwrap()));
        Box::new(InterceptedTier::new(Arc::new(tier), Arc::new(Transparent))) as Box<dyn Tier>
    });
}

#[test]
fn backing_behind_decorators_without_faults_conforms() {
    let base = directory("/dev/shm");
    conformance::backing(|| {
        let dir = tempfile::tempdir_in(base.path()).unwrap().keep();
        let store = DirBacking::open(dir, "node-1").unwrap();
        let store = InterceptedBacking::new(Arc::new(store), Arc::new(Transparent));
        Box::new(store) as Box<dyn BackingStore>
    });
}
