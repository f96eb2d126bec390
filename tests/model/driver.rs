//! Puts one operation to the tree and to the oracle, compares what they say, and looks the tree over.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stemcache::{Config, Entry, EventMode, NodeId, Receipt, Start, Tree};

use crate::answer::{Answer, freed, freed_by_tree, outcome, sorted, verdict};
use crate::mirror::Mirror;
use crate::ops::{At, Fault, Gift, Op};
use crate::oracle::{Found, From, Mistake, Oracle, Stored};

pub(crate) struct Driver {
    tree: Tree,
    pub(crate) oracle: Oracle,
    config: Config,
    /// Each node ever named, as the tree and as the oracle know it.
    nodes: Vec<(NodeId, u64)>,
    receipts: Vec<(Receipt, usize)>,
    mirror: Mirror,
    /// By what the oracle holds, and by digest: neither may name two of the other.
    digests: HashMap<u64, u64>,
    snapshots: HashMap<u64, u64>,
    seen: BTreeMap<String, u64>,
}

impl Driver {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            tree: Tree::new(*config).expect("the model tests use good settings"),
            oracle: Oracle::new(*config),
            config: *config,
            nodes: Vec::new(),
            receipts: Vec::new(),
            mirror: Mirror::new(config),
            digests: HashMap::new(),
            snapshots: HashMap::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn nodes_named(&self) -> usize {
        self.nodes.len()
    }

    /// Those of them that are in the tree.
    pub(crate) fn nodes_alive(&self) -> Vec<usize> {
        let alive = |place: &usize| self.oracle.last_token(self.nodes[*place].1).is_some();
        (0..self.nodes.len()).filter(alive).collect()
    }

    /// Those whose state is still to be written.
    pub(crate) fn nodes_pending(&self) -> Vec<usize> {
        let pending = |place: &usize| self.oracle.is_pending(self.nodes[*place].1);
        (0..self.nodes.len()).filter(pending).collect()
    }

    pub(crate) fn receipts_named(&self) -> usize {
        self.receipts.len()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.tree.digest()
    }

    pub(crate) fn dump(&self) -> String {
        self.tree.dump()
    }

    /// How often what was seen, by the oracle and here.
    pub(crate) fn coverage(&self) -> BTreeMap<String, u64> {
        let mut all = self.seen.clone();
        all.extend(self.oracle.seen.iter().map(|(what, times)| ((*what).to_owned(), *times)));
        all
    }

    /// Runs an operation on both; says what differs, or what is wrong with the tree afterwards.
    pub(crate) fn step(&mut self, op: &Op) -> Result<Answer, String> {
        let before = self.tree.digest();
        let (expected, got) = self.ask(op);
        let agree = match (&expected, &got) {
            (Answer::Refused(all), Answer::Refused(one)) => one.iter().all(|mistake| all.contains(mistake)),
            (expected, got) => expected == got,
        };
        if !agree {
            return Err(format!("the oracle says {expected:?}\nbut the tree  {got:?}"));
        }
        let still = matches!(op, Op::Peek { .. }) || matches!(got, Answer::Refused(_));
        if still && self.tree.digest() != before {
            return Err(format!("a call that changes nothing changed the digest; it answered {got:?}"));
        }
        self.look_over()?;
        self.count(&got);
        Ok(got)
    }

    /// The sizes, as words that a script may expect.
    pub(crate) fn size_words(&self) -> String {
        let [evictable, protected, free_states, locked_states] = self.oracle.sizes();
        format!(
            "evictable_tokens={evictable} protected_tokens={protected} evictable_states={free_states} \
             protected_states={locked_states} nodes={} locks={}",
            self.oracle.node_count(),
            self.oracle.held_receipts().len()
        )
    }

    // ---- Both answers ----

