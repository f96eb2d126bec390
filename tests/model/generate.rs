//! Random operations: few letters, small pools and much repetition, so that splits, tombstones and full pools happen
//! all the time; and calls that no good caller makes.

use stemcache::{Config, EventMode};

use crate::driver::Driver;
use crate::ops::{At, Fault, Gift, Op, Tokens};
use crate::oracle::{From, Namespace};

/// `SplitMix64`: the same numbers for the same seed, for ever.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Mostly one of the last few, sometimes any (a stale one, then).
    fn recent(&mut self, count: usize) -> usize {
        let back = if self.percent(80) { 6 } else { count };
        count.saturating_sub(1 + self.below(back.min(count)))
    }
}

/// The settings of a case: its number walks over page sizes, kinds of keys and of events.
pub(crate) fn config(case: u64, random: &mut Random) -> Config {
    let page_size = [1, 2, 4, 64][(case % 4) as usize];
    let chunk_size = random.pick(&[None, Some(page_size), Some(2 * page_size), Some(3 * page_size)]);
    let events =
        random.pick(&[EventMode::Off, EventMode::Off, EventMode::Blocks, EventMode::BlocksAndStates]);
    Config { page_size, chunk_size, bigram: random.percent(30), events, ..Config::default() }
}

pub(crate) struct Generator {
    random: Random,
    config: Config,
    letters: usize,
    /// The pools that the tree must live in: pages of KV, and states.
    pages: usize,
    states: usize,
    namespaces: Vec<Namespace>,
    /// Keys given lately, for repeating and extending.
    keys: Vec<Vec<i64>>,
}

impl Generator {
    pub(crate) fn new(config: &Config, mut random: Random) -> Self {
        let letters = 2 + random.below(2);
        let (pages, states) = (8 + random.below(20), 3 + random.below(6));
        let mut namespaces = vec![None; 7];
        namespaces.extend([Some("x".to_owned()), Some(String::new())]);
        Self { random, config: *config, letters, pages, states, namespaces, keys: vec![Vec::new()] }
    }

    /// The next operation for a tree in this condition.
    pub(crate) fn next(&mut self, driver: &mut Driver) -> Op {
        if let Some(op) = self.make_room(driver) {
            return op;
        }
        let (nodes, receipts) = (driver.nodes_named(), driver.receipts_named());
        match self.random.below(100) {
            0..30 => self.insert(driver),
            30..34 => {
                let (at, tokens) = self.start_and_key(driver);
                Op::Peek { at, tokens, limit: self.limit() }
            }
            34..43 if receipts > 0 => self.advance(driver),
            43..45 if nodes > 0 => Op::Publish(self.pending_node(driver)),
            45 if nodes > 0 => Op::Discard(self.pending_node(driver)),
            46..52 if nodes > 0 => Op::Lock(self.node(driver)),
            52..57 if receipts > 0 => Op::UnlockState(self.receipt(driver)),
            57..67 if receipts > 0 => Op::Unlock(self.receipt(driver)),
            67..77 => self.evict(),
            77 => Op::Drop(self.namespace()),
            78 if self.random.percent(40) => Op::Reset,
            _ => self.find(driver),
        }
    }

    /// Operations that empty a tree one victim at a time: so that the whole order of eviction is compared.
    pub(crate) fn drain(driver: &Driver, by_states: bool) -> Option<Op> {
        if let Some(node) = driver.nodes_pending().first() {
            return Some(if by_states { Op::Publish(*node) } else { Op::Discard(*node) });
        }
        let held = driver.oracle.held_receipts();
        if let Some(receipt) = held.first().filter(|_| held.len() > 1) {
            return Some(Op::Unlock(driver.receipt_name(*receipt)));
        }
        let [tokens, _, states, _] = driver.oracle.sizes();
        match (tokens, states) {
            (0, 0) => None,
            (tokens, states) if states > 0 && (by_states || tokens == 0) => {
                Some(Op::Evict { tokens: 0, states: 1 })
            }
            _ => Some(Op::Evict { tokens: 1, states: 0 }),
        }
    }

    /// What a caller does when its pool is empty, or holds too many locks.
    fn make_room(&mut self, driver: &mut Driver) -> Option<Op> {
        let [evictable, protected, free_states, locked_states] = driver.oracle.sizes();
        let over = (evictable + protected).saturating_sub(self.pages * self.config.page_size);
        let states_over = (free_states + locked_states).saturating_sub(self.states);
        let held = driver.oracle.held_receipts();
        if held.len() > 7 {
            return Some(Op::Unlock(driver.receipt_name(self.random.pick(&held))));
        }
        let pending = driver.nodes_pending();
        if pending.len() > 2 || (over > 0 && !pending.is_empty()) {
            return Some(Op::Publish(self.random.pick(&pending)));
        }
        let helps = over > 0 && evictable > 0 || states_over > 0 && free_states > 0;
        helps.then_some(Op::Evict { tokens: over, states: states_over })
    }

    fn find(&mut self, driver: &Driver) -> Op {
        let (at, tokens) = self.start_and_key(driver);
        Op::Find { at, tokens, limit: self.limit(), lock: self.random.percent(30) }
    }

    fn insert(&mut self, driver: &mut Driver) -> Op {
        let (at, tokens) = self.start_and_key(driver);
        let from = driver.from(&at);
        Op::Insert { at, gift: self.gift(driver, from.as_ref(), tokens) }
    }

