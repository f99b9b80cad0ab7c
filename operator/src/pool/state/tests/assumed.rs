//! Tests of placement between two reports of load.

use super::*;

/// Two workers with eight free slices each. The first stores a tensor of another session, the second is idle.
fn pair() -> State {
    let mut state = State::new(Arc::new(Metrics::new().unwrap()));
    state.observe(&[worker("a", "boot-a"), worker("b", "boot-b")], after(0));
    state.plan(after(0));
    let mut busy = inventory("boot-a", Vec::new());
    (busy.devices[0].stored_tensor_bytes, busy.devices[0].tensor_count) = (64, 1);
    state.inventoried(&"a".into(), &busy, after(0), after(0));
    state.inventoried(&"b".into(), &inventory("boot-b", Vec::new()), after(0), after(0));
    state
}

fn session(state: &mut State, uid: &str, now: Duration) {
    let terms = SessionTerms {
        namespace: "team".into(),
        name: uid.into(),
        ..SessionTerms::default()
    };
    let claim = ClaimRequest {
        kind: ClaimKind::Session,
        session: Some(terms),
        ..request(uid, 1, 1)
    };
    state.claim(claim, Vec::new(), now);
}

/// The workers that slices are requested from, in the order of the owners' UIDs. All of them grant the slices.
fn places(state: &mut State, now: Duration) -> Vec<String> {
    let (actions, _) = state.plan(now);
    let mut acquire_requests = acquires(&actions);
    acquire_requests.sort_by(|left, right| left.owner.uid.cmp(&right.owner.uid));
    let places = acquire_requests.into_iter().map(|request| {
        let worker = request.boot_id.trim_start_matches("boot-").to_owned();
        let grant = grant(&request.owner.uid, &request.boot_id, milliseconds(now) + 1, request.slices);
        state.acquired(&worker.as_str().into(), &request, Ok(grant), now, now);
        worker
    });
    places.collect()
}

/// Inventory of agent `b` in which session `one` stores this many bytes and tensors.
fn stores(bytes: u64, tensors: u64) -> Inventory {
    let mut inventory = inventory("boot-b", vec![grant("one", "boot-b", 1, 1)]);
    (inventory.devices[0].stored_tensor_bytes, inventory.devices[0].tensor_count) = (bytes, tensors);
    inventory.sessions = vec![SessionLoad {
        owner_uid: "one".into(),
        namespace: "team".into(),
        name: "one".into(),
        tensors,
        stored_bytes: bytes,
        ..SessionLoad::default()
    }];
    inventory
}

#[test]
fn a_session_without_reported_load_counts_as_one_execution() {
    let mut state = pair();
    session(&mut state, "one", after(0));
    assert_eq!(places(&mut state, after(0)), ["b"]);
    // The agent reports the session as unused so far, but it may be used at any moment.
    state.inventoried(&"b".into(), &stores(0, 0), after(10), after(10));
    session(&mut state, "two", after(20));
    assert_eq!(places(&mut state, after(20)), ["a"]);
    // Two sessions at the same time are placed on different workers.
    session(&mut state, "three", after(30));
    session(&mut state, "two-and-a-half", after(30));
    let mut both = places(&mut state, after(30));
    both.sort();
    assert_eq!(both, ["a", "b"]);
}

#[test]
fn a_session_with_reported_load_counts_with_that_load() {
    let mut state = pair();
    session(&mut state, "one", after(0));
    assert_eq!(places(&mut state, after(0)), ["b"]);
    state.inventoried(&"b".into(), &stores(32, 1), after(10), after(10));
    session(&mut state, "two", after(20));
    assert_eq!(places(&mut state, after(20)), ["b"], "32 bytes are less than 64");
}

#[test]
fn a_session_that_stays_unused_counts_as_idle() {
    let mut state = pair();
    session(&mut state, "one", after(0));
    assert_eq!(places(&mut state, after(0)), ["b"]);
    let later = 2 * SESSIONS_EVERY;
    state.inventoried(&"b".into(), &stores(0, 0), later - after(1), later - after(1));
    session(&mut state, "two", later);
    assert_eq!(places(&mut state, later), ["b"]);
}

#[test]
fn the_load_of_a_session_ends_with_the_session() {
    let mut state = pair();
    session(&mut state, "one", after(0));
    places(&mut state, after(0));
    state.inventoried(&"b".into(), &stores(128, 2), after(10), after(10));
    state.take_out("one", true, after(20));
    session(&mut state, "two", after(21));
    assert_eq!(places(&mut state, after(21)), ["b"]);
}

#[test]
fn chunks_that_were_sent_for_count_until_the_agent_is_heard_again() {
    let mut state = pair();
    state.claim(request("burst", 1, 1), Vec::new(), after(0));
    assert_eq!(places(&mut state, after(0)), ["b"]);
    session(&mut state, "one", after(1));
    assert_eq!(places(&mut state, after(1)), ["a"]);
    state.take_out("one", true, after(2));
    // The burst's chunk ended before the first inventory was requested.
    state.inventoried(
        &"b".into(),
        &inventory("boot-b", vec![grant("burst", "boot-b", 1, 1)]),
        after(5),
        after(5),
    );
    session(&mut state, "two", after(6));
    assert_eq!(places(&mut state, after(6)), ["b"]);
}
