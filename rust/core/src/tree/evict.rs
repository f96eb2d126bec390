//! Eviction of both resources, dropping a namespace, and reset.

use super::Tree;
use crate::account::Account;
use crate::children::{self, Children};
use crate::namespaces::Namespaces;
use crate::node::Resource;
use crate::queue::Queue;
use crate::slot_set::SlotSet;

/// The slots that a call took out of the tree: the caller frees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evicted {
    /// KV slots.
    pub kv_slots: Vec<i64>,
    /// State slots.
    pub state_slots: Vec<i64>,
}

impl Tree {
    /// Frees at least `tokens` tokens, then `states` states more; what there is, if that is less.
    ///
    /// Tokens go by leaf, least recently used first, each with its state; a parent that so becomes a childless
    /// tombstone goes, too. States go least recently used first, leaf or not: an inner node keeps its KV.
    /// What is locked never goes.
    pub fn evict(&mut self, tokens: usize, states: usize) -> Evicted {
        let mut out = Evicted::default();
        while out.kv_slots.len() < tokens {
            let Some(leaf) = self.kv_queue.peek(&self.nodes) else { break };
            self.evict_leaf(leaf, &mut out);
        }
        let wanted = out.state_slots.len().saturating_add(states);
        while out.state_slots.len() < wanted {
            let Some(node) = self.state_queue.peek(&self.nodes) else { break };
            self.evict_state(node, &mut out);
        }
        self.count_evicted(&out);
        out
    }

    /// Drops everything unlocked in a namespace.
    pub fn drop_namespace(&mut self, namespace: Option<&str>) -> Evicted {
        let mut out = Evicted::default();
        if let Some(root) = self.namespaces.root(namespace) {
            // Children before their parents.
            for node in self.below(root).into_iter().rev() {
                self.drop_unlocked(node, &mut out);
            }
        }
        self.count_evicted(&out);
        out
    }

    /// Empties the tree, whatever is locked, and gives every slot back. All handles and receipts become stale.
    pub fn reset(&mut self) -> Evicted {
        let out = Evicted { kv_slots: self.kv_slots(), state_slots: self.state_slots() };
        self.nodes.clear();
        self.children = Children::new(self.page_size + self.overlap);
        self.namespaces = Namespaces::new();
        self.kv_queue = Queue::new(Resource::Kv);
        self.state_queue = Queue::new(Resource::State);
        self.kv_account = Account::default();
        self.state_account = Account::default();
        self.kv_owned = SlotSet::new("KV");
        self.state_owned = SlotSet::new("state");
        self.receipts.clear();
        if let Some(events) = &mut self.events {
            events.cleared();
        }
        out
    }

    fn evict_leaf(&mut self, leaf: u32, out: &mut Evicted) {
        if self.nodes[leaf].has_state() {
            out.state_slots.push(i64::from(self.take_state(leaf)));
        }
        let parent = self.delete(leaf, out);
        self.prune(parent, out);
    }

    fn evict_state(&mut self, node: u32, out: &mut Evicted) {
        if self.nodes[node].is_evictable_leaf() {
            self.evict_leaf(node, out);
        } else {
            out.state_slots.push(i64::from(self.take_state(node)));
            self.counters.tombstoned_states += 1;
        }
    }

    fn drop_unlocked(&mut self, node: u32, out: &mut Evicted) {
        let unlocked = self.nodes[node].is_evictable_leaf();
        if self.nodes[node].has_state() && !self.nodes[node].state_is_protected() {
            out.state_slots.push(i64::from(self.take_state(node)));
            self.counters.tombstoned_states += u64::from(!unlocked);
        }
        if unlocked {
            let parent = self.delete(node, out);
            self.settle(parent);
        }
    }

    /// Takes out a state that nobody has seen, and the node, too, if that leaves it a tombstone without children or lock.
    pub(super) fn drop_state(&mut self, node: u32) -> Evicted {
        let mut out = Evicted { state_slots: vec![i64::from(self.clear_state(node))], ..Evicted::default() };
        self.prune(Some(node), &mut out);
        self.count_evicted(&out);
        out
    }

    /// Deletes a leaf whose state is gone; returns its parent, unless that was a root that went with it.
    fn delete(&mut self, leaf: u32, out: &mut Evicted) -> Option<u32> {
        let (slots, parent) = self.delete_leaf(leaf);
        out.kv_slots.extend(slots.iter().copied().map(i64::from));
        parent
    }

    /// Deletes childless tombstones upwards, until one is locked, has a state or children, or is the root.
    fn prune(&mut self, mut from: Option<u32>, out: &mut Evicted) {
        while let Some(node) = from {
            let claim = &self.nodes[node];
            if !claim.is_leaf() || claim.has_state() || claim.kv.locks > 0 {
                return self.settle(from);
            }
            from = self.delete(node, out);
        }
    }

    /// Puts a node that lost a child in its place: it may be evictable now, or a tombstone that its lock has saved.
    fn settle(&mut self, node: Option<u32>) {
        if let Some(index) = node {
            let node = &mut self.nodes[index];
            node.spared = node.is_leaf() && !node.has_state();
            self.requeue(index);
        }
    }

    fn count_evicted(&mut self, out: &Evicted) {
        self.counters.evicted_tokens += out.kv_slots.len() as u64;
        self.counters.evicted_states += out.state_slots.len() as u64;
    }

    /// All nodes below a root, parents before their children.
    pub(crate) fn below(&self, root: u32) -> Vec<u32> {
        let mut found: Vec<u32> = children::of(&self.nodes, root).collect();
        let mut next = 0;
        while let Some(&node) = found.get(next) {
            found.extend(children::of(&self.nodes, node));
            next += 1;
        }
        found
    }
}
