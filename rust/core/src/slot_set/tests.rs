//! The bitmap against a set of numbers.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::SlotSet;
use crate::error::Error;

/// Runs and single slots around the borders of words and chunks; the odd one is no slot.
fn slots() -> impl Strategy<Value = Vec<i64>> {
    let first = prop_oneof![-1..300_i64, 65_400..65_700_i64, 4_294_967_200..4_294_967_300_i64];
    let piece = (first, prop_oneof![Just(1), 1..200_i64]);
    prop::collection::vec(piece, 0..4)
        .prop_map(|pieces| pieces.into_iter().flat_map(|(first, len)| first..first + len).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_set(steps in prop::collection::vec((any::<bool>(), slots()), 1..12)) {
        let mut set = SlotSet::new("KV");
        let mut model = BTreeSet::new();
        for (add, slots) in steps {
            let distinct: BTreeSet<i64> = slots.iter().copied().collect();
            if add {
                let fits = distinct.len() == slots.len()
                    && distinct.is_disjoint(&model)
                    && distinct.iter().all(|&slot| u32::try_from(slot).is_ok_and(|slot| slot > 0));
                let added = set.checked(&slots).and_then(|slots| set.add_all(&slots));
                prop_assert_eq!(added.is_ok(), fits);
                if fits {
                    model.extend(distinct);
                }
            } else {
                let held: Vec<u32> = distinct.intersection(&model).map(|&slot| slot as u32).collect();
                set.remove_all(&held);
                model.retain(|slot| !distinct.contains(slot));
            }
            let all: Vec<i64> = set.without(&SlotSet::new("KV")).map(i64::from).collect();
            prop_assert!(all.iter().eq(&model));
            for &slot in slots.iter().chain(&model) {
                if let Ok(number) = u32::try_from(slot) {
                    prop_assert_eq!(set.contains(number), model.contains(&slot));
                }
            }
        }
    }
}

#[test]
fn a_refused_slot_is_named() {
    let mut set = SlotSet::new("KV");
    set.add_all(&(1..100).collect::<Vec<u32>>()).unwrap();
    let refused = |slots: &[u32]| SlotSet::add_all(&mut SlotSet::new("KV"), slots).unwrap_err().to_string();
    assert_eq!(set.add_all(&[200, 99]).unwrap_err().to_string(), "KV slot 99 is the tree's already");
    assert_eq!(refused(&[5, 6, 5]), "KV slot 5 is given twice, at 0 and at 2");
    assert!(matches!(set.checked(&[200, 0]), Err(Error::SlotRange { slot: 0, .. })));
    assert!(!set.contains(200), "a refused call adds nothing");
}
