//! What the results of a burst say: the aggregate, independent of the order in which chunks arrive.

use std::collections::BTreeMap;

use sahasra_crds::burst_job::{
    Aggregate,
    aggregate::Order,
    status::{AggregateStatus, BestChunk},
};
use serde::{Deserialize, Serialize};

use super::{exact_sum::ExactSum, layout::Layout};

/// 97.5 % quantile of the normal distribution: half width of a 95 % interval in standard errors.
const NORMAL_QUANTILE_975: f64 = 1.959_963_984_540_054;

/// A running aggregate. Serialises into the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregator {
    count: u64,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    /// Only counts: the results themselves are the aggregate.
    Count,
    /// The k best (value bits, index), best first.
    Best {
        output: usize,
        k: usize,
        largest: bool,
        best: Vec<(u64, u64)>,
    },
    /// Sums, element by element; with the sums of squares for a mean.
    Sum {
        output: usize,
        sums: Vec<ExactSum>,
        squares: Option<Vec<ExactSum>>,
    },
}

impl Aggregator {
    /// The aggregator that a spec asks for; `layout` gives the number of elements.
    pub fn new(aggregate: Option<&Aggregate>, layout: &Layout) -> Self {
        let elements = |output: usize| layout.outputs().get(output).map_or(0, |output| output.count);
        let best = |output: i64, k: i64, largest: bool| Kind::Best {
            output: place(output),
            k: place(k),
            largest,
            best: Vec::new(),
        };
        let sum = |output: i64, squares: bool| {
            let zero = vec![ExactSum::default(); elements(place(output))];
            Kind::Sum {
                output: place(output),
                squares: squares.then(|| zero.clone()),
                sums: zero,
            }
        };
        let kind = match aggregate {
            Some(Aggregate {
                argmin: Some(selector), ..
            }) => best(selector.output, 1, false),
            Some(Aggregate {
                argmax: Some(selector), ..
            }) => best(selector.output, 1, true),
            Some(Aggregate { top_k: Some(top), .. }) => best(top.output, top.k, top.order == Order::Largest),
            Some(Aggregate { sum: Some(selector), .. }) => sum(selector.output, false),
            Some(Aggregate { mean: Some(selector), .. }) => sum(selector.output, true),
            _ => Kind::Count,
        };
        Self { count: 0, kind }
    }

    /// The output that it reads, if any: what must come back even when results go to a store.
    pub fn output(&self) -> Option<usize> {
        match &self.kind {
            Kind::Count => None,
            Kind::Best { output, .. } | Kind::Sum { output, .. } => Some(*output),
        }
    }

    /// Counts the result of chunk `index`, whose outputs are `record`. The caller sees to it that each index comes once.
    pub fn add(&mut self, index: u64, record: &[u8], layout: &Layout) {
        self.count += 1;
        match &mut self.kind {
            Kind::Count => {}
            Kind::Best { output, k, largest, best } => {
                let value = layout.value(*output, record);
                let better = |a: f64, b: f64| if *largest { a > b } else { a < b };
                if value.is_nan() {
                    return;
                }
                let place = best.partition_point(|(bits, other)| {
                    let held = f64::from_bits(*bits);
                    better(held, value) || (held == value && *other < index)
                });
                if place < *k {
                    best.insert(place, (value.to_bits(), index));
                    best.truncate(*k);
                }
            }
            Kind::Sum { output, sums, squares } => {
                for (element, value) in layout.values(*output, record).enumerate() {
                    sums[element].add(value);
                    if let Some(squares) = squares {
                        squares[element].add(value * value);
                    }
                }
            }
        }
    }

    /// What status shows; `parameters` gives those of a chunk by its index.
    pub fn status(&self, parameters: impl Fn(u64) -> BTreeMap<String, f64>) -> AggregateStatus {
        let count = i64::try_from(self.count).unwrap_or(i64::MAX);
        match &self.kind {
            Kind::Count => AggregateStatus {
                summary: None,
                count,
                ..AggregateStatus::default()
            },
            Kind::Best { best, .. } => {
                // JSON has no infinities: such a chunk is named in the summary alone.
                let finite = |(bits, index): &(u64, u64)| {
                    let value = f64::from_bits(*bits);
                    let parameters = || parameters(*index).into_iter().filter(|(_, value)| value.is_finite()).collect();
                    value.is_finite().then(|| BestChunk {
                        index: *index as i64,
                        value,
                        parameters: parameters(),
                    })
                };
                AggregateStatus {
                    summary: best
                        .first()
                        .map(|(bits, index)| format!("{} @ {index}", short(f64::from_bits(*bits)))),
                    best: best.iter().filter_map(finite).collect(),
                    count,
                    ..AggregateStatus::default()
                }
            }
            Kind::Sum { sums, squares, .. } => {
                let n = self.count as f64;
                let totals: Vec<f64> = sums.iter().map(ExactSum::value).collect();
                let (values, confidence95) = match squares {
                    None => (totals, Vec::new()),
                    Some(_) if self.count == 0 => (Vec::new(), Vec::new()),
                    Some(squares) => {
                        let half_width = |(sum, squares): (&f64, &ExactSum)| {
                            let variance = (squares.value() - sum * sum / n).max(0.0) / (n - 1.0);
                            NORMAL_QUANTILE_975 * (variance / n).sqrt()
                        };
                        let widths = if self.count < 2 {
                            Vec::new()
                        } else {
                            totals.iter().zip(squares).map(half_width).collect()
                        };
                        (totals.iter().map(|sum| sum / n).collect(), widths)
                    }
                };
                let summary = values.first().map(|value| match confidence95.first() {
                    Some(width) => format!("{} ± {}", short(*value), short(*width)),
                    None => short(*value),
                });
                let all_finite = |values: Vec<f64>| {
                    if values.iter().all(|value| value.is_finite()) {
                        values
                    } else {
                        Vec::new()
                    }
                };
                AggregateStatus {
                    summary,
                    best: Vec::new(),
                    values: all_finite(values),
                    confidence95: all_finite(confidence95),
                    count,
                }
            }
        }
    }
}

