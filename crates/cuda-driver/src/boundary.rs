//! The boundary to C, with the result codes of the driver API.

use sahasra_cuda_boundary::{ResultCode, argument};

use crate::status::Status;

pub(crate) use sahasra_cuda_boundary::argument::Handle;

pub(crate) type Out<T> = argument::Out<T, Status>;
pub(crate) type In<T> = argument::In<T, Status>;
pub(crate) type Text = argument::Text<Status>;
pub(crate) type HostPointer = argument::HostPointer<Status>;

impl ResultCode for Status {
    const SUCCESS: Self = Self::SUCCESS;
    const INVALID_VALUE: Self = Self::INVALID_VALUE;
    const NOT_INITIALIZED: Self = Self::NOT_INITIALIZED;
    const NOT_SUPPORTED: Self = Self::NOT_SUPPORTED;
    const UNKNOWN: Self = Self::UNKNOWN;
}
