//! Insert and advance: the tree takes KV and a state, after everything was checked.

use super::Tree;
use super::find::{Origin, Start, Walk};
use crate::error::{Error, Result};
use crate::id::{NodeId, Receipt};
use crate::receipts::Anchor;

/// What an insert is given. Lengths are in units and count from where the key begins, but `state_length`.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The key; floored to whole pages.
    pub tokens: &'a [i64],
    /// The KV slots of the floored key, one a unit; more are ignored.
    pub slots: &'a [i64],
    /// The slot of the state after the floored key.
    pub state_slot: i64,
    /// How many slots at the front are the tree's own; they are not read.
    pub owned: usize,
    /// Units that the state has consumed, from the root. None: all of the key, before it is floored.
    pub state_length: Option<usize>,
    /// Whether the state's bytes are there. If a copy has yet to write them, nobody can go on from the state, or
    /// evict it, until [`Tree::publish_state`].
    pub state_ready: bool,
}

/// What an insert did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// Units that the tree had before, from the root.
    pub prefix_length: usize,
    /// The end has a state already: the one given is still the caller's.
    pub state_exists: bool,
    /// KV slots given for what the tree had: the caller frees them.
    pub freed_slots: Vec<i64>,
    /// The node at the key's end; None for an empty key.
    pub node: Option<NodeId>,
}

/// What an advance did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advanced {
    /// What its insert did.
    pub insert: Inserted,
    /// The tree's own KV slots of the new part.
    pub slots: Vec<i64>,
    /// The lock on the new end; the old receipt is used up.
    pub receipt: Receipt,
}

/// An insert that passed every check; nothing can go wrong from here.
struct Plan {
    units: usize,
    owned: usize,
    walk: Walk,
    state: u32,
    /// The slots past the first `owned`; the tree has claimed them all.
    slots: Box<[u32]>,
}

impl Tree {
    /// Gives the tree the KV of a key and the state at its end.
    ///
    /// The nodes on the way become most recent from the root down, the end last of all. The caller gives up the slots
    /// in any case: those of units that the tree had come back in [`Inserted::freed_slots`].
    ///
    /// # Errors
    /// [`Error::StaleNode`], [`Error::Namespace`]: as for [`Tree::find`]. [`Error::Argument`]: the state does not
    /// lie at the floored end, too few slots, `owned` exceeds what the tree holds, an id that events cannot carry.
    /// [`Error::SlotRange`], [`Error::SlotOwner`]: a slot that is none, is the tree's, or comes twice.
    pub fn insert(&mut self, start: Start<'_>, entry: &Entry<'_>) -> Result<Inserted> {
        let origin = self.origin(start)?;
        let namespace = match start {
            Start::Root(name) => name,
            Start::After(_) | Start::AfterIn(..) => None,
        };
        self.insert_from(origin, namespace, entry)
    }

    /// Inserts after a lock's node and moves the lock to the new end, looking at the new units only.
    ///
    /// # Errors
    /// [`Error::NotLocked`], [`Error::StaleLock`]: the receipt is used up, or from before a reset. Otherwise as for
    /// [`Tree::insert`]; a refused call leaves the lock as it was.
    pub fn advance(&mut self, receipt: Receipt, entry: &Entry<'_>) -> Result<Advanced> {
        let anchor = self.receipts.get(receipt)?.anchor.clone();
        let (origin, namespace) = match &anchor {
            Anchor::Node(node) => {
                let end = self.nodes[*node].end as usize;
                (Some(Origin { node: *node, end }), None)
            }
            Anchor::Root(name) => (self.origin(Start::Root(name.as_deref()))?, name.as_deref()),
        };
        let insert = self.insert_from(origin, namespace, entry)?;
        let Some(end) = insert.node.map(|node| node.index) else {
            return Ok(Advanced { insert, slots: Vec::new(), receipt: self.renew(receipt)? });
        };
        let above = match anchor {
            Anchor::Node(node) => node,
            Anchor::Root(_) => self.root_above(end),
        };
        let slots = self.slots_between(above, end);
        Ok(Advanced { insert, slots, receipt: self.move_lock(receipt, end)? })
    }

    fn insert_from(
        &mut self,
        origin: Option<Origin>,
        namespace: Option<&str>,
        entry: &Entry<'_>,
    ) -> Result<Inserted> {
        let mut path = std::mem::take(&mut self.path);
        let plan = self.plan(origin, entry, &mut path);
        let done = plan.map(|plan| {
            if plan.units == 0 && path.is_empty() {
                return Inserted::nothing();
            }
            let origin = origin.map_or_else(|| self.root_of(namespace), |origin| origin.node);
            self.carry_out(origin, plan, entry, &path)
        });
        self.path = path;
        done
    }

