//! Where every slot of a pool is, recomputed from scratch.

use super::ledger::Ledger;
use super::owners::Owner;

#[cfg(test)]
mod tests;

/// Where every slot of a pool is, and what is wrong with that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Slots in the pool, without the dummies.
    pub size: usize,
    /// Slots that can be handed out.
    pub available: usize,
    /// Slots that nobody has and that cannot be handed out to everybody: freed in an open free group, or reserved
    /// by an open alloc group.
    pub pending: usize,
    /// Slots that nobody has in pages that are partly handed out. 0 in a pool without pages.
    pub partial: usize,
    /// Who has which slots, the unnamed owner first, then by label; slots ascending.
    pub owners: Vec<(Option<String>, Vec<i64>)>,
    /// Every slot that is in two places or in none, and every count that is wrong. Empty in a sound pool.
    pub problems: Vec<String>,
}

/// What an allocator knows of the slots that nobody has.
pub(crate) struct Places {
    pub(crate) available: Vec<i64>,
    pub(crate) pending: Vec<i64>,
    pub(crate) partial: Vec<i64>,
}

impl Audit {
    pub(crate) fn new(ledger: &Ledger, places: &Places) -> Self {
        let mut audit = Self {
            size: ledger.size(),
            available: places.available.len(),
            pending: places.pending.len(),
            partial: places.partial.len(),
            owners: ledger.holdings(),
            problems: ledger.problems(),
        };
        audit.problems.extend(misplaced(ledger, places));
        audit.problems.extend(audit.imbalance(ledger.kind()));
        audit
    }

    /// Slots that have an owner.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.owners.iter().map(|(_, slots)| slots.len()).sum()
    }

    /// The conservation law: no slot is made, none is lost.
    fn imbalance(&self, kind: &str) -> Option<String> {
        let (owned, size) = (self.owned(), self.size);
        let Self { available, pending, partial, .. } = self;
        let sum = available + pending + partial + owned;
        (sum != size).then(|| {
            let parts = format!("{available} available, {pending} pending, {partial} partial, {owned} owned");
            format!("{parts}: {sum} {kind} slots, but the pool has {size}")
        })
    }
}

/// What is wrong with the places of single slots.
fn misplaced(ledger: &Ledger, places: &Places) -> Vec<String> {
    let kind = ledger.kind();
    let mut problems = Vec::new();
    let mut place_of = vec![None; ledger.end()];
    let named =
        [("available", &places.available), ("pending", &places.pending), ("partial", &places.partial)];
    for (place, slots) in named {
        for &slot in slots {
            match ledger.owner_of(slot) {
                Err(error) => problems.push(format!("{place}: {error}")),
                Ok(Owner::Nobody) => match place_of[slot as usize].replace(place) {
                    None => {}
                    Some(other) => problems.push(format!("{kind} slot {slot} is {other} and {place}")),
                },
                Ok(owner) => problems.push(format!("{kind} slot {slot} is {place}, but {owner} has it")),
            }
        }
    }
    let homeless = ledger.slots().filter(|&slot| {
        place_of[slot as usize].is_none() && matches!(ledger.owner_of(slot), Ok(Owner::Nobody))
    });
    problems.extend(
        homeless.map(|slot| format!("{kind} slot {slot} is lost: nobody has it, and it is not free")),
    );
    problems
}
