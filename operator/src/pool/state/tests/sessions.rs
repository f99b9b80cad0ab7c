//! Tests of the agents' reports about sessions.

use super::*;

/// A pool with the claim of a session that holds its slice since 0.
fn with_session() -> State {
    let mut state = state();
    let terms = SessionTerms {
        namespace: "team".into(),
        name: "mine".into(),
        keep_milliseconds: 1_000,
        ..SessionTerms::default()
    };
    let claim = ClaimRequest {
        kind: ClaimKind::Session,
        session: Some(terms),
        ..request("lease", 1, 1)
    };
    state.claim(claim, Vec::new(), after(0));
    granted(&mut state, "lease", after(0));
    state
}

fn says(idle_milliseconds: u64, connected: bool) -> Inventory {
    Inventory {
        sessions: vec![SessionLoad {
            owner_uid: "lease".into(),
            namespace: "team".into(),
            name: "mine".into(),
            idle_milliseconds,
            connected,
            ..SessionLoad::default()
        }],
        ..inventory("boot", vec![grant("lease", "boot", 1, 1)])
    }
}

#[test]
fn the_inventory_of_an_agent_with_a_session_is_requested_every_few_seconds() {
    let mut state = with_session();
    let asks = |state: &mut State, now| state.plan(now).0.iter().any(|action| action.request == Request::Inventory);
    assert!(asks(&mut state, after(0)), "whether clients may connect");
    state.inventoried(&"a".into(), &says(0, false), after(1), after(2));
    assert!(!asks(&mut state, after(3)));
    assert!(!asks(&mut state, SESSIONS_EVERY) && asks(&mut state, after(3) + SESSIONS_EVERY));
    // No inventory is requested from a worker without a session.
    state.inventoried(&"a".into(), &says(0, false), after(6_000), after(6_000));
    state.take_out("lease", true, after(6_001));
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(6_002), after(6_003));
    assert!(!asks(&mut state, after(6_004)) && !asks(&mut state, after(60_000)));
}

#[test]
fn a_report_on_a_session_is_a_change_unless_only_times_differ() {
    let mut state = with_session();
    let receive = |state: &mut State, report: &Inventory, now| {
        state.inventoried(&"a".into(), report, now, now);
        state.take_changed_sessions()
    };
    let mine = vec![("team".to_owned(), "mine".to_owned())];
    assert_eq!(receive(&mut state, &says(0, false), after(10)), mine);
    assert_eq!(receive(&mut state, &says(5_000, false), after(5_010)), []);
    let seen = state.session("lease", after(5_110)).unwrap();
    assert_eq!((seen.load.idle_milliseconds, seen.age), (5_000, after(100)));
    assert_eq!(receive(&mut state, &says(0, true), after(6_000)), mine);
    // The end of the session's executor stays known after the claim is removed, for as long as the agent reports it.
    let mut ended = says(0, false);
    (ended.sessions[0].ended, ended.grants) = ("killed".into(), Vec::new());
    assert_eq!(receive(&mut state, &ended, after(7_000)), mine);
    state.take_out("lease", false, after(7_001));
    assert_eq!(state.session("lease", after(7_002)).unwrap().load.ended, "killed");
    receive(&mut state, &inventory("boot", Vec::new()), after(8_000));
    assert_eq!(state.session("lease", after(8_001)), None);
}

#[test]
fn reports_of_other_agents_on_a_session_are_ignored() {
    let mut state = with_session();
    state.observe(&[worker("a", "boot"), worker("b", "other")], after(1));
    state.inventoried(&"a".into(), &says(0, true), after(10), after(10));
    state.take_changed_sessions();
    // The slice was requested from agent `b` first, and its answer was lost. A session without clients has existed there since.
    let mut elsewhere = says(90_000, false);
    (elsewhere.boot_id, elsewhere.grants) = ("other".into(), vec![grant("lease", "other", 1, 1)]);
    let returned = state.inventoried(&"b".into(), &elsewhere, after(20), after(20));
    assert_eq!(releases(&returned)[0].grants, [grant("lease", "other", 1, 1).id]);
    assert_eq!(state.take_changed_sessions(), []);
    let seen = state.session("lease", after(20)).unwrap().load;
    assert!(seen.connected && seen.idle_milliseconds == 0, "{seen:?}");
}

#[test]
fn a_sessions_slice_without_a_claim_becomes_an_orphan() {
    let mut state = with_session();
    state.inventoried(&"a".into(), &says(0, true), after(10), after(10));
    assert!(state.orphans(after(1_000_000)).is_empty(), "it is claimed");
    // The claim is dropped without an answer of the agent, which still holds the slice.
    state.claims.clear();
    state.inventoried(&"a".into(), &says(0, true), after(20), after(20));
    assert!(state.orphans(after(20)).is_empty(), "somebody may be about to take it up");
    let requests_inventory = |state: &mut State, now| state.plan(now).0.iter().any(|action| action.request == Request::Inventory);
    assert!(
        requests_inventory(&mut state, after(20) + SESSIONS_EVERY) || requests_inventory(&mut state, after(21) + SESSIONS_EVERY),
        "it is looked at"
    );
    state.inventoried(&"a".into(), &says(0, true), after(30_000), after(30_000));
    let orphans = state.orphans(after(30_000));
    assert_eq!(
        (orphans[0].uid.as_str(), orphans[0].namespace.as_str(), orphans[0].term),
        ("lease", "team", 2)
    );
    // The slice was released, is draining, or was adopted after all.
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(30_001), after(30_001));
    assert!(state.orphans(after(1_000_000)).is_empty());
}

#[test]
fn the_sessions_of_a_lost_worker_are_unknown() {
    let mut state = with_session();
    state.inventoried(&"a".into(), &says(0, false), after(10), after(10));
    state.observe(&[worker("a", "next")], after(20));
    assert_eq!(state.session("lease", after(21)), None);
}

#[test]
fn an_agent_hears_of_a_sessions_changed_time_with_the_next_renewal() {
    let mut state = with_session();
    state.inventoried(&"a".into(), &says(0, false), after(1), after(1));
    state.keep("lease", after(9_000));
    let (actions, _) = state.plan(TTL / RENEW_AT);
    let renewal = actions.iter().find_map(|action| match &action.request {
        Request::Renew(request) => Some(request.owners[0].clone()),
        _ => None,
    });
    assert_eq!(renewal.unwrap().session.unwrap().keep_milliseconds, 9_000);
}
