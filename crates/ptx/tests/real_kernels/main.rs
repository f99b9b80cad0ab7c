//! Kernels written for these tests, compiled by NVRTC, against references of their own (`tests/kernels/*.cu`).

mod crypto;
#[path = "../corpus_kernels/device.rs"]
#[allow(dead_code, reason = "shared with the tests of the corpus, which use the rest")]
mod device;
mod graphs;
mod integers;
mod networks;
mod numeric;
mod sorting;
mod strings;

use device::Device;

/// The module of a kernel file.
fn load(file: &str) -> Device {
    Device::new(&device::text(&format!("../kernels/nvrtc129_c80/{file}.ptx")))
}

/// Blocks of `block` threads for `count` elements.
fn blocks(count: usize, block: u32) -> [u32; 3] {
    [(count as u32).div_ceil(block), 1, 1]
}
