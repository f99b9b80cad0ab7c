//! Result codes of the CUDA driver API (`CUresult`), with their names and descriptions.

use std::ffi::CStr;

use sahasra_cuda_device::{Failure, FailureKind, LoadFailure};

/// A result code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) u32);

macro_rules! statuses {
    ($($name:ident = $code:literal $full:literal $text:literal,)*) => {
        #[expect(dead_code, reason = "every code that a caller may ask the name of")]
        impl Status {
            $(pub(crate) const $name: Self = Self($code);)*
        }

        /// Code, name and description.
        const TEXTS: &[(u32, &CStr, &CStr)] = &[$(($code, $full, $text),)*];
    };
}

statuses! {
    SUCCESS = 0 c"CUDA_SUCCESS" c"no error",
    INVALID_VALUE = 1 c"CUDA_ERROR_INVALID_VALUE" c"invalid argument",
    OUT_OF_MEMORY = 2 c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory",
    NOT_INITIALIZED = 3 c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error",
    DEINITIALIZED = 4 c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down",
    PROFILER_DISABLED = 5 c"CUDA_ERROR_PROFILER_DISABLED" c"profiler disabled",
    PROFILER_NOT_INITIALIZED = 6 c"CUDA_ERROR_PROFILER_NOT_INITIALIZED" c"profiler not initialized",
    PROFILER_ALREADY_STARTED = 7 c"CUDA_ERROR_PROFILER_ALREADY_STARTED" c"profiler already started",
    PROFILER_ALREADY_STOPPED = 8 c"CUDA_ERROR_PROFILER_ALREADY_STOPPED" c"profiler already stopped",
    STUB_LIBRARY = 34 c"CUDA_ERROR_STUB_LIBRARY" c"the library is a stub",
    CALL_REQUIRES_NEWER_DRIVER = 36 c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" c"the call requires a newer driver",
    DEVICE_UNAVAILABLE = 46 c"CUDA_ERROR_DEVICE_UNAVAILABLE" c"the device is busy or unavailable",
    MULTICAST_RESOURCE_FULL = 47 c"CUDA_ERROR_MULTICAST_RESOURCE_FULL" c"multicast resources are used up",
    NO_DEVICE = 100 c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected",
    INVALID_DEVICE = 101 c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal",
    DEVICE_NOT_LICENSED = 102 c"CUDA_ERROR_DEVICE_NOT_LICENSED" c"the device has no license",
    INVALID_IMAGE = 200 c"CUDA_ERROR_INVALID_IMAGE" c"device kernel image is invalid",
    INVALID_CONTEXT = 201 c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context",
    CONTEXT_ALREADY_CURRENT = 202 c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT" c"the context is current already",
    MAP_FAILED = 205 c"CUDA_ERROR_MAP_FAILED" c"mapping failed",
    UNMAP_FAILED = 206 c"CUDA_ERROR_UNMAP_FAILED" c"unmapping failed",
    ARRAY_IS_MAPPED = 207 c"CUDA_ERROR_ARRAY_IS_MAPPED" c"the array is mapped",
    ALREADY_MAPPED = 208 c"CUDA_ERROR_ALREADY_MAPPED" c"the resource is mapped already",
    NO_BINARY_FOR_GPU = 209 c"CUDA_ERROR_NO_BINARY_FOR_GPU" c"no kernel image is available for execution on the device",
    ALREADY_ACQUIRED = 210 c"CUDA_ERROR_ALREADY_ACQUIRED" c"the resource is acquired already",
    NOT_MAPPED = 211 c"CUDA_ERROR_NOT_MAPPED" c"the resource is not mapped",
    NOT_MAPPED_AS_ARRAY = 212 c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY" c"the resource is not mapped as an array",
    NOT_MAPPED_AS_POINTER = 213 c"CUDA_ERROR_NOT_MAPPED_AS_POINTER" c"the resource is not mapped as a pointer",
    ECC_UNCORRECTABLE = 214 c"CUDA_ERROR_ECC_UNCORRECTABLE" c"uncorrectable ECC error",
    UNSUPPORTED_LIMIT = 215 c"CUDA_ERROR_UNSUPPORTED_LIMIT" c"the limit is not supported",
    CONTEXT_ALREADY_IN_USE = 216 c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE" c"the context is in use by another thread",
    PEER_ACCESS_UNSUPPORTED = 217 c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" c"peer access is not supported between these devices",
    INVALID_PTX = 218 c"CUDA_ERROR_INVALID_PTX" c"a PTX JIT compilation failed",
    INVALID_GRAPHICS_CONTEXT = 219 c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT" c"invalid graphics context",
    NVLINK_UNCORRECTABLE = 220 c"CUDA_ERROR_NVLINK_UNCORRECTABLE" c"uncorrectable NVLink error",
    JIT_COMPILER_NOT_FOUND = 221 c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND" c"the PTX compiler was not found",
    UNSUPPORTED_PTX_VERSION = 222 c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION" c"the PTX version is not supported",
    JIT_COMPILATION_DISABLED = 223 c"CUDA_ERROR_JIT_COMPILATION_DISABLED" c"compilation of PTX is disabled",
    UNSUPPORTED_EXEC_AFFINITY = 224 c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY" c"the execution affinity is not supported",
    UNSUPPORTED_DEVSIDE_SYNC = 225 c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC" c"cudaDeviceSynchronize in kernels is not supported",
    CONTAINED = 226 c"CUDA_ERROR_CONTAINED" c"contained error",
    INVALID_SOURCE = 300 c"CUDA_ERROR_INVALID_SOURCE" c"device kernel source is invalid",
    FILE_NOT_FOUND = 301 c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found",
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" c"shared object symbol not found",
    SHARED_OBJECT_INIT_FAILED = 303 c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" c"shared object initialization failed",
    OPERATING_SYSTEM = 304 c"CUDA_ERROR_OPERATING_SYSTEM" c"a call of the operating system failed",
    INVALID_HANDLE = 400 c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle",
    ILLEGAL_STATE = 401 c"CUDA_ERROR_ILLEGAL_STATE" c"a resource is not in the state that the call requires",
    LOSSY_QUERY = 402 c"CUDA_ERROR_LOSSY_QUERY" c"the answer would leave something out",
    NOT_FOUND = 500 c"CUDA_ERROR_NOT_FOUND" c"named symbol not found",
    NOT_READY = 600 c"CUDA_ERROR_NOT_READY" c"device not ready",
    ILLEGAL_ADDRESS = 700 c"CUDA_ERROR_ILLEGAL_ADDRESS" c"an illegal memory access was encountered",
    LAUNCH_OUT_OF_RESOURCES = 701 c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" c"too many resources requested for launch",
    LAUNCH_TIMEOUT = 702 c"CUDA_ERROR_LAUNCH_TIMEOUT" c"the launch timed out and was terminated",
    LAUNCH_INCOMPATIBLE_TEXTURING = 703 c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING" c"launch uses incompatible texturing mode",
    PEER_ACCESS_ALREADY_ENABLED = 704 c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" c"peer access is already enabled",
    PEER_ACCESS_NOT_ENABLED = 705 c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" c"peer access has not been enabled",
    PRIMARY_CONTEXT_ACTIVE = 708 c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" c"the primary context is active",
    CONTEXT_IS_DESTROYED = 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed",
    ASSERT = 710 c"CUDA_ERROR_ASSERT" c"device-side assert triggered",
    TOO_MANY_PEERS = 711 c"CUDA_ERROR_TOO_MANY_PEERS" c"too many peers",
    HOST_MEMORY_ALREADY_REGISTERED = 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" c"the host memory is registered already",
    HOST_MEMORY_NOT_REGISTERED = 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" c"the host memory is not registered",
    HARDWARE_STACK_ERROR = 714 c"CUDA_ERROR_HARDWARE_STACK_ERROR" c"hardware stack error",
    ILLEGAL_INSTRUCTION = 715 c"CUDA_ERROR_ILLEGAL_INSTRUCTION" c"an illegal instruction was encountered",
    MISALIGNED_ADDRESS = 716 c"CUDA_ERROR_MISALIGNED_ADDRESS" c"misaligned address",
    INVALID_ADDRESS_SPACE = 717 c"CUDA_ERROR_INVALID_ADDRESS_SPACE" c"operation not supported on this address space",
    INVALID_PC = 718 c"CUDA_ERROR_INVALID_PC" c"invalid program counter",
    LAUNCH_FAILED = 719 c"CUDA_ERROR_LAUNCH_FAILED" c"unspecified launch failure",
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" c"too many blocks in a cooperative launch",
    NOT_PERMITTED = 800 c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted",
    NOT_SUPPORTED = 801 c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported",
    SYSTEM_NOT_READY = 802 c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not yet initialized",
    SYSTEM_DRIVER_MISMATCH = 803 c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" c"the versions of the driver do not match",
    STREAM_CAPTURE_UNSUPPORTED = 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" c"operation not permitted when the stream is capturing",
    STREAM_CAPTURE_INVALIDATED = 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" c"the capture is invalid after an earlier error",
    TIMEOUT = 909 c"CUDA_ERROR_TIMEOUT" c"wait operation timed out",
    EXTERNAL_DEVICE = 911 c"CUDA_ERROR_EXTERNAL_DEVICE" c"error of an external device",
    INVALID_CLUSTER_SIZE = 912 c"CUDA_ERROR_INVALID_CLUSTER_SIZE" c"invalid cluster size",
    UNKNOWN = 999 c"CUDA_ERROR_UNKNOWN" c"unknown error",
}

