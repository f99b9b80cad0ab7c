//! What a plugin says went wrong.

use std::fmt;

/// Kinds of failure: those of `PJRT_Error_Code`, which are Abseil's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The caller cancelled it.
    Cancelled,
    /// None of the others, or one that this crate does not know.
    Unknown,
    /// The caller gave something that is wrong whatever the state: a program that cannot be compiled, a wrong argument.
    InvalidArgument,
    /// It took too long.
    DeadlineExceeded,
    /// Something named does not exist.
    NotFound,
    /// Something to be made exists already.
    AlreadyExists,
    /// The caller may not.
    PermissionDenied,
    /// Memory is exhausted.
    ResourceExhausted,
    /// Not in this state: a buffer that was donated or deleted.
    FailedPrecondition,
    /// It was given up.
    Aborted,
    /// Beyond a range.
    OutOfRange,
    /// The plugin does not have it.
    Unimplemented,
    /// The plugin is broken.
    Internal,
    /// Not now.
    Unavailable,
    /// Data was lost.
    DataLoss,
    /// The caller is nobody known.
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

/// A failure that the plugin reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {code}: {message}")]
pub struct Error {
    /// The function of the C API that failed, or by whose event it failed later.
    pub function: &'static str,
    /// What kind of failure.
    pub code: Code,
    /// The plugin's own words.
    pub message: String,
}
