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

/// How long an agent may take to answer a unary call: it only consults its ledger.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a call to an agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The endpoint is no URL.
    #[error("the endpoint {0:?} is no URL")]
    Endpoint(String),
    /// Not connected, or cut off.
    #[error("unreachable")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It speaks TLS, and nothing is there to verify it by.
    #[error(
        "it speaks TLS, and its certificate cannot be verified: start this operator with --worker-authority FILE, the authority that signed it"
    )]
    NoAuthority,
    /// One side does not accept the other's certificate, or does not speak TLS.
    #[error("{}", remedy(.0))]
    Tls(TlsFault),
    /// The agent requires a client certificate on this path.
    #[error("it refused this operator: {0}")]
    Forbidden(String),
    /// Nothing came in time.
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The body broke off or is too large.
    #[error("the answer broke off")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another status than 200.
    #[error("answered {0}: {1}")]
    Status(StatusCode, String),
    /// The body is not the message.
    #[error("the answer does not decode")]
    Decode(#[from] sahasra_wire::frame::FrameError),
}

impl AgentError {
    /// Category for metrics.
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

    /// What a person has to change before the agent can be called at all, if that is why.
    pub fn misconfiguration(&self) -> Option<String> {
        match self {
            Self::NoAuthority | Self::Tls(_) | Self::Forbidden(_) => Some(self.to_string()),
            _ => None,
        }
    }
}

/// What is wrong, and what to do.
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

/// Calls agents. Clones share the connections.
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
    /// A client whose messages are carried by `transport`.
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self { transport }
    }

    /// What carries the messages.
    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// All that the agent has and has lent.
    pub async fn inventory(&self, endpoint: &str) -> Result<Inventory, AgentError> {
        self.call(endpoint, path::INVENTORY, Bytes::new()).await
    }

    /// What the agent has and how loaded it is, without the grants.
    pub async fn load(&self, endpoint: &str) -> Result<Inventory, AgentError> {
        self.call(endpoint, path::LOAD, Bytes::new()).await
    }

    /// Asks one device for slices.
    pub async fn acquire(&self, endpoint: &str, request: &AcquireRequest) -> Result<AcquireResponse, AgentError> {
        self.call(endpoint, path::ACQUIRE, request.encode_to_vec().into()).await
    }

    /// Extends grants.
    pub async fn renew(&self, endpoint: &str, request: &RenewRequest) -> Result<RenewResponse, AgentError> {
        self.call(endpoint, path::RENEW, request.encode_to_vec().into()).await
    }

    /// Gives grants back.
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
