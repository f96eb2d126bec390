//! The slots that the tree owns, one bit each, so that a slot given twice is refused by the call that gives it.

use crate::error::{Error, Result};

const CHUNK_BITS: usize = 1 << 16;
const CHUNK_WORDS: usize = CHUNK_BITS / 64;
type Chunk = Box<[u64; CHUNK_WORDS]>;

/// A set of slot numbers from 1 to `u32::MAX`. Memory is one bit for each number, in chunks of 8 KiB as needed.
pub(crate) struct SlotSet {
    /// `KV` or `state`, for messages.
    kind: &'static str,
    chunks: Vec<Option<Chunk>>,
    len: usize,
}

impl SlotSet {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, chunks: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        let chunk = self.chunks.get(slot as usize / CHUNK_BITS).and_then(Option::as_ref);
        chunk.is_some_and(|chunk| chunk[word_of(slot)] & bit_of(slot) != 0)
    }

    /// Whether `slot` is a number that a slot can have, and not in the set.
    pub(crate) fn check(&self, slot: i64) -> Result<u32> {
        let number = self.number(slot)?;
        if self.contains(number) { Err(self.taken(slot)) } else { Ok(number) }
    }

    /// Adds all, or none when one is no slot, is in the set already or comes twice.
    pub(crate) fn add_all(&mut self, slots: &[i64]) -> Result<()> {
        for (done, &slot) in slots.iter().enumerate() {
            if let Err(error) = self.number(slot).and_then(|number| self.add(number)) {
                self.remove_given(&slots[..done]);
                return Err(self.twice(slots, done).unwrap_or(error));
            }
        }
        Ok(())
    }

    /// Adds one slot that `check` has accepted.
    pub(crate) fn add(&mut self, slot: u32) -> Result<()> {
        let chunk = slot as usize / CHUNK_BITS;
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        let word = &mut chunk[word_of(slot)];
        if *word & bit_of(slot) != 0 {
            return Err(self.taken(i64::from(slot)));
        }
        *word |= bit_of(slot);
        self.len += 1;
        Ok(())
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(Some(chunk)) = self.chunks.get_mut(slot as usize / CHUNK_BITS) {
            let word = &mut chunk[word_of(slot)];
            self.len -= usize::from(*word & bit_of(slot) != 0);
            *word &= !bit_of(slot);
        }
    }

    pub(crate) fn remove_all(&mut self, slots: &[u32]) {
        for &slot in slots {
            self.remove(slot);
        }
    }

    /// Takes out slots that `add_all` has just accepted, as the caller gave them.
    pub(crate) fn remove_given(&mut self, slots: &[i64]) {
        for &slot in slots {
            self.remove(slot as u32);
        }
    }

    fn number(&self, slot: i64) -> Result<u32> {
        match u32::try_from(slot) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(Error::SlotRange { kind: self.kind, slot, largest: i64::from(u32::MAX) }),
        }
    }

    fn taken(&self, slot: i64) -> Error {
        Error::SlotOwner { kind: self.kind, slot, problem: "is the tree's already".into() }
    }

    /// The better message when the slot at `at` was refused because it stands earlier in `slots`, too.
    fn twice(&self, slots: &[i64], at: usize) -> Option<Error> {
        let first = slots[..at].iter().position(|slot| *slot == slots[at])?;
        let problem = format!("is given twice, at {first} and at {at}");
        Some(Error::SlotOwner { kind: self.kind, slot: slots[at], problem })
    }
}

fn word_of(slot: u32) -> usize {
    slot as usize % CHUNK_BITS / 64
}

fn bit_of(slot: u32) -> u64 {
    1 << (slot % 64)
}
