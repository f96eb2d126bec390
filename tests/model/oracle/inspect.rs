//! What the tests ask the oracle about itself: sizes, orders, and all that is in it.

use std::collections::BTreeSet;

use super::{From, Oracle, Place, Spelled};

impl Oracle {
    pub(crate) fn kv_slots(&self) -> Vec<i64> {
        self.slots.values().flatten().copied().collect()
    }

    pub(crate) fn state_slots(&self) -> Vec<i64> {
        self.nodes.values().filter_map(|node| node.state).collect()
    }

    /// Evictable and protected tokens, evictable and protected states.
    pub(crate) fn sizes(&self) -> [usize; 4] {
        let mut sizes = [0; 4];
        for (place, node) in &self.nodes {
            sizes[usize::from(self.kv_locks(place) > 0)] += self.edge(place).len() * self.config.page_size;
            sizes[2 + usize::from(!self.state_can_go(place))] += usize::from(node.state.is_some());
        }
        sizes
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The last token before a node's end: what a bigram key that goes on from there must repeat.
    pub(crate) fn last_token(&self, node: u64) -> Option<i64> {
        let place = self.place_of(node)?;
        place.pages.last().map(|page| self.last_of_page(*page))
    }

    /// The receipts that can still be given back.
    pub(crate) fn held_receipts(&self) -> Vec<usize> {
        let held = |number: &usize| self.locks[*number].held && self.locks[*number].life == self.life;
        (0..self.locks.len()).filter(held).collect()
    }

    /// Where an advance of this receipt begins.
    pub(crate) fn start_of(&self, receipt: usize) -> From {
        let on = &self.locks[receipt].on;
        self.nodes.get(on).map_or_else(|| From::Root(on.namespace.clone()), |node| From::After(node.id))
    }

    /// The same for what a receipt locks.
    pub(crate) fn last_locked_token(&self, receipt: usize) -> Option<i64> {
        self.locks[receipt].on.pages.last().map(|page| self.last_of_page(*page))
    }

    fn last_of_page(&self, page: usize) -> i64 {
        let (first, second) = self.known_pages[page][self.config.page_size - 1];
        if self.config.bigram { second } else { first }
    }

    /// Where each page in the tree ends, as all units from its root.
    pub(crate) fn page_ends(&self) -> BTreeSet<Spelled> {
        self.slots.keys().map(|place| self.spell(place)).collect()
    }

    /// Where each state in the tree lies, as all units from its root.
    pub(crate) fn state_ends(&self) -> BTreeSet<Spelled> {
        let told = self.state_order.iter().filter(|place| !self.nodes[*place].pending);
        told.map(|place| self.spell(place)).collect()
    }

    pub(super) fn spell(&self, place: &Place) -> Spelled {
        let units = place.pages.iter().flat_map(|page| self.known_pages[*page].iter().copied());
        (place.namespace.clone(), units.collect())
    }

    /// Both orders, oldest first, in the numbers that nodes have when they are sorted by namespace and key.
    pub(crate) fn orders(&self) -> [Vec<usize>; 2] {
        let mut sorted: Vec<&Place> = self.nodes.keys().collect();
        sorted.sort_by_cached_key(|place| self.spell(place));
        [&self.kv_order, &self.state_order].map(|order| {
            let number = |node: &Place| sorted.iter().position(|place| *place == node);
            order.iter().map(|node| number(node).expect("what is in an order is a node")).collect()
        })
    }

    /// All that a digest must tell apart: keys, slots, states, lock counts and both orders.
    pub(crate) fn snapshot(&self) -> impl std::hash::Hash + use<> {
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|(place, node)| {
                (place.clone(), node.state, node.pending, self.kv_locks(place), self.state_locks(place))
            })
            .collect();
        (nodes, self.slots.clone(), self.kv_order.clone(), self.state_order.clone())
    }
}
