//! The CUDA driver API as a library, `libcuda.so.1`, whose device is a Sahasra session or the CPU of this process.
//!
//! A call enters through `boundary`, which keeps panics out of C. `api` has the exported functions by area; they check their arguments,
//! answer what is known here (attributes, current contexts, pointers, functions), and submit the rest to the [`Queue`](sahasra_cuda_device::Queue) of the current context. Names that nobody implements are exported too: `build.rs` makes them
//! from `symbols.txt`.
//!
//! Objects have numbers as handles, never addresses: a handle that was destroyed is found out.

mod api;
mod attributes;
mod boundary;
mod context;
mod copy;
mod driver;
mod environment;
mod host;
mod image;
mod log;
mod missing;
mod module;
mod ranges;
mod status;
mod stream;
mod symbols;
mod table;
