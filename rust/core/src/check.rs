//! The checker: recomputes every count, list and link from scratch and reports all that is wrong.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::account::Account;
use crate::arena::NONE;
use crate::children;
use crate::node::{Node, Resource, Standing};
use crate::queue::Queue;
use crate::receipts::Anchor;
use crate::slot_set::SlotSet;
use crate::tree::Tree;

/// One broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its number, as at the crate root.
    pub invariant: u8,
    /// What is wrong, and where.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.what)
    }
}

/// Collects violations.
#[derive(Default)]
struct Report(Vec<Violation>);

impl Report {
    fn expect(&mut self, invariant: u8, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Violation { invariant, what: what() });
        }
    }
}

impl Tree {
    /// Verifies every invariant and returns all violations; none means that the tree is sound.
    ///
    /// Cost: that of reading the whole tree.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let mut report = Report::default();
        self.check_slots(&mut report);
        self.check_roots(&mut report);
        for (index, node) in self.nodes.iter().filter(|(_, node)| !node.is_root()) {
            self.check_recency(&mut report, index, node);
            check_leaf(&mut report, index, node);
            self.check_locks(&mut report, index, node);
            self.check_key(&mut report, index, node);
        }
        self.check_stamps(&mut report);
        self.check_accounts(&mut report);
        self.check_links(&mut report);
        self.check_queue(&mut report, &self.kv_queue, "KV");
        self.check_queue(&mut report, &self.state_queue, "state");
        self.check_receipts(&mut report);
        self.check_events(&mut report);
        report.0
    }

    fn check_slots(&self, report: &mut Report) {
        let kv = self.nodes.iter().map(|(_, node)| &*node.slots);
        let states = self.nodes.iter().filter(|(_, node)| node.has_state());
        check_owned(report, "KV", kv, &self.kv_owned);
        let states = states.map(|(_, node)| std::slice::from_ref(&node.state_slot));
        check_owned(report, "state", states, &self.state_owned);
    }

    fn check_roots(&self, report: &mut Report) {
        let known: HashSet<u32> = self.namespaces.sorted().into_iter().map(|(_, root)| root).collect();
        for (index, node) in self.nodes.iter().filter(|(_, node)| node.is_root()) {
            report.expect(2, known.contains(&index), || format!("root {index} is of no namespace"));
            report.expect(2, node.tokens.is_empty() && node.slots.is_empty() && node.end == 0, || {
                format!("root {index} has a key")
            });
            report.expect(2, !node.has_state(), || format!("root {index} has a state"));
            report.expect(2, node.kv.locks >= 1, || format!("root {index} is not locked"));
            let out = node.kv.standing == Standing::Out && node.state.standing == Standing::Out;
            report.expect(2, out, || format!("root {index} is in a queue"));
            report.expect(2, !node.is_leaf(), || format!("root {index} has no children"));
        }
    }

    fn check_recency(&self, report: &mut Report, index: u32, node: &Node) {
        report.expect(3, (1..=self.clock).contains(&node.kv.stamp), || {
            format!("node {index} has KV stamp {}, the clock is {}", node.kv.stamp, self.clock)
        });
        let stamped = (1..=self.clock).contains(&node.state.stamp);
        report.expect(3, stamped || !node.has_state(), || format!("the state of node {index} has no stamp"));
        let kv = node.is_evictable_leaf();
        let state = node.has_state() && !node.state_is_protected();
        for (name, claim, evictable) in [("KV", &node.kv, kv), ("state", &node.state, state)] {
            report.expect(3, (claim.standing != Standing::Out) == evictable, || {
                format!(
                    "node {index} is evictable: {evictable}, but it stands in the {name} queue as {claim:?}"
                )
            });
        }
    }

    fn check_locks(&self, report: &mut Report, index: u32, node: &Node) {
        report.expect(5, node.kv.locks >= node.state.locks, || {
            format!("node {index} has {} KV locks, {} state locks", node.kv.locks, node.state.locks)
        });
        let parent = &self.nodes[node.parent];
        report.expect(5, parent.is_root() || parent.kv.locks >= node.kv.locks, || {
            format!("node {index} has {} KV locks, its parent {}", node.kv.locks, parent.kv.locks)
        });
        report.expect(6, node.has_usable_state() || node.state.locks == 0, || {
            format!("node {index} has {} state locks, but no state to use", node.state.locks)
        });
        report
            .expect(6, node.has_state() || !node.pending, || format!("tombstone {index} waits for a state"));
    }

    fn check_key(&self, report: &mut Report, index: u32, node: &Node) {
        let units = node.units();
        report.expect(9, units > 0 && units.is_multiple_of(self.page_size), || {
            format!("node {index} has {units} slots at page size {}", self.page_size)
        });
        report.expect(9, node.tokens.len() == units + self.overlap, || {
            format!("node {index} has {} tokens for {units} slots", node.tokens.len())
        });
        let parent = &self.nodes[node.parent];
        report.expect(9, parent.end as usize + units == node.end as usize, || {
            format!("node {index} ends at {}, {units} after {}", node.end, parent.end)
        });
        let joined = self.overlap == 0 || parent.is_root() || parent.tokens.last() == node.tokens.first();
        report.expect(9, joined, || format!("node {index} does not begin with its parent's last token"));
        report.expect(9, self.children.knows(&self.nodes, index), || {
            format!("the child table does not lead to node {index}")
        });
    }

    fn check_stamps(&self, report: &mut Report) {
        for (name, resource) in [("KV", Resource::Kv), ("state", Resource::State)] {
            let mut seen = HashMap::new();
            for (index, node) in self.nodes.iter().filter(|(_, node)| !node.is_root()) {
                if resource == Resource::State && !node.has_state() {
                    continue;
                }
                let before = seen.insert(node.claim(resource).stamp, index);
                report.expect(3, before.is_none(), || {
                    format!("nodes {before:?} and {index} have the same {name} stamp")
                });
            }
        }
    }

    fn check_accounts(&self, report: &mut Report) {
        let (mut kv, mut state) = (Account::default(), Account::default());
        for (_, node) in self.nodes.iter() {
            *side(&mut kv, node.kv.locks > 0) += node.units();
            *side(&mut state, node.state_is_protected()) += usize::from(node.has_state());
        }
        for (name, counted, kept) in [("KV", kv, self.kv_account), ("state", state, self.state_account)] {
            report.expect(7, counted == kept, || format!("{name}: counted {counted:?}, kept {kept:?}"));
        }
    }

    fn check_links(&self, report: &mut Report) {
        let mut linked = 0;
        for (index, _) in self.nodes.iter() {
            let mut pages = HashSet::new();
            let mut previous = NONE;
            for child in children::of(&self.nodes, index) {
                linked += 1;
                let node = &self.nodes[child];
                report.expect(9, node.parent == index && node.previous_sibling == previous, || {
                    format!("node {child} is linked below {index} but names parent {}", node.parent)
                });
                let page = node.tokens.get(..self.page_size + self.overlap);
                report
                    .expect(9, pages.insert(page), || format!("two children of {index} begin with {page:?}"));
                previous = child;
            }
        }
        let others = self.nodes.len() - self.namespaces.sorted().len();
        report.expect(9, linked == others && self.children.len() == others, || {
            format!("{others} nodes, {linked} linked, {} in the child table", self.children.len())
        });
    }

    fn check_queue(&self, report: &mut Report, queue: &Queue, name: &str) {
        let mut forward = Vec::new();
        let (mut at, mut before) = (queue.oldest, NONE);
        while at != NONE && forward.len() <= self.nodes.len() {
            let Standing::Listed { older, younger } = queue.claim(&self.nodes, at).standing else {
                return report.expect(10, false, || format!("node {at} is in the {name} list by no link"));
            };
            report.expect(10, older == before, || {
                format!("{name} list: {at} follows {before}, but names {older}")
            });
            forward.push(at);
            (before, at) = (at, younger);
        }
        report.expect(10, queue.youngest == before, || format!("the {name} list does not end where it says"));
        let stamps =
            |pair: &[u32]| queue.claim(&self.nodes, pair[0]).stamp < queue.claim(&self.nodes, pair[1]).stamp;
        report.expect(10, forward.windows(2).all(stamps), || format!("the {name} list is out of order"));
        self.check_heap(report, queue, name);
        let standing =
            self.nodes.iter().filter(|(index, _)| queue.claim(&self.nodes, *index).standing != Standing::Out);
        let standing = standing.count();
        report.expect(10, standing == forward.len() + queue.heap.len(), || {
            format!("{standing} nodes say that they are in the {name} queue")
        });
    }

    fn check_heap(&self, report: &mut Report, queue: &Queue, name: &str) {
        for (at, entry) in queue.heap.iter().enumerate() {
            let claim = queue.claim(&self.nodes, entry.node);
            let placed = claim.standing == Standing::Heaped { position: at as u32 };
            report.expect(10, placed && claim.stamp == entry.stamp, || {
                format!("{name} heap: entry {at} is node {}, which is {claim:?}", entry.node)
            });
            let ordered = at == 0 || queue.heap[(at - 1) / 2].stamp < entry.stamp;
            report.expect(10, ordered, || format!("{name} heap: entry {at} is older than the one above"));
        }
    }

    fn check_receipts(&self, report: &mut Report) {
        let mut owed: HashMap<u32, (u32, u32)> = HashMap::new();
        let locks = self.receipts.iter().filter_map(|held| match held.anchor {
            Anchor::Node(node) => Some((node, held.state)),
            Anchor::Root(_) => None,
        });
        let pending = self.nodes.iter().filter(|(_, node)| node.pending).map(|(index, _)| (index, false));
        for (node, state) in locks.chain(pending) {
            owed.entry(node).or_default().1 += u32::from(state);
            let mut at = node;
            while !self.nodes[at].is_root() {
                owed.entry(at).or_default().0 += 1;
                at = self.nodes[at].parent;
            }
        }
        for (index, node) in self.nodes.iter().filter(|(_, node)| !node.is_root()) {
            let owed = owed.get(&index).copied().unwrap_or_default();
            let kept = (node.kv.locks, node.state.locks);
            report.expect(11, owed == kept, || {
                format!("node {index} has (KV, state) locks {kept:?}, its receipts say {owed:?}")
            });
        }
    }
}

