//! What calls return: small frozen classes with named fields.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use stemcache::{Reason, Receipt};

use crate::index::RadixIndex;

type Slots = Py<PyArray1<i64>>;

/// The slots as a numpy array; the vector is handed over, not copied.
pub(crate) fn slots(py: Python<'_>, slots: Vec<i64>) -> Slots {
    PyArray1::from_vec(py, slots).unbind()
}

/// What a match found.
#[pyclass(frozen, get_all, module = "stemcache")]
pub(crate) struct Match {
    pub(crate) length: usize,
    pub(crate) slots: Slots,
    pub(crate) node: Option<u64>,
    pub(crate) state_slot: Option<i64>,
    pub(crate) kv_length: usize,
    pub(crate) branching_length: Option<usize>,
    pub(crate) reason: Option<&'static str>,
    pub(crate) lock: Option<Py<Lock>>,
}

impl Match {
    pub(crate) fn new(py: Python<'_>, found: stemcache::Match, lock: Option<Py<Lock>>) -> Self {
        Self {
            length: found.length,
            slots: slots(py, found.slots),
            node: found.node.map(stemcache::NodeId::to_u64),
            state_slot: found.state_slot,
            kv_length: found.kv_length,
            branching_length: found.branching_length,
            reason: found.reason.map(reason),
            lock,
        }
    }
}

#[pymethods]
impl Match {
    fn __repr__(&self) -> String {
        format!(
            "Match(length={}, kv_length={}, node={}, state_slot={}, branching_length={}, reason={}, locked={})",
            self.length,
            self.kv_length,
            optional(self.node),
            optional(self.state_slot),
            optional(self.branching_length),
            self.reason.map_or_else(|| "None".into(), |reason| format!("{reason:?}")),
            if self.lock.is_some() { "True" } else { "False" },
        )
    }
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Namespace => "namespace",
        Reason::Limit => "limit",
        Reason::StateEvicted => "state evicted",
        Reason::NoState => "no state",
        Reason::Miss => "miss",
    }
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "None".into(), |value| value.to_string())
}

/// What an insert did.
#[pyclass(frozen, get_all, module = "stemcache")]
pub(crate) struct Insert {
    pub(crate) prefix_length: usize,
    pub(crate) state_exists: bool,
    pub(crate) freed_slots: Slots,
    pub(crate) node: Option<u64>,
}

impl Insert {
    pub(crate) fn new(py: Python<'_>, done: stemcache::Inserted) -> Self {
        Self {
            prefix_length: done.prefix_length,
            state_exists: done.state_exists,
            freed_slots: slots(py, done.freed_slots),
            node: done.node.map(stemcache::NodeId::to_u64),
        }
    }
}

#[pymethods]
impl Insert {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Insert(prefix_length={}, state_exists={}, freed_slots=<{} slots>, node={})",
            self.prefix_length,
            if self.state_exists { "True" } else { "False" },
            self.freed_slots.bind(py).len()?,
            optional(self.node),
        ))
    }
}

/// What an advance did.
#[pyclass(frozen, get_all, module = "stemcache")]
pub(crate) struct Advance {
    pub(crate) insert: Py<Insert>,
    pub(crate) slots: Slots,
    pub(crate) lock: Py<Lock>,
}

#[pymethods]
impl Advance {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (insert, lock) = (self.insert.bind(py).repr()?, self.lock.bind(py).repr()?);
        Ok(format!("Advance(insert={insert}, slots=<{} slots>, lock={lock})", self.slots.bind(py).len()?))
    }
}

/// The slots that a call took out of the tree.
#[pyclass(frozen, get_all, module = "stemcache")]
pub(crate) struct Evicted {
    pub(crate) kv_slots: Slots,
    pub(crate) state_slots: Slots,
}

impl Evicted {
    pub(crate) fn new(py: Python<'_>, evicted: stemcache::Evicted) -> Self {
        Self { kv_slots: slots(py, evicted.kv_slots), state_slots: slots(py, evicted.state_slots) }
    }
}

#[pymethods]
impl Evicted {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (kv, states) = (self.kv_slots.bind(py).len()?, self.state_slots.bind(py).len()?);
        Ok(format!("Evicted(<{kv} KV slots>, <{states} state slots>)"))
    }
}

/// The receipt of a lock.
#[pyclass(frozen, module = "stemcache")]
pub(crate) struct Lock {
    pub(crate) index: Py<RadixIndex>,
    pub(crate) receipt: Receipt,
}

#[pymethods]
impl Lock {
    #[getter]
    fn node(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.index.get().locked_node(py, self.receipt)
    }

    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<bool> {
        self.index.get().holds(py, self.receipt)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, error, trace, /))]
    fn __exit__(&self, py: Python<'_>, kind: Py<PyAny>, error: Py<PyAny>, trace: Py<PyAny>) -> PyResult<()> {
        drop((kind, error, trace));
        self.index.get().release_if_held(py, self.receipt)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match self.node(py)? {
            Some(node) => format!("Lock(node={node})"),
            None if self.held(py)? => "Lock(of nothing)".into(),
            None => "Lock(released)".into(),
        })
    }
}

macro_rules! stats {
    ($($name:ident,)*) => {
        /// Counters since the index was made.
        #[pyclass(frozen, get_all, module = "stemcache")]
        pub(crate) struct Stats { $($name: u64,)* }

        impl From<stemcache::Stats> for Stats {
            fn from(stats: stemcache::Stats) -> Self {
                Self { $($name: stats.$name,)* }
            }
        }

        #[pymethods]
        impl Stats {
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(PyString::intern(py, stringify!($name)), self.$name)?;)*
                Ok(dict)
            }

            fn __repr__(&self) -> String {
                let fields = [$(format!("{}={}", stringify!($name), self.$name),)*];
                format!("Stats({})", fields.join(", "))
            }
        }
    };
}

stats! {
    matches, matched_tokens, kv_only_tokens, short_by_namespace, short_by_limit, short_by_state_evicted,
    short_by_no_state, short_by_miss, inserts, stored_tokens, duplicate_tokens, stored_states,
    duplicate_states, splits, evicted_tokens, evicted_states, tombstoned_states, discarded_states, locks_held,
}
