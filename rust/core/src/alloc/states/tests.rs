use proptest::prelude::*;

use super::super::tests::{Label, Model, any_slot, are_some_of, config, owner};
use super::StateAllocator;
use crate::alloc::Owner;

const SIZE: u32 = 12;

fn pool(size: usize) -> StateAllocator {
    StateAllocator::new(size).expect("a size that a pool can have")
}

fn taken(pool: &mut StateAllocator, count: usize, owner: Label) -> Vec<i64> {
    pool.alloc(count, owner).expect("a sound pool").expect("enough slots")
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, Label),
    /// Any slots, most often wrong ones.
    Free(Vec<i64>, Label),
    /// The first slots of an owner, by its name or by none.
    FreeSome(Label, usize, bool),
    TransferSome(Label, usize, Label),
    BeginGroup(usize),
    EndGroup,
}

fn op() -> impl Strategy<Value = Op> {
    let slots = prop::collection::vec(any_slot(), 0..4);
    prop_oneof![
        4 => (0..6_usize, owner()).prop_map(|(count, owner)| Op::Alloc(count, owner)),
        2 => (slots, owner()).prop_map(|(slots, owner)| Op::Free(slots, owner)),
        4 => (owner(), 0..5_usize, any::<bool>()).prop_map(|(from, count, named)| Op::FreeSome(from, count, named)),
        1 => (owner(), 0..4_usize, owner()).prop_map(|(from, count, to)| Op::TransferSome(from, count, to)),
        2 => (0..7_usize).prop_map(Op::BeginGroup),
        1 => Just(Op::EndGroup),
    ]
}

/// The model's pending slots are the reserve.
struct Pair {
    pool: StateAllocator,
    model: Model,
    depth: usize,
}

impl Pair {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Alloc(count, owner) => self.alloc(*count, *owner),
            Op::Free(slots, owner) => self.free(slots, *owner),
            Op::FreeSome(from, count, named) => {
                let slots = self.model.some_of(*from, *count);
                self.free(&slots, from.filter(|_| *named));
            }
            Op::TransferSome(from, count, to) => {
                let slots = self.model.some_of(*from, *count);
                self.pool.transfer(&slots, *to).expect("owned slots");
                self.model.own(&slots, *to);
            }
            Op::BeginGroup(count) => self.begin_group(*count),
            Op::EndGroup => self.end_group(),
        }
    }

    fn alloc(&mut self, count: usize, owner: Label) {
        let (free, reserve) = (self.model.free(), self.model.pending.clone());
        let slots = self.pool.alloc(count, owner).expect("a sound pool");
        assert_eq!(slots.is_some(), count <= free.len() + reserve.len());
        let Some(slots) = slots else { return };
        let (first, others) = slots.split_at(count.min(reserve.len()));
        assert!(are_some_of(first, first.len(), &reserve), "{first:?} of the reserve {reserve:?}");
        assert!(are_some_of(others, count - first.len(), &free), "{others:?} of {free:?}");
        self.model.pending.retain(|slot| !first.contains(slot));
        self.model.own(&slots, owner);
    }

    fn free(&mut self, slots: &[i64], owner: Label) {
        let before = self.pool.free.clone();
        let result = self.pool.free(slots, owner);
        assert_eq!(result.is_ok(), self.model.may_take(slots, owner), "{result:?}");
        if result.is_err() {
            return assert_eq!(self.pool.free, before);
        }
        for slot in slots {
            self.model.owned.remove(slot);
        }
    }

    /// Which slots were reserved is the pool's choice: the model takes it over after a look at it.
    fn begin_group(&mut self, count: usize) {
        let (free, held) = (self.model.free(), self.model.pending.len());
        assert_eq!(self.pool.begin_alloc_group(count), count <= free.len());
        if count > free.len() {
            return;
        }
        let new: Vec<_> = self.pool.reserve.iter().skip(held).copied().collect();
        assert!(are_some_of(&new, count, &free), "{new:?} of {free:?}");
        self.model.pending.extend(new);
        self.depth += 1;
    }

    fn end_group(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        let rest = if self.depth == 0 { std::mem::take(&mut self.model.pending).len() } else { 0 };
        assert_eq!(self.pool.end_alloc_group(), rest);
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn a_pool_is_what_the_model_says(ops in prop::collection::vec(op(), 0..60)) {
        let mut pair = Pair { pool: pool(SIZE as usize), model: Model::new(1..i64::from(SIZE) + 1), depth: 0 };
        for op in &ops {
            pair.apply(op);
            assert_eq!(pair.pool.audit(), pair.model.audit(0));
            assert_eq!(pair.pool.available(), pair.model.free().len());
        }
    }
}

#[test]
fn a_released_request_gets_fresh_slots_that_nobody_else_has() {
    let mut pool = pool(8);
    let first = taken(&mut pool, 3, Some("r1"));
    pool.free(&first, Some("r1")).expect("its own slots");
    let again = taken(&mut pool, 3, Some("r1"));
    let other = taken(&mut pool, 3, Some("r2"));
    assert!(again.iter().all(|slot| !other.contains(slot)));
    let refused = pool.free(&other, Some("r1")).expect_err("not its own").to_string();
    assert_eq!(refused, format!(r#"state slot {} belongs to "r2", not to "r1""#, other[0]));
}

#[test]
fn a_pool_of_four_never_hands_out_five() {
    let mut pool = pool(4);
    let running = taken(&mut pool, 1, Some("r1"));
    pool.free(&running, Some("r1")).expect("the chunk's free");
    let refused = pool.free(&running, Some("r1")).expect_err("the free at the end").to_string();
    assert_eq!(refused, "state slot 1 is free already");
    assert_eq!(taken(&mut pool, 4, None), [1, 2, 3, 4]);
    assert_eq!(pool.alloc(1, None), Ok(None));
}

#[test]
fn a_group_reserves_and_gives_back_the_rest() {
    let mut pool = pool(6);
    assert!(!pool.begin_alloc_group(7));
    assert!(pool.begin_alloc_group(4));
    assert_eq!((pool.available(), pool.audit().pending), (2, 4));
    assert_eq!(pool.owner_of(1), Ok(Owner::Nobody));
    assert_eq!(pool.free(&[1], None).expect_err("reserved").to_string(), "state slot 1 is free already");
    assert_eq!(taken(&mut pool, 1, Some("r1")), [1]);
    assert_eq!(taken(&mut pool, 4, Some("r2")), [2, 3, 4, 5], "past the reserve, what is available");
    assert_eq!(pool.end_alloc_group(), 0);
    assert!(pool.begin_alloc_group(1));
    assert_eq!((pool.alloc(2, None), pool.available()), (Ok(None), 0));
    assert_eq!((pool.end_alloc_group(), pool.end_alloc_group(), pool.available()), (1, 0, 1));
}
