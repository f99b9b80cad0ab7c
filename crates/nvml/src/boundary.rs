//! The boundary to C, with the result codes of NVML.

use std::ffi::{c_char, c_uint};

use sahasra_cuda_boundary::{ResultCode, argument};

use crate::status::Status;

pub(crate) use sahasra_cuda_boundary::argument::Handle;

pub(crate) type Out<T> = argument::Out<T, Status>;
pub(crate) type Text = argument::Text<Status>;

impl ResultCode for Status {
    const SUCCESS: Self = Self::SUCCESS;
    const INVALID_VALUE: Self = Self::INVALID_ARGUMENT;
    const NOT_INITIALIZED: Self = Self::UNINITIALIZED;
    const NOT_SUPPORTED: Self = Self::NOT_SUPPORTED;
    const UNKNOWN: Self = Self::UNKNOWN;
}

/// Declares exported functions. Each body is a block that ends with `Result<(), Status>`.
macro_rules! exports {
    ($($functions:tt)*) => {
        sahasra_cuda_boundary::functions! { $crate::status::Status, sahasra_cuda_boundary::call; $($functions)* }
    };
}
pub(crate) use exports;

/// Writes a text with a zero byte at its end. Refuses a place that is too short for it.
pub(crate) fn write_text(text: &str, place: Out<c_char>, length: c_uint) -> Result<(), Status> {
    place.require()?;
    if text.len() >= length as usize {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        place.set_at(index, byte as c_char)?;
    }
    Ok(())
}
