//! The radix tree. This file holds its parts and their accessors; each operation has a file of its own.

mod evict;
mod find;
mod insert;
mod lock;
mod pending;
mod structure;

pub use evict::Evicted;
pub use find::{Match, Reason, Start};
pub use insert::{Advanced, Entry, Inserted};

use crate::account::{Account, Sizes};
use crate::arena::Arena;
use crate::children::Children;
use crate::error::{Error, Result};
use crate::events::{Event, EventLog, EventMode};
use crate::namespaces::Namespaces;
use crate::node::Resource;
use crate::queue::Queue;
use crate::receipts::Receipts;
use crate::slot_set::SlotSet;
use crate::stats::Stats;

/// In which order unlocked entries are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Exactly least recently used first.
    #[default]
    Lru,
}

impl std::str::FromStr for Policy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "lru" => Ok(Self::Lru),
            _ => Err(Error::Config {
                name: "policy",
                given: format!("{name:?}"),
                rule: "it must be one of: \"lru\"".into(),
            }),
        }
    }
}

/// How a tree is set up.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Tokens in a page.
    pub page_size: usize,
    /// The grid of branching points, a multiple of the page. None: the smallest multiple that is at least 64.
    pub chunk_size: Option<usize>,
    /// Keys are n + 1 tokens seen as n overlapping pairs (EAGLE). All lengths then count pairs.
    pub bigram: bool,
    /// What is evicted first.
    pub policy: Policy,
    /// What the event queue holds.
    pub events: EventMode,
}

impl Default for Config {
    fn default() -> Self {
        Self { page_size: 1, chunk_size: None, bigram: false, policy: Policy::Lru, events: EventMode::Off }
    }
}

impl Config {
    /// The chunk size in force, if the sizes are possible ones.
    fn checked_chunk_size(&self) -> Result<usize> {
        let page = self.page_size;
        check_size("page_size", page, (1..=1 << 24).contains(&page), "it must be from 1 to 16777216")?;
        let chunk = self.chunk_size.unwrap_or_else(|| 64_usize.next_multiple_of(page));
        let whole = chunk > 0 && chunk.is_multiple_of(page);
        check_size("chunk_size", chunk, whole, &format!("it must be a multiple of page_size {page}"))?;
        Ok(chunk)
    }
}

fn check_size(name: &'static str, given: usize, fits: bool, rule: &str) -> Result<()> {
    if fits { Ok(()) } else { Err(Error::Config { name, given: given.to_string(), rule: rule.into() }) }
}

/// Which KV slots and which recurrent states are kept for which token prefixes.
///
/// The invariants are listed at the crate root; [`Tree::check`] verifies all of them.
pub struct Tree {
    pub(crate) page_size: usize,
    pub(crate) chunk_size: usize,
    /// Tokens that an edge has more than units: 1 for bigram keys, else 0.
    pub(crate) overlap: usize,
    pub(crate) nodes: Arena,
    pub(crate) children: Children,
    pub(crate) namespaces: Namespaces,
    /// The last stamp given out. One clock for both resources.
    pub(crate) clock: u64,
    pub(crate) kv_queue: Queue,
    pub(crate) state_queue: Queue,
    pub(crate) kv_account: Account,
    pub(crate) state_account: Account,
    pub(crate) kv_owned: SlotSet,
    pub(crate) state_owned: SlotSet,
    pub(crate) receipts: Receipts,
    pub(crate) events: Option<EventLog>,
    pub(crate) counters: Stats,
    /// Lent to each walk for its path, so that a match allocates nothing for it.
    path: Vec<u32>,
}

impl Tree {
    /// An empty tree.
    ///
    /// # Errors
    /// [`Error::Config`] for sizes that no tree can have.
    pub fn new(config: Config) -> Result<Self> {
        let chunk_size = config.checked_chunk_size()?;
        let Policy::Lru = config.policy;
        let overlap = usize::from(config.bigram);
        Ok(Self {
            page_size: config.page_size,
            chunk_size,
            overlap,
            nodes: Arena::new(),
            children: Children::new(config.page_size + overlap),
            namespaces: Namespaces::new(),
            clock: 0,
            kv_queue: Queue::new(Resource::Kv),
            state_queue: Queue::new(Resource::State),
            kv_account: Account::default(),
            state_account: Account::default(),
            kv_owned: SlotSet::new("KV"),
            state_owned: SlotSet::new("state"),
            receipts: Receipts::new(),
            events: EventLog::new(config.events, config.page_size, config.bigram),
            counters: Stats::default(),
            path: Vec::new(),
        })
    }

    /// Tokens in a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// The grid of branching points.
    #[must_use]
    pub fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    /// Tokens and states in the tree, by whether they can be evicted now.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes::new(self.kv_account, self.state_account)
    }

    /// Nodes in the tree, roots not counted.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.children.len()
    }

    /// What the tree has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { locks_held: self.receipts.len() as u64, ..self.counters }
    }

    /// Every KV slot in the tree, in no particular order.
    #[must_use]
    pub fn kv_slots(&self) -> Vec<i64> {
        self.nodes.iter().flat_map(|(_, node)| node.slots.iter().copied().map(i64::from)).collect()
    }

    /// Every state slot in the tree, in no particular order.
    #[must_use]
    pub fn state_slots(&self) -> Vec<i64> {
        let states = self.nodes.iter().filter(|(_, node)| node.has_state());
        states.map(|(_, node)| i64::from(node.state_slot)).collect()
    }

    /// The events since the last call, in order.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.as_mut().map(EventLog::take).unwrap_or_default()
    }
}
