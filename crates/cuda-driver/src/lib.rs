//! The CUDA driver API as a library, `libcuda.so.1`, whose device is a Sahasra session or the CPU of this process.
//!
//! A call enters through `boundary`, which keeps panics out of C. `api` has the exported functions by area; they check their arguments,
//! answer what is known here (attributes, current contexts, pointers, functions), and submit the rest to the
//! [`Queue`](sahasra_cuda_device::Queue) of the current context. Names without an implementation are exported too: `build.rs` makes them from
//! `symbols.txt`. Where the environment names no device, exports lead to the driver of this machine instead
//! ([`sahasra_cuda_boundary::redirected`]).
//!
//! `driver` is the state of the process: what there is by handle and by address, and how it comes and goes. `current` knows each thread's
//! context, and a `lane` is where a call submits its work. Everything below (`context`, `stream`, `module`, `array`, `texture`, `ranges`,
//! `host`) knows nothing of the process.
//!
//! Objects have numbers as handles, never addresses: a handle that was destroyed is found out. Textures and surfaces, which kernels read by their
//! handles, have addresses of the device.

mod api;
mod array;
mod attributes;
mod boundary;
mod callbacks;
mod capture;
mod context;
mod copy;
mod current;
mod driver;
mod executable;
mod fatbin;
mod graph;
mod host;
mod image;
mod instantiate;
mod jit;
mod lane;
mod launch;
mod module;
mod objects;
mod occupancy;
mod parameters;
mod preload;
mod ranges;
mod replay;
mod status;
mod stream;
mod symbols;
mod table;
mod texture;
mod update;
mod virtual_memory;
