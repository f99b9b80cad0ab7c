//! Decides the next step for a session: a pure function of the session, its lease and the time.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{Resource, ResourceExt, core::ObjectMeta};
use sahasra_crds::{
    GpuSession, GpuSessionStatus, VramLease, VramLeaseSpec,
    conditions::{self, FAILED, GRANTED, PLACED, READY},
    seconds,
    vram_lease::{LeaseOwner, Renewal, SliceBounds, SliceSpec},
};

use crate::{
    leases::GrantedReason,
    objects::{self, integer},
    pool::SeenSession,
};

/// Requeue intervals. A change of the lease requeues the session, but a change in the gap between two watches does not. So the session is
/// requeued soon while it waits for the deletion of the lease (`GOING`), and occasionally otherwise (`STANDING`).
const GOING: Duration = Duration::from_secs(1);
const STANDING: Duration = Duration::from_secs(60);
/// Minimum interval between changes of the statistics in the status. Live statistics are available from the agent.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum requeue interval for an idle timeout. An agent's report may be a few seconds old, so the timeout can seem due when it is not.
const MIN_RECHECK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LeaseStep {
    #[default]
    Keep,
    /// No lease exists, but one is needed.
    Create,
    Update,
    Delete,
}

/// Writes that a reconcile of a session must make.
#[derive(Debug, Default)]
pub(super) struct Decision {
    pub lease: LeaseStep,
    pub status: Option<GpuSessionStatus>,
    pub statistics: bool,
    /// Event to publish: whether it is a warning, its reason and its text.
    pub event: Option<(bool, &'static str, String)>,
    /// Whether the finalizer must be removed, because the session has no slice any more.
    pub remove_finalizer: bool,
    /// Time after which to reconcile again without an event.
    pub again: Option<Duration>,
}

impl Decision {
    pub(super) fn ends(&self) -> bool {
        self.lease == LeaseStep::Delete && self.status.is_some()
    }
}

struct End {
    reason: &'static str,
    message: String,
}

fn end<T>(reason: &'static str, message: String) -> Result<T, End> {
    Err(End { reason, message })
}

/// Name of the session's lease, which is unique to the session.
pub(super) fn lease_name(session: &GpuSession) -> String {
    objects::derived_name(&session.name_any(), &session.uid().unwrap_or_default(), "")
}

pub(super) fn is_of(lease: &VramLease, session: &GpuSession) -> bool {
    let uid = session.uid();
    lease.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
}

/// The lease that a session needs. `lasts` is its TTL: how long the slice outlives an operator that no longer renews it.
pub(super) fn lease_of(session: &GpuSession, lasts: Duration) -> VramLease {
    let owner = session.controller_owner_ref(&());
    VramLease {
        metadata: ObjectMeta {
            name: Some(lease_name(session)),
            namespace: session.namespace(),
            owner_references: owner.map(|mut owner| {
                // The finalizer keeps the session until the lease is deleted, so the garbage collector need not block the deletion.
                owner.block_owner_deletion = None;
                vec![owner]
            }),
            ..ObjectMeta::default()
        },
        spec: VramLeaseSpec {
            owner: LeaseOwner {
                kind: Some(GpuSession::kind(&()).into_owned()),
                name: session.metadata.name.clone(),
            },
            slice: SliceSpec {
                vram: session.spec.vram.clone(),
                class: session.spec.class.clone(),
            },
            engine: Some(session.spec.engine),
            slices: SliceBounds { min: 1, max: 1 },
            ttl_seconds: integer(lasts.as_secs()),
            renewal: Renewal::Automatic,
            keep_seconds: Some(session.spec.ttl_seconds),
        },
        status: None,
    }
}

/// Decides the next step for a session. `seen` is the last report of its agent, `statistics_written` the time at which the statistics in its
/// status last changed, and `endpoint` returns the URL of a worker.
pub(super) fn decide(
    session: &GpuSession,
    lease: Option<&VramLease>,
    seen: Option<&SeenSession>,
    statistics_written: Option<Timestamp>,
    endpoint: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> Decision {
    let old = session.status.clone().unwrap_or_default();
    let held = objects::has_finalizer(session);
    let deleted = session.metadata.deletion_timestamp.is_some();
    let delete = if lease.is_some() { LeaseStep::Delete } else { LeaseStep::Keep };
    if deleted || conditions::is_true(&old.conditions, FAILED) {
        return Decision {
            lease: delete,
            remove_finalizer: held && lease.is_none(),
            again: lease.map(|_| GOING),
            ..Decision::default()
        };
    }
    let mut next = old.clone();
    next.observed_generation = session.metadata.generation;
    let (end, mut again) = match ended(session, &old, lease, seen) {
        Ok(again) => (None, again),
        Err(end) => (Some(end), None),
    };
    let generation = session.metadata.generation;
    let mut set = |kind, status, reason: &str, message: &str| {
        conditions::set(&mut next.conditions, kind, status, reason, message, generation, now);
    };
    let mut event = None;
    let step = if let Some(end) = end {
        set(PLACED, false, end.reason, &end.message);
        set(READY, false, end.reason, &end.message);
        set(FAILED, true, end.reason, &end.message);
        // No tensor or execution of the session is left.
        (next.tensor_count, next.stored_tensor_bytes, next.active_executions) = (0, 0, 0);
        next.state = Some("Failed".to_owned());
        event = Some((true, end.reason, end.message));
        delete
    } else {
        let granted = lease.and_then(granted);
        match granted {
            Some((worker, device)) => {
                let message = format!("one slice of {} on {worker}/{device}", session.spec.vram);
                set(PLACED, true, "SlicesGranted", &message);
                if old.placed_at.is_none() {
                    next.placed_at = Some(Time(now));
                    event = Some((false, "Placed", message));
                }
                let placed = next.placed_at.as_ref().map_or(now, |placed| placed.0);
                next.expires_at = Some(Time(after(placed, session.spec.ttl_seconds)));
                next.state = Some("Placed".to_owned());
                next.lease = lease.map(ResourceExt::name_any);
                next.endpoint = endpoint(worker).filter(|endpoint| !endpoint.is_empty()).or(next.endpoint);
                (next.worker, next.device) = (Some(worker.to_owned()), Some(device.to_owned()));
                // An operator without a report of the agent yet keeps the readiness that its predecessor wrote.
                let ready = seen.map_or_else(|| conditions::is_true(&old.conditions, READY), |seen| seen.load.streams);
                if ready && next.endpoint.is_some() {
                    set(READY, true, "AcceptingConnections", "clients may connect to its worker");
                    next.state = Some("Ready".to_owned());
                } else {
                    set(READY, false, "WaitingForWorker", "waiting for the worker to accept clients");
                }
            }
            None => {
                let waits = lease.and_then(|lease| conditions::get(&lease.status.as_ref()?.conditions, GRANTED));
                let message = waits.map_or("waiting for its VramLease", |condition| condition.message.as_str());
                set(PLACED, false, "WaitingForSlices", message);
                next.state = Some("Pending".to_owned());
            }
        }
        match lease {
            None => LeaseStep::Create,
            Some(lease) if lease.spec.keep_seconds != Some(session.spec.ttl_seconds) => LeaseStep::Update,
            Some(_) => LeaseStep::Keep,
        }
    };
    if let Some(seen) = seen.filter(|_| matches!(step, LeaseStep::Keep | LeaseStep::Update)) {
        let wait = write_statistics(&mut next, seen, statistics_written, now);
        again = again.into_iter().chain(wait).min();
    }
    let again = match step {
        LeaseStep::Delete => Some(GOING),
        // A session that was just placed is reconciled again when its status has been written.
        _ => again.or(Some(STANDING)).map(|again| again.min(STANDING)),
    };
    Decision {
        lease: step,
        statistics: statistics_of(&next) != statistics_of(&old),
        status: (next != old).then_some(next),
        event,
        remove_finalizer: false,
        again,
    }
}

/// Writes the statistics of the agent's report to the status, unless they were written a short time ago. Then returns the wait until they
/// may be written again.
fn write_statistics(status: &mut GpuSessionStatus, seen: &SeenSession, written: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let statistics = (
        integer(seen.load.tensors),
        integer(seen.load.stored_bytes),
        integer(seen.load.active_executions),
    );
    if statistics == statistics_of(status) {
        return None;
    }
    let since = written.map(|written| Duration::try_from(now.duration_since(written)).unwrap_or_default());
    let wait = since.map_or(Duration::ZERO, |since| STATISTICS_INTERVAL.saturating_sub(since));
    if wait.is_zero() {
        (status.tensor_count, status.stored_tensor_bytes, status.active_executions) = statistics;
    }
    Some(wait).filter(|wait| !wait.is_zero())
}

fn statistics_of(status: &GpuSessionStatus) -> (i64, i64, i64) {
    (status.tensor_count, status.stored_tensor_bytes, status.active_executions)
}

/// Worker and device of a lease that is granted.
fn granted(lease: &VramLease) -> Option<(&str, &str)> {
    let status = lease.status.as_ref().filter(|_| lease.metadata.deletion_timestamp.is_none())?;
    let grant = status.grants.first().filter(|_| conditions::is_true(&status.conditions, GRANTED))?;
    Some((&grant.worker, &grant.device))
}

/// Returns the end of the session as an error, if it has ended. Otherwise returns the time after which its timeouts must be checked again.
fn ended(
    session: &GpuSession,
    status: &GpuSessionStatus,
    lease: Option<&VramLease>,
    seen: Option<&SeenSession>,
) -> Result<Option<Duration>, End> {
    if status.placed_at.is_none() {
        return Ok(None);
    }
    if let Some(seen) = seen.filter(|seen| !seen.load.ended.is_empty()) {
        let message = format!("{}; its data is lost: create another session", seen.load.ended);
        return end("ExecutorLost", message);
    }
    let placed_on = (status.worker.as_deref().unwrap_or("?"), status.device.as_deref().unwrap_or("?"));
    if lease.and_then(granted) != Some(placed_on) {
        let place = [placed_on.0, placed_on.1].join("/");
        let waits = lease.and_then(|lease| conditions::get(&lease.status.as_ref()?.conditions, GRANTED));
        let waits = waits.filter(|condition| condition.status == "False");
        let why = waits.map_or(String::new(), |condition| format!(" ({})", condition.message));
        if waits.is_some_and(|condition| condition.reason == GrantedReason::Expired.reason()) {
            let message = format!(
                "slice on {place} expired, its data is lost{why}; the worker is alive: create another session, connect clients sooner, or \
                 start operators with a longer --session-lease-ttl"
            );
            return end("LeaseExpired", message);
        }
        let message = format!("slice on {place} and its data are lost{why}; sessions are never moved: create another session");
        return end("WorkerLost", message);
    }
    let spec = &session.spec;
    // The time held is measured by the agent's clock, which continues when another operator leads. The clocks of two operators differ, and
    // may be set.
    let held = seen.map(|seen| seen.load.held() + seen.age);
    let lasts = seconds(spec.ttl_seconds);
    if held.is_some_and(|held| held >= lasts) {
        let seconds = spec.ttl_seconds;
        let message = format!("expired after {seconds} s (ttlSeconds): create another session, or one with a higher ttlSeconds");
        return end("TtlExpired", message);
    }
    // The idle time is that of the agent's report, without the age of the report, because the session may have been used since. If both
    // timeouts are the same, the TTL is the reason of the end, whichever was noticed first.
    let reported = seen;
    let seen = seen.filter(|_| spec.idle_timeout_seconds < spec.ttl_seconds);
    let idle = seen.map(|seen| seen.load.idle());
    let timeout = seconds(spec.idle_timeout_seconds);
    if idle.is_some_and(|idle| idle >= timeout) {
        let seconds = spec.idle_timeout_seconds;
        let message = format!("idle for {seconds} s (idleTimeoutSeconds): create another session when it is needed");
        return end("IdleTimeout", message);
    }
    let until_disconnected = disconnected(session, reported)?;
    let left = lasts.saturating_sub(held.unwrap_or_default()) + Duration::from_millis(1);
    let until_idle = idle.zip(seen).map(|(idle, seen)| until(timeout, idle, seen));
    Ok([Some(left), until_idle, until_disconnected].into_iter().flatten().min())
}

/// Time after which a timeout must be checked again, of a session that had been idle for `idle` when its agent reported.
fn until(timeout: Duration, idle: Duration, seen: &SeenSession) -> Duration {
    timeout.saturating_sub(idle + seen.age).max(MIN_RECHECK)
}

/// Returns the end of a session that has had no client for its `disconnectTimeoutSeconds`, as an error. Otherwise returns the time after
/// which it must be checked again. A client that disconnects ends the session's idle time, so that it counts from then.
fn disconnected(session: &GpuSession, seen: Option<&SeenSession>) -> Result<Option<Duration>, End> {
    let (Some(timeout), Some(seen)) = (
        session.spec.disconnect_timeout_seconds.map(seconds),
        seen.filter(|seen| !seen.load.connected),
    ) else {
        return Ok(None);
    };
    let idle = seen.load.idle();
    if idle < timeout {
        return Ok(Some(until(timeout, idle, seen)));
    }
    let seconds = timeout.as_secs();
    let message = format!("no client for {seconds} s (disconnectTimeoutSeconds): create another session when it is needed");
    end("Disconnected", message)
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    let seconds = k8s_openapi::jiff::SignedDuration::from_secs(seconds);
    time.checked_add(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
