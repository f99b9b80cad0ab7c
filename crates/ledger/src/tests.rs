//! Tests of single calls. [`super::properties`] tests their combinations.

use sahasra_wire::grants::{AcquireRequest, Owner, RejectionCode, ReleaseRequest, RenewOwner, SessionTerms};

use super::*;

impl Ledger {
    /// Applies everything that is due at `now`. Returns the actions for the caller, from this and from earlier calls.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<Effect> {
        self.expire(now);
        self.take_effects()
    }
}

#[test]
fn who_is_there_keeps_what_is_held_up_to_the_limit_and_no_longer() {
    let mut ledger = ledger();
    ledger.acquire(seconds(0), &request("a", 1)).unwrap();
    let (ttl, limit) = (seconds(10), seconds(25));
    let ends = |ledger: &Ledger| Duration::from_millis(ledger.grants(Duration::ZERO)[0].expires_in_milliseconds);
    assert!(ledger.extend(seconds(4), &"a".into(), ttl, limit));
    assert_eq!(ends(&ledger), seconds(14));
    assert!(ledger.extend(seconds(4), &"a".into(), seconds(3), limit), "it is held");
    assert_eq!(ends(&ledger), seconds(14), "nothing is cut short");
    assert!(ledger.extend(seconds(13), &"a".into(), ttl, limit) && ledger.extend(seconds(20), &"a".into(), ttl, limit));
    assert_eq!(ends(&ledger), limit);
    assert!(ledger.extend(seconds(24), &"a".into(), ttl, limit));
    assert_eq!(ends(&ledger), limit);
    assert!(!ledger.extend(seconds(25), &"a".into(), ttl, limit), "it has ended");
    assert_eq!(free(&ledger), 4 * GIB);
    assert!(!ledger.extend(seconds(25), &"b".into(), ttl, limit), "the owner is unknown");
}

#[test]
fn what_is_forfeit_is_free_as_soon_as_it_is_not_in_use() {
    let mut ledger = ledger();
    ledger.acquire(seconds(0), &request("a", 2)).unwrap();
    assert_eq!(ledger.occupy(seconds(0), &"a".into(), &"gpu0".into(), 1), 1);
    ledger.take_effects();
    ledger.forfeit(seconds(1), &"a".into());
    let kill = ledger
        .take_effects()
        .into_iter()
        .any(|effect| matches!(effect, Effect::Kill { .. }));
    assert!(kill, "what still uses it has no grace");
    assert_eq!(free(&ledger), 3 * GIB);
    ledger.vacate(seconds(1), &"a".into(), &"gpu0".into(), 1);
    assert_eq!(free(&ledger), 4 * GIB);
    assert!(!ledger.holds_anything(&"a".into()));
    ledger.forfeit(seconds(2), &"a".into());
}

const GIB: u64 = 1 << 30;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ledger() -> Ledger {
    let device = |name: &str| Device {
        name: name.into(),
        allocatable_bytes: 4 * GIB,
        session_bytes: GIB / 2,
    };
    Ledger::new("boot".into(), vec![device("gpu0"), device("gpu1")])
}

fn owner(uid: &str, term: u64) -> Owner {
    Owner {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: format!("BurstJob/{uid}"),
        term,
    }
}

fn request(uid: &str, slices: u32) -> AcquireRequest {
    AcquireRequest {
        owner: owner(uid, 1),
        boot_id: "boot".to_owned(),
        device: "gpu0".to_owned(),
        slice_bytes: GIB,
        slices,
        at_least: 1,
        ttl_milliseconds: 10_000,
        grace_milliseconds: 2_000,
        session: None,
    }
}

fn release(uid: &str, grants: &[&Grant]) -> ReleaseRequest {
    ReleaseRequest {
        owner: owner(uid, 1),
        grants: grants.iter().map(|grant| grant.id.clone()).collect(),
        keep_slices: 0,
        immediately: false,
    }
}

fn free(ledger: &Ledger) -> u64 {
    let load = ledger.loads().next().unwrap().1;
    load.allocatable_bytes - load.leased_bytes
}

