//! Answers with names and attributes, and how long the kernel may keep them where other nodes use
//! them, too: as long as this one alone can change them ([`forebay_node::Cluster::basis`]).

use std::time::Duration;

use forebay_node::{DirEntry, Ino, KernelGrant, LeaseBasis, Opened, Result, Shown, Stat};
use fusewire::{DirectoryBuffer, Entry};

use crate::answer::Answer;
use crate::serve::{Serve, changes_unseen};
use crate::wire;

/// Somebody who is about to look at an inode, or at the entries of a directory.
pub struct ReplyBuilder<'a> {
    serve: &'a Serve<'a>,
    ino: Ino,
    /// What its view stands on, from before it looks.
    basis: Option<LeaseBasis>,
    /// The same for what a name of the directory is believed to mean, if that is kept elsewhere.
    behind: Option<LeaseBasis>,
}

impl<'a> ReplyBuilder<'a> {
    pub fn new(serve: &'a Serve<'a>, ino: Ino) -> Self {
        let basis = serve.node.cluster().and_then(|cluster| cluster.basis(ino));
        ReplyBuilder { serve, ino, basis, behind: None }
    }

    /// Somebody whom nothing is told that can be kept.
    pub fn blind(serve: &'a Serve<'a>) -> Self {
        ReplyBuilder { serve, ino: serve.ino(), basis: None, behind: None }
    }

    /// To look also at what a name means.
    pub fn also_behind(mut self, name: &[u8]) -> Self {
        if let (Some(cluster), Some(_)) = (self.serve.node.cluster(), self.basis) {
            self.behind = cluster.lease_basis_behind(self.ino, name);
        }
        self
    }

    /// What a name that was looked up means.
    pub fn found(&self, name: &[u8], stat: Option<&Stat>) -> Answer {
        self.entry(name, stat, true)
    }

    /// What was made under a name.
    pub fn made(&self, name: &[u8], stat: &Stat) -> Answer {
        self.entry(name, Some(stat), false)
    }

    fn entry(&self, name: &[u8], stat: Option<&Stat>, looked_up: bool) -> Answer {
        let cache_policy = self.serve.cache_policy;
        let mut entry =
            stat.map_or_else(|| cache_policy.negative(), |stat| cache_policy.entry(stat));
        let kernel_grants = self.keep(&mut entry, name, stat, looked_up);
        kept(Answer::Entry(entry), kernel_grants)
    }

    /// The attributes of the inode.
    pub fn attributes(&self, stat: &Stat) -> Answer {
        let cache_policy = self.serve.cache_policy;
        let grant = self.basis.and_then(|basis| {
            let cluster = self.serve.node.cluster()?;
            cluster.keep_attributes(basis, stat, cache_policy.attr_limit(stat))
        });
        let valid = grant
            .as_ref()
            .map_or_else(|| cache_policy.attr_valid(stat), KernelGrant::attributes_valid);
        kept(Answer::Attr(wire::attr(stat), valid), Vec::from_iter(grant))
    }

    /// A file that was made under a name and opened.
    pub fn created(&self, name: &[u8], stat: &Stat, opened: Opened, flags: u32) -> Answer {
        let stat = Stat { alias: opened.alias, ..stat.clone() };
        let mut entry = self.serve.cache_policy.entry(&stat);
        let kernel_grants = self.keep(&mut entry, name, Some(&stat), false);
        if changes_unseen(opened, flags) {
            entry.attr_valid = Duration::ZERO;
        }
        kept(Answer::Created(entry, self.serve.cache_policy.opened(opened, flags)), kernel_grants)
    }

    /// A listing with attributes. `list` puts entries into it, and says of each what
    /// [`ReplyBuilder::listed`] makes of it.
    pub fn listing(
        &self,
        mut directory: DirectoryBuffer,
        list: impl FnOnce(&mut DirectoryBuffer, &mut Vec<Listed>) -> Result<()>,
    ) -> Result<Answer> {
        let mut entries = Vec::new();
        list(&mut directory, &mut entries)?;
        let basis = self.basis.filter(|_| !entries.is_empty());
        let (Some(cluster), Some(basis)) = (self.serve.node.cluster(), basis) else {
            return Ok(Answer::Directory(directory));
        };
        let (places, mut shown): (Vec<_>, Vec<_>) =
            entries.into_iter().map(|listed| ((listed.at, listed.entry), listed.shown)).unzip();
        // The kernel takes note of all of it with the directory locked.
        let kernel_grants = cluster.keep_shown(self.ino, basis, &mut shown, false);
        for ((at, mut entry), shown) in places.into_iter().zip(shown) {
            (entry.entry_valid, entry.attr_valid) = (shown.entry_valid, shown.attr_valid);
            directory.set_entry(at, &entry);
        }
        Ok(kept(Answer::Directory(directory), kernel_grants))
    }

    /// An entry of a listing at a place of the answer, if the kernel may keep something of it.
    pub fn listed(&self, at: usize, entry: Entry, listed: &DirEntry<'_>) -> Option<Listed> {
        let (basis, stat) = (self.basis?, listed.stat.as_ref()?);
        let is_here = listed.ino.partition() == self.ino.partition();
        let basis = if is_here { Some(basis) } else { listed.behind };
        let shown = self.shown(listed.name, Some(stat), basis.filter(|_| listed.is_known_here));
        Some(Listed { at, entry, shown })
    }

    fn shown(&self, name: &[u8], stat: Option<&Stat>, basis: Option<LeaseBasis>) -> Shown {
        let cache_policy = self.serve.cache_policy;
        let attr_limit = stat.map_or(Duration::ZERO, |stat| cache_policy.attr_limit(stat));
        Shown::new(name, stat, basis, cache_policy.entry_limit(), attr_limit)
    }

    /// Has the kernel keep what it may of an entry.
    fn keep(
        &self,
        entry: &mut Entry,
        name: &[u8],
        stat: Option<&Stat>,
        looked_up: bool,
    ) -> Vec<KernelGrant> {
        let (Some(cluster), Some(basis)) = (self.serve.node.cluster(), self.basis) else {
            return Vec::new();
        };
        let of_attributes =
            stat.and_then(|stat| cluster.ground_of_attributes(self.behind.unwrap_or(basis), stat));
        let mut shown = [self.shown(name, stat, of_attributes)];
        let kernel_grants = cluster.keep_shown(self.ino, basis, &mut shown, looked_up);
        let [shown] = shown;
        (entry.entry_valid, entry.attr_valid) = (shown.entry_valid, shown.attr_valid);
        kernel_grants
    }
}

/// An entry of a listing that the kernel may keep.
pub struct Listed {
    /// Where it is in the answer.
    at: usize,
    entry: Entry,
    shown: Shown,
}

/// An answer, and what is to be had until it was sent.
pub fn kept(answer: Answer, kernel_grants: Vec<KernelGrant>) -> Answer {
    match kernel_grants.is_empty() {
        true => answer,
        false => Answer::Kept(Box::new(answer), kernel_grants),
    }
}
