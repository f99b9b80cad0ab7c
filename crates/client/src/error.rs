//! Why something did not happen, by cause.

use std::{fmt, io, sync::Arc};

use sahasra_wire::session::{Failed, FailureCode, RefusalCode, Refused, frame::FrameError};

/// Everything that can go wrong between a caller and a session. It is cheap to clone: what ends a session is told to every caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed; the session goes on.
    #[error("{0}")]
    Failed(Failure),
    /// The peer cannot be reached.
    #[error("{peer} cannot be reached")]
    Unreachable {
        /// Host and port.
        peer: String,
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// The peer answered a request with an error of HTTP.
    #[error("{message} (HTTP {status})")]
    Http {
        /// Status of the response.
        status: u16,
        /// The peer's sentence.
        message: String,
        /// Reason of a `metav1.Status`, such as `NotFound`; empty when the body is none.
        reason: String,
    },
    /// The peer's answer makes no sense.
    #[error("{0}")]
    Protocol(String),
    /// The executor refuses the connection.
    #[error("the session refuses the connection: {message}")]
    Refused {
        /// The cause.
        code: RefusalCode,
        /// The executor's sentence.
        message: String,
    },
    /// The connection broke and another one could not take its place within the grace: what the session held is gone.
    #[error("the connection to the session is lost and could not be taken up again")]
    Lost(#[source] Arc<Error>),
    /// The executor that held the session's tensors is gone, with all of them.
    #[error("{0}")]
    WorkerLost(Box<Loss>),
    /// The session was closed by this client.
    #[error("the session is closed")]
    Closed,
    /// The session object failed or ended.
    #[error("the session ended: {reason}: {message}")]
    Ended {
        /// Reason of its condition, such as `Expired`.
        reason: String,
        /// Message of its condition.
        message: String,
    },
    /// The session has no device, and waiting for one ended.
    #[error("no device has room for the session: {0}")]
    NoCapacity(String),
    /// It took longer than the caller was ready to wait.
    #[error("{0} did not come about within the time given")]
    Timeout(&'static str),
    /// What the caller gave does not fit.
    #[error("{0}")]
    Invalid(String),
    /// URL, certificates or token cannot be used.
    #[error("{0}")]
    Configuration(String),
}

/// A worker that is lost, and what was lost with it. What is not known is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Namespace and name of the session, with a slash between them.
    pub session: String,
    /// Where it was: the worker, perhaps with the device, or the worker's address.
    pub worker: String,
    /// The operation that did not end: what was waited for, and the last program that was to run before it.
    pub operation: String,
    /// How it showed.
    pub reason: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the worker")?;
        if !self.worker.is_empty() {
            write!(formatter, " {}", self.worker)?;
        }
        if !self.session.is_empty() {
            write!(formatter, " of session {}", self.session)?;
        }
        formatter.write_str(" is lost, with all that the session had there")?;
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

    /// With what a caller knows of a lost worker and the error does not say.
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

    /// With the causes beneath it, as one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(next) = cause {
            text.push_str(": ");
            text.push_str(&next.to_string());
            cause = next.source();
        }
        text
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

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed: {message}")]
pub struct Failure {
    /// The cause.
    pub code: FailureCode,
    /// Number of the operation that it began with.
    pub sequence: u64,
    /// That operation in words.
    pub operation: String,
    /// For people.
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