#[test]
fn grants_up_to_what_is_free_and_says_why_not() {
    let mut ledger = ledger();
    let grant = ledger.acquire(seconds(0), &request("a", 3)).unwrap();
    assert_eq!((grant.slices, grant.id.counter, grant.expires_in_milliseconds), (3, 1, 10_000));
    assert_eq!(ledger.acquire(seconds(0), &request("b", 3)).unwrap().slices, 1);
    let refusal = ledger.acquire(seconds(0), &request("c", 1)).unwrap_err();
    assert_eq!((refusal.code(), refusal.free_bytes), (RejectionCode::InsufficientVram, 0));
    assert!(refusal.message.contains("gpu0"), "{}", refusal.message);
}

#[test]
fn a_session_takes_its_context_beside_its_slices_for_as_long_as_it_has_any() {
    let mut ledger = ledger();
    let session = |uid: &str, slices| AcquireRequest {
        session: Some(SessionTerms::default()),
        at_least: slices,
        ..request(uid, slices)
    };
    let held = ledger.acquire(seconds(0), &session("a", 1)).unwrap();
    assert_eq!(free(&ledger), 4 * GIB - GIB - GIB / 2);
    ledger.acquire(seconds(0), &session("a", 1)).unwrap();
    assert_eq!(free(&ledger), GIB + GIB / 2, "it has one process");
    let refusal = ledger.acquire(seconds(0), &session("b", 2)).unwrap_err();
    assert_eq!((refusal.code(), refusal.free_bytes), (RejectionCode::InsufficientVram, GIB));
    assert!(refusal.message.contains("512 MiB for the session's context"), "{}", refusal.message);
    let other = ledger.acquire(seconds(0), &session("b", 1)).unwrap();
    assert_eq!(free(&ledger), 0);
    // The context counts for as long as the session's process runs.
    assert_eq!(ledger.occupy(seconds(0), &"b".into(), &"gpu0".into(), 1), 1);
    ledger.release(seconds(1), &release("b", &[&other]));
    assert_eq!(free(&ledger), 0);
    ledger.vacate(seconds(1), &"b".into(), &"gpu0".into(), 1);
    assert_eq!(free(&ledger), GIB + GIB / 2);
    ledger.release(seconds(1), &release("a", &[&held]));
    assert_eq!(free(&ledger), 2 * GIB + GIB / 2, "one slice is left, and the process");
    ledger.release(seconds(1), &release("a", &[]));
    assert_eq!(free(&ledger), 4 * GIB);
}

#[test]
fn what_may_be_lent_shrinks_to_what_is_lent_and_on_as_that_comes_back() {
    let mut ledger = ledger();
    let grants = [2, 1].map(|slices| ledger.acquire(seconds(0), &request("a", slices)).unwrap());
    ledger.set_limit(&"gpu0".into(), GIB);
    let load = ledger.loads().next().unwrap().1;
    assert_eq!((load.allocatable_bytes, load.leased_bytes), (3 * GIB, 3 * GIB));
    ledger.release(seconds(1), &release("a", &[&grants[0]]));
    let load = ledger.loads().next().unwrap().1;
    assert_eq!((load.allocatable_bytes, load.leased_bytes), (GIB, GIB));
    assert!(ledger.acquire(seconds(1), &request("b", 1)).is_err());
    ledger.set_limit(&"gpu0".into(), 2 * GIB);
    assert_eq!(ledger.acquire(seconds(1), &request("b", 4)).unwrap().slices, 1);
    assert_eq!(
        ledger.loads().nth(1).unwrap().1.allocatable_bytes,
        4 * GIB,
        "the other device is as it was"
    );
}

#[test]
fn refuses_rather_than_grant_fewer_than_the_least() {
    let mut ledger = ledger();
    let wanted = AcquireRequest {
        at_least: 5,
        ..request("a", 8)
    };
    let refusal = ledger.acquire(seconds(0), &wanted).unwrap_err();
    assert_eq!((refusal.code(), refusal.free_bytes), (RejectionCode::InsufficientVram, 4 * GIB));
    assert_eq!(free(&ledger), 4 * GIB);
}

