//! The names of an inode: nearly always one, sometimes many thousands.
//!
//! A few are a list in the order in which they came. Many are a tree by their hashes of which copies
//! share what is equal in both (after Bagwell, *Ideal Hash Trees*, 2001): to copy the names, to
//! change one, and to find what differs between two sets of which one was made of the other costs
//! what has changed, however many there are. Its shape follows from the names in it alone.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::types::{Ino, Link};

/// More names than these are a tree.
pub(crate) const FEW: usize = 8;

const LEAF: usize = 8;
const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
const LAST_SHIFT: u32 = u64::BITS - BITS;

/// The names of an inode.
#[derive(Clone)]
pub struct Links(Form);

#[derive(Clone)]
enum Form {
    Few(SmallVec<[Link; 1]>),
    Many(Arc<Node>),
}

#[derive(Clone)]
enum Node {
    /// Sorted. At most [`LEAF`], unless their hashes are equal.
    Leaf(Vec<Link>),
    Branch {
        len: usize,
        children: [Option<Arc<Node>>; WIDTH],
    },
}

fn hash(link: &Link) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&link.name, link.parent.0)
}

fn slot(hash: u64, shift: u32) -> usize {
    (hash >> shift) as usize % WIDTH
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(links) => links.len(),
            Node::Branch { len, .. } => *len,
        }
    }

    fn contains(&self, link: &Link, hash: u64, shift: u32) -> bool {
        match self {
            Node::Leaf(links) => links.binary_search(link).is_ok(),
            Node::Branch { children, .. } => children[slot(hash, shift)]
                .as_ref()
                .is_some_and(|child| child.contains(link, hash, shift + BITS)),
        }
    }

    /// Adds a name that is not there.
    fn insert(&mut self, link: Link, hash: u64, shift: u32) {
        match self {
            Node::Leaf(links) => {
                let at = links.partition_point(|known| *known < link);
                links.insert(at, link);
                if links.len() > LEAF && shift <= LAST_SHIFT {
                    *self = Node::branch(std::mem::take(links), shift);
                }
            }
            Node::Branch { len, children } => {
                *len += 1;
                let child = children[slot(hash, shift)]
                    .get_or_insert_with(|| Arc::new(Node::Leaf(Vec::new())));
                Arc::make_mut(child).insert(link, hash, shift + BITS);
            }
        }
    }

    fn branch(links: Vec<Link>, shift: u32) -> Node {
        let mut branch = Node::Branch { len: 0, children: Default::default() };
        for link in links {
            let hash = hash(&link);
            branch.insert(link, hash, shift);
        }
        branch
    }

    /// Removes a name that is there.
    fn remove(&mut self, link: &Link, hash: u64, shift: u32) {
        match self {
            Node::Leaf(links) => links.retain(|known| known != link),
            Node::Branch { len, children } => {
                *len -= 1;
                let place = &mut children[slot(hash, shift)];
                if let Some(child) = place {
                    Arc::make_mut(child).remove(link, hash, shift + BITS);
                    if child.len() == 0 {
                        *place = None;
                    }
                }
                if *len <= LEAF {
                    let mut rest: Vec<Link> = Iter::of(self).cloned().collect();
                    rest.sort_unstable();
                    *self = Node::Leaf(rest);
                }
            }
        }
    }

    /// Calls `each` for the names that another set lacks, until it says false.
    fn without<'a>(
        self: &'a Arc<Self>,
        other: &Arc<Node>,
        shift: u32,
        each: &mut dyn FnMut(&'a Link) -> bool,
    ) -> bool {
        if Arc::ptr_eq(self, other) {
            return true;
        }
        let (Node::Branch { children, .. }, Node::Branch { children: others, .. }) =
            (&**self, &**other)
        else {
            let mut lacking = Iter::of(self).filter(|l| !other.contains(l, hash(l), shift));
            return lacking.all(each);
        };
        children.iter().zip(others).all(|pair| match pair {
            (None, _) => true,
            (Some(child), None) => Iter::of(child).all(&mut *each),
            (Some(child), Some(other)) => child.without(other, shift + BITS, each),
        })
    }
}

