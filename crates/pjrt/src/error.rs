//! Errors that a plugin reports.

use std::fmt;

/// Error codes of `PJRT_Error_Code`, which are those of Abseil.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    Cancelled,
    /// Any other error, or a code that this crate does not know.
    Unknown,
    /// An argument is invalid regardless of the state, such as a program that cannot be compiled.
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    /// The operation is not possible in this state, for example on a buffer that was donated or deleted.
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    /// Every code with its number in the header.
    const ALL: [(i32, Self, &'static str); 16] = [
        (1, Self::Cancelled, "cancelled"),
        (2, Self::Unknown, "unknown"),
        (3, Self::InvalidArgument, "invalid argument"),
        (4, Self::DeadlineExceeded, "deadline exceeded"),
        (5, Self::NotFound, "not found"),
        (6, Self::AlreadyExists, "already exists"),
        (7, Self::PermissionDenied, "permission denied"),
        (8, Self::ResourceExhausted, "resource exhausted"),
        (9, Self::FailedPrecondition, "failed precondition"),
        (10, Self::Aborted, "aborted"),
        (11, Self::OutOfRange, "out of range"),
        (12, Self::Unimplemented, "unimplemented"),
        (13, Self::Internal, "internal"),
        (14, Self::Unavailable, "unavailable"),
        (15, Self::DataLoss, "data loss"),
        (16, Self::Unauthenticated, "unauthenticated"),
    ];

    pub(crate) fn of(number: i32) -> Self {
        let row = Self::ALL.iter().find(|row| row.0 == number);
        row.map_or(Self::Unknown, |row| row.1)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = Self::ALL.iter().find(|row| row.1 == *self);
        f.write_str(row.map_or("unknown", |row| row.2))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {code}: {message}")]
pub struct Error {
    /// Function of the C API that failed, or that returned the event whose operation failed.
    pub function: &'static str,
    pub code: Code,
    pub message: String,
}
