//! Errors of calls and streams to agents.

use std::time::Duration;

use http::StatusCode;
use sahasra_service::tls::TlsFault;
use sahasra_wire::{burst::OPEN_WITHIN, frame::FrameError};

/// Timeout of a unary call. An agent answers from its ledger, without blocking.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of an agent's answer to `Open`. It is longer than the time for which the agent waits for `Open`, so that the agent's rejection,
/// which carries the cause, arrives before this timeout.
pub(super) const OPEN_TIMEOUT: Duration = OPEN_WITHIN.saturating_add(Duration::from_secs(5));

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("invalid endpoint {0:?}: expected a URL")]
    Endpoint(String),
    #[error("unreachable")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no CA to verify its TLS certificate: start this operator with --worker-ca-file FILE, the CA that signed it")]
    NoAuthority,
    #[error("{}", remedy(.0))]
    Tls(TlsFault),
    /// The agent rejected the operator: this path requires a client certificate.
    #[error("rejected this operator: {0}")]
    Forbidden(String),
    #[error("timed out after {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    #[error("connection lost while reading the response")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("responded with {0}: {1}")]
    Status(StatusCode, String),
    #[error("failed to decode the response")]
    Decode(#[from] FrameError),
}

impl AgentError {
    /// Category of the error, as a label of metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Endpoint(_) => "agent_endpoint",
            Self::Unreachable(_) => "agent_unreachable",
            Self::NoAuthority | Self::Tls(_) => "agent_tls",
            Self::Forbidden(_) => "agent_forbidden",
            Self::Timeout => "agent_timeout",
            Self::Body(_) | Self::Decode(_) => "agent_protocol",
            Self::Status(..) => "agent_status",
        }
    }

    /// Description of the misconfiguration that prevents calls to the agent; `None` if the error has another cause.
    pub fn misconfiguration(&self) -> Option<String> {
        match self {
            Self::NoAuthority | Self::Tls(_) | Self::Forbidden(_) => Some(self.to_string()),
            _ => None,
        }
    }
}

/// Description of a TLS error and of its remedy.
fn remedy(fault: &TlsFault) -> String {
    match fault {
        TlsFault::Name(problem) => {
            format!(
                "its certificate is for another name ({problem}): start this operator with --worker-server-name NAME, a name in the \
                 certificate"
            )
        }
        TlsFault::Certificate(problem) => {
            format!("its certificate is not trusted ({problem}): set --worker-ca-file to the CA that signed it")
        }
        TlsFault::Identity(problem) => format!(
            "rejected this operator's certificate ({problem}): --worker-client-cert-file must be signed by the CA in its --client-ca-file"
        ),
        TlsFault::Protocol(problem) => format!("TLS handshake failed ({problem})"),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("failed to open the stream")]
    Open(#[from] AgentError),
    #[error("timed out opening the stream after {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    #[error("connection lost")]
    Cut(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("protocol error")]
    Protocol(#[from] FrameError),
}
