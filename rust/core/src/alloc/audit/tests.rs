//! The checker is checked: one planted fault of each kind, which it must name.

use super::super::ledger::Ledger;
use super::{Audit, Places};

/// Slots 1 and 2 are r1's, 3 is unnamed, 4 and 5 nobody's.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new("KV", 1, 5).unwrap();
    ledger.claim(&[1, 2], Some("r1")).expect("free slots");
    ledger.claim(&[3], None).expect("a free slot");
    ledger
}

fn problems(ledger: &Ledger, available: &[i64], pending: &[i64], partial: &[i64]) -> Vec<String> {
    let (available, pending, partial) = (available.to_vec(), pending.to_vec(), partial.to_vec());
    Audit::new(ledger, &Places { available, pending, partial }).problems
}

#[test]
fn a_sound_pool_has_no_problems() {
    for (available, pending, partial) in
        [(&[4, 5][..], &[][..], &[][..]), (&[4], &[5], &[]), (&[], &[4], &[5])]
    {
        assert_eq!(problems(&ledger(), available, pending, partial), [""; 0]);
    }
}

#[test]
fn a_lost_slot_is_named() {
    assert_eq!(
        problems(&ledger(), &[4], &[], &[]),
        [
            "KV slot 5 is lost: nobody has it, and it is not free",
            "1 available, 0 pending, 0 partial, 3 owned: 4 KV slots, but the pool has 5"
        ]
    );
}

#[test]
fn a_slot_in_two_places_is_named() {
    let found = problems(&ledger(), &[4, 5, 5], &[4], &[]);
    assert_eq!(found[..2], ["KV slot 5 is available and available", "KV slot 4 is available and pending"]);
    assert_eq!(found.len(), 3, "and the sum is wrong");
}

#[test]
fn a_free_slot_with_an_owner_is_named() {
    let found = problems(&ledger(), &[4, 5, 2], &[3], &[]);
    assert_eq!(found[0], r#"KV slot 2 is available, but "r1" has it"#);
    assert_eq!(found[1], "KV slot 3 is pending, but an unnamed owner has it");
}

#[test]
fn a_number_that_is_no_slot_is_named() {
    let found = problems(&ledger(), &[4, 5], &[], &[0]);
    assert_eq!(found[0], "partial: KV slot 0 is not a slot: numbers go from 1 to 5 (0 is the dummy)");
}

#[test]
fn an_owner_that_should_be_forgotten_is_named() {
    let mut ledger = ledger();
    ledger.remember("r9");
    assert_eq!(problems(&ledger, &[4, 5], &[], &[]), [r#""r9" is remembered, but counts no slots"#]);
}

#[test]
fn a_wrong_count_of_an_owner_is_named() {
    let mut ledger = ledger();
    ledger.forge(2, 3);
    assert_eq!(
        problems(&ledger, &[4, 5], &[], &[]),
        ["an unnamed owner counts 1 KV slots, but has 2", r#""r1" counts 2 KV slots, but has 1"#]
    );
}