impl Links {
    /// No names.
    #[must_use]
    pub fn new() -> Self {
        Links(Form::Few(SmallVec::new()))
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Few(links) => links.len(),
            Form::Many(root) => root.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first name; of many, always the same one as long as they do not change.
    #[must_use]
    pub fn first(&self) -> Option<&Link> {
        self.iter().next()
    }

    /// The name, if there is exactly one.
    #[must_use]
    pub fn only(&self) -> Option<&Link> {
        match &self.0 {
            Form::Few(links) => match links.as_slice() {
                [link] => Some(link),
                _ => None,
            },
            Form::Many(_) => None,
        }
    }

    /// Whether this is one of the names.
    #[must_use]
    pub fn contains(&self, link: &Link) -> bool {
        match &self.0 {
            Form::Few(links) => links.contains(link),
            Form::Many(root) => root.contains(link, hash(link), 0),
        }
    }

    /// As [`Links::contains`], of a name in a directory.
    #[must_use]
    pub fn has(&self, parent: Ino, name: &[u8]) -> bool {
        match &self.0 {
            Form::Few(links) => links.iter().any(|link| link.is(parent, name)),
            Form::Many(_) => self.contains(&Link::new(parent, name)),
        }
    }

    /// The names, a few in the order in which they came.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        match &self.0 {
            Form::Few(links) => Iter { links: links.iter(), above: Vec::new() },
            Form::Many(root) => Iter::of(root),
        }
    }

    /// The names, a few from the one that came last to the first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Link> {
        let (few, many) = match &self.0 {
            Form::Few(links) => (Some(links.iter().rev()), None),
            Form::Many(root) => (None, Some(Iter::of(root))),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    /// Adds a name, if it is not there.
    pub fn push(&mut self, link: Link) {
        if self.contains(&link) {
            return;
        }
        match &mut self.0 {
            Form::Few(links) if links.len() < FEW => links.push(link),
            Form::Few(links) => {
                let mut all = Vec::with_capacity(links.len() + 1);
                all.extend(links.drain(..));
                all.push(link);
                self.0 = Form::Many(Arc::new(Node::branch(all, 0)));
            }
            Form::Many(root) => {
                let hash = hash(&link);
                Arc::make_mut(root).insert(link, hash, 0);
            }
        }
    }

    /// Removes a name; whether it was there.
    pub fn remove(&mut self, link: &Link) -> bool {
        if !self.contains(link) {
            return false;
        }
        match &mut self.0 {
            Form::Few(links) => links.retain(|known| known != link),
            Form::Many(root) => {
                Arc::make_mut(root).remove(link, hash(link), 0);
                if root.len() <= FEW {
                    self.0 = Form::Few(Iter::of(root).cloned().collect());
                }
            }
        }
        true
    }

    /// Puts a name in the place of another, if that is there.
    pub fn replace(&mut self, from: &Link, to: Link) {
        match &mut self.0 {
            Form::Few(links) => {
                if let Some(link) = links.iter_mut().find(|link| *link == from) {
                    *link = to;
                }
            }
            Form::Many(_) => {
                if self.remove(from) {
                    self.push(to);
                }
            }
        }
    }

    /// Calls `each` for the names that `other` lacks, until it says false; whether it never did. Of
    /// sets of which one was made of the other it costs what differs.
    pub fn without<'a>(&'a self, other: &Links, each: &mut dyn FnMut(&'a Link) -> bool) -> bool {
        match (&self.0, &other.0) {
            (Form::Many(root), Form::Many(others)) => root.without(others, 0, each),
            _ => self.iter().filter(|link| !other.contains(link)).all(each),
        }
    }

    /// Whether both have the same names, in whatever order.
    #[must_use]
    pub fn same(&self, other: &Links) -> bool {
        self.len() == other.len() && self.without(other, &mut |_| false)
    }

    /// Shares memory with equal names.
    pub(crate) fn share(&mut self, other: &Links) {
        if self.len() > FEW && self.same(other) {
            self.clone_from(other);
        }
    }
}

impl Default for Links {
    fn default() -> Self {
        Links::new()
    }
}

/// A few are equal in the same order.
impl PartialEq for Links {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Form::Few(links), Form::Few(others)) => links == others,
            _ => self.same(other),
        }
    }
}

impl Eq for Links {}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl FromIterator<Link> for Links {
    fn from_iter<T: IntoIterator<Item = Link>>(names: T) -> Self {
        let mut links = Links::new();
        names.into_iter().for_each(|link| links.push(link));
        links
    }
}

