use super::Ledger;
use crate::alloc::Owner;

#[test]
fn a_refused_claim_leaves_no_trace() {
    let mut ledger = Ledger::new("KV", 4, 8).unwrap();
    ledger.claim(&[5, 6], Some("r1")).expect("free slots");
    let mut refused = |slots: &[i64]| ledger.claim(slots, Some("r2")).expect_err("a mistake").to_string();
    assert_eq!(refused(&[4, 7, 6]), r#"KV slot 6 belongs to "r1" already"#);
    assert_eq!(refused(&[4, 7, 4]), "KV slot 4 is given twice, at 0 and at 2");
    assert_eq!(refused(&[4, 3]), "KV slot 3 is in the dummy page (slots 0 to 3), which nobody owns");
    assert_eq!(refused(&[4, 12]), "KV slot 12 is not a slot: numbers go from 1 to 11 (0 is the dummy)");
    assert_eq!(refused(&[4, -1]), "KV slot -1 is not a slot: numbers go from 1 to 11 (0 is the dummy)");
    assert_eq!(ledger.owner_of(4), Ok(Owner::Nobody));
    assert_eq!(ledger.holdings(), [(Some("r1".to_owned()), vec![5, 6])]);
    assert_eq!(ledger.problems(), [""; 0]);
}

#[test]
fn a_refused_release_gives_each_slot_back_to_its_owner() {
    let mut ledger = Ledger::new("state", 1, 8).unwrap();
    ledger.claim(&[1, 2, 5], Some("r1")).expect("free slots");
    ledger.claim(&[3, 4], None).expect("free slots");
    let before = ledger.holdings();
    let refused = ledger.release(&[1, 3, 2, 4, 8], None).expect_err("a mistake").to_string();
    assert_eq!(refused, "state slot 8 is free already");
    assert_eq!((ledger.holdings(), ledger.problems()), (before, vec![]));
    ledger.release(&[1, 3, 2, 4, 5], None).expect("owned slots");
    assert_eq!((ledger.holdings(), ledger.problems()), (vec![], vec![]));
}
