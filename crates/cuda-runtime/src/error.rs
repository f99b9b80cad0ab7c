//! Error codes of the CUDA runtime API (`cudaError_t`), with their names and descriptions. Codes of the driver API are the same numbers.

use std::ffi::CStr;

/// An error code, or success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Error(pub u32);

macro_rules! errors {
    ($($name:ident = $code:literal $full:literal $text:literal,)*) => {
        #[allow(missing_docs, reason = "each is named as in the documentation of the runtime API")]
        impl Error {
            $(pub const $name: Self = Self($code);)*
        }

        /// Code, name and description.
        const TEXTS: &[(u32, &CStr, &CStr)] = &[$(($code, $full, $text),)*];
    };
}

errors! {
    SUCCESS = 0 c"cudaSuccess" c"no error",
    INVALID_VALUE = 1 c"cudaErrorInvalidValue" c"invalid argument",
    MEMORY_ALLOCATION = 2 c"cudaErrorMemoryAllocation" c"out of memory",
    INITIALIZATION_ERROR = 3 c"cudaErrorInitializationError" c"initialization error",
    CUDART_UNLOADING = 4 c"cudaErrorCudartUnloading" c"driver shutting down",
    PROFILER_DISABLED = 5 c"cudaErrorProfilerDisabled" c"profiler disabled",
    PROFILER_NOT_INITIALIZED = 6 c"cudaErrorProfilerNotInitialized" c"profiler not initialized",
    PROFILER_ALREADY_STARTED = 7 c"cudaErrorProfilerAlreadyStarted" c"profiler already started",
    PROFILER_ALREADY_STOPPED = 8 c"cudaErrorProfilerAlreadyStopped" c"profiler already stopped",
    INVALID_CONFIGURATION = 9 c"cudaErrorInvalidConfiguration" c"invalid configuration argument",
    INVALID_PITCH_VALUE = 12 c"cudaErrorInvalidPitchValue" c"invalid pitch argument",
    INVALID_SYMBOL = 13 c"cudaErrorInvalidSymbol" c"invalid device symbol",
    INVALID_HOST_POINTER = 16 c"cudaErrorInvalidHostPointer" c"invalid host pointer",
    INVALID_DEVICE_POINTER = 17 c"cudaErrorInvalidDevicePointer" c"invalid device pointer",
    INVALID_TEXTURE = 18 c"cudaErrorInvalidTexture" c"invalid texture reference",
    INVALID_TEXTURE_BINDING = 19 c"cudaErrorInvalidTextureBinding" c"invalid texture binding",
    INVALID_CHANNEL_DESCRIPTOR = 20 c"cudaErrorInvalidChannelDescriptor" c"invalid channel descriptor",
    INVALID_MEMCPY_DIRECTION = 21 c"cudaErrorInvalidMemcpyDirection" c"invalid copy direction",
    ADDRESS_OF_CONSTANT = 22 c"cudaErrorAddressOfConstant" c"address of constant",
    TEXTURE_FETCH_FAILED = 23 c"cudaErrorTextureFetchFailed" c"texture fetch failed",
    TEXTURE_NOT_BOUND = 24 c"cudaErrorTextureNotBound" c"texture is not bound",
    SYNCHRONIZATION_ERROR = 25 c"cudaErrorSynchronizationError" c"synchronization error",
    INVALID_FILTER_SETTING = 26 c"cudaErrorInvalidFilterSetting" c"invalid filter setting",
    INVALID_NORM_SETTING = 27 c"cudaErrorInvalidNormSetting" c"invalid norm setting",
    MIXED_DEVICE_EXECUTION = 28 c"cudaErrorMixedDeviceExecution" c"mixed device execution",
    NOT_YET_IMPLEMENTED = 31 c"cudaErrorNotYetImplemented" c"not yet implemented",
    MEMORY_VALUE_TOO_LARGE = 32 c"cudaErrorMemoryValueTooLarge" c"memory value too large",
    STUB_LIBRARY = 34 c"cudaErrorStubLibrary" c"the library is a stub",
    INSUFFICIENT_DRIVER = 35 c"cudaErrorInsufficientDriver" c"CUDA driver version is insufficient for CUDA runtime version",
    CALL_REQUIRES_NEWER_DRIVER = 36 c"cudaErrorCallRequiresNewerDriver" c"the call requires a newer driver",
    INVALID_SURFACE = 37 c"cudaErrorInvalidSurface" c"invalid surface reference",
    DUPLICATE_VARIABLE_NAME = 43 c"cudaErrorDuplicateVariableName" c"duplicate variable name",
    DUPLICATE_TEXTURE_NAME = 44 c"cudaErrorDuplicateTextureName" c"duplicate texture name",
    DUPLICATE_SURFACE_NAME = 45 c"cudaErrorDuplicateSurfaceName" c"duplicate surface name",
    DEVICES_UNAVAILABLE = 46 c"cudaErrorDevicesUnavailable" c"the devices are busy or unavailable",
    INCOMPATIBLE_DRIVER_CONTEXT = 49 c"cudaErrorIncompatibleDriverContext" c"incompatible driver context",
    MISSING_CONFIGURATION = 52 c"cudaErrorMissingConfiguration" c"missing configuration",
    PRIOR_LAUNCH_FAILURE = 53 c"cudaErrorPriorLaunchFailure" c"prior launch failure",
    LAUNCH_MAX_DEPTH_EXCEEDED = 65 c"cudaErrorLaunchMaxDepthExceeded" c"launch max depth exceeded",
    LAUNCH_FILE_SCOPED_TEX = 66 c"cudaErrorLaunchFileScopedTex" c"launch file scoped tex",
    LAUNCH_FILE_SCOPED_SURF = 67 c"cudaErrorLaunchFileScopedSurf" c"launch file scoped surf",
    SYNC_DEPTH_EXCEEDED = 68 c"cudaErrorSyncDepthExceeded" c"sync depth exceeded",
    LAUNCH_PENDING_COUNT_EXCEEDED = 69 c"cudaErrorLaunchPendingCountExceeded" c"launch pending count exceeded",
    INVALID_DEVICE_FUNCTION = 98 c"cudaErrorInvalidDeviceFunction" c"invalid device function",
    NO_DEVICE = 100 c"cudaErrorNoDevice" c"no CUDA-capable device is detected",
    INVALID_DEVICE = 101 c"cudaErrorInvalidDevice" c"invalid device ordinal",
    DEVICE_NOT_LICENSED = 102 c"cudaErrorDeviceNotLicensed" c"device not licensed",
    SOFTWARE_VALIDITY_NOT_ESTABLISHED = 103 c"cudaErrorSoftwareValidityNotEstablished" c"software validity not established",
    STARTUP_FAILURE = 127 c"cudaErrorStartupFailure" c"startup failure",
    INVALID_KERNEL_IMAGE = 200 c"cudaErrorInvalidKernelImage" c"device kernel image is invalid",
    DEVICE_UNINITIALIZED = 201 c"cudaErrorDeviceUninitialized" c"invalid device context",
    MAP_BUFFER_OBJECT_FAILED = 205 c"cudaErrorMapBufferObjectFailed" c"map buffer object failed",
    UNMAP_BUFFER_OBJECT_FAILED = 206 c"cudaErrorUnmapBufferObjectFailed" c"unmap buffer object failed",
    ARRAY_IS_MAPPED = 207 c"cudaErrorArrayIsMapped" c"array is mapped",
    ALREADY_MAPPED = 208 c"cudaErrorAlreadyMapped" c"already mapped",
    NO_KERNEL_IMAGE_FOR_DEVICE = 209 c"cudaErrorNoKernelImageForDevice" c"no kernel image is available for execution on the device",
    ALREADY_ACQUIRED = 210 c"cudaErrorAlreadyAcquired" c"already acquired",
    NOT_MAPPED = 211 c"cudaErrorNotMapped" c"not mapped",
    NOT_MAPPED_AS_ARRAY = 212 c"cudaErrorNotMappedAsArray" c"not mapped as array",
    NOT_MAPPED_AS_POINTER = 213 c"cudaErrorNotMappedAsPointer" c"not mapped as pointer",
    ECC_UNCORRECTABLE = 214 c"cudaErrorECCUncorrectable" c"uncorrectable ECC error",
    UNSUPPORTED_LIMIT = 215 c"cudaErrorUnsupportedLimit" c"unsupported limit",
    DEVICE_ALREADY_IN_USE = 216 c"cudaErrorDeviceAlreadyInUse" c"device already in use",
    PEER_ACCESS_UNSUPPORTED = 217 c"cudaErrorPeerAccessUnsupported" c"peer access is not supported between these devices",
    INVALID_PTX = 218 c"cudaErrorInvalidPtx" c"a PTX JIT compilation failed",
    INVALID_GRAPHICS_CONTEXT = 219 c"cudaErrorInvalidGraphicsContext" c"invalid graphics context",
    NVLINK_UNCORRECTABLE = 220 c"cudaErrorNvlinkUncorrectable" c"uncorrectable NVLink error",
    JIT_COMPILER_NOT_FOUND = 221 c"cudaErrorJitCompilerNotFound" c"the PTX compiler was not found",
    UNSUPPORTED_PTX_VERSION = 222 c"cudaErrorUnsupportedPtxVersion" c"unsupported ptx version",
    JIT_COMPILATION_DISABLED = 223 c"cudaErrorJitCompilationDisabled" c"jit compilation disabled",
    UNSUPPORTED_EXEC_AFFINITY = 224 c"cudaErrorUnsupportedExecAffinity" c"unsupported exec affinity",
    UNSUPPORTED_DEV_SIDE_SYNC = 225 c"cudaErrorUnsupportedDevSideSync" c"unsupported dev side sync",
    CONTAINED = 226 c"cudaErrorContained" c"contained",
    INVALID_SOURCE = 300 c"cudaErrorInvalidSource" c"invalid source",
    FILE_NOT_FOUND = 301 c"cudaErrorFileNotFound" c"file not found",
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 c"cudaErrorSharedObjectSymbolNotFound" c"shared object symbol not found",
    SHARED_OBJECT_INIT_FAILED = 303 c"cudaErrorSharedObjectInitFailed" c"shared object init failed",
    OPERATING_SYSTEM = 304 c"cudaErrorOperatingSystem" c"the operating system refused a call",
    INVALID_RESOURCE_HANDLE = 400 c"cudaErrorInvalidResourceHandle" c"invalid resource handle",
    ILLEGAL_STATE = 401 c"cudaErrorIllegalState" c"illegal state",
    LOSSY_QUERY = 402 c"cudaErrorLossyQuery" c"lossy query",
    SYMBOL_NOT_FOUND = 500 c"cudaErrorSymbolNotFound" c"named symbol not found",
    NOT_READY = 600 c"cudaErrorNotReady" c"device not ready",
    ILLEGAL_ADDRESS = 700 c"cudaErrorIllegalAddress" c"an illegal memory access was encountered",
    LAUNCH_OUT_OF_RESOURCES = 701 c"cudaErrorLaunchOutOfResources" c"too many resources requested for launch",
    LAUNCH_TIMEOUT = 702 c"cudaErrorLaunchTimeout" c"the launch timed out and was terminated",
    LAUNCH_INCOMPATIBLE_TEXTURING = 703 c"cudaErrorLaunchIncompatibleTexturing" c"launch incompatible texturing",
    PEER_ACCESS_ALREADY_ENABLED = 704 c"cudaErrorPeerAccessAlreadyEnabled" c"peer access already enabled",
    PEER_ACCESS_NOT_ENABLED = 705 c"cudaErrorPeerAccessNotEnabled" c"peer access not enabled",
    SET_ON_ACTIVE_PROCESS = 708 c"cudaErrorSetOnActiveProcess" c"the device is in use already",
    CONTEXT_IS_DESTROYED = 709 c"cudaErrorContextIsDestroyed" c"context is destroyed",
    ASSERT = 710 c"cudaErrorAssert" c"device-side assert triggered",
    TOO_MANY_PEERS = 711 c"cudaErrorTooManyPeers" c"too many peers",
    HOST_MEMORY_ALREADY_REGISTERED = 712 c"cudaErrorHostMemoryAlreadyRegistered" c"the host memory is registered already",
    HOST_MEMORY_NOT_REGISTERED = 713 c"cudaErrorHostMemoryNotRegistered" c"the host memory is not registered",
    HARDWARE_STACK_ERROR = 714 c"cudaErrorHardwareStackError" c"hardware stack error",
    ILLEGAL_INSTRUCTION = 715 c"cudaErrorIllegalInstruction" c"an illegal instruction was encountered",
    MISALIGNED_ADDRESS = 716 c"cudaErrorMisalignedAddress" c"misaligned address",
    INVALID_ADDRESS_SPACE = 717 c"cudaErrorInvalidAddressSpace" c"operation not supported on this address space",
    INVALID_PC = 718 c"cudaErrorInvalidPc" c"invalid program counter",
    LAUNCH_FAILURE = 719 c"cudaErrorLaunchFailure" c"unspecified launch failure",
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 c"cudaErrorCooperativeLaunchTooLarge" c"too many blocks in a cooperative launch",
    TENSOR_MEMORY_LEAK = 721 c"cudaErrorTensorMemoryLeak" c"tensor memory leak",
    NOT_PERMITTED = 800 c"cudaErrorNotPermitted" c"operation not permitted",
    NOT_SUPPORTED = 801 c"cudaErrorNotSupported" c"operation not supported",
    SYSTEM_NOT_READY = 802 c"cudaErrorSystemNotReady" c"system not ready",
    SYSTEM_DRIVER_MISMATCH = 803 c"cudaErrorSystemDriverMismatch" c"system driver mismatch",
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 c"cudaErrorCompatNotSupportedOnDevice" c"compat not supported on device",
    MPS_CONNECTION_FAILED = 805 c"cudaErrorMpsConnectionFailed" c"mps connection failed",
    MPS_RPC_FAILURE = 806 c"cudaErrorMpsRpcFailure" c"mps rpc failure",
    MPS_SERVER_NOT_READY = 807 c"cudaErrorMpsServerNotReady" c"mps server not ready",
    MPS_MAX_CLIENTS_REACHED = 808 c"cudaErrorMpsMaxClientsReached" c"mps max clients reached",
    MPS_MAX_CONNECTIONS_REACHED = 809 c"cudaErrorMpsMaxConnectionsReached" c"mps max connections reached",
    MPS_CLIENT_TERMINATED = 810 c"cudaErrorMpsClientTerminated" c"mps client terminated",
    CDP_NOT_SUPPORTED = 811 c"cudaErrorCdpNotSupported" c"cdp not supported",
    CDP_VERSION_MISMATCH = 812 c"cudaErrorCdpVersionMismatch" c"cdp version mismatch",
    STREAM_CAPTURE_UNSUPPORTED = 900 c"cudaErrorStreamCaptureUnsupported" c"operation not permitted when the stream is capturing",
    STREAM_CAPTURE_INVALIDATED = 901 c"cudaErrorStreamCaptureInvalidated" c"stream capture invalidated",
    STREAM_CAPTURE_MERGE = 902 c"cudaErrorStreamCaptureMerge" c"stream capture merge",
    STREAM_CAPTURE_UNMATCHED = 903 c"cudaErrorStreamCaptureUnmatched" c"stream capture unmatched",
    STREAM_CAPTURE_UNJOINED = 904 c"cudaErrorStreamCaptureUnjoined" c"stream capture unjoined",
    STREAM_CAPTURE_ISOLATION = 905 c"cudaErrorStreamCaptureIsolation" c"stream capture isolation",
    STREAM_CAPTURE_IMPLICIT = 906 c"cudaErrorStreamCaptureImplicit" c"stream capture implicit",
    CAPTURED_EVENT = 907 c"cudaErrorCapturedEvent" c"captured event",
    STREAM_CAPTURE_WRONG_THREAD = 908 c"cudaErrorStreamCaptureWrongThread" c"stream capture wrong thread",
    TIMEOUT = 909 c"cudaErrorTimeout" c"wait operation timed out",
    GRAPH_EXEC_UPDATE_FAILURE = 910 c"cudaErrorGraphExecUpdateFailure" c"graph exec update failure",
    EXTERNAL_DEVICE = 911 c"cudaErrorExternalDevice" c"external device",
    INVALID_CLUSTER_SIZE = 912 c"cudaErrorInvalidClusterSize" c"invalid cluster size",
    FUNCTION_NOT_LOADED = 913 c"cudaErrorFunctionNotLoaded" c"function not loaded",
    INVALID_RESOURCE_TYPE = 914 c"cudaErrorInvalidResourceType" c"invalid resource type",
    INVALID_RESOURCE_CONFIGURATION = 915 c"cudaErrorInvalidResourceConfiguration" c"invalid resource configuration",
    STREAM_DETACHED = 917 c"cudaErrorStreamDetached" c"stream detached",
    UNKNOWN = 999 c"cudaErrorUnknown" c"unknown error",
    API_FAILURE_BASE = 10000 c"cudaErrorApiFailureBase" c"api failure base",
}

impl Error {
    /// The result of a call of the driver API.
    pub(crate) fn check(code: u32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self(code)) }
    }

    /// Name of the code, as in the header.
    pub(crate) fn name(self) -> &'static CStr {
        self.texts().map_or(c"unrecognized error code", |(name, _)| name)
    }

    /// Description of the code.
    pub(crate) fn text(self) -> &'static CStr {
        self.texts().map_or(c"unrecognized error code", |(_, text)| text)
    }

    fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
        TEXTS
            .iter()
            .find(|(code, ..)| *code == self.0)
            .map(|(_, name, text)| (*name, *text))
    }

    /// Whether the context is of no use any more: every later call returns the error until the device is reset.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 710 | 714..=719 | 721)
    }
}
