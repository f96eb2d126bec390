//! What the tree must answer, in the plainest words we found: no tree, no counters, no links.
//!
//! A *place* is a namespace and a run of whole pages from its root. The oracle keeps the slots of every page by the
//! place where the page ends, and a set of *nodes*, which are just places: a node's parent is its longest proper
//! prefix that is a node, its edge is what lies between. Recency is the order of two vectors, locks are a list of
//! receipts. Everything else is searched for or added up whenever it is asked.
//!
//! It was written from the specification, without a look at the tree.

use std::collections::{BTreeMap, BTreeSet};

use stemcache::{Config, Entry, Reason};

pub(crate) type Namespace = Option<String>;

/// The largest number that is a slot.
const LARGEST_SLOT: i64 = u32::MAX as i64;

/// The mistakes of a caller, as the variants of `stemcache::Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mistake {
    Argument,
    StaleNode,
    StaleLock,
    NotLocked,
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
        Ok(self.grant(place))
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
            let unlocked_leaf = |place: &&Place| self.is_leaf(place) && self.kv_locks(place) == 0;
            let Some(place) = self.kv_order.iter().find(unlocked_leaf).cloned() else { break };
            self.delete_upwards(place, &mut freed);
        }
        let before = freed.states.len();
        while freed.states.len() - before < states {
            let Some(place) = self.state_order.iter().find(|place| self.state_locks(place) == 0).cloned()
            else {
                break;
            };
            self.evict_state(place, &mut freed);
        }
        freed
    }

    pub(crate) fn drop_namespace(&mut self, namespace: &Namespace) -> Freed {
        let mut freed = Freed::default();
        let all: Vec<Place> =
            self.nodes.keys().filter(|place| place.namespace == *namespace).cloned().collect();
        for place in all.iter().rev() {
            if self.kv_locks(place) == 0 {
                self.delete(place, &mut freed);
            } else if self.state_locks(place) == 0 {
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
            sizes[2 + usize::from(self.state_locks(place) > 0)] += usize::from(node.state.is_some());
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
    pub(crate) fn from_of(&self, receipt: usize) -> From {
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
    pub(crate) fn page_ends(&self) -> BTreeSet<(Namespace, Vec<(i64, i64)>)> {
        self.slots.keys().map(|place| self.spell(place)).collect()
    }

    /// Where each state in the tree lies, as all units from its root.
    pub(crate) fn state_ends(&self) -> BTreeSet<(Namespace, Vec<(i64, i64)>)> {
        self.state_order.iter().map(|place| self.spell(place)).collect()
    }

    fn spell(&self, place: &Place) -> (Namespace, Vec<(i64, i64)>) {
        let units = place.pages.iter().flat_map(|page| self.known_pages[*page].iter().copied());
        (place.namespace.clone(), units.collect())
    }

    /// All that a digest must tell apart: keys, slots, states, lock counts and both orders.
    pub(crate) fn snapshot(&self) -> impl std::hash::Hash + use<> {
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|(place, node)| (place.clone(), node.state, self.kv_locks(place), self.state_locks(place)))
            .collect();
        (nodes, self.slots.clone(), self.kv_order.clone(), self.state_order.clone())
    }

    // ---- Where things are ----

    fn start(&self, from: &From) -> Verdict<Place> {
        let (node, asked) = match from {
            From::Root(namespace) => return Ok(Place::root(namespace)),
            From::After(node) => (node, None),
            From::AfterIn(node, namespace) => (node, Some(namespace)),
        };
        let place = self.place_of(*node).ok_or_else(|| vec![Mistake::StaleNode])?;
        match asked {
            Some(namespace) if *namespace != place.namespace => Err(vec![Mistake::Namespace]),
            _ => Ok(place),
        }
    }

    fn place_of(&self, id: u64) -> Option<Place> {
        self.nodes.iter().find(|(_, node)| node.id == id).map(|(place, _)| place.clone())
    }

    fn units(&self, tokens: &[i64]) -> Vec<(i64, i64)> {
        if self.config.bigram {
            tokens.windows(2).map(|pair| (pair[0], pair[1])).collect()
        } else {
            tokens.iter().map(|token| (*token, 0)).collect()
        }
    }

    /// `start` and the whole pages among the tokens after it.
    fn key(&mut self, start: &Place, tokens: &[i64]) -> Place {
        let mut key = start.clone();
        for page in self.units(tokens).chunks_exact(self.config.page_size) {
            let known = self.known_pages.iter().position(|known| known == page);
            key.pages.push(known.unwrap_or(self.known_pages.len()));
            if known.is_none() {
                self.known_pages.push(page.to_vec());
            }
        }
        key
    }

    /// How many pages of a key have their KV in the tree.
    fn walk(&self, key: &Place) -> usize {
        (1..=key.len()).take_while(|pages| self.slots.contains_key(&key.first(*pages))).count()
    }

    /// The nodes on the way to a place, from the root down.
    fn path(&self, to: &Place) -> Vec<Place> {
        (1..=to.len()).map(|pages| to.first(pages)).filter(|place| self.nodes.contains_key(place)).collect()
    }

    fn parent(&self, node: &Place) -> Option<Place> {
        self.path(node).into_iter().rev().nth(1)
    }

    /// The places where the pages of a node's edge end.
    fn edge(&self, node: &Place) -> Vec<Place> {
        let from = self.parent(node).map_or(0, |parent| parent.len());
        (from + 1..=node.len()).map(|pages| node.first(pages)).collect()
    }

    fn slots_of(&self, end: &Place, skipped_pages: usize) -> Vec<i64> {
        (skipped_pages + 1..=end.len()).flat_map(|pages| self.slots[&end.first(pages)].clone()).collect()
    }

    fn is_leaf(&self, node: &Place) -> bool {
        !self.nodes.keys().any(|other| other.len() > node.len() && node.is_in(other))
    }

    fn kv_locks(&self, node: &Place) -> usize {
        self.locks.iter().filter(|lock| lock.held && lock.life == self.life && node.is_in(&lock.on)).count()
    }

    fn state_locks(&self, node: &Place) -> usize {
        let on_it = |lock: &&Lock| lock.held && lock.life == self.life && lock.state && lock.on == *node;
        self.locks.iter().filter(on_it).count()
    }

    // ---- Match ----

    /// The answer, and the place of the hit (a root without one).
    fn look(&mut self, start: &Place, tokens: &[i64], limit: Option<usize>) -> (Found, Place) {
        let page = self.config.page_size;
        let key = self.key(start, tokens);
        let cap = limit.map_or(key.len(), |limit| key.len().min(start.len() + limit / page));
        let kv = self.walk(&key.first(cap));
        let path = self.path(&key.first(kv));
        let hit = path.iter().rev().find(|place| self.nodes[place].state.is_some()).cloned();
        let hit = hit.unwrap_or_else(|| Place::root(&key.namespace));
        let node = self.nodes.get(&hit);
        let chunk = self.chunk();
        let found = Found {
            length: hit.len() * page,
            slots: self.slots_of(&hit, start.len()),
            node: node.map(|node| node.id),
            state_slot: node.and_then(|node| node.state),
            kv_length: kv * page,
            branching_length: Some(kv * page / chunk * chunk).filter(|length| *length > hit.len() * page),
            reason: self.reason(&key, cap, &path, kv, hit.len()),
        };
        (found, hit)
    }

    fn reason(&self, key: &Place, cap: usize, path: &[Place], kv: usize, hit: usize) -> Option<Reason> {
        let lost = |place: &Place| place.len() > hit && self.nodes[place].lost_state;
        if hit == key.len() {
            None
        } else if !self.nodes.keys().any(|node| node.namespace == key.namespace) {
            Some(Reason::Namespace)
        } else if kv == cap && cap < key.len() {
            Some(Reason::Limit)
        } else if kv > hit && path.iter().any(lost) {
            Some(Reason::StateEvicted)
        } else if kv > hit {
            Some(Reason::NoState)
        } else {
            Some(Reason::Miss)
        }
    }

    /// The smallest whole number of pages that is at least 64, unless one was given.
    fn chunk(&self) -> usize {
        self.config
            .chunk_size
            .unwrap_or_else(|| 64_usize.div_ceil(self.config.page_size) * self.config.page_size)
    }

    // ---- Insert ----

    /// What was stored, and the place of the key's end.
    fn store(&mut self, start: &Place, entry: &Entry<'_>) -> Verdict<(Stored, Place)> {
        let page = self.config.page_size;
        let key = self.key(start, entry.tokens);
        let had = self.walk(&key);
        self.approve(start, &key, had, entry)?;
        if key.len() == 0 {
            let nothing =
                Stored { prefix_length: 0, state_exists: true, freed_slots: Vec::new(), node: None };
            return Ok((nothing, key));
        }
        let known = (had - start.len()) * page;
        let freed_slots = entry.slots[entry.owned.min(known)..known].to_vec();
        self.touch_path(&key.first(had));
        if had > 0 && !self.nodes.contains_key(&key.first(had)) {
            self.split(&key.first(had));
        }
        let state_exists = self.nodes.get(&key).is_some_and(|node| node.state.is_some());
        for pages in had + 1..=key.len() {
            let at = (pages - 1 - start.len()) * page;
            self.slots.insert(key.first(pages), entry.slots[at..at + page].to_vec());
        }
        self.put_state(&key, entry.state_slot);
        self.touch(&key);
        let node = Some(self.nodes[&key].id);
        Ok((Stored { prefix_length: had * page, state_exists, freed_slots, node }, key))
    }

    /// Everything that is wrong with an entry.
    fn approve(&self, start: &Place, key: &Place, had: usize, entry: &Entry<'_>) -> Verdict<()> {
        let page = self.config.page_size;
        let length = (key.len() - start.len()) * page;
        let owned = entry.owned.min(length);
        let state_at = entry.state_length.unwrap_or(start.len() * page + self.units(entry.tokens).len());
        let events = self.config.events != stemcache::EventMode::Off;
        let odd = |token: &i64| u32::try_from(*token).is_err();
        let kept = if length == 0 { 0 } else { length + usize::from(self.config.bigram) };
        let mut wrong = Vec::new();
        if state_at != key.len() * page || events && entry.tokens[..kept].iter().any(odd) {
            wrong.push(Mistake::Argument);
        }
        if key.len() > 0 {
            let read = entry.slots.get(owned..length.min(entry.slots.len())).unwrap_or_default();
            if entry.slots.len() < length || start.len() * page + owned > had * page {
                wrong.push(Mistake::Argument);
            }
            wrong.extend(self.wrong_slots(read, &self.kv_slots()));
            wrong.extend(self.wrong_slots(&[entry.state_slot], &self.state_slots()));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    #[expect(clippy::unused_self, reason = "reads as one of the rules")]
    fn wrong_slots(&self, given: &[i64], taken: &[i64]) -> Vec<Mistake> {
        let mut wrong = Vec::new();
        if given.iter().any(|slot| !(1..=LARGEST_SLOT).contains(slot)) {
            wrong.push(Mistake::SlotRange);
        }
        let distinct: BTreeSet<&i64> = given.iter().collect();
        if distinct.len() < given.len() || given.iter().any(|slot| taken.contains(slot)) {
            wrong.push(Mistake::SlotOwner);
        }
        wrong
    }

    /// Cuts the edge that `upper` lies inside of.
    fn split(&mut self, upper: &Place) {
        let below = self.nodes.keys().filter(|node| upper.is_in(node)).min_by_key(|node| node.len()).cloned();
        let child = below.expect("a page that is no node's end lies inside an edge");
        self.note("split", true);
        self.note("split under a lock", self.kv_locks(&child) > 0);
        self.note("split of a tombstone", self.nodes[&child].state.is_none());
        self.bear(upper);
        self.touch(&child);
    }

    /// Makes the end a node, and gives it the state unless it has one.
    fn put_state(&mut self, end: &Place, slot: i64) {
        if !self.nodes.contains_key(end) {
            self.bear(end);
        }
        let locked = self.kv_locks(end) > 0;
        let node = self.nodes.get_mut(end).expect("it was just made sure of");
        if node.state.is_some() {
            return self.note("state exists", true);
        }
        node.state = Some(slot);
        let revived = node.lost_state;
        self.state_order.push(end.clone());
        self.note("state revived", revived);
        self.note("state gained under a lock", locked);
    }

    fn bear(&mut self, place: &Place) {
        self.born += 1;
        self.nodes.insert(place.clone(), Node { id: self.born, state: None, lost_state: false });
        self.kv_order.push(place.clone());
    }

    // ---- Recency ----

    fn touch(&mut self, node: &Place) {
        move_to_end(&mut self.kv_order, node);
        move_to_end(&mut self.state_order, node);
    }

    fn touch_path(&mut self, to: &Place) {
        for node in self.path(to) {
            self.touch(&node);
        }
    }

    // ---- Locks ----

    fn grant(&mut self, on: Place) -> usize {
        let state = self.nodes.get(&on).is_some_and(|node| node.state.is_some());
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

    fn evict_state(&mut self, place: Place, freed: &mut Freed) {
        let (leaf, locked) = (self.is_leaf(&place), self.kv_locks(&place) > 0);
        if leaf && !locked {
            return self.delete_upwards(place, freed);
        }
        self.note("tombstone made", true);
        self.note("locked leaf loses its state", leaf);
        self.take_state(&place, freed);
    }

    fn take_state(&mut self, place: &Place, freed: &mut Freed) {
        let node = self.nodes.get_mut(place).expect("only nodes have states");
        let state = node.state.take();
        node.lost_state |= state.is_some();
        freed.states.extend(state);
        self.state_order.retain(|other| other != place);
    }

    /// Deletes a leaf, and the ancestors that are childless tombstones then and not locked.
    fn delete_upwards(&mut self, leaf: Place, freed: &mut Freed) {
        self.note("childless tombstone evicted", self.nodes[&leaf].state.is_none());
        let mut next = self.parent(&leaf);
        self.delete(&leaf, freed);
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

fn move_to_end(order: &mut Vec<Place>, node: &Place) {
    if let Some(at) = order.iter().position(|other| other == node) {
        let node = order.remove(at);
        order.push(node);
    }
}
