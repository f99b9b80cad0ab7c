//! Agents that do not answer.

use super::*;

#[test]
fn an_agent_that_stays_silent_is_asked_at_intervals() {
    let mut state = state();
    let silent_since = after(1_000);
    state.inventory_failed(&"a".into(), silent_since);
    let now = silent_since + GIVE_UP_AFTER + after(100);
    state.inventory_failed(&"a".into(), now);
    let (actions, wake) = state.plan(now);
    assert_eq!(actions, []);
    assert!(wake.unwrap() > now + after(50), "{wake:?} after {now:?}");
}

#[test]
fn an_agent_is_given_up_in_time_while_it_is_asked() {
    let mut state = state();
    let silent_since = after(1_000);
    state.inventory_failed(&"a".into(), silent_since);
    let now = state.plan(silent_since).1.unwrap();
    let (actions, _) = state.plan(now);
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
    assert_eq!(state.plan(now).1, Some(silent_since + GIVE_UP_AFTER));
}
