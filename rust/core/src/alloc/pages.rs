//! KV slots in pages: the tokens of a request lie together, page by page.

use super::audit::{Audit, Places};
use super::free_list::FreeList;
use super::ledger::Ledger;
use super::owners::Owner;
use super::plan::{self, Decode, Extend, Plan};
use super::{KV, checked_size, given};
use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// Hands out the KV slots from `page_size` to `size + page_size - 1`, in pages. The first page is the dummy.
///
/// A page belongs to the pool as long as none of its slots is out. A request fills its pages from the front: its
/// next token goes right after its last one, and only when that one ended its page, to the front of a new page.
/// Ownership is that of single slots. A call costs what it moves, whatever the size of the pool.
pub struct PagedKvAllocator {
    page_size: u32,
    ledger: Ledger,
    /// Numbers of pages of which no slot is out.
    pages: FreeList,
    /// Slots that are out, by page, the dummy included.
    in_use: Vec<u32>,
}

impl PagedKvAllocator {
    /// A pool of `size` slots in whole pages, all available. With `need_sort`, released pages are sorted before
    /// they are handed out again.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a size of 0 or past 2^30, a page size of 0, and a size that is not whole pages.
    pub fn new(size: usize, page_size: usize, need_sort: bool) -> Result<Self> {
        let slots = checked_size(size)?;
        if page_size == 0 || !size.is_multiple_of(page_size) {
            return Err(no_page_size(size, page_size));
        }
        let (page_size, pages) = (page_size as u32, slots / page_size as u32);
        Ok(Self {
            page_size,
            ledger: Ledger::new(KV, page_size, slots)?,
            pages: FreeList::new(1..pages + 1, need_sort),
            in_use: super::filled(0, pages as usize + 1)?,
        })
    }

