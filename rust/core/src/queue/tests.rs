//! The queue against a sorted map from stamp to node.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::Queue;
use crate::arena::{Arena, NONE};
use crate::node::{Node, Resource};

const NODES: usize = 12;

#[derive(Debug, Clone)]
enum Step {
    /// The node becomes the most recent one, member or not.
    Touch(usize),
    Member(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..NODES;
    prop_oneof![
        node.clone().prop_map(Step::Touch),
        (node, any::<bool>()).prop_map(|(node, member)| Step::Member(node, member)),
    ]
}

fn run(steps: &[Step]) {
    let mut nodes = Arena::new();
    let indices: Vec<u32> =
        (0..NODES).map(|_| nodes.insert(Node::new(NONE, 0, Box::default(), Box::default()))).collect();
    let mut queue = Queue::new(Resource::Kv);
    let mut clock = 0;
    for &index in &indices {
        clock += 1;
        nodes[index].kv.stamp = clock;
    }
    let mut members = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Touch(at) => {
                let index = indices[at];
                clock += 1;
                if members.remove(&nodes[index].kv.stamp).is_some() {
                    members.insert(clock, index);
                }
                nodes[index].kv.stamp = clock;
                queue.refresh(&mut nodes, index);
            }
            Step::Member(at, member) => {
                let index = indices[at];
                queue.set_member(&mut nodes, index, member);
                let stamp = nodes[index].kv.stamp;
                if member {
                    members.insert(stamp, index);
                } else {
                    members.remove(&stamp);
                }
            }
        }
        assert_eq!(queue.peek(&nodes), members.values().next().copied());
    }
    while let Some((_, oldest)) = members.pop_first() {
        assert_eq!(queue.peek(&nodes), Some(oldest));
        queue.set_member(&mut nodes, oldest, false);
    }
    assert_eq!(queue.peek(&nodes), None);
}

#[test]
fn the_oldest_member_is_always_first() {
    let config = Config { cases: 512, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&prop::collection::vec(step(), 0..80), |steps| {
            run(&steps);
            Ok(())
        })
        .unwrap();
}
