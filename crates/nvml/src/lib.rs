//! NVML as a library, `libnvidia-ml.so.1`, which shows the device of the CUDA driver library (`sahasra-cuda-driver`) to programs that list GPUs.
//!
//! The device is that of [`sahasra_cuda_environment`]; the library asks for its properties only. `api` has the exported functions by area. Each
//! question that the device has no answer to, such as its temperature, is answered as hardware without that sensor does. `build.rs` makes
//! those, and all other names without an implementation, from `symbols.txt`. Where the environment names no device, the NVML of this machine's
//! driver answers ([`sahasra_cuda_boundary::redirected`]).

mod api;
mod boundary;
mod driver;
mod state;
mod status;
mod symbols;
