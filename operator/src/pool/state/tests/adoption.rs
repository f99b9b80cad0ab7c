use super::*;

/// A grant that expires in `left`.
fn with_left(uid: &str, counter: u64, left: Duration) -> Grant {
    Grant {
        expires_in_milliseconds: milliseconds(left),
        ..grant(uid, "boot", counter, 1)
    }
}

fn renewals(actions: &[Action]) -> Vec<GrantId> {
    let renewals = actions.iter().filter_map(|action| match &action.request {
        Request::Renew(request) => Some(request.owners.iter().flat_map(|owner| owner.grants.clone())),
        _ => None,
    });
    renewals.flatten().collect()
}

#[test]
fn adopted_grants_are_renewed_at_once() {
    let mut state = state();
    let adopted = with_left("one", 7, TTL / 2);
    let mut request = request("one", 1, 1);
    request.owner.term = 2;
    let view = state.claim(request, vec![("a".into(), adopted.clone())], after(1_000));
    let (actions, wake) = state.plan(after(1_000));
    assert_eq!(
        renewals(&actions),
        [adopted.id],
        "this operator may be killed before a third of the ttl is over"
    );
    assert!(wake.is_some_and(|wake| wake <= after(1_000) + TTL / 2), "{wake:?}");
    // Without an answer, the grant expires at its original time, not a whole TTL after this operator began to lead.
    state.plan(after(1_000) + TTL / 2 - after(1));
    assert_eq!(view.borrow().slices(), 1);
    state.plan(after(1_000) + TTL / 2);
    assert_eq!(view.borrow().slices(), 0);
    assert_eq!(view.borrow().lost.as_ref().map(|lost| lost.why), Some(Loss::Worker(SILENT)));
}

#[test]
fn one_inventory_of_each_agent_serves_all_owners() {
    let mut state = State::new(Arc::new(Metrics::new().unwrap()));
    state.observe(&[worker("a", "boot"), worker("b", "boot-b")], after(0));
    let (actions, _) = state.plan(after(0));
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert_eq!(state.unclaimed("one", false, after(0)), None, "no agent has answered");
    let grants = vec![
        with_left("one", 1, after(10_000)),
        with_left("two", 2, after(20_000)),
        with_left("short", 3, after(500)),
    ];
    state.inventoried(&"a".into(), &inventory("boot", grants), after(0), after(5));
    assert_eq!(state.unclaimed("one", false, after(5)), None, "one of two has answered");
    state.inventory_failed(&"b".into(), after(3_000));
    for (owner, left) in [("one", 7_000), ("two", 17_000)] {
        let found = state.unclaimed(owner, false, after(3_000)).unwrap();
        assert_eq!(found.silent, [WorkerName::from("b")]);
        let [(worker, grant)] = &found.grants[..] else {
            panic!("{found:?}")
        };
        assert_eq!((worker.as_str(), grant.expires_in_milliseconds), ("a", left));
    }
    assert_eq!(
        state.unclaimed("short", false, after(3_000)).unwrap().grants,
        [],
        "it has expired meanwhile"
    );
    assert_eq!(state.unclaimed("other", false, after(3_000)).unwrap().grants, []);
}

#[test]
fn an_adoption_continues_without_an_agent_that_never_answers() {
    let mut state = State::new(Arc::new(Metrics::new().unwrap()));
    state.observe(&[worker("a", "boot")], after(0));
    assert_eq!(state.unclaimed("one", true, after(10_000)).unwrap().silent, [WorkerName::from("a")]);
    let mut stale = worker("a", "boot");
    stale.stale = true;
    state.observe(&[stale], after(10_000));
    let found = state.unclaimed("one", false, after(10_000)).unwrap();
    assert_eq!(found, Unclaimed::default(), "what is not live holds nothing");
}

#[test]
fn inventories_are_requested_again_for_a_forgotten_claim() {
    let mut state = state();
    state.claim(request("one", 1, 2), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    state.request_inventories("one", after(1_000));
    state.take_out("one", false, after(1_000));
    assert_eq!(state.unclaimed("one", false, after(1_000)), None);
    let (actions, _) = state.plan(after(1_000));
    assert!(actions.iter().any(|action| action.request == Request::Inventory), "{actions:?}");
}

#[test]
fn requests_for_a_claim_never_exceed_its_maximum_when_the_placement_changes() {
    for kind in [ClaimKind::Session, ClaimKind::Lease] {
        let mut state = State::new(Arc::new(Metrics::new().unwrap()));
        state.observe(&[worker("a", "boot"), worker("b", "boot")], after(0));
        state.plan(after(0));
        for worker in ["a", "b"] {
            state.inventoried(&worker.into(), &inventory("boot", Vec::new()), after(0), after(0));
        }
        let view = state.claim(
            ClaimRequest {
                kind,
                ..request("one", 1, 1)
            },
            Vec::new(),
            after(0),
        );
        let acquire_requests = acquires(&state.plan(after(0)).0);
        assert_eq!(acquire_requests.len(), 1);
        // While the answer is on its way, the device fills up with slices of others.
        let mut full = inventory("boot", vec![grant("other", "boot", 9, 8)]);
        full.devices[0].leased_bytes = 8 * SLICE;
        state.inventoried(&"a".into(), &full, after(1), after(1));
        assert_eq!(acquires(&state.plan(after(1)).0), [], "{kind:?}: the first one has not answered");
        state.acquired(
            &"a".into(),
            &acquire_requests[0],
            Ok(grant("one", "boot", 1, 1)),
            after(0),
            after(2),
        );
        assert_eq!(view.borrow().slices(), 1, "{kind:?}");
        // A session is never moved. A lease is moved, and has released the slices that it held before.
        let (actions, _) = state.plan(after(2));
        assert_eq!(acquires(&actions).len(), releases(&actions).len(), "{kind:?}");
        assert_eq!(view.borrow().slices(), u64::from(kind == ClaimKind::Session), "{kind:?}");
    }
}
