//! Conversion of the driver's result codes to [`DeviceError`]s.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};
use sahasra_wire::burst::FailureCode;

use crate::device::DeviceError;

/// Whether `libcuda` can be loaded. All other functions of the driver panic if it cannot.
pub(crate) fn is_present() -> bool {
    // SAFETY: opens and closes a library whose initialisers do nothing until `cuInit`.
    unsafe { sys::is_culib_present() }
}

/// The driver's description and name of a result code.
pub(crate) fn description(result: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a static string, or leaves null.
        unsafe {
            if get(result, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null() {
                return CStr::from_ptr(text).to_string_lossy().into_owned();
            }
        }
        format!("error {}", result as i32)
    };
    format!("{} ({})", text(sys::cuGetErrorString), text(sys::cuGetErrorName))
}

/// Checks the result of a call that is independent of the tenant's code, or that reports a fault of a kernel launched before.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    use CUresult as R;
    match result {
        R::CUDA_SUCCESS => Ok(()),
        R::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory(format!("{call}: {}", description(result)))),
        _ => Err(match poisoned(result) {
            Some(code) => DeviceError::Poisoned {
                code,
                message: description(result),
            },
            None => DeviceError::Driver {
                call,
                message: description(result),
            },
        }),
    }
}

/// Failure code of an error that makes the context unusable until its process ends (CUDA Driver API, `CUresult`: "the context cannot be
/// used, so it must be destroyed"). `None` for all other results.
pub(crate) fn poisoned(result: CUresult) -> Option<FailureCode> {
    use CUresult as R;
    Some(match result {
        R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | R::CUDA_ERROR_INVALID_PC => FailureCode::IllegalAddress,
        // "Error in call stack, likely due to stack corruption or exceeding stack size limit."
        R::CUDA_ERROR_HARDWARE_STACK_ERROR => FailureCode::StackOverflow,
        // `trap` is reported as one of these, depending on the architecture.
        R::CUDA_ERROR_ASSERT | R::CUDA_ERROR_LAUNCH_FAILED | R::CUDA_ERROR_ILLEGAL_INSTRUCTION => FailureCode::Trap,
        R::CUDA_ERROR_LAUNCH_TIMEOUT => FailureCode::ChunkTimeout,
        R::CUDA_ERROR_ECC_UNCORRECTABLE
        | R::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | R::CUDA_ERROR_EXTERNAL_DEVICE
        | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | R::CUDA_ERROR_UNKNOWN => FailureCode::ExecutorLost,
        _ => return None,
    })
}

/// Checks the result of loading code; `log` is the compiler's error log.
pub(crate) fn check_load(result: CUresult, log: &str) -> Result<(), DeviceError> {
    use CUresult as R;
    let message = || match log.trim() {
        "" => description(result),
        log => format!("{}: {log}", description(result)),
    };
    match result {
        R::CUDA_SUCCESS => Ok(()),
        R::CUDA_ERROR_INVALID_PTX | R::CUDA_ERROR_INVALID_IMAGE | R::CUDA_ERROR_INVALID_SOURCE | R::CUDA_ERROR_INVALID_VALUE => {
            Err(DeviceError::Load(message()))
        }
        R::CUDA_ERROR_NO_BINARY_FOR_GPU | R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION | R::CUDA_ERROR_NOT_SUPPORTED => {
            Err(DeviceError::Unsupported(message()))
        }
        _ => check("load", result),
    }
}

/// Checks the result of preparing or starting a launch.
pub(crate) fn check_launch(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    use CUresult as R;
    match result {
        R::CUDA_ERROR_INVALID_VALUE
        | R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | R::CUDA_ERROR_NOT_FOUND
        | R::CUDA_ERROR_INVALID_HANDLE
        | R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => Err(DeviceError::Launch(format!("{call}: {}", description(result)))),
        _ => check(call, result),
    }
}
