//! Result codes of NVML (`nvmlReturn_t`), with their descriptions.

use std::ffi::CStr;

/// A result code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) u32);

macro_rules! statuses {
    ($($name:ident = $code:literal $text:literal,)*) => {
        #[expect(dead_code, reason = "every code that a caller may ask the description of")]
        impl Status {
            $(pub(crate) const $name: Self = Self($code);)*
        }

        const TEXTS: &[(u32, &CStr)] = &[$(($code, $text),)*];
    };
}

statuses! {
    SUCCESS = 0 c"success",
    UNINITIALIZED = 1 c"the library is not initialized",
    INVALID_ARGUMENT = 2 c"invalid argument",
    NOT_SUPPORTED = 3 c"not supported",
    NO_PERMISSION = 4 c"insufficient permissions",
    ALREADY_INITIALIZED = 5 c"already initialized",
    NOT_FOUND = 6 c"not found",
    INSUFFICIENT_SIZE = 7 c"the buffer is too small",
    INSUFFICIENT_POWER = 8 c"insufficient external power",
    DRIVER_NOT_LOADED = 9 c"there is no device, or its driver is not loaded",
    TIMEOUT = 10 c"timeout",
    IRQ_ISSUE = 11 c"interrupt request issue",
    LIBRARY_NOT_FOUND = 12 c"NVML shared library not found",
    FUNCTION_NOT_FOUND = 13 c"function not found",
    CORRUPTED_INFOROM = 14 c"corrupted infoROM",
    GPU_IS_LOST = 15 c"the GPU is lost",
    RESET_REQUIRED = 16 c"the GPU requires a reset",
    OPERATING_SYSTEM = 17 c"the operating system blocks the request",
    LIB_RM_VERSION_MISMATCH = 18 c"the versions of driver and library do not match",
    IN_USE = 19 c"in use by another client",
    MEMORY = 20 c"insufficient memory",
    NO_DATA = 21 c"no data",
    VGPU_ECC_NOT_SUPPORTED = 22 c"not supported on a vGPU while ECC is on",
    INSUFFICIENT_RESOURCES = 23 c"insufficient resources",
    FREQ_NOT_SUPPORTED = 24 c"frequency not supported",
    ARGUMENT_VERSION_MISMATCH = 25 c"the version of an argument is not supported",
    DEPRECATED = 26 c"deprecated",
    NOT_READY = 27 c"not ready",
    GPU_NOT_FOUND = 28 c"no GPU was found",
    INVALID_STATE = 29 c"invalid state",
    RESET_TYPE_NOT_SUPPORTED = 30 c"reset type not supported",
    UNKNOWN = 999 c"unknown error",
}

impl Status {
    /// Description of the code.
    pub(crate) fn text(self) -> &'static CStr {
        TEXTS
            .iter()
            .find(|(code, _)| *code == self.0)
            .map_or(c"unknown error", |(_, text)| *text)
    }
}
