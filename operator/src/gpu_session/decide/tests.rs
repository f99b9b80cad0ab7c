use sahasra_crds::{FINALIZER, GpuSessionSpec, VramLeaseStatus, vram_lease::GrantStatus};
use sahasra_names::Engine;
use sahasra_wire::inventory::SessionLoad;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn session() -> GpuSession {
    let spec = GpuSessionSpec {
        class: Some("g5".to_owned()),
        vram: "512Mi".parse().unwrap(),
        engine: Engine::Ptx,
        idle_timeout_seconds: 50,
        disconnect_timeout_seconds: None,
        ttl_seconds: 100,
    };
    let mut session = GpuSession::new("mine", spec);
    session.metadata.uid = Some("0123-45".to_owned());
    session.metadata.namespace = Some("team".to_owned());
    session
}

/// A lease of the session: granted, or waiting for the given reason.
fn lease(session: &GpuSession, waits: Option<&str>) -> VramLease {
    let mut lease = lease_of(session, Duration::from_secs(60));
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

/// A report of the agent that the session is in use and accepts connections.
fn busy() -> SeenSession {
    SeenSession {
        load: SessionLoad {
            streams: true,
            ..SessionLoad::default()
        },
        age: Duration::ZERO,
    }
}

/// A report that the session had been idle for this many seconds. The report is `age` seconds old.
fn idle(seconds: u64, age: u64) -> SeenSession {
    let mut seen = busy();
    (seen.load.idle_milliseconds, seen.age) = (seconds * 1_000, Duration::from_secs(age));
    seen
}

fn why(status: &GpuSessionStatus, kind: &str) -> (String, String, String) {
    let condition = conditions::get(&status.conditions, kind).unwrap();
    (condition.status.clone(), condition.reason.clone(), condition.message.clone())
}

/// A session that was placed at 10 s.
fn placed() -> GpuSession {
    let mut session = session();
    let decision = decide(&session, Some(&lease(&session, None)), Some(&busy()), None, endpoint, at(10));
    session.status = decision.status;
    session.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    session
}

#[test]
fn a_new_session_gets_a_lease_of_one_slice_of_its_class_and_engine() {
    let session = session();
    let decision = decide(&session, None, Some(&busy()), None, endpoint, at(0));
    assert_eq!(decision.lease, LeaseStep::Create);
    let lease = lease_of(&session, Duration::from_secs(60));
    assert!(is_of(&lease, &session));
    assert_eq!(lease.metadata.name.as_deref(), Some("mine-0123"));
    assert_eq!(
        (lease.spec.slice.class.as_deref(), lease.spec.engine),
        (Some("g5"), Some(Engine::Ptx))
    );
    assert_eq!((lease.spec.slices.min, lease.spec.slices.max), (1, 1));
}

#[test]
fn a_waiting_session_has_the_message_of_its_lease() {
    let session = session();
    let lease = lease(&session, Some("none of 2 devices serves"));
    let status = decide(&session, Some(&lease), Some(&busy()), None, endpoint, at(0)).status.unwrap();
    assert_eq!(why(&status, PLACED).1, "WaitingForSlices");
    assert_eq!(why(&status, PLACED).2, "none of 2 devices serves");
    assert_eq!(status.state.as_deref(), Some("Pending"));
}

#[test]
fn a_placed_session_reports_its_device_and_its_end_and_causes_no_further_write() {
    let session = placed();
    let status = session.status.clone().unwrap();
    assert_eq!(
        (status.worker.as_deref(), status.device.as_deref()),
        (Some("node-a"), Some("gpu-0"))
    );
    assert_eq!(status.endpoint.as_deref(), Some("http://node-a"));
    assert_eq!(status.expires_at, Some(Time(at(110))));
    let decision = decide(&session, Some(&lease(&session, None)), Some(&busy()), None, endpoint, at(20));
    assert!(decision.status.is_none() && decision.event.is_none(), "{decision:?}");
    assert_eq!(decision.lease, LeaseStep::Keep);
    assert_eq!(decision.again, Some(Duration::from_secs(50)), "it may be idle then");
    let mut old = busy();
    (old.load.held_milliseconds, old.age) = (88_000, Duration::from_secs(2));
    let decision = decide(&session, Some(&lease(&session, None)), Some(&old), None, endpoint, at(100));
    assert_eq!(decision.again, Some(Duration::from_millis(10_001)), "it ends then");
}

#[test]
fn a_longer_ttl_may_be_set_while_the_session_exists() {
    let mut session = placed();
    session.spec.ttl_seconds = 1_000;
    session.spec.idle_timeout_seconds = 900;
    let lease = lease(&session, None);
    let status = decide(&session, Some(&lease), Some(&busy()), None, endpoint, at(105))
        .status
        .unwrap();
    assert_eq!(status.expires_at, Some(Time(at(1_010))));
    assert!(conditions::is_true(&status.conditions, PLACED));
}

#[test]
fn an_end_has_a_cause_and_releases_the_slice_permanently() {
    let session = placed();
    let granted = lease(&session, None);
    let lost = lease(&session, Some("its worker or its grant is gone"));
    let mut expired = lease(&session, Some("1 slice on node-a/gpu-0: expired"));
    expired.status.as_mut().unwrap().conditions[0].reason = GrantedReason::Expired.reason().to_owned();
    let mut over = busy();
    (over.load.held_milliseconds, over.age) = (99_000, Duration::from_secs(1));
    let mut moved = lease(&session, None);
    moved.status.as_mut().unwrap().grants[0].worker = "node-b".to_owned();
    let mut dead = idle(90, 0);
    dead.load.ended = "its executor was ended by signal 9: out of memory".to_owned();
    for (lease, now, seen, reason) in [
        (Some(&granted), 60, idle(50, 0), "IdleTimeout"),
        (Some(&granted), 20, over, "TtlExpired"),
        (Some(&expired), 20, busy(), "LeaseExpired"),
        (Some(&lost), 20, busy(), "WorkerLost"),
        (None, 20, busy(), "WorkerLost"),
        (Some(&moved), 20, busy(), "WorkerLost"),
        (Some(&lost), 20, dead, "ExecutorLost"),
    ] {
        let decision = decide(&session, lease, Some(&seen), None, endpoint, at(now));
        let status = decision.status.unwrap();
        assert_eq!(
            (why(&status, FAILED).1, why(&status, PLACED).0),
            (reason.to_owned(), "False".to_owned())
        );
        assert_eq!(decision.lease == LeaseStep::Delete, lease.is_some());
        let mut ended = session.clone();
        ended.status = Some(status);
        // A session that has ended is not placed again, whatever the status of its lease is.
        let after = decide(&ended, Some(&granted), Some(&busy()), None, endpoint, at(now));
        assert!(after.lease == LeaseStep::Delete && after.status.is_none() && !after.remove_finalizer);
        assert_eq!(
            after.again,
            Some(GOING),
            "it is not only the watch that tells that the lease has gone"
        );
        let after = decide(&ended, None, Some(&busy()), None, endpoint, at(now));
        assert!(after.lease == LeaseStep::Keep && after.status.is_none() && after.remove_finalizer && after.again.is_none());
    }
}

#[test]
fn a_deleted_session_exists_until_its_lease_is_deleted() {
    let mut session = placed();
    session.metadata.deletion_timestamp = Some(Time(at(20)));
    let decision = decide(&session, Some(&lease(&session, None)), Some(&busy()), None, endpoint, at(20));
    assert!(decision.lease == LeaseStep::Delete && !decision.remove_finalizer && decision.again == Some(GOING));
    let decision = decide(&session, None, Some(&busy()), None, endpoint, at(20));
    assert!(decision.lease == LeaseStep::Keep && decision.remove_finalizer);
}

#[test]
fn a_session_is_ready_when_its_worker_reports_that_clients_can_connect() {
    let mut session = session();
    let lease = lease(&session, None);
    let status = decide(&session, Some(&lease), None, None, endpoint, at(10)).status.unwrap();
    assert_eq!(why(&status, READY).1, "WaitingForWorker");
    assert_eq!(status.state.as_deref(), Some("Placed"));
    session.status = Some(status);
    let decision = decide(&session, Some(&lease), None, None, endpoint, at(20));
    assert!(decision.status.is_none(), "nothing is written while nothing is heard: {decision:?}");
    session.status = decide(&session, Some(&lease), Some(&busy()), None, endpoint, at(20)).status;
    let status = session.status.clone().unwrap();
    assert_eq!((why(&status, READY).0.as_str(), status.state.as_deref()), ("True", Some("Ready")));
    let decision = decide(&session, Some(&lease), None, None, endpoint, at(30));
    assert!(decision.status.is_none(), "a new operator leaves it as it is: {decision:?}");
    let mut mute = busy();
    mute.load.streams = false;
    let status = decide(&session, Some(&lease), Some(&mute), None, endpoint, at(30)).status.unwrap();
    assert_eq!(status.state.as_deref(), Some("Placed"));
}

#[test]
fn statistics_are_written_at_most_every_ten_seconds_and_only_when_they_change() {
    let session = placed();
    let lease = lease(&session, None);
    let mut seen = busy();
    (seen.load.tensors, seen.load.stored_bytes, seen.load.active_executions) = (3, 4096, 1);
    let decision = decide(&session, Some(&lease), Some(&seen), Some(at(15)), endpoint, at(20));
    assert!(decision.status.is_none() && !decision.statistics);
    assert_eq!(decision.again, Some(Duration::from_secs(5)));
    let decision = decide(&session, Some(&lease), Some(&seen), Some(at(15)), endpoint, at(25));
    assert!(decision.statistics);
    let status = decision.status.unwrap();
    assert_eq!(
        (status.tensor_count, status.stored_tensor_bytes, status.active_executions),
        (3, 4096, 1)
    );
    let mut written = session.clone();
    written.status = Some(status);
    let decision = decide(&written, Some(&lease), Some(&seen), Some(at(25)), endpoint, at(60));
    assert!(decision.status.is_none() && !decision.statistics);
    // The statistics of a session that has ended are zero.
    let status = decide(&written, Some(&lease), Some(&idle(50, 0)), Some(at(25)), endpoint, at(26))
        .status
        .unwrap();
    assert_eq!((status.tensor_count, status.stored_tensor_bytes), (0, 0));
}

#[test]
fn a_session_is_idle_by_its_agents_report_and_never_for_lack_of_a_report() {
    let session = placed();
    let lease = lease(&session, None);
    let ends = |seen: Option<&SeenSession>| {
        let decision = decide(&session, Some(&lease), seen, None, endpoint, at(100));
        (decision.lease == LeaseStep::Delete, decision.again)
    };
    assert_eq!(ends(Some(&idle(50, 0))), (true, Some(GOING)));
    assert!(!ends(None).0, "placed long ago, but nobody said that it is idle");
    assert_eq!(ends(Some(&idle(45, 2))), (false, Some(Duration::from_secs(3))));
    assert_eq!(ends(Some(&idle(45, 20))), (false, Some(MIN_RECHECK)), "old news");
}

#[test]
fn a_session_without_a_client_ends_sooner_if_it_says_so() {
    let mut session = placed();
    let lease = lease(&session, None);
    let decided = |session: &GpuSession, idle_seconds: u64, is_connected: bool| {
        let mut seen = idle(idle_seconds, 0);
        seen.load.connected = is_connected;
        decide(session, Some(&lease), Some(&seen), None, endpoint, at(20))
    };
    assert_eq!(decided(&session, 30, false).lease, LeaseStep::Keep, "it says nothing");
    session.spec.disconnect_timeout_seconds = Some(30);
    assert_eq!(decided(&session, 30, true).lease, LeaseStep::Keep, "a client is connected");
    assert_eq!(decided(&session, 28, false).again, Some(Duration::from_secs(2)));
    let decision = decided(&session, 30, false);
    assert_eq!(decision.lease, LeaseStep::Delete);
    assert_eq!(why(&decision.status.unwrap(), FAILED).1, "Disconnected");
    let unseen = decide(&session, Some(&lease), None, None, endpoint, at(20));
    assert_eq!(unseen.lease, LeaseStep::Keep, "nobody said that there is no client");
}

#[test]
fn a_session_that_may_be_idle_for_all_its_time_ends_with_its_time() {
    let mut session = placed();
    session.spec.idle_timeout_seconds = session.spec.ttl_seconds;
    let lease = lease(&session, None);
    let held = |seconds: u64| {
        let mut seen = idle(seconds, 0);
        seen.load.held_milliseconds = seconds * 1_000;
        decide(&session, Some(&lease), Some(&seen), None, endpoint, at(109))
    };
    let decision = held(99);
    assert_eq!(
        (decision.lease, decision.again),
        (LeaseStep::Keep, Some(Duration::from_millis(1_001)))
    );
    let status = held(100).status.unwrap();
    assert_eq!(why(&status, FAILED).1, "TtlExpired");
}

#[test]
fn a_changed_time_reaches_the_lease() {
    let mut session = placed();
    let mut lease = lease(&session, None);
    assert_eq!(lease.spec.keep_seconds, Some(100));
    session.spec.ttl_seconds = 1_000;
    assert_eq!(
        decide(&session, Some(&lease), Some(&busy()), None, endpoint, at(20)).lease,
        LeaseStep::Update
    );
    lease.spec.keep_seconds = Some(1_000);
    assert_eq!(
        decide(&session, Some(&lease), Some(&busy()), None, endpoint, at(20)).lease,
        LeaseStep::Keep
    );
}

#[test]
fn a_fast_clock_of_the_operator_ends_no_session() {
    let session = placed();
    let mut seen = busy();
    seen.load.held_milliseconds = 5_000;
    for seen in [Some(&seen), None] {
        let decision = decide(&session, Some(&lease(&session, None)), seen, None, endpoint, at(1_000_000));
        assert!(decision.status.is_none() && decision.lease == LeaseStep::Keep, "{decision:?}");
    }
}
