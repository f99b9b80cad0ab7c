//! Errors that a plugin reports.

use std::fmt;

/// Error codes of `PJRT_Error_Code`, which are those of Abseil.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The caller cancelled the operation.
    Cancelled,
    /// Any other error, or a code that this crate does not know.
    Unknown,
    /// An argument is invalid regardless of the state, such as a program that cannot be compiled.
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    /// Memory is exhausted.
    ResourceExhausted,
    /// The operation is not possible in this state, for example on a buffer that was donated or deleted.
    FailedPrecondition,
    Aborted,
    OutOfRange,
    /// The plugin does not implement the operation.
    Unimplemented,
    /// The plugin has an internal error.
    Internal,
    /// The operation is temporarily unavailable.
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    pub(crate) fn of(code: i32) -> Self {
        match code {
            1 => Self::Cancelled,
            3 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            5 => Self::NotFound,
            6 => Self::AlreadyExists,
            7 => Self::PermissionDenied,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            10 => Self::Aborted,
            11 => Self::OutOfRange,
            12 => Self::Unimplemented,
            13 => Self::Internal,
            14 => Self::Unavailable,
            15 => Self::DataLoss,
            16 => Self::Unauthenticated,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid argument",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::PermissionDenied => "permission denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::FailedPrecondition => "failed precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out of range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data loss",
            Self::Unauthenticated => "unauthenticated",
        })
    }
}

/// Error reported by a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {code}: {message}")]
pub struct Error {
    /// Function of the C API that failed, or that returned the event whose operation failed.
    pub function: &'static str,
    pub code: Code,
    /// Message from the plugin.
    pub message: String,
}
