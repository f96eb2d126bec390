use proptest::prelude::*;

use super::super::tests::{Label, Model, any_slot, are_some_of, config, owner};
use super::KvAllocator;
use crate::alloc::{Audit, Owner};
use crate::error::Error;

const SIZE: u32 = 12;

fn pool(size: usize) -> KvAllocator {
    KvAllocator::new(size, false).expect("a size that a pool can have")
}

fn taken(pool: &mut KvAllocator, count: usize, owner: Label) -> Vec<i64> {
    pool.alloc(count, owner).expect("a sound pool").expect("enough slots")
}

fn refusal<T: std::fmt::Debug>(result: crate::Result<T>) -> String {
    result.expect_err("a mistake").to_string()
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, Label),
    /// Any slots, most often wrong ones.
    Free(Vec<i64>, Label),
    /// The first slots of an owner, by its name or by none.
    FreeSome(Label, usize, bool),
    Transfer(Vec<i64>, Label),
    TransferSome(Label, usize, Label),
    BeginGroup,
    EndGroup,
}

fn op() -> impl Strategy<Value = Op> {
    let slots = || prop::collection::vec(any_slot(), 0..4);
    prop_oneof![
        4 => (0..6_usize, owner()).prop_map(|(count, owner)| Op::Alloc(count, owner)),
        3 => (slots(), owner()).prop_map(|(slots, owner)| Op::Free(slots, owner)),
        3 => (owner(), 0..5_usize, any::<bool>()).prop_map(|(from, count, named)| Op::FreeSome(from, count, named)),
        2 => (slots(), owner()).prop_map(|(slots, owner)| Op::Transfer(slots, owner)),
        2 => (owner(), 0..4_usize, owner()).prop_map(|(from, count, to)| Op::TransferSome(from, count, to)),
        1 => Just(Op::BeginGroup),
        1 => Just(Op::EndGroup),
    ]
}

struct Pair {
    pool: KvAllocator,
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
            Op::Transfer(slots, to) => self.transfer(slots, *to),
            Op::TransferSome(from, count, to) => self.transfer(&self.model.some_of(*from, *count), *to),
            Op::BeginGroup => {
                self.depth += 1;
                self.pool.begin_free_group();
            }
            Op::EndGroup => self.end_group(),
        }
    }

    fn alloc(&mut self, count: usize, owner: Label) {
        let free = self.model.free();
        let before = self.pool.free.clone();
        let slots = self.pool.alloc(count, owner).expect("a sound pool");
        assert_eq!(slots.is_some(), count <= free.len());
        match slots {
            Some(slots) => {
                assert!(are_some_of(&slots, count, &free), "{slots:?} of {free:?}");
                self.model.own(&slots, owner);
            }
            None => assert_eq!(self.pool.free, before),
        }
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
        self.model.pending.extend(slots.iter().filter(|_| self.depth > 0));
    }

    fn transfer(&mut self, slots: &[i64], to: Label) {
        let result = self.pool.transfer(slots, to);
        assert_eq!(result.is_ok(), self.model.may_take(slots, None), "{result:?}");
        if result.is_ok() {
            self.model.own(slots, to);
        }
    }

    fn end_group(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        let released = if self.depth == 0 { std::mem::take(&mut self.model.pending).len() } else { 0 };
        assert_eq!(self.pool.end_free_group(), released);
    }

    fn check(&self) {
        assert_eq!(self.pool.audit(), self.model.audit(0));
        assert_eq!(self.pool.available(), self.model.audit(0).available);
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn a_pool_is_what_the_model_says(sort in any::<bool>(), ops in prop::collection::vec(op(), 0..60)) {
        let pool = KvAllocator::new(SIZE as usize, sort).expect("a size that a pool can have");
        let mut pair = Pair { pool, model: Model::new(1..i64::from(SIZE) + 1), depth: 0 };
        for op in &ops {
            pair.apply(op);
            pair.check();
        }
    }
}

#[test]
fn sizes_that_no_pool_has_are_refused() {
    assert_eq!(
        refusal(KvAllocator::new(0, false).map(drop)),
        "size is 0, but a pool has from 1 to 1073741824 slots"
    );
    assert!(matches!(KvAllocator::new(usize::MAX, true), Err(Error::Config { name: "size", .. })));
}