impl Tree {
    fn check_events(&self, report: &mut Report) {
        let Some(events) = &self.events else { return };
        for (name, root) in self.namespaces.sorted() {
            for node in self.below(root) {
                report.expect(12, events.knows(&self.nodes, node, name), || {
                    format!("the page hashes of node {node} are not those of its tokens")
                });
            }
        }
    }
}

fn check_owned<'a>(
    report: &mut Report,
    kind: &'static str,
    in_nodes: impl Iterator<Item = &'a [u32]>,
    owned: &SlotSet,
) {
    let mut seen = SlotSet::new(kind);
    for slot in in_nodes.flat_map(|slots| seen.unite(slots)) {
        report.expect(1, false, || format!("{kind} slot {slot} is in two nodes"));
    }
    for slot in seen.without(owned) {
        report.expect(1, false, || format!("{kind} slot {slot} is not noted as owned"));
    }
    for slot in owned.without(&seen) {
        report.expect(1, false, || format!("{kind} slot {slot} is noted as owned, but in no node"));
    }
}

fn check_leaf(report: &mut Report, index: u32, node: &Node) {
    report.expect(4, !node.is_leaf() || node.has_state() || node.spared, || {
        format!("leaf {index} has no state, and no lock saved it")
    });
}

fn side(account: &mut Account, protected: bool) -> &mut usize {
    if protected { &mut account.protected } else { &mut account.evictable }
}

#[cfg(test)]
mod tests;
