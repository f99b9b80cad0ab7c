//! The boundary to C, with the error codes of the runtime API.

use std::cell::Cell;

use sahasra_cuda_boundary::{ResultCode, argument};

use crate::{Error, thread};

pub use sahasra_cuda_boundary::argument::Handle;

/// Pointer to which a result is written.
pub type Out<T> = argument::Out<T, Error>;
/// Pointer from which an argument is read.
pub type In<T> = argument::In<T, Error>;
/// Text that ends with a zero byte.
pub type Text = argument::Text<Error>;
/// Memory that a caller passed, of the host or of the device.
pub type Pointer = argument::HostPointer<Error>;

/// `dim3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Dimensions {
    /// Size along x, the fastest.
    pub x: u32,
    /// Size along y.
    pub y: u32,
    /// Size along z.
    pub z: u32,
}

impl ResultCode for Error {
    const SUCCESS: Self = Self::SUCCESS;
    const INVALID_VALUE: Self = Self::INVALID_VALUE;
    const NOT_INITIALIZED: Self = Self::INITIALIZATION_ERROR;
    const NOT_SUPPORTED: Self = Self::NOT_SUPPORTED;
    const UNKNOWN: Self = Self::UNKNOWN;
}

/// Runs an exported function, and notes its error as the thread's last one.
pub fn call(function: impl FnOnce() -> Result<(), Error>) -> Error {
    let error = sahasra_cuda_boundary::call(function);
    if error != Error::SUCCESS {
        thread::note(error);
    }
    error
}

/// Declares exported functions. Each body is a block that ends with `Result<(), Error>`.
#[macro_export]
macro_rules! exports {
    ($($functions:tt)*) => {
        ::sahasra_cuda_boundary::exports! { $crate::Error, $crate::boundary::call; $($functions)* }

        /// The functions for programs whose default stream is one of each thread.
        #[allow(dead_code, missing_docs, unused_imports, reason = "not all functions have such a form, and they are documented without it")]
        pub mod per_thread {
            use super::*;
            ::sahasra_cuda_boundary::wrappers! { $crate::Error, $crate::boundary::with_stream_of_thread; $($functions)* }
        }
    };
}

thread_local! {
    static IS_STREAM_OF_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call whose default stream is that of the thread.
pub fn with_stream_of_thread<T>(call: impl FnOnce() -> T) -> T {
    let before = IS_STREAM_OF_THREAD.replace(true);
    let outcome = call();
    IS_STREAM_OF_THREAD.set(before);
    outcome
}

/// Whether the default stream of the call is that of the thread.
pub(crate) fn is_stream_of_thread() -> bool {
    IS_STREAM_OF_THREAD.get()
}
