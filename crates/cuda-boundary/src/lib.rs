//! The boundary to C of the drop-in CUDA libraries: arguments as C passes them, calls that never unwind, and exports by a list of names.
//!
//! The types of [`argument`] hold what a caller passed. Their methods are safe to call because the exported functions, which alone make them,
//! are `unsafe`: the caller promises that a pointer is null or points to as much as the API says. Each library has a [`ResultCode`] of its own.
//!
//! Build scripts use [`build`]: it finds the exported functions in the sources and writes an export for every other name of `symbols.txt`, which
//! [`missing`] answers.
//!
//! The libraries of NVIDIA's driver have [`redirected`] exports: jumps, whose targets are the functions of this library or, where the
//! environment names no device, those of the driver that is installed on this machine ([`local`]).

pub mod argument;
pub mod build;
pub mod local;
pub mod log;
pub mod missing;
pub mod process;
pub mod redirected;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result code of a library's functions, with the codes that the boundary itself returns.
pub trait ResultCode: Copy {
    const SUCCESS: Self;
    /// An argument is wrong, such as a null pointer to a result.
    const INVALID_VALUE: Self;
    /// The library was not initialised in this process.
    const NOT_INITIALIZED: Self;
    /// The function is not implemented.
    const NOT_SUPPORTED: Self;
    /// An error of the library itself.
    const UNKNOWN: Self;
}

/// Runs the body of an exported function.
pub fn call<S: ResultCode>(function: impl FnOnce() -> Result<(), S>) -> S {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => S::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => {
            log::line("a call panicked; this is an error of Sahasra");
            S::UNKNOWN
        }
    }
}

/// Declares exported functions: `$call` runs each body, a block that ends with `Result<(), $status>`, and returns the result code.
#[macro_export]
macro_rules! exports {
    ($status:ty, $call:path; $($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(clippy::missing_safety_doc, reason = "the documentation of the API says what a caller promises")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $status {
            $call(move || $body)
        }
    )*};
}

/// Declares functions that call those of the parent module with these declarations, within a function.
#[macro_export]
macro_rules! wrappers {
    ($status:ty, $around:path; $($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, clippy::missing_safety_doc, reason = "as of the function that is called")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $status {
            // SAFETY: the caller promises what the function requires.
            $around(|| unsafe { super::$name($($argument),*) })
        }
    )*};
}

/// Declares the functions behind [`redirected`] exports, as [`exports!`] declares exported ones.
#[macro_export]
macro_rules! functions {
    ($status:ty, $call:path; $($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[allow(non_snake_case, reason = "the names of the API")]
        #[allow(clippy::missing_safety_doc, reason = "the documentation of the API says what a caller promises")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $status {
            $call(move || $body)
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument::{HostPointer, In, Out};

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Code(u32);

    impl ResultCode for Code {
        const SUCCESS: Self = Self(0);
        const INVALID_VALUE: Self = Self(1);
        const NOT_INITIALIZED: Self = Self(3);
        const NOT_SUPPORTED: Self = Self(801);
        const UNKNOWN: Self = Self(999);
    }

    #[test]
    fn a_panic_becomes_a_result_code() {
        let panics: fn() -> Result<(), Code> = || panic!("inside of a call");
        assert_eq!(call(panics), Code::UNKNOWN);
        assert_eq!(call(|| Err(Code(7))), Code(7));
    }

    #[test]
    fn null_pointers_are_refused() {
        let out = Out::<u32, Code>::new(std::ptr::null_mut());
        assert_eq!(out.set(1), Err(Code::INVALID_VALUE));
        out.set_if_wanted(1);
        let input = In::<u32, Code>::new(std::ptr::null());
        assert_eq!(input.get(), Err(Code::INVALID_VALUE));
        assert_eq!(input.array(0), Ok(Vec::new()));
        let memory = HostPointer::<Code>::of_address(0);
        assert_eq!(memory.with_bytes(1, |bytes| bytes.len()), Err(Code::INVALID_VALUE));
        assert_eq!(memory.with_bytes(0, |bytes| bytes.len()), Ok(0));
    }

    #[test]
    fn pointers_need_not_be_aligned() {
        let mut bytes = [0u8; 9];
        let place = Out::<u64, Code>::new(bytes[1..].as_mut_ptr().cast());
        place.set(0x0807_0605_0403_0201).expect("not null");
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(place.get(), Ok(0x0807_0605_0403_0201));
    }
}
