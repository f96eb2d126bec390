//! Match: the longest prefix from whose end a model can go on.

use super::Tree;
use crate::arena::NONE;
use crate::error::{Error, Result};
use crate::id::{NodeId, Receipt};
use crate::receipts::Anchor;

/// Where the key of a call begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start<'a> {
    /// At the root of a namespace.
    Root(Option<&'a str>),
    /// At the end of a node, in its namespace.
    After(NodeId),
    /// At the end of a node, which must lie in this namespace.
    AfterIn(NodeId, Option<&'a str>),
}

/// Why a match is shorter than its key: the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing is cached in the namespace.
    Namespace,
    /// The tree agreed with the key up to the caller's limit.
    Limit,
    /// The KV goes on, and a state was there once.
    StateEvicted,
    /// The KV goes on, but no state was ever kept there.
    NoState,
    /// The tree does not have these tokens.
    Miss,
}

/// What a match found. Lengths are in units and count from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Usable: KV, and a state at the end.
    pub length: usize,
    /// The KV slots of the usable part, past the node that the call went on from.
    pub slots: Vec<i64>,
    /// The node whose state to go on from.
    pub node: Option<NodeId>,
    /// The slot of that state.
    pub state_slot: Option<i64>,
    /// How far the KV goes, whatever the states.
    pub kv_length: usize,
    /// Where a checkpoint would have made this hit longer: the KV length floored to the chunk grid, if that is more.
    pub branching_length: Option<usize>,
    /// Why `length` is short of the key.
    pub reason: Option<Reason>,
}

/// Where a key begins, resolved: the node (or root), if there is one yet, and its end.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) node: u32,
    pub(super) end: usize,
}

/// How far the tree agrees with a key. The wholly matched nodes are in the path that the walk filled.
pub(super) struct Walk {
    /// How many nodes of the path end at or before the origin.
    pub(super) above: usize,
    /// Units of the key that the tree has.
    pub(super) units: usize,
    /// The node inside whose edge the walk ended, and after how many of its units.
    pub(super) inside: Option<(u32, usize)>,
}

impl Tree {
    /// Finds the longest usable prefix of `tokens` and makes its path the most recently used.
    ///
    /// The key is floored to whole pages. `limit` caps it, too, counted from where the key begins. With a start
    /// after a node, the answer is that of the whole key, without the slots up to the node.
    ///
    /// # Errors
    /// [`Error::StaleNode`], [`Error::Namespace`]: the node to go on from is gone, or lies elsewhere.
    /// [`Error::Argument`]: a bigram key does not begin with the token that its node ends with.
    pub fn find(&mut self, start: Start<'_>, tokens: &[i64], limit: Option<usize>) -> Result<Match> {
        let origin = self.origin(start)?;
        self.check_boundary(origin, tokens)?;
        let mut path = std::mem::take(&mut self.path);
        let (found, hit) = self.search(origin, tokens, limit, &mut path);
        for &index in &path[..hit] {
            self.touch(index);
        }
        self.path = path;
        self.counters.count_match(&found);
        Ok(found)
    }

    /// [`Tree::find`], and a lock on what it found before anybody else can evict it.
    ///
    /// After a miss the receipt holds nothing; [`Tree::advance`] then begins at the root of the namespace.
    ///
    /// # Errors
    /// As for [`Tree::find`].
    pub fn find_and_lock(
        &mut self,
        start: Start<'_>,
        tokens: &[i64],
        limit: Option<usize>,
    ) -> Result<(Match, Receipt)> {
        let found = self.find(start, tokens, limit)?;
        let anchor = match found.node {
            Some(node) => Anchor::Node(node.index),
            None => Anchor::Root(self.namespace_of(start).map(Into::into)),
        };
        let receipt = self.lock_anchor(anchor);
        Ok((found, receipt))
    }

    /// [`Tree::find`] that touches nothing at all.
    ///
    /// # Errors
    /// As for [`Tree::find`].
    pub fn peek(&self, start: Start<'_>, tokens: &[i64], limit: Option<usize>) -> Result<Match> {
        let origin = self.origin(start)?;
        self.check_boundary(origin, tokens)?;
        Ok(self.search(origin, tokens, limit, &mut Vec::new()).0)
    }

    /// The answer, and how many nodes of the path lead to the hit.
    fn search(
        &self,
        origin: Option<Origin>,
        tokens: &[i64],
        limit: Option<usize>,
        path: &mut Vec<u32>,
    ) -> (Match, usize) {
        let units = self.whole_units(tokens);
        let Some(origin) = origin else {
            path.clear();
            let reason = (units > 0).then_some(Reason::Namespace);
            return (Match::nothing(reason), 0);
        };
        let cap = limit.map_or(units, |limit| units.min(self.floor(limit)));
        let walk = self.walk(origin, tokens, cap, path);
        let hit = self.deepest_state(path);
        let kv_length = origin.end + walk.units;
        let mut found = self.describe(&path[..hit], walk.above);
        found.kv_length = kv_length;
        found.branching_length = Some(kv_length / self.chunk_size * self.chunk_size)
            .filter(|&branch| branch > found.length && !self.is_pending_at(&path[hit..], branch));
        found.reason = (found.length < origin.end + units).then(|| {
            if kv_length == origin.end + cap && cap < units {
                Reason::Limit
            } else if kv_length == found.length {
                Reason::Miss
            } else if path[hit..].iter().any(|&index| self.nodes[index].lost_state) {
                Reason::StateEvicted
            } else {
                Reason::NoState
            }
        });
        (found, hit)
    }

