//! One node of the tree: an edge of tokens with their KV slots, and perhaps the state at its end.

use crate::arena::NONE;

/// Which of the two resources a list, a count or a lock is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Kv,
    State,
}

/// Where a node stands in the eviction queue of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not evictable: locked, internal (KV), or without a state.
    Out,
    /// In the list, between an older and a younger neighbour (`NONE` at the ends).
    Listed { older: u32, younger: u32 },
    /// In the heap, at this position.
    Heaped { position: u32 },
}

/// What a node needs for one resource: its recency, its place in the queue, its locks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// The clock when it was last touched: a node's place in the recency order. 0 for "never".
    pub(crate) stamp: u64,
    pub(crate) standing: Standing,
    pub(crate) locks: u32,
}

impl Claim {
    const NEW: Self = Self { stamp: 0, standing: Standing::Out, locks: 0 };
}

/// A node. Its key is the edge from its parent; the root of a namespace has an empty one.
///
/// Lengths are in units: tokens, or pairs for bigram keys (`tokens` then holds one more, the boundary that it
/// shares with its children).
pub(crate) struct Node {
    pub(crate) tokens: Box<[i64]>,
    /// One KV slot a unit.
    pub(crate) slots: Box<[u32]>,
    pub(crate) kv: Claim,
    pub(crate) state: Claim,
    pub(crate) parent: u32,
    pub(crate) first_child: u32,
    pub(crate) next_sibling: u32,
    pub(crate) previous_sibling: u32,
    /// Units from the root to the end of the edge.
    pub(crate) end: u32,
    /// The slot of the state at the end; 0 makes the node a tombstone.
    pub(crate) state_slot: u32,
    /// Set by the arena.
    pub(crate) generation: u32,
    /// The node is a tombstone because its state was evicted (an upper half of a split never had one).
    pub(crate) lost_state: bool,
    /// A lock saved this childless tombstone from being deleted.
    pub(crate) spared: bool,
    /// The state's bytes are still being written: nobody may go on from it, and it cannot be evicted.
    pub(crate) pending: bool,
}

impl Node {
    pub(crate) fn new(parent: u32, end: usize, tokens: Box<[i64]>, slots: Box<[u32]>) -> Self {
        Self {
            tokens,
            slots,
            kv: Claim::NEW,
            state: Claim::NEW,
            parent,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            end: end as u32,
            state_slot: 0,
            generation: 0,
            lost_state: false,
            spared: false,
            pending: false,
        }
    }

    /// The root of a namespace: locked for ever, so that nothing evicts it.
    pub(crate) fn root() -> Self {
        let mut root = Self::new(NONE, 0, Box::default(), Box::default());
        root.kv.locks = 1;
        root
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent == NONE
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.first_child == NONE
    }

    pub(crate) fn has_state(&self) -> bool {
        self.state_slot != 0
    }

    /// Whether the node could be deleted as it stands. (A pending state holds a KV lock.)
    pub(crate) fn is_evictable_leaf(&self) -> bool {
        self.is_leaf() && self.kv.locks == 0
    }

    /// Whether a request can go on from the state.
    pub(crate) fn has_usable_state(&self) -> bool {
        self.has_state() && !self.pending
    }

    /// Whether something keeps the state from being evicted.
    pub(crate) fn state_is_protected(&self) -> bool {
        self.state.locks > 0 || self.pending
    }

    pub(crate) fn units(&self) -> usize {
        self.slots.len()
    }

    /// Units from the root to where the edge begins.
    pub(crate) fn start(&self) -> usize {
        self.end as usize - self.units()
    }

    pub(crate) fn claim(&self, resource: Resource) -> &Claim {
        match resource {
            Resource::Kv => &self.kv,
            Resource::State => &self.state,
        }
    }

    pub(crate) fn claim_mut(&mut self, resource: Resource) -> &mut Claim {
        match resource {
            Resource::Kv => &mut self.kv,
            Resource::State => &mut self.state,
        }
    }
}
