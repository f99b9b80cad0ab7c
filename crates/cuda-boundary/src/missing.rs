//! Exported functions without an implementation.

use crate::{ResultCode, call, log, process};

/// Answers a call of a function that is not implemented.
pub fn function<S: ResultCode>(name: &'static str) -> S {
    call(|| {
        process::check::<S>()?;
        refuse(name)
    })
}

/// Refuses a part of a function that is implemented otherwise.
///
/// # Errors
/// Always: [`ResultCode::NOT_SUPPORTED`].
pub fn refuse<T, S: ResultCode>(name: &str) -> Result<T, S> {
    log::once(format!("{name} is not supported"));
    Err(S::NOT_SUPPORTED)
}
