//! Which agent a node's name belongs to: the one that holds the heartbeat.
//!
//! An agent that starts finds the holder of the heartbeat to be itself, none, or another boot. Another one is as a rule an agent that has
//! ended without a word: its address is this agent's own now, or connections to it are refused, and the heartbeat is taken over at once. In
//! all other cases, silence included, the heartbeat is watched for its lease duration: one that is renewed is of an agent that lives, and
//! this one must not serve the node as well.
//!
//! Every beat names the version that the one before left. So two agents that both believe to hold the node learn of each other with the
//! next beat, and the one that took it over gives way. Until its second beat it writes no status, save where it has the address of the
//! holder before it.

use std::{io, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use sahasra_crds::{GpuWorker, conditions, gpu_worker::GpuWorkerStatus};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{Registration, RegistrationError, call, found, status::SHUTTING_DOWN};

/// How long an agent may take to accept a connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);
/// A heartbeat that does not say how long it lasts is watched for this long.
const UNSAID: Duration = Duration::from_secs(15);
/// It is looked at so many times.
const LOOKS: u32 = 20;

/// What became of a connection to the address of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was accepted.
    Accepted,
    /// It was refused: nothing listens there.
    Refused,
    /// Neither: the address is gone, or a NetworkPolicy drops what agents send to each other.
    Silent,
}

/// Connects to the address of a URL.
pub type Probe = Arc<dyn Fn(String) -> BoxFuture<'static, Answer> + Send + Sync>;

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
    /// The holder from which it is taken over has another address, and may live.
    is_elsewhere: bool,
}

impl Hold {
    /// A beat was written. Gives whether the node is this agent's: a holder at another address that lives takes the heartbeat back before
    /// the second beat.
    pub(super) fn beat(&mut self) -> bool {
        let is_first = !self.held;
        self.held = true;
        if let Some(other) = self.replacing.take() {
            self.replaced = Some(other);
        }
        !(is_first && self.is_elsewhere)
    }

    fn replace(&mut self, holder: String, is_elsewhere: bool) {
        self.replacing = Some(holder);
        self.is_elsewhere = is_elsewhere;
    }
}

/// A connection to the host and port of the URL.
pub fn connects() -> Probe {
    Arc::new(|endpoint| {
        Box::pin(async move {
            let Ok(uri) = endpoint.parse::<http::Uri>() else {
                return Answer::Silent;
            };
            let Some(host) = uri.host() else { return Answer::Silent };
            let default = if uri.scheme() == Some(&http::uri::Scheme::HTTPS) { 443 } else { 80 };
            let address = (host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(default));
            match timeout(ACCEPT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(_)) => Answer::Accepted,
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Answer::Refused,
                Ok(Err(_)) | Err(_) => Answer::Silent,
            }
        })
    })
}

impl Registration {
    /// The version of the heartbeat that may be taken.
    pub(super) async fn may_take(&self, leases: &Api<Lease>, lease: Lease, hold: &mut Hold) -> Result<Option<String>, BeatError> {
        let other = holder(&lease);
        if other.is_empty() || other == self.agent.boot_id() {
            return Ok(lease.metadata.resource_version);
        }
        let status = self.status_of(&other).await?;
        let endpoint = status.as_ref().and_then(|status| status.endpoint.clone());
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
            return Ok(lease.metadata.resource_version);
        }
        if endpoint.as_ref() == Some(&self.config.endpoint) {
            hold.replace(other, false);
            return Ok(lease.metadata.resource_version);
        }
        let is_gone = match endpoint {
            Some(endpoint) => match (self.probe)(endpoint).await {
                Answer::Accepted => false,
                Answer::Refused => true,
                // It has written its last beat, as the pod before this one does in a rolling update.
                Answer::Silent => status.is_some_and(|status| has_shut_down(&status)),
            },
            None => false,
        };
        let version = if is_gone {
            lease.metadata.resource_version
        } else {
            self.watch(leases, lease, occupied).await?
        };
        hold.replace(other, true);
        Ok(version)
    }

    /// Watches another agent's heartbeat for its lease duration. Gives its version then.
    async fn watch(&self, leases: &Api<Lease>, lease: Lease, occupied: Occupied) -> Result<Option<String>, BeatError> {
        let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let (before, seconds) = (renewed(&lease), lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds));
        let lasts = seconds.map_or(UNSAID, |seconds| Duration::from_secs(seconds.clamp(1, 60) as u64));
        tracing::info!(
            boot = occupied.boot,
            ?lasts,
            "another agent may serve this node: watching its heartbeat"
        );
        let until = Instant::now() + lasts;
        let mut version = lease.metadata.resource_version;
        while Instant::now() < until {
            sleep(lasts / LOOKS).await;
            let now = call(leases.get(&self.lease_name())).await?;
            if holder(&now) != occupied.boot {
                // Given back, or taken by a third: from the start.
                return Err(RegistrationError::Moved(self.lease_name()).into());
            }
            // Others may write the Lease as well: its labels, its annotations.
            if renewed(&now) != before {
                return Err(occupied.into());
            }
            version = now.metadata.resource_version;
        }
        Ok(version)
    }

    /// What the agent of that boot says of itself.
    async fn status_of(&self, boot: &str) -> Result<Option<GpuWorkerStatus>, RegistrationError> {
        let workers: Api<GpuWorker> = Api::all(self.client.clone());
        let worker = found(workers.get(&self.config.node_name)).await?;
        let status = worker.and_then(|worker| worker.status);
        Ok(status.filter(|status| status.boot_id.as_deref() == Some(boot)))
    }
}

fn holder(lease: &Lease) -> String {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    holder.unwrap_or_default()
}

fn has_shut_down(status: &GpuWorkerStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == conditions::READY && condition.reason == SHUTTING_DOWN)
}
