//! Registration of the agent at the API server: its `GpuWorker`, and a `Lease` that is its heartbeat.
//!
//! Two loops share nothing but flags. The **heartbeat** loop renews the `Lease` every few seconds: an idle agent writes nothing else. The
//! holder of the `Lease` is the node's agent ([`claim`]); an agent that does not hold it yet writes nothing else. The **status** loop
//! creates a missing `GpuWorker`, and writes its status after a change, at most once per interval. Serving needs neither: without an API
//! server both loops retry with increasing backoff up to a limit, and the agent continues.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use sahasra_crds::{GpuWorker, GpuWorkerSpec, gpu_worker::GpuWorkerStatus};
use sahasra_names::WorkerName;
use sahasra_service::backoff::Backoff;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;

pub mod claim;
mod status;

use claim::{BeatError, Claim};

pub use claim::Occupied;

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const HEARTBEAT_BACKOFF: Backoff = Backoff::milliseconds(500, 30_000);
const STATUS_BACKOFF: Backoff = Backoff::milliseconds(1_000, 30_000);
/// Interval at which the `GpuWorker` is read even when its status has not changed: it may have been deleted, or marked as stale while the
/// API server did not receive heartbeats.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// Names, address and intervals of a registration.
#[derive(Clone, Debug)]
pub struct RegistrationConfig {
    /// Node that the agent serves, which is also the name of the `GpuWorker`.
    pub node_name: WorkerName,
    /// Namespace of the heartbeat `Lease`.
    pub namespace: String,
    /// URL at which the operator reaches the agent.
    pub endpoint: String,
    pub heartbeat_interval: Duration,
    /// Least time between writes of the status.
    pub status_interval: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    #[error("API server timed out after {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    #[error("Lease {0} was written by another holder; retrying")]
    Moved(String),
}

async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RegistrationError> {
    Ok(timeout(CALL_TIMEOUT, request).await.map_err(|_| RegistrationError::Timeout)??)
}

/// Makes a call, and returns `None` if the object does not exist.
async fn found<T>(request: impl Future<Output = kube::Result<T>>) -> Result<Option<T>, RegistrationError> {
    match call(request).await {
        Ok(object) => Ok(Some(object)),
        Err(RegistrationError::Api(kube::Error::Api(answer))) if answer.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a random time between three quarters and five quarters of `time`.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.75 + fastrand::f64() / 2.0)
}

/// Registration of one agent, see the [module](self).
#[derive(Clone)]
pub struct Registration {
    config: RegistrationConfig,
    agent: Arc<Agent>,
    client: Client,
    /// The `GpuWorker` must be read again: the heartbeat paused for so long that the operator may have marked the worker as stale, or
    /// another holder wrote the heartbeat.
    stale: Arc<AtomicBool>,
    /// Cancelled once this agent owns the node.
    claimed: CancellationToken,
    /// Whether connections decide if the previous holder of the heartbeat is gone.
    probes: bool,
}

impl Registration {
    /// Creates a registration. Nothing is written before [`Registration::run`].
    pub fn new(config: RegistrationConfig, agent: Arc<Agent>, client: Client) -> Self {
        Self {
            config,
            agent,
            client,
            stale: Arc::default(),
            claimed: CancellationToken::new(),
            probes: true,
        }
    }

    /// Opens no connection to the previous holder of the heartbeat, which counts as gone.
    #[must_use]
    pub fn without_probes(mut self) -> Self {
        self.probes = false;
        self
    }

