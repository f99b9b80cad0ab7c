//! Validated sources of a parameter's values.

use crate::spec::ScalarType;

use crate::{
    formula::{Fault, Formula, Number},
    random::{Distribution, Stream},
    scalar::{Scalar, takes},
};

/// A validated source of values.
pub(crate) enum Source {
    Formula(Formula),
    /// Element `index % length`.
    List(Box<[Scalar]>),
    /// Element `index / stride % length`, for an axis of a product.
    Axis {
        values: Box<[Scalar]>,
        stride: u64,
    },
    /// `start + step × index`, for integer types.
    Steps {
        start: i128,
        step: i128,
    },
    /// `start + step × index`, for float types.
    FloatSteps {
        start: f64,
        step: f64,
    },
    /// Evenly spaced from `start` to `stop`, for float types.
    Between {
        start: f64,
        stop: f64,
    },
    Random {
        stream: Stream,
        distribution: Distribution,
    },
}

/// Reason why a chunk has no value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refusal {
    Fault(Fault),
    /// The type cannot represent this int.
    Integer(i128),
    /// The type cannot represent this double.
    Double(f64),
}

impl Refusal {
    /// Returns a description of the error, and the remedy.
    pub(crate) fn message(self, type_: ScalarType) -> String {
        match self {
            Self::Fault(fault) => fault.to_string(),
            Self::Integer(value) => format!("{value} is out of range: {}", takes(type_)),
            Self::Double(value) => not_representable(value, type_),
        }
    }
}

/// Returns a message that the type cannot represent the value, and which values it can represent.
pub(crate) fn not_representable(value: f64, type_: ScalarType) -> String {
    if value.is_nan() {
        format!("not a number (NaN): {}", takes(type_))
    } else if value.is_infinite() {
        format!("infinite: {}", takes(type_))
    } else {
        format!("{value} cannot be represented: {}", takes(type_))
    }
}

impl Source {
    /// Returns the value of chunk `index` of `count` chunks.
    pub(crate) fn value(&self, type_: ScalarType, index: u64, count: u64) -> Result<Scalar, Refusal> {
        match self {
            // `index` is below `count`, which is at most 10 million, so the conversion is exact.
            Self::Formula(formula) => match formula.evaluate(index as i64).map_err(Refusal::Fault)? {
                Number::Integer(value) => Scalar::from_i64(type_, value).ok_or(Refusal::Integer(value.into())),
                Number::Double(value) => Scalar::from_f64(type_, value).ok_or(Refusal::Double(value)),
            },
            Self::List(values) => Ok(values[(index % values.len() as u64) as usize]),
            Self::Axis { values, stride } => Ok(values[(index / stride % values.len() as u64) as usize]),
            Self::Steps { start, step } => {
                let value = start + step * i128::from(index);
                Scalar::from_integer(type_, value).ok_or(Refusal::Integer(value))
            }
            Self::FloatSteps { start, step } => {
                let value = start + step * index as f64;
                Scalar::from_f64(type_, value).ok_or(Refusal::Double(value))
            }
            Self::Between { start, stop } => {
                let value = between(*start, *stop, index, count);
                Scalar::from_f64(type_, value).ok_or(Refusal::Double(value))
            }
            Self::Random { stream, distribution } => distribution.sample(*stream, index, type_).ok_or(Refusal::Double(f64::NAN)),
        }
    }
}

/// Returns the value at `index` of `count` values evenly spaced from `start` to `stop`. The first is exactly `start`, the last exactly
/// `stop`; a single value is `start`.
fn between(start: f64, stop: f64, index: u64, count: u64) -> f64 {
    let last = count - 1;
    if index == 0 {
        start
    } else if index == last {
        stop
    } else {
        let part = index as f64 / last as f64;
        start + (stop - start) * part
    }
}
