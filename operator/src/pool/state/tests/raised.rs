//! Claims whose minimum is raised.

use super::*;

fn lease() -> ClaimRequest {
    ClaimRequest {
        kind: ClaimKind::Lease,
        ..request("lease", 2, 2)
    }
}

/// A pool whose claim `lease` holds two of the eight slices.
fn held(renewed: bool) -> (State, watch::Receiver<ClaimView>) {
    let mut state = state();
    let view = state.claim(ClaimRequest { renewed, ..lease() }, Vec::new(), after(0));
    granted(&mut state, "lease", after(0));
    (state, view)
}

#[test]
fn a_claim_keeps_its_slices_while_its_raised_minimum_waits() {
    let (mut state, view) = held(true);
    state.resize("lease", 9, 9, 0, after(10));
    let (actions, _) = state.plan(after(10));
    assert_eq!((releases(&actions), acquires(&actions)), (vec![], vec![]));
    let seen = view.borrow().clone();
    assert_eq!((seen.slices(), seen.keeps_fewer), (2, true));
    assert!(seen.why_not.unwrap().starts_with("needs 7 more slices of 512Mi"));
    assert_eq!(state.waiting(after(15)), [(ClaimKind::Lease, after(5))]);
    // The next operator knows that the lease keeps them.
    state.take_out("lease", false, after(20));
    let mut later = ClaimRequest {
        served: true,
        keeps: true,
        min: 9,
        max: 9,
        owner: owner("lease", 2),
        ..lease()
    };
    let adopted = vec![("a".into(), grant("lease", "boot", 1, 2))];
    let view = state.claim(later.clone(), adopted.clone(), after(20));
    assert_eq!(releases(&state.plan(after(20)).0), []);
    assert_eq!((view.borrow().slices(), view.borrow().keeps_fewer), (2, true));
    // Without that knowledge, they are a part of what it asked for.
    later.keeps = false;
    state.take_out("lease", false, after(30));
    state.claim(later, adopted, after(30));
    assert_eq!(releases(&state.plan(after(30)).0).len(), 1);
}

#[test]
fn a_part_of_the_missing_slices_is_not_kept() {
    let (mut state, view) = held(true);
    state.observe(&[worker("a", "boot"), worker("b", "other")], after(1));
    state.plan(after(1));
    state.inventoried(&"b".into(), &inventory("other", Vec::new()), after(1), after(2));
    state.resize("lease", 14, 14, 0, after(10));
    let asked = state.plan(after(10)).0;
    let (on_a, on_b): (Vec<_>, Vec<_>) = acquires(&asked).into_iter().partition(|request| request.boot_id == "boot");
    assert_eq!((on_a[0].slices + on_b[0].slices, view.borrow().acquiring), (12, true));
    state.acquired(
        &"a".into(),
        &on_a[0],
        Ok(grant("lease", "boot", 2, on_a[0].slices)),
        after(10),
        after(11),
    );
    let refusal = Refusal {
        code: RejectionCode::InsufficientVram as i32,
        message: "no slice is free".into(),
        free_bytes: 0,
    };
    state.acquired(&"b".into(), &on_b[0], Err(refusal), after(10), after(12));
    // Two claims that each kept a part would wait for each other.
    let released = releases(&state.plan(after(13)).0);
    assert_eq!(released.len(), 1, "{released:?}");
    assert_eq!((view.borrow().slices(), view.borrow().keeps_fewer), (2, true));
    let kept: Vec<u64> = view.borrow().grants.iter().map(|grant| grant.id.counter).collect();
    assert_eq!(kept, [1], "the slices that it had before");
}

#[test]
fn a_lease_whose_renewal_is_switched_on_acquires_what_a_raised_minimum_adds() {
    let (mut state, view) = held(false);
    state.resize("lease", 4, 4, 0, after(10));
    assert_eq!((acquires(&state.plan(after(10)).0), view.borrow().keeps_fewer), (vec![], true));
    assert!(state.set_renewed("lease", true));
    assert_eq!(acquires(&state.plan(after(20)).0)[0].slices, 2);
}

#[test]
fn a_raised_minimum_that_fits_is_acquired_beside_the_held_slices() {
    let (mut state, view) = held(true);
    state.resize("lease", 5, 5, 0, after(10));
    let (actions, _) = state.plan(after(10));
    assert_eq!((releases(&actions), acquires(&actions)[0].slices), (vec![], 3));
    assert_eq!(view.borrow().why_not, None);
}

#[test]
fn a_claim_that_has_lost_all_slices_keeps_no_part_of_its_raised_minimum() {
    let (mut state, view) = held(true);
    state.resize("lease", 9, 9, 0, after(10));
    state.plan(after(10));
    assert!(view.borrow().keeps_fewer);
    state.observe(&[], after(20));
    state.plan(after(20));
    assert_eq!((view.borrow().slices(), view.borrow().keeps_fewer), (0, false));
    assert_eq!(state.claims["lease"].kept, 0);
}
