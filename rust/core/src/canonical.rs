//! The tree in an order that only its contents decide, for `dump` and `digest`.

use std::fmt::Write;

use xxhash_rust::xxh3::Xxh3;

use crate::arena::NONE;
use crate::children;
use crate::node::{Node, Resource};
use crate::tree::Tree;

/// A dump does not indent deeper, so that a long chain does not make it quadratic.
const MOST_INDENTS: usize = 40;

/// A node in canonical order: namespaces by name, children by their first page, parents first.
struct Numbered {
    index: u32,
    /// The canonical number of the parent; `NONE` below a root.
    parent: u32,
    depth: usize,
}

impl Tree {
    /// 64 bits over namespaces, keys, slots, states, lock counts and both recency orders.
    ///
    /// Equal for equal contents on any machine: handles, raw stamps and the order of hash tables do not go in.
    /// Any difference in what goes in changes it (but for a collision of XXH3).
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut order = Vec::new();
        for (name, root) in self.namespaces.sorted() {
            let first = order.len();
            self.number(root, &mut order);
            let label = name.map_or(0, |name| name.len() as u64 + 1);
            hash.update(&label.to_le_bytes());
            hash.update(name.unwrap_or_default().as_bytes());
            hash.update(&((order.len() - first) as u64).to_le_bytes());
        }
        for numbered in &order {
            hash.update(&numbered.parent.to_le_bytes());
            hash_node(&mut hash, &self.nodes[numbered.index]);
        }
        for resource in [Resource::Kv, Resource::State] {
            for number in self.recency(&order, resource) {
                hash.update(&number.to_le_bytes());
            }
        }
        hash.digest()
    }

    /// The tree and both recency orders as text; equal for equal contents.
    ///
    /// A node is a line: its number, where its edge begins and ends, the first tokens, the KV slots, the state slot,
    /// the locks. The orders name nodes by number, the most recent first.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut text = String::new();
        let mut order = Vec::new();
        for (name, root) in self.namespaces.sorted() {
            let first = order.len();
            self.number(root, &mut order);
            let name = name.map_or_else(|| "(none)".to_owned(), |name| format!("{name:?}"));
            let _ = writeln!(text, "namespace {name}");
            for (number, numbered) in order.iter().enumerate().skip(first) {
                let indent = "  ".repeat(numbered.depth.min(MOST_INDENTS) + 1);
                let _ = writeln!(text, "{indent}[{number}] {}", describe(&self.nodes[numbered.index]));
            }
        }
        for (label, resource) in [("kv", Resource::Kv), ("state", Resource::State)] {
            let numbers = self.recency(&order, resource);
            let line: Vec<String> = numbers.iter().rev().map(u32::to_string).collect();
            let _ = writeln!(text, "{label} order: {}", line.join(" "));
        }
        text
    }

    /// Appends the nodes below a root in canonical order.
    fn number(&self, root: u32, order: &mut Vec<Numbered>) {
        let mut todo = self.numbered_children(root, NONE, 0);
        while let Some(next) = todo.pop() {
            todo.extend(self.numbered_children(next.index, order.len() as u32, next.depth + 1));
            order.push(next);
        }
    }

    /// The children of a node, the last in canonical order first.
    fn numbered_children(&self, index: u32, parent: u32, depth: usize) -> Vec<Numbered> {
        let mut below: Vec<u32> = children::of(&self.nodes, index).collect();
        below.sort_unstable_by(|&a, &b| self.nodes[b].tokens.cmp(&self.nodes[a].tokens));
        below.into_iter().map(|index| Numbered { index, parent, depth }).collect()
    }

    /// The canonical numbers of the nodes in one recency order, the oldest first.
    fn recency(&self, order: &[Numbered], resource: Resource) -> Vec<u32> {
        let of = |numbered: &Numbered| &self.nodes[numbered.index];
        let listed = |node: &Node| resource == Resource::Kv || node.has_state();
        let mut stamps: Vec<(u64, u32)> = order
            .iter()
            .zip(0_u32..)
            .filter(|(numbered, _)| listed(of(numbered)))
            .map(|(numbered, number)| (of(numbered).claim(resource).stamp, number))
            .collect();
        stamps.sort_unstable();
        stamps.into_iter().map(|(_, number)| number).collect()
    }
}

fn hash_node(hash: &mut Xxh3, node: &Node) {
    for number in [node.tokens.len() as u64, node.slots.len() as u64] {
        hash.update(&number.to_le_bytes());
    }
    node.tokens.iter().for_each(|token| hash.update(&token.to_le_bytes()));
    let flags = [node.state_slot, node.kv.locks, node.state.locks, u32::from(node.pending)];
    for number in node.slots.iter().chain(&flags) {
        hash.update(&number.to_le_bytes());
    }
}

fn describe(node: &Node) -> String {
    let few = |numbers: Vec<i64>, all: usize| {
        let shown: Vec<String> = numbers.iter().map(i64::to_string).collect();
        format!("{}{}", shown.join(","), if all > numbers.len() { ",.." } else { "" })
    };
    let tokens = few(node.tokens.iter().take(8).copied().collect(), node.tokens.len());
    let slots = few(node.slots.iter().take(8).copied().map(i64::from).collect(), node.slots.len());
    let state = match node.state_slot {
        0 => "-".into(),
        slot if node.pending => format!("{slot}(pending)"),
        slot => slot.to_string(),
    };
    format!(
        "{}..{} tokens={tokens} kv={slots} state={state} locks={}/{}",
        node.start(),
        node.end,
        node.kv.locks,
        node.state.locks
    )
}
