use proptest::prelude::*;
use sahasra_crds::burst_job::Aggregate;
use serde_json::{Value, json};

use super::*;

fn layout(type_: ScalarType, count: i64) -> Layout {
    let args = json!([{"output": {"type": type_, "count": count}}]);
    Layout::of(&serde_json::from_value(json!({"ptx": {}, "entry": "k", "args": args})).unwrap())
}

fn run(aggregate: &Aggregate, results: &[(u64, f64)]) -> Aggregator {
    let layout = layout(ScalarType::F64, 1);
    let mut aggregator = Aggregator::new(Some(aggregate.choice().unwrap()), &layout);
    results
        .iter()
        .for_each(|(index, value)| aggregator.add(*index, &value.to_le_bytes(), &layout));
    aggregator
}

fn parsed(aggregate: Value) -> Aggregate {
    serde_json::from_value(aggregate).unwrap()
}

fn argmin() -> Aggregate {
    parsed(json!({"argmin": {}}))
}

fn top(k: i64) -> Aggregate {
    parsed(json!({"topK": {"k": k, "order": "Largest"}}))
}

fn mean() -> Aggregate {
    parsed(json!({"mean": {}}))
}

fn sum() -> Aggregate {
    parsed(json!({"sum": {}}))
}

/// All aggregates of the definition.
fn every() -> impl Iterator<Item = Aggregate> {
    Aggregate::OPTIONS.iter().map(|name| match *name {
        "topK" => top(3),
        name => parsed(json!({name: {}})),
    })
}

fn none(_: u64) -> BTreeMap<String, Scalar> {
    BTreeMap::new()
}

proptest! {
    #[test]
    fn the_order_of_arrival_does_not_matter(values in prop::collection::vec(prop_oneof![(-3_i32..3).prop_map(f64::from), any::<f64>().prop_filter("finite", |v| v.abs() < 1e100)], 1..40), shift in 0_usize..40) {
        let results: Vec<(u64, f64)> = values.iter().copied().enumerate().map(|(index, value)| (index as u64, value)).collect();
        let mut other = results.clone();
        other.rotate_left(shift % results.len());
        other.reverse();
        for aggregate in every() {
            prop_assert_eq!(run(&aggregate, &results).status(none), run(&aggregate, &other).status(none));
        }
    }

    #[test]
    fn argmin_is_the_first_smallest(values in prop::collection::vec(-5_i32..5, 1..40)) {
        let results: Vec<(u64, f64)> = values.iter().enumerate().map(|(index, value)| (index as u64, f64::from(*value))).collect();
        let smallest = values.iter().min().copied().unwrap();
        let index = values.iter().position(|value| *value == smallest).unwrap();
        let status = run(&argmin(), &results).status(none);
        prop_assert_eq!((status.best[0].index, status.best[0].value), (index as i64, Some(f64::from(smallest))));
    }
}

/// Aggregates the results of chunks 0, 1, 2, … with one output, forward and backward.
fn of_all(aggregate: &Aggregate, type_: ScalarType, count: i64, records: &[Vec<u8>]) -> AggregateStatus {
    let layout = layout(type_, count);
    let mut both = [false, true].map(|backward| {
        let mut aggregator = Aggregator::new(Some(aggregate.choice().unwrap()), &layout);
        let mut indexed: Vec<(u64, &Vec<u8>)> = (0..).zip(records).collect();
        if backward {
            indexed.reverse();
        }
        for (index, record) in indexed {
            aggregator.add(index, record, &layout);
        }
        aggregator.status(none)
    });
    assert_eq!(both[0], both[1], "the order of arrival shows");
    std::mem::take(&mut both[0])
}

fn of_floats(aggregate: &Aggregate, values: &[f64]) -> AggregateStatus {
    let records: Vec<Vec<u8>> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    of_all(aggregate, ScalarType::F64, 1, &records)
}

fn of_unsigned(aggregate: &Aggregate, values: &[u64]) -> AggregateStatus {
    let records: Vec<Vec<u8>> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    of_all(aggregate, ScalarType::U64, 1, &records)
}

fn of_signed(aggregate: &Aggregate, values: &[i64]) -> AggregateStatus {
    let records: Vec<Vec<u8>> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    of_all(aggregate, ScalarType::S64, 1, &records)
}

