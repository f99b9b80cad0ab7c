//! Errors that a plugin reports.

use std::fmt;

/// Defines the codes, each with its number in the header and its name.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident $number:literal $name:literal)*) => {
        /// Error codes of `PJRT_Error_Code`, which are those of Abseil.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $code = $number,)*
        }

        const CODES: &[(Code, &str)] = &[$((Code::$code, $name)),*];
    };
}

codes! {
    Cancelled 1 "cancelled"
    /// Any other error, or a code that this crate does not know.
    Unknown 2 "unknown"
    /// An argument is invalid regardless of the state, such as a program that cannot be compiled.
    InvalidArgument 3 "invalid argument"
    DeadlineExceeded 4 "deadline exceeded"
    NotFound 5 "not found"
    AlreadyExists 6 "already exists"
    PermissionDenied 7 "permission denied"
    ResourceExhausted 8 "resource exhausted"
    /// The operation is not possible in this state, for example on a buffer that was donated or deleted.
    FailedPrecondition 9 "failed precondition"
    Aborted 10 "aborted"
    OutOfRange 11 "out of range"
    Unimplemented 12 "unimplemented"
    Internal 13 "internal"
    Unavailable 14 "unavailable"
    DataLoss 15 "data loss"
    Unauthenticated 16 "unauthenticated"
}

impl Code {
    pub(crate) fn of(number: i32) -> Self {
        let row = CODES.iter().find(|row| row.0 as i32 == number);
        row.map_or(Self::Unknown, |row| row.0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = CODES.iter().find(|row| row.0 == *self);
        f.write_str(row.map_or("unknown", |row| row.1))
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

impl Error {
    pub(crate) fn new(function: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self {
            function,
            code,
            message: message.into(),
        }
    }
}
