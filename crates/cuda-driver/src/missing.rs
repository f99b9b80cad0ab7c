//! What exported functions do that nobody implements.

use crate::boundary;
use crate::log;
use crate::status::Status;

/// Answers a call of a function that is not implemented.
pub(crate) fn call(name: &'static str) -> Status {
    boundary::call(|| {
        boundary::check_process()?;
        log::once(format!("{name} is not supported"));
        Err(Status::NOT_SUPPORTED)
    })
}

/// Refuses a part of a function that is implemented otherwise.
pub(crate) fn refuse<T>(what: &str) -> Result<T, Status> {
    log::once(format!("{what} is not supported"));
    Err(Status::NOT_SUPPORTED)
}