    fn advance(&mut self, driver: &mut Driver) -> Op {
        let receipt = self.receipt(driver);
        let from = driver.start_of_receipt(receipt);
        let tokens = self.some_pages(3);
        Op::Advance { receipt, gift: self.gift(driver, from.as_ref(), Tokens(tokens)) }
    }

    fn evict(&mut self) -> Op {
        let (tokens, states) = (self.random.below(4) * self.config.page_size, self.random.below(3));
        match self.random.below(3) {
            0 => Op::Evict { tokens, states: 0 },
            1 => Op::Evict { tokens: 0, states },
            _ => Op::Evict { tokens, states },
        }
    }

    /// Mostly one that can be given back.
    fn receipt(&mut self, driver: &Driver) -> usize {
        let held = driver.oracle.held_receipts();
        if held.is_empty() || self.random.percent(12) {
            return self.random.recent(driver.receipts_named());
        }
        driver.receipt_name(self.random.pick(&held))
    }

    /// Mostly one that has a state to be written.
    fn pending_node(&mut self, driver: &Driver) -> usize {
        let pending = driver.nodes_pending();
        if pending.is_empty() || self.random.percent(20) {
            return self.node(driver);
        }
        self.random.pick(&pending)
    }

    /// Mostly one that is still in the tree.
    fn node(&mut self, driver: &Driver) -> usize {
        let alive = driver.nodes_alive();
        if alive.is_empty() || self.random.percent(15) {
            return self.random.recent(driver.nodes_named());
        }
        self.random.pick(&alive)
    }

    fn namespace(&mut self) -> Namespace {
        self.random.pick(&self.namespaces.clone())
    }

    fn start_and_key(&mut self, driver: &Driver) -> (At, Tokens) {
        let nodes = driver.nodes_named();
        if nodes == 0 || self.random.percent(75) {
            return (At::Root(self.namespace()), Tokens(self.key()));
        }
        let node = self.node(driver);
        let at = match self.random.below(10) {
            0..7 => At::After(node),
            7..9 => At::AfterIn(node, None),
            _ => At::AfterIn(node, self.namespace()),
        };
        (at, Tokens(self.some_pages(3)))
    }

    /// A key like one that was there lately: cut, extended or as it was.
    fn key(&mut self) -> Vec<i64> {
        let mut key = self.random.pick(&self.keys.clone());
        if self.random.percent(60) {
            let pages = key.len() / self.config.page_size;
            key.truncate(self.random.below(pages + 1) * self.config.page_size);
        }
        if self.random.percent(70) {
            key.extend(self.some_pages(3));
        }
        if self.config.bigram && self.random.percent(80) && key.len().is_multiple_of(self.config.page_size) {
            key.push(1);
        }
        self.keys.push(key.clone());
        self.keys.drain(..self.keys.len().saturating_sub(10));
        if !key.is_empty() && self.random.percent(3) {
            let at = self.random.below(key.len());
            key[at] = self.random.pick(&[(1 << 32) + 1, -1, i64::MAX]);
        }
        key
    }

    /// Up to `most` pages of one letter each, some with another at the end, and now and then a part of one.
    fn some_pages(&mut self, most: usize) -> Vec<i64> {
        let page = self.config.page_size;
        let mut tokens = Vec::new();
        for _ in 0..self.random.below(most + 1) {
            tokens.extend(vec![self.letter(); page]);
            if self.random.percent(25) {
                *tokens.last_mut().expect("a page has tokens") = self.letter();
            }
        }
        if self.random.percent(15) {
            tokens.extend(vec![self.letter(); self.random.below(page)]);
        }
        tokens
    }

    fn letter(&mut self) -> i64 {
        self.random.pick(&[1, 2, 3][..self.letters])
    }

    fn limit(&mut self) -> Option<usize> {
        self.random.percent(30).then(|| self.random.below(6 * self.config.page_size))
    }

    /// A gift of these tokens: mostly as a good caller gives it.
    fn gift(&mut self, driver: &mut Driver, from: Option<&From>, tokens: Tokens) -> Gift {
        let (start, known) = from.map_or((0, 0), |from| driver.known(from, &tokens.0));
        let mut units = tokens.0.len();
        if self.config.bigram && start == 0 {
            units = units.saturating_sub(1);
        }
        let floored = units / self.config.page_size * self.config.page_size;
        let right = (floored != units || self.random.percent(30)).then_some(start + floored);
        let state_length = match self.random.below(30) {
            0 => None,
            1 => Some((start + floored + self.random.below(3)).saturating_sub(1)),
            _ => right,
        };
        let owned = match self.random.below(10) {
            0..5 => known,
            5..9 => self.random.below(known + 1),
            _ => self.random.below(floored + 3),
        };
        let (kv_fault, state_fault) = (self.fault(7), self.fault(4));
        let pending = self.random.percent(12);
        Gift { tokens, owned, state_length, kv_fault, state_fault, pending }
    }

    fn fault(&mut self, chance: usize) -> Option<Fault> {
        let faults = [Fault::Short, Fault::Zero, Fault::Negative, Fault::Huge, Fault::Twice, Fault::Taken];
        self.random.percent(chance).then(|| self.random.pick(&faults))
    }
}
