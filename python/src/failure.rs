//! Conversion of errors to Python exceptions, and waits that a signal interrupts.

use std::time::{Duration, Instant};

use pyo3::{exceptions::PyRuntimeError, prelude::*};
use sahasra_client::{Error, FailureCode, Pending, RejectionCode};
use serde_json::Value;

use crate::process;

/// Interval at which waiting calls check for signals.
pub(crate) const ATTENTION: Duration = Duration::from_millis(100);

/// Returns the exception for an error: an instance of the class in `sahasra.errors` for its cause.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let raised = raise_as(py, class(error), &error.chain());
    if let Error::WorkerLost(loss) = error {
        let exception = raised.value(py);
        // If an attribute cannot be set, the message still contains the information.
        let _ = exception.setattr("session", &loss.session);
        let _ = exception.setattr("worker", &loss.worker);
        let _ = exception.setattr("operation", &loss.operation);
    }
    raised
}

/// Returns an instance of the named class in `sahasra.errors`.
pub(crate) fn raise_as(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let errors = py.import("sahasra.errors");
    let made = errors.and_then(|errors| errors.getattr(class)?.call1((message,)));
    made.map_or_else(|_| PyRuntimeError::new_err(message.to_owned()), PyErr::from_value)
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Failed(failure) => match failure.code {
            FailureCode::InvalidArgument => "InvalidArgumentError",
            FailureCode::OutOfMemory => "OutOfDeviceMemoryError",
            FailureCode::Incompatible | FailureCode::Unsupported => "IncompatibleProgramError",
            FailureCode::CompileFailed => "CompileError",
            FailureCode::ExecutionFailed => "ExecutionError",
            FailureCode::Malformed => "ProtocolError",
            FailureCode::Ended => "SessionClosedError",
            FailureCode::Unspecified | FailureCode::Internal => "SahasraError",
            // Of sessions of the engine cuda, which this package does not use.
            FailureCode::IllegalAddress
            | FailureCode::MisalignedAddress
            | FailureCode::Trap
            | FailureCode::Assertion
            | FailureCode::StackOverflow
            | FailureCode::InvalidCall
            | FailureCode::Deadlock
            | FailureCode::InvalidLaunch => "SahasraError",
        },
        Error::Unreachable { .. } => "ConnectionLostError",
        Error::Http { status, .. } => match status {
            401 => "AuthenticationError",
            403 => "PermissionDeniedError",
            404 => "NotFoundError",
            410 => "SessionClosedError",
            400 | 409 | 413 | 422 => "InvalidArgumentError",
            502..=504 => "ConnectionLostError",
            _ => "SahasraError",
        },
        Error::Protocol(_) => "ProtocolError",
        Error::Refused { code, .. } => match code {
            RejectionCode::Busy => "SessionBusyError",
            RejectionCode::Version | RejectionCode::Malformed => "ProtocolError",
            _ => "SahasraError",
        },
        Error::Lost(_) => "ConnectionLostError",
        Error::WorkerLost(_) => "WorkerLostError",
        Error::Closed => "SessionClosedError",
        Error::Ended { reason, .. } => match reason.as_str() {
            "TtlExpired" | "IdleTimeout" | "LeaseExpired" => "LeaseExpiredError",
            _ => "SessionClosedError",
        },
        Error::NoCapacity(_) => "CapacityError",
        Error::Timeout(_) => "WaitTimeoutError",
        Error::Invalid(_) => "InvalidArgumentError",
        Error::Configuration(_) => "ConfigurationError",
    }
}

/// Timeout for deleting the created object when a signal interrupts a call.
const UNDO: Duration = Duration::from_secs(2);

/// Waits for an answer without holding the GIL.
pub(crate) fn wait<T: Send>(py: Python<'_>, pending: &Pending<T>) -> PyResult<T> {
    loop {
        if let Some(answer) = wait_until(py, pending, Some(ATTENTION))? {
            return answer.map_err(|error| raise(py, &error));
        }
    }
}

/// Waits like [`wait`], but for at most `time` if it is given. Returns `None` if there is no answer by then.
pub(crate) fn wait_until<T: Send>(py: Python<'_>, pending: &Pending<T>, time: Option<Duration>) -> PyResult<Option<Result<T, Error>>> {
    let end = time.map(|time| Instant::now() + time);
    loop {
        let left = end.map_or(ATTENTION, |end| end.saturating_duration_since(Instant::now()).min(ATTENTION));
        if let Some(answer) = py.detach(|| pending.wait_for(left)) {
            return Ok(Some(answer));
        }
        py.check_signals()?;
        if end.is_some_and(|end| end <= Instant::now()) {
            return Ok(None);
        }
    }
}

/// Runs a request to completion without holding the GIL. If a signal interrupts the wait, the request continues in the background.
pub(crate) fn run<T: Send + 'static>(py: Python<'_>, request: impl Future<Output = Result<T, Error>> + Send + 'static) -> PyResult<T> {
    process::connects(py)?;
    let answer = sahasra_client::spawn(request).map_err(|error| raise(py, &error))?;
    wait(py, &answer)
}

/// Runs a request that creates an object, like [`run`]. If a signal arrives, the object is deleted again, for which the call waits for at
/// most [`UNDO`].
pub(crate) fn run_or_undo<Undo>(
    py: Python<'_>,
    request: impl Future<Output = Result<Value, Error>> + Send + 'static,
    undo: impl FnOnce(Value) -> Undo + Send + 'static,
) -> PyResult<Value>
where
    Undo: Future<Output = Result<(), Error>> + Send + 'static,
{
    process::connects(py)?;
    let answer = sahasra_client::spawn(request).map_err(|error| raise(py, &error))?;
    let waited = wait_until(py, &answer, None);
    // The interpreter raises a pending signal as soon as this function returns, and then the caller would not know what was created.
    match (waited, py.check_signals()) {
        (Ok(Some(created)), Ok(())) => created.map_err(|error| raise(py, &error)),
        (Ok(created), Err(signal)) => undone(py, signal, async move { undo(created.unwrap_or(Err(Error::Closed))?).await }),
        (Err(signal), _) => undone(py, signal, async move { undo(answer.await?).await }),
        (Ok(None), Ok(())) => unreachable!("without an end it waits for the answer"),
    }
}

/// Raises the signal after `undo` has ended or [`UNDO`] has elapsed.
fn undone<T>(py: Python<'_>, signal: PyErr, undo: impl Future<Output = Result<(), Error>> + Send + 'static) -> PyResult<T> {
    if let Ok(undone) = sahasra_client::spawn(undo) {
        py.detach(|| undone.wait_for(UNDO));
    }
    Err(signal)
}