    /// Slots in the pool, without the dummy page.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ledger.size()
    }

    /// Slots in a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size as usize
    }

    /// Slots of the pages that could be handed out now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pages.available() * self.page_size()
    }

    /// Hands out whole pages of `count` slots to `owner` (None: to nobody by name), or None when fewer are
    /// available.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a count that is not whole pages.
    pub fn alloc(&mut self, count: usize, owner: Option<&str>) -> Result<Option<Vec<i64>>> {
        if !count.is_multiple_of(self.page_size()) {
            let rule = format!("a page is {} slots, and only whole ones are handed out here", self.page_size);
            return Err(Error::Argument { name: "count", given: given(count), rule });
        }
        let Some(pages) = self.pages.take(count / self.page_size()) else { return Ok(None) };
        let slots = self.slots_of(&pages);
        self.hand_out(&slots, owner)?;
        Ok(Some(slots))
    }

    /// Hands out a slot for each token past the prefixes of a batch of requests, one request after the other, each
    /// to its owner; or None, and nothing to anybody, when the pages do not suffice.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a total below its prefix, and when there is not one owner a request.
    /// [`Error::SlotRange`] or [`Error::SlotOwner`] for a last slot that no request of its owner with such a
    /// prefix can have, that two requests name, or after which the page is handed out already.
    pub fn alloc_extend(&mut self, requests: &[Extend], owners: &[Option<&str>]) -> Result<Option<Vec<i64>>> {
        let plans = self.plans(requests, owners)?;
        let pages = plans.iter().fold(0, |sum: usize, plan| sum.saturating_add(plan.pages));
        let Some(pages) = self.pages.take(pages) else { return Ok(None) };
        let mut pages = pages.into_iter();
        let mut slots = Vec::with_capacity(plans.iter().map(Plan::slots).sum());
        for (plan, owner) in plans.iter().zip(owners) {
            let start = slots.len();
            plan.carry_out(self.page_size, &mut pages, &mut slots);
            self.hand_out(&slots[start..], *owner)?;
        }
        Ok(Some(slots))
    }

    /// Hands out one slot for the next token of each request: [`Self::alloc_extend`] by one token.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a total of 0; else as [`Self::alloc_extend`].
    pub fn alloc_decode(&mut self, requests: &[Decode], owners: &[Option<&str>]) -> Result<Option<Vec<i64>>> {
        let extends: Result<Vec<_>> = requests.iter().map(Decode::as_extend).collect();
        self.alloc_extend(&extends?, owners)
    }

    /// Takes slots back: from `owner`, or, without one, from whoever has them. A page becomes available with the
    /// last of its slots.
    ///
    /// # Errors
    ///
    /// [`Error::SlotRange`] for what is no slot, [`Error::SlotOwner`] for one that is free, is somebody else's, or
    /// comes twice. Then none was taken back.
    pub fn free(&mut self, slots: &[i64], owner: Option<&str>) -> Result<()> {
        self.ledger.release(slots, owner)?;
        let mut emptied = Vec::new();
        for (page, count) in page_runs(slots, i64::from(self.page_size)) {
            let in_use = &mut self.in_use[page as usize];
            *in_use -= count;
            emptied.extend((*in_use == 0).then_some(page));
        }
        self.pages.release(&emptied);
        Ok(())
    }

    /// Gives slots, whoever has them, to another owner.
    ///
    /// # Errors
    ///
    /// [`Error::SlotRange`] for what is no slot, [`Error::SlotOwner`] for one that is free or comes twice. Then
    /// none was given.
    pub fn transfer(&mut self, slots: &[i64], to: Option<&str>) -> Result<()> {
        self.ledger.transfer(slots, to)
    }

    /// Who has a slot.
    ///
    /// # Errors
    ///
    /// [`Error::SlotRange`] for what is no slot, [`Error::SlotOwner`] for one of the dummy page.
    pub fn owner_of(&self, slot: i64) -> Result<Owner<'_>> {
        self.ledger.owner_of(slot)
    }

    /// Holds back pages that become free from here on, until the end of the group. Groups nest: the end of the
    /// outermost counts.
    pub fn begin_free_group(&mut self) {
        self.pages.begin_group();
    }

    /// Ends a free group, and says how many slots became available by that. Without an open group: 0.
    pub fn end_free_group(&mut self) -> usize {
        self.pages.end_group() * self.page_size()
    }

    /// Where every slot is, recomputed from scratch.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let available = self.slots_of(&self.pages.iter().collect::<Vec<_>>());
        let pending = self.slots_of(self.pages.pending());
        let mut audit = Audit::new(&self.ledger, &Places { available, pending, partial: self.partial() });
        audit.problems.extend(self.miscounted());
        audit
    }

    fn plans(&self, requests: &[Extend], owners: &[Option<&str>]) -> Result<Vec<Plan>> {
        if owners.len() != requests.len() {
            let rule = format!("there are {} requests, and each has its owner", requests.len());
            return Err(Error::Argument { name: "the number of owners", given: given(owners.len()), rule });
        }
        plan::all(&self.ledger, self.page_size, requests, owners)
    }

    /// Notes slots of pages that are not in the free list as an owner's.
    fn hand_out(&mut self, slots: &[i64], owner: Option<&str>) -> Result<()> {
        self.ledger.claim(slots, owner)?;
        for (page, count) in page_runs(slots, i64::from(self.page_size)) {
            self.in_use[page as usize] += count;
        }
        Ok(())
    }

    fn slots_of(&self, pages: &[i64]) -> Vec<i64> {
        let page_size = i64::from(self.page_size);
        pages.iter().flat_map(|page| page * page_size..(page + 1) * page_size).collect()
    }

    /// Slots that nobody has, in pages of which some slots are out.
    fn partial(&self) -> Vec<i64> {
        let is_partial = |slot: &i64| {
            self.in_use[*slot as usize / self.page_size()] > 0 && self.owner_of(*slot) == Ok(Owner::Nobody)
        };
        self.ledger.slots().filter(is_partial).collect()
    }

    /// Where the counts of the pages differ from what is out.
    fn miscounted(&self) -> Vec<String> {
        let mut out = vec![0; self.in_use.len()];
        for (_, slots) in self.ledger.holdings() {
            for slot in slots {
                out[slot as usize / self.page_size()] += 1;
            }
        }
        let pages = self.in_use.iter().zip(out).enumerate().filter(|(_, (count, out))| *count != out);
        pages
            .map(|(page, (count, out))| format!("page {page} counts {count} slots in use, but {out} are"))
            .collect()
    }
}

fn no_page_size(size: usize, page_size: usize) -> Error {
    if page_size == 0 {
        let rule = "a page has at least 1 slot".into();
        return Error::Config { name: "page_size", given: page_size.to_string(), rule };
    }
    let rule = format!("it must be whole pages of {page_size}");
    Error::Config { name: "size", given: size.to_string(), rule }
}

/// The pages of slots, each with the number of neighbours in `slots` that lie in it.
fn page_runs(slots: &[i64], page_size: i64) -> impl Iterator<Item = (i64, u32)> {
    let mut rest = slots;
    std::iter::from_fn(move || {
        let page = rest.first()? / page_size;
        let inside = page * page_size..(page + 1) * page_size;
        let count = rest.iter().take_while(|slot| inside.contains(slot)).count();
        rest = &rest[count..];
        Some((page, count as u32))
    })
}
