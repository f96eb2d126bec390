//! A core object behind a mutex: safe from many threads, and no panic of the core reaches Python.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::errors::{broken, refused};

/// The value. After a panic inside a call the mutex is poisoned, and every later call is refused.
pub(crate) struct Shared<T>(Mutex<T>);

type Outcome<R> = Result<R, String>;

impl<T: Send> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Runs a short call under the GIL; only while the mutex is taken does this thread let others run.
    pub(crate) fn call<R>(&self, py: Python<'_>, call: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        outcome(py, guarded(|| self.lock_attached(py), call))
    }

    /// Runs a long call without the GIL.
    pub(crate) fn call_detached<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> R + Send,
    ) -> PyResult<R> {
        outcome(py, py.detach(|| guarded(|| self.0.lock().map_err(|_| poisoned()), call)))
    }

    /// A call that the core may refuse; without the GIL if it is `long`.
    pub(crate) fn try_call<R: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        call: impl FnOnce(&mut T) -> stemcache::Result<R> + Send,
    ) -> PyResult<R> {
        let answer = if long { self.call_detached(py, call) } else { self.call(py, call) };
        answer?.map_err(|error| refused(py, error))
    }

    fn lock_attached(&self, py: Python<'_>) -> Outcome<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(_)) => Err(poisoned()),
            Err(TryLockError::WouldBlock) => self.0.lock_py_attached(py).map_err(|_| poisoned()),
        }
    }
}

/// Locks and calls; a panic unwinds through the guard, so that the mutex is poisoned, and ends here.
fn guarded<'a, T: 'a, R>(
    lock: impl FnOnce() -> Outcome<MutexGuard<'a, T>>,
    call: impl FnOnce(&mut T) -> R,
) -> Outcome<R> {
    catch_unwind(AssertUnwindSafe(|| lock().map(|mut guard| call(&mut guard))))
        .unwrap_or_else(|panic| Err(format!("a bug in stemcache, please report it: {}", message(&*panic))))
}

fn outcome<R>(py: Python<'_>, result: Outcome<R>) -> PyResult<R> {
    result.map_err(|message| broken(py, message))
}

fn poisoned() -> String {
    "an earlier call failed inside; nothing of this object can be trusted any more".into()
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}
