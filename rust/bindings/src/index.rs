//! `RadixIndex`: the tree.

use pyo3::prelude::*;
use stemcache::{Config, Entry, NodeId, Receipt, Tree};

use crate::convert::{Amount, Events, Handle, Integers, Namespace, length};
use crate::errors::{broken, invalid, refused};
use crate::events::to_python;
use crate::results::{Advance, Evicted, Insert, Lock, Match, Stats, slots};
use crate::shared::Shared;

/// An eviction of this many tokens or states runs without the GIL.
const LONG_EVICTION: i64 = 1 << 17;

/// A radix tree over token ids: which KV slots and which recurrent states are kept for which prefixes.
#[pyclass(frozen, module = "stemcache")]
pub(crate) struct RadixIndex {
    tree: Shared<Tree>,
    #[pyo3(get)]
    page_size: usize,
    #[pyo3(get)]
    chunk_size: usize,
}

/// The numbers of an insert, as Python gives them.
struct EntryArguments<'py> {
    tokens: Integers<'py>,
    slots: Integers<'py>,
    /// Both are copies, and the call gives up the GIL.
    long: bool,
    state_slot: i64,
    owned: usize,
    state_length: Option<usize>,
    state_ready: bool,
}

impl<'py> EntryArguments<'py> {
    fn new(
        tokens: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        state_slot: i64,
        owned: i64,
        state_length: Option<i64>,
        state_ready: bool,
    ) -> PyResult<Self> {
        let py = tokens.py();
        let (tokens, long) = Integers::new("tokens", tokens)?.settled();
        let slots = Integers::new("slots", slots)?;
        Ok(Self {
            tokens,
            slots: if long { slots.into_owned() } else { slots },
            long,
            state_slot,
            owned: length(py, "owned", owned)?,
            state_length: state_length.map(|given| length(py, "state_length", given)).transpose()?,
            state_ready,
        })
    }

    fn entry(&self) -> Entry<'_> {
        Entry {
            tokens: self.tokens.as_slice(),
            slots: self.slots.as_slice(),
            state_slot: self.state_slot,
            owned: self.owned,
            state_length: self.state_length,
            state_ready: self.state_ready,
        }
    }
}

#[pymethods]
impl RadixIndex {
    #[new]
    #[pyo3(signature = (page_size=1, chunk_size=None, bigram=false, policy="lru", events=Events(stemcache::EventMode::Off)))]
    fn new(
        py: Python<'_>,
        page_size: i64,
        chunk_size: Option<i64>,
        bigram: bool,
        policy: &str,
        events: Events,
    ) -> PyResult<Self> {
        let config = Config {
            page_size: length(py, "page_size", page_size)?,
            chunk_size: chunk_size.map(|given| length(py, "chunk_size", given)).transpose()?,
            bigram,
            policy: policy.parse().map_err(|error| refused(py, error))?,
            events: events.0,
        };
        let tree = Tree::new(config).map_err(|error| refused(py, error))?;
        Ok(Self { page_size: tree.page_size(), chunk_size: tree.chunk_size(), tree: Shared::new(tree) })
    }

    /// Finds the longest usable prefix and makes its path most recent.
    #[pyo3(name = "match", signature = (tokens, namespace=Namespace::Omitted, limit=None, after=None, lock=false))]
    fn match_(
        slf: &Bound<'_, Self>,
        tokens: &Bound<'_, PyAny>,
        namespace: Namespace,
        limit: Option<Amount>,
        after: Option<Handle>,
        lock: bool,
    ) -> PyResult<Match> {
        let (py, index) = (slf.py(), slf.get());
        let (tokens, long) = Integers::new("tokens", tokens)?.settled();
        let tokens = tokens.as_slice();
        let limit = limit.map(|given| length(py, "limit", given.0)).transpose()?;
        let start = namespace.start(after);
        if !lock {
            let found = index.tree.try_call(py, long, |tree| tree.find(start, tokens, limit))?;
            return Ok(Match::new(py, found, None));
        }
        let (found, receipt) =
            index.tree.try_call(py, long, |tree| tree.find_and_lock(start, tokens, limit))?;
        Ok(Match::new(py, found, Some(Self::receipt(slf, receipt)?)))
    }

