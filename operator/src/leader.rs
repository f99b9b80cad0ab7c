//! Leader election among several operators: the leader is the holder of one coordination `Lease`.
//!
//! As elsewhere in Kubernetes, the holder renews a timestamp, and another operator takes over when the Lease has not changed for the lease
//! duration, measured by its own monotonic clock. Every write is a compare-and-set on the resource version. A holder whose Lease was deleted
//! creates it again, unless another operator did so first. An operator that finds its own identity in the Lease takes over at once, because
//! the holder is an earlier process of the same operator. An operator that loses leadership exits. Agents reject its remaining requests
//! because of their lower terms, and its remaining writes conflict with the terms in the objects.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use sahasra_service::causes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{clock::timestamp, objects::code};

pub const LEASE: &str = "sahasra-operator";

/// The leader renews the Lease after the lease duration divided by `RENEW_AT`, and retries a failed renewal after the lease duration
/// divided by `AGAIN_AT`. An outage of the API server of more than half of the lease duration thus leaves time for several attempts.
const RENEW_AT: u32 = 8;
const AGAIN_AT: u32 = 40;
/// Timeout of one attempt: the lease duration divided by `ATTEMPT`.
const ATTEMPT: u32 = 4;
/// The leader stops before another operator may lead, by the lease duration divided by `MARGIN`. The two count by their own clocks, whose
/// rates may differ by some thousandths, and the other began to count later.
const MARGIN: u32 = 20;

/// Causes in [`LeaderError::Silent`].
const NO_ANSWER: &str = "API server timed out";
const NOT_TRIED: &str = "the process did not run for so long";

/// Reasons for which an operator stopped leading.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    #[error("leadership lost to {0}")]
    Deposed(String),
    #[error("another process leads with the same identity {0:?}: start each operator with a distinct --leader-elect-identity")]
    SameIdentity(String),
    #[error("leadership lost: failed to renew the Lease {LEASE} for {lasts:?}: {cause}")]
    Silent { lasts: Duration, cause: String },
}

#[derive(Clone)]
pub struct Candidate {
    api: Api<Lease>,
    namespace: String,
    identity: String,
    timeout: Duration,
}

/// The last observed version of a Lease that another operator holds, and since when it has not changed.
struct Seen {
    version: Option<String>,
    since: Instant,
}

