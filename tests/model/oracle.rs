//! What the tree must answer, in the plainest words we found: no tree, no counters, no links.
//!
//! A *place* is a namespace and a run of whole pages from its root. The oracle keeps the slots of every page by the
//! place where the page ends, and a set of *nodes*, which are just places: a node's parent is its longest proper
//! prefix that is a node, its edge is what lies between. Recency is the order of two vectors, locks are a list of
//! receipts. Everything else is searched for or added up whenever it is asked.
//!
//! It was written from the specification, without a look at the tree.

mod inspect;
mod rules;

use std::collections::BTreeMap;

use stemcache::{Config, Entry, Reason};

pub(crate) type Namespace = Option<String>;

/// A namespace and all units from its root.
pub(crate) type Spelled = (Namespace, Vec<(i64, i64)>);

/// The mistakes of a caller, as the variants of `stemcache::Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mistake {
    Argument,
    StaleNode,
    StaleLock,
    NotLocked,
    NotPending,
    SlotRange,
    SlotOwner,
    Namespace,
}

/// An answer, or all that is wrong with the call (a tree may name any of it).
pub(crate) type Verdict<T> = Result<T, Vec<Mistake>>;

/// A namespace and whole pages from its root, each page by its number in `Oracle::known_pages`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) namespace: Namespace,
    pub(crate) pages: Vec<usize>,
}

impl Node {
    fn usable(&self) -> bool {
        self.state.is_some() && !self.pending
    }
}

impl Place {
    fn root(namespace: &Namespace) -> Self {
        Self { namespace: namespace.clone(), pages: Vec::new() }
    }

    fn first(&self, pages: usize) -> Self {
        Self { namespace: self.namespace.clone(), pages: self.pages[..pages].to_vec() }
    }

    fn is_in(&self, longer: &Self) -> bool {
        self.namespace == longer.namespace && longer.pages.starts_with(&self.pages)
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}

/// Where a key begins: a namespace's root, or the end of the node with this number.
#[derive(Debug, Clone)]
pub(crate) enum From {
    Root(Namespace),
    After(u64),
    AfterIn(u64, Namespace),
}

#[derive(Debug, Clone)]
struct Node {
    /// A number of its own for ever: what a handle names.
    id: u64,
    state: Option<i64>,
    /// It had a state, and an eviction took it.
    lost_state: bool,
    /// The state is still to be written: nobody can use, lock or evict it.
    pending: bool,
}

/// A receipt. A lock of nothing lies on a root, which is never a node.
#[derive(Debug, Clone)]
struct Lock {
    on: Place,
    state: bool,
    held: bool,
    life: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) length: usize,
    pub(crate) slots: Vec<i64>,
    pub(crate) node: Option<u64>,
    pub(crate) state_slot: Option<i64>,
    pub(crate) kv_length: usize,
    pub(crate) branching_length: Option<usize>,
    pub(crate) reason: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) prefix_length: usize,
    pub(crate) state_exists: bool,
    pub(crate) freed_slots: Vec<i64>,
    pub(crate) node: Option<u64>,
}

/// Slots that left the tree, in no order that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) kv: Vec<i64>,
    pub(crate) states: Vec<i64>,
}

pub(crate) struct Oracle {
    config: Config,
    /// Every page ever seen, as units (a token, or a pair of them).
    known_pages: Vec<Vec<(i64, i64)>>,
    slots: BTreeMap<Place, Vec<i64>>,
    nodes: BTreeMap<Place, Node>,
    /// Least recently used first.
    kv_order: Vec<Place>,
    state_order: Vec<Place>,
    locks: Vec<Lock>,
    /// How often it was reset.
    life: u32,
    born: u64,
    /// How often what happened: so that a test can tell that it tested something.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

impl Oracle {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            known_pages: Vec::new(),
            slots: BTreeMap::new(),
            nodes: BTreeMap::new(),
            kv_order: Vec::new(),
            state_order: Vec::new(),
            locks: Vec::new(),
            life: 0,
            born: 0,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn peek(&mut self, from: &From, tokens: &[i64], limit: Option<usize>) -> Verdict<Found> {
        let start = self.start(from)?;
        Ok(self.look(&start, tokens, limit).0)
    }

