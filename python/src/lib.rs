//! The transport below the Python package `sahasra`: `sahasra._native`, private to it.
//!
//! Thin: arguments in, [`sahasra_client`] called, errors raised as the classes of `sahasra.errors`. The interpreter is let go while
//! anything is waited for, and asked for signals ten times a second, so that Ctrl-C works. Bytes of arrays are not copied: uploads
//! borrow an array's memory and hold the array, downloads are handed to numpy as they were read from the socket. What was made here
//! belongs to this process alone: see `process`.

mod array;
mod failure;
mod gateway;
mod process;
mod session;

use pyo3::prelude::*;

/// The module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<gateway::Gateway>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Tensor>()?;
    module.add_class::<session::Program>()?;
    module.add_class::<session::Download>()?;
    module.add_class::<array::Block>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
