//! Whose each slot is.
//!
//! Invariant: the counts of [`Owners`] are those of the numbers in `owner_numbers`. Every call checks all its
//! slots while it goes and takes back what it did when one is refused, so that it reads the ledger once.

use super::owners::{NOBODY, Owner, Owners};
use crate::error::{Error, Result};

pub(crate) struct Ledger {
    /// `KV` or `state`, for messages.
    kind: &'static str,
    /// The slots below are dummies.
    first: i64,
    /// By slot, the dummies included.
    owner_numbers: Vec<u32>,
    owners: Owners,
}

/// Neighbouring slots of a call that had the same owner: its number, and how many. (The first is of nobody and
/// empty.)
type Run = (u32, usize);

impl Ledger {
    /// A ledger of `size` slots that nobody owns, after the dummies.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] when the host has no room for it.
    pub(crate) fn new(kind: &'static str, dummies: u32, size: u32) -> Result<Self> {
        let owner_numbers = super::filled(NOBODY, dummies as usize + size as usize)?;
        Ok(Self { kind, first: i64::from(dummies), owner_numbers, owners: Owners::new() })
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// Slots that can be owned.
    pub(crate) fn size(&self) -> usize {
        self.owner_numbers.len() - self.first as usize
    }

    /// The number after the last slot.
    pub(crate) fn end(&self) -> usize {
        self.owner_numbers.len()
    }

    /// All slots that can be owned.
    pub(crate) fn slots(&self) -> impl Iterator<Item = i64> + use<> {
        (self.first..).take(self.size())
    }

    pub(crate) fn owner_of(&self, slot: i64) -> Result<Owner<'_>> {
        self.number(slot).map(|number| self.owners.owner(number)).ok_or_else(|| self.no_slot(slot))
    }

