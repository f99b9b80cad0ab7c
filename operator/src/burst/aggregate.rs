//! The aggregate of a burst's results, independent of the order in which the results arrive. Sums and values derived from them are exact
//! until they are formatted ([`super::exact_sum`]).

mod numbers;

use std::collections::BTreeMap;

use sahasra_crds::burst_job::{
    AggregateChoice,
    aggregate::Order,
    status::{AggregateStatus, BestChunk},
};
use sahasra_parameters::Scalar;
use serde::{Deserialize, Serialize};

use self::numbers::{Numbers, add, bits, in_json, short, summary, texts, unless_finite};
use super::{
    exact_sum::{ExactSum, standard_error},
    layout::Layout,
    student,
};
use crate::objects::integer;

/// The running aggregate of a burst. Serialized into the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregator {
    count: u64,
    /// Number of results with a NaN in the aggregated output.
    nan: u64,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    /// Only the number of results, because the results themselves are the aggregate.
    Count,
    /// The k best pairs of value and index, best first.
    Best {
        output: usize,
        k: usize,
        largest: bool,
        numbers: Numbers,
        best: Vec<(u64, u64)>,
    },
    /// Sums of each element, and for a mean also the sums of the squares.
    Sum {
        output: usize,
        numbers: Numbers,
        sums: Vec<ExactSum>,
        squares: Option<Vec<ExactSum>>,
    },
}

impl Aggregator {
    /// Creates the aggregator for a spec, before any result. `layout` describes the outputs.
    pub fn new(aggregate: Option<AggregateChoice<'_>>, layout: &Layout) -> Self {
        let found = |output: i64| layout.outputs().get(place(output));
        let numbers = |output: i64| found(output).map_or_else(Numbers::default, |output| Numbers::of(output.element));
        let best = |output: i64, k: i64, largest: bool| Kind::Best {
            output: place(output),
            k: place(k),
            largest,
            numbers: numbers(output),
            best: Vec::new(),
        };
        let sum = |output: i64, squares: bool| {
            let zero = vec![ExactSum::default(); found(output).map_or(0, |output| output.count)];
            Kind::Sum {
                output: place(output),
                numbers: numbers(output),
                squares: squares.then(|| zero.clone()),
                sums: zero,
            }
        };
        let kind = match aggregate {
            Some(AggregateChoice::Argmin(selector)) => best(selector.output, 1, false),
            Some(AggregateChoice::Argmax(selector)) => best(selector.output, 1, true),
            Some(AggregateChoice::TopK(top)) => best(top.output, top.k, top.order == Order::Largest),
            Some(AggregateChoice::Sum(selector)) => sum(selector.output, false),
            Some(AggregateChoice::Mean(selector)) => sum(selector.output, true),
            Some(AggregateChoice::Concat(_) | AggregateChoice::None(_)) | None => Kind::Count,
        };
        Self { count: 0, nan: 0, kind }
    }

    /// Index of the output that is aggregated, if any. Agents must return this output even if results go to a store.
    pub fn output(&self) -> Option<usize> {
        match &self.kind {
            Kind::Count => None,
            Kind::Best { output, .. } | Kind::Sum { output, .. } => Some(*output),
        }
    }

    /// The same aggregate of records that have only the aggregated output.
    pub fn of_only_output(mut self) -> Self {
        match &mut self.kind {
            Kind::Count => {}
            Kind::Best { output, .. } | Kind::Sum { output, .. } => *output = 0,
        }
        self
    }

    /// Whether this aggregator, read from the checkpoint of a burst of `total` chunks, can be a later state of `fresh`, which has no
    /// result: they are equal but for results.
    pub fn continues(&self, fresh: &Self, total: u64) -> bool {
        if self.count > total || self.nan > self.count {
            return false;
        }
        let mut kind = self.kind.clone();
        match &mut kind {
            Kind::Count => {}
            Kind::Best { k, best, .. } if best.len() <= *k => best.clear(),
            Kind::Best { .. } => return false,
            Kind::Sum { sums, squares, .. } => {
                sums.iter_mut()
                    .chain(squares.iter_mut().flatten())
                    .for_each(|sum| *sum = ExactSum::default());
            }
        }
        kind == fresh.kind
    }

