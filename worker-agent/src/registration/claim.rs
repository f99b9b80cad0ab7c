//! Claim of a node: a node belongs to the agent that holds its heartbeat `Lease`.
//!
//! A starting agent takes the heartbeat if it is the holder itself or there is none. Another holder is usually an agent that ended without
//! releasing the heartbeat. It is taken over at once if the holder's address is now this agent's own, if connections to that address are
//! refused, or if the address is silent and the holder's status reports its shutdown. In all other cases the heartbeat is watched for its
//! lease duration: if it is renewed, its holder is alive, and this agent must not serve the node.
//!
//! Every beat is conditional on the resource version that the previous beat left. Two agents that both believe they own the node thus
//! discover each other with the next beat, and the one that took the heartbeat over gives way. An agent that took it over from a holder at
//! another address writes no status before its second beat.

use std::{io, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use sahasra_crds::{GpuWorker, conditions, gpu_worker::GpuWorkerStatus};
use sahasra_names::{BootId, WorkerName};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{Registration, RegistrationError, call, found, status::SHUTTING_DOWN};

/// Timeout for an agent to accept a connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a heartbeat without a lease duration is watched.
const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(15);
/// Number of polls while a heartbeat is watched.
const POLLS: u32 = 20;

/// Outcome of a connection to the address of a URL.
enum Probe {
    Accepted,
    /// The connection was refused: nothing listens at the address.
    Refused,
    /// Neither accepted nor refused: the address is gone, or a NetworkPolicy drops connections between agents.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} already has an agent, boot {boot}{}: stop that agent, or set another --node-name for this one", at(.endpoint))]
pub struct Occupied {
    pub node: WorkerName,
    /// Boot id of the other agent.
    pub boot: BootId,
    /// URL of the other agent, if known.
    pub endpoint: Option<String>,
}

fn at(endpoint: &Option<String>) -> String {
    endpoint.as_ref().map_or_else(String::new, |endpoint| format!(" at {endpoint}"))
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BeatError {
    /// The call failed; a retry may succeed.
    #[error(transparent)]
    Call(#[from] RegistrationError),
    /// Another agent owns the node, so retries are pointless.
    #[error(transparent)]
    Occupied(#[from] Occupied),
}

/// State of this agent's claim on the node.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// Resource version of the heartbeat after this agent's last beat.
    pub version: Option<String>,
    /// This agent has held the heartbeat before.
    pub held: bool,
    /// Holder from which the next beat takes the heartbeat over.
    replacing: Option<BootId>,
    /// Holder from which this agent took the heartbeat over.
    replaced: Option<BootId>,
    /// The holder from which the heartbeat is taken over has another address, and may be alive.
    is_elsewhere: bool,
}

impl Claim {
    /// Records a successful beat. Returns whether the node belongs to this agent: after a takeover from another address only the second
    /// beat proves that, because a living holder takes the heartbeat back before it.
    pub(super) fn beat(&mut self) -> bool {
        let is_first = !self.held;
        self.held = true;
        if let Some(other) = self.replacing.take() {
            self.replaced = Some(other);
        }
        !(is_first && self.is_elsewhere)
    }

    fn replace(&mut self, holder: BootId, is_elsewhere: bool) {
        self.replacing = Some(holder);
        self.is_elsewhere = is_elsewhere;
    }
}

/// Tries to connect to the host and port of the URL.
async fn probe(endpoint: &str) -> Probe {
    let Ok(uri) = endpoint.parse::<http::Uri>() else {
        return Probe::Silent;
    };
    let Some(host) = uri.host() else { return Probe::Silent };
    let default = if uri.scheme() == Some(&http::uri::Scheme::HTTPS) { 443 } else { 80 };
    let address = (host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(default));
    match timeout(ACCEPT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Probe::Accepted,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Probe::Refused,
        Ok(Err(_)) | Err(_) => Probe::Silent,
    }
}

impl Registration {
    /// Returns the resource version at which this agent may write the heartbeat, or [`Occupied`] if the holder is alive.
    pub(super) async fn may_take(&self, leases: &Api<Lease>, lease: Lease, claim: &mut Claim) -> Result<Option<String>, BeatError> {
        let other = holder(&lease);
        if other.is_empty() || self.agent.parts.boot_id == other {
            return Ok(lease.metadata.resource_version);
        }
        let status = self.status_of(&other).await?;
        let endpoint = status.as_ref().and_then(|status| status.endpoint.clone());
        let occupied = Occupied {
            node: self.config.node_name.clone(),
            boot: other.clone(),
            endpoint: endpoint.clone(),
        };
        if claim.replaced.as_ref() == Some(&other) {
            // This agent took the heartbeat over because its holder seemed gone, but the holder is alive.
            return Err(occupied.into());
        }
        if claim.held {
            tracing::error!(
                boot = %other,
                endpoint,
                "another agent has claimed this node and is requested to stop: set a unique --node-name for each agent"
            );
            return Ok(lease.metadata.resource_version);
        }
        if endpoint.as_ref() == Some(&self.config.endpoint) {
            claim.replace(other, false);
            return Ok(lease.metadata.resource_version);
        }
        let is_gone = match endpoint {
            Some(_) if !self.probes => true,
            Some(endpoint) => match probe(&endpoint).await {
                Probe::Accepted => false,
                Probe::Refused => true,
                // The holder has written its last beat, as the previous pod does in a rolling update.
                Probe::Silent => status.is_some_and(|status| has_shut_down(&status)),
            },
            None => false,
        };
        let version = if is_gone {
            lease.metadata.resource_version
        } else {
            self.watch(leases, lease, occupied).await?
        };
        claim.replace(other, true);
        Ok(version)
    }

    /// Watches another agent's heartbeat for its lease duration. Returns its resource version, or [`Occupied`] if it was renewed.
    async fn watch(&self, leases: &Api<Lease>, lease: Lease, occupied: Occupied) -> Result<Option<String>, BeatError> {
        let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let (before, seconds) = (renewed(&lease), lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds));
        let lasts = seconds.map_or(DEFAULT_LEASE_DURATION, |seconds| Duration::from_secs(seconds.clamp(1, 60) as u64));
        tracing::info!(
            boot = %occupied.boot,
            ?lasts,
            "another agent may serve this node: watching its heartbeat"
        );
        let until = Instant::now() + lasts;
        let mut version = lease.metadata.resource_version;
        while Instant::now() < until {
            sleep(lasts / POLLS).await;
            let now = call(leases.get(&self.lease_name())).await?;
            if holder(&now) != occupied.boot {
                // The holder released the heartbeat, or a third agent took it: start over.
                return Err(RegistrationError::Moved(self.lease_name()).into());
            }
            // Compare the renew time, because others may write labels or annotations of the `Lease`.
            if renewed(&now) != before {
                return Err(occupied.into());
            }
            version = now.metadata.resource_version;
        }
        Ok(version)
    }

    /// Returns the status of the `GpuWorker`, if the agent of that boot wrote it.
    async fn status_of(&self, boot: &BootId) -> Result<Option<GpuWorkerStatus>, RegistrationError> {
        let workers: Api<GpuWorker> = Api::all(self.client.clone());
        let worker = found(workers.get(&self.config.node_name)).await?;
        let status = worker.and_then(|worker| worker.status);
        Ok(status.filter(|status| status.boot_id.as_deref() == Some(boot.as_str())))
    }
}

fn holder(lease: &Lease) -> BootId {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
    holder.map(BootId::from).unwrap_or_default()
}

fn has_shut_down(status: &GpuWorkerStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == conditions::READY && condition.reason == SHUTTING_DOWN)
}
