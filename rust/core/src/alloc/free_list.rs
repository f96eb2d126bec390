//! The units (slots, or pages) that nobody has.
//!
//! Invariants: a unit is in at most one of `fresh`, `stack`, `waiting` and the group; a unit outside `fresh` is
//! below all in it; with `need_sort` the stack falls from its bottom to its top.
//!
//! So a fresh pool hands out 1, 2, 3, ..., a list released as one batch comes back in its order, and with
//! `need_sort` what comes after a merge is ascending again.

use std::ops::Range;

#[cfg_attr(test, derive(Debug, Clone, PartialEq))]
pub(crate) struct FreeList {
    /// Never handed out so far. Used when the stack is empty; costs no memory, whatever the size of the pool.
    fresh: Range<u32>,
    /// Released and ready: the next is at the end.
    stack: Vec<u32>,
    /// Released, to be sorted before reuse. Always empty without `need_sort`.
    waiting: Vec<u32>,
    need_sort: bool,
    group: Group,
}

/// Frees that were collected since the outermost open group began.
#[derive(Default)]
#[cfg_attr(test, derive(Debug, Clone, PartialEq))]
struct Group {
    depth: usize,
    units: Vec<i64>,
}

impl FreeList {
    pub(crate) fn new(units: Range<u32>, need_sort: bool) -> Self {
        let (stack, waiting) = (Vec::new(), Vec::new());
        Self { fresh: units, stack, waiting, need_sort, group: Group::default() }
    }

    /// Units that `take` could give.
    pub(crate) fn available(&self) -> usize {
        self.ready() + self.waiting.len()
    }

    /// Takes `count` units, or changes nothing when there are fewer.
    pub(crate) fn take(&mut self, count: usize) -> Option<Vec<i64>> {
        if count > self.available() {
            return None;
        }
        if count > self.ready() {
            self.merge();
        }
        let mut units = Vec::with_capacity(count);
        let kept = self.stack.len().saturating_sub(count);
        units.extend(self.stack.drain(kept..).rev().map(i64::from));
        let from_fresh = self.fresh.start..self.fresh.start + (count - units.len()) as u32;
        self.fresh.start = from_fresh.end;
        units.extend(from_fresh.map(i64::from));
        Some(units)
    }

    /// Takes back units that `take` gave, which were checked to be out.
    pub(crate) fn release(&mut self, units: &[i64]) {
        if self.group.depth > 0 {
            self.group.units.extend_from_slice(units);
        } else if self.need_sort {
            self.waiting.extend(units.iter().map(|&unit| unit as u32));
        } else {
            self.stack.extend(units.iter().rev().map(|&unit| unit as u32));
        }
    }

    /// From here units that are released stay aside. Groups nest.
    pub(crate) fn begin_group(&mut self) {
        self.group.depth += 1;
    }

    /// Ends the innermost group; the end of the outermost makes its units available, and says how many.
    pub(crate) fn end_group(&mut self) -> usize {
        self.group.depth = self.group.depth.saturating_sub(1);
        if self.group.depth > 0 {
            return 0;
        }
        let units = std::mem::take(&mut self.group.units);
        self.release(&units);
        units.len()
    }

    /// Units in the open group.
    pub(crate) fn pending(&self) -> &[i64] {
        &self.group.units
    }

    /// Every unit that `take` could give.
    pub(crate) fn iter(&self) -> impl Iterator<Item = i64> {
        let released = self.stack.iter().chain(&self.waiting).copied();
        released.chain(self.fresh.clone()).map(i64::from)
    }

    fn ready(&self) -> usize {
        self.stack.len() + self.fresh.len()
    }

    /// Sorts what waits into the stack. Called when the stack is shorter than the units asked for, so that each
    /// unit pays for being moved and sorted once.
    fn merge(&mut self) {
        self.stack.append(&mut self.waiting);
        self.stack.sort_by(|left, right| right.cmp(left));
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
impl FreeList {
    /// Plants a fault: the next unit is forgotten.
    pub(crate) fn lose_one(&mut self) {
        self.take(1);
    }
}