fn place(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Six significant digits: enough for a column.
fn short(value: f64) -> String {
    if value == 0.0 || (1e-4..1e9).contains(&value.abs()) {
        let digits = if value == 0.0 {
            0
        } else {
            (5 - value.abs().log10().floor() as i32).max(0) as usize
        };
        let text = format!("{value:.digits$}");
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    } else {
        format!("{value:.5e}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sahasra_crds::burst_job::{
        Argument, Kernel, ScalarType,
        aggregate::{OutputSelector, TopK},
        kernel::OutputArgument,
    };

    use super::*;

    fn layout(count: i64) -> Layout {
        let output = Some(OutputArgument {
            type_: ScalarType::F64,
            count,
        });
        let args = vec![Argument {
            output,
            ..Argument::default()
        }];
        Layout::of(&Kernel {
            ptx: Default::default(),
            entry: "k".into(),
            grid: vec![1],
            block: vec![1],
            dynamic_shared_bytes: 0,
            args,
        })
    }

    fn run(aggregate: &Aggregate, results: &[(u64, f64)]) -> Aggregator {
        let layout = layout(1);
        let mut aggregator = Aggregator::new(Some(aggregate), &layout);
        results
            .iter()
            .for_each(|(index, value)| aggregator.add(*index, &value.to_le_bytes(), &layout));
        aggregator
    }

    fn argmin() -> Aggregate {
        Aggregate {
            argmin: Some(OutputSelector { output: 0 }),
            ..Aggregate::default()
        }
    }

    fn top(k: i64) -> Aggregate {
        Aggregate {
            top_k: Some(TopK {
                output: 0,
                k,
                order: Order::Largest,
            }),
            ..Aggregate::default()
        }
    }

    fn mean() -> Aggregate {
        Aggregate {
            mean: Some(OutputSelector { output: 0 }),
            ..Aggregate::default()
        }
    }

    fn none(_: u64) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    proptest! {
        #[test]
        fn the_order_of_arrival_does_not_matter(values in prop::collection::vec(prop_oneof![(-3_i32..3).prop_map(f64::from), any::<f64>().prop_filter("finite", |v| v.abs() < 1e100)], 1..40), shift in 0_usize..40) {
            let results: Vec<(u64, f64)> = values.iter().copied().enumerate().map(|(index, value)| (index as u64, value)).collect();
            let mut other = results.clone();
            other.rotate_left(shift % results.len());
            other.reverse();
            for aggregate in [argmin(), top(3), mean()] {
                prop_assert_eq!(run(&aggregate, &results).status(none), run(&aggregate, &other).status(none));
            }
        }

        #[test]
        fn argmin_is_the_first_smallest(values in prop::collection::vec(-5_i32..5, 1..40)) {
            let results: Vec<(u64, f64)> = values.iter().enumerate().map(|(index, value)| (index as u64, f64::from(*value))).collect();
            let smallest = values.iter().min().copied().unwrap();
            let index = values.iter().position(|value| *value == smallest).unwrap();
            let status = run(&argmin(), &results).status(none);
            prop_assert_eq!((status.best[0].index, status.best[0].value), (index as i64, f64::from(smallest)));
        }
    }

    #[test]
    fn nan_never_wins_and_infinities_stay_out_of_json() {
        let aggregator = run(&argmin(), &[(0, f64::NAN), (1, 3.0), (2, f64::NAN)]);
        assert_eq!(aggregator.status(none).best[0].index, 1);
        let status = run(&argmin(), &[(0, f64::NEG_INFINITY), (1, 3.0)]).status(none);
        assert!(status.best.is_empty());
        assert_eq!(status.summary.as_deref(), Some("-inf @ 0"));
        assert_eq!(status.count, 2);
    }

    #[test]
    fn top_k_lists_the_best_first() {
        let status =
            run(&top(2), &[(0, 1.0), (1, 9.0), (2, 5.0), (3, 9.0)]).status(|index| BTreeMap::from([("x".to_owned(), index as f64)]));
        assert_eq!(status.best.iter().map(|best| best.index).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(status.best[1].parameters["x"], 3.0);
    }

    #[test]
    fn a_mean_comes_with_its_confidence_interval() {
        let status = run(&mean(), &[(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]).status(none);
        assert_eq!(status.values, [2.5]);
        // Standard deviation 1.29099, standard error 0.645497.
        assert!((status.confidence95[0] - 1.265_15).abs() < 1e-5, "{:?}", status.confidence95);
        assert_eq!(status.summary.as_deref(), Some("2.5 ± 1.26515"));
    }

    #[test]
    fn the_state_survives_serialisation() {
        for aggregate in [argmin(), top(3), mean()] {
            let aggregator = run(&aggregate, &[(0, 0.1), (7, 1e300), (3, f64::INFINITY), (4, -1e-300)]);
            let text = serde_json::to_string(&aggregator).unwrap();
            assert_eq!(serde_json::from_str::<Aggregator>(&text).unwrap(), aggregator);
        }
    }

    #[test]
    fn columns_show_six_digits() {
        assert_eq!(short(0.031_250_01), "0.03125");
        assert_eq!(short(123_456.7), "123457");
        assert_eq!(short(1200.0), "1200");
        assert_eq!(short(-1.234_567e-9), "-1.23457e-9");
    }
}
