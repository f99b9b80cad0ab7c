//! Kernels written for these tests, compiled by NVRTC, against references of their own (`tests/kernels/*.cu`).

mod cooperation;
mod crypto;
mod forms;
mod graphs;
mod integers;
mod networks;
mod numeric;
mod sorting;
mod strings;

use crate::device::{self, Device};

/// The module of a kernel file, on a device of its own.
fn load(file: &str) -> Device {
    Device::new(&device::text(&format!("kernels/{file}")))
}

/// Blocks of `block` threads for `count` elements.
fn blocks(count: usize, block: u32) -> [u32; 3] {
    [(count as u32).div_ceil(block), 1, 1]
}