#[test]
fn every_aggregate_of_the_definition_is_summarised() {
    for name in Aggregate::OPTIONS {
        let expected = match *name {
            "argmin" | "topK" => Some("1 @ 1"),
            "argmax" => Some("3 @ 0"),
            "sum" => Some("6"),
            "mean" => Some("2 ± 2.48414"),
            "concat" | "none" => None,
            other => panic!("no summary is expected of {other}: add it here"),
        };
        let aggregate = parsed(json!({*name: {"k": 2}}));
        let status = of_floats(&aggregate, &[3.0, 1.0, 2.0]);
        assert_eq!((status.summary.as_deref(), status.count), (expected, 3), "{name}");
    }
}

#[test]
fn nan_never_wins_and_is_told() {
    let status = of_floats(&argmin(), &[f64::NAN, 3.0, f64::NAN]);
    assert_eq!((status.best[0].index, status.nan, status.count), (1, 2, 3));
    assert_eq!(status.summary.as_deref(), Some("3 @ 1; 2 of 3 NaN"));
    let status = of_floats(&argmin(), &[f64::NAN]);
    assert_eq!((status.best.len(), status.summary.as_deref()), (0, Some("1 of 1 NaN")));
}

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

#[test]
fn top_k_lists_the_best_first() {
    let status =
        run(&top(2), &[(0, 1.0), (1, 9.0), (2, 5.0), (3, 9.0)]).status(|index| BTreeMap::from([("x".to_owned(), Scalar::U64(index))]));
    assert_eq!(status.best.iter().map(|best| best.index).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(status.best[1].parameters["x"], 3.0);
}

#[test]
fn a_mean_comes_with_its_confidence_interval() {
    let status = run(&mean(), &[(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]).status(none);
    assert_eq!(status.values, [Some(2.5)]);
    // Standard deviation 1.29099, standard error 0.645497; Student's t with 3 degrees of freedom: 3.182446.
    let width = status.confidence95[0].unwrap();
    assert!((width - 2.054_26).abs() < 1e-5, "{width}");
    assert_eq!(status.summary.as_deref(), Some("2.5 ± 2.05426"));
    assert_eq!(run(&mean(), &[(0, 1.0)]).status(none).confidence95, [], "one result has no spread");
}

#[test]
fn the_state_survives_serialisation() {
    for aggregate in every() {
        let aggregator = run(&aggregate, &[(0, 0.1), (7, 1e300), (3, f64::INFINITY), (4, -1e-300)]);
        let text = serde_json::to_string(&aggregator).unwrap();
        assert_eq!(serde_json::from_str::<Aggregator>(&text).unwrap(), aggregator);
    }
}

/// The forms of earlier versions.
#[test]
fn earlier_checkpoints_are_continued() {
    let states = [
        (json!({"none": {}}), json!("Count")),
        (
            json!({"argmin": {}}),
            json!({"Best": {"output": 0, "k": 1, "largest": false, "numbers": "Float", "best": [[4_607_182_418_800_017_408_u64, 7]]}}),
        ),
        (
            json!({"sum": {}}),
            json!({"Sum": {"output": 0, "numbers": "Float", "sums": [{"sum": "1", "exponent": 0}], "squares": null}}),
        ),
        (
            json!({"mean": {}}),
            json!({"Sum": {
                "output": 0, "numbers": "Float", "sums": [{"sum": "1", "exponent": 0}], "squares": [{"sum": "1", "exponent": 0}],
            }}),
        ),
    ];
    for (aggregate, kind) in states {
        let aggregate = parsed(aggregate);
        let kept: Aggregator = serde_json::from_value(json!({"count": 1, "nan": 0, "kind": kind})).unwrap();
        assert!(kept.continues(&run(&aggregate, &[]), 1), "{kept:?}");
        assert_eq!(kept, run(&aggregate, &[(7, 1.0)]));
    }
}

#[test]
fn counts_beyond_the_chunks_are_not_continued() {
    let fresh = run(&sum(), &[]);
    let kept = |count: u64, nan: u64| {
        let mut state = serde_json::to_value(&fresh).unwrap();
        state["count"] = json!(count);
        state["nan"] = json!(nan);
        serde_json::from_value::<Aggregator>(state).unwrap().continues(&fresh, 3)
    };
    assert!(kept(3, 3));
    assert!(!kept(4, 0));
    assert!(!kept(u64::MAX, 0));
    assert!(!kept(2, 3));
}

#[test]
fn columns_show_six_digits() {
    assert_eq!(short(0.031_250_01), "0.03125");
    assert_eq!(short(123_456.7), "123457");
    assert_eq!(short(1200.0), "1200");
    assert_eq!(short(-1.234_567e-9), "-1.23457e-9");
}
