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
        let (parent, tokens) = (nodes[node].parent, &nodes[node].tokens);
        let above = if nodes[parent].is_root() { None } else { self.last(parent).copied() };
        let name: Option<Arc<str>> = namespace.map(Into::into);
        let mut before = above.or_else(|| namespace.map(namespace_digest));
        let mut parent_hash = above.as_ref().map(hash);
        let mut digests = Vec::with_capacity(nodes[node].units() / self.page_size);
        for from in (0..nodes[node].units()).step_by(self.page_size) {
            let page = &tokens[from..from + self.page_size + usize::from(self.bigram)];
            let digest = self.page_digest(before.as_ref(), page);
            self.queue.push(Event::BlockStored {
                hash: hash(&digest),
                parent: parent_hash,
                tokens: page.into(),
                namespace: name.clone(),
            });
            parent_hash = Some(hash(&digest));
            before = Some(digest);
            digests.push(digest);
        }
        self.set(node, digests.into());
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