    fn ask(&mut self, op: &Op) -> (Answer, Answer) {
        let answers = match op {
            Op::Find { at, tokens, limit, lock } => self.ask_find(at, &tokens.0, *limit, *lock),
            Op::Peek { at, tokens, limit } => self.ask_peek(at, &tokens.0, *limit),
            Op::Insert { at, gift } => self.ask_insert(at, gift),
            Op::Advance { receipt, gift } => self.ask_advance(*receipt, gift),
            Op::Publish(node) => self.ask_publish(*node),
            Op::Discard(node) => self.ask_discard(*node),
            Op::Lock(node) => self.ask_lock(*node),
            Op::UnlockState(receipt) => self.ask_unlock(*receipt, Tree::unlock_state, Oracle::unlock_state),
            Op::Unlock(receipt) => self.ask_unlock(*receipt, Tree::unlock, Oracle::unlock),
            Op::Evict { tokens, states } => {
                let got = self.tree.evict(*tokens, *states);
                Some((freed(self.oracle.evict(*tokens, *states)), freed_by_tree(got)))
            }
            Op::Drop(namespace) => {
                let got = self.tree.drop_namespace(namespace.as_deref());
                Some((freed(self.oracle.drop_namespace(namespace)), freed_by_tree(got)))
            }
            Op::Reset => Some((freed(self.oracle.reset()), freed_by_tree(self.tree.reset()))),
        };
        answers.unwrap_or((Answer::Skipped, Answer::Skipped))
    }

    fn ask_find(
        &mut self,
        at: &At,
        tokens: &[i64],
        limit: Option<usize>,
        lock: bool,
    ) -> Option<(Answer, Answer)> {
        let tokens = self.with_boundary(at, tokens);
        let (start, from) = self.start(at)?;
        if lock {
            let got = self.tree.find_and_lock(start, &tokens, limit);
            let expected = self.oracle.find_and_lock(&from, &tokens, limit);
            Some(self.pair_locked(expected, got))
        } else {
            let got = self.tree.find(start, &tokens, limit);
            let expected = self.oracle.find(&from, &tokens, limit);
            Some(self.pair_found(expected, got))
        }
    }

    fn ask_peek(&mut self, at: &At, tokens: &[i64], limit: Option<usize>) -> Option<(Answer, Answer)> {
        let tokens = self.with_boundary(at, tokens);
        let (start, from) = self.start(at)?;
        let got = self.tree.peek(start, &tokens, limit);
        let expected = self.oracle.peek(&from, &tokens, limit);
        Some(self.pair_found(expected, got))
    }

    fn ask_insert(&mut self, at: &At, gift: &Gift) -> Option<(Answer, Answer)> {
        let tokens = self.with_boundary(at, &gift.tokens.0);
        let (start, from) = self.start(at)?;
        let (slots, state_slot) = self.slots_for(gift, tokens.len());
        let entry = entry(gift, &tokens, &slots, state_slot);
        let got = self.tree.insert(start, &entry);
        let expected = self.oracle.insert(&from, &entry);
        Some(match (expected, got) {
            (Ok(expected), Ok(got)) => {
                let (expected, got) = self.pair_stored(expected, got);
                (Answer::Stored(expected), Answer::Stored(got))
            }
            (expected, got) => (verdict(expected), outcome(got)),
        })
    }

    fn ask_advance(&mut self, receipt: usize, gift: &Gift) -> Option<(Answer, Answer)> {
        let (key, lock) = *self.receipts.get(receipt)?;
        let boundary = self.oracle.last_locked_token(lock).filter(|_| self.config.bigram);
        let tokens: Vec<i64> = boundary.into_iter().chain(gift.tokens.0.iter().copied()).collect();
        let (slots, state_slot) = self.slots_for(gift, tokens.len());
        let entry = entry(gift, &tokens, &slots, state_slot);
        let got = self.tree.advance(key, &entry);
        let expected = self.oracle.advance(lock, &entry);
        Some(match (expected, got) {
            (Ok((stored, slots, lock)), Ok(got)) => {
                let name = self.name_receipt(got.receipt, lock);
                let (stored, stored_by_tree) = self.pair_stored(stored, got.insert);
                (Answer::Advanced(stored, slots, name), Answer::Advanced(stored_by_tree, got.slots, name))
            }
            (expected, got) => (verdict(expected), outcome(got)),
        })
    }

