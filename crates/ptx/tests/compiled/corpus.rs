//! Kernels of the corpus, checked against host computations that are written independently of the engine.

mod compilers;
mod mathematics;
mod numeric;
mod patterns;
mod runtime;
mod tensor;

use crate::device::{self, Device};

/// Loads the module of a corpus file on a new device.
fn load(file: &str) -> Device {
    Device::new(&device::text(&format!("corpus/{file}")))
}
