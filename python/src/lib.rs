//! Native module `sahasra._native`, private to the Python package `sahasra`.
//!
//! The module converts arguments, calls [`sahasra_client`], and raises errors as the classes of `sahasra.errors`. The GIL is released while
//! a call waits, and signals are checked ten times per second, so that Ctrl-C works. Array data is not copied: uploads borrow the memory of
//! an array and keep the array alive, and downloads are passed to numpy in the memory into which they were read. All objects belong to the
//! process that created them, see `process`.

mod array;
mod failure;
mod gateway;
mod process;
mod session;

use pyo3::prelude::*;

/// Native module of the Python package `sahasra`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<gateway::Gateway>()?;
    module.add_function(wrap_pyfunction!(gateway::check_authority, module)?)?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Tensor>()?;
    module.add_class::<session::Program>()?;
    module.add_class::<session::Download>()?;
    module.add_class::<array::Block>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
