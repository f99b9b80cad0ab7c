//! Releases that agents do not confirm.

use super::*;

/// A pool whose claim `one` holds eight slices and has been taken out. Returns the release.
fn ended() -> (State, ReleaseRequest) {
    let mut state = state();
    state.claim(request("one", 1, 8), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    let release = releases(&state.take_out("one", false, after(10))).remove(0);
    (state, release)
}

#[test]
fn a_release_without_an_answer_is_repeated_less_and_less_often_until_the_agent_confirms_it() {
    let (mut state, release) = ended();
    assert_eq!(releases(&state.plan(after(20)).0), [], "the call is on its way");
    let mut now = after(3_010);
    for wait in [2_000, 4_000, 8_000, 10_000, 10_000].map(after) {
        state.release_failed(&"a".into(), &release, now);
        assert_eq!(releases(&state.plan(now + wait - after(1)).0), []);
        let (actions, _) = state.plan(now + wait);
        assert_eq!(releases(&actions), std::slice::from_ref(&release), "after {wait:?}");
        now += wait;
    }
    state.confirmed(&"a".into(), &release);
    assert_eq!(releases(&state.plan(now + after(20_000)).0), []);
}

#[test]
fn a_release_is_not_repeated_once_the_grant_has_ended() {
    // The grant has expired, so its release is not repeated.
    let (mut state, release) = ended();
    state.release_failed(&"a".into(), &release, after(10));
    assert_eq!(releases(&state.plan(TTL).0), []);
    // The agent has restarted, which released its grants.
    let (mut state, release) = ended();
    state.release_failed(&"a".into(), &release, after(10));
    state.observe(&[worker("a", "next boot")], after(11));
    assert_eq!(releases(&state.plan(after(3_000)).0), []);
    // An inventory shows that the release has arrived.
    let (mut state, release) = ended();
    state.release_failed(&"a".into(), &release, after(10));
    state.inventoried(&"a".into(), &inventory("boot", Vec::new()), after(11), after(12));
    assert_eq!(releases(&state.plan(after(3_000)).0), []);
    // Another operator acts for the owner, so this one repeats no release.
    let (mut state, release) = ended();
    state.release_failed(&"a".into(), &release, after(10));
    state.leave_to_others("one");
    assert_eq!(releases(&state.plan(after(3_000)).0), []);
}

#[test]
fn an_unanswered_partial_release_is_repeated_while_the_rest_is_held() {
    let mut state = state();
    state.claim(request("one", 1, 8), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    state.resize("one", 1, 3, 0, after(0));
    let release = releases(&state.plan(after(10)).0).remove(0);
    assert_eq!(release.keep_slices, 3);
    state.release_failed(&"a".into(), &release, after(10));
    // The inventory still lists all slices.
    state.inventoried(
        &"a".into(),
        &inventory("boot", vec![grant("one", "boot", 1, 8)]),
        after(11),
        after(12),
    );
    assert_eq!(releases(&state.plan(after(2_010)).0), [release]);
}

#[test]
fn a_grant_whose_answer_was_lost_is_released_after_its_claim_has_ended() {
    let mut state = state();
    state.claim(request("one", 1, 8), Vec::new(), after(0));
    let acquire = acquires(&state.plan(after(0)).0).remove(0);
    state.acquire_failed(&"a".into(), &acquire, after(3_000));
    assert_eq!(releases(&state.take_out("one", false, after(3_001))), []);
    let unknown = inventory("boot", vec![grant("one", "boot", 7, 8)]);
    let release = releases(&state.inventoried(&"a".into(), &unknown, after(3_002), after(3_003))).remove(0);
    assert_eq!(release.grants[0].counter, 7);
    state.release_failed(&"a".into(), &release, after(3_004));
    assert_eq!(releases(&state.plan(after(5_004)).0), [release]);
}
