//! What becomes of a session: a function of the session, its lease and the time.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{Resource, ResourceExt, core::ObjectMeta};
use sahasra_crds::{
    GpuSession, GpuSessionStatus, VramLease, VramLeaseSpec,
    conditions::{self, FAILED, GRANTED, PLACED},
    vram_lease::{LeaseOwner, Renewal, SliceBounds, SliceSpec},
};

use crate::objects;

/// How long a session's grant outlives an operator that is gone.
const LEASE_SECONDS: i64 = 60;
/// A change of the lease brings the session back, but one that falls into the gap between two watches does not: so it is
/// looked at again, soon when it waits for the lease to go, now and then otherwise.
const GOING: Duration = Duration::from_secs(1);
const STANDING: Duration = Duration::from_secs(60);

/// What is to be done with the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseStep {
    /// Nothing.
    Keep,
    /// There is none and there must be one.
    Create,
    /// The slice goes back.
    Delete,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Decision {
    pub lease: LeaseStep,
    /// The status, if it changes.
    pub status: Option<GpuSessionStatus>,
    /// Whether it is a warning, reason, text.
    pub event: Option<(bool, &'static str, String)>,
    /// Nothing is held any more: the finalizer may go.
    pub let_go: bool,
    /// When time alone changes what is to be done.
    pub again: Option<Duration>,
}

/// How a session ended.
struct End {
    reason: &'static str,
    message: String,
}

/// Name of the session's lease, which no other session's has.
pub(super) fn lease_name(session: &GpuSession) -> String {
    let uid = session.uid().unwrap_or_default();
    let name: String = session.name_any().chars().take(240).collect();
    format!("{name}-{}", uid.split('-').next().unwrap_or_default())
}

/// Whether a lease is that session's.
pub(super) fn is_of(lease: &VramLease, session: &GpuSession) -> bool {
    let uid = session.uid();
    lease.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
}

/// The lease that a session needs.
pub(super) fn lease_of(session: &GpuSession) -> VramLease {
    let owner = session.controller_owner_ref(&());
    VramLease {
        metadata: ObjectMeta {
            name: Some(lease_name(session)),
            namespace: session.namespace(),
            owner_references: owner.map(|mut owner| {
                // Deleting the session need not wait for the garbage collector: the finalizer does.
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
            ttl_seconds: LEASE_SECONDS,
            renewal: Renewal::Automatic,
        },
        status: None,
    }
}

/// What is to be done about a session. `endpoint` is where a worker is reached.
pub(super) fn decide(
    session: &GpuSession,
    lease: Option<&VramLease>,
    endpoint: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> Decision {
    let old = session.status.clone().unwrap_or_default();
    let held = objects::is_held(session);
    let deleted = session.metadata.deletion_timestamp.is_some();
    if deleted || conditions::is_true(&old.conditions, FAILED) {
        return Decision {
            lease: if lease.is_some() { LeaseStep::Delete } else { LeaseStep::Keep },
            status: None,
            event: None,
            let_go: held && lease.is_none(),
            again: lease.map(|_| GOING),
        };
    }
    let mut next = old.clone();
    next.observed_generation = session.metadata.generation;
    let (end, again) = match ended(session, &old, lease, now) {
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
        set(FAILED, true, end.reason, &end.message);
        next.state = Some("Failed".to_owned());
        event = Some((true, end.reason, end.message));
        if lease.is_some() { LeaseStep::Delete } else { LeaseStep::Keep }
    } else {
        let granted = lease.and_then(granted);
        match granted {
            Some((worker, device)) => {
                let message = format!("one slice of {} on {worker}/{device}", session.spec.vram);
                set(PLACED, true, "SliceGranted", &message);
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
            }
            None => {
                let waits = lease.and_then(|lease| conditions::get(&lease.status.as_ref()?.conditions, GRANTED));
                let message = waits.map_or("waiting for its VramLease", |condition| condition.message.as_str());
                set(PLACED, false, "NoCapacity", message);
                next.state = Some("Pending".to_owned());
            }
        }
        if lease.is_none() { LeaseStep::Create } else { LeaseStep::Keep }
    };
    let again = match step {
        LeaseStep::Delete => Some(GOING),
        // A session that was just placed is looked at again when its status has been written.
        _ => again.or(Some(STANDING)).map(|again| again.min(STANDING)),
    };
    Decision {
        lease: step,
        status: (next != old).then_some(next),
        event,
        let_go: false,
        again,
    }
}

/// Worker and device of a lease that is granted.
fn granted(lease: &VramLease) -> Option<(&str, &str)> {
    let status = lease.status.as_ref().filter(|_| lease.metadata.deletion_timestamp.is_none())?;
    let grant = status.grants.first().filter(|_| conditions::is_true(&status.conditions, GRANTED))?;
    Some((&grant.worker, &grant.device))
}

/// How the session has ended, or after how long its time may be over.
fn ended(session: &GpuSession, status: &GpuSessionStatus, lease: Option<&VramLease>, now: Timestamp) -> Result<Option<Duration>, End> {
    let Some(Time(placed)) = &status.placed_at else { return Ok(None) };
    if lease.and_then(granted).is_none() {
        let place = [&status.worker, &status.device]
            .map(|name| name.as_deref().unwrap_or("?"))
            .join("/");
        return Err(End {
            reason: "WorkerLost",
            message: format!("its slice on {place} is lost with what was on it; sessions are never moved: create another"),
        });
    }
    let spec = &session.spec;
    let (expires, idle) = (after(*placed, spec.ttl_seconds), after(*placed, spec.idle_timeout_seconds));
    if expires <= now {
        return Err(End {
            reason: "Expired",
            message: format!(
                "its {} s (ttlSeconds) are over: create another, or one with a higher ttlSeconds",
                spec.ttl_seconds
            ),
        });
    }
    if idle <= now {
        return Err(End {
            reason: "IdleTimeout",
            message: format!(
                "no client and no operation for {} s (idleTimeoutSeconds): create another when it is needed",
                spec.idle_timeout_seconds
            ),
        });
    }
    let next = idle.min(expires);
    Ok(Some(
        Duration::try_from(next.duration_since(now)).unwrap_or_default() + Duration::from_millis(1),
    ))
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    let seconds = k8s_openapi::jiff::SignedDuration::from_secs(seconds);
    time.checked_add(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use sahasra_crds::{FINALIZER, GpuSessionSpec, VramLeaseStatus, VramQuantity, gpu_session::Engine, vram_lease::GrantStatus};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn session() -> GpuSession {
        let spec = GpuSessionSpec {
            class: Some("g5".to_owned()),
            vram: VramQuantity::from_mebibytes(512),
            engine: Engine::Ptx,
            idle_timeout_seconds: 50,
            ttl_seconds: 100,
        };
        let mut session = GpuSession::new("mine", spec);
        session.metadata.uid = Some("0123-45".to_owned());
        session.metadata.namespace = Some("team".to_owned());
        session
    }

    /// A lease of the session, granted or waiting for that reason.
    fn lease(session: &GpuSession, waits: Option<&str>) -> VramLease {
        let mut lease = lease_of(session);
        let mut status = VramLeaseStatus::default();
        let reason = if waits.is_some() { "WaitingForSlices" } else { "SlicesGranted" };
        conditions::set(
            &mut status.conditions,
            GRANTED,
            waits.is_none(),
            reason,
            waits.unwrap_or("held"),
            None,
            at(0),
        );
        if waits.is_none() {
            status.grants.push(GrantStatus {
                worker: "node-a".to_owned(),
                device: "gpu-0".to_owned(),
                slices: 1,
                id: "boot-1".to_owned(),
            });
        }
        lease.status = Some(status);
        lease
    }

    fn endpoint(worker: &str) -> Option<String> {
        Some(format!("http://{worker}"))
    }

    fn why(status: &GpuSessionStatus, kind: &str) -> (String, String, String) {
        let condition = conditions::get(&status.conditions, kind).unwrap();
        (condition.status.clone(), condition.reason.clone(), condition.message.clone())
    }

    /// A session that was placed at 10 s.
    fn placed() -> GpuSession {
        let mut session = session();
        let decision = decide(&session, Some(&lease(&session, None)), endpoint, at(10));
        session.status = decision.status;
        session.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        session
    }

    #[test]
    fn a_new_session_gets_a_lease_of_one_slice_of_its_class_and_engine() {
        let session = session();
        let decision = decide(&session, None, endpoint, at(0));
        assert_eq!(decision.lease, LeaseStep::Create);
        let lease = lease_of(&session);
        assert!(is_of(&lease, &session));
        assert_eq!(lease.metadata.name.as_deref(), Some("mine-0123"));
        assert_eq!(
            (lease.spec.slice.class.as_deref(), lease.spec.engine),
            (Some("g5"), Some(Engine::Ptx))
        );
        assert_eq!((lease.spec.slices.min, lease.spec.slices.max), (1, 1));
    }

    #[test]
    fn a_session_that_waits_says_what_its_lease_waits_for() {
        let session = session();
        let lease = lease(&session, Some("none of 2 devices serves"));
        let status = decide(&session, Some(&lease), endpoint, at(0)).status.unwrap();
        assert_eq!(why(&status, PLACED).1, "NoCapacity");
        assert_eq!(why(&status, PLACED).2, "none of 2 devices serves");
        assert_eq!(status.state.as_deref(), Some("Pending"));
    }

    #[test]
    fn a_placed_session_says_where_it_is_and_when_it_ends_and_then_rests() {
        let session = placed();
        let status = session.status.clone().unwrap();
        assert_eq!(
            (status.worker.as_deref(), status.device.as_deref()),
            (Some("node-a"), Some("gpu-0"))
        );
        assert_eq!(status.endpoint.as_deref(), Some("http://node-a"));
        assert_eq!(status.expires_at, Some(Time(at(110))));
        let decision = decide(&session, Some(&lease(&session, None)), endpoint, at(20));
        assert!(decision.status.is_none() && decision.event.is_none(), "{decision:?}");
        assert_eq!(decision.lease, LeaseStep::Keep);
        assert_eq!(decision.again, Some(Duration::from_millis(40_001)));
    }

    #[test]
    fn a_longer_life_may_be_asked_for_while_it_lives() {
        let mut session = placed();
        session.spec.ttl_seconds = 1_000;
        session.spec.idle_timeout_seconds = 900;
        let lease = lease(&session, None);
        let status = decide(&session, Some(&lease), endpoint, at(105)).status.unwrap();
        assert_eq!(status.expires_at, Some(Time(at(1_010))));
        assert!(conditions::is_true(&status.conditions, PLACED));
    }

    #[test]
    fn an_end_names_its_cause_and_gives_the_slice_back_once_and_for_all() {
        let session = placed();
        let granted = lease(&session, None);
        let lost = lease(&session, Some("its worker or its grant is gone"));
        for (lease, now, reason) in [
            (Some(&granted), 60, "IdleTimeout"),
            (Some(&granted), 110, "Expired"),
            (Some(&lost), 20, "WorkerLost"),
            (None, 20, "WorkerLost"),
        ] {
            let decision = decide(&session, lease, endpoint, at(now));
            let status = decision.status.unwrap();
            assert_eq!(
                (why(&status, FAILED).1, why(&status, PLACED).0),
                (reason.to_owned(), "False".to_owned())
            );
            assert_eq!(decision.lease == LeaseStep::Delete, lease.is_some());
            let mut ended = session.clone();
            ended.status = Some(status);
            // Whatever becomes of the lease: it is not placed again.
            let after = decide(&ended, Some(&granted), endpoint, at(now));
            assert!(after.lease == LeaseStep::Delete && after.status.is_none() && !after.let_go);
            assert_eq!(
                after.again,
                Some(GOING),
                "it is not only the watch that tells that the lease has gone"
            );
            let after = decide(&ended, None, endpoint, at(now));
            assert!(after.lease == LeaseStep::Keep && after.status.is_none() && after.let_go && after.again.is_none());
        }
    }

    #[test]
    fn a_deleted_session_stands_until_its_lease_is_gone() {
        let mut session = placed();
        session.metadata.deletion_timestamp = Some(Time(at(20)));
        let decision = decide(&session, Some(&lease(&session, None)), endpoint, at(20));
        assert!(decision.lease == LeaseStep::Delete && !decision.let_go && decision.again == Some(GOING));
        let decision = decide(&session, None, endpoint, at(20));
        assert!(decision.lease == LeaseStep::Keep && decision.let_go);
    }
}