#[test]
fn each_wrong_request_has_its_own_code() {
    let mut ledger = ledger();
    ledger.acquire(seconds(0), &request("a", 1)).unwrap();
    let stale = AcquireRequest {
        owner: owner("a", 0),
        ..request("a", 1)
    };
    let other_boot = AcquireRequest {
        boot_id: "earlier".to_owned(),
        ..request("a", 1)
    };
    let unknown = AcquireRequest {
        device: "gpu9".to_owned(),
        ..request("a", 1)
    };
    let other_size = AcquireRequest {
        slice_bytes: GIB / 2,
        ..request("a", 1)
    };
    let no_time = AcquireRequest {
        ttl_milliseconds: 0,
        ..request("a", 1)
    };
    let endless = AcquireRequest {
        ttl_milliseconds: u64::MAX,
        ..request("a", 1)
    };
    let nothing = request("a", 0);
    let other_namespace = AcquireRequest {
        owner: Owner {
            namespace: "other".to_owned(),
            ..owner("a", 1)
        },
        ..request("a", 1)
    };
    for (request, code) in [
        (stale, RejectionCode::StaleTerm),
        (other_boot, RejectionCode::BootMismatch),
        (unknown, RejectionCode::UnknownDevice),
        (other_size, RejectionCode::InvalidRequest),
        (no_time, RejectionCode::InvalidRequest),
        (endless, RejectionCode::InvalidRequest),
        (nothing, RejectionCode::InvalidRequest),
        (other_namespace, RejectionCode::InvalidRequest),
    ] {
        assert_eq!(ledger.acquire(seconds(0), &request).unwrap_err().code(), code, "{request:?}");
    }
    ledger.set_healthy(&"gpu0".into(), false);
    assert_eq!(
        ledger.acquire(seconds(0), &request("a", 1)).unwrap_err().code(),
        RejectionCode::Unhealthy
    );
    ledger.set_healthy(&"gpu0".into(), true);
    ledger.begin_shutdown();
    assert_eq!(
        ledger.acquire(seconds(0), &request("a", 1)).unwrap_err().code(),
        RejectionCode::ShuttingDown
    );
}

#[test]
fn an_idle_grant_is_free_at_its_time_and_not_before() {
    let mut ledger = ledger();
    ledger.acquire(seconds(0), &request("a", 4)).unwrap();
    assert_eq!(ledger.next_deadline(), Some(seconds(10)));
    assert_eq!(ledger.tick(Duration::from_millis(9_999)), []);
    let effects = ledger.tick(seconds(10));
    let gone = |effect: &Effect| matches!(effect, Effect::Gone { owner_uid } if &**owner_uid == "a");
    assert!(effects.iter().any(gone), "{effects:?}");
    assert_eq!(free(&ledger), 4 * GIB);
    assert_eq!(ledger.totals().expired_grants, 1);
}

#[test]
fn a_renewed_grant_lasts_from_the_renewal() {
    let mut ledger = ledger();
    let grant = ledger.acquire(seconds(0), &request("a", 1)).unwrap();
    let renewal = |term, id: GrantId| RenewOwner {
        session: None,
        owner: owner("a", term),
        grants: vec![id],
        ttl_milliseconds: 10_000,
    };
    assert!(ledger.renew(seconds(9), &renewal(1, grant.id.clone()))[0].renewed);
    ledger.tick(seconds(18));
    assert_eq!(ledger.grants(seconds(18))[0].expires_in_milliseconds, 1_000);
    let other_boot = GrantId {
        boot_id: "earlier".to_owned(),
        counter: grant.id.counter,
    };
    assert_eq!(
        ledger.renew(seconds(18), &renewal(2, other_boot))[0].refusal(),
        RejectionCode::BootMismatch
    );
    assert_eq!(
        ledger.renew(seconds(18), &renewal(1, grant.id.clone()))[0].refusal(),
        RejectionCode::StaleTerm
    );
    ledger.tick(seconds(19));
    assert_eq!(
        ledger.renew(seconds(19), &renewal(2, grant.id))[0].refusal(),
        RejectionCode::InvalidRequest
    );
}

