use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::{Interceptor, Operation, Verdict, ask, ask_about, ask_and, intercept_bytes};
use crate::{
    Attributes, Believed, Header, LeaseGuard, Object, Presence, Result, StoreError, Tier, TierId,
    TierLock, TierUsage,
};

/// A tier whose operations an [`Interceptor`] decides about. Presence maps are asked about when
/// they are made, opened and removed; their own small writes pass.
pub struct InterceptedTier {
    inner: Arc<dyn Tier>,
    by: Arc<dyn Interceptor>,
}

impl InterceptedTier {
    /// Puts an interceptor in front of a tier.
    pub fn new(inner: Arc<dyn Tier>, by: Arc<dyn Interceptor>) -> Self {
        Self { inner, by }
    }

    fn ask(&self, operation: Operation) -> Result<()> {
        ask(&self.by, operation, self.inner.path())
    }

    fn wrap(&self, inner: Arc<dyn Object>) -> Arc<dyn Object> {
        Arc::new(InterceptedObject { inner, by: Arc::clone(&self.by) })
    }
}

struct InterceptedObject {
    inner: Arc<dyn Object>,
    by: Arc<dyn Interceptor>,
}

intercept_bytes!(InterceptedObject);

impl Object for InterceptedObject {
    fn ino(&self) -> u64 {
        self.inner.ino()
    }

    fn header(&self) -> Result<Header> {
        ask(&self.by, Operation::Header, self.inner.label())?;
        self.inner.header()
    }

    fn set_header(&self, header: &Header) -> Result<()> {
        ask_and(&self.by, Operation::Header, self.inner.label(), || self.inner.set_header(header))
    }

    fn exclusive(&self) -> Result<Option<LeaseGuard<'_>>> {
        ask(&self.by, Operation::Lock, self.inner.label())?;
        self.inner.exclusive()
    }
}

impl Tier for InterceptedTier {
    fn id(&self) -> TierId {
        self.inner.id()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn lock(&self) -> Result<TierLock> {
        self.ask(Operation::Lock)?;
        self.inner.lock()
    }

    fn create(&self, ino: u64, header: &Header) -> Result<Arc<dyn Object>> {
        self.ask(Operation::Create)?;
        Ok(self.wrap(self.inner.create(ino, header)?))
    }

    fn adopt(&self, ino: u64, file: &Path, header: &Header) -> Result<Arc<dyn Object>> {
        self.ask(Operation::Create)?;
        Ok(self.wrap(self.inner.adopt(ino, file, header)?))
    }

    fn detach(&self, ino: u64, to: &Path) -> Result<()> {
        self.ask(Operation::Remove)?;
        self.inner.detach(ino, to)
    }

    fn open(&self, ino: u64) -> Result<Arc<dyn Object>> {
        self.ask(Operation::Open)?;
        Ok(self.wrap(self.inner.open(ino)?))
    }

    fn stat(&self, ino: u64) -> Result<Attributes> {
        self.ask(Operation::Stat)?;
        self.inner.stat(ino)
    }

    fn remove(&self, ino: u64) -> Result<()> {
        self.ask(Operation::Remove)?;
        self.inner.remove(ino)
    }

    fn list(&self, each: &mut dyn FnMut(u64, Result<Header>) -> ControlFlow<()>) -> Result<()> {
        self.ask(Operation::List)?;
        self.inner.list(each)
    }

    fn create_map(&self, ino: u64, extent_size: u64, size: u64) -> Result<Presence> {
        self.ask(Operation::Map)?;
        self.inner.create_map(ino, extent_size, size)
    }

    fn open_map(&self, ino: u64, believed: Believed) -> Result<Option<Presence>> {
        self.ask(Operation::Map)?;
        self.inner.open_map(ino, believed)
    }

    fn remove_map(&self, ino: u64) -> Result<()> {
        self.ask(Operation::Map)?;
        self.inner.remove_map(ino)
    }

    fn tells_stores(&self) -> bool {
        self.inner.tells_stores()
    }

    fn usage(&self) -> Result<TierUsage> {
        self.ask(Operation::Usage)?;
        self.inner.usage()
    }

    fn sync_dir(&self, ino: u64) -> Result<()> {
        self.ask(Operation::Sync)?;
        self.inner.sync_dir(ino)
    }

    fn settle_removals(&self, ino: u64) -> Result<()> {
        self.ask(Operation::Sync)?;
        self.inner.settle_removals(ino)
    }

    fn sync(&self) -> Result<()> {
        self.ask(Operation::Sync)?;
        self.inner.sync()
    }
}