    /// Gives free slots to an owner: all, or none when one is not free or comes twice.
    pub(crate) fn claim(&mut self, slots: &[i64], owner: Option<&str>) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let number = self.owners.add(owner, slots.len());
        for (done, &slot) in slots.iter().enumerate() {
            let Some(place) = self.number_mut(slot).filter(|place| **place == NOBODY) else {
                self.write(&slots[..done], NOBODY);
                self.owners.remove(number, slots.len());
                return Err(self.given_twice(slots, done).unwrap_or_else(|| self.not_free(slot)));
            };
            *place = number;
        }
        Ok(())
    }

    /// Takes slots from their owner, which must be `owner` if one is given: all, or none when one is not owned
    /// (by it) or comes twice.
    pub(crate) fn release(&mut self, slots: &[i64], owner: Option<&str>) -> Result<()> {
        let runs = self.take(slots, owner)?;
        self.discount(&runs);
        Ok(())
    }

    /// Gives slots that have an owner to another: all, or none when one has no owner or comes twice.
    pub(crate) fn transfer(&mut self, slots: &[i64], to: Option<&str>) -> Result<()> {
        let runs = self.take(slots, None)?;
        self.claim(slots, to)?;
        self.discount(&runs);
        Ok(())
    }

    /// Refuses a slot that is not owned, or not by `owner` if one is given.
    pub(crate) fn check_owned(&self, slot: i64, owner: Option<&str>) -> Result<()> {
        let number = self.number(slot).filter(|&number| is_of(number, self.wanted(owner)));
        number.map(drop).ok_or_else(|| self.not_owned(slot, owner))
    }

    /// The slots of each owner, by label, the unnamed owner first.
    pub(crate) fn holdings(&self) -> Vec<(Option<String>, Vec<i64>)> {
        let mut slots_of = vec![Vec::new(); self.owners.counts().count()];
        for slot in self.slots() {
            slots_of[self.owner_numbers[slot as usize] as usize].push(slot);
        }
        let owned = (0..).zip(slots_of).filter(|(number, slots)| *number != NOBODY && !slots.is_empty());
        let mut all: Vec<_> = owned.collect();
        all.sort_unstable_by_key(|&(number, _)| self.owners.label(number));
        all.into_iter().map(|(number, slots)| (self.owners.label(number).map(str::to_owned), slots)).collect()
    }

    /// Where the counts of the owners differ from what they have, and labels of those that have nothing.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut has = vec![0; self.owners.counts().count()];
        for slot in self.slots() {
            has[self.owner_numbers[slot as usize] as usize] += 1;
        }
        has[NOBODY as usize] = 0;
        let wrong = self.owners.counts().zip(has).filter(|((_, count), has)| count != has);
        let miscounted = wrong.map(|((number, count), has)| {
            format!("{} counts {count} {} slots, but has {has}", self.owners.owner(number), self.kind)
        });
        let idle = self.owners.idle().map(|label| format!("{label:?} is remembered, but counts no slots"));
        miscounted.chain(idle).collect()
    }

    /// Makes slots nobody's without taking them from the counts; says whose they were.
    fn take(&mut self, slots: &[i64], owner: Option<&str>) -> Result<Vec<Run>> {
        let wanted = self.wanted(owner);
        let mut runs = Vec::new();
        let mut run = (NOBODY, 0);
        for (done, &slot) in slots.iter().enumerate() {
            let Some(number) = self.number_mut(slot).filter(|number| is_of(**number, wanted)) else {
                runs.push(run);
                self.put_back(&slots[..done], &runs);
                return Err(self.given_twice(slots, done).unwrap_or_else(|| self.not_owned(slot, owner)));
            };
            lengthen(&mut run, &mut runs, std::mem::replace(number, NOBODY));
        }
        runs.push(run);
        Ok(runs)
    }

    /// Undoes `take`.
    fn put_back(&mut self, slots: &[i64], runs: &[Run]) {
        let mut rest = slots;
        for &(number, length) in runs {
            let (run, others) = rest.split_at(length);
            self.write(run, number);
            rest = others;
        }
    }

    fn write(&mut self, slots: &[i64], number: u32) {
        for &slot in slots {
            self.owner_numbers[slot as usize] = number;
        }
    }

    fn discount(&mut self, runs: &[Run]) {
        for &(number, length) in runs {
            self.owners.remove(number, length);
        }
    }

    /// The number that an owner's slots have: of no slot, if it has none; None if any owner will do.
    fn wanted(&self, owner: Option<&str>) -> Option<u32> {
        owner.map(|label| self.owners.find(label).unwrap_or(NOBODY))
    }

    fn number(&self, slot: i64) -> Option<u32> {
        if slot < self.first { None } else { self.owner_numbers.get(slot as usize).copied() }
    }

    fn number_mut(&mut self, slot: i64) -> Option<&mut u32> {
        if slot < self.first { None } else { self.owner_numbers.get_mut(slot as usize) }
    }

    fn not_owned(&self, slot: i64, owner: Option<&str>) -> Error {
        let problem = match (self.owner_of(slot), owner) {
            (Err(error), _) => return error,
            (Ok(Owner::Nobody), _) | (_, None) => "is free already".to_owned(),
            (Ok(has), Some(owner)) => format!("belongs to {has}, not to {owner:?}"),
        };
        Error::SlotOwner { kind: self.kind, slot, problem }
    }

    fn not_free(&self, slot: i64) -> Error {
        match self.owner_of(slot) {
            Err(error) => error,
            Ok(owner) => {
                let problem = format!("belongs to {owner} already");
                Error::SlotOwner { kind: self.kind, slot, problem }
            }
        }
    }

    fn no_slot(&self, slot: i64) -> Error {
        let last = self.first - 1;
        if (1..=last).contains(&slot) {
            let problem = format!("is in the dummy page (slots 0 to {last}), which nobody owns");
            return Error::SlotOwner { kind: self.kind, slot, problem };
        }
        Error::SlotRange { kind: self.kind, slot, largest: last + super::given(self.size()) }
    }

    /// The better message when the slot at `at` was refused because it stands earlier in `slots`, too.
    fn given_twice(&self, slots: &[i64], at: usize) -> Option<Error> {
        let first = slots[..at].iter().position(|slot| *slot == slots[at])?;
        let problem = format!("is given twice, at {first} and at {at}");
        Some(Error::SlotOwner { kind: self.kind, slot: slots[at], problem })
    }
}

fn is_of(number: u32, wanted: Option<u32>) -> bool {
    number != NOBODY && wanted.is_none_or(|wanted| wanted == number)
}

/// Counts one more slot of an owner: to the run, or to a new one after it.
fn lengthen(run: &mut Run, done: &mut Vec<Run>, number: u32) {
    if run.0 != number {
        done.push(std::mem::replace(run, (number, 0)));
    }
    run.1 += 1;
}

#[cfg(test)]
mod tests;

#[cfg(test)]
impl Ledger {
    /// Plants a fault: the owner is remembered without a slot.
    pub(crate) fn remember(&mut self, label: &str) {
        self.owners.add(Some(label), 0);
    }

    /// Plants a fault: the slot's owner changes, the counts do not.
    pub(crate) fn forge(&mut self, slot: i64, like: i64) {
        self.owner_numbers[slot as usize] = self.owner_numbers[like as usize];
    }
}
