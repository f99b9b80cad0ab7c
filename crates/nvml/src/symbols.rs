//! The exported functions.

use std::sync::OnceLock;

use sahasra_cuda_boundary::redirected::Exports;

use crate::status::Status;

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// Where calls go: to the functions of this library, or to those of the NVML of this machine.
pub(crate) static EXPORTS: Exports = Exports {
    library: "libnvidia-ml.so.1",
    functions: &FUNCTIONS,
    targets: &TARGETS,
    absent: absent as *const (),
    names_a_device: sahasra_cuda_environment::names_a_device,
    choice: OnceLock::new(),
};

sahasra_cuda_boundary::redirections!(EXPORTS, Status, Status::FUNCTION_NOT_FOUND);
