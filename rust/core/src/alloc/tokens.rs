//! KV slots one by one, for a page size of 1.

use super::audit::{Audit, Places};
use super::free_list::FreeList;
use super::ledger::Ledger;
use super::owners::Owner;
use super::{KV, checked_size};
use crate::error::Result;

#[cfg(test)]
mod tests;

/// Hands out the KV slots from 1 to its size, one by one.
///
/// A call costs what it moves, whatever the size of the pool.
pub struct KvAllocator {
    ledger: Ledger,
    free: FreeList,
}

impl KvAllocator {
    /// A pool of `size` slots, all available. With `need_sort`, released slots are sorted before they are handed
    /// out again, so that what is handed out together lies together.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Config`] for a size of 0, or one past 2^30.
    pub fn new(size: usize, need_sort: bool) -> Result<Self> {
        let size = checked_size(size)?;
        Ok(Self { ledger: Ledger::new(KV, 1, size)?, free: FreeList::new(1..size + 1, need_sort) })
    }

    /// Slots in the pool, without the dummy.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ledger.size()
    }

    /// Slots that [`Self::alloc`] could hand out now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.available()
    }

    /// Hands out `count` slots to `owner` (None: to nobody by name), or None when fewer are available.
    ///
    /// # Errors
    ///
    /// [`crate::Error::SlotOwner`] only if a slot was in two places, which no caller can bring about.
    pub fn alloc(&mut self, count: usize, owner: Option<&str>) -> Result<Option<Vec<i64>>> {
        let Some(slots) = self.free.take(count) else { return Ok(None) };
        self.ledger.claim(&slots, owner)?;
        Ok(Some(slots))
    }

    /// Takes slots back: from `owner`, or, without one, from whoever has them.
    ///
    /// # Errors
    ///
    /// [`crate::Error::SlotRange`] for what is no slot, [`crate::Error::SlotOwner`] for one that is free, is
    /// somebody else's, or comes twice. Then none was taken back.
    pub fn free(&mut self, slots: &[i64], owner: Option<&str>) -> Result<()> {
        self.ledger.release(slots, owner)?;
        self.free.release(slots);
        Ok(())
    }

    /// Gives slots, whoever has them, to another owner.
    ///
    /// # Errors
    ///
    /// [`crate::Error::SlotRange`] for what is no slot, [`crate::Error::SlotOwner`] for one that is free or comes
    /// twice. Then none was given.
    pub fn transfer(&mut self, slots: &[i64], to: Option<&str>) -> Result<()> {
        self.ledger.transfer(slots, to)
    }

    /// Who has a slot.
    ///
    /// # Errors
    ///
    /// [`crate::Error::SlotRange`] for what is no slot.
    pub fn owner_of(&self, slot: i64) -> Result<Owner<'_>> {
        self.ledger.owner_of(slot)
    }

    /// Collects what is freed from here on; it becomes available at the end of the group, all at once. Groups
    /// nest: the end of the outermost counts.
    pub fn begin_free_group(&mut self) {
        self.free.begin_group();
    }

    /// Ends a free group, and says how many slots became available by that. Without an open group: 0.
    pub fn end_free_group(&mut self) -> usize {
        self.free.end_group()
    }

    /// Where every slot is, recomputed from scratch.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let pending = self.free.pending().to_vec();
        Audit::new(
            &self.ledger,
            &Places { available: self.free.iter().collect(), pending, partial: Vec::new() },
        )
    }
}
