//! Unary calls to agents.

use std::sync::Arc;

use bytes::Bytes;
use sahasra_wire::{
    Message,
    grants::{AcquireRequest, AcquireResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse},
    inventory::Inventory,
    path,
};

use super::{
    error::{AgentError, CALL_TIMEOUT},
    transport::{Http2, Transport},
};

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
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self { transport }
    }

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

    pub async fn acquire(&self, endpoint: &str, request: &AcquireRequest) -> Result<AcquireResponse, AgentError> {
        self.call(endpoint, path::ACQUIRE, request.encode_to_vec().into()).await
    }

    pub async fn renew(&self, endpoint: &str, request: &RenewRequest) -> Result<RenewResponse, AgentError> {
        self.call(endpoint, path::RENEW, request.encode_to_vec().into()).await
    }

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
