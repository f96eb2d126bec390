//! The few steps that change the tree's shape or recency; every operation is made of them.

use super::Tree;
use crate::arena::NONE;
use crate::node::Node;

impl Tree {
    /// Makes a node the most recently used of the KV list and, if it has a state, of the state list.
    pub(super) fn touch(&mut self, index: u32) {
        self.clock += 1;
        let node = &mut self.nodes[index];
        node.kv.stamp = self.clock;
        let has_state = node.has_state();
        self.kv_queue.refresh(&mut self.nodes, index);
        if has_state {
            self.nodes[index].state.stamp = self.clock;
            self.state_queue.refresh(&mut self.nodes, index);
        }
    }

    /// Enters or leaves both queues, whichever the node's locks, children and state now say.
    pub(super) fn requeue(&mut self, index: u32) {
        let node = &self.nodes[index];
        let kv = node.is_evictable_leaf();
        let state = node.has_state() && !node.state_is_protected();
        self.kv_queue.set_member(&mut self.nodes, index, kv);
        self.state_queue.set_member(&mut self.nodes, index, state);
    }

    /// The root of a namespace, made if nothing was cached there.
    pub(super) fn root_of(&mut self, namespace: Option<&str>) -> u32 {
        self.namespaces.root(namespace).unwrap_or_else(|| {
            let root = self.nodes.insert(Node::root());
            self.namespaces.add(namespace, root);
            root
        })
    }

    /// The root above a node.
    pub(super) fn root_above(&self, mut index: u32) -> u32 {
        while self.nodes[index].parent != NONE {
            index = self.nodes[index].parent;
        }
        index
    }

    /// A new unlocked leaf below `parent`, the most recent of all. Its slots are owned by the tree already.
    pub(super) fn add_leaf(&mut self, parent: u32, tokens: &[i64], slots: Box<[u32]>) -> u32 {
        let (units, end) = (slots.len(), self.nodes[parent].end as usize + slots.len());
        let leaf = self.nodes.insert(Node::new(parent, end, tokens.into(), slots));
        self.children.attach(&mut self.nodes, leaf);
        self.nodes[parent].spared = false;
        self.requeue(parent);
        self.kv_account.evictable += units;
        self.touch(leaf);
        self.requeue(leaf);
        self.log_stored(leaf);
        leaf
    }

    fn log_stored(&mut self, leaf: u32) {
        if self.events.is_none() {
            return;
        }
        let root = self.root_above(leaf);
        if let Some(events) = &mut self.events {
            events.stored(&self.nodes, leaf, self.namespaces.name(root));
        }
    }

    /// Puts a state at the end of a tombstone, as the most recent one. One that is not ready waits for
    /// `publish_state`, and meanwhile protects the KV of its path.
    pub(super) fn give_state(&mut self, index: u32, slot: u32, ready: bool) {
        let node = &mut self.nodes[index];
        node.state_slot = slot;
        node.state.stamp = node.kv.stamp;
        node.spared = false;
        node.pending = !ready;
        if ready {
            self.state_account.evictable += 1;
            self.announce_state(index);
        } else {
            self.state_account.protected += 1;
            self.protect_path(index, NONE);
        }
        self.requeue(index);
    }

    /// A state waits no more; what it protected is released.
    pub(super) fn settle_state(&mut self, index: u32) {
        self.nodes[index].pending = false;
        self.state_account.release(1);
        self.release_path(index);
        self.requeue(index);
    }

    /// Everybody can see the state from now on.
    pub(super) fn announce_state(&mut self, index: u32) {
        self.nodes[index].lost_state = false;
        if let Some(events) = &mut self.events {
            events.state_stored(index);
        }
    }

    /// Takes an unlocked state out of its node, which becomes a tombstone.
    pub(super) fn take_state(&mut self, index: u32) -> u32 {
        if let Some(events) = &mut self.events {
            events.state_removed(index);
        }
        self.nodes[index].lost_state = true;
        self.clear_state(index)
    }

    /// Takes out an unlocked state that nobody has seen.
    pub(super) fn clear_state(&mut self, index: u32) -> u32 {
        let node = &mut self.nodes[index];
        let slot = std::mem::take(&mut node.state_slot);
        node.spared = node.is_leaf();
        self.state_account.evictable -= 1;
        self.state_owned.remove(slot);
        self.requeue(index);
        slot
    }

    /// Cuts a node after `units`: a new upper node takes the front, the node keeps its identity, state and locks.
    ///
    /// Both become most recent, the upper one first. Returns the upper one.
    pub(super) fn split(&mut self, lower: u32, units: usize) -> u32 {
        self.children.detach(&mut self.nodes, lower);
        let node = &mut self.nodes[lower];
        let (front, rest) = cut(&node.tokens, units, self.overlap);
        let (front_slots, rest_slots) = cut(&node.slots, units, 0);
        (node.tokens, node.slots) = (rest, rest_slots);
        let mut upper = Node::new(node.parent, node.start(), front, front_slots);
        upper.kv.locks = node.kv.locks;
        let upper = self.nodes.insert(upper);
        self.nodes[lower].parent = upper;
        self.children.attach(&mut self.nodes, upper);
        self.children.attach(&mut self.nodes, lower);
        if let Some(events) = &mut self.events {
            events.split(upper, lower, units);
        }
        self.counters.splits += 1;
        self.touch(upper);
        self.touch(lower);
        upper
    }

    /// Deletes an unlocked leaf without a state. Returns its slots, and its parent unless that was a root which
    /// went with its last child.
    pub(super) fn delete_leaf(&mut self, index: u32) -> (Box<[u32]>, Option<u32>) {
        if let Some(events) = &mut self.events {
            events.removed(index);
        }
        self.kv_queue.set_member(&mut self.nodes, index, false);
        self.children.detach(&mut self.nodes, index);
        let node = self.nodes.remove(index);
        self.kv_account.evictable -= node.units();
        self.kv_owned.remove_all(&node.slots);
        let parent = &self.nodes[node.parent];
        if !(parent.is_root() && parent.is_leaf()) {
            return (node.slots, Some(node.parent));
        }
        self.namespaces.remove(node.parent);
        self.nodes.remove(node.parent);
        (node.slots, None)
    }

    /// The slots of the path from below `above` (a node or root over `end`) to `end`, in order.
    pub(super) fn slots_between(&self, above: u32, end: u32) -> Vec<i64> {
        let mut path = Vec::new();
        let mut index = end;
        while index != above {
            path.push(index);
            index = self.nodes[index].parent;
        }
        path.reverse();
        self.slots_of(&path)
    }

    /// The slots of these nodes, in order.
    pub(super) fn slots_of(&self, path: &[u32]) -> Vec<i64> {
        let units = path.iter().map(|&index| self.nodes[index].units()).sum();
        let mut slots = Vec::with_capacity(units);
        for &index in path {
            slots.extend(self.nodes[index].slots.iter().copied().map(i64::from));
        }
        slots
    }
}

/// Both sides of a cut after `at`; the front keeps `overlap` items that the rest has, too.
fn cut<T: Copy>(items: &[T], at: usize, overlap: usize) -> (Box<[T]>, Box<[T]>) {
    (items[..at + overlap].into(), items[at..].into())
}
