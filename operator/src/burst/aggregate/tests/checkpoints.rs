use super::*;

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
