//! The one place where core errors become Python exceptions. The classes live in `stemcache.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use stemcache::Error;

/// A class of `stemcache.errors`, looked up once.
struct Class {
    name: &'static str,
    class: PyOnceLock<Py<PyType>>,
}

impl Class {
    const fn new(name: &'static str) -> Self {
        Self { name, class: PyOnceLock::new() }
    }

    fn error(&self, py: Python<'_>, message: String) -> PyErr {
        match self.class.import(py, "stemcache.errors", self.name) {
            Ok(class) => PyErr::from_type(class.clone(), message),
            Err(missing) => missing,
        }
    }
}

static INVALID_ARGUMENT: Class = Class::new("InvalidArgumentError");
static STALE_NODE: Class = Class::new("StaleNodeError");
static NOT_LOCKED: Class = Class::new("NotLockedError");
static OUT_OF_SLOTS: Class = Class::new("OutOfSlotsError");
static SLOT_OWNERSHIP: Class = Class::new("SlotOwnershipError");
static INVARIANT: Class = Class::new("InvariantError");

/// The exception for a refused call.
pub(crate) fn refused(py: Python<'_>, error: Error) -> PyErr {
    let class = match error {
        Error::Config { .. } | Error::Argument { .. } | Error::Namespace { .. } | Error::NotPending(_) => {
            &INVALID_ARGUMENT
        }
        Error::OutOfMemory { .. } => &OUT_OF_SLOTS,
        Error::StaleNode(_) | Error::StaleLock => &STALE_NODE,
        Error::NotLocked(_) => &NOT_LOCKED,
        Error::SlotRange { .. } | Error::SlotOwner { .. } => &SLOT_OWNERSHIP,
    };
    class.error(py, error.to_string())
}

/// The exception for an argument that the binding itself refuses.
pub(crate) fn invalid(py: Python<'_>, message: String) -> PyErr {
    INVALID_ARGUMENT.error(py, message)
}

/// The exception for a handle that cannot be one.
pub(crate) fn stale(py: Python<'_>, message: String) -> PyErr {
    STALE_NODE.error(py, message)
}

/// The exception for a broken invariant of our own.
pub(crate) fn broken(py: Python<'_>, message: String) -> PyErr {
    INVARIANT.error(py, message)
}
