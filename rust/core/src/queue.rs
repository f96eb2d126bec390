//! The evictable nodes of one resource in exact LRU order, without a cost for those that are not evictable.
//!
//! A node's place in the recency order is its stamp from the tree's one clock. Most nodes become evictable, or are
//! touched, with a stamp younger than all others: they form a linked list, where both take a few stores. A node
//! that comes back with an old stamp (unlocked, or a parent whose last child went) goes to a heap that knows
//! the position of each member. The oldest is the older of the list's head and the heap's top, so there are no
//! stale entries, and no call pays for what others locked or touched.
//!
//! Invariants: stamps rise strictly from the head to the tail; the heap is ordered and its positions are
//! right; a node is in at most one of the two, as its `standing` says.

use crate::arena::{Arena, NONE};
use crate::node::{Claim, Resource, Standing};

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) stamp: u64,
    pub(crate) node: u32,
}

pub(crate) struct Queue {
    resource: Resource,
    pub(crate) oldest: u32,
    pub(crate) youngest: u32,
    pub(crate) heap: Vec<Entry>,
}

impl Queue {
    pub(crate) fn new(resource: Resource) -> Self {
        Self { resource, oldest: NONE, youngest: NONE, heap: Vec::new() }
    }

    pub(crate) fn claim<'a>(&self, nodes: &'a Arena, node: u32) -> &'a Claim {
        nodes[node].claim(self.resource)
    }

    fn stand(&self, nodes: &mut Arena, node: u32, standing: Standing) {
        nodes[node].claim_mut(self.resource).standing = standing;
    }

    /// The least recently used member.
    pub(crate) fn peek(&self, nodes: &Arena) -> Option<u32> {
        let top = self.heap.first();
        if self.oldest == NONE {
            return top.map(|entry| entry.node);
        }
        match top {
            Some(entry) if entry.stamp < self.claim(nodes, self.oldest).stamp => Some(entry.node),
            _ => Some(self.oldest),
        }
    }

    /// Makes the node a member, or not, at the place that its stamp says.
    pub(crate) fn set_member(&mut self, nodes: &mut Arena, node: u32, member: bool) {
        if !member {
            self.leave(nodes, node);
        } else if self.claim(nodes, node).standing == Standing::Out {
            self.enter(nodes, node);
        }
    }

    /// Follows a member whose stamp has just become the youngest of all. Others are left alone.
    pub(crate) fn refresh(&mut self, nodes: &mut Arena, node: u32) {
        if node != self.youngest && self.claim(nodes, node).standing != Standing::Out {
            self.leave(nodes, node);
            self.append(nodes, node);
        }
    }

    fn enter(&mut self, nodes: &mut Arena, node: u32) {
        let stamp = self.claim(nodes, node).stamp;
        if self.youngest == NONE || self.claim(nodes, self.youngest).stamp < stamp {
            self.append(nodes, node);
        } else {
            self.heap.push(Entry { stamp, node });
            self.sift_up(nodes, self.heap.len() - 1);
        }
    }

    fn leave(&mut self, nodes: &mut Arena, node: u32) {
        match self.claim(nodes, node).standing {
            Standing::Out => {}
            Standing::Listed { older, younger } => self.unlink(nodes, older, younger),
            Standing::Heaped { position } => self.remove_from_heap(nodes, position as usize),
        }
        self.stand(nodes, node, Standing::Out);
    }

    fn append(&mut self, nodes: &mut Arena, node: u32) {
        let last = self.youngest;
        self.stand(nodes, node, Standing::Listed { older: last, younger: NONE });
        self.set_younger(nodes, last, node);
        self.youngest = node;
    }

    fn unlink(&mut self, nodes: &mut Arena, older: u32, younger: u32) {
        self.set_younger(nodes, older, younger);
        self.set_older(nodes, younger, older);
    }

    fn set_younger(&mut self, nodes: &mut Arena, node: u32, to: u32) {
        if node == NONE {
            self.oldest = to;
        } else if let Standing::Listed { younger, .. } = &mut nodes[node].claim_mut(self.resource).standing {
            *younger = to;
        }
    }

    fn set_older(&mut self, nodes: &mut Arena, node: u32, to: u32) {
        if node == NONE {
            self.youngest = to;
        } else if let Standing::Listed { older, .. } = &mut nodes[node].claim_mut(self.resource).standing {
            *older = to;
        }
    }

    fn remove_from_heap(&mut self, nodes: &mut Arena, position: usize) {
        self.heap.swap_remove(position);
        if position < self.heap.len() {
            self.sift_up(nodes, position);
            self.sift_down(nodes, position);
        }
    }

    /// Moves the entry at `at` towards the top until its parent is older, and notes where it lies.
    fn sift_up(&mut self, nodes: &mut Arena, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 && entry.stamp < self.heap[(at - 1) / 2].stamp {
            self.place(nodes, at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.place(nodes, at, entry);
    }

    /// Moves the entry at `at` towards the bottom until both children are younger.
    fn sift_down(&mut self, nodes: &mut Arena, mut at: usize) {
        let entry = self.heap[at];
        while let Some(child) = self.older_child(at).filter(|&c| self.heap[c].stamp < entry.stamp) {
            self.place(nodes, at, self.heap[child]);
            at = child;
        }
        self.place(nodes, at, entry);
    }

    fn older_child(&self, at: usize) -> Option<usize> {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        match (self.heap.get(left), self.heap.get(right)) {
            (Some(a), Some(b)) if b.stamp < a.stamp => Some(right),
            (Some(_), _) => Some(left),
            (None, _) => None,
        }
    }

    fn place(&mut self, nodes: &mut Arena, at: usize, entry: Entry) {
        self.heap[at] = entry;
        self.stand(nodes, entry.node, Standing::Heaped { position: at as u32 });
    }
}

#[cfg(test)]
mod tests;
