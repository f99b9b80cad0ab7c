use sahasra_crds::gpu_worker::DeviceStatus;
use sahasra_scheduler::ClaimKind;
use sahasra_wire::{
    grants::{AcquireRequest, Owner, Refusal, RejectionCode, ReleaseRequest, RenewOutcome, SessionTerms},
    inventory::{Device, Inventory, SessionLoad},
    milliseconds,
};

use super::*;

mod adoption;
mod assumed;
mod limits;
mod raised;
mod release;
mod sessions;
mod silence;

const SLICE: u64 = 512 << 20;
const TTL: Duration = Duration::from_secs(60);

fn after(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn worker(name: &str, boot: &str) -> Worker {
    Worker {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        endpoint: format!("http://{name}"),
        boot_id: boot.into(),
        devices: vec![DeviceStatus {
            name: "cpu0".into(),
            class: "cpu".into(),
            allocatable_mib: 4096,
            engines: vec![Engine::Ptx],
            ..DeviceStatus::default()
        }],
        ready: Ok(()),
        marked_lost: false,
        stale: false,
        last_seen: None,
    }
}

fn inventory(boot: &str, grants: Vec<Grant>) -> Inventory {
    Inventory {
        boot_id: boot.into(),
        devices: vec![Device {
            name: "cpu0".into(),
            allocatable_bytes: 8 * SLICE,
            leased_bytes: grants.iter().map(|grant| u64::from(grant.slices) * grant.slice_bytes).sum(),
            healthy: true,
            ..Device::default()
        }],
        grants,
        ..Inventory::default()
    }
}

fn owner(uid: &str, term: u64) -> Owner {
    Owner {
        uid: uid.into(),
        term,
        ..Owner::default()
    }
}

fn request(uid: &str, min: u32, max: u32) -> ClaimRequest {
    ClaimRequest {
        owner: owner(uid, 1),
        kind: ClaimKind::Burst,
        engine: Some(Engine::Ptx),
        served: false,
        keeps: false,
        lost: None,
        session: None,
        slice_bytes: SLICE,
        class: None,
        min,
        max,
        priority: 0,
        ttl: TTL,
        grace: Duration::from_secs(1),
        renewed: true,
    }
}

fn grant(uid: &str, boot: &str, counter: u64, slices: u32) -> Grant {
    Grant {
        id: GrantId {
            boot_id: boot.into(),
            counter,
        },
        owner_uid: uid.into(),
        device: "cpu0".into(),
        slice_bytes: SLICE,
        slices,
        expires_in_milliseconds: milliseconds(TTL),
        draining: false,
        term: 1,
    }
}

/// A pool with one worker `a`, whose inventory is known and whose eight slices are free.
fn state() -> State {
    let mut state = State::new(Arc::new(Metrics::new().unwrap()));
    state.observe(&[worker("a", "boot")], after(0));
    let (actions, _) = state.plan(after(0));
    assert!(
        matches!(
            &actions[..],
            [Action {
                request: Request::Inventory,
                ..
            }]
        ),
        "{actions:?}"
    );
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(0), after(0));
    state
}

fn acquires(actions: &[Action]) -> Vec<AcquireRequest> {
    let acquires = actions.iter().filter_map(|action| match &action.request {
        Request::Acquire(request) => Some(request.clone()),
        _ => None,
    });
    acquires.collect()
}

fn releases(actions: &[Action]) -> Vec<ReleaseRequest> {
    let releases = actions.iter().filter_map(|action| match &action.request {
        Request::Release(request) => Some(request.clone()),
        _ => None,
    });
    releases.collect()
}

/// Grants the slices that are requested for the claim.
fn granted(state: &mut State, uid: &str, now: Duration) {
    let (actions, _) = state.plan(now);
    for request in acquires(&actions).into_iter().filter(|request| request.owner.uid == uid) {
        let grant = grant(uid, "boot", milliseconds(now) + 1, request.slices);
        assert_eq!(state.acquired(&"a".into(), &request, Ok(grant), now, now), None);
    }
}

#[test]
fn a_claim_grows_to_the_free_slices_and_requests_them_once() {
    let mut state = state();
    let view = state.claim(request("one", 1, 100), Vec::new(), after(0));
    let (actions, _) = state.plan(after(0));
    let acquire_requests = acquires(&actions);
    assert_eq!(
        (
            acquire_requests[0].slices,
            acquire_requests[0].at_least,
            acquire_requests[0].boot_id.as_str()
        ),
        (8, 1, "boot")
    );
    // Nothing more is requested while the answer is pending.
    assert_eq!(acquires(&state.plan(after(1)).0), []);
    state.acquired(
        &"a".into(),
        &acquire_requests[0],
        Ok(grant("one", "boot", 1, 8)),
        after(0),
        after(2),
    );
    assert_eq!(view.borrow().slices(), 8);
    assert_eq!(acquires(&state.plan(after(3)).0), []);
}

