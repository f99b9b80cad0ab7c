//! State of an `mbarrier` object (PTX ISA §9.7.13.15): 64 opaque bits that programs keep in shared memory. Bits 0-19 are the arrivals
//! pending in this phase, 20-39 the arrivals expected in each phase, 40-62 the pending transaction bytes (two's complement), 63 the parity
//! of the phase that is not complete yet.

/// Width of an arrival count in bits.
pub(crate) const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const BYTES_AT: u32 = 2 * COUNT_BITS;
/// Index of the bit that holds the parity of the phase.
pub(crate) const PARITY_BIT: u32 = 63;
const BYTES: u64 = (1 << (PARITY_BIT - BYTES_AT)) - 1;

/// Returns the state after arrivals (low half of the operand) and a change of the pending bytes (high half). `drop` also removes the
/// arrivals from the following phases. The next phase begins when nothing is pending any more.
pub(super) fn arrive(state: u64, operand: u64, drop: bool) -> u64 {
    let arrivals = operand & COUNT;
    let pending = (state & COUNT).wrapping_sub(arrivals) & COUNT;
    let expected = state >> COUNT_BITS & COUNT;
    let expected = if drop { expected.wrapping_sub(arrivals) & COUNT } else { expected };
    let bytes = (state >> BYTES_AT).wrapping_add(operand >> 32) & BYTES;
    let parity = state & 1 << PARITY_BIT;
    if pending == 0 && bytes == 0 {
        parity ^ 1 << PARITY_BIT | expected << COUNT_BITS | expected
    } else {
        parity | bytes << BYTES_AT | expected << COUNT_BITS | pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: u64) -> u64 {
        count << COUNT_BITS | count
    }

    #[test]
    fn a_phase_ends_with_its_last_arrival() {
        let first = arrive(of(3), 1, false);
        assert_eq!((first & COUNT, first >> PARITY_BIT), (2, 0));
        let last = arrive(first, 2, false);
        assert_eq!(last, of(3) | 1 << PARITY_BIT);
        assert_eq!(arrive(last, 3, false), of(3));
    }

    #[test]
    fn dropped_arrivals_are_not_expected_again() {
        let state = arrive(arrive(of(2), 1, true), 1, false);
        assert_eq!(state, of(1) | 1 << PARITY_BIT);
    }

    #[test]
    fn a_phase_waits_for_its_bytes() {
        let state = arrive(of(1), 64 << 32 | 1, false);
        assert_eq!(state >> PARITY_BIT, 0);
        let half = arrive(state, (-32i32 as u32 as u64) << 32, false);
        assert_eq!(half >> PARITY_BIT, 0);
        assert_eq!(arrive(half, (-32i32 as u32 as u64) << 32, false), of(1) | 1 << PARITY_BIT);
    }
}
