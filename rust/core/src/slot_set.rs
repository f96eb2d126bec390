//! The slots that the tree owns, one bit each, so that a slot given twice is refused by the call that gives it.

use crate::error::{Error, Result};

const CHUNK_BITS: usize = 1 << 16;
const CHUNK_WORDS: usize = CHUNK_BITS / 64;
type Chunk = Box<[u64; CHUNK_WORDS]>;

/// A set of slot numbers from 1 to `u32::MAX`. Memory is one bit for each number, in chunks of 8 KiB as needed.
///
/// Allocators mostly hand out ascending runs, so slots are taken in blocks: a block that is a run costs two words.
pub(crate) struct SlotSet {
    /// `KV` or `state`, for messages.
    kind: &'static str,
    chunks: Vec<Option<Chunk>>,
}

impl SlotSet {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, chunks: Vec::new() }
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.word(slot as usize / 64) & bits(slot as usize % 64, 1) != 0
    }

    /// Whether `slot` is a number that a slot can have, and not in the set.
    pub(crate) fn check(&self, slot: i64) -> Result<u32> {
        let number = self.number(slot)?;
        if self.contains(number) { Err(self.taken(slot)) } else { Ok(number) }
    }

    /// The slots as they are kept, unless one is no slot.
    pub(crate) fn checked(&self, slots: &[i64]) -> Result<Box<[u32]>> {
        // Not an early exit: the loop compiles to vector instructions.
        let mut strays = 0;
        let keep = |&slot: &i64| {
            strays |= (slot as u64 >> 32) | u64::from(slot == 0);
            slot as u32
        };
        let kept: Box<[u32]> = slots.iter().map(keep).collect();
        let stray = slots.iter().find(|slot| strays != 0 && self.number(**slot).is_err());
        stray.map_or(Ok(kept), |&slot| self.number(slot).map(|_| Box::default()))
    }

    /// Adds all, or none when one is in the set already or comes twice.
    pub(crate) fn add_all(&mut self, slots: &[u32]) -> Result<()> {
        let mut done = 0;
        for run in runs(slots) {
            if !self.add_run(run) {
                self.remove_all(&slots[..done]);
                return Err(self.complaint(slots, done));
            }
            done += run.len;
        }
        Ok(())
    }

    /// Adds one slot that `check` has accepted.
    pub(crate) fn add(&mut self, slot: u32) {
        self.add_run(Run { first: i64::from(slot), len: 1 });
    }

    /// Takes slots out that are all in the set.
    pub(crate) fn remove_all<T: Copy + Into<i64>>(&mut self, slots: &[T]) {
        for Run { first, len } in runs(slots) {
            for (word, mask) in masks(first as usize, len) {
                *self.word_mut(word) &= !mask;
            }
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.remove_all(&[slot]);
    }

    /// Adds slots, and returns those that were in the set already.
    pub(crate) fn unite(&mut self, slots: &[u32]) -> Vec<u32> {
        let mut twice = Vec::new();
        for run in runs(slots) {
            if !self.add_run(run) {
                let single =
                    (run.first..).take(run.len).filter(|&first| !self.add_run(Run { first, len: 1 }));
                twice.extend(single.map(|slot| slot as u32));
            }
        }
        twice
    }

    /// The slots that are not in `other`, ascending.
    pub(crate) fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> {
        let chunks = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_some());
        let words = chunks.flat_map(|(chunk, _)| chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS);
        let only = words.map(move |word| (word, self.word(word) & !other.word(word)));
        only.filter(|(_, only)| *only != 0).flat_map(|(word, only)| {
            (0..64).filter(move |bit| only >> bit & 1 == 1).map(move |bit| (word * 64) as u32 + bit)
        })
    }

    /// Adds a run, or nothing (false) when some of it is no slot or in the set already.
    fn add_run(&mut self, run: Run) -> bool {
        let fits =
            u32::try_from(run.first).is_ok_and(|first| first.checked_add(run.len as u32 - 1).is_some());
        if run.first < 1 || !fits {
            return false;
        }
        let words = || masks(run.first as usize, run.len);
        if words().any(|(word, mask)| self.word(word) & mask != 0) {
            return false;
        }
        for (word, mask) in words() {
            *self.word_mut(word) |= mask;
        }
        true
    }

    /// Why the slots from `done` on were refused; those before it were fine.
    fn complaint(&self, slots: &[u32], done: usize) -> Error {
        let earlier = |at: usize| slots[..at].iter().position(|earlier| *earlier == slots[at]);
        let refused = |&at: &usize| self.contains(slots[at]) || earlier(at).is_some();
        let at = (done..slots.len()).find(refused).unwrap_or(done);
        let problem = match earlier(at) {
            Some(first) => format!("is given twice, at {first} and at {at}"),
            None => return self.taken(i64::from(slots[at])),
        };
        Error::SlotOwner { kind: self.kind, slot: i64::from(slots[at]), problem }
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

    fn word(&self, word: usize) -> u64 {
        let chunk = self.chunks.get(word / CHUNK_WORDS).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[word % CHUNK_WORDS])
    }

    fn word_mut(&mut self, word: usize) -> &mut u64 {
        let chunk = word / CHUNK_WORDS;
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        &mut self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK_WORDS]))[word % CHUNK_WORDS]
    }
}

/// `len` consecutive numbers.
#[derive(Clone, Copy)]
struct Run {
    first: i64,
    len: usize,
}

/// The slots as runs, none longer than a block. What is no run of a whole block comes one by one.
fn runs<T: Copy + Into<i64>>(slots: &[T]) -> impl Iterator<Item = Run> {
    slots.chunks(64).flat_map(|block| {
        let first: i64 = block[0].into();
        // Not an early exit but a sum over the block: it compiles to vector instructions.
        let strays = block
            .iter()
            .zip(0_i64..)
            .fold(0, |strays, (&slot, step)| strays | (slot.into() ^ first.wrapping_add(step)));
        let len = if strays == 0 { block.len() } else { 1 };
        block.iter().step_by(len).map(move |&slot| Run { first: slot.into(), len })
    })
}

/// The words that a run touches, with its bits in each.
fn masks(first: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let (word, bit) = (first / 64, first % 64);
    let here = len.min(64 - bit);
    let rest = (len > here).then(|| (word + 1, bits(0, len - here)));
    std::iter::once((word, bits(bit, here))).chain(rest)
}

/// `len` (1 to 64) bits from `bit` on.
fn bits(bit: usize, len: usize) -> u64 {
    (u64::MAX >> (64 - len)) << bit
}

#[cfg(test)]
mod tests;