    /// Adds the result of chunk `index`, whose outputs are `record`. The caller must add each index only once.
    pub fn add(&mut self, index: u64, record: &[u8], layout: &Layout) {
        self.count += 1;
        match &mut self.kind {
            Kind::Count => {}
            Kind::Best {
                output,
                k,
                largest,
                numbers,
                best,
            } => {
                let Some(bits) = layout.values(*output, record).next().and_then(bits) else {
                    self.nan += 1;
                    return;
                };
                let rank = |bits: u64| if *largest { -numbers.order(bits) } else { numbers.order(bits) };
                let place = best.partition_point(|(held, other)| (rank(*held), *other) < (rank(bits), index));
                if place < *k {
                    best.insert(place, (bits, index));
                    best.truncate(*k);
                }
            }
            Kind::Sum { output, sums, squares, .. } => {
                let mut is_nan = false;
                for (element, value) in layout.values(*output, record).enumerate() {
                    let square = squares.as_mut().map(|squares| &mut squares[element]);
                    is_nan |= add(&mut sums[element], square, value);
                }
                self.nan += u64::from(is_nan);
            }
        }
    }

    /// The aggregate for the status. `parameters` returns the parameters of a chunk by its index.
    pub fn status(&self, parameters: impl Fn(u64) -> BTreeMap<String, Scalar>) -> AggregateStatus {
        let mut status = match &self.kind {
            Kind::Count => AggregateStatus::default(),
            Kind::Best { best, numbers, .. } => AggregateStatus {
                summary: best.first().map(|(bits, index)| format!("{} @ {index}", numbers.short(*bits))),
                best: best
                    .iter()
                    .map(|(bits, index)| best_chunk(*numbers, *bits, *index, parameters(*index)))
                    .collect(),
                ..AggregateStatus::default()
            },
            Kind::Sum {
                sums, squares, numbers, ..
            } => match squares {
                Some(_) if self.count == 0 => AggregateStatus::default(),
                Some(squares) => mean(sums, squares, self.count),
                None => total(sums, *numbers),
            },
        };
        status.count = integer(self.count);
        status.nan = integer(self.nan);
        if self.nan > 0 {
            let of = format!("{} of {} NaN", self.nan, self.count);
            status.summary = Some(status.summary.map_or_else(|| of.clone(), |summary| format!("{summary}; {of}")));
        }
        status
    }
}

fn best_chunk(numbers: Numbers, bits: u64, index: u64, parameters: BTreeMap<String, Scalar>) -> BestChunk {
    let exact = |value: Scalar| self::bits(value).and_then(|bits| Numbers::of(value.type_()).exact(bits));
    BestChunk {
        index: index as i64,
        value: in_json(numbers.value(bits)),
        exact: numbers.exact(bits),
        exact_parameters: parameters
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), exact(*value)?)))
            .collect(),
        parameters: parameters
            .into_iter()
            .filter_map(|(name, value)| Some((name, in_json(value.as_f64())?)))
            .collect(),
    }
}

fn total(sums: &[ExactSum], numbers: Numbers) -> AggregateStatus {
    let values: Vec<f64> = sums.iter().map(ExactSum::value).collect();
    let text = |(sum, value): (&ExactSum, &f64)| {
        let whole = (numbers != Numbers::Float).then(|| sum.whole()).flatten();
        let beyond = whole.filter(|whole| whole.bits() > 53).map(|whole| whole.to_string());
        beyond.or_else(|| unless_finite(*value))
    };
    let exact: Vec<Option<String>> = sums.iter().zip(&values).map(text).collect();
    AggregateStatus {
        summary: summary(&values, |first| exact[0].clone().unwrap_or_else(|| short(first))),
        exact: texts(&values, exact),
        values: values.into_iter().map(in_json).collect(),
        ..AggregateStatus::default()
    }
}

fn mean(sums: &[ExactSum], squares: &[ExactSum], count: u64) -> AggregateStatus {
    let values: Vec<f64> = sums.iter().map(|sum| sum.over(count)).collect();
    // The standard error of a single result is unknown.
    let quantile = (count > 1).then(|| student::quantile_975(count - 1));
    let half_width = |(sum, squares)| quantile.map(|quantile| quantile * standard_error(sum, squares, count));
    let widths: Vec<f64> = sums.iter().zip(squares).filter_map(half_width).collect();
    AggregateStatus {
        summary: summary(&values, |first| match widths.first().copied().and_then(in_json) {
            Some(width) => format!("{} ± {}", short(first), short(width)),
            None => short(first),
        }),
        exact: texts(&values, values.iter().map(|value| unless_finite(*value)).collect()),
        values: values.into_iter().map(in_json).collect(),
        confidence95: widths.into_iter().map(in_json).collect(),
        ..AggregateStatus::default()
    }
}

fn place(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sahasra_crds::burst_job::{Aggregate, ScalarType};
    use serde_json::{Value, json};

    use super::*;

    mod checkpoints;
    mod exactness;

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
}
