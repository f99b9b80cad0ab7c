//! The exported functions of the CUDA driver API, by area. What each does is documented in NVIDIA's "CUDA Driver API"; comments here
//! say what differs.

use crate::driver;
use crate::status::Status;

/// Declares exported functions. Each body is a block that ends with `Result<(), Status>`. Before `cuInit` and in a forked child they refuse
/// every call, whatever its arguments are, except for those that are declared after `before cuInit:`.
macro_rules! exports {
    (before cuInit: $($functions:tt)*) => {
        sahasra_cuda_boundary::functions! { $crate::status::Status, sahasra_cuda_boundary::call; $($functions)* }
    };
    ($($functions:tt)*) => {
        sahasra_cuda_boundary::functions! { $crate::status::Status, $crate::api::call; $($functions)* }

        /// The functions for programs whose default stream is one of each thread.
        #[allow(dead_code, unused_imports, reason = "not all functions have such a form")]
        pub(crate) mod per_thread {
            use super::*;
            sahasra_cuda_boundary::wrappers! { $crate::status::Status, $crate::lane::with_stream_of_thread; $($functions)* }
        }
    };
}

/// Runs the body of an exported function, if the library is initialised.
fn call(function: impl FnOnce() -> Result<(), Status>) -> Status {
    sahasra_cuda_boundary::call(|| {
        driver::get()?;
        function()
    })
}

pub(crate) mod array;
pub(crate) mod array_copy;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod executable;
pub(crate) mod fill;
pub(crate) mod function;
pub(crate) mod graph;
pub(crate) mod init;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod node;
pub(crate) mod node_parameters;
pub(crate) mod object;
pub(crate) mod occupancy;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod primary;
pub(crate) mod stream;
pub(crate) mod surface;
pub(crate) mod texture;
pub(crate) mod virtual_memory;
