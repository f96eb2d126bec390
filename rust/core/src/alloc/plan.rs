//! Where the new tokens of requests go in a pool of pages: found out, and refused, before anything changes.

use super::ledger::Ledger;
use super::owners::Owner;
use super::{KV, given};
use crate::error::{Error, Result};

/// One request of [`super::PagedKvAllocator::alloc_extend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extend {
    /// Tokens that have slots.
    pub prefix_length: usize,
    /// Tokens that shall have slots.
    pub total_length: usize,
    /// The slot of the prefix's last token. Not read when the prefix is whole pages.
    pub last_slot: i64,
}

/// One request of [`super::PagedKvAllocator::alloc_decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decode {
    /// Tokens that shall have slots; all but the last have.
    pub total_length: usize,
    /// The slot of the last token but one. Not read when the tokens before the last are whole pages.
    pub last_slot: i64,
}

impl Decode {
    pub(crate) fn as_extend(&self) -> Result<Extend> {
        let Self { total_length, last_slot } = *self;
        let prefix_length = total_length.checked_sub(1).ok_or_else(|| Error::Argument {
            name: "total_length",
            given: 0,
            rule: "it counts the token that gets a slot".into(),
        })?;
        Ok(Extend { prefix_length, total_length, last_slot })
    }
}

/// Where the new tokens of one request go.
pub(crate) struct Plan {
    /// The slot after which its last page goes on.
    last_slot: i64,
    /// Tokens that still go to that page.
    tail: usize,
    /// Tokens that go to new pages.
    rest: usize,
    /// How many new pages that takes.
    pub(crate) pages: usize,
}

/// The plans of requests, each with its owner. No slot is in two of them.
pub(crate) fn all(
    ledger: &Ledger,
    page_size: u32,
    requests: &[Extend],
    owners: &[Option<&str>],
) -> Result<Vec<Plan>> {
    let each =
        requests.iter().zip(owners).map(|(request, owner)| Plan::new(ledger, page_size, request, *owner));
    let plans = each.collect::<Result<Vec<_>>>()?;
    check_apart(&plans)?;
    Ok(plans)
}

impl Plan {
    fn new(ledger: &Ledger, page_size: u32, request: &Extend, owner: Option<&str>) -> Result<Self> {
        let Extend { prefix_length, total_length, last_slot } = *request;
        let page_size = page_size as usize;
        let new = total_length.checked_sub(prefix_length).ok_or_else(|| Error::Argument {
            name: "total_length",
            given: given(total_length),
            rule: format!("its prefix alone is {prefix_length} tokens"),
        })?;
        let filled = prefix_length % page_size;
        let tail = if filled == 0 { 0 } else { new.min(page_size - filled) };
        if filled > 0 {
            ledger.check_owned(last_slot, owner)?;
            check_place(request, page_size)?;
            check_after(ledger, last_slot, tail)?;
        }
        let rest = new - tail;
        Ok(Self { last_slot, tail, rest, pages: rest.div_ceil(page_size) })
    }

    /// How many slots it gives.
    pub(crate) fn slots(&self) -> usize {
        self.tail + self.rest
    }

    /// Writes the slots out, with new pages from `pages`.
    pub(crate) fn carry_out(&self, page_size: u32, pages: impl Iterator<Item = i64>, slots: &mut Vec<i64>) {
        slots.extend((self.last_slot.saturating_add(1)..).take(self.tail));
        let mut rest = self.rest;
        for page in pages.take(self.pages) {
            let count = rest.min(page_size as usize);
            slots.extend((page * i64::from(page_size)..).take(count));
            rest -= count;
        }
    }
}

/// Refuses a last slot that does not lie where a prefix of that length ends.
fn check_place(request: &Extend, page_size: usize) -> Result<()> {
    let Extend { prefix_length, last_slot: slot, .. } = *request;
    let (is, wanted) = (slot as usize % page_size, (prefix_length - 1) % page_size);
    if is == wanted {
        return Ok(());
    }
    let problem = format!("is at {is} in its page, but a prefix of {prefix_length} tokens ends at {wanted}");
    Err(Error::SlotOwner { kind: KV, slot, problem })
}

/// Refuses a page whose slots after the last one are not all free.
fn check_after(ledger: &Ledger, last_slot: i64, tail: usize) -> Result<()> {
    for slot in (last_slot + 1..).take(tail) {
        let owner = ledger.owner_of(slot)?;
        if owner != Owner::Nobody {
            let problem = format!("belongs to {owner}, so nothing can go on after slot {last_slot}");
            return Err(Error::SlotOwner { kind: KV, slot, problem });
        }
    }
    Ok(())
}

/// Refuses two requests that want the same slots. Each was found to want free slots only, right after one that is
/// out, so two can only meet after the same one.
fn check_apart(plans: &[Plan]) -> Result<()> {
    let mut last: Vec<i64> = plans.iter().filter(|plan| plan.tail > 0).map(|plan| plan.last_slot).collect();
    last.sort_unstable();
    match last.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let problem = "is the last slot of two requests".into();
            Err(Error::SlotOwner { kind: KV, slot: pair[0], problem })
        }
    }
}
