//! Unary calls to agents: HTTP/2 with prior knowledge, one connection an agent, shared with its burst streams.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use sahasra_wire::{
    CONTENT_TYPE, Message,
    grants::{AcquireRequest, AcquireResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse},
    inventory::Inventory,
    path,
};

/// How long an agent may take to answer a unary call: it only consults its ledger.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection that is not made by then never will be, on a cluster's network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer to a unary call: an inventory of a hundred thousand grants.
const MAX_ANSWER_BYTES: usize = 16 << 20;

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why a call to an agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The endpoint is no URL.
    #[error("the endpoint {0:?} is no URL")]
    Endpoint(String),
    /// Not connected, or cut off.
    #[error("unreachable")]
    Unreachable(#[source] hyper_util::client::legacy::Error),
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
            Self::Timeout => "agent_timeout",
            Self::Body(_) | Self::Decode(_) => "agent_protocol",
            Self::Status(..) => "agent_status",
        }
    }
}

/// Calls agents. Clones share the connections.
#[derive(Clone, Debug)]
pub struct AgentClient {
    http: Client<HttpConnector, Body>,
}

impl Default for AgentClient {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let http = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(300))
            .http2_initial_stream_window_size(1 << 20)
            .http2_initial_connection_window_size(8 << 20)
            // An agent that vanished without a word is noticed within ten seconds, if anything is open to it.
            .http2_keep_alive_interval(Duration::from_secs(5))
            .http2_keep_alive_timeout(Duration::from_secs(5))
            .build(connector);
        Self { http }
    }
}

impl AgentClient {
    /// All that the agent has and has lent.
    pub async fn inventory(&self, endpoint: &str) -> Result<Inventory, AgentError> {
        self.call(endpoint, Method::GET, path::INVENTORY, Bytes::new()).await
    }

    /// Asks one device for slices.
    pub async fn acquire(&self, endpoint: &str, request: &AcquireRequest) -> Result<AcquireResponse, AgentError> {
        self.call(endpoint, Method::POST, path::ACQUIRE, request.encode_to_vec().into())
            .await
    }

    /// Extends grants.
    pub async fn renew(&self, endpoint: &str, request: &RenewRequest) -> Result<RenewResponse, AgentError> {
        self.call(endpoint, Method::POST, path::RENEW, request.encode_to_vec().into()).await
    }

    /// Gives grants back.
    pub async fn release(&self, endpoint: &str, request: &ReleaseRequest) -> Result<ReleaseResponse, AgentError> {
        self.call(endpoint, Method::POST, path::RELEASE, request.encode_to_vec().into())
            .await
    }

    async fn call<M: Message + Default>(&self, endpoint: &str, method: Method, path: &str, body: Bytes) -> Result<M, AgentError> {
        let exchange = async {
            let response = self.request(endpoint, method, path, Full::new(body).boxed_unsync()).await?;
            let status = response.status();
            let bytes = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(AgentError::Body)?
                .to_bytes();
            if status != StatusCode::OK {
                return Err(AgentError::Status(status, excerpt(&bytes)));
            }
            Ok(M::decode(bytes).map_err(sahasra_wire::frame::FrameError::from)?)
        };
        tokio::time::timeout(CALL_TIMEOUT, exchange)
            .await
            .unwrap_or(Err(AgentError::Timeout))
    }

    pub(super) async fn request(&self, endpoint: &str, method: Method, path: &str, body: Body) -> Result<Response<Incoming>, AgentError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", endpoint.trim_end_matches('/')))
            .header(http::header::CONTENT_TYPE, CONTENT_TYPE)
            .body(body)
            .map_err(|_| AgentError::Endpoint(endpoint.to_owned()))?;
        self.http.request(request).await.map_err(AgentError::Unreachable)
    }
}

/// The beginning of a refusal's text.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).trim().to_owned()
}
