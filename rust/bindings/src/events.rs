//! Events as Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use stemcache::Event;

/// One page that the tree took.
#[pyclass(frozen, get_all, module = "stemcache")]
pub(crate) struct BlockStored {
    block_hashes: Vec<i64>,
    parent_block_hash: Option<i64>,
    token_ids: Py<PyList>,
    block_size: usize,
    namespace: Option<String>,
}

#[pymethods]
impl BlockStored {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (parent, namespace) = (&self.parent_block_hash, &self.namespace);
        Ok(format!(
            "BlockStored(block_hashes={:?}, parent_block_hash={}, token_ids={}, block_size={}, namespace={})",
            self.block_hashes,
            parent.map_or_else(|| "None".into(), |hash| hash.to_string()),
            self.token_ids.bind(py).repr()?,
            self.block_size,
            namespace.as_ref().map_or_else(|| "None".into(), |name| format!("{name:?}")),
        ))
    }
}

macro_rules! hash_event {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, module = "stemcache")]
        pub(crate) struct $name {
            block_hashes: Vec<i64>,
        }

        #[pymethods]
        impl $name {
            fn __repr__(&self) -> String {
                format!("{}(block_hashes={:?})", stringify!($name), self.block_hashes)
            }
        }
    };
}

hash_event! {
    /// One page that the tree dropped.
    BlockRemoved
}
hash_event! {
    /// A recurrent state was kept at the end of this page.
    StateStored
}
hash_event! {
    /// The recurrent state at the end of this page was dropped.
    StateRemoved
}

/// The tree was reset.
#[pyclass(frozen, module = "stemcache")]
pub(crate) struct AllBlocksCleared;

#[pymethods]
impl AllBlocksCleared {
    #[expect(clippy::unused_self, reason = "Python calls it on an instance")]
    fn __repr__(&self) -> &'static str {
        "AllBlocksCleared()"
    }
}

/// The event as an instance of its class.
pub(crate) fn to_python(py: Python<'_>, event: Event, page_size: usize) -> PyResult<Py<PyAny>> {
    Ok(match event {
        Event::BlockStored { hash, parent, tokens, namespace } => Py::new(
            py,
            BlockStored {
                block_hashes: vec![hash],
                parent_block_hash: parent,
                token_ids: token_ids(py, &tokens, page_size)?,
                block_size: page_size,
                namespace: namespace.map(|name| name.to_string()),
            },
        )?
        .into_any(),
        Event::BlockRemoved { hash } => Py::new(py, BlockRemoved { block_hashes: vec![hash] })?.into_any(),
        Event::StateStored { hash } => Py::new(py, StateStored { block_hashes: vec![hash] })?.into_any(),
        Event::StateRemoved { hash } => Py::new(py, StateRemoved { block_hashes: vec![hash] })?.into_any(),
        Event::AllCleared => Py::new(py, AllBlocksCleared)?.into_any(),
    })
}

/// The tokens of a page, or its pairs when there is one token more.
fn token_ids(py: Python<'_>, tokens: &[i64], page_size: usize) -> PyResult<Py<PyList>> {
    if tokens.len() == page_size {
        return Ok(PyList::new(py, tokens)?.unbind());
    }
    let pairs: PyResult<Vec<_>> = tokens.windows(2).map(|pair| PyTuple::new(py, pair)).collect();
    Ok(PyList::new(py, pairs?)?.unbind())
}
