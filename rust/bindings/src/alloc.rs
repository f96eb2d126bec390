//! The allocators: who holds which slot.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use stemcache::Error;
use stemcache::alloc::{self, Decode, Extend, Owner};

use crate::convert::{Integers, length};
use crate::errors::{invalid, refused};
use crate::results::slots as to_array;
use crate::shared::Shared;

/// An allocation of this many slots runs without the GIL.
const LONG_ALLOCATION: usize = 1 << 17;

type Slots = Py<numpy::PyArray1<i64>>;

/// Where every slot of a pool is, recomputed from scratch.
#[pyclass(frozen, get_all, module = "stemcache")]
pub(crate) struct Audit {
    size: usize,
    available: usize,
    pending: usize,
    partial: usize,
    owners: HashMap<Option<String>, Slots>,
    problems: Vec<String>,
}

impl Audit {
    fn new(py: Python<'_>, audit: alloc::Audit) -> Self {
        let owners = audit.owners.into_iter().map(|(label, slots)| (label, to_array(py, slots))).collect();
        Self {
            size: audit.size,
            available: audit.available,
            pending: audit.pending,
            partial: audit.partial,
            owners,
            problems: audit.problems,
        }
    }
}

#[pymethods]
impl Audit {
    fn __repr__(&self) -> String {
        format!(
            "Audit(size={}, available={}, pending={}, partial={}, owners=<{} owners>, problems={:?})",
            self.size,
            self.available,
            self.pending,
            self.partial,
            self.owners.len(),
            self.problems
        )
    }
}

