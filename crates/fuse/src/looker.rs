//! Answers with names and attributes, and how long the kernel may keep them where other nodes use
//! them, too: as long as this one alone can change them ([`forebay_node::Node::ground`]).

use forebay_node::{Ground, Ino, Opened, Stat};

use crate::answer::{Answer, Beliefs};
use crate::serve::{Serve, changes_unseen};
use crate::wire;

/// Somebody who is about to look at an inode, or at the entries of a directory.
pub struct Looker<'a> {
    serve: &'a Serve<'a>,
    ino: Ino,
    /// What its view stands on, from before it looks.
    ground: Option<Ground>,
    /// The same for what a name of the directory is believed to mean, if that is kept elsewhere.
    behind: Option<Ground>,
}

impl<'a> Looker<'a> {
    pub fn new(serve: &'a Serve<'a>, ino: Ino) -> Self {
        Looker { serve, ino, ground: serve.node.ground(ino), behind: None }
    }

    /// Somebody whom nothing is told that can be kept.
    pub fn blind(serve: &'a Serve<'a>) -> Self {
        Looker { serve, ino: serve.ino(), ground: None, behind: None }
    }

    /// To look also at what a name means.
    pub fn also_behind(mut self, name: &[u8]) -> Self {
        if self.ground.is_some() {
            self.behind = self.serve.node.ground_behind(self.ino, name);
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
        let manner = self.serve.manner;
        let mut entry = stat.map_or_else(|| manner.negative(), |stat| manner.entry(stat));
        let beliefs = self.beliefs(Some((name, looked_up)), stat);
        set(&beliefs, &mut entry.entry_valid, &mut entry.attr_valid);
        kept(Answer::Entry(entry), beliefs)
    }

    /// The attributes of the inode.
    pub fn attributes(&self, stat: &Stat) -> Answer {
        let beliefs = self.beliefs(None, Some(stat));
        let valid = match &beliefs[1] {
            Some(belief) => belief.valid(),
            None => self.serve.manner.attr_valid(stat),
        };
        kept(Answer::Attr(wire::attr(stat), valid), beliefs)
    }

    /// A file that was made under a name and opened.
    pub fn created(&self, name: &[u8], stat: &Stat, (opened, flags): (Opened, u32)) -> Answer {
        let stat = Stat { face: opened.face, ..stat.clone() };
        let mut entry = self.serve.manner.entry(&stat);
        let beliefs = self.beliefs(Some((name, false)), Some(&stat));
        set(&beliefs, &mut entry.entry_valid, &mut entry.attr_valid);
        if changes_unseen(opened, flags) {
            entry.attr_valid = entry.attr_valid.min(wire::OPEN);
        }
        kept(Answer::Created(entry, self.serve.manner.opened(opened, flags)), beliefs)
    }

    fn beliefs(&self, name: Option<(&[u8], bool)>, stat: Option<&Stat>) -> Beliefs {
        let Serve { node, manner, .. } = self.serve;
        let of_name = self.ground.zip(name).and_then(|(ground, (name, looked_up))| {
            node.keep_name(ground, (self.ino, name), stat, manner.entry_limit(), looked_up)
        });
        let of_attributes =
            self.behind.or(self.ground).zip(stat).and_then(|(ground, stat)| {
                node.keep_attributes(ground, stat, manner.attr_limit(stat))
            });
        [of_name, of_attributes]
    }
}

fn set(beliefs: &Beliefs, entry: &mut std::time::Duration, attr: &mut std::time::Duration) {
    for (belief, valid) in beliefs.iter().zip([entry, attr]) {
        if let Some(belief) = belief {
            *valid = belief.valid();
        }
    }
}

/// An answer, and what is to be had until it was sent.
pub fn kept(answer: Answer, beliefs: Beliefs) -> Answer {
    match beliefs.iter().any(Option::is_some) {
        true => Answer::Kept(Box::new(answer), beliefs),
        false => answer,
    }
}