    fn ask_publish(&mut self, node: usize) -> Option<(Answer, Answer)> {
        let (id, number) = *self.nodes.get(node)?;
        Some((verdict(self.oracle.publish(number)), outcome(self.tree.publish_state(id))))
    }

    fn ask_discard(&mut self, node: usize) -> Option<(Answer, Answer)> {
        let (id, number) = *self.nodes.get(node)?;
        Some(match (self.oracle.discard(number), self.tree.discard_state(id)) {
            (Ok(expected), Ok(got)) => (freed(expected), freed_by_tree(got)),
            (expected, got) => (verdict(expected), outcome(got)),
        })
    }

    fn ask_lock(&mut self, node: usize) -> Option<(Answer, Answer)> {
        let (id, number) = *self.nodes.get(node)?;
        Some(match (self.oracle.lock(number), self.tree.lock(id)) {
            (Ok(lock), Ok(receipt)) => {
                let name = self.name_receipt(receipt, lock);
                (Answer::Locked(name), Answer::Locked(name))
            }
            (expected, got) => (verdict(expected), outcome(got)),
        })
    }

    fn ask_unlock(
        &mut self,
        receipt: usize,
        tree: impl FnOnce(&mut Tree, Receipt) -> stemcache::Result<()>,
        oracle: impl FnOnce(&mut Oracle, usize) -> Result<(), Vec<Mistake>>,
    ) -> Option<(Answer, Answer)> {
        let (key, lock) = *self.receipts.get(receipt)?;
        Some((verdict(oracle(&mut self.oracle, lock)), outcome(tree(&mut self.tree, key))))
    }

    // ---- Names ----

    /// Where a key that begins here begins for the oracle; None for a node that is gone.
    pub(crate) fn from(&mut self, at: &At) -> Option<From> {
        let (_, from) = self.start(at)?;
        self.oracle.peek(&from, &[], None).ok().map(|_| from)
    }

    pub(crate) fn start_of_receipt(&self, receipt: usize) -> Option<From> {
        self.receipts.get(receipt).map(|(_, lock)| self.oracle.start_of(*lock))
    }

    pub(crate) fn receipt_name(&self, lock: usize) -> usize {
        self.receipts.iter().position(|(_, known)| *known == lock).expect("every lock of the oracle is named")
    }

    /// How long the key is before these tokens, and how many of them the tree has.
    pub(crate) fn known(&mut self, from: &From, tokens: &[i64]) -> (usize, usize) {
        let boundary = match from {
            From::After(node) | From::AfterIn(node, _) if self.config.bigram => self.oracle.last_token(*node),
            _ => None,
        };
        let tokens: Vec<i64> = boundary.into_iter().chain(tokens.iter().copied()).collect();
        let mut kv_length =
            |tokens: &[i64]| self.oracle.peek(from, tokens, None).map_or(0, |found| found.kv_length);
        let start = kv_length(&[]);
        (start, kv_length(&tokens) - start)
    }