    /// A match that touches nothing at all.
    #[pyo3(signature = (tokens, namespace=Namespace::Omitted, limit=None, after=None))]
    fn peek(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        namespace: Namespace,
        limit: Option<Amount>,
        after: Option<Handle>,
    ) -> PyResult<Match> {
        let (tokens, long) = Integers::new("tokens", tokens)?.settled();
        let tokens = tokens.as_slice();
        let limit = limit.map(|given| length(py, "limit", given.0)).transpose()?;
        let start = namespace.start(after);
        let found = self.tree.try_call(py, long, |tree| tree.peek(start, tokens, limit))?;
        Ok(Match::new(py, found, None))
    }

    /// Gives the tree the KV of a key and the state at its end.
    #[pyo3(signature = (tokens, slots, state_slot, namespace=Namespace::Omitted, owned=0, after=None, state_length=None, state_ready=true))]
    #[expect(clippy::too_many_arguments, reason = "the public call")]
    fn insert(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        state_slot: i64,
        namespace: Namespace,
        owned: i64,
        after: Option<Handle>,
        state_length: Option<i64>,
        state_ready: bool,
    ) -> PyResult<Insert> {
        let arguments = EntryArguments::new(tokens, slots, state_slot, owned, state_length, state_ready)?;
        let (entry, start) = (arguments.entry(), namespace.start(after));
        let done = self.tree.try_call(py, arguments.long, |tree| tree.insert(start, &entry))?;
        Ok(Insert::new(py, done))
    }

    /// Inserts after the lock's node and moves the lock to the new end.
    #[pyo3(signature = (lock, tokens, slots, state_slot, owned=0, state_length=None, state_ready=true))]
    #[expect(clippy::too_many_arguments, reason = "the public call")]
    fn advance(
        slf: &Bound<'_, Self>,
        lock: &Bound<'_, Lock>,
        tokens: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        state_slot: i64,
        owned: i64,
        state_length: Option<i64>,
        state_ready: bool,
    ) -> PyResult<Advance> {
        let py = slf.py();
        let receipt = Self::own(slf, lock)?;
        let arguments = EntryArguments::new(tokens, slots, state_slot, owned, state_length, state_ready)?;
        let entry = arguments.entry();
        let done = slf.get().tree.try_call(py, arguments.long, |tree| tree.advance(receipt, &entry))?;
        Ok(Advance {
            insert: Py::new(py, Insert::new(py, done.insert))?,
            slots: self::slots(py, done.slots),
            lock: Self::receipt(slf, done.receipt)?,
        })
    }

    /// A state that waited was written: it can be matched, locked and evicted.
    fn publish_state(&self, py: Python<'_>, node: Handle) -> PyResult<()> {
        let Handle(node) = node;
        self.tree.try_call(py, false, |tree| tree.publish_state(node))
    }

    /// A state that waited is not worth keeping: takes it out.
    fn discard_state(&self, py: Python<'_>, node: Handle) -> PyResult<Evicted> {
        let Handle(node) = node;
        Ok(Evicted::new(py, self.tree.try_call(py, false, |tree| tree.discard_state(node))?))
    }

    /// Protects a node's state and the KV of its path from eviction.
    fn lock(slf: &Bound<'_, Self>, node: Handle) -> PyResult<Py<Lock>> {
        let Handle(node) = node;
        let receipt = slf.get().tree.try_call(slf.py(), false, |tree| tree.lock(node))?;
        Self::receipt(slf, receipt)
    }

    /// Releases the state part of a lock early.
    fn unlock_state(slf: &Bound<'_, Self>, lock: &Bound<'_, Lock>) -> PyResult<()> {
        let receipt = Self::own(slf, lock)?;
        slf.get().tree.try_call(slf.py(), false, |tree| tree.unlock_state(receipt))
    }

    /// Gives back exactly what the lock took.
    fn unlock(slf: &Bound<'_, Self>, lock: &Bound<'_, Lock>) -> PyResult<()> {
        let receipt = Self::own(slf, lock)?;
        slf.get().tree.try_call(slf.py(), false, |tree| tree.unlock(receipt))
    }

    /// Frees at least so many tokens, then so many states more, least recently used first.
    #[pyo3(signature = (tokens=Amount(0), states=Amount(0)))]
    fn evict(&self, py: Python<'_>, tokens: Amount, states: Amount) -> PyResult<Evicted> {
        let (Amount(tokens), Amount(states)) = (tokens, states);
        let long = tokens >= LONG_EVICTION || states >= LONG_EVICTION;
        let (tokens, states) = (tokens.max(0) as usize, states.max(0) as usize);
        let evicted = self.tree.try_call(py, long, |tree| Ok(tree.evict(tokens, states)))?;
        Ok(Evicted::new(py, evicted))
    }