/// What the three allocators have in common, and the methods that one has alone.
macro_rules! allocator {
    ($(#[$doc:meta])* $name:ident, { $($own:item)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, module = "stemcache")]
        pub(crate) struct $name(Shared<alloc::$name>);

        #[pymethods]
        impl $name {
            $($own)*

            /// Hands out n slots, or None when fewer are available.
            #[pyo3(signature = (n, owner=None))]
            fn alloc(&self, py: Python<'_>, n: i64, owner: Option<&str>) -> PyResult<Option<Slots>> {
                let n = length(py, "n", n)?;
                let slots = self.0.try_call(py, n >= LONG_ALLOCATION, |pool| pool.alloc(n, owner))?;
                Ok(slots.map(|slots| to_array(py, slots)))
            }

            /// Takes slots back, all or none.
            #[pyo3(signature = (slots, owner=None))]
            fn free(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, owner: Option<&str>) -> PyResult<()> {
                let (slots, long) = Integers::new("slots", slots)?.settled();
                let slots = slots.as_slice();
                self.0.try_call(py, long, |pool| pool.free(slots, owner))
            }

            /// Gives slots, whoever has them, to another owner, all or none.
            fn transfer(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, owner: Option<&str>) -> PyResult<()> {
                let (slots, long) = Integers::new("slots", slots)?.settled();
                let slots = slots.as_slice();
                self.0.try_call(py, long, |pool| pool.transfer(slots, owner))
            }

            /// The label that a slot was handed out under, if any; refuses one that is not out.
            fn owner_of(&self, py: Python<'_>, slot: i64) -> PyResult<Option<String>> {
                let owner = self.0.try_call(py, false, |pool| pool.owner_of(slot).map(label))?;
                owner.map_err(|()| refused(py, not_out(slot)))
            }

            /// Where every slot is, recomputed from scratch.
            fn audit(&self, py: Python<'_>) -> PyResult<Audit> {
                Ok(Audit::new(py, self.0.call_detached(py, |pool| pool.audit())?))
            }

            #[getter]
            fn available(&self, py: Python<'_>) -> PyResult<usize> {
                self.0.call(py, |pool| pool.available())
            }

            #[getter]
            fn size(&self, py: Python<'_>) -> PyResult<usize> {
                self.0.call(py, |pool| pool.size())
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                let (size, available) = self.0.call(py, |pool| (pool.size(), pool.available()))?;
                Ok(format!("{}(size={size}, available={available})", stringify!($name)))
            }
        }
    };
}

allocator! {
    /// KV slots 1 to `size`, one by one.
    KvAllocator,
    {
        #[new]
        #[pyo3(signature = (size, need_sort=false))]
        fn new(py: Python<'_>, size: i64, need_sort: bool) -> PyResult<Self> {
            let pool = alloc::KvAllocator::new(length(py, "size", size)?, need_sort);
            Ok(Self(Shared::new(pool.map_err(|error| refused(py, error))?)))
        }

        /// Collects what is freed until the group ends.
        fn begin_free_group(&self, py: Python<'_>) -> PyResult<()> {
            self.0.call(py, alloc::KvAllocator::begin_free_group)
        }

        /// Ends a free group; says how many slots became available by that.
        fn end_free_group(&self, py: Python<'_>) -> PyResult<usize> {
            self.0.call(py, alloc::KvAllocator::end_free_group)
        }
    }
}

allocator! {
    /// KV slots in pages; page 0 is the dummy, so slots go from `page_size` to `size + page_size - 1`.
    PagedKvAllocator,
    {
        #[new]
        #[pyo3(signature = (size, page_size, need_sort=false))]
        fn new(py: Python<'_>, size: i64, page_size: i64, need_sort: bool) -> PyResult<Self> {
            let (size, page_size) = (length(py, "size", size)?, length(py, "page_size", page_size)?);
            let pool = alloc::PagedKvAllocator::new(size, page_size, need_sort);
            Ok(Self(Shared::new(pool.map_err(|error| refused(py, error))?)))
        }

        /// Hands out a slot for each token past the prefixes of a batch of requests, all or none.
        #[pyo3(signature = (prefix_lengths, total_lengths, last_slots, owners=None))]
        fn alloc_extend(
            &self,
            py: Python<'_>,
            prefix_lengths: &Bound<'_, PyAny>,
            total_lengths: &Bound<'_, PyAny>,
            last_slots: &Bound<'_, PyAny>,
            owners: Option<Vec<Option<PyBackedStr>>>,
        ) -> PyResult<Option<Slots>> {
            let prefixes = Lengths::new("prefix_lengths", prefix_lengths)?;
            let totals = Lengths::new("total_lengths", total_lengths)?;
            let last_slots = Integers::new("last_slots", last_slots)?;
            let last_slots = last_slots.as_slice();
            same_length(py, &[prefixes.0.len(), totals.0.len(), last_slots.len()])?;
            let requests: Vec<Extend> = prefixes.0.iter().zip(&totals.0).zip(last_slots).map(
                |((&prefix_length, &total_length), &last_slot)| Extend { prefix_length, total_length, last_slot },
            ).collect();
            let owners = labels(owners.as_deref(), requests.len());
            let slots = self.0.try_call(py, false, |pool| pool.alloc_extend(&requests, &owners))?;
            Ok(slots.map(|slots| to_array(py, slots)))
        }

        /// Hands out a slot for the next token of each request, all or none.
        #[pyo3(signature = (total_lengths, last_slots, owners=None))]
        fn alloc_decode(
            &self,
            py: Python<'_>,
            total_lengths: &Bound<'_, PyAny>,
            last_slots: &Bound<'_, PyAny>,
            owners: Option<Vec<Option<PyBackedStr>>>,
        ) -> PyResult<Option<Slots>> {
            let totals = Lengths::new("total_lengths", total_lengths)?;
            let last_slots = Integers::new("last_slots", last_slots)?;
            let last_slots = last_slots.as_slice();
            same_length(py, &[totals.0.len(), last_slots.len()])?;
            let requests: Vec<Decode> = totals.0.iter().zip(last_slots).map(
                |(&total_length, &last_slot)| Decode { total_length, last_slot },
            ).collect();
            let owners = labels(owners.as_deref(), requests.len());
            let slots = self.0.try_call(py, false, |pool| pool.alloc_decode(&requests, &owners))?;
            Ok(slots.map(|slots| to_array(py, slots)))
        }

        /// Holds back what becomes free until the group ends.
        fn begin_free_group(&self, py: Python<'_>) -> PyResult<()> {
            self.0.call(py, alloc::PagedKvAllocator::begin_free_group)
        }

        /// Ends a free group; says how many slots became available by that.
        fn end_free_group(&self, py: Python<'_>) -> PyResult<usize> {
            self.0.call(py, alloc::PagedKvAllocator::end_free_group)
        }

        #[getter]
        fn page_size(&self, py: Python<'_>) -> PyResult<usize> {
            self.0.call(py, |pool| pool.page_size())
        }
    }
}

allocator! {
    /// State slots 1 to `size`.
    StateAllocator,
    {
        #[new]
        fn new(py: Python<'_>, size: i64) -> PyResult<Self> {
            let pool = alloc::StateAllocator::new(length(py, "size", size)?);
            Ok(Self(Shared::new(pool.map_err(|error| refused(py, error))?)))
        }

        /// Reserves n slots for the allocations to come; False when fewer are available.
        fn begin_alloc_group(&self, py: Python<'_>, n: i64) -> PyResult<bool> {
            let n = length(py, "n", n)?;
            self.0.call(py, |pool| pool.begin_alloc_group(n))
        }

        /// Ends an alloc group; says how many reserved slots were left and are available again.
        fn end_alloc_group(&self, py: Python<'_>) -> PyResult<usize> {
            self.0.call(py, alloc::StateAllocator::end_alloc_group)
        }
    }
}

fn label(owner: Owner<'_>) -> Result<Option<String>, ()> {
    match owner {
        Owner::Nobody => Err(()),
        Owner::Unnamed => Ok(None),
        Owner::Named(label) => Ok(Some(label.to_owned())),
    }
}

fn not_out(slot: i64) -> Error {
    Error::SlotOwner { kind: "pool", slot, problem: "is not handed out".into() }
}

/// Numbers that must not be negative.
struct Lengths(Vec<usize>);

impl Lengths {
    fn new(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let numbers = Integers::new(name, object)?;
        let lengths = numbers.as_slice().iter().map(|&given| length(object.py(), name, given));
        lengths.collect::<PyResult<_>>().map(Self)
    }
}

fn same_length(py: Python<'_>, lengths: &[usize]) -> PyResult<()> {
    if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    Err(invalid(
        py,
        format!("the arrays of a batch have lengths {lengths:?}, but there is one entry a request"),
    ))
}

/// One label a request: the ones given, or none at all.
fn labels(owners: Option<&[Option<PyBackedStr>]>, requests: usize) -> Vec<Option<&str>> {
    match owners {
        Some(owners) => owners.iter().map(Option::as_deref).collect(),
        None => vec![None; requests],
    }
}
