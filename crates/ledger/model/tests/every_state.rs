//! The properties of the model of grants hold in every state that it can reach.

use sahasra_ledger_model::Bounds;

#[test]
fn grants_hold_their_properties_for_two_coordinators_and_any_network() {
    let visited = Bounds::small().visit(2);
    println!("{visited}");
    assert!(visited.violations.is_empty(), "{visited}");
    assert!(visited.unseen.is_empty(), "never seen: {:?}", visited.unseen);
    assert!(visited.states > 10_000, "the model has become too small: {}", visited.states);
}