    /// Registers the agent and keeps it registered until `stop`; then writes the shutdown to its status.
    ///
    /// # Errors
    /// [`Occupied`] when the node has another agent: this agent must stop. The objects belong to the other agent then, and are left
    /// unchanged.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Occupied> {
        let over = stop.child_token();
        let heartbeats = async {
            let ended = self.heartbeats(&over).await;
            over.cancel();
            ended
        };
        let (ended, ()) = tokio::join!(heartbeats, self.statuses(&over));
        ended?;
        if !self.claimed.is_cancelled() {
            return Ok(());
        }
        if let Err(error) = self.write_status(&mut None, true).await {
            tracing::warn!(%error, "failed to report the shutdown to the API server");
        }
        Ok(())
    }

    async fn heartbeats(&self, stop: &CancellationToken) -> Result<(), Occupied> {
        let mut claim = Claim::default();
        let mut last = Instant::now();
        let mut failures = 0;
        loop {
            let beat = tokio::select! {
                beat = self.beat(&mut claim) => beat,
                () = stop.cancelled(), if !self.claimed.is_cancelled() => return Ok(()),
            };
            let pause = match beat {
                Ok(()) => {
                    if failures > 0 {
                        tracing::info!("heartbeat resumed");
                    }
                    if claim.beat() {
                        self.claimed.cancel();
                    }
                    if last.elapsed() > 2 * self.config.heartbeat_interval {
                        self.stale.store(true, Ordering::Release);
                    }
                    failures = 0;
                    last = Instant::now();
                    self.config.heartbeat_interval
                }
                Err(BeatError::Occupied(occupied)) => return Err(occupied),
                Err(BeatError::Call(error)) => {
                    // Retry at once: an agent that took the heartbeat over writes no status before its own second beat, and this agent
                    // takes the heartbeat back before then.
                    let is_taken = claim.held && failures == 0 && matches!(error, RegistrationError::Moved(_));
                    if failures == 0 {
                        tracing::warn!(%error, "heartbeat failed, retrying");
                    }
                    failures += 1;
                    // Once the API server is back, every second counts, so the pause never exceeds the heartbeat interval.
                    let pause = jittered(HEARTBEAT_BACKOFF.after(failures)).min(self.config.heartbeat_interval);
                    if is_taken { Duration::ZERO } else { pause }
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    fn lease_name(&self) -> String {
        format!("sahasra-worker-{}", self.config.node_name)
    }

    async fn beat(&self, claim: &mut Claim) -> Result<(), BeatError> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let name = self.lease_name();
        let spec = LeaseSpec {
            holder_identity: Some(self.agent.parts.boot_id.to_string()),
            lease_duration_seconds: Some((self.config.heartbeat_interval.as_secs() * 3).clamp(1, 3600) as i32),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        };
        if claim.version.is_none()
            && let Some(lease) = found(leases.get(&name)).await?
        {
            claim.version = self.may_take(&leases, lease, claim).await?;
        }
        if let Some(version) = claim.version.take() {
            let patch = Patch::Merge(serde_json::json!({ "metadata": { "resourceVersion": version }, "spec": &spec }));
            match found(leases.patch(&name, &PatchParams::default(), &patch)).await {
                Ok(Some(lease)) => {
                    claim.version = lease.metadata.resource_version;
                    return Ok(());
                }
                Ok(None) => {}
                Err(RegistrationError::Api(kube::Error::Api(answer))) if answer.code == 409 => {
                    // Another agent may have written the `GpuWorker` as well.
                    self.stale.store(true, Ordering::Release);
                    return Err(RegistrationError::Moved(name).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(name),
                owner_references: self.node().await?.map(|node| vec![owned_by(&node)]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
        };
        let created = call(leases.create(&PostParams::default(), &lease)).await?;
        claim.version = created.metadata.resource_version;
        Ok(())
    }

    async fn statuses(&self, stop: &CancellationToken) {
        tokio::select! {
            () = self.claimed.cancelled() => {}
            () = stop.cancelled() => return,
        }
        let mut stored = None;
        let mut read_at = Instant::now();
        let mut failures = 0;
        loop {
            if self.stale.swap(false, Ordering::AcqRel) || read_at.elapsed() > READ_INTERVAL {
                stored = None;
                read_at = Instant::now();
            }
            let pause = match self.write_status(&mut stored, false).await {
                Ok(()) => {
                    if failures > 0 {
                        tracing::info!("registered again");
                    }
                    failures = 0;
                    // Never shorter than the interval, so that a load that changes all the time costs one write per interval.
                    self.config.status_interval.mul_f64(1.0 + fastrand::f64() / 5.0)
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(%error, "failed to write the status, retrying");
                    }
                    failures += 1;
                    jittered(STATUS_BACKOFF.after(failures))
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Writes the status if it differs from the stored one, which is read if it is not known. Creates the `GpuWorker` if it does not exist.
    /// After an error, the stored status is unknown.
    async fn write_status(&self, known: &mut Option<GpuWorkerStatus>, shutting_down: bool) -> Result<(), RegistrationError> {
        let workers: Api<GpuWorker> = Api::all(self.client.clone());
        let name = &self.config.node_name;
        let stored = match known.take() {
            Some(status) => status,
            None => {
                let worker = match found(workers.get(name)).await? {
                    Some(worker) => worker,
                    None if shutting_down => return Ok(()),
                    None => self.create(&workers).await?,
                };
                if let Some(node) = self.node().await? {
                    self.agent
                        .set_node_labels(node.metadata.labels.as_ref().unwrap_or(&BTreeMap::new()));
                    let owner = owned_by(&node);
                    let owners = worker.metadata.owner_references.iter().flatten();
                    let node_is_owner = owners.clone().any(|other| other.uid == owner.uid);
                    if !node_is_owner {
                        let owners: Vec<&OwnerReference> = owners.filter(|other| other.kind != "Node").chain([&owner]).collect();
                        let patch = Patch::Merge(serde_json::json!({ "metadata": { "ownerReferences": owners } }));
                        call(workers.patch(name, &PatchParams::default(), &patch)).await?;
                    }
                }
                worker.status.unwrap_or_default()
            }
        };
        let (endpoint, conditions) = (&self.config.endpoint, stored.conditions.clone());
        let desired = status::desired(&self.agent, endpoint, conditions, shutting_down, Timestamp::now());
        if desired != stored {
            let patch = Patch::Merge(serde_json::json!({ "status": &desired }));
            call(workers.patch_status(name, &PatchParams::default(), &patch)).await?;
        }
        *known = Some(desired);
        Ok(())
    }

    async fn create(&self, workers: &Api<GpuWorker>) -> Result<GpuWorker, RegistrationError> {
        let mut worker = GpuWorker::new(
            &self.config.node_name,
            GpuWorkerSpec {
                node_name: self.config.node_name.to_string(),
            },
        );
        worker.metadata.owner_references = self.node().await?.map(|node| vec![owned_by(&node)]);
        let created = call(workers.create(&PostParams::default(), &worker)).await?;
        tracing::info!("registered");
        Ok(created)
    }

    /// Returns the `Node`, if it exists and the agent may read it.
    async fn node(&self) -> Result<Option<Node>, RegistrationError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        match found(nodes.get(&self.config.node_name)).await {
            Err(RegistrationError::Api(kube::Error::Api(answer))) if answer.code == 403 => Ok(None),
            other => other,
        }
    }
}

fn owned_by(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: Node::api_version(&()).into_owned(),
        kind: Node::kind(&()).into_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let longest = STATUS_BACKOFF.longest;
        let pauses: Vec<Duration> = (1..=12).map(|failures| jittered(STATUS_BACKOFF.after(failures))).collect();
        assert!(pauses[0] <= Duration::from_millis(1_250) && pauses[0] >= Duration::from_millis(750));
        assert!(pauses.iter().all(|pause| *pause <= longest.mul_f64(1.25)));
        assert!(pauses[11] >= longest.mul_f64(0.75));
    }
}
