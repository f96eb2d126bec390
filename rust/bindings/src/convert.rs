//! Arguments from Python: integers in all the forms that engines hold them in, without a step of Python for each.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use stemcache::{EventMode, NodeId, Start};

use crate::errors::{invalid, stale};

/// Calls on this many numbers give up the GIL; for fewer, that and the copy cost more than they gain.
const LONG: usize = 1 << 20;

/// One-dimensional int64 numbers: a borrowed array where that is possible.
///
/// The caller guarantees that nobody writes to a borrowed array during the call. A call that gives up the GIL works on a
/// copy (`into_owned`), so that no thread of Python can break that without knowing.
pub(crate) enum Integers<'py> {
    Borrowed(PyReadonlyArray1<'py, i64>),
    Owned(Vec<i64>),
}

impl<'py> Integers<'py> {
    /// Reads `object` as integers.
    ///
    /// # Errors
    /// `TypeError` for what is not integers on the CPU, `InvalidArgumentError` for another shape or numbers that do not
    /// fit int64.
    pub(crate) fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<PyArray1<i64>>() {
            return Self::from_array(array);
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return object.extract().map(Self::Owned).map_err(|error| too_large(name, object.py(), error));
        }
        Self::through_numpy(name, object)
    }

    pub(crate) fn as_slice(&self) -> &[i64] {
        match self {
            Self::Borrowed(array) => array.as_slice().unwrap_or_default(),
            Self::Owned(numbers) => numbers,
        }
    }

    /// Ready for a call, and whether that call should give up the GIL: it then works on a copy.
    pub(crate) fn settled(self) -> (Self, bool) {
        if self.as_slice().len() < LONG { (self, false) } else { (self.into_owned(), true) }
    }

    /// The same numbers where nobody else can write.
    pub(crate) fn into_owned(self) -> Self {
        match self {
            Self::Borrowed(_) => Self::Owned(self.as_slice().to_vec()),
            Self::Owned(_) => self,
        }
    }

    /// Borrows an array, or a contiguous copy of one that is not. `readonly` would panic where another extension writes
    /// to the array meanwhile; this raises.
    fn from_array(array: &Bound<'py, PyArray1<i64>>) -> PyResult<Self> {
        let borrowed = array.try_readonly()?;
        if borrowed.as_slice().is_ok() {
            return Ok(Self::Borrowed(borrowed));
        }
        // numpy copies what has odd strides or is not aligned; rust-numpy's views would misread it.
        let copy = numpy_function(array.py(), &CONTIGUOUS, "ascontiguousarray")?.call1((array,))?;
        Ok(Self::Borrowed(copy.cast::<PyArray1<i64>>()?.try_readonly()?))
    }

    /// Everything else that numpy can read as integers: `array('q')`, tensors, other integer arrays.
    fn through_numpy(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let array = match tensor_array(name, object)? {
            Some(array) => array,
            None => numpy_function(py, &AS_ARRAY, "asarray")?.call1((object,))?,
        };
        if let Ok(array) = array.cast::<PyArray1<i64>>() {
            return Self::from_array(array);
        }
        check_integers(name, &array)?;
        let array = array.call_method1("astype", ("int64",))?;
        let Ok(array) = array.cast::<PyArray1<i64>>() else {
            let shape = array.getattr("shape")?;
            return Err(invalid(py, format!("{name} has shape {shape}, but it must have one dimension")));
        };
        Self::from_array(array)
    }
}

static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static CONTIGUOUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn numpy_function<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    cell.import(py, "numpy", name)
}

/// A number past int64 is a wrong argument, whatever else is wrong stays as it is.
fn too_large(name: &str, py: Python<'_>, error: PyErr) -> PyErr {
    if error.is_instance_of::<PyOverflowError>(py) {
        return invalid(py, format!("{name} holds a number that does not fit int64"));
    }
    error
}

/// Refuses what would change when it becomes int64; an empty array has no value that could.
fn check_integers(name: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
    let dtype = array.getattr("dtype")?;
    let (kind, size): (String, usize) =
        (dtype.getattr("kind")?.extract()?, dtype.getattr("itemsize")?.extract()?);
    let fits = kind == "i" || (kind == "u" && size < 8);
    if fits || array.getattr("size")?.extract::<usize>()? == 0 {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("{name} must be integers that fit int64, not {dtype}")))
}

/// The array behind a CPU tensor, or None for what is no tensor.
fn tensor_array<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let to_numpy = object.getattr_opt(intern!(py, "numpy"))?;
    let device = object.getattr_opt(intern!(py, "device"))?;
    let (Some(to_numpy), Some(device)) = (to_numpy, device) else { return Ok(None) };
    let kind = device.getattr_opt(intern!(py, "type"))?.unwrap_or_else(|| device.clone());
    if kind.to_string() != "cpu" {
        return Err(PyTypeError::new_err(format!(
            "{name} are on {device}: the index reads them on the CPU, and does not wait for a device; keep a host copy"
        )));
    }
    to_numpy.call0().map(Some)
}

/// How many to free, or to match at most: what is past int64 is as good as all.
pub(crate) struct Amount(pub(crate) i64);

impl<'py> FromPyObject<'_, 'py> for Amount {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract() {
            Ok(amount) => Ok(Self(amount)),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Ok(Self(if object.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            Err(error) => Err(error),
        }
    }
}

/// The handle of a node.
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) NodeId);

impl<'py> FromPyObject<'_, 'py> for Handle {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract() {
            Ok(number) => Ok(Self(NodeId::from_u64(number))),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                let message =
                    format!("node {} is not in the tree: no handle is such a number", object.str()?);
                Err(stale(object.py(), message))
            }
            Err(error) => Err(error),
        }
    }
}

/// A size or length that must not be negative.
pub(crate) fn length(py: Python<'_>, name: &str, given: i64) -> PyResult<usize> {
    usize::try_from(given).map_err(|_| invalid(py, format!("{name} is {given}, but it must not be negative")))
}

/// A namespace, which may be left out where a node says it.
#[derive(Default)]
pub(crate) enum Namespace {
    #[default]
    Omitted,
    Given(Option<PyBackedStr>),
}

impl<'py> FromPyObject<'_, 'py> for Namespace {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self::Given)
    }
}

impl Namespace {
    /// Where a call with this namespace begins.
    pub(crate) fn start(&self, after: Option<Handle>) -> Start<'_> {
        match (after.map(|handle| handle.0), self) {
            (None, Self::Omitted) => Start::Root(None),
            (None, Self::Given(name)) => Start::Root(name.as_deref()),
            (Some(node), Self::Omitted) => Start::After(node),
            (Some(node), Self::Given(name)) => Start::AfterIn(node, name.as_deref()),
        }
    }
}

/// `events=`: False, True or "states".
pub(crate) struct Events(pub(crate) EventMode);

impl<'py> FromPyObject<'_, 'py> for Events {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(on) = object.extract::<bool>() {
            return Ok(Self(if on { EventMode::Blocks } else { EventMode::Off }));
        }
        if matches!(object.extract::<PyBackedStr>().as_deref(), Ok("states")) {
            return Ok(Self(EventMode::BlocksAndStates));
        }
        let given = object.repr()?;
        Err(invalid(object.py(), format!("events is {given}, but it must be False, True or \"states\"")))
    }
}
