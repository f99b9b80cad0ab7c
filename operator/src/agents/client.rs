//! Unary calls to agents.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use sahasra_service::tls::TlsFault;
use sahasra_wire::{
    Message,
    grants::{AcquireRequest, AcquireResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse},
    inventory::Inventory,
    path,
};

use super::transport::{Http2, Transport};

/// Timeout of a unary call. An agent answers from its ledger, without blocking.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Errors of calls to agents.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the endpoint {0:?} is no URL")]
    Endpoint(String),
    /// The connection could not be opened, or broke.
    #[error("unreachable")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The agent uses TLS, and the operator has no authority to verify its certificate with.
    #[error(
        "it speaks TLS, and its certificate cannot be verified: start this operator with --worker-authority FILE, the authority that signed it"
    )]
    NoAuthority,
    /// The TLS handshake failed: one side rejected the other's certificate, or does not speak TLS.
    #[error("{}", remedy(.0))]
    Tls(TlsFault),
    /// The agent rejected the operator: this path requires a client certificate.
    #[error("it refused this operator: {0}")]
    Forbidden(String),
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The response body was cut off, or is too large.
    #[error("the answer broke off")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The status of the response is not 200.
    #[error("answered {0}: {1}")]
    Status(StatusCode, String),
    /// The response body is not the expected message.
    #[error("the answer does not decode")]
    Decode(#[from] sahasra_wire::frame::FrameError),
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
                "its certificate is for another name ({problem}): start this operator with --worker-server-name NAME, one that it is for"
            )
        }
        TlsFault::Certificate(problem) => {
            format!("its certificate is not accepted ({problem}): --worker-authority names who may have signed it")
        }
        TlsFault::Identity(problem) => format!(
            "it does not accept this operator's certificate ({problem}): --worker-client-certificate has to be of the authority in its \
             --tls-client-authority"
        ),
        TlsFault::Protocol(problem) => format!("TLS handshake failed ({problem})"),
    }
}

/// Client for unary calls to agents. Clones share the connections.
#[derive(Clone, Debug)]
pub struct AgentClient {
    transport: Arc<dyn Transport>,
}

impl Default for AgentClient {
    fn default() -> Self {
        Self::over(Arc::new(Http2::default()))
    }
}

impl AgentClient {
    /// Creates a client that uses `transport`.
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self { transport }
    }

    /// The transport that carries the calls.
    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Requests the agent's inventory: its devices, their load, its sessions, and all its grants.
    pub async fn inventory(&self, endpoint: &str) -> Result<Inventory, AgentError> {
        self.call(endpoint, path::INVENTORY, Bytes::new()).await
    }

    /// Requests the agent's devices and their load, without the grants.
    pub async fn load(&self, endpoint: &str) -> Result<Inventory, AgentError> {
        self.call(endpoint, path::LOAD, Bytes::new()).await
    }

    /// Requests slices of one device.
    pub async fn acquire(&self, endpoint: &str, request: &AcquireRequest) -> Result<AcquireResponse, AgentError> {
        self.call(endpoint, path::ACQUIRE, request.encode_to_vec().into()).await
    }

    /// Renews grants.
    pub async fn renew(&self, endpoint: &str, request: &RenewRequest) -> Result<RenewResponse, AgentError> {
        self.call(endpoint, path::RENEW, request.encode_to_vec().into()).await
    }

    /// Releases grants.
    pub async fn release(&self, endpoint: &str, request: &ReleaseRequest) -> Result<ReleaseResponse, AgentError> {
        self.call(endpoint, path::RELEASE, request.encode_to_vec().into()).await
    }

    async fn call<M: Message + Default>(&self, endpoint: &str, path: &'static str, message: Bytes) -> Result<M, AgentError> {
        let exchange = async {
            let bytes = self.transport.call(endpoint, path, message).await?;
            Ok(M::decode(bytes).map_err(sahasra_wire::frame::FrameError::from)?)
        };
        tokio::time::timeout(CALL_TIMEOUT, exchange)
            .await
            .unwrap_or(Err(AgentError::Timeout))
    }
}