    fn start<'a>(&self, at: &'a At) -> Option<(Start<'a>, From)> {
        Some(match at {
            At::Root(namespace) => (Start::Root(namespace.as_deref()), From::Root(namespace.clone())),
            At::After(node) => {
                let (id, number) = *self.nodes.get(*node)?;
                (Start::After(id), From::After(number))
            }
            At::AfterIn(node, namespace) => {
                let (id, number) = *self.nodes.get(*node)?;
                (Start::AfterIn(id, namespace.as_deref()), From::AfterIn(number, namespace.clone()))
            }
        })
    }

    fn with_boundary(&self, at: &At, tokens: &[i64]) -> Vec<i64> {
        let (At::After(node) | At::AfterIn(node, _)) = at else { return tokens.to_vec() };
        let number = self.nodes.get(*node).filter(|_| self.config.bigram).map(|(_, number)| *number);
        let boundary = number.map(|number| self.oracle.last_token(number).unwrap_or(1));
        boundary.into_iter().chain(tokens.iter().copied()).collect()
    }

    /// The places of both in the list of names; a node new to both is named.
    fn pair_nodes(&mut self, expected: Option<u64>, got: Option<NodeId>) -> (Option<u64>, Option<u64>) {
        let by_oracle = expected.map(|number| self.nodes.iter().position(|(_, known)| *known == number));
        let by_tree = got.map(|id| self.nodes.iter().position(|(known, _)| *known == id));
        let new = self.nodes.len();
        if let (Some(number), Some(id), Some(None), Some(None)) = (expected, got, by_oracle, by_tree) {
            self.nodes.push((id, number));
        }
        let name = |found: Option<Option<usize>>| found.map(|place| place.unwrap_or(new) as u64);
        (name(by_oracle), name(by_tree))
    }

    fn name_receipt(&mut self, receipt: Receipt, lock: usize) -> usize {
        assert!(self.receipts.iter().all(|(known, _)| *known != receipt), "two locks have one receipt");
        self.receipts.push((receipt, lock));
        self.receipts.len() - 1
    }

    fn pair_found(
        &mut self,
        expected: Result<Found, Vec<Mistake>>,
        got: stemcache::Result<stemcache::Match>,
    ) -> (Answer, Answer) {
        match (expected, got) {
            (Ok(mut expected), Ok(got)) => {
                let got = self.named_match(&mut expected, got);
                (Answer::Found(expected, None), Answer::Found(got, None))
            }
            (expected, got) => (verdict(expected), outcome(got)),
        }
    }

    fn pair_locked(
        &mut self,
        expected: Result<(Found, usize), Vec<Mistake>>,
        got: stemcache::Result<(stemcache::Match, Receipt)>,
    ) -> (Answer, Answer) {
        match (expected, got) {
            (Ok((mut expected, lock)), Ok((got, receipt))) => {
                let got = self.named_match(&mut expected, got);
                let name = Some(self.name_receipt(receipt, lock));
                (Answer::Found(expected, name), Answer::Found(got, name))
            }
            (expected, got) => (verdict(expected), outcome(got)),
        }
    }

    fn named_match(&mut self, expected: &mut Found, got: stemcache::Match) -> Found {
        let (node, node_of_tree) = self.pair_nodes(expected.node, got.node);
        expected.node = node;
        Found {
            length: got.length,
            slots: got.slots,
            node: node_of_tree,
            state_slot: got.state_slot,
            kv_length: got.kv_length,
            branching_length: got.branching_length,
            reason: got.reason,
        }
    }

    fn pair_stored(&mut self, mut expected: Stored, got: stemcache::Inserted) -> (Stored, Stored) {
        let (node, node_of_tree) = self.pair_nodes(expected.node, got.node);
        expected.node = node;
        let got = Stored {
            prefix_length: got.prefix_length,
            state_exists: got.state_exists,
            freed_slots: got.freed_slots,
            node: node_of_tree,
        };
        (expected, got)
    }

    // ---- Slots ----

    /// Slots that are free, a slot that is no slot wherever none is read, and the mistakes asked for.
    fn slots_for(&self, gift: &Gift, tokens: usize) -> (Vec<i64>, i64) {
        let units = if self.config.bigram { tokens.saturating_sub(1) } else { tokens };
        let length = units / self.config.page_size * self.config.page_size;
        let taken = self.oracle.kv_slots();
        let mut free = (1..).filter(|slot| !taken.contains(slot));
        let owned = gift.owned.min(length);
        let mut slots = vec![0; owned];
        slots.extend(free.by_ref().take(length - owned));
        slots.resize(units, -7);
        if let Some(fault) = gift.kv_fault.filter(|_| length > owned) {
            plant(fault, &mut slots, owned, length, &taken);
        }
        let states = self.oracle.state_slots();
        let state = (1..=i64::MAX).find(|slot| !states.contains(slot)).unwrap_or(1);
        (slots, gift.state_fault.map_or(state, |fault| bad_state(fault, state, &states)))
    }

    // ---- The tree at rest ----

    fn look_over(&mut self) -> Result<(), String> {
        let violations = self.tree.check();
        if !violations.is_empty() {
            return Err(format!("check() says {violations:?}"));
        }
        let sizes = self.tree.sizes();
        let got =
            [sizes.evictable_tokens, sizes.protected_tokens, sizes.evictable_states, sizes.protected_states];
        same("sizes", &self.oracle.sizes(), &got)?;
        same("node_count", &self.oracle.node_count(), &self.tree.node_count())?;
        same("KV slots in the tree", &sorted(self.oracle.kv_slots()), &sorted(self.tree.kv_slots()))?;
        same(
            "state slots in the tree",
            &sorted(self.oracle.state_slots()),
            &sorted(self.tree.state_slots()),
        )?;
        self.look_at_orders()?;
        self.look_at_digest()?;
        let events = self.tree.take_events();
        if self.config.events == EventMode::Off {
            return same("events of a tree without", &0, &events.len());
        }
        self.mirror.replay(events)?;
        self.mirror.compare(&self.oracle)
    }

    /// Both recency orders, which a dump prints in the numbers of its nodes, the most recent first.
    fn look_at_orders(&self) -> Result<(), String> {
        let dump = self.tree.dump();
        for (label, expected) in ["kv order: ", "state order: "].into_iter().zip(self.oracle.orders()) {
            let line = dump.lines().find_map(|line| line.strip_prefix(label)).unwrap_or("not there");
            let expected: Vec<String> = expected.iter().rev().map(usize::to_string).collect();
            same(label, &expected.join(" ").as_str(), &line)?;
        }
        Ok(())
    }

    /// Equal trees have equal digests, different ones different digests.
    fn look_at_digest(&mut self) -> Result<(), String> {
        let digest = self.tree.digest();
        let mut hasher = DefaultHasher::new();
        self.oracle.snapshot().hash(&mut hasher);
        let snapshot = hasher.finish();
        same("digest of equal trees", self.digests.entry(snapshot).or_insert(digest), &digest)?;
        same("tree with this digest", self.snapshots.entry(digest).or_insert(snapshot), &snapshot)
    }

    fn count(&mut self, answer: &Answer) {
        let what = match answer {
            Answer::Found(found, _) => format!("reason {:?}", found.reason),
            Answer::Refused(mistakes) => format!("refused {:?}", mistakes[0]),
            Answer::Stored(stored) if !stored.freed_slots.is_empty() => "duplicates freed".to_owned(),
            Answer::Advanced(..) => "advanced".to_owned(),
            _ => return,
        };
        *self.seen.entry(what).or_default() += 1;
    }
}

