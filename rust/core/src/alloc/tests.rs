//! The dumb model that the allocators are compared with, and what their tests share.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::Audit;

/// Labels of owners; few, so that they meet.
pub(crate) const OWNERS: [Option<&str>; 4] = [None, Some("r1"), Some("r2"), Some("tree")];

pub(crate) type Label = Option<&'static str>;

/// The same cases on every run.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_251_201),
        ..Default::default()
    }
}

pub(crate) fn owner() -> impl Strategy<Value = Label> {
    proptest::sample::select(&OWNERS[..])
}

/// A slot of a pool of a dozen, or something near it that is none.
pub(crate) fn any_slot() -> impl Strategy<Value = i64> {
    prop_oneof![20 => -1..15_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

/// Owners and pending slots; every other slot is free.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) slots: std::ops::Range<i64>,
    pub(crate) owned: BTreeMap<i64, Label>,
    pub(crate) pending: BTreeSet<i64>,
}

impl Model {
    pub(crate) fn new(slots: std::ops::Range<i64>) -> Self {
        Self { slots, owned: BTreeMap::new(), pending: BTreeSet::new() }
    }

    pub(crate) fn free(&self) -> BTreeSet<i64> {
        let taken = |slot: &i64| self.owned.contains_key(slot) || self.pending.contains(slot);
        self.slots.clone().filter(|slot| !taken(slot)).collect()
    }

    /// Whether the slots can be taken from their owners: each is owned (by `owner`), and none comes twice.
    pub(crate) fn may_take(&self, slots: &[i64], owner: Label) -> bool {
        let distinct: BTreeSet<_> = slots.iter().collect();
        let fits = |slot| self.owned.get(slot).is_some_and(|has| owner.is_none() || *has == owner);
        distinct.len() == slots.len() && slots.iter().all(fits)
    }

    pub(crate) fn own(&mut self, slots: &[i64], owner: Label) {
        self.owned.extend(slots.iter().map(|&slot| (slot, owner)));
    }

    /// The first few slots of an owner.
    pub(crate) fn some_of(&self, owner: Label, count: usize) -> Vec<i64> {
        self.owned.iter().filter(|(_, has)| **has == owner).map(|(slot, _)| *slot).take(count).collect()
    }

    pub(crate) fn audit(&self, partial: usize) -> Audit {
        let mut owners: BTreeMap<Option<String>, Vec<i64>> = BTreeMap::new();
        for (&slot, label) in &self.owned {
            owners.entry(label.map(str::to_owned)).or_default().push(slot);
        }
        Audit {
            size: self.slots.clone().count(),
            available: self.free().len() - partial,
            pending: self.pending.len(),
            partial,
            owners: owners.into_iter().collect(),
            problems: Vec::new(),
        }
    }
}

/// Whether `slots` are `count` different ones out of `allowed`.
pub(crate) fn are_some_of(slots: &[i64], count: usize, allowed: &BTreeSet<i64>) -> bool {
    let distinct: BTreeSet<_> = slots.iter().copied().collect();
    slots.len() == count && distinct.len() == count && distinct.is_subset(allowed)
}