#[test]
fn a_rejection_updates_the_free_bytes_and_is_explained() {
    let mut state = state();
    let view = state.claim(request("one", 2, 100), Vec::new(), after(0));
    let (actions, _) = state.plan(after(0));
    let acquire_requests = acquires(&actions);
    let refusal = Refusal {
        code: RejectionCode::InsufficientVram as i32,
        message: "1 slice is free".into(),
        free_bytes: SLICE,
    };
    state.acquired(&"a".into(), &acquire_requests[0], Err(refusal), after(0), after(1));
    assert_eq!(acquires(&state.plan(after(2)).0), []);
    let why_not = view.borrow().why_not.clone().unwrap();
    assert!(why_not.contains("1 slice is free"), "{why_not}");
    assert_eq!(why_not.matches("a/cpu0").count(), 1, "{why_not}");
    // Later the agent reports that there is room again.
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), REFUSED_FOR, REFUSED_FOR + after(2));
    assert_eq!(acquires(&state.plan(REFUSED_FOR + after(2)).0).len(), 1);
}

#[test]
fn a_misconfigured_worker_is_reported_to_waiting_claims_until_it_answers() {
    let mut state = state();
    let trouble = "its certificate is for another name: --worker-server-name";
    state.inventory_failed(&"a".into(), after(1));
    assert!(state.troubled(&"a".into(), Some(trouble.to_owned())));
    assert!(!state.troubled(&"a".into(), Some(trouble.to_owned())), "it is no news");
    assert!(
        !state.troubled(&"a".into(), None),
        "a call that failed otherwise says nothing of it"
    );
    let view = state.claim(request("one", 1, 1), Vec::new(), after(1));
    assert_eq!(acquires(&state.plan(after(2)).0), []);
    let why_not = view.borrow().why_not.clone().unwrap();
    assert!(why_not.contains(trouble), "{why_not}");
    // An update from the directory does not remove it.
    state.observe(&[worker("a", "boot")], after(3));
    state.plan(after(3));
    assert!(view.borrow().why_not.clone().unwrap().contains(trouble));
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(4), after(4));
    assert_eq!(acquires(&state.plan(after(4)).0).len(), 1);
}

