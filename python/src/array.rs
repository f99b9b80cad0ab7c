//! Memory of arrays, passed between numpy and the session stream without copies. Uses numpy's array interface, because the buffer protocol
//! is not part of the stable ABI of Python 3.10.

use bytes::Bytes;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use sahasra_client::{Filling, OutOfMemory, Region};

use crate::process::Own;

/// Data downloaded from a session. `numpy.asarray` uses its memory without a copy and keeps this object alive.
#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Block {
    /// Used by numpy through its address, or read by `bytes`. Not freed in a forked process.
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

    /// Returns a copy of the bytes. Must not be used once numpy uses the memory.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.data.get(py)?))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.bytes,))?;
        // From here on, only numpy accesses the memory; Rust does not read it again.
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }
}

/// Memory of an array that is kept alive until the stream does not need it any more.
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
        // SAFETY: The caller of `borrow` guarantees that the bytes at the address belong to the owner, which is kept alive, and that nobody
        // writes to them.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

/// Returns the bytes at the address without a copy.
///
/// # Safety
/// The bytes must belong to `owner`, stay in place while it lives, and not be written to.
pub(crate) unsafe fn borrow(owner: Py<PyAny>, address: usize, bytes: usize) -> Bytes {
    Bytes::from_owner(Borrowed {
        _owner: owner,
        address,
        bytes,
    })
}

/// Copies the bytes at the address to memory that is reused later.
///
/// # Safety
/// `address` must point to `bytes` readable bytes.
pub(crate) unsafe fn copy(address: usize, bytes: usize) -> Result<Bytes, OutOfMemory> {
    let mut copy = Filling::new(bytes)?;
    if bytes > 0 {
        // SAFETY: Guaranteed by the caller.
        copy.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) });
    }
    Ok(copy.finish().into())
}
