//! The aggregate of a burst's results, independent of the order in which the results arrive.
//!
//! Integers are compared and added as integers, floats as floats. Sums and values derived from them are exact until they are formatted
//! ([`super::exact_sum`]). Values that a JSON number cannot represent are also given as text.

use std::collections::BTreeMap;

use sahasra_crds::burst_job::{
    AggregateChoice, ScalarType,
    aggregate::Order,
    status::{AggregateStatus, BestChunk},
};
use sahasra_parameters::Scalar;
use serde::{Deserialize, Serialize};

use super::{
    exact_sum::{ExactSum, standard_error},
    layout::Layout,
    student,
};
use crate::objects::integer;

/// Largest integer up to which all integers are exact as JSON numbers, which are read as doubles: 2^53.
const EXACT_IN_JSON: u64 = 1 << 53;

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

/// Interpretation of the 64 bits of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Numbers {
    #[default]
    Float,
    Signed,
    Unsigned,
}

impl Numbers {
    fn of(type_: ScalarType) -> Self {
        match type_ {
            ScalarType::F32 | ScalarType::F64 => Self::Float,
            ScalarType::S32 | ScalarType::S64 => Self::Signed,
            ScalarType::U8 | ScalarType::U32 | ScalarType::U64 => Self::Unsigned,
        }
    }

    /// Key whose order is the order of the values that the bits represent. The bits must not be a NaN. Zeros of both signs are equal.
    fn order(self, bits: u64) -> i128 {
        match self {
            Self::Unsigned => bits.into(),
            Self::Signed => (bits as i64).into(),
            Self::Float => {
                let magnitude = i128::from(bits & !(1 << 63));
                if bits >> 63 == 0 { magnitude } else { -magnitude }
            }
        }
    }

    fn value(self, bits: u64) -> f64 {
        match self {
            Self::Unsigned => bits as f64,
            Self::Signed => bits as i64 as f64,
            Self::Float => f64::from_bits(bits),
        }
    }

    /// The exact value as text, if a JSON number cannot represent it.
    fn exact(self, bits: u64) -> Option<String> {
        match self {
            Self::Unsigned => (bits > EXACT_IN_JSON).then(|| bits.to_string()),
            Self::Signed => ((bits as i64).unsigned_abs() > EXACT_IN_JSON).then(|| (bits as i64).to_string()),
            Self::Float => unless_finite(f64::from_bits(bits)),
        }
    }

    fn short(self, bits: u64) -> String {
        match self {
            Self::Float => short(f64::from_bits(bits)),
            Self::Signed | Self::Unsigned => self.exact(bits).unwrap_or_else(|| short(self.value(bits))),
        }
    }
}

/// The bits of a value as [`Numbers`] interprets them; `None` for a NaN.
fn bits(value: Scalar) -> Option<u64> {
    let number = value.as_f64();
    match value {
        Scalar::U8(value) => Some(value.into()),
        Scalar::U32(value) => Some(value.into()),
        Scalar::U64(value) => Some(value),
        Scalar::S32(value) => Some(i64::from(value) as u64),
        Scalar::S64(value) => Some(value as u64),
        Scalar::F32(_) | Scalar::F64(_) => (!number.is_nan()).then_some(number.to_bits()),
    }
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

/// Adds a value to a sum, and its square to the sum of squares. Returns whether the value is a NaN.
fn add(sum: &mut ExactSum, square: Option<&mut ExactSum>, value: Scalar) -> bool {
    let (negative, magnitude) = match value {
        Scalar::F32(_) | Scalar::F64(_) => {
            let value = value.as_f64();
            sum.add(value);
            if let Some(square) = square {
                square.add_square(value);
            }
            return value.is_nan();
        }
        Scalar::U8(value) => (false, value.into()),
        Scalar::U32(value) => (false, value.into()),
        Scalar::U64(value) => (false, value),
        Scalar::S32(value) => (value < 0, value.unsigned_abs().into()),
        Scalar::S64(value) => (value < 0, value.unsigned_abs()),
    };
    sum.add_whole(negative, magnitude);
    if let Some(square) = square {
        square.add_whole_square(magnitude);
    }
    false
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

/// Text of the first element, and the number of elements if there are several.
fn summary(values: &[f64], text: impl Fn(f64) -> String) -> Option<String> {
    let first = text(*values.first()?);
    Some(match values.len() {
        1 => first,
        several => format!("{first}, 1 of {several}"),
    })
}

/// All elements as text, if a JSON number cannot represent at least one of them; otherwise nothing.
fn texts(values: &[f64], exact: Vec<Option<String>>) -> Vec<String> {
    if exact.iter().all(Option::is_none) {
        return Vec::new();
    }
    let plain = |value: &f64| Scalar::F64(*value).to_string();
    let pairs = exact.into_iter().zip(values);
    pairs.map(|(exact, value)| exact.unwrap_or_else(|| plain(value))).collect()
}

/// The value as a JSON number; `None` for infinities and NaN, which JSON does not have.
fn in_json(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn unless_finite(value: f64) -> Option<String> {
    (!value.is_finite()).then(|| value.to_string())
}

fn place(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Formats a value with six significant digits, which is enough for a column of `kubectl get`.
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
mod tests;
