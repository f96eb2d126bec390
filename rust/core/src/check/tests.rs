//! The checker is checked: one planted fault for each invariant, which it must name.

use crate::arena::NONE;
use crate::node::Standing;
use crate::{Config, Entry, EventMode, NodeId, Start, Tree};

/// Three paths under one root: `[1 2] -> [3 4]`, `[1 2] -> [5]`, and `[9]`, which is locked.
struct Fixture {
    tree: Tree,
    trunk: u32,
    leaf: u32,
    locked: u32,
}

fn insert(tree: &mut Tree, tokens: &[i64], slots: &[i64], owned: usize, state_slot: i64) -> NodeId {
    let entry = Entry { tokens, slots, state_slot, owned, state_length: None, state_ready: true };
    tree.insert(Start::Root(None), &entry).unwrap().node.unwrap()
}

fn fixture() -> Fixture {
    let mut tree = Tree::new(Config::default()).unwrap();
    let trunk = insert(&mut tree, &[1, 2], &[1, 2], 0, 1);
    let leaf = insert(&mut tree, &[1, 2, 3, 4], &[1, 2, 3, 4], 2, 2);
    insert(&mut tree, &[1, 2, 5], &[1, 2, 5], 2, 3);
    let locked = insert(&mut tree, &[9], &[9], 0, 4);
    tree.lock(locked).unwrap();
    assert_eq!(tree.check(), []);
    Fixture { tree, trunk: trunk.index, leaf: leaf.index, locked: locked.index }
}

/// The numbers of the invariants that the checker finds broken.
fn named(tree: &Tree) -> Vec<u8> {
    tree.check().iter().map(|violation| violation.invariant).collect()
}

/// Plants a fault in the fixture and demands that the checker names the invariant.
fn names(invariant: u8, plant: impl FnOnce(&mut Fixture)) {
    let mut fixture = fixture();
    plant(&mut fixture);
    let found = fixture.tree.check();
    assert!(named(&fixture.tree).contains(&invariant), "expected {invariant}, found {found:?}");
}

#[test]
fn a_slot_in_two_nodes() {
    names(1, |f| f.tree.nodes[f.leaf].slots[0] = 9);
}

#[test]
fn a_slot_that_is_owned_by_nobody() {
    names(1, |f| f.tree.kv_owned.remove(3));
}

#[test]
fn a_slot_that_is_owned_but_nowhere() {
    names(1, |f| f.tree.state_owned.add(77));
}

#[test]
fn a_root_with_a_state() {
    names(2, |f| {
        let root = f.tree.nodes[f.trunk].parent;
        f.tree.nodes[root].state_slot = 50;
    });
}

#[test]
fn a_root_without_its_lock() {
    names(2, |f| {
        let root = f.tree.nodes[f.trunk].parent;
        f.tree.nodes[root].kv.locks = 0;
    });
}

#[test]
fn a_root_of_no_namespace() {
    names(2, |f| f.tree.namespaces = crate::namespaces::Namespaces::new());
}

#[test]
fn two_nodes_with_one_stamp() {
    names(3, |f| f.tree.nodes[f.trunk].kv.stamp = f.tree.nodes[f.locked].kv.stamp);
}

#[test]
fn an_evictable_leaf_outside_the_queue() {
    names(3, |f| {
        let leaf = f.leaf;
        f.tree.kv_queue.set_member(&mut f.tree.nodes, leaf, false);
    });
}

#[test]
fn a_locked_leaf_in_the_queue() {
    names(3, |f| {
        let locked = f.locked;
        f.tree.kv_queue.set_member(&mut f.tree.nodes, locked, true);
    });
}

#[test]
fn a_leaf_without_a_state() {
    names(4, |f| {
        let slot = std::mem::take(&mut f.tree.nodes[f.leaf].state_slot);
        f.tree.state_owned.remove(slot);
    });
}

#[test]
fn a_locked_node_below_an_unlocked_one() {
    names(5, |f| f.tree.nodes[f.leaf].kv.locks = 1);
}

#[test]
fn a_state_locked_more_than_its_node() {
    names(5, |f| f.tree.nodes[f.locked].state.locks = 2);
}

#[test]
fn a_tombstone_with_a_state_lock() {
    names(6, |f| {
        f.tree.nodes[f.locked].state_slot = 0;
        f.tree.state_owned.remove(4);
    });
}

#[test]
fn accounts_that_do_not_add_up() {
    names(7, |f| f.tree.kv_account.evictable += 1);
    names(7, |f| f.tree.state_account.protected -= 1);
}

#[test]
fn a_key_and_slots_of_different_lengths() {
    names(9, |f| f.tree.nodes[f.leaf].tokens = [3].into());
}

#[test]
fn a_wrong_depth() {
    names(9, |f| f.tree.nodes[f.leaf].end = 5);
}

#[test]
fn two_children_with_one_first_page() {
    names(9, |f| f.tree.nodes[f.leaf].tokens[0] = 5);
}

#[test]
fn a_child_that_the_table_forgot() {
    names(9, |f| {
        let leaf = f.leaf;
        f.tree.children.detach(&mut f.tree.nodes, leaf);
    });
}

#[test]
fn a_list_that_differs_from_its_two_ends() {
    names(10, |f| {
        if let Standing::Listed { older, .. } = &mut f.tree.nodes[f.leaf].kv.standing {
            *older = f.trunk;
        }
    });
    names(10, |f| f.tree.state_queue.youngest = NONE);
}

#[test]
fn a_list_out_of_order() {
    names(10, |f| f.tree.nodes[f.leaf].kv.stamp = f.tree.clock);
}

#[test]
fn a_heap_out_of_order() {
    names(10, |f| {
        // A leaf that comes back with an old stamp stands in the heap.
        let leaf = f.leaf;
        f.tree.kv_queue.set_member(&mut f.tree.nodes, leaf, false);
        f.tree.kv_queue.set_member(&mut f.tree.nodes, leaf, true);
        assert_eq!(named(&f.tree), []);
        assert!(matches!(f.tree.nodes[leaf].kv.standing, Standing::Heaped { .. }));
        f.tree.kv_queue.heap[0].stamp += 1;
    });
}

#[test]
fn a_page_hash_of_other_tokens() {
    let mut tree = Tree::new(Config { events: EventMode::Blocks, ..Config::default() }).unwrap();
    let leaf = insert(&mut tree, &[1, 2], &[1, 2], 0, 1).index;
    assert_eq!(named(&tree), []);
    tree.nodes[leaf].tokens[1] = 3;
    assert_eq!(named(&tree), [12]);
}

#[test]
fn a_lock_without_a_receipt() {
    names(11, |f| f.tree.nodes[f.locked].kv.locks = 2);
    names(11, |f| f.tree.receipts.clear());
}