    pub(crate) fn find(&mut self, from: &From, tokens: &[i64], limit: Option<usize>) -> Verdict<Found> {
        let start = self.start(from)?;
        let (found, hit) = self.look(&start, tokens, limit);
        self.touch_path(&hit);
        Ok(found)
    }

    /// `find`, and the number of the receipt.
    pub(crate) fn find_and_lock(
        &mut self,
        from: &From,
        tokens: &[i64],
        limit: Option<usize>,
    ) -> Verdict<(Found, usize)> {
        let start = self.start(from)?;
        let (found, hit) = self.look(&start, tokens, limit);
        self.touch_path(&hit);
        Ok((found, self.grant(hit)))
    }

    pub(crate) fn insert(&mut self, from: &From, entry: &Entry<'_>) -> Verdict<Stored> {
        let start = self.start(from)?;
        Ok(self.store(&start, entry)?.0)
    }

    /// What was stored, the tree's slots of the new part, and the number of the new receipt.
    pub(crate) fn advance(
        &mut self,
        receipt: usize,
        entry: &Entry<'_>,
    ) -> Verdict<(Stored, Vec<i64>, usize)> {
        self.held(receipt)?;
        let start = self.locks[receipt].on.clone();
        let (stored, end) = self.store(&start, entry)?;
        self.locks[receipt].held = false;
        let slots = self.slots_of(&end, start.len());
        Ok((stored, slots, self.grant(end)))
    }

    pub(crate) fn lock(&mut self, node: u64) -> Verdict<usize> {
        let place = self.place_of(node).ok_or_else(|| vec![Mistake::StaleNode])?;
        self.note("lock of a tombstone", self.nodes[&place].state.is_none());
        self.note("lock of a node whose state is pending", self.nodes[&place].pending);
        Ok(self.grant(place))
    }

    pub(crate) fn publish(&mut self, node: u64) -> Verdict<()> {
        let place = self.pending_place(node)?;
        self.node_mut(&place).pending = false;
        self.note("state published", true);
        Ok(())
    }

    pub(crate) fn discard(&mut self, node: u64) -> Verdict<Freed> {
        let place = self.pending_place(node)?;
        let mut freed = Freed::default();
        let node = self.node_mut(&place);
        node.pending = false;
        freed.states.extend(node.state.take());
        self.state_order.retain(|other| *other != place);
        self.note("state discarded", true);
        if self.can_go(&place) {
            self.note("a discarded state takes its node along", true);
            self.delete_upwards(&place, &mut freed);
        }
        Ok(freed)
    }

    pub(crate) fn is_pending(&self, node: u64) -> bool {
        self.pending_place(node).is_ok()
    }

    fn pending_place(&self, node: u64) -> Verdict<Place> {
        let place = self.place_of(node).ok_or_else(|| vec![Mistake::StaleNode])?;
        if self.nodes[&place].pending { Ok(place) } else { Err(vec![Mistake::NotPending]) }
    }

    fn node_mut(&mut self, place: &Place) -> &mut Node {
        self.nodes.get_mut(place).expect("the place of a node")
    }

    pub(crate) fn unlock_state(&mut self, receipt: usize) -> Verdict<()> {
        self.held(receipt)?;
        if !self.locks[receipt].state {
            return Err(vec![Mistake::NotLocked]);
        }
        self.locks[receipt].state = false;
        Ok(())
    }

    pub(crate) fn unlock(&mut self, receipt: usize) -> Verdict<()> {
        self.held(receipt)?;
        let lock = &self.locks[receipt];
        let gained = !lock.state && self.nodes.get(&lock.on).is_some_and(|node| node.state.is_some());
        self.locks[receipt].held = false;
        self.note("unlock of a node that has a state which the lock does not hold", gained);
        Ok(())
    }

