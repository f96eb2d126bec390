//! Who follows whom: one hash table for all nodes, from (parent, first page of the edge) to child, and sibling links.
//!
//! A table per node would cost more than the node. The links give the children of a node for traversals and
//! tell a leaf; the table finds one among many. Nothing walks the table, so its order (and its random seed,
//! which keeps users from building collisions) never shows.
//!
//! Invariant: a node is in the table exactly if it is linked below its parent.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::arena::{Arena, NONE};

pub(crate) struct Children {
    table: HashTable<u32>,
    hasher: RandomState,
    /// Tokens in the first page of an edge: `page_size`, and one more for bigram keys.
    page: usize,
}

impl Children {
    pub(crate) fn new(page: usize) -> Self {
        Self { table: HashTable::new(), hasher: RandomState::default(), page }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The child of `parent` whose edge begins with the first page of `key`.
    pub(crate) fn find(&self, nodes: &Arena, parent: u32, key: &[i64]) -> Option<u32> {
        let page = &key[..self.page];
        let first = nodes[parent].first_child;
        if first == NONE {
            return None;
        }
        // Most nodes of a conversation have one child: no hash is needed to find it.
        if nodes[first].next_sibling == NONE {
            return (nodes[first].tokens[..self.page] == *page).then_some(first);
        }
        let hash = self.hasher.hash_one((parent, page));
        self.table.find(hash, |&child| is(nodes, child, parent, page)).copied()
    }

    /// Links `child` below the parent that it names.
    pub(crate) fn attach(&mut self, nodes: &mut Arena, child: u32) {
        let parent = nodes[child].parent;
        let first = std::mem::replace(&mut nodes[parent].first_child, child);
        nodes[child].next_sibling = first;
        nodes[child].previous_sibling = NONE;
        if first != NONE {
            nodes[first].previous_sibling = child;
        }
        let hash = self.hash(nodes, child);
        let (hasher, page) = (&self.hasher, self.page);
        self.table.insert_unique(hash, child, |&other| hash_with(hasher, page, nodes, other));
    }

    /// Unlinks `child` from its parent.
    pub(crate) fn detach(&mut self, nodes: &mut Arena, child: u32) {
        let hash = self.hash(nodes, child);
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == child) {
            entry.remove();
        }
        let (parent, previous, next) =
            (nodes[child].parent, nodes[child].previous_sibling, nodes[child].next_sibling);
        if previous == NONE {
            nodes[parent].first_child = next;
        } else {
            nodes[previous].next_sibling = next;
        }
        if next != NONE {
            nodes[next].previous_sibling = previous;
        }
    }

    /// Whether the table leads to this node.
    pub(crate) fn knows(&self, nodes: &Arena, child: u32) -> bool {
        self.table.find(self.hash(nodes, child), |&other| other == child).is_some()
    }

    fn hash(&self, nodes: &Arena, child: u32) -> u64 {
        hash_with(&self.hasher, self.page, nodes, child)
    }
}

fn hash_with(hasher: &RandomState, page: usize, nodes: &Arena, child: u32) -> u64 {
    let node = &nodes[child];
    hasher.hash_one((node.parent, &node.tokens[..page]))
}

fn is(nodes: &Arena, child: u32, parent: u32, page: &[i64]) -> bool {
    let node = &nodes[child];
    node.parent == parent && node.tokens[..page.len()] == *page
}

/// The children of a node, the youngest first.
pub(crate) fn of(nodes: &Arena, parent: u32) -> impl Iterator<Item = u32> {
    let mut next = nodes[parent].first_child;
    std::iter::from_fn(move || {
        let child = (next != NONE).then_some(next)?;
        next = nodes[child].next_sibling;
        Some(child)
    })
}