fn entry<'a>(gift: &Gift, tokens: &'a [i64], slots: &'a [i64], state_slot: i64) -> Entry<'a> {
    Entry {
        tokens,
        slots,
        state_slot,
        owned: gift.owned,
        state_length: gift.state_length,
        state_ready: !gift.pending,
    }
}

fn plant(fault: Fault, slots: &mut Vec<i64>, owned: usize, length: usize, taken: &[i64]) {
    let at = usize::midpoint(owned, length - 1);
    match fault {
        Fault::Short => slots.truncate(length - 1),
        Fault::Zero => slots[at] = 0,
        Fault::Negative => slots[at] = -1,
        Fault::Huge => slots[at] = i64::MAX,
        Fault::Twice => slots[at] = slots[length - 1],
        Fault::Taken => slots[at] = taken.first().copied().unwrap_or(slots[at]),
    }
}

fn bad_state(fault: Fault, free: i64, taken: &[i64]) -> i64 {
    match fault {
        Fault::Zero => 0,
        Fault::Negative => -1,
        Fault::Huge => i64::MAX,
        Fault::Taken => taken.first().copied().unwrap_or(free),
        Fault::Short | Fault::Twice => free,
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, got: &T) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    Err(format!("{what}: the oracle has {expected:?}, the tree {got:?}"))
}
