//! The CUDA runtime API over the CUDA driver API, written from NVIDIA's documentation of both: `libcudart.so.12` and `libcudart.so.13`.
//!
//! A call checks its arguments, makes the primary context of the thread's device current if none is, and calls `libcuda.so.1`, which is opened
//! at the first use. What the runtime adds is kept here: the error and device of each thread, launch configurations, and the kernels and
//! variables that programs register, whose modules are loaded in a context when they are used there first.
//!
//! ```text
//! program ──► api ──► context (current device), registry (kernels, variables) ──► driver ──► libcuda.so.1
//! ```
//!
//! `api` has what both versions share. The libraries themselves are the packages `sahasra-cuda-runtime-12` and `sahasra-cuda-runtime-13`: they
//! have what differs between the versions, and name the symbols of each.

pub mod api;
pub mod boundary;
pub mod context;
pub mod driver;
mod error;
pub mod properties;
mod registry;
mod thread;

pub use error::Error;

/// Answers a call of a function that is not implemented.
pub fn missing(name: &'static str) -> Error {
    boundary::call(|| {
        sahasra_cuda_boundary::process::check::<Error>()?;
        sahasra_cuda_boundary::missing::refuse(name)
    })
}
