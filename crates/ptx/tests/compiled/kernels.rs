//! Kernels that are written for these tests and compiled by NVRTC (`tests/kernels/*.cu`), checked against separate references.

mod asynchronous;
mod cooperation;
mod crypto;
mod forms;
mod graphs;
mod integers;
mod networks;
mod numeric;
mod sorting;
mod strings;
mod transfers;

use crate::device::{self, Device};

/// Loads the module of a kernel file on a new device.
fn load(file: &str) -> Device {
    Device::new(&device::text(&format!("kernels/{file}")))
}

/// Returns the grid for `count` elements with blocks of `block` threads.
fn blocks(count: usize, block: u32) -> [u32; 3] {
    [(count as u32).div_ceil(block), 1, 1]
}
