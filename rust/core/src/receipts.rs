//! The receipts of all locks that are held.
//!
//! Invariant: an entry is held exactly between the lock that made it and the unlock (or advance) that uses it up, so
//! that the lock counts of the tree are the sum of the entries.

use crate::arena::fresh_salt;
use crate::error::{Error, Result};
use crate::id::Receipt;

/// What a lock is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Anchor {
    Node(u32),
    /// Nothing: there was no hit to lock. The namespace is where an advance begins.
    Root(Option<Box<str>>),
}

/// What a receipt gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) anchor: Anchor,
    /// The lock took the node's state, too, and has not released it early.
    pub(crate) state: bool,
}

struct Entry {
    generation: u32,
    held: Option<Held>,
}

pub(crate) struct Receipts {
    entries: Vec<Entry>,
    free: Vec<u32>,
    epoch: u32,
}

const RELEASED: Error = Error::NotLocked("the lock was released already");

impl Receipts {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), epoch: fresh_salt() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn add(&mut self, held: Held) -> Receipt {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, held: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.held = Some(held);
        Receipt { index, generation: entry.generation, epoch: self.epoch }
    }

    pub(crate) fn get(&self, receipt: Receipt) -> Result<&Held> {
        if receipt.epoch != self.epoch {
            return Err(Error::StaleLock);
        }
        let entry = self.entries.get(receipt.index as usize).ok_or(RELEASED)?;
        let current = entry.generation == receipt.generation;
        entry.held.as_ref().filter(|_| current).ok_or(RELEASED)
    }

    /// Notes that the state part of a lock was given back. The receipt must be held.
    pub(crate) fn release_state(&mut self, receipt: Receipt) {
        if let Some(held) = &mut self.entries[receipt.index as usize].held {
            held.state = false;
        }
    }

    /// Uses a receipt up.
    pub(crate) fn remove(&mut self, receipt: Receipt) -> Result<Held> {
        self.get(receipt)?;
        let entry = &mut self.entries[receipt.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(receipt.index);
        entry.held.take().ok_or(RELEASED)
    }

    /// Forgets all; every receipt given out so far is stale.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
        self.epoch = fresh_salt();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.entries.iter().filter_map(|entry| entry.held.as_ref())
    }
}
