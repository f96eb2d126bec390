//! Sizes that break recursion, quadratic walks and 16-bit counts: long chains, wide roots, ten million tokens.

use stemcache::{Config, Entry, NodeId, Start, Tree};

const ROOT: Start<'static> = Start::Root(None);

fn tree() -> Tree {
    Tree::new(Config::default()).expect("a possible setting")
}

fn insert(tree: &mut Tree, start: Start<'_>, tokens: &[i64], first_slot: i64, state_slot: i64) -> NodeId {
    let slots: Vec<i64> = (first_slot..).take(tokens.len()).collect();
    let length = match start {
        Start::Root(_) => None,
        _ => Some(first_slot as usize - 1 + tokens.len()),
    };
    let entry =
        Entry { tokens, slots: &slots, state_slot, owned: 0, state_length: length, state_ready: true };
    tree.insert(start, &entry).expect("fresh slots").node.expect("a key")
}

/// A chain of `depth` nodes of one token each; token `i` has slot `i`.
fn chain(depth: i64) -> (Tree, NodeId) {
    let mut tree = tree();
    let mut end = insert(&mut tree, ROOT, &[1], 1, 1);
    for i in 2..=depth {
        end = insert(&mut tree, Start::After(end), &[i], i, i);
    }
    (tree, end)
}

#[test]
fn a_chain_of_ten_thousand_nodes() {
    let depth = 10_000;
    let (mut tree, end) = chain(depth);
    let key: Vec<i64> = (1..=depth).collect();
    let found = tree.find(ROOT, &key, None).unwrap();
    assert_eq!(found.slots, key);
    let receipt = tree.lock(end).unwrap();
    assert_eq!(tree.evict(usize::MAX, 0).kv_slots, []);
    tree.unlock(receipt).unwrap();
    assert_eq!(tree.check(), []);
    assert_ne!(tree.digest(), 0);
    assert!(tree.dump().len() < 10_000_000);
    // All states but the deepest go first: the one eviction of the leaf then cascades up the whole chain.
    assert_eq!(tree.evict(0, depth as usize - 1).state_slots.len(), depth as usize - 1);
    assert_eq!(tree.evict(1, 0).kv_slots.len(), depth as usize);
    assert_eq!(tree.node_count(), 0);
}

#[test]
fn dropping_a_long_chain_does_not_recurse() {
    drop(chain(10_000));
    let (mut tree, _) = chain(10_000);
    assert_eq!(tree.drop_namespace(None).kv_slots.len(), 10_000);
    let (mut tree, _) = chain(10_000);
    assert_eq!(tree.reset().kv_slots.len(), 10_000);
    assert_eq!(tree.check(), []);
}

#[test]
fn a_root_with_fifty_thousand_children() {
    let mut tree = tree();
    for i in 1..=50_000 {
        insert(&mut tree, ROOT, &[i], i, i);
    }
    assert_eq!(tree.find(ROOT, &[25_000, 1], None).unwrap().slots, [25_000]);
    assert_eq!(tree.evict(3, 0).kv_slots, [1, 2, 3]);
    assert_eq!(tree.check(), []);
}

#[test]
fn ten_million_tokens() {
    let (requests, length) = (100, 100_000);
    let mut tree = tree();
    for i in 0..requests {
        let tokens: Vec<i64> = (0..length).map(|token| token * requests + i).collect();
        insert(&mut tree, ROOT, &tokens, 1 + i * length, 1 + i);
    }
    assert_eq!(tree.sizes().evictable_tokens, 10_000_000);
    let last: Vec<i64> = (0..length).map(|token| token * requests + requests - 1).collect();
    assert_eq!(tree.find(ROOT, &last, None).unwrap().length, length as usize);
    assert_eq!(tree.check(), []);
    assert_eq!(tree.evict(9_000_001, 0).kv_slots.len(), 9_100_000);
}