#[test]
fn a_request_gets_ascending_slots_or_none() {
    let mut pool = pool(4);
    assert_eq!(taken(&mut pool, 3, Some("r1")), [1, 2, 3]);
    assert_eq!(pool.alloc(2, Some("r2")), Ok(None));
    assert_eq!(pool.alloc(0, Some("r2")), Ok(Some(vec![])));
    assert_eq!((pool.size(), pool.available()), (4, 1));
    assert_eq!(pool.owner_of(2), Ok(Owner::Named("r1")));
    assert_eq!(pool.owner_of(4), Ok(Owner::Nobody));
}

#[test]
fn a_slot_freed_twice_is_refused_and_never_has_two_owners() {
    let mut pool = pool(4);
    let slots = taken(&mut pool, 1, Some("r1"));
    pool.free(&slots, Some("r1")).expect("the first free");
    assert_eq!(refusal(pool.free(&slots, None)), "KV slot 1 is free already");
    assert_eq!(refusal(pool.free(&slots, Some("r1"))), "KV slot 1 is free already");
    assert_eq!(taken(&mut pool, 4, None), [1, 2, 3, 4]);
    assert_eq!(refusal(pool.free(&[2, 3, 2], None)), "KV slot 2 is given twice, at 0 and at 2");
    assert_eq!(pool.owner_of(2), Ok(Owner::Unnamed), "the refused call changed nothing");
}

#[test]
fn a_foreign_slot_is_refused_with_its_owner() {
    let mut pool = pool(4);
    taken(&mut pool, 2, Some("r42"));
    taken(&mut pool, 1, None);
    assert_eq!(refusal(pool.free(&[2], Some("r7"))), r#"KV slot 2 belongs to "r42", not to "r7""#);
    assert_eq!(refusal(pool.free(&[3], Some("r7"))), r#"KV slot 3 belongs to an unnamed owner, not to "r7""#);
    assert_eq!(
        refusal(pool.free(&[1, 0], None)),
        "KV slot 0 is not a slot: numbers go from 1 to 4 (0 is the dummy)"
    );
    assert_eq!(
        refusal(pool.free(&[5], None)),
        "KV slot 5 is not a slot: numbers go from 1 to 4 (0 is the dummy)"
    );
    assert_eq!(pool.available(), 1);
}

#[test]
fn a_transfer_names_the_new_owner() {
    let mut pool = pool(4);
    let slots = taken(&mut pool, 3, Some("r1"));
    pool.transfer(&slots[..2], Some("tree")).expect("owned slots");
    assert_eq!(refusal(pool.free(&slots, Some("r1"))), r#"KV slot 1 belongs to "tree", not to "r1""#);
    assert_eq!(refusal(pool.transfer(&[3, 4], Some("tree"))), "KV slot 4 is free already");
    let owners = vec![(Some("r1".to_owned()), vec![3]), (Some("tree".to_owned()), vec![1, 2])];
    let audit = Audit { size: 4, available: 1, pending: 0, partial: 0, owners, problems: vec![] };
    assert_eq!(pool.audit(), audit);
}

#[test]
fn a_slot_in_an_open_group_is_neither_owned_nor_available() {
    let mut pool = pool(2);
    let slots = taken(&mut pool, 2, Some("r1"));
    pool.begin_free_group();
    pool.free(&slots, Some("r1")).expect("owned slots");
    assert_eq!(refusal(pool.free(&slots[..1], None)), "KV slot 1 is free already");
    assert_eq!(pool.alloc(1, None), Ok(None));
    assert_eq!((pool.audit().pending, pool.audit().available), (2, 0));
    assert_eq!(pool.end_free_group(), 2);
    assert_eq!(taken(&mut pool, 2, None), [1, 2]);
}

#[test]
fn a_week_of_request_ids_leaves_no_labels() {
    let mut pool = pool(3);
    for request in 0..1000 {
        let label = format!("r{request}");
        let slots = pool.alloc(2, Some(&label)).expect("a sound pool").expect("enough slots");
        pool.free(&slots, Some(&label)).expect("its own slots");
    }
    assert_eq!(pool.audit().problems, [""; 0]);
    assert_eq!(pool.audit().owners, []);
}
