//! Validated sources of a parameter's values.

use crate::{
    formula::Fault,
    scalar::{Scalar, takes},
    spec::ScalarType,
};

/// A validated source: returns the value of the chunk with this index.
pub(crate) type Source = Box<dyn Fn(u64) -> Result<Scalar, Refusal> + Send + Sync>;

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

pub(crate) fn integer(type_: ScalarType, value: i128) -> Result<Scalar, Refusal> {
    Scalar::from_integer(type_, value).ok_or(Refusal::Integer(value))
}

pub(crate) fn double(type_: ScalarType, value: f64) -> Result<Scalar, Refusal> {
    Scalar::from_f64(type_, value).ok_or(Refusal::Double(value))
}

/// The listed values in turn, each for `stride` chunks.
pub(crate) fn listed(values: Box<[Scalar]>, stride: u64) -> Source {
    Box::new(move |index| Ok(values[(index / stride % values.len() as u64) as usize]))
}

/// Returns the value at `index` of `count` values evenly spaced from `start` to `stop`. The first is exactly `start`, the last exactly
/// `stop`; a single value is `start`.
pub(crate) fn between(start: f64, stop: f64, index: u64, count: u64) -> f64 {
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
