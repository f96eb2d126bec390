//! The ordered queue of what the tree took and dropped, page by page, for routers that follow the cache.
//!
//! A page is named by a chained hash (without a namespace it is the chain of `SGLang`): SHA-256 over the digest of the
//! page before it, if any, and its tokens as little-endian u32. The first page of a named namespace has a digest of the
//! name before it, so that equal pages of two tenants have two hashes.
//!
//! When events are off there is no log at all, so a tree pays one branch.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::arena::Arena;

type Digest = [u8; 32];

/// What the event queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventMode {
    /// No queue.
    #[default]
    Off,
    /// Pages stored and removed.
    Blocks,
    /// Recurrent states, too.
    BlocksAndStates,
}

/// One change of the tree. Hashes are the first 8 bytes of a page's digest, big-endian, signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The tree took a page.
    BlockStored {
        /// The page.
        hash: i64,
        /// The page before it; None for the first of a namespace.
        parent: Option<i64>,
        /// Its tokens; one more than a page for bigram keys, whose pairs overlap.
        tokens: Box<[i64]>,
        /// The namespace it lies in.
        namespace: Option<Arc<str>>,
    },
    /// The tree dropped a page.
    BlockRemoved {
        /// The page.
        hash: i64,
    },
    /// A state was kept at the end of this page.
    StateStored {
        /// The page.
        hash: i64,
    },
    /// The state at the end of this page was dropped.
    StateRemoved {
        /// The page.
        hash: i64,
    },
    /// The tree was reset.
    AllCleared,
}

/// The queue, and the digests of every page in the tree.
pub(crate) struct EventLog {
    states: bool,
    page_size: usize,
    bigram: bool,
    queue: Vec<Event>,
    /// By node index, one digest a page; stale where no node lives.
    digests: Vec<Box<[Digest]>>,
}

impl EventLog {
    pub(crate) fn new(mode: EventMode, page_size: usize, bigram: bool) -> Option<Self> {
        let states = mode == EventMode::BlocksAndStates;
        (mode != EventMode::Off).then_some(Self {
            states,
            page_size,
            bigram,
            queue: Vec::new(),
            digests: Vec::new(),
        })
    }

    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.queue)
    }

    pub(crate) fn cleared(&mut self) {
        self.digests = Vec::new();
        self.queue.push(Event::AllCleared);
    }

    /// A new leaf: all its pages are new.
    pub(crate) fn stored(&mut self, nodes: &Arena, node: u32, namespace: Option<&str>) {
        let digests = self.chain(nodes, node, namespace);
        let name: Option<Arc<str>> = namespace.map(Into::into);
        let mut parent = self.last_above(nodes, node).map(hash);
        for (digest, page) in digests.iter().zip(self.pages(nodes, node)) {
            let stored = Event::BlockStored {
                hash: hash(digest),
                parent: parent.replace(hash(digest)),
                tokens: page.into(),
                namespace: name.clone(),
            };
            self.queue.push(stored);
        }
        self.set(node, digests.into());
    }

    /// Whether the digests of a node are those of its pages.
    pub(crate) fn knows(&self, nodes: &Arena, node: u32, namespace: Option<&str>) -> bool {
        self.digests.get(node as usize).is_some_and(|kept| **kept == self.chain(nodes, node, namespace))
    }

    /// The digests of a node's pages, after what is kept of its parent.
    fn chain(&self, nodes: &Arena, node: u32, namespace: Option<&str>) -> Vec<Digest> {
        let above = self.last_above(nodes, node).copied();
        let mut before = above.or_else(|| namespace.map(namespace_digest));
        let digest = |page| *before.insert(self.page_digest(before.as_ref(), page));
        self.pages(nodes, node).map(digest).collect()
    }

    /// The digest of the last page before a node.
    fn last_above(&self, nodes: &Arena, node: u32) -> Option<&Digest> {
        let parent = nodes[node].parent;
        if nodes[parent].is_root() { None } else { self.last(parent) }
    }

    /// The tokens of each page of a node's edge; for bigram keys one more than a page.
    fn pages<'a>(&self, nodes: &'a Arena, node: u32) -> impl Iterator<Item = &'a [i64]> + use<'a> {
        let (size, overlap) = (self.page_size, usize::from(self.bigram));
        let node = &nodes[node];
        (0..node.units()).step_by(size).map(move |from| &node.tokens[from..from + size + overlap])
    }

    /// A node is deleted: its pages are gone.
    pub(crate) fn removed(&mut self, node: u32) {
        let digests = std::mem::take(&mut self.digests[node as usize]);
        self.queue.extend(digests.iter().map(|digest| Event::BlockRemoved { hash: hash(digest) }));
    }

    pub(crate) fn state_stored(&mut self, node: u32) {
        let hash = self.last(node).map(hash).filter(|_| self.states);
        self.queue.extend(hash.map(|hash| Event::StateStored { hash }));
    }

    pub(crate) fn state_removed(&mut self, node: u32) {
        let hash = self.last(node).map(hash).filter(|_| self.states);
        self.queue.extend(hash.map(|hash| Event::StateRemoved { hash }));
    }

    /// The first `units` of `lower` became the node `upper`.
    pub(crate) fn split(&mut self, upper: u32, lower: u32, units: usize) {
        let mut digests = std::mem::take(&mut self.digests[lower as usize]).into_vec();
        let rest = digests.split_off(units / self.page_size);
        self.set(upper, digests.into());
        self.set(lower, rest.into());
    }

    fn last(&self, node: u32) -> Option<&Digest> {
        self.digests[node as usize].last()
    }

    fn set(&mut self, node: u32, digests: Box<[Digest]>) {
        if self.digests.len() <= node as usize {
            self.digests.resize_with(node as usize + 1, Box::default);
        }
        self.digests[node as usize] = digests;
    }

    fn page_digest(&self, before: Option<&Digest>, page: &[i64]) -> Digest {
        let mut sha = Sha256::new();
        sha.update(before.map_or(&[][..], |digest| &digest[..]));
        for unit in page.windows(1 + usize::from(self.bigram)) {
            for &token in unit {
                sha.update((token as u32).to_le_bytes());
            }
        }
        sha.finalize().into()
    }
}

fn namespace_digest(name: &str) -> Digest {
    Sha256::new().chain_update(b"stemcache namespace\0").chain_update(name).finalize().into()
}

fn hash(digest: &Digest) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}
