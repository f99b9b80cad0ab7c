//! Memory of arrays, passed between numpy and the stream without copies. The buffer protocol is not in the stable ABI of Python
//! 3.10, the array interface needs none of it.

use bytes::Bytes;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use sahasra_client::{Filling, OutOfMemory, Region};

use crate::process::Own;

/// Bytes that came from a session. `numpy.asarray` takes them as they are, and holds this.
#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Block {
    /// Kept alive for numpy and read by `bytes`; a forked process must not free it.
    data: Own<Region>,
    address: usize,
    bytes: usize,
    element_type: String,
    dimensions: Vec<i64>,
}

impl Block {
    pub(crate) fn new(array: sahasra_client::Array) -> Self {
        Self {
            address: array.data.as_ptr() as usize,
            bytes: array.data.len(),
            data: Own::new(array.data),
            element_type: array.element_type,
            dimensions: array.dimensions,
        }
    }
}

#[pymethods]
impl Block {
    #[getter]
    fn element_type(&self) -> &str {
        &self.element_type
    }

    #[getter]
    fn dimensions(&self) -> Vec<i64> {
        self.dimensions.clone()
    }

    /// A copy of the bytes, of a block that numpy has not taken.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.data.get(py)?))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.bytes,))?;
        // Only numpy writes to it from here on: Rust does not read it again.
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }
}

/// Memory of an array, which is held until the stream needs it no more.
struct Borrowed {
    _owner: Py<PyAny>,
    address: usize,
    bytes: usize,
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `borrow`'s caller says that so many bytes at the address belong to the owner, which is held, and that nobody
        // writes to them.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

/// The bytes at the address.
///
/// # Safety
/// They belong to `owner`, stay where they are while it lives, and are not written to.
pub(crate) unsafe fn borrow(owner: Py<PyAny>, address: usize, bytes: usize) -> Bytes {
    Bytes::from_owner(Borrowed {
        _owner: owner,
        address,
        bytes,
    })
}

/// A copy of the bytes at the address, in memory that is used again.
///
/// # Errors
/// When there is none.
///
/// # Safety
/// So many bytes are there.
pub(crate) unsafe fn copy(address: usize, bytes: usize) -> Result<Bytes, OutOfMemory> {
    let mut copy = Filling::new(bytes)?;
    if bytes > 0 {
        // SAFETY: promised by the caller.
        copy.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) });
    }
    Ok(copy.finish().into())
}