impl<'a> IntoIterator for &'a Links {
    type Item = &'a Link;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl IntoIterator for Links {
    type Item = Link;
    type IntoIter = std::vec::IntoIter<Link>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter().cloned().collect::<Vec<_>>().into_iter()
    }
}

/// Goes through the names of an inode.
#[derive(Clone)]
pub struct Iter<'a> {
    links: std::slice::Iter<'a, Link>,
    above: Vec<std::slice::Iter<'a, Option<Arc<Node>>>>,
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<'a> Iter<'a> {
    fn of(node: &'a Node) -> Self {
        match node {
            Node::Leaf(links) => Iter { links: links.iter(), above: Vec::new() },
            Node::Branch { children, .. } => {
                Iter { links: [].iter(), above: vec![children.iter()] }
            }
        }
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Link;

    fn next(&mut self) -> Option<&'a Link> {
        loop {
            if let Some(link) = self.links.next() {
                return Some(link);
            }
            match self.above.last_mut()?.next() {
                None => drop(self.above.pop()),
                Some(None) => {}
                Some(Some(child)) => match &**child {
                    Node::Leaf(links) => self.links = links.iter(),
                    Node::Branch { children, .. } => self.above.push(children.iter()),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn link(number: u16) -> Link {
        Link::new(Ino(u64::from(number % 3)), number.to_string().into_bytes())
    }

    fn sorted(links: &Links) -> Vec<Link> {
        let mut all: Vec<Link> = links.iter().cloned().collect();
        all.sort();
        all
    }

    fn lacking(links: &Links, other: &Links) -> BTreeSet<Link> {
        let mut found = BTreeSet::new();
        links.without(other, &mut |link| found.insert(link.clone()));
        found
    }

    proptest! {
        #[test]
        fn links_any_history_then_as_a_plain_set(steps: Vec<(bool, u8)>, later: Vec<(bool, u8)>) {
            let mut plain = BTreeSet::new();
            let mut links = Links::new();
            let mut apply = |links: &mut Links, steps: &[(bool, u8)]| {
                for (adds, number) in steps {
                    let link = link((*number).into());
                    match adds {
                        true => {
                            links.push(link.clone());
                            plain.insert(link);
                        }
                        false => assert_eq!(links.remove(&link), plain.remove(&link)),
                    }
                }
                plain.clone()
            };
            let before_plain = apply(&mut links, &steps);
            let before = links.clone();
            let after_plain = apply(&mut links, &later);
            prop_assert_eq!(sorted(&before), before_plain.iter().cloned().collect::<Vec<_>>());
            prop_assert_eq!(sorted(&links), after_plain.iter().cloned().collect::<Vec<_>>());
            prop_assert_eq!(links.len(), after_plain.len());
            prop_assert_eq!(lacking(&links, &before), &after_plain - &before_plain);
            prop_assert_eq!(lacking(&before, &links), &before_plain - &after_plain);
            prop_assert_eq!(links.same(&before), after_plain == before_plain);
            // Made anew they are the same.
            let anew: Links = after_plain.iter().rev().cloned().collect();
            prop_assert!(anew.same(&links) && (links.len() <= FEW || anew == links));
            for number in 0..=u8::MAX {
                let link = link(number.into());
                prop_assert_eq!(links.contains(&link), after_plain.contains(&link));
                prop_assert_eq!(links.has(link.parent, &link.name), after_plain.contains(&link));
            }
        }
    }

    #[test]
    fn links_when_many_and_one_differs_then_few_are_looked_at() {
        let links: Links = (0..20_000).map(link).collect();
        let mut other = links.clone();
        other.push(link(30_000));
        let (Form::Many(root), Form::Many(others)) = (&links.0, &other.0) else { panic!("few") };
        let (Node::Branch { children, .. }, Node::Branch { children: changed, .. }) =
            (&**root, &**others)
        else {
            panic!("a leaf")
        };
        let shared = children.iter().flatten().zip(changed.iter().flatten());
        let shared = shared.filter(|(one, other)| Arc::ptr_eq(one, other)).count();
        assert_eq!(shared, WIDTH - 1);
        assert_eq!(lacking(&other, &links).into_iter().collect::<Vec<_>>(), [link(30_000)]);
    }
}
