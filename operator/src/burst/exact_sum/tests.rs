use proptest::prelude::*;

use super::*;

fn sum(terms: &[f64]) -> f64 {
    let mut sum = ExactSum::default();
    terms.iter().for_each(|term| sum.add(*term));
    sum.value()
}

fn of_both(terms: &[f64]) -> (ExactSum, ExactSum) {
    let (mut sum, mut squares) = (ExactSum::default(), ExactSum::default());
    for term in terms {
        sum.add(*term);
        squares.add_square(*term);
    }
    (sum, squares)
}

fn finite() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("finite", |value| value.is_finite())
}

proptest! {
    #[test]
    fn one_term_is_its_own_sum(term in finite()) {
        // No sum is a negative zero.
        prop_assert_eq!(sum(&[term]), term);
    }

    #[test]
    fn the_sum_of_two_numbers_equals_that_of_the_processor(left in finite(), right in finite()) {
        prop_assert_eq!(sum(&[left, right]), left + right);
    }

    #[test]
    fn a_quotient_equals_that_of_the_processor(term in finite(), count in 1_u64..10_000_000) {
        let mut exact = ExactSum::default();
        exact.add(term);
        prop_assert_eq!(exact.over(count), term / count as f64);
    }

    #[test]
    fn a_quotient_below_the_normal_numbers_is_rounded_once(bits in 1_u64..1 << 53, count in 1_u64..1000) {
        let mut exact = ExactSum::default();
        exact.add(f64::from_bits(bits));
        prop_assert_eq!(exact.over(count), f64::from_bits(bits) / count as f64);
    }

    #[test]
    fn the_order_of_terms_does_not_matter(terms in prop::collection::vec(finite(), 0..50)) {
        let mut other = terms.clone();
        other.reverse();
        let (forward, backward) = (of_both(&terms), of_both(&other));
        prop_assert_eq!(&forward, &backward);
        other.sort_by(f64::total_cmp);
        prop_assert_eq!(&forward, &of_both(&other));
        prop_assert_eq!(serde_json::to_string(&forward.0).unwrap(), serde_json::to_string(&backward.0).unwrap());
        prop_assert_eq!(serde_json::from_str::<ExactSum>(&serde_json::to_string(&forward.1).unwrap()).unwrap(), forward.1);
    }

    #[test]
    fn integers_are_summed_in_full(terms in prop::collection::vec(any::<i64>(), 0..100)) {
        let mut exact = ExactSum::default();
        terms.iter().for_each(|term| exact.add_whole(*term < 0, term.unsigned_abs()));
        let expected: i128 = terms.iter().map(|term| i128::from(*term)).sum();
        prop_assert_eq!(exact.whole().unwrap(), BigInt::from(expected));
        prop_assert_eq!(exact.value(), expected as f64);
    }

    #[test]
    fn carries_may_come_at_any_time(terms in prop::collection::vec(finite(), 0..30), every in 1_usize..5) {
        let mut carried = ExactSum::default();
        for (place, term) in terms.iter().enumerate() {
            carried.add(*term);
            if place % every == 0 {
                carried.carry();
            }
        }
        prop_assert_eq!(carried.value(), sum(&terms));
    }
}

#[test]
fn cancellation_causes_no_error() {
    assert_eq!(sum(&[1e100, 1.0, -1e100]), 1.0);
    assert_eq!(sum(&[0.1; 10]), 1.0);
    assert_eq!(sum(&[f64::MAX, -5e-324, -f64::MAX]), -5e-324);
}

#[test]
fn an_overflow_midway_does_not_show() {
    assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX, -f64::MAX]), 0.0);
    assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
    let mut exact = ExactSum::default();
    (0..4).for_each(|_| exact.add(f64::MAX));
    assert_eq!(exact.over(4), f64::MAX);
}

#[test]
fn ties_round_by_the_lower_bits() {
    let half_ulp = f64::EPSILON / 2.0;
    assert_eq!(sum(&[1.0, half_ulp]), 1.0);
    assert_eq!(sum(&[1.0, half_ulp, 1e-300]), 1.0 + f64::EPSILON);
}

#[test]
fn infinities_and_nan_are_kept() {
    assert_eq!(sum(&[1.0, f64::INFINITY]), f64::INFINITY);
    assert!(sum(&[f64::NEG_INFINITY, f64::INFINITY, 1.0]).is_nan());
}

#[test]
fn the_standard_error_is_exact_despite_cancellation() {
    // Four numbers 1, 2, 3, 4: standard deviation 1.290994, standard error 0.645497.
    let expected = (5.0_f64 / 12.0).sqrt();
    for offset in [0.0, 1e9, 1e15] {
        let (sum, squares) = of_both(&[1.0, 2.0, 3.0, 4.0].map(|term| term + offset));
        assert_eq!(standard_error(&sum, &squares, 4), expected, "{offset}");
    }
    for scale in [1e-300, 1e-160, 1e160, 1e300] {
        let (sum, squares) = of_both(&[1.0, 2.0, 3.0, 4.0].map(|term| term * scale));
        let found = standard_error(&sum, &squares, 4);
        assert!((found / scale - expected).abs() < 1e-15, "{scale}: {found}");
    }
    let (sum, squares) = of_both(&[0.1; 1000]);
    assert_eq!(standard_error(&sum, &squares, 1000), 0.0);
    let (sum, squares) = of_both(&[1.0, f64::INFINITY]);
    assert!(standard_error(&sum, &squares, 2).is_nan());
}

#[test]
fn an_invalid_sum_is_rejected() {
    let read = |text: &str| serde_json::from_str::<ExactSum>(text).is_ok();
    assert!(read(r#"{"sum": "-1f", "exponent": -1088}"#));
    assert!(!read(r#"{"sum": "x", "exponent": 0}"#));
    assert!(!read(r#"{"sum": "1", "exponent": 1000000000}"#));
    assert!(!read(&format!(r#"{{"sum": "{}", "exponent": 0}}"#, "f".repeat(2000))));
}