    /// Checks everything, and only if all is well claims the slots.
    fn plan(&mut self, origin: Option<Origin>, entry: &Entry<'_>, path: &mut Vec<u32>) -> Result<Plan> {
        let units = self.whole_units(entry.tokens);
        let start = origin.map_or(0, |origin| origin.end);
        self.check_boundary(origin, entry.tokens)?;
        self.check_lengths(start, units, entry)?;
        path.clear();
        let walk = match origin {
            Some(origin) => self.walk(origin, entry.tokens, units, path),
            None => Walk { above: 0, units: 0, inside: None },
        };
        let owned = entry.owned.min(units);
        if owned > walk.units {
            let rule = format!("the tree holds only {} of these tokens", walk.units);
            return Err(argument("owned", owned, rule));
        }
        if self.events.is_some() && units > 0 {
            check_fits_u32(&entry.tokens[..units + self.overlap])?;
        }
        let (mut state, mut slots) = (0, Box::default());
        if units > 0 || !path.is_empty() {
            state = self.state_owned.check(entry.state_slot)?;
            // Read once: what is claimed is what is kept, whatever the caller does to its buffer meanwhile.
            slots = self.kv_owned.checked(&entry.slots[owned..units])?;
            self.kv_owned.add_all(&slots)?;
        }
        Ok(Plan { units, owned, walk, state, slots })
    }

    fn check_lengths(&self, start: usize, units: usize, entry: &Entry<'_>) -> Result<()> {
        let state_length = entry.state_length.unwrap_or(start + self.units(entry.tokens));
        if state_length != start + units {
            let rule = format!(
                "the key ends at {} after flooring to whole pages of {}: a state cannot be cut",
                start + units,
                self.page_size
            );
            return Err(argument("state_length", state_length, rule));
        }
        if entry.slots.len() < units {
            let rule = format!("the floored key has {units} tokens");
            return Err(argument("the number of slots", entry.slots.len(), rule));
        }
        Ok(())
    }

    fn carry_out(&mut self, origin: u32, plan: Plan, entry: &Entry<'_>, path: &[u32]) -> Inserted {
        let Plan { units, owned, walk, state, slots } = plan;
        let prefix_length = self.nodes[origin].end as usize + walk.units;
        let (duplicate, new) = divide(slots, walk.units - owned);
        for &index in path {
            self.touch(index);
        }
        let mut end = path.last().copied().unwrap_or(origin);
        if let Some((node, at)) = walk.inside {
            end = self.split(node, at);
        }
        if walk.units < units {
            end = self.add_leaf(end, &entry.tokens[walk.units..units + self.overlap], new);
        } else if walk.inside.is_some() {
            self.touch(end);
        }
        let state_exists = self.nodes[end].has_state();
        if !state_exists {
            self.state_owned.add(state);
            self.give_state(end, state, entry.state_ready);
        }
        self.kv_owned.remove_all(&duplicate);
        self.count_insert(units - walk.units, duplicate.len(), state_exists);
        Inserted {
            prefix_length,
            state_exists,
            freed_slots: duplicate.iter().copied().map(i64::from).collect(),
            node: Some(self.nodes.handle(end)),
        }
    }

    fn count_insert(&mut self, stored: usize, duplicate: usize, state_exists: bool) {
        self.counters.inserts += 1;
        self.counters.stored_tokens += stored as u64;
        self.counters.duplicate_tokens += duplicate as u64;
        self.counters.stored_states += u64::from(!state_exists);
        self.counters.duplicate_states += u64::from(state_exists);
    }
}

impl Inserted {
    fn nothing() -> Self {
        Self { prefix_length: 0, state_exists: true, freed_slots: Vec::new(), node: None }
    }
}

/// The first `at` slots, and the others; all of them are handed on as they are where there is no first.
fn divide(slots: Box<[u32]>, at: usize) -> (Box<[u32]>, Box<[u32]>) {
    if at == 0 {
        return (Box::default(), slots);
    }
    (slots[..at].into(), slots[at..].into())
}

fn argument(name: &'static str, given: usize, rule: String) -> Error {
    Error::Argument { name, given: i64::try_from(given).unwrap_or(i64::MAX), rule }
}

/// Events name tokens as u32.
fn check_fits_u32(tokens: &[i64]) -> Result<()> {
    match tokens.iter().find(|&&token| u32::try_from(token).is_err()) {
        None => Ok(()),
        Some(&given) => Err(Error::Argument {
            name: "a token id",
            given,
            rule: "events carry ids from 0 to 4294967295".into(),
        }),
    }
}
