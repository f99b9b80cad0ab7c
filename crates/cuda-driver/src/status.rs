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
    INSUFFICIENT_LOADER_VERSION = 227 c"CUDA_ERROR_INSUFFICIENT_LOADER_VERSION" c"the loader is older than what it loads",
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
    TENSOR_MEMORY_LEAK = 721 c"CUDA_ERROR_TENSOR_MEMORY_LEAK" c"a kernel ended without freeing its tensor memory",
    NOT_PERMITTED = 800 c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted",
    NOT_SUPPORTED = 801 c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported",
    SYSTEM_NOT_READY = 802 c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not yet initialized",
    SYSTEM_DRIVER_MISMATCH = 803 c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" c"the versions of the driver do not match",
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" c"forward compatibility is not supported on the device",
    MPS_CONNECTION_FAILED = 805 c"CUDA_ERROR_MPS_CONNECTION_FAILED" c"no connection to the MPS server",
    MPS_RPC_FAILURE = 806 c"CUDA_ERROR_MPS_RPC_FAILURE" c"a call of the MPS server failed",
    MPS_SERVER_NOT_READY = 807 c"CUDA_ERROR_MPS_SERVER_NOT_READY" c"the MPS server is not ready",
    MPS_MAX_CLIENTS_REACHED = 808 c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" c"the MPS server has no room for another client",
    MPS_MAX_CONNECTIONS_REACHED = 809 c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" c"the MPS server has no room for another connection",
    MPS_CLIENT_TERMINATED = 810 c"CUDA_ERROR_MPS_CLIENT_TERMINATED" c"the MPS server has ended the client",
    CDP_NOT_SUPPORTED = 811 c"CUDA_ERROR_CDP_NOT_SUPPORTED" c"launches by kernels are not supported",
    CDP_VERSION_MISMATCH = 812 c"CUDA_ERROR_CDP_VERSION_MISMATCH" c"launches by kernels of different versions",
    STREAM_CAPTURE_UNSUPPORTED = 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" c"operation not permitted when the stream is capturing",
    STREAM_CAPTURE_INVALIDATED = 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" c"the capture is invalid after an earlier error",
    STREAM_CAPTURE_MERGE = 902 c"CUDA_ERROR_STREAM_CAPTURE_MERGE" c"the operation would merge two captures",
    STREAM_CAPTURE_UNMATCHED = 903 c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" c"the capture was not begun in this stream",
    STREAM_CAPTURE_UNJOINED = 904 c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED" c"a stream of the capture was not joined to its origin",
    STREAM_CAPTURE_ISOLATION = 905 c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION" c"the operation would depend on work outside of the capture",
    STREAM_CAPTURE_IMPLICIT = 906 c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" c"the operation would depend on the legacy stream",
    CAPTURED_EVENT = 907 c"CUDA_ERROR_CAPTURED_EVENT" c"the event was last recorded in a capture",
    STREAM_CAPTURE_WRONG_THREAD = 908 c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" c"the capture was begun by another thread",
    TIMEOUT = 909 c"CUDA_ERROR_TIMEOUT" c"wait operation timed out",
    GRAPH_EXEC_UPDATE_FAILURE = 910 c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" c"the graph cannot be updated in this way",
    EXTERNAL_DEVICE = 911 c"CUDA_ERROR_EXTERNAL_DEVICE" c"error of an external device",
    INVALID_CLUSTER_SIZE = 912 c"CUDA_ERROR_INVALID_CLUSTER_SIZE" c"invalid cluster size",
    FUNCTION_NOT_LOADED = 913 c"CUDA_ERROR_FUNCTION_NOT_LOADED" c"the function is not loaded",
    INVALID_RESOURCE_TYPE = 914 c"CUDA_ERROR_INVALID_RESOURCE_TYPE" c"invalid resource type",
    INVALID_RESOURCE_CONFIGURATION = 915 c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" c"invalid resource configuration",
    KEY_ROTATION = 916 c"CUDA_ERROR_KEY_ROTATION" c"a key is being exchanged",
    STREAM_DETACHED = 917 c"CUDA_ERROR_STREAM_DETACHED" c"the stream is detached",
    GRAPH_RECAPTURE_FAILURE = 918 c"CUDA_ERROR_GRAPH_RECAPTURE_FAILURE" c"the graph cannot be captured again",
    FABRIC_NOT_READY = 919 c"CUDA_ERROR_FABRIC_NOT_READY" c"the fabric is not ready",
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
            LoadFailure::NoBinary(_) => Self::NO_BINARY_FOR_GPU,
            LoadFailure::Failed(failure) => Self::from(failure),
        }
    }
}
