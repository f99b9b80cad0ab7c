//! Which agent a node's name belongs to: the one that holds the heartbeat.
//!
//! An agent that starts finds the holder of the heartbeat to be itself, none, or another boot. Another one is as a rule an agent that has
//! ended without a word: nothing answers at its address any more, or that is this agent's own now, and the heartbeat is taken over at once.
//! Where something answers, the heartbeat is watched for as long as it promises to last: one that moves is of an agent that lives, and
//! this one must not serve the node as well.
//!
//! Every beat names the version that the one before left. So two agents that both believe to hold the node learn of each other with the
//! next beat, and the one that took it over gives way.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use sahasra_crds::GpuWorker;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{Registration, RegistrationError, call, found};

/// An agent that accepts no connection within this is gone.
const ANSWER: Duration = Duration::from_secs(1);
/// A heartbeat that does not say how long it lasts is watched for this long.
const UNSAID: Duration = Duration::from_secs(15);
/// It is looked at so many times.
const LOOKS: u32 = 20;

/// Whether something answers at the address of a URL.
pub type Probe = Arc<dyn Fn(String) -> BoxFuture<'static, bool> + Send + Sync>;

/// The node has another agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} has an agent already, boot {boot}{}: a node has one; stop that one, or start this one with another --node-name", at(.endpoint))]
pub struct Occupied {
    /// Name of the node.
    pub node: String,
    /// Boot of the other agent.
    pub boot: String,
    /// Its URL, where that is known.
    pub endpoint: Option<String>,
}

fn at(endpoint: &Option<String>) -> String {
    endpoint.as_ref().map_or_else(String::new, |endpoint| format!(" at {endpoint}"))
}

/// Why a beat failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BeatError {
    /// The call failed; the next may succeed.
    #[error(transparent)]
    Call(#[from] RegistrationError),
    /// Another agent holds the heartbeat: no further one will.
    #[error(transparent)]
    Occupied(#[from] Occupied),
}

/// What this agent knows of its hold on the node.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Version of the heartbeat after this agent's last beat.
    pub version: Option<String>,
    /// It has held it before.
    pub held: bool,
    /// The holder from which the next beat takes it over.
    replacing: Option<String>,
    /// The holder from which it was taken over.
    replaced: Option<String>,
}

impl Hold {
    /// A beat was written: the node is this agent's.
    pub(super) fn beat(&mut self) {
        self.held = true;
        if let Some(other) = self.replacing.take() {
            self.replaced = Some(other);
        }
    }
}

/// A connection to the host and port of the URL.
pub fn connects() -> Probe {
    Arc::new(|endpoint| {
        Box::pin(async move {
            let Ok(uri) = endpoint.parse::<http::Uri>() else { return false };
            let Some(host) = uri.host() else { return false };
            let default = if uri.scheme() == Some(&http::uri::Scheme::HTTPS) { 443 } else { 80 };
            let address = (host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(default));
            matches!(timeout(ANSWER, TcpStream::connect(address)).await, Ok(Ok(_)))
        })
    })
}

impl Registration {
    /// Whether the heartbeat may be taken, as it stands now.
    pub(super) async fn may_take(&self, leases: &Api<Lease>, lease: &Lease, hold: &mut Hold) -> Result<(), BeatError> {
        let holder = |lease: &Lease| {
            lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone())
                .unwrap_or_default()
        };
        let other = holder(lease);
        if other.is_empty() || other == self.agent.boot_id() {
            return Ok(());
        }
        let endpoint = self.endpoint_of(&other).await?;
        let occupied = Occupied {
            node: self.config.node_name.clone(),
            boot: other.clone(),
            endpoint: endpoint.clone(),
        };
        if hold.replaced.as_ref() == Some(&other) {
            // It was taken for gone, and is not.
            return Err(occupied.into());
        }
        if hold.held {
            tracing::error!(
                boot = other,
                endpoint,
                "another agent has claimed this node: it is told to end. A node has one agent; give each a --node-name of its own"
            );
            return Ok(());
        }
        if let Some(endpoint) = endpoint
            && (endpoint == self.config.endpoint || !(self.probe)(endpoint).await)
        {
            hold.replacing = Some(other);
            return Ok(());
        }
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let lasts = seconds.map_or(UNSAID, |seconds| Duration::from_secs(seconds.clamp(1, 60) as u64));
        tracing::info!(boot = other, ?lasts, "another agent may serve this node: watching its heartbeat");
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            sleep(lasts / LOOKS).await;
            let now = call(leases.get(&self.lease_name())).await?;
            if holder(&now) != other {
                // Given back, or taken by a third: from the start.
                return Err(RegistrationError::Moved.into());
            }
            if now.resource_version() != lease.resource_version() {
                return Err(occupied.into());
            }
        }
        hold.replacing = Some(other);
        Ok(())
    }

    /// Where the agent of that boot says that it is.
    async fn endpoint_of(&self, boot: &str) -> Result<Option<String>, RegistrationError> {
        let workers: Api<GpuWorker> = Api::all(self.client.clone());
        let worker = found(workers.get(&self.config.node_name)).await?;
        let status = worker.and_then(|worker| worker.status);
        Ok(status
            .filter(|status| status.boot_id.as_deref() == Some(boot))
            .and_then(|status| status.endpoint))
    }
}
