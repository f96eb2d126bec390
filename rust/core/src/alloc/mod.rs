//! Who holds which slot: the allocators of KV slots (single or in pages) and of recurrent states.
//!
//! Slots are numbers, handed out on the host, so that nothing waits for a device to learn one. Slot 0 (for
//! pages: page 0) is the dummy that padded writes go to, and is never handed out. Every slot that is out has
//! an owner, a label or nobody by name, so that a double free, a free of somebody else's slot or a leak is
//! named with slot and owner by the call that makes it, or by an [`Audit`].
//!
//! # Invariants
//!
//! They hold after every call, a refused one changes nothing, and [`Audit`] recomputes them from scratch.
//!
//! 1. A slot is in exactly one place: available, pending (freed in an open group, or reserved), owned, or the
//!    unused rest of a page that is partly handed out.
//! 2. The count of slots that each owner has is that of the slots that name it; an owner without one is
//!    forgotten.
//! 3. The count of slots in use in each page is that of the owned slots in it, and only pages of count 0 are
//!    available or pending.

mod audit;
mod free_list;
mod ledger;
mod owners;
mod pages;
mod plan;
mod states;
#[cfg(test)]
mod tests;
mod tokens;

pub use audit::Audit;
pub use owners::Owner;
pub use pages::PagedKvAllocator;
pub use plan::{Decode, Extend};
pub use states::StateAllocator;
pub use tokens::KvAllocator;

use crate::error::{Error, Result};

const KV: &str = "KV";
const STATE: &str = "state";

/// Slots and owners are kept as 32-bit numbers; this leaves room for the dummies and for every slot's owner.
const MOST_SLOTS: usize = 1 << 30;

/// The size of a pool as the allocators keep it, or why no pool has it.
fn checked_size(size: usize) -> Result<u32> {
    if (1..=MOST_SLOTS).contains(&size) {
        return Ok(size as u32);
    }
    let rule = format!("a pool has from 1 to {MOST_SLOTS} slots");
    Err(Error::Config { name: "size", given: size.to_string(), rule })
}

/// `vec![value; count]` that refuses where that would abort.
fn filled(value: u32, count: usize) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let bytes = count.saturating_mul(size_of::<u32>());
    let what = "the table of a pool's slots".to_owned();
    numbers.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { what, bytes })?;
    numbers.resize(count, value);
    Ok(numbers)
}

/// An argument that is a count, as errors carry it.
fn given(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
