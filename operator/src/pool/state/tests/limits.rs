//! Claims that are limited to the slices that their owner needs.

use super::*;

#[test]
fn a_claim_releases_slices_beyond_its_limits_and_acquires_none_until_they_are_removed() {
    let mut state = state();
    let view = state.claim(request("one", 4, 8), Vec::new(), after(0));
    granted(&mut state, "one", after(0));
    assert_eq!(view.borrow().slices(), 8);
    let device = DeviceId::new("a", "cpu0");
    state.limit("one", Some([(device, 1)].into()));
    let (actions, _) = state.plan(after(1));
    assert_eq!(
        releases(&actions).iter().map(|release| release.keep_slices).collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(view.borrow().slices(), 1);
    assert_eq!(state.waiting(after(1)), [], "it does not wait for its minimum");
    let one = |slices| {
        let mut held = grant("one", "boot", 1, slices);
        held.expires_in_milliseconds = milliseconds(TTL);
        inventory("boot", vec![held])
    };
    state.inventoried(&"a".into(), &one(1), after(2), after(3));
    let (actions, _) = state.plan(after(4));
    assert_eq!((releases(&actions), acquires(&actions)), (Vec::new(), Vec::new()));
    state.limit("one", None);
    assert_eq!(acquires(&state.plan(after(5)).0)[0].slices, 7);
}
