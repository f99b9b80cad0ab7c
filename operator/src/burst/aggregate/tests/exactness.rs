use super::*;

#[test]
fn infinities_win_and_stand_as_text() {
    let status = of_floats(&argmin(), &[f64::NEG_INFINITY, 3.0]);
    let best = &status.best[0];
    assert_eq!((best.index, best.value, best.exact.as_deref()), (0, None, Some("-inf")));
    assert_eq!(status.summary.as_deref(), Some("-inf @ 0"));
    let status = of_floats(&top(3), &[1.0, f64::NEG_INFINITY, f64::INFINITY, 7.0]);
    let found: Vec<(i64, Option<&str>)> = status.best.iter().map(|best| (best.index, best.exact.as_deref())).collect();
    assert_eq!(found, [(2, Some("inf")), (3, None), (0, None)]);
}

#[test]
fn integers_beyond_doubles_are_compared_as_integers() {
    let values: Vec<u64> = (0..4).map(|chunk| u64::MAX - chunk).collect();
    let best = &of_unsigned(&argmin(), &values).best[0];
    assert_eq!((best.index, best.exact.as_deref()), (3, Some("18446744073709551612")));
    let values: Vec<u64> = (0..4).map(|chunk| (1 << 53) + 4 - chunk).collect();
    let status = of_unsigned(&top(4), &values);
    assert_eq!(status.best.iter().map(|best| best.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(status.summary.as_deref(), Some("9007199254740996 @ 0"));
    let best = &of_signed(&argmin(), &[i64::MIN + 1, i64::MIN, -1]).best[0];
    assert_eq!((best.index, best.exact.as_deref()), (1, Some("-9223372036854775808")));
    let best = &of_signed(&argmin(), &[5, -7]).best[0];
    assert_eq!((best.index, best.value, best.exact.as_deref()), (1, Some(-7.0), None));
}

#[test]
fn zeros_of_both_signs_are_equal() {
    assert_eq!(of_floats(&argmin(), &[0.0, -0.0]).best[0].index, 0);
}

#[test]
fn parameters_beyond_doubles_stand_as_text() {
    let seed = Scalar::U64((1 << 53) + 1);
    let status = run(&argmin(), &[(0, 1.0)]).status(|_| BTreeMap::from([("seed".to_owned(), seed), ("rate".to_owned(), Scalar::F32(0.5))]));
    assert_eq!(
        status.best[0].exact_parameters,
        BTreeMap::from([("seed".to_owned(), "9007199254740993".to_owned())])
    );
    assert_eq!(status.best[0].parameters["rate"], 0.5);
}

#[test]
fn integers_are_summed_as_integers() {
    let status = of_unsigned(&sum(), &[(1 << 53) + 1; 3]);
    assert_eq!(
        (status.values, status.exact),
        (vec![Some(27_021_597_764_222_980.0)], vec!["27021597764222979".to_owned()])
    );
    let status = of_unsigned(&sum(), &[u64::MAX; 3]);
    assert_eq!(status.exact, ["55340232221128654845"]);
    let status = of_signed(&sum(), &[i64::MIN, i64::MAX, 4]);
    assert_eq!((status.values, status.exact), (vec![Some(3.0)], vec![]));
}

#[test]
fn sums_pass_over_the_range_of_doubles_and_come_back() {
    let status = of_floats(&sum(), &[f64::MAX, f64::MAX, -f64::MAX, -f64::MAX]);
    assert_eq!((status.values, status.exact), (vec![Some(0.0)], vec![]));
    let status = of_floats(&mean(), &[f64::MAX; 4]);
    assert_eq!((status.values, status.confidence95), (vec![Some(f64::MAX)], vec![Some(0.0)]));
}

#[test]
fn one_element_that_is_no_number_hides_no_other() {
    let record = |values: [f64; 3]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let records = [record([1.0, 2.0, 3.0]), record([2.0, f64::NAN, 4.0])];
    let status = of_all(&mean(), ScalarType::F64, 3, &records);
    assert_eq!(status.values, [Some(1.5), None, Some(3.5)]);
    assert_eq!(status.exact, ["1.5", "NaN", "3.5"]);
    assert_eq!(status.confidence95[1], None);
    assert!(status.confidence95[0].is_some() && status.confidence95[2].is_some());
    assert_eq!(status.nan, 1);
    assert_eq!(status.summary.as_deref(), Some("1.5 ± 6.3531, 1 of 3; 1 of 2 NaN"));
}

#[test]
fn the_interval_of_close_results_cancels_nothing() {
    let near = of_floats(&mean(), &[1.0, 2.0, 3.0, 4.0]);
    let far = of_floats(&mean(), &[1.0, 2.0, 3.0, 4.0].map(|value| value + 1e15));
    assert_eq!(near.confidence95, far.confidence95);
    let huge = of_unsigned(&mean(), &[1, 2, 3, 4].map(|value| u64::MAX - value));
    assert_eq!(near.confidence95, huge.confidence95);
}
