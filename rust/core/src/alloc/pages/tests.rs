use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::tests::{Label, Model, any_slot, config, owner};
use super::PagedKvAllocator;
use crate::alloc::{Decode, Extend, Owner};

const PAGE: i64 = 4;
const SIZE: i64 = 16;

fn pool(size: usize, page_size: usize) -> PagedKvAllocator {
    PagedKvAllocator::new(size, page_size, false).expect("sizes that a pool can have")
}

fn extend(prefix_length: usize, total_length: usize, last_slot: i64) -> Extend {
    Extend { prefix_length, total_length, last_slot }
}

fn taken(pool: &mut PagedKvAllocator, requests: &[Extend], owners: &[Label]) -> Vec<i64> {
    pool.alloc_extend(requests, owners).expect("right requests").expect("enough pages")
}

fn refusal<T: std::fmt::Debug>(result: crate::Result<T>) -> String {
    result.expect_err("a mistake").to_string()
}

/// One request of a batch.
#[derive(Debug, Clone)]
enum Ask {
    /// Any numbers, most often wrong ones.
    Any(Extend, Label),
    /// Goes on after one of the slots that are out, with the prefix that its place implies.
    GoOn {
        pick: usize,
        more_pages: usize,
        grow: usize,
        as_nobody: bool,
    },
    New(usize, Label),
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, Label),
    Extend(Vec<Ask>),
    Decode(Vec<Ask>),
    Free(Vec<i64>, Label),
    FreeSome(Label, usize, bool),
    TransferSome(Label, usize, Label),
    BeginGroup,
    EndGroup,
}