    /// Drops everything unlocked in a namespace.
    fn drop_namespace(&self, py: Python<'_>, namespace: Option<&str>) -> PyResult<Evicted> {
        let evicted = self.tree.call_detached(py, |tree| tree.drop_namespace(namespace))?;
        Ok(Evicted::new(py, evicted))
    }

    /// Empties the tree and gives every slot back; handles and locks become stale.
    fn reset(&self, py: Python<'_>) -> PyResult<Evicted> {
        Ok(Evicted::new(py, self.tree.call_detached(py, Tree::reset)?))
    }

    /// The events since the last call, in order.
    fn take_events(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let events = self.tree.call(py, Tree::take_events)?;
        events.into_iter().map(|event| to_python(py, event, self.page_size)).collect()
    }

    /// Every KV slot in the tree.
    fn all_slots(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let all = self.tree.call_detached(py, |tree| tree.kv_slots())?;
        Ok(slots(py, all).into_any())
    }

    /// Every state slot in the tree.
    fn all_state_slots(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let all = self.tree.call_detached(py, |tree| tree.state_slots())?;
        Ok(slots(py, all).into_any())
    }

    /// Counters since the index was made.
    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        Ok(self.tree.call(py, |tree| tree.stats())?.into())
    }

    /// Recomputes every count, list and link from scratch; raises with all violations.
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        let violations = self.tree.call_detached(py, |tree| tree.check())?;
        if violations.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        Err(broken(py, lines.join("\n")))
    }

    /// The tree and both recency orders as text.
    fn dump(&self, py: Python<'_>) -> PyResult<String> {
        self.tree.call_detached(py, |tree| tree.dump())
    }

    /// 64 bits over everything that two ranks must agree on.
    fn digest(&self, py: Python<'_>) -> PyResult<u64> {
        self.tree.call_detached(py, |tree| tree.digest())
    }

    #[getter]
    fn total_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.sizes().evictable_tokens + tree.sizes().protected_tokens)
    }

    #[getter]
    fn total_states(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.sizes().evictable_states + tree.sizes().protected_states)
    }

    #[getter]
    fn evictable_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.sizes().evictable_tokens)
    }

    #[getter]
    fn evictable_states(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.sizes().evictable_states)
    }

    #[getter]
    fn protected_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.sizes().protected_tokens)
    }

    #[getter]
    fn protected_states(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.sizes().protected_states)
    }

    #[getter]
    fn node_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.tree.call(py, |tree| tree.node_count())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (nodes, sizes) = self.tree.call(py, |tree| (tree.node_count(), tree.sizes()))?;
        Ok(format!(
            "RadixIndex(page_size={}, chunk_size={}: {nodes} nodes, {} tokens, {} states)",
            self.page_size,
            self.chunk_size,
            sizes.evictable_tokens + sizes.protected_tokens,
            sizes.evictable_states + sizes.protected_states,
        ))
    }
}

impl RadixIndex {
    fn receipt(slf: &Bound<'_, Self>, receipt: Receipt) -> PyResult<Py<Lock>> {
        Py::new(slf.py(), Lock { index: slf.clone().unbind(), receipt })
    }

    /// The receipt of a lock, if it is one of this index.
    fn own(slf: &Bound<'_, Self>, lock: &Bound<'_, Lock>) -> PyResult<Receipt> {
        let lock = lock.get();
        if lock.index.is(slf) {
            return Ok(lock.receipt);
        }
        Err(invalid(slf.py(), "the lock is of another index".into()))
    }

    /// The node of a lock; None if it is of nothing, or held no more.
    pub(crate) fn locked_node(&self, py: Python<'_>, receipt: Receipt) -> PyResult<Option<u64>> {
        let node = self.tree.call(py, |tree| tree.locked_node(receipt).ok().flatten())?;
        Ok(node.map(NodeId::to_u64))
    }

    pub(crate) fn holds(&self, py: Python<'_>, receipt: Receipt) -> PyResult<bool> {
        self.tree.call(py, |tree| tree.locked_node(receipt).is_ok())
    }

    pub(crate) fn release_if_held(&self, py: Python<'_>, receipt: Receipt) -> PyResult<()> {
        self.tree.call(py, |tree| drop(tree.unlock(receipt)))
    }
}