impl Status {
    /// Name of the code, as in the header.
    pub(crate) fn name(self) -> Option<&'static CStr> {
        TEXTS.iter().find(|(code, ..)| *code == self.0).map(|(_, name, _)| *name)
    }

    /// Description of the code.
    pub(crate) fn text(self) -> Option<&'static CStr> {
        TEXTS.iter().find(|(code, ..)| *code == self.0).map(|(.., text)| *text)
    }
}

impl From<&Failure> for Status {
    fn from(failure: &Failure) -> Self {
        match failure.kind {
            FailureKind::OutOfMemory => Self::OUT_OF_MEMORY,
            FailureKind::IllegalAddress => Self::ILLEGAL_ADDRESS,
            FailureKind::MisalignedAddress => Self::MISALIGNED_ADDRESS,
            FailureKind::Trap => Self::LAUNCH_FAILED,
            FailureKind::Assertion => Self::ASSERT,
            FailureKind::StackOverflow => Self::HARDWARE_STACK_ERROR,
            FailureKind::InvalidCall => Self::INVALID_PC,
            FailureKind::Deadlock => Self::LAUNCH_TIMEOUT,
            FailureKind::Launch => Self::LAUNCH_OUT_OF_RESOURCES,
            FailureKind::Protocol => Self::UNKNOWN,
            FailureKind::Lost => Self::DEVICE_UNAVAILABLE,
        }
    }
}

impl From<&LoadFailure> for Status {
    fn from(failure: &LoadFailure) -> Self {
        match failure {
            LoadFailure::Invalid(_) => Self::INVALID_PTX,
            LoadFailure::Unsupported(_) => Self::NOT_SUPPORTED,
            LoadFailure::Failed(failure) => Self::from(failure),
        }
    }
}
