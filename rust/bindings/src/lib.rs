//! The Python face of the core: it converts, locks, calls and converts back. No logic of the cache lives here.
//!
//! Two rules keep it free of deadlocks: nothing of Python runs while a tree's mutex is held (results are made after
//! it is released), and a thread that has to wait for the mutex gives up the GIL meanwhile.

// PyO3's and the interpreter's calling conventions decide these.
#![expect(clippy::needless_pass_by_value, reason = "extracted arguments arrive by value")]

mod alloc;
mod convert;
mod errors;
mod events;
mod index;
mod results;
mod shared;

/// The compiled core; see the package's `_core.pyi` for the whole contract.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::alloc::{Audit, KvAllocator, PagedKvAllocator, StateAllocator};
    #[pymodule_export]
    use crate::events::{AllBlocksCleared, BlockRemoved, BlockStored, StateRemoved, StateStored};
    #[pymodule_export]
    use crate::index::RadixIndex;
    #[pymodule_export]
    use crate::results::{Advance, Evicted, Insert, Lock, Match, Stats};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
