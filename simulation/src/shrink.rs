//! Search for the smallest set of faults with which a seed still fails.

use std::collections::BTreeSet;

use sahasra_simulation::plan::Plan;

use crate::seed;

/// Leaves out one fault after the other, as long as the seed still fails without it. Returns the faults that were left out.
pub(crate) fn fewest_faults(number: u64) -> BTreeSet<usize> {
    let mut without = BTreeSet::new();
    for fault in 0..Plan::of(number).faults.len() {
        without.insert(fault);
        let fails = seed::start(number, &without, false).is_ok_and(|child| !seed::outcome(child.wait()).broken.is_empty());
        if !fails {
            without.remove(&fault);
        }
    }
    without
}