impl Candidate {
    /// A candidate named `identity` for the Lease in `namespace`, with a lease duration of `timeout`.
    pub fn new(client: Client, namespace: &str, identity: &str, timeout: Duration) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            timeout,
        }
    }

    /// Waits for leadership. Returns the Lease that was written, or `None` if `stop` was cancelled first.
    pub async fn win(&self, stop: &CancellationToken) -> Option<Lease> {
        let mut seen: Option<Seen> = None;
        loop {
            match self.try_take(&mut seen).await {
                Ok(Some(lease)) => {
                    tracing::info!(identity = self.identity, "leading");
                    return Some(lease);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(error = %causes(&error), "failed to read or write the leader Lease"),
            }
            tokio::select! {
                () = tokio::time::sleep(self.timeout / 8) => {}
                () = stop.cancelled() => return None,
            }
        }
    }

    /// Longest expected time between two answers of an available API server: twice the interval at which [`Candidate::keep`] renews the
    /// Lease.
    pub fn api_timeout(timeout: Duration) -> Duration {
        timeout / RENEW_AT * 2
    }

    /// Renews the Lease until `stop` is cancelled, then resigns. Calls `answered` at each renewal that the API server accepted. Fails when
    /// leadership is lost.
    pub async fn keep(&self, mut lease: Lease, stop: &CancellationToken, answered: impl Fn()) -> Result<(), LeaderError> {
        let lasts = self.timeout - self.timeout / MARGIN;
        let mut renewed = Instant::now();
        let mut next = renewed + self.timeout / RENEW_AT;
        let mut cause = NOT_TRIED.to_owned();
        // Renew times of writes without an answer: the API server may have stored any of them.
        let mut tried = vec![renew_time(&lease)];
        loop {
            let ends = renewed + lasts;
            tokio::select! {
                () = tokio::time::sleep_until(next.min(ends)) => {}
                () = stop.cancelled() => {
                    self.resign(lease).await;
                    return Ok(());
                }
            }
            let started = Instant::now();
            if started >= ends {
                return Err(LeaderError::Silent { lasts, cause });
            }
            next = started + self.timeout / AGAIN_AT;
            let renewal = self.renewed(lease.clone(), &self.identity);
            tried.push(renew_time(&renewal));
            let attempt = tokio::time::timeout_at((started + self.timeout / ATTEMPT).min(ends), self.send(&renewal));
            match attempt.await {
                Ok(Ok(written)) => {
                    answered();
                    lease = written;
                    tried = vec![renew_time(&lease)];
                    renewed = started;
                    cause = NOT_TRIED.to_owned();
                    next = started + self.timeout / RENEW_AT;
                }
                Ok(Err(error)) if code(&error) == 409 => {
                    let read = tokio::time::timeout_at((Instant::now() + self.timeout / ATTEMPT).min(ends), self.api.get_opt(LEASE));
                    match read.await {
                        Ok(Ok(Some(found))) => {
                            self.check_holder(&found, &tried)?;
                            lease = found;
                        }
                        Ok(Ok(None)) => lease = self.without_version(lease),
                        Ok(Err(error)) => {
                            cause = causes(&error);
                            tracing::warn!(error = cause, "failed to read the leader Lease");
                        }
                        Err(_) => {
                            cause = NO_ANSWER.to_owned();
                            tracing::warn!("timed out reading the leader Lease");
                        }
                    }
                }
                Ok(Err(error)) => {
                    cause = causes(&error);
                    tracing::warn!(error = cause, since = ?renewed.elapsed(), until = ?lasts, "failed to renew the leader Lease");
                    if code(&error) == 404 {
                        lease = self.without_version(lease);
                    }
                }
                Err(_) => {
                    cause = NO_ANSWER.to_owned();
                    tracing::warn!(since = ?renewed.elapsed(), until = ?lasts, "timed out renewing the leader Lease");
                }
            }
        }
    }

    /// Checks that this operator holds a Lease that changed, by one of the writes with the renew times `tried`.
    fn check_holder(&self, found: &Lease, tried: &[Option<i64>]) -> Result<(), LeaderError> {
        match holder(found) {
            Some(holder) if holder == self.identity => {}
            other => return Err(LeaderError::Deposed(other.unwrap_or("no holder").to_owned())),
        }
        if tried.contains(&renew_time(found)) {
            Ok(())
        } else {
            Err(LeaderError::SameIdentity(self.identity.clone()))
        }
    }

    /// The Lease after it was deleted: the next write creates it again. The create fails if another operator was faster.
    fn without_version(&self, lease: Lease) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.to_owned()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            ..lease
        }
    }

    async fn try_take(&self, seen: &mut Option<Seen>) -> Result<Option<Lease>, kube::Error> {
        let found = self.api.get_opt(LEASE).await?;
        let found = found.unwrap_or_else(|| self.without_version(Lease::default()));
        let other = holder(&found).filter(|holder| !holder.is_empty() && *holder != self.identity);
        if let Some(other) = other {
            let version = found.metadata.resource_version.clone();
            match seen {
                Some(seen) if seen.version == version => {
                    // The leader counts on the lease duration that it wrote, which may be longer than this operator's.
                    let written = found.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
                    let written = Duration::from_secs(u64::try_from(written).unwrap_or_default());
                    if seen.since.elapsed() < self.timeout.max(written) {
                        return Ok(None);
                    }
                    tracing::info!(other, "lease of the leader expired");
                }
                _ => {
                    tracing::info!(other, "waiting: another operator leads");
                    let since = Instant::now();
                    *seen = Some(Seen { version, since });
                    return Ok(None);
                }
            }
        }
        match self.send(&self.renewed(found, &self.identity)).await {
            Ok(lease) => Ok(Some(lease)),
            // Losing the race to another operator is not an error.
            Err(error) if code(&error) == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The Lease with the renew time, and with the holder if it changes, as the next write sends it.
    fn renewed(&self, mut lease: Lease, identity: &str) -> Lease {
        let now = MicroTime(timestamp());
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let before = spec.holder_identity.as_deref();
        if before != Some(identity) {
            // Counted as client-go does: the first leader does not count as a takeover, nor does a resignation.
            let takes_over = before.is_some() && !identity.is_empty();
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + i32::from(takes_over));
            spec.acquire_time = Some(now.clone());
        }
        spec.holder_identity = Some(identity.to_owned());
        spec.lease_duration_seconds = i32::try_from(self.timeout.as_secs().max(1)).ok();
        spec.renew_time = Some(now);
        lease
    }

    async fn send(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        match lease.metadata.resource_version {
            None => self.api.create(&PostParams::default(), lease).await,
            Some(_) => self.api.replace(LEASE, &PostParams::default(), lease).await,
        }
    }

    /// Clears the holder, so that another operator can lead at once.
    async fn resign(&self, lease: Lease) {
        if let Err(error) = self.send(&self.renewed(lease, "")).await {
            tracing::debug!(error = %causes(&error), "failed to release the leader Lease");
        }
    }
}

/// The renew time in microseconds, the precision in which the API server stores it.
fn renew_time(lease: &Lease) -> Option<i64> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0.as_microsecond())
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

#[cfg(test)]
mod tests;
