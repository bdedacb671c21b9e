//! Signatures of the data operations.
#![allow(unused_variables, clippy::todo, missing_docs)]

use std::sync::Arc;

use forebay_meta::Ino;

use crate::config::NodeConfig;
use crate::context::Context;
use crate::error::Result;
use crate::handle::Opened;
use crate::kernel::Kernel;
use crate::namespace::Stat;
use crate::node::Node;
use crate::pool::Pool;

impl Node {
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }
    pub fn slow_pool(&self) -> &Pool {
        &self.slow
    }
    pub fn attach_kernel(&self, kernel: Arc<dyn Kernel>) {
        let _ = self.kernel.set(kernel);
    }
    pub fn open(&self, context: &Context, ino: Ino, flags: i32) -> Result<Opened> {
        todo!()
    }
    pub fn create_and_open(
        &self,
        context: &Context,
        dir: Ino,
        name: &[u8],
        (mode, umask): (u32, u32),
        flags: i32,
    ) -> Result<(Stat, Opened)> {
        todo!()
    }
    pub fn tmpfile_and_open(
        &self,
        context: &Context,
        dir: Ino,
        (mode, umask): (u32, u32),
        flags: i32,
    ) -> Result<(Stat, Opened)> {
        todo!()
    }
    pub fn read(&self, context: &Context, fh: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        todo!()
    }
    pub fn write(&self, context: &Context, fh: u64, offset: u64, data: &[u8]) -> Result<usize> {
        todo!()
    }
    pub fn release(&self, fh: u64) {
        todo!()
    }
    pub fn flush(&self, context: &Context, fh: u64) -> Result<()> {
        todo!()
    }
    pub fn fsync(&self, context: &Context, fh: u64, datasync: bool) -> Result<()> {
        todo!()
    }
    pub fn fallocate(
        &self,
        context: &Context,
        fh: u64,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        todo!()
    }
    pub fn seek(&self, context: &Context, fh: u64, offset: u64, whence: i32) -> Result<u64> {
        todo!()
    }
    pub fn copy_range(
        &self,
        context: &Context,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Result<u64> {
        todo!()
    }
}