#[test]
fn a_running_chunk_keeps_its_slice_until_it_ends() {
    let mut ledger = ledger();
    ledger.acquire(seconds(0), &request("a", 3)).unwrap();
    assert_eq!(ledger.occupy(seconds(1), &"a".into(), &"gpu0".into(), 2), 2);
    let ended = ledger.tick(seconds(10));
    assert_eq!(
        ended,
        [Effect::Shrunk {
            device: "gpu0".into(),
            owner_uid: "a".into(),
            active: 0,
            expired: true,
        }]
    );
    assert_eq!(free(&ledger), 2 * GIB);
    assert_eq!(ledger.occupy(seconds(10), &"a".into(), &"gpu0".into(), 1), 0);
    ledger.vacate(seconds(11), &"a".into(), &"gpu0".into(), 1);
    assert_eq!(free(&ledger), 3 * GIB);
    let kill = Effect::Kill {
        device: "gpu0".into(),
        namespace: "team".to_owned(),
        owner_uid: "a".into(),
    };
    assert_eq!(ledger.next_deadline(), Some(seconds(12)));
    assert_eq!(ledger.tick(seconds(12)), std::slice::from_ref(&kill));
    assert_eq!(ledger.tick(seconds(12)), []);
    assert_eq!(ledger.tick(seconds(13)), [kill], "asked again while it still runs");
    ledger.vacate(seconds(13), &"a".into(), &"gpu0".into(), 1);
    assert_eq!(free(&ledger), 4 * GIB);
    assert!(!ledger.holds_anything(&"a".into()));
}

#[test]
fn a_grant_gives_back_part_of_its_slices() {
    let mut ledger = ledger();
    let grant = ledger.acquire(seconds(0), &request("a", 4)).unwrap();
    ledger.occupy(seconds(0), &"a".into(), &"gpu0".into(), 3);
    let shrink = ReleaseRequest {
        keep_slices: 1,
        ..release("a", &[&grant])
    };
    let response = ledger.release(seconds(1), &shrink);
    assert_eq!((response.freed, response.draining), (0, 1));
    assert_eq!((free(&ledger), ledger.active_slices(&"a".into(), &"gpu0".into())), (GIB, 1));
    let parts: Vec<(u32, bool)> = ledger.grants(seconds(1)).iter().map(|part| (part.slices, part.draining)).collect();
    assert_eq!(parts, [(1, false), (2, true)]);
    ledger.vacate(seconds(1), &"a".into(), &"gpu0".into(), 2);
    assert_eq!(free(&ledger), 3 * GIB);
    assert_eq!(
        ledger.occupy(seconds(1), &"a".into(), &"gpu0".into(), 1),
        0,
        "the kept slice is busy"
    );
    let again = ledger.release(seconds(2), &shrink);
    assert_eq!((again.freed, again.draining), (0, 0));
    assert_eq!(free(&ledger), 3 * GIB);
}

#[test]
fn what_runs_moves_to_the_slices_that_remain() {
    let mut ledger = ledger();
    let first = ledger.acquire(seconds(0), &request("a", 2)).unwrap();
    ledger.occupy(seconds(0), &"a".into(), &"gpu0".into(), 2);
    ledger.acquire(seconds(0), &request("a", 2)).unwrap();
    assert_eq!(ledger.release(seconds(1), &release("a", &[&first])).freed, 1);
    assert_eq!(free(&ledger), 2 * GIB);
    assert_eq!(ledger.occupy(seconds(1), &"a".into(), &"gpu0".into(), 1), 0);
}

