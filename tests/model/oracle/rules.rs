//! The rules: where a key leads, what a match sees of it, what an insert makes of it.

use std::collections::BTreeSet;

use stemcache::{Entry, Reason};

use super::{Found, From, Lock, Mistake, Node, Oracle, Place, Stored, Verdict};

/// The largest number that is a slot.
const LARGEST_SLOT: i64 = u32::MAX as i64;

impl Oracle {
    // ---- Where things are ----

    pub(super) fn start(&self, from: &From) -> Verdict<Place> {
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

    pub(super) fn place_of(&self, id: u64) -> Option<Place> {
        self.nodes.iter().find(|(_, node)| node.id == id).map(|(place, _)| place.clone())
    }

    pub(super) fn units(&self, tokens: &[i64]) -> Vec<(i64, i64)> {
        if self.config.bigram {
            tokens.windows(2).map(|pair| (pair[0], pair[1])).collect()
        } else {
            tokens.iter().map(|token| (*token, 0)).collect()
        }
    }

    /// `start` and the whole pages among the tokens after it.
    pub(super) fn key(&mut self, start: &Place, tokens: &[i64]) -> Place {
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
    pub(super) fn walk(&self, key: &Place) -> usize {
        (1..=key.len()).take_while(|pages| self.slots.contains_key(&key.first(*pages))).count()
    }

    /// The nodes on the way to a place, from the root down.
    pub(super) fn path(&self, to: &Place) -> Vec<Place> {
        (1..=to.len()).map(|pages| to.first(pages)).filter(|place| self.nodes.contains_key(place)).collect()
    }

    pub(super) fn parent(&self, node: &Place) -> Option<Place> {
        self.path(node).into_iter().rev().nth(1)
    }

    /// The places where the pages of a node's edge end.
    pub(super) fn edge(&self, node: &Place) -> Vec<Place> {
        let from = self.parent(node).map_or(0, |parent| parent.len());
        (from + 1..=node.len()).map(|pages| node.first(pages)).collect()
    }

    pub(super) fn slots_of(&self, end: &Place, skipped_pages: usize) -> Vec<i64> {
        (skipped_pages + 1..=end.len()).flat_map(|pages| self.slots[&end.first(pages)].clone()).collect()
    }

    pub(super) fn is_leaf(&self, node: &Place) -> bool {
        !self.nodes.keys().any(|other| other.len() > node.len() && node.is_in(other))
    }

    pub(super) fn can_go(&self, node: &Place) -> bool {
        self.is_leaf(node) && self.kv_locks(node) == 0
    }

    pub(super) fn state_can_go(&self, node: &Place) -> bool {
        self.state_locks(node) == 0 && !self.nodes[node].pending
    }

    /// Receipts at or below a node, and states there that are still to be written.
    pub(super) fn kv_locks(&self, node: &Place) -> usize {
        let held = |lock: &&Lock| lock.held && lock.life == self.life && node.is_in(&lock.on);
        let pending = self.nodes.iter().filter(|(other, state)| state.pending && node.is_in(other));
        self.locks.iter().filter(held).count() + pending.count()
    }

    pub(super) fn state_locks(&self, node: &Place) -> usize {
        let on_it = |lock: &&Lock| lock.held && lock.life == self.life && lock.state && lock.on == *node;
        self.locks.iter().filter(on_it).count()
    }

    // ---- Match ----

    /// The answer, and the place of the hit (a root without one).
    pub(super) fn look(&mut self, start: &Place, tokens: &[i64], limit: Option<usize>) -> (Found, Place) {
        let page = self.config.page_size;
        let key = self.key(start, tokens);
        let cap = limit.map_or(key.len(), |limit| key.len().min(start.len() + limit / page));
        let kv = self.walk(&key.first(cap));
        let path = self.path(&key.first(kv));
        let hit = path.iter().rev().find(|place| self.nodes[place].usable()).cloned();
        let hit = hit.unwrap_or_else(|| Place::root(&key.namespace));
        let node = self.nodes.get(&hit);
        let chunk = self.chunk();
        let found = Found {
            length: hit.len() * page,
            slots: self.slots_of(&hit, start.len()),
            node: node.map(|node| node.id),
            state_slot: node.and_then(|node| node.state),
            kv_length: kv * page,
            branching_length: Some(kv * page / chunk * chunk)
                .filter(|length| *length > hit.len() * page)
                .filter(|length| {
                    !path.iter().any(|node| node.len() * page == *length && self.nodes[node].pending)
                }),
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
    pub(super) fn store(&mut self, start: &Place, entry: &Entry<'_>) -> Verdict<(Stored, Place)> {
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
        self.put_state(&key, entry.state_slot, !entry.state_ready);
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
            wrong.extend(wrong_slots(read, &self.kv_slots()));
            wrong.extend(wrong_slots(&[entry.state_slot], &self.state_slots()));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
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
    fn put_state(&mut self, end: &Place, slot: i64, pending: bool) {
        if !self.nodes.contains_key(end) {
            self.bear(end);
        }
        let locked = self.kv_locks(end) > 0;
        let node = self.nodes.get_mut(end).expect("it was just made sure of");
        if node.state.is_some() {
            return self.note("state exists", true);
        }
        node.state = Some(slot);
        node.pending = pending;
        let revived = node.lost_state;
        self.state_order.push(end.clone());
        self.note("state revived", revived);
        self.note("state gained under a lock", locked);
    }

    fn bear(&mut self, place: &Place) {
        self.born += 1;
        self.nodes
            .insert(place.clone(), Node { id: self.born, state: None, lost_state: false, pending: false });
        self.kv_order.push(place.clone());
    }

    // ---- Recency ----

    pub(super) fn touch(&mut self, node: &Place) {
        move_to_end(&mut self.kv_order, node);
        move_to_end(&mut self.state_order, node);
    }

    pub(super) fn touch_path(&mut self, to: &Place) {
        for node in self.path(to) {
            self.touch(&node);
        }
    }
}

fn move_to_end(order: &mut Vec<Place>, node: &Place) {
    if let Some(at) = order.iter().position(|other| other == node) {
        let node = order.remove(at);
        order.push(node);
    }
}

fn wrong_slots(given: &[i64], taken: &[i64]) -> Vec<Mistake> {
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
