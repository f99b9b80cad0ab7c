//! Kernels written for these tests, compiled by NVRTC, against references of their own (`tests/kernels/*.cu`).

mod cooperation;
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

/// The module of a kernel file as each compiler made it, on a device of its own.
fn load(file: &str) -> impl Iterator<Item = Device> {
    device::COMPILERS
        .into_iter()
        .map(move |compiler| Device::new(&device::text(&format!("../kernels/{compiler}/{file}.ptx"))))
}

/// Blocks of `block` threads for `count` elements.
fn blocks(count: usize, block: u32) -> [u32; 3] {
    [(count as u32).div_ceil(block), 1, 1]
}
