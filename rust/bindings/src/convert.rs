//! Arguments from Python: integers in all the forms that engines hold them in, without a step of Python for each.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use stemcache::{EventMode, NodeId, Start};

use crate::errors::invalid;

/// One-dimensional int64 numbers: a borrowed array where that is possible.
pub(crate) enum Integers<'py> {
    Borrowed(PyReadonlyArray1<'py, i64>),
    Owned(Vec<i64>),
}

impl<'py> Integers<'py> {
    /// Reads `object` as integers.
    ///
    /// # Errors
    /// `TypeError` for what is not integers on the CPU, `InvalidArgumentError` for another shape.
    pub(crate) fn new(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<PyArray1<i64>>() {
            return Self::from_array(array);
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return Ok(Self::Owned(object.extract()?));
        }
        if let Ok(array) = object.cast::<PyArray1<i32>>() {
            let array = array.try_readonly()?;
            return Ok(Self::Owned(array.as_array().iter().map(|&number| number.into()).collect()));
        }
        Self::through_numpy(name, object)
    }

    pub(crate) fn as_slice(&self) -> &[i64] {
        match self {
            Self::Borrowed(array) => array.as_slice().unwrap_or_default(),
            Self::Owned(numbers) => numbers,
        }
    }

    /// Borrows an array, or copies one that is not contiguous. `readonly` would panic where another extension writes
    /// to the array meanwhile; this raises.
    fn from_array(array: &Bound<'py, PyArray1<i64>>) -> PyResult<Self> {
        let array = array.try_readonly()?;
        if array.as_slice().is_ok() {
            return Ok(Self::Borrowed(array));
        }
        Ok(Self::Owned(array.as_array().iter().copied().collect()))
    }

    /// Everything else that numpy can read as integers: `array('q')`, tensors, other integer arrays.
    fn through_numpy(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let array = match tensor_array(name, object)? {
            Some(array) => array,
            None => AS_ARRAY.import(py, "numpy", "asarray")?.call1((object,))?,
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

static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The array behind a CPU tensor, or None for what is no tensor.
fn tensor_array<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(to_numpy) = object.getattr_opt(intern!(object.py(), "numpy"))? else { return Ok(None) };
    let device = object.getattr("device")?;
    let kind: String = device.getattr("type")?.extract()?;
    if kind != "cpu" {
        return Err(PyTypeError::new_err(format!(
            "{name} are on {device}: the index reads them on the CPU, and does not wait for a device; keep a host copy"
        )));
    }
    to_numpy.call0().map(Some)
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
    pub(crate) fn start(&self, after: Option<u64>) -> Start<'_> {
        match (after.map(NodeId::from_u64), self) {
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