    pub(crate) fn evict(&mut self, tokens: usize, states: usize) -> Freed {
        let mut freed = Freed::default();
        while freed.kv.len() < tokens {
            let Some(place) = self.kv_order.iter().find(|place| self.can_go(place)).cloned() else { break };
            self.delete_upwards(&place, &mut freed);
        }
        let before = freed.states.len();
        while freed.states.len() - before < states {
            let Some(place) = self.state_order.iter().find(|place| self.state_can_go(place)).cloned() else {
                break;
            };
            self.evict_state(&place, &mut freed);
        }
        freed
    }

    pub(crate) fn drop_namespace(&mut self, namespace: &Namespace) -> Freed {
        let mut freed = Freed::default();
        let all: Vec<Place> =
            self.nodes.keys().filter(|place| place.namespace == *namespace).cloned().collect();
        for place in all.iter().rev() {
            if self.can_go(place) {
                self.delete(place, &mut freed);
            } else if self.state_can_go(place) {
                self.note("drop_namespace leaves a locked node", true);
                self.take_state(place, &mut freed);
            }
        }
        freed
    }

    pub(crate) fn reset(&mut self) -> Freed {
        let freed = Freed { kv: self.kv_slots(), states: self.state_slots() };
        self.slots.clear();
        self.nodes.clear();
        self.kv_order.clear();
        self.state_order.clear();
        self.life += 1;
        freed
    }

    // ---- Locks ----

    fn grant(&mut self, on: Place) -> usize {
        let state = self.nodes.get(&on).is_some_and(Node::usable);
        self.note("lock of nothing", on.len() == 0);
        self.locks.push(Lock { on, state, held: true, life: self.life });
        self.locks.len() - 1
    }

    fn held(&self, receipt: usize) -> Verdict<()> {
        let lock = &self.locks[receipt];
        match (lock.life == self.life, lock.held) {
            (true, true) => Ok(()),
            (true, false) => Err(vec![Mistake::NotLocked]),
            (false, _) => Err(vec![Mistake::StaleLock]),
        }
    }

    // ---- Evict ----

    fn evict_state(&mut self, place: &Place, freed: &mut Freed) {
        if self.can_go(place) {
            return self.delete_upwards(place, freed);
        }
        self.note("tombstone made", true);
        self.note("locked leaf loses its state", self.is_leaf(place));
        self.take_state(place, freed);
    }

    fn take_state(&mut self, place: &Place, freed: &mut Freed) {
        let node = self.nodes.get_mut(place).expect("only nodes have states");
        let state = node.state.take();
        node.lost_state |= state.is_some();
        freed.states.extend(state);
        self.state_order.retain(|other| other != place);
    }

    /// Deletes a leaf, and the ancestors that are childless tombstones then and not locked.
    fn delete_upwards(&mut self, leaf: &Place, freed: &mut Freed) {
        self.note("childless tombstone evicted", self.nodes[leaf].state.is_none());
        let mut next = self.parent(leaf);
        self.delete(leaf, freed);
        while let Some(node) = next.filter(|node| self.is_leaf(node) && self.nodes[node].state.is_none()) {
            if self.kv_locks(&node) > 0 {
                return self.note("a lock stops a cascade", true);
            }
            self.note("cascade", true);
            next = self.parent(&node);
            self.delete(&node, freed);
        }
    }

    fn delete(&mut self, node: &Place, freed: &mut Freed) {
        for page in self.edge(node) {
            freed.kv.extend(self.slots.remove(&page).expect("an edge is made of pages"));
        }
        self.take_state(node, freed);
        self.nodes.remove(node);
        self.kv_order.retain(|other| other != node);
    }

    fn note(&mut self, what: &'static str, happened: bool) {
        *self.seen.entry(what).or_default() += u64::from(happened);
    }
}