#[test]
fn an_immediate_release_kills_at_once_and_an_idle_one_kills_nothing() {
    let mut ledger = ledger();
    let busy = ledger.acquire(seconds(0), &request("a", 1)).unwrap();
    ledger.occupy(seconds(0), &"a".into(), &"gpu0".into(), 1);
    ledger.acquire(seconds(0), &request("b", 1)).unwrap();
    ledger.release(
        seconds(1),
        &ReleaseRequest {
            immediately: true,
            ..release("b", &[])
        },
    );
    let kills = |effects: Vec<Effect>| effects.iter().filter(|effect| matches!(effect, Effect::Kill { .. })).count();
    assert_eq!(kills(ledger.take_effects()), 0);
    ledger.release(seconds(1), &release("a", &[&busy]));
    assert_eq!(kills(ledger.take_effects()), 0);
    let response = ledger.release(
        seconds(1),
        &ReleaseRequest {
            immediately: true,
            ..release("a", &[&busy])
        },
    );
    assert_eq!(
        (response.draining, kills(ledger.take_effects())),
        (1, 1),
        "also of what drains already"
    );
}

#[test]
fn releasing_what_is_gone_or_anothers_does_nothing() {
    let mut ledger = ledger();
    let grant = ledger.acquire(seconds(0), &request("a", 1)).unwrap();
    assert_eq!(ledger.release(seconds(0), &release("b", &[&grant])).freed, 0);
    assert_eq!(free(&ledger), 3 * GIB);
    let stale = ReleaseRequest {
        owner: owner("a", 0),
        ..release("a", &[&grant])
    };
    assert_eq!(ledger.release(seconds(0), &stale).refusal.unwrap().code(), RejectionCode::StaleTerm);
    assert_eq!(ledger.release(seconds(0), &release("a", &[&grant])).freed, 1);
    assert_eq!(ledger.release(seconds(0), &release("a", &[&grant])).freed, 0);
    assert_eq!(free(&ledger), 4 * GIB);
}

#[test]
fn a_term_outlives_its_grants_and_is_forgotten_in_the_end() {
    let mut ledger = ledger();
    let high = AcquireRequest {
        owner: owner("a", 7),
        ..request("a", 1)
    };
    ledger.acquire(seconds(0), &high).unwrap();
    ledger.tick(seconds(10));
    ledger.tick(seconds(3_600));
    assert_eq!(
        ledger.acquire(seconds(3_600), &request("a", 1)).unwrap_err().code(),
        RejectionCode::StaleTerm
    );
    ledger.tick(seconds(3_610));
    assert_eq!(ledger.term(&"a".into()), None);
    assert_eq!(ledger.next_deadline(), None);
}

#[test]
fn an_agent_holds_65536_grants_draining_ones_included_and_refuses_the_next() {
    let mut ledger = ledger();
    let one = |number: u32| AcquireRequest {
        slice_bytes: 1,
        ..request(&format!("owner-{number}"), 1)
    };
    let grants: Vec<Grant> = (0..65_536)
        .map(|number| ledger.acquire(seconds(0), &one(number)).unwrap())
        .collect();
    let next = one(65_536);
    let refusal = ledger.acquire(seconds(0), &next).unwrap_err();
    assert_eq!(refusal.code(), RejectionCode::InsufficientVram);
    assert!(refusal.message.contains("maximum of 65536 grants"), "{}", refusal.message);
    assert_eq!(ledger.occupy(seconds(0), &"owner-0".into(), &"gpu0".into(), 1), 1);
    ledger.release(seconds(0), &release("owner-0", &[&grants[0]]));
    assert!(ledger.acquire(seconds(0), &next).is_err(), "it drains");
    ledger.vacate(seconds(0), &"owner-0".into(), &"gpu0".into(), 1);
    ledger.acquire(seconds(0), &next).unwrap();
    assert_eq!(ledger.grants(seconds(0)).len(), 65_536);
}

#[test]
fn memory_of_silent_owners_is_bounded() {
    let mut ledger = ledger();
    ledger.acquire(seconds(0), &request("holder", 1)).unwrap();
    for index in 0..2 * MAX_SILENT_OWNERS as u64 {
        ledger
            .fence(Duration::from_millis(index), &owner(&format!("owner-{index}"), 1))
            .unwrap();
    }
    assert!(ledger.owners.len() <= MAX_SILENT_OWNERS + 1);
    assert_eq!(ledger.term(&"holder".into()), Some(1));
    assert_eq!(ledger.term(&"owner-0".into()), None);
}
