//! Results of the driver as failures of operations.

use cudarc::driver::sys::CUresult;
use sahasra_cuda_device::{Failure, FailureKind, LoadFailure};

use crate::device::cuda::driver::description;

/// Checks the result of a call.
pub(super) fn check(call: &str, result: CUresult) -> Result<(), Failure> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        _ => Err(Failure::new(kind(result), format!("{call}: {}", description(result)))),
    }
}

/// Kind of failure that a result is. What neither the operation nor its memory explains leaves the context in an unknown state.
pub(super) fn kind(result: CUresult) -> FailureKind {
    use CUresult as R;
    match result {
        R::CUDA_ERROR_OUT_OF_MEMORY => FailureKind::OutOfMemory,
        R::CUDA_ERROR_ILLEGAL_ADDRESS | R::CUDA_ERROR_INVALID_ADDRESS_SPACE => FailureKind::IllegalAddress,
        R::CUDA_ERROR_MISALIGNED_ADDRESS => FailureKind::MisalignedAddress,
        R::CUDA_ERROR_INVALID_PC => FailureKind::InvalidCall,
        R::CUDA_ERROR_HARDWARE_STACK_ERROR => FailureKind::StackOverflow,
        R::CUDA_ERROR_ASSERT => FailureKind::Assertion,
        R::CUDA_ERROR_LAUNCH_FAILED | R::CUDA_ERROR_ILLEGAL_INSTRUCTION => FailureKind::Trap,
        R::CUDA_ERROR_LAUNCH_TIMEOUT => FailureKind::Deadlock,
        _ => FailureKind::Lost,
    }
}

/// Checks the result of preparing or starting a launch.
pub(super) fn check_launch(call: &str, result: CUresult) -> Result<(), Failure> {
    use CUresult as R;
    match result {
        R::CUDA_ERROR_INVALID_VALUE
        | R::CUDA_ERROR_INVALID_HANDLE
        | R::CUDA_ERROR_INVALID_IMAGE
        | R::CUDA_ERROR_NOT_FOUND
        | R::CUDA_ERROR_NOT_SUPPORTED
        | R::CUDA_ERROR_INVALID_CLUSTER_SIZE
        | R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => Err(Failure::new(FailureKind::Launch, format!("{call}: {}", description(result)))),
        _ => check(call, result),
    }
}

/// Checks the result of loading code; `log` is the compiler's error log.
pub(super) fn check_load(call: &str, result: CUresult, log: &str) -> Result<(), LoadFailure> {
    use CUresult as R;
    let message = || match log.trim() {
        "" => description(result),
        log => format!("{}: {log}", description(result)),
    };
    match result {
        R::CUDA_SUCCESS => Ok(()),
        R::CUDA_ERROR_INVALID_PTX | R::CUDA_ERROR_INVALID_IMAGE | R::CUDA_ERROR_INVALID_SOURCE | R::CUDA_ERROR_INVALID_VALUE => {
            Err(LoadFailure::Invalid(message()))
        }
        R::CUDA_ERROR_NO_BINARY_FOR_GPU => Err(LoadFailure::NoBinary(message())),
        R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | R::CUDA_ERROR_NOT_SUPPORTED
        | R::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | R::CUDA_ERROR_JIT_COMPILATION_DISABLED
        | R::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
        | R::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
        | R::CUDA_ERROR_FILE_NOT_FOUND => Err(LoadFailure::Unsupported(message())),
        _ => Ok(check(call, result)?),
    }
}
