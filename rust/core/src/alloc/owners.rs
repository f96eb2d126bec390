//! The labels of owners, each as a small number, with the count of slots that it has.
//!
//! Invariant: a label is here exactly as long as its count is not 0, so a week of request ids leaves nothing
//! behind.

use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The number of no owner: the slot is not handed out.
pub(crate) const NOBODY: u32 = 0;
/// The number of the owner without a label.
const UNNAMED: u32 = 1;

/// Who has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// It is not handed out.
    Nobody,
    /// It was handed out without a label.
    Unnamed,
    /// It was handed out under this label.
    Named(&'a str),
}

impl fmt::Display for Owner<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Nobody => formatter.write_str("nobody"),
            Owner::Unnamed => formatter.write_str("an unnamed owner"),
            Owner::Named(label) => write!(formatter, "{label:?}"),
        }
    }
}

#[derive(Default)]
struct Entry {
    label: Option<Arc<str>>,
    slots: usize,
}

pub(crate) struct Owners {
    /// By number. The first two have no label.
    entries: Vec<Entry>,
    /// Numbers of labels that were forgotten.
    vacant: Vec<u32>,
    numbers: HashMap<Arc<str>, u32, RandomState>,
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self {
            entries: vec![Entry::default(), Entry::default()],
            vacant: Vec::new(),
            numbers: HashMap::default(),
        }
    }

    /// The number of an owner that has slots.
    pub(crate) fn find(&self, label: &str) -> Option<u32> {
        self.numbers.get(label).copied()
    }

    pub(crate) fn owner(&self, number: u32) -> Owner<'_> {
        match self.label(number) {
            Some(label) => Owner::Named(label),
            None if number == NOBODY => Owner::Nobody,
            None => Owner::Unnamed,
        }
    }

    pub(crate) fn label(&self, number: u32) -> Option<&str> {
        self.entries[number as usize].label.as_deref()
    }

    /// Counts slots (at least one) to an owner, whose number it gives.
    pub(crate) fn add(&mut self, label: Option<&str>, slots: usize) -> u32 {
        let number = label.map_or(UNNAMED, |label| self.find(label).unwrap_or_else(|| self.remember(label)));
        self.entries[number as usize].slots += slots;
        number
    }

    /// Takes slots from an owner's count, and forgets the owner when none is left.
    pub(crate) fn remove(&mut self, number: u32, slots: usize) {
        let entry = &mut self.entries[number as usize];
        entry.slots -= slots;
        if entry.slots == 0
            && let Some(label) = entry.label.take()
        {
            self.numbers.remove(&label);
            self.vacant.push(number);
        }
    }

    /// Labels that should have been forgotten.
    pub(crate) fn idle(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|entry| entry.slots == 0).filter_map(|entry| entry.label.as_deref())
    }

    /// What each number counts, also those that count nothing.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, usize)> {
        (0..).zip(self.entries.iter().map(|entry| entry.slots))
    }

    fn remember(&mut self, label: &str) -> u32 {
        let label: Arc<str> = label.into();
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize].label = Some(Arc::clone(&label));
        self.numbers.insert(label, number);
        number
    }
}
