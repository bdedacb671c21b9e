//! What the power leaves of an object.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_store::decorators::{Interceptor, Operation, Verdict};
use parking_lot::Mutex;

/// What the device of a tier has of an object: its bytes and its header, at different moments.
#[derive(Default)]
pub struct Device {
    pub objects: OnceLock<PathBuf>,
    pub bytes: Mutex<Vec<u8>>,
    pub header: Mutex<Vec<u8>>,
}

impl Device {
    /// The only object, which is no map.
    pub fn object(&self) -> Option<PathBuf> {
        let fans = std::fs::read_dir(self.objects.get()?).ok()?.flatten();
        let mut files = fans.flat_map(|fan| std::fs::read_dir(fan.path()).unwrap().flatten());
        files.find(|file| file.path().extension().is_none()).map(|file| file.path())
    }

    pub fn note_bytes(&self) {
        *self.bytes.lock() = self.object().map(|it| std::fs::read(it).unwrap()).unwrap_or_default();
    }

    pub fn note_header(&self) {
        let Some(object) = self.object() else { return };
        let mut header = vec![0; 4096];
        let len = rustix::fs::getxattr(&object, "user.forebay", &mut header[..]).unwrap();
        header.truncate(len);
        *self.header.lock() = header;
    }

    /// The power is back, and the object as it was on the device.
    pub fn bring_back(&self) {
        let object = self.object().expect("the object stays");
        std::fs::write(&object, &*self.bytes.lock()).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&object, "user.forebay", &self.header.lock(), flags).unwrap();
    }
}

/// Bytes come to the device by syncs alone.
pub struct TierSyncs(pub Arc<Device>);

impl Interceptor for TierSyncs {
    fn before(&self, _: Operation, _: u64) -> Verdict {
        Verdict::Pass
    }

    fn after(&self, operation: Operation) {
        if operation == Operation::Sync {
            self.0.note_bytes();
        }
    }
}
