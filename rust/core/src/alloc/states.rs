//! The slots of recurrent states.

use std::collections::VecDeque;

use super::audit::{Audit, Places};
use super::free_list::FreeList;
use super::ledger::Ledger;
use super::owners::Owner;
use super::{STATE, checked_size};
use crate::error::Result;

#[cfg(test)]
mod tests;

/// Hands out the state slots from 1 to its size.
///
/// An *alloc group* reserves slots for the requests of a batch at once, so that each gets its own or the batch
/// is known to be too large before any of it began.
pub struct StateAllocator {
    ledger: Ledger,
    free: FreeList,
    /// Out of the free list, and nobody's yet. Empty without an open group.
    reserve: VecDeque<i64>,
    open_groups: usize,
}

impl StateAllocator {
    /// A pool of `size` slots, all available.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Config`] for a size of 0, or one past 2^30.
    pub fn new(size: usize) -> Result<Self> {
        let size = checked_size(size)?;
        let (ledger, free) = (Ledger::new(STATE, 1, size)?, FreeList::new(1..size + 1, false));
        Ok(Self { ledger, free, reserve: VecDeque::new(), open_groups: 0 })
    }

    /// Slots in the pool, without the dummy.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ledger.size()
    }

    /// Slots that nobody has and that are not reserved.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.available()
    }

    /// Hands out `count` slots to `owner` (None: to nobody by name), reserved ones first, or None when fewer are
    /// reserved and available together.
    ///
    /// # Errors
    ///
    /// [`crate::Error::SlotOwner`] only if a slot was in two places, which no caller can bring about.
    pub fn alloc(&mut self, count: usize, owner: Option<&str>) -> Result<Option<Vec<i64>>> {
        let reserved = count.min(self.reserve.len());
        let Some(others) = self.free.take(count - reserved) else { return Ok(None) };
        let slots: Vec<i64> = self.reserve.drain(..reserved).chain(others).collect();
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

    /// Reserves `count` slots for the allocations to come; false, and no group, when fewer are available. Groups
    /// nest: a further one adds to the reserve.
    pub fn begin_alloc_group(&mut self, count: usize) -> bool {
        let Some(slots) = self.free.take(count) else { return false };
        self.reserve.extend(slots);
        self.open_groups += 1;
        true
    }

    /// Ends an alloc group; the end of the outermost gives back what is left of the reserve, and says how many
    /// slots became available by that. Without an open group: 0.
    pub fn end_alloc_group(&mut self) -> usize {
        self.open_groups = self.open_groups.saturating_sub(1);
        if self.open_groups > 0 {
            return 0;
        }
        let rest = Vec::from(std::mem::take(&mut self.reserve));
        self.free.release(&rest);
        rest.len()
    }

    /// Where every slot is, recomputed from scratch; what is reserved counts as pending.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let pending = self.reserve.iter().copied().collect();
        Audit::new(
            &self.ledger,
            &Places { available: self.free.iter().collect(), pending, partial: Vec::new() },
        )
    }
}