fn ask() -> impl Strategy<Value = Ask> {
    let any_request = (0..10_usize, 0..14_usize, any_slot(), owner());
    let go_on = (0..16_usize, 0..2_usize, 0..7_usize, any::<bool>());
    prop_oneof![
        1 => any_request.prop_map(|(prefix, total, last, owner)| Ask::Any(extend(prefix, total, last), owner)),
        4 => go_on.prop_map(|(pick, more_pages, grow, as_nobody)| Ask::GoOn { pick, more_pages, grow, as_nobody }),
        3 => (0..9_usize, owner()).prop_map(|(total, owner)| Ask::New(total, owner)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let some = || (owner(), 0..5_usize);
    prop_oneof![
        1 => (0..9_usize, owner()).prop_map(|(count, owner)| Op::Alloc(count, owner)),
        6 => prop::collection::vec(ask(), 0..4).prop_map(Op::Extend),
        3 => prop::collection::vec(ask(), 0..4).prop_map(Op::Decode),
        2 => (prop::collection::vec(any_slot(), 0..4), owner()).prop_map(|(slots, owner)| Op::Free(slots, owner)),
        5 => (some(), any::<bool>()).prop_map(|((from, count), named)| Op::FreeSome(from, count, named)),
        1 => (some(), owner()).prop_map(|((from, count), to)| Op::TransferSome(from, count, to)),
        1 => Just(Op::BeginGroup),
        1 => Just(Op::EndGroup),
    ]
}

fn page_of(slot: i64) -> i64 {
    slot / PAGE
}

struct Pair {
    pool: PagedKvAllocator,
    model: Model,
    depth: usize,
}

impl Pair {
    fn new(need_sort: bool) -> Self {
        let pool = PagedKvAllocator::new(SIZE as usize, PAGE as usize, need_sort)
            .expect("sizes that a pool can have");
        Self { pool, model: Model::new(PAGE..SIZE + PAGE), depth: 0 }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Alloc(count, owner) => self.alloc(*count, *owner),
            Op::Extend(asks) => self.extend(asks),
            Op::Decode(asks) => self.decode(asks),
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
            Op::BeginGroup => {
                self.depth += 1;
                self.pool.begin_free_group();
            }
            Op::EndGroup => self.end_group(),
        }
    }

    fn alloc(&mut self, count: usize, owner: Label) {
        let free_pages = self.free_pages();
        let result = self.pool.alloc(count, owner);
        assert_eq!(result.is_ok(), count.is_multiple_of(PAGE as usize), "{result:?}");
        let Ok(slots) = result else { return };
        assert_eq!(slots.is_some(), count <= free_pages.len() * PAGE as usize);
        if let Some(slots) = slots {
            self.check_new_pages(&slots, count, &mut self.free_pages());
            self.model.own(&slots, owner);
        }
    }

    fn extend(&mut self, asks: &[Ask]) {
        let (requests, owners): (Vec<_>, Vec<_>) = asks.iter().map(|ask| self.request(ask)).unzip();
        let expected = self.expected(&requests, &owners);
        let before = self.pool.pages.clone();
        let result = self.pool.alloc_extend(&requests, &owners);
        self.compare(&requests, &owners, expected, &before, result);
    }

    fn decode(&mut self, asks: &[Ask]) {
        let (mut requests, owners): (Vec<_>, Vec<_>) = asks.iter().map(|ask| self.request(ask)).unzip();
        for request in &mut requests {
            request.total_length = request.prefix_length + 1;
        }
        let decodes: Vec<_> = requests
            .iter()
            .map(|request| Decode { total_length: request.total_length, last_slot: request.last_slot })
            .collect();
        let expected = self.expected(&requests, &owners);
        let before = self.pool.pages.clone();
        let result = self.pool.alloc_decode(&decodes, &owners);
        self.compare(&requests, &owners, expected, &before, result);
    }

    fn request(&self, ask: &Ask) -> (Extend, Label) {
        match ask {
            Ask::Any(request, owner) => (*request, *owner),
            Ask::New(total, owner) => (extend(0, *total, 0), *owner),
            Ask::GoOn { pick, more_pages, grow, as_nobody } => {
                let out = self.model.owned.len().max(1);
                let (&slot, &owner) = self.model.owned.iter().nth(pick % out).unwrap_or((&0, &None));
                let prefix = (slot % PAGE + 1) as usize + more_pages * PAGE as usize;
                (extend(prefix, prefix + grow, slot), owner.filter(|_| !as_nobody))
            }
        }
    }

    /// Whether the call is refused, and if not, whether there are pages enough.
    fn expected(&self, requests: &[Extend], owners: &[Label]) -> Option<bool> {
        let mut tails = BTreeSet::new();
        let mut pages = 0;
        for (request, owner) in requests.iter().zip(owners) {
            let Extend { prefix_length: prefix, total_length: total, last_slot } = *request;
            let page = PAGE as usize;
            pages += total.checked_sub(prefix).map(|_| total.div_ceil(page) - prefix.div_ceil(page))?;
            if !prefix.is_multiple_of(page) {
                let has = self.model.owned.get(&last_slot)?;
                let right_place = (last_slot as usize + 1) % page == prefix % page;
                if !right_place || owner.is_some_and(|owner| *has != Some(owner)) {
                    return None;
                }
                for slot in Self::tail(request) {
                    if self.model.owned.contains_key(&slot) || !tails.insert(slot) {
                        return None;
                    }
                }
            }
        }
        Some(pages <= self.free_pages().len())
    }

    fn tail(request: &Extend) -> Vec<i64> {
        let Extend { prefix_length, total_length, last_slot } = *request;
        let in_page = |place: &usize| place / PAGE as usize == prefix_length / PAGE as usize;
        let unaligned = !prefix_length.is_multiple_of(PAGE as usize);
        let places = (prefix_length..total_length).take_while(|place| unaligned && in_page(place));
        places.zip(last_slot.saturating_add(1)..).map(|(_, slot)| slot).collect()
    }

    fn compare(
        &mut self,
        requests: &[Extend],
        owners: &[Label],
        expected: Option<bool>,
        before: &super::FreeList,
        result: crate::Result<Option<Vec<i64>>>,
    ) {
        let outcome = result.as_ref().ok().map(Option::is_some);
        assert_eq!(outcome, expected, "{requests:?} {owners:?}: {result:?}");
        let Ok(Some(slots)) = result else {
            return assert_eq!(self.pool.pages, *before, "nothing changed");
        };
        let mut free_pages = self.free_pages();
        let mut rest = &slots[..];
        for (request, owner) in requests.iter().zip(owners) {
            let (own, others) = rest.split_at(request.total_length - request.prefix_length);
            let tail = Self::tail(request);
            assert_eq!(own[..tail.len()], tail);
            self.check_new_pages(&own[tail.len()..], own.len() - tail.len(), &mut free_pages);
            self.model.own(own, *owner);
            rest = others;
        }
        assert!(rest.is_empty());
    }

    /// Slots past a tail fill pages from the front, each a page that was free and is not used twice.
    fn check_new_pages(&self, slots: &[i64], count: usize, free_pages: &mut BTreeSet<i64>) {
        assert_eq!(slots.len(), count);
        for chunk in slots.chunks(PAGE as usize) {
            let page = page_of(chunk[0]);
            assert!(free_pages.remove(&page), "page {page} of {slots:?}: {:?}", self.model);
            assert!(chunk.iter().copied().eq((page * PAGE..).take(chunk.len())), "{chunk:?}");
        }
    }

    fn free(&mut self, slots: &[i64], owner: Label) {
        let before = self.pool.pages.clone();
        let result = self.pool.free(slots, owner);
        assert_eq!(result.is_ok(), self.model.may_take(slots, owner), "{result:?}");
        if result.is_err() {
            return assert_eq!(self.pool.pages, before);
        }
        for slot in slots {
            self.model.owned.remove(slot);
        }
        let live = self.live_pages();
        for page in slots.iter().map(|slot| page_of(*slot)).filter(|page| !live.contains(page)) {
            self.model.pending.extend((page * PAGE..(page + 1) * PAGE).filter(|_| self.depth > 0));
        }
    }

    fn end_group(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        let released = if self.depth == 0 { std::mem::take(&mut self.model.pending).len() } else { 0 };
        assert_eq!(self.pool.end_free_group(), released);
    }

    fn live_pages(&self) -> BTreeSet<i64> {
        self.model.owned.keys().copied().map(page_of).collect()
    }

    fn free_pages(&self) -> BTreeSet<i64> {
        let live = self.live_pages();
        self.model.free().into_iter().map(page_of).filter(|page| !live.contains(page)).collect()
    }

    fn check(&self) {
        let partial = self.live_pages().len() * PAGE as usize - self.model.owned.len();
        assert_eq!(self.pool.audit(), self.model.audit(partial));
        assert_eq!(self.pool.available(), self.free_pages().len() * PAGE as usize);
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn a_pool_is_what_the_model_says(sort in any::<bool>(), ops in prop::collection::vec(op(), 0..60)) {
        let mut pair = Pair::new(sort);
        for op in &ops {
            pair.apply(op);
            pair.check();
        }
    }
}

#[test]
fn sizes_that_no_pool_has_are_refused() {
    let refused = |size, page_size| refusal(PagedKvAllocator::new(size, page_size, false).map(drop));
    assert_eq!(refused(10, 4), "size is 10, but it must be whole pages of 4");
    assert_eq!(refused(10, 0), "page_size is 0, but a page has at least 1 slot");
    assert_eq!(refused(0, 4), "size is 0, but a pool has from 1 to 1073741824 slots");
}

#[test]
fn the_first_page_is_the_dummy() {
    let mut pool = pool(8, 4);
    assert_eq!(pool.alloc(8, None), Ok(Some((4..12).collect())));
    assert_eq!(
        refusal(pool.free(&[4, 3], None)),
        "KV slot 3 is in the dummy page (slots 0 to 3), which nobody owns"
    );
    assert_eq!(
        refusal(pool.owner_of(12)),
        "KV slot 12 is not a slot: numbers go from 1 to 11 (0 is the dummy)"
    );
    assert_eq!(
        refusal(pool.alloc(3, None)),
        "count is 3, but a page is 4 slots, and only whole ones are handed out here"
    );
}

#[test]
fn a_prefill_and_its_decode_lie_page_by_page() {
    let mut pool = pool(16, 4);
    let (r1, r2) = (Some("r1"), Some("r2"));
    let first = taken(&mut pool, &[extend(0, 6, 0), extend(0, 3, 0)], &[r1, r2]);
    assert_eq!(first, [4, 5, 6, 7, 8, 9, 12, 13, 14]);
    let more = taken(&mut pool, &[extend(6, 9, 9), extend(3, 3, 14)], &[r1, r2]);
    assert_eq!(more, [10, 11, 16]);
    let decodes = [Decode { total_length: 10, last_slot: 16 }, Decode { total_length: 4, last_slot: 14 }];
    assert_eq!(pool.alloc_decode(&decodes, &[r1, r2]), Ok(Some(vec![17, 15])));
    assert_eq!((pool.available(), pool.audit().partial), (0, 2));
    let next = [Decode { total_length: 11, last_slot: 17 }, Decode { total_length: 5, last_slot: 15 }];
    assert_eq!(pool.alloc_decode(&next, &[r1, r2]), Ok(None), "one page is missing, so nobody gets anything");
    assert_eq!(pool.owner_of(18), Ok(Owner::Nobody));
}

#[test]
fn a_page_is_free_with_the_last_of_its_slots() {
    let mut pool = pool(8, 4);
    let slots = taken(&mut pool, &[extend(0, 7, 0)], &[Some("r1")]);
    pool.free(&slots[..6], Some("r1")).expect("its own slots");
    assert_eq!((pool.available(), pool.audit().partial), (4, 3));
    assert_eq!(refusal(pool.free(&slots[3..], Some("r1"))), "KV slot 7 is free already");
    pool.free(&slots[6..], Some("r1")).expect("its own slot");
    assert_eq!((pool.available(), pool.audit().partial), (8, 0));
}

#[test]
fn a_rejected_draft_gives_its_tail_back_to_the_same_page() {
    let mut pool = pool(8, 4);
    let slots = taken(&mut pool, &[extend(0, 4, 0)], &[Some("r1")]);
    pool.free(&slots[2..], Some("r1")).expect("its own slots");
    assert_eq!(taken(&mut pool, &[extend(2, 5, 5)], &[Some("r1")]), [6, 7, 8]);
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let mut pool = pool(16, 4);
    taken(&mut pool, &[extend(0, 3, 0), extend(0, 2, 0)], &[Some("r1"), Some("r2")]);
    let mut one =
        |prefix, total, last, owner| refusal(pool.alloc_extend(&[extend(prefix, total, last)], &[owner]));
    assert_eq!(one(3, 2, 6, None), "total_length is 2, but its prefix alone is 3 tokens");
    assert_eq!(one(3, 4, 6, Some("r2")), r#"KV slot 6 belongs to "r1", not to "r2""#);
    assert_eq!(one(3, 4, 7, Some("r1")), "KV slot 7 is free already");
    assert_eq!(one(3, 4, 2, None), "KV slot 2 is in the dummy page (slots 0 to 3), which nobody owns");
    assert_eq!(one(2, 3, 6, None), "KV slot 6 is at 2 in its page, but a prefix of 2 tokens ends at 1");
    assert_eq!(one(2, 3, 5, None), r#"KV slot 6 belongs to "r1", so nothing can go on after slot 5"#);
    let twice = pool.alloc_extend(&[extend(3, 4, 6), extend(3, 4, 6)], &[None, None]);
    assert_eq!(refusal(twice), "KV slot 6 is the last slot of two requests");
    let none = pool.alloc_decode(&[Decode { total_length: 0, last_slot: 0 }], &[None]);
    assert_eq!(refusal(none), "total_length is 0, but it counts the token that gets a slot");
    let unowned = pool.alloc_extend(&[extend(0, 1, 0)], &[]);
    assert_eq!(
        refusal(unowned),
        "the number of owners is 0, but there are 1 requests, and each has its owner"
    );
    assert_eq!(
        pool.alloc_extend(&[extend(0, usize::MAX, 0), extend(0, usize::MAX, 0)], &[None, None]),
        Ok(None)
    );
    assert_eq!(pool.available(), 8);
}

#[test]
fn a_page_of_one_slot_is_a_token() {
    let mut pool = pool(3, 1);
    assert_eq!(taken(&mut pool, &[extend(0, 2, 0)], &[None]), [1, 2]);
    assert_eq!(pool.alloc_decode(&[Decode { total_length: 3, last_slot: 2 }], &[None]), Ok(Some(vec![3])));
}

#[test]
fn a_wrong_count_of_a_page_and_a_lost_page_are_named() {
    let mut pool = pool(8, 4);
    taken(&mut pool, &[extend(0, 3, 0)], &[None]);
    pool.in_use[1] += 1;
    assert_eq!(pool.audit().problems, ["page 1 counts 4 slots in use, but 3 are"]);
    pool.in_use[1] -= 1;
    pool.pages.lose_one();
    assert_eq!(pool.audit().problems.len(), 5, "its four slots and the sum");
}
