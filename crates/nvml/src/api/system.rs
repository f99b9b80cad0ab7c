//! Initialisation, versions, processes, error texts.

use std::ffi::{c_char, c_int, c_uint};

use sahasra_cuda_environment::CUDA_VERSION;

use crate::boundary::{Out, exports, write_text};
use crate::state;
use crate::status::Status;

/// Version of the driver that brought [`CUDA_VERSION`]; programs compare its first number.
const DRIVER_VERSION: &str = "570.0";
/// Version of NVML: that of CUDA before that of the driver.
const NVML_VERSION: &str = "12.570.0";

/// Description of a result code.
#[allow(non_snake_case, reason = "the names of the API")]
pub(crate) extern "C" fn nvmlErrorString(status: Status) -> *const c_char {
    status.text().as_ptr()
}

exports! {
    fn nvmlInit() {
        state::initialise(0)
    }

    fn nvmlInit_v2() {
        state::initialise(0)
    }

    fn nvmlInitWithFlags(flags: c_uint) {
        state::initialise(flags)
    }

    fn nvmlShutdown() {
        state::shut_down()
    }

    fn nvmlSystemGetDriverVersion(text: Out<c_char>, length: c_uint) {
        state::check()?;
        write_text(DRIVER_VERSION, text, length)
    }

    fn nvmlSystemGetNVMLVersion(text: Out<c_char>, length: c_uint) {
        write_text(NVML_VERSION, text, length)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        version.set(CUDA_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.set(CUDA_VERSION)
    }

    fn nvmlSystemGetProcessName(process: c_uint, name: Out<c_char>, length: c_uint) {
        state::check()?;
        let path = std::fs::read_link(format!("/proc/{process}/exe")).map_err(|_| Status::NOT_FOUND)?;
        write_text(&path.to_string_lossy(), name, length)
    }

    /// There are no S-class units.
    fn nvmlUnitGetCount(count: Out<c_uint>) {
        state::check()?;
        count.set(0)
    }

    fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) {
        count.set(0)
    }

    fn nvmlGetBlacklistDeviceCount(count: Out<c_uint>) {
        count.set(0)
    }
}