#[test]
fn grants_are_renewed_together_after_a_third_of_their_ttl_and_lost_when_the_agent_reports_it() {
    let mut state = state();
    let one = state.claim(request("one", 1, 4), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    let two = state.claim(request("two", 1, 4), Vec::new(), after(100));
    granted(&mut state, "two", after(100));
    assert_eq!((one.borrow().slices(), two.borrow().slices()), (4, 4));
    let (actions, wake) = state.plan(after(200));
    assert_eq!((actions, wake), (Vec::new(), Some(TTL / 3)));
    let (actions, _) = state.plan(TTL / 3);
    let [
        Action {
            request: Request::Renew(request),
            worker,
            ..
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(request.owners.len(), 2);
    let outcome = |owner: usize, renewed| RenewOutcome {
        id: request.owners[owner].grants[0].clone(),
        renewed,
        refusal: RejectionCode::InvalidRequest as i32,
    };
    state.renewed(
        worker,
        request,
        Some(&[outcome(0, true), outcome(1, false)]),
        TTL / 3,
        TTL / 3 + after(1),
    );
    assert_eq!((one.borrow().slices(), two.borrow().slices()), (4, 0));
    let lost = two.borrow().lost.clone().unwrap();
    assert_eq!((lost.device, lost.slices, lost.why), (DeviceId::new("a", "cpu0"), 4, Loss::Expired));
    assert_eq!((one.borrow().losses, two.borrow().losses), (0, 1));
}

#[test]
fn a_grant_that_is_not_renewed_in_time_is_lost_with_its_silent_agent_or_has_expired() {
    /// State of the first renewal.
    enum Renewal {
        NotDue,
        NotSent,
        Failed,
        Unanswered,
    }
    let silent = Loss::Worker("agent does not respond");
    for (renewal, why) in [
        (Renewal::NotDue, Loss::Expired),
        (Renewal::NotSent, Loss::Expired),
        (Renewal::Failed, silent),
        (Renewal::Unanswered, silent),
    ] {
        let mut state = state();
        let request = ClaimRequest {
            renewed: !matches!(renewal, Renewal::NotDue),
            ..request("one", 1, 4)
        };
        let view = state.claim(request, Vec::new(), after(0));
        granted(&mut state, "one", after(0));
        match renewal {
            Renewal::NotSent => {}
            Renewal::NotDue | Renewal::Failed => state.call_failed(&"a".into(), TTL - after(1)),
            Renewal::Unanswered => drop(state.plan(TTL / 3)),
        }
        state.plan(TTL);
        assert_eq!(view.borrow().slices(), 0);
        assert_eq!(view.borrow().lost.as_ref().map(|lost| lost.why), Some(why));
    }
}

#[test]
fn another_boot_or_a_silent_heartbeat_ends_the_grants() {
    let mut stale = worker("a", "boot");
    stale.stale = true;
    for next in [worker("a", "boot-2"), stale] {
        let mut state = state();
        let view = state.claim(request("one", 1, 4), Vec::new(), after(0));
        granted(&mut state, "one", after(0));
        state.observe(&[next], after(10));
        assert_eq!(view.borrow().slices(), 0);
    }
}

#[test]
fn an_answer_from_before_a_restart_does_not_affect_later_grants() {
    let mut state = state();
    state.observe(&[worker("a", "boot-2")], after(20));
    state.inventoried(&"a".into(), &inventory("boot-2", Vec::new()), after(20), after(20));
    let view = state.claim(request("one", 1, 4), Vec::new(), after(20));
    let (actions, _) = state.plan(after(20));
    let acquire_requests = acquires(&actions);
    state.acquired(
        &"a".into(),
        &acquire_requests[0],
        Ok(grant("one", "boot-2", 1, 4)),
        after(20),
        after(21),
    );
    // Requested from the old boot and answered by it, but received late.
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(10), after(22));
    assert_eq!(view.borrow().slices(), 4);
}

#[test]
fn a_grant_that_arrives_too_late_is_released() {
    let mut state = state();
    state.claim(request("one", 1, 4), Vec::new(), after(0));
    let (actions, _) = state.plan(after(0));
    let acquire_requests = acquires(&actions);
    state.take_out("one", true, after(3));
    let undo = state.acquired(
        &"a".into(),
        &acquire_requests[0],
        Ok(grant("one", "boot", 1, 4)),
        after(0),
        after(5),
    );
    let undone = releases(&undo.into_iter().collect::<Vec<_>>());
    assert_eq!(undone[0].grants, [grant("one", "boot", 1, 4).id]);
}

#[test]
fn an_inventory_reveals_lost_and_unknown_grants() {
    let mut state = state();
    let view = state.claim(request("one", 1, 4), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    let unknown = grant("one", "boot", 99, 2);
    let foreign = grant("someone", "boot", 98, 3);
    let actions = state.inventoried(
        &"a".into(),
        &inventory("boot", vec![unknown.clone(), foreign]),
        after(10),
        after(11),
    );
    assert_eq!(view.borrow().slices(), 0);
    assert_eq!(releases(&actions)[0].grants, [unknown.id]);
    // Five of the eight slices are free.
    let acquire_requests = acquires(&state.plan(after(12)).0);
    assert_eq!(acquire_requests[0].slices, 4);
}

#[test]
fn a_claim_yields_surplus_to_another_of_the_same_priority() {
    let mut state = state();
    let one = state.claim(request("one", 1, 100), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    let two = state.claim(request("two", 1, 100), Vec::new(), after(10));
    let (actions, _) = state.plan(after(10));
    let released = releases(&actions);
    assert_eq!((released.len(), released[0].keep_slices), (1, 4));
    assert_eq!(acquires(&actions), [], "what is not yet confirmed is not requested");
    assert_eq!(one.borrow().slices(), 4);
    // Once the agent has confirmed the release, an inventory is requested. Then the other claim gets its share.
    state.released(&"a".into(), after(11));
    let kept = grant("one", "boot", 1, 4);
    state.inventoried(&"a".into(), &inventory("boot", vec![kept]), after(12), after(13));
    granted(&mut state, "two", after(13));
    assert_eq!(two.borrow().slices(), 4);
}

#[test]
fn a_higher_term_at_an_agent_fences_the_claim() {
    let mut state = state();
    let view = state.claim(request("one", 1, 4), Vec::new(), after(0));
    let (actions, _) = state.plan(after(0));
    let refusal = Refusal {
        code: RejectionCode::StaleTerm as i32,
        ..Refusal::default()
    };
    state.acquired(&"a".into(), &acquires(&actions)[0], Err(refusal), after(0), after(1));
    assert!(view.borrow().fenced);
    assert_eq!(acquires(&state.plan(after(10_000)).0), []);
}

#[test]
fn slices_that_are_being_released_are_not_unknown_grants() {
    let mut state = state();
    state.claim(request("one", 1, 100), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    state.claim(
        ClaimRequest {
            priority: 1,
            ..request("two", 8, 8)
        },
        Vec::new(),
        after(10),
    );
    let (actions, _) = state.plan(after(10));
    assert_eq!(releases(&actions)[0].keep_slices, 0, "{actions:?}");
    // An inventory that was created before the release still lists the grant.
    let listed = inventory("boot", vec![grant("one", "boot", 1, 8)]);
    assert_eq!(releases(&state.inventoried(&"a".into(), &listed, after(11), after(12))), []);
    assert_eq!(acquires(&state.plan(after(13)).0), [], "nothing is free yet");
    // Much later, the release call must have been lost.
    let late = after(10) + RETURNED_WITHIN;
    assert_eq!(releases(&state.inventoried(&"a".into(), &listed, late, late + after(1))).len(), 1);
}

#[test]
fn a_claim_without_renewal_is_served_once() {
    let mut state = state();
    let brief = ClaimRequest {
        renewed: false,
        ..request("brief", 1, 1)
    };
    let view = state.claim(brief, Vec::new(), after(0));
    granted(&mut state, "brief", after(0));
    assert_eq!(view.borrow().slices(), 1);
    assert_eq!(state.plan(TTL / 2).0, []);
    let (actions, _) = state.plan(TTL);
    assert_eq!((view.borrow().slices(), acquires(&actions)), (0, vec![]));
    // The slices are not free for other claims until the agent confirms their expiry.
    state.claim(request("one", 8, 8), Vec::new(), TTL + after(1));
    assert_eq!(acquires(&state.plan(TTL + after(1)).0), []);
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), TTL + after(2), TTL + after(3));
    assert_eq!(acquires(&state.plan(TTL + after(3)).0)[0].slices, 8);
}

#[test]
fn an_inventory_that_crosses_a_grant_does_not_end_it() {
    let mut state = state();
    let view = state.claim(request("one", 1, 4), Vec::new(), after(0));
    let (actions, _) = state.plan(after(0));
    // The acquire was sent at 0 and answered at 20. The inventory was requested at 10 and created before the grant.
    state.acquired(
        &"a".into(),
        &acquires(&actions)[0],
        Ok(grant("one", "boot", 1, 4)),
        after(0),
        after(20),
    );
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(10), after(21));
    assert_eq!(view.borrow().slices(), 4);
}

#[test]
fn an_immediate_release_includes_draining_slices() {
    let mut state = state();
    state.observe(&[worker("a", "boot"), worker("b", "boot-b")], after(0));
    state.plan(after(0));
    state.inventoried(&"b".into(), &inventory("boot-b", Vec::new()), after(0), after(0));
    let one = state.claim(request("one", 1, 16), Vec::new(), after(0));
    let (actions, _) = state.plan(after(0));
    for request in acquires(&actions) {
        let (worker, boot) = if request.boot_id == "boot" {
            ("a", "boot")
        } else {
            ("b", "boot-b")
        };
        let grant = grant("one", boot, 1, request.slices);
        assert_eq!(state.acquired(&worker.into(), &request, Ok(grant), after(0), after(0)), None);
    }
    assert_eq!(one.borrow().slices(), 16);
    // A claim with the same priority needs a whole device: one of the grants makes room when its chunks have ended.
    let large = ClaimRequest {
        slice_bytes: 8 * SLICE,
        ..request("two", 1, 1)
    };
    let _two = state.claim(large, Vec::new(), after(10));
    let (actions, _) = state.plan(after(10));
    assert_eq!(
        releases(&actions).iter().map(|release| release.immediately).collect::<Vec<_>>(),
        [false]
    );
    assert_eq!(one.borrow().slices(), 8);
    // The first claim's owner is deleted before these chunks have ended.
    let actions = state.take_out("one", true, after(11));
    let workers: Vec<&str> = actions
        .iter()
        .filter(|action| matches!(action.request, Request::Release(_)))
        .map(|action| action.worker.as_ref())
        .collect();
    assert_eq!(workers, ["a", "b"]);
    let all = |release: &ReleaseRequest| release.grants.is_empty() && release.immediately && release.keep_slices == 0;
    assert!(releases(&actions).iter().all(all), "{actions:?}");
}
