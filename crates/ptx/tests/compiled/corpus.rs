//! Kernels of the corpus against host computations written independently of the engine.

mod compilers;
mod mathematics;
mod numeric;
mod patterns;
mod runtime;
mod tensor;

use crate::device::{self, Device};

/// The module of a file of the corpus, on a device of its own.
fn load(file: &str) -> Device {
    Device::new(&device::text(&format!("corpus/{file}")))
}
