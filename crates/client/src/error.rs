//! Errors of the client, by cause.

use std::{fmt, io, sync::Arc};

use http::StatusCode;
use sahasra_wire::session::{Failed, FailureCode, Refused, RejectionCode, frame::FrameError};
use serde_json::Value;

/// Error of a call to a session or a gateway. Cheap to clone, because the error that ends a session is returned to every caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Failed(Failure),
    #[error("failed to connect to {peer}")]
    Unreachable {
        peer: String,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("{message} (HTTP {status})")]
    Http {
        status: u16,
        /// Message from the response body, or the standard phrase of the status if the body is empty.
        message: String,
        /// Reason of a `metav1.Status`, such as `NotFound`. Empty if the body is not a `metav1.Status`.
        reason: String,
    },
    #[error("{0}")]
    Protocol(String),
    #[error("the session rejected the connection: {message}")]
    Refused { code: RejectionCode, message: String },
    /// The connection broke and could not be replaced within the grace period. The session's tensors and programs are lost.
    #[error("connection to the session lost, and reconnecting timed out")]
    Lost(#[source] Arc<Error>),
    /// The executor that held the session's tensors has ended, and its tensors are lost.
    #[error("{0}")]
    WorkerLost(Box<Loss>),
    #[error("the session is closed")]
    Closed,
    #[error("the session ended: {reason}: {message}")]
    Ended { reason: String, message: String },
    #[error("no device has room for the session: {0}")]
    NoCapacity(String),
    #[error("timed out waiting for {0}")]
    Timeout(&'static str),
    #[error("{0}")]
    Invalid(String),
    /// URL, certificates or token cannot be used.
    #[error("{0}")]
    Configuration(String),
}

/// Details of a lost worker. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Namespace and name of the session, separated by a slash.
    pub session: String,
    /// Location of the session: the worker, perhaps with the device, or the worker's address.
    pub worker: String,
    /// The operation that did not end: the call that waited, and the last program that was submitted before it.
    pub operation: String,
    /// Description of how the loss was detected.
    pub reason: String,
    /// Whether only the session's executor ended, and its worker still runs.
    pub is_executor: bool,
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_executor { "the executor" } else { "the worker" })?;
        if !self.worker.is_empty() {
            write!(formatter, "{} {}", if self.is_executor { " on" } else { "" }, self.worker)?;
        }
        if !self.session.is_empty() {
            write!(formatter, " of session {}", self.session)?;
        }
        let verb = if self.is_executor { "has ended" } else { "is lost" };
        write!(formatter, " {verb}, with all data of the session")?;
        if !self.operation.is_empty() {
            write!(formatter, ", during {}", self.operation)?;
        }
        write!(formatter, ": {}", self.reason)
    }
}

impl Error {
    pub(crate) fn worker_lost(reason: impl Into<String>) -> Self {
        Self::WorkerLost(Box::new(Loss {
            reason: reason.into(),
            ..Loss::default()
        }))
    }

    /// Fills in the empty fields of a [`Loss`]. Other errors are unchanged.
    pub(crate) fn about(mut self, session: &str, worker: &str, operation: &str) -> Self {
        if let Self::WorkerLost(loss) = &mut self {
            for (field, known) in [
                (&mut loss.session, session),
                (&mut loss.worker, worker),
                (&mut loss.operation, operation),
            ] {
                if field.is_empty() {
                    known.clone_into(field);
                }
            }
        }
        self
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }

    pub(crate) fn unreachable(peer: impl Into<String>, source: io::Error) -> Self {
        let (peer, source) = (peer.into(), Arc::new(source));
        Self::Unreachable { peer, source }
    }

    /// Returns the error for an HTTP error status. The body is a `metav1.Status` or a plain message.
    pub(crate) fn http(status: StatusCode, body: &[u8]) -> Self {
        let parsed: Option<Value> = serde_json::from_slice(body).ok();
        let field = |name: &str| parsed.as_ref().and_then(|value| value[name].as_str()).map(str::to_owned);
        let sentence = || {
            let text = String::from_utf8_lossy(body).trim().to_owned();
            if text.is_empty() {
                status.canonical_reason().unwrap_or("refused").to_owned()
            } else {
                text
            }
        };
        let mut message = field("message").unwrap_or_else(sentence);
        // The API server's complete message, which does not contain the reason.
        if status == StatusCode::UNAUTHORIZED && message == "Unauthorized" {
            message = "invalid or expired token".to_owned();
        }
        Self::Http {
            status: status.as_u16(),
            message,
            reason: field("reason").unwrap_or_default(),
        }
    }

    pub fn chain(&self) -> String {
        sahasra_error_chain::causes(self)
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Refused {
            code: refused.code(),
            message: refused.message,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed: {message}")]
pub struct Failure {
    pub code: FailureCode,
    /// Sequence number of the operation that failed first.
    pub sequence: u64,
    pub operation: String,
    pub message: String,
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        Self {
            code: failed.code(),
            sequence: failed.sequence,
            operation: if failed.operation.is_empty() {
                "the session".to_owned()
            } else {
                failed.operation
            },
            message: failed.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_contain_the_gateways_message() {
        let body = br#"{"kind":"Status","message":"gpusessions is forbidden","reason":"Forbidden","code":403}"#;
        let Error::Http { status, message, reason } = Error::http(StatusCode::FORBIDDEN, body) else {
            panic!("an error of HTTP was expected");
        };
        assert_eq!(
            (status, message.as_str(), reason.as_str()),
            (403, "gpusessions is forbidden", "Forbidden")
        );
        assert!(Error::http(StatusCode::BAD_GATEWAY, b"").to_string().contains("Bad Gateway"));
        assert!(
            Error::http(StatusCode::BAD_GATEWAY, b"no worker\n")
                .to_string()
                .starts_with("no worker")
        );
    }
}