    /// The hit at the end of `path`, with the slots past its first `above` nodes.
    fn describe(&self, path: &[u32], above: usize) -> Match {
        let Some(&last) = path.last() else { return Match::nothing(None) };
        let node = &self.nodes[last];
        Match {
            length: node.end as usize,
            slots: self.slots_of(path.get(above..).unwrap_or_default()),
            node: Some(self.nodes.handle(last)),
            state_slot: Some(i64::from(node.state_slot)),
            ..Match::nothing(None)
        }
    }

    /// Whether somebody is writing a state at this length already.
    fn is_pending_at(&self, path: &[u32], length: usize) -> bool {
        path.iter().any(|&index| self.nodes[index].pending && self.nodes[index].end as usize == length)
    }

    /// How many nodes of `path` lead to its deepest one with a state.
    fn deepest_state(&self, path: &[u32]) -> usize {
        path.iter().rposition(|&index| self.nodes[index].has_usable_state()).map_or(0, |at| at + 1)
    }

    /// Follows `key` from the origin for at most `limit` units, and fills `path` with the nodes that it
    /// matches whole, from below the root.
    pub(super) fn walk(&self, origin: Origin, key: &[i64], limit: usize, path: &mut Vec<u32>) -> Walk {
        path.clear();
        let mut at = origin.node;
        while self.nodes[at].parent != NONE {
            path.push(at);
            at = self.nodes[at].parent;
        }
        path.reverse();
        let above = path.len();
        let (mut node, mut units) = (origin.node, 0);
        while units < limit {
            let rest = &key[units..limit + self.overlap];
            let Some(child) = self.children.find(&self.nodes, node, rest) else { break };
            let common = self.common_units(&self.nodes[child].tokens, rest);
            units += common;
            if common < self.nodes[child].units() {
                return Walk { above, units, inside: Some((child, common)) };
            }
            path.push(child);
            node = child;
        }
        Walk { above, units, inside: None }
    }

    /// Whole pages that two edges have in common, in units.
    fn common_units(&self, a: &[i64], b: &[i64]) -> usize {
        self.floor(common_prefix(a, b).saturating_sub(self.overlap))
    }

    /// Units of a key, floored to whole pages.
    pub(super) fn whole_units(&self, tokens: &[i64]) -> usize {
        self.floor(self.units(tokens))
    }

    /// Units of a key.
    pub(super) fn units(&self, tokens: &[i64]) -> usize {
        tokens.len().saturating_sub(self.overlap)
    }

    fn floor(&self, units: usize) -> usize {
        units - units % self.page_size
    }

    /// Resolves a start; None when its namespace has no root yet.
    pub(super) fn origin(&self, start: Start<'_>) -> Result<Option<Origin>> {
        let (handle, given) = match start {
            Start::Root(name) => return Ok(self.namespaces.root(name).map(|node| Origin { node, end: 0 })),
            Start::After(handle) => (handle, None),
            Start::AfterIn(handle, name) => (handle, Some(name)),
        };
        let node = self.nodes.resolve(handle).ok_or(Error::StaleNode(handle))?;
        let own = given.map(|_| self.namespaces.name(self.root_above(node)));
        if given != own {
            let owned = |name: Option<Option<&str>>| name.flatten().map(String::from);
            return Err(Error::Namespace { given: owned(given), node: owned(own) });
        }
        Ok(Some(Origin { node, end: self.nodes[node].end as usize }))
    }

    /// Bigram keys overlap: what goes on from a node begins with the node's last token.
    pub(super) fn check_boundary(&self, origin: Option<Origin>, tokens: &[i64]) -> Result<()> {
        let (Some(origin), [given, ..]) = (origin, tokens) else { return Ok(()) };
        let last = self.nodes[origin.node].tokens.last();
        if self.overlap == 0 || last.is_none_or(|last| last == given) {
            return Ok(());
        }
        let rule = format!(
            "a bigram key that goes on from a node begins with its last token {}",
            last.unwrap_or(&0)
        );
        Err(Error::Argument { name: "the first token", given: *given, rule })
    }

    fn namespace_of<'a>(&'a self, start: Start<'a>) -> Option<&'a str> {
        match start {
            Start::Root(name) | Start::AfterIn(_, name) => name,
            Start::After(handle) => self.namespaces.name(self.root_above(handle.index)),
        }
    }
}

impl Match {
    fn nothing(reason: Option<Reason>) -> Self {
        Self {
            length: 0,
            slots: Vec::new(),
            node: None,
            state_slot: None,
            kv_length: 0,
            branching_length: None,
            reason,
        }
    }
}

/// How many items two slices agree in from the front: by blocks, which compare many items at once.
fn common_prefix(a: &[i64], b: &[i64]) -> usize {
    const BLOCK: usize = 64;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let equal = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}
