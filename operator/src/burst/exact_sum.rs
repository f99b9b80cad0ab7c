//! Sums of `f64` that do not depend on the order of their terms.
//!
//! A running sum is kept as non-overlapping partials (Shewchuk, "Adaptive Precision Floating-Point Arithmetic and Fast
//! Robust Geometric Predicates", 1997, GROW-EXPANSION); its value is rounded once, at the end. Two runs of a burst whose
//! chunks arrive in another order therefore agree to the last bit.

use serde::{Deserialize, Serialize};

/// An exact running sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExactSum {
    /// Non-overlapping, ascending in magnitude; as bits, so that JSON keeps them exactly.
    partials: Vec<u64>,
    /// Sum of the terms that are infinite or NaN, as bits; `None` while all were finite.
    special: Option<u64>,
}

impl ExactSum {
    /// Adds a term.
    pub fn add(&mut self, term: f64) {
        if !term.is_finite() {
            let special = self.special.map_or(0.0, f64::from_bits) + term;
            self.special = Some(canonical(special).to_bits());
            return;
        }
        let mut x = term;
        let mut kept = 0;
        for place in 0..self.partials.len() {
            let y = f64::from_bits(self.partials[place]);
            let (sum, error) = two_sum(x, y);
            if error != 0.0 {
                self.partials[kept] = error.to_bits();
                kept += 1;
            }
            x = sum;
        }
        self.partials.truncate(kept);
        if x.is_finite() {
            if x != 0.0 {
                self.partials.push(x.to_bits());
            }
        } else {
            // The exact sum left the range of f64: it stays there.
            self.partials.clear();
            self.special = Some(canonical(self.special.map_or(0.0, f64::from_bits) + x).to_bits());
        }
    }

    /// The sum, rounded to nearest, ties to even.
    pub fn value(&self) -> f64 {
        if let Some(special) = self.special {
            return f64::from_bits(special);
        }
        let mut partials = self.partials.iter().rev().map(|bits| f64::from_bits(*bits));
        let Some(mut high) = partials.next() else { return 0.0 };
        let mut low = 0.0;
        for partial in partials.by_ref() {
            (high, low) = two_sum(high, partial);
            if low != 0.0 {
                break;
            }
        }
        // Half-way cases: what lies below decides the direction.
        if let Some(next) = partials.next()
            && ((low < 0.0 && next < 0.0) || (low > 0.0 && next > 0.0))
        {
            let doubled = low * 2.0;
            let rounded = high + doubled;
            if doubled == rounded - high {
                high = rounded;
            }
        }
        high
    }
}

/// One NaN for all, so that states compare and serialise alike.
fn canonical(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value }
}

/// The rounded sum and its exact error (Knuth).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_virtual = sum - a;
    let a_virtual = sum - b_virtual;
    (sum, (a - a_virtual) + (b - b_virtual))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(terms: &[f64]) -> f64 {
        let mut sum = ExactSum::default();
        terms.iter().for_each(|term| sum.add(*term));
        sum.value()
    }

    proptest! {
        #[test]
        fn the_order_of_terms_does_not_matter(terms in prop::collection::vec(-1e200_f64..1e200, 0..50), small in prop::collection::vec(-1.0_f64..1.0, 0..50)) {
            let mut terms: Vec<f64> = terms.into_iter().chain(small).collect();
            let forward = sum(&terms);
            terms.reverse();
            prop_assert_eq!(forward.to_bits(), sum(&terms).to_bits());
            terms.sort_by(f64::total_cmp);
            prop_assert_eq!(forward.to_bits(), sum(&terms).to_bits());
        }

        #[test]
        fn integers_are_summed_exactly(terms in prop::collection::vec(any::<i64>(), 0..100)) {
            let rounded: Vec<f64> = terms.iter().map(|term| *term as f64).collect();
            let exact: i128 = rounded.iter().map(|term| *term as i128).sum();
            prop_assert_eq!(sum(&rounded), exact as f64);
        }
    }

    #[test]
    fn cancellation_loses_nothing() {
        assert_eq!(sum(&[1e100, 1.0, -1e100]), 1.0);
        assert_eq!(sum(&[0.1; 10]), 1.0);
    }

    #[test]
    fn half_way_cases_round_by_what_lies_below() {
        let half_ulp = f64::EPSILON / 2.0;
        assert_eq!(sum(&[1.0, half_ulp]), 1.0);
        assert_eq!(sum(&[1.0, half_ulp, 1e-300]), 1.0 + f64::EPSILON);
    }

    #[test]
    fn infinities_and_nan_are_kept() {
        assert_eq!(sum(&[1.0, f64::INFINITY]), f64::INFINITY);
        assert!(sum(&[f64::NEG_INFINITY, f64::INFINITY, 1.0]).is_nan());
        assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
    }
}
