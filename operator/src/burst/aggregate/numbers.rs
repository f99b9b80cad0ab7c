//! Values of outputs as numbers: their order, their sums, and how they are shown. Integers are compared and added as integers, floats as
//! floats. Values that a JSON number cannot represent are also given as text.

use sahasra_crds::burst_job::ScalarType;
use sahasra_parameters::Scalar;
use serde::{Deserialize, Serialize};

use crate::burst::exact_sum::ExactSum;

/// Largest integer up to which all integers are exact as JSON numbers, which are read as doubles: 2^53.
const EXACT_IN_JSON: u64 = 1 << 53;

/// Interpretation of the 64 bits of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Numbers {
    #[default]
    Float,
    Signed,
    Unsigned,
}

impl Numbers {
    pub(super) fn of(type_: ScalarType) -> Self {
        match type_ {
            ScalarType::F32 | ScalarType::F64 => Self::Float,
            ScalarType::S32 | ScalarType::S64 => Self::Signed,
            ScalarType::U8 | ScalarType::U32 | ScalarType::U64 => Self::Unsigned,
        }
    }

    /// Key whose order is the order of the values that the bits represent. The bits must not be a NaN. Zeros of both signs are equal.
    pub(super) fn order(self, bits: u64) -> i128 {
        match self {
            Self::Unsigned => bits.into(),
            Self::Signed => (bits as i64).into(),
            Self::Float => {
                let magnitude = i128::from(bits & !(1 << 63));
                if bits >> 63 == 0 { magnitude } else { -magnitude }
            }
        }
    }

    pub(super) fn value(self, bits: u64) -> f64 {
        match self {
            Self::Unsigned => bits as f64,
            Self::Signed => bits as i64 as f64,
            Self::Float => f64::from_bits(bits),
        }
    }

    /// The exact value as text, if a JSON number cannot represent it.
    pub(super) fn exact(self, bits: u64) -> Option<String> {
        match self {
            Self::Unsigned => (bits > EXACT_IN_JSON).then(|| bits.to_string()),
            Self::Signed => ((bits as i64).unsigned_abs() > EXACT_IN_JSON).then(|| (bits as i64).to_string()),
            Self::Float => unless_finite(f64::from_bits(bits)),
        }
    }

    pub(super) fn short(self, bits: u64) -> String {
        match self {
            Self::Float => short(f64::from_bits(bits)),
            Self::Signed | Self::Unsigned => self.exact(bits).unwrap_or_else(|| short(self.value(bits))),
        }
    }
}

/// The bits of a value as [`Numbers`] interprets them; `None` for a NaN.
pub(super) fn bits(value: Scalar) -> Option<u64> {
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

/// Adds a value to a sum, and its square to the sum of squares. Returns whether the value is a NaN.
pub(super) fn add(sum: &mut ExactSum, square: Option<&mut ExactSum>, value: Scalar) -> bool {
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

/// Text of the first element, and the number of elements if there are several.
pub(super) fn summary(values: &[f64], text: impl Fn(f64) -> String) -> Option<String> {
    let first = text(*values.first()?);
    Some(match values.len() {
        1 => first,
        several => format!("{first}, 1 of {several}"),
    })
}

/// All elements as text, if a JSON number cannot represent at least one of them; otherwise nothing.
pub(super) fn texts(values: &[f64], exact: Vec<Option<String>>) -> Vec<String> {
    if exact.iter().all(Option::is_none) {
        return Vec::new();
    }
    let plain = |value: &f64| Scalar::F64(*value).to_string();
    let pairs = exact.into_iter().zip(values);
    pairs.map(|(exact, value)| exact.unwrap_or_else(|| plain(value))).collect()
}

/// The value as a JSON number; `None` for infinities and NaN, which JSON does not have.
pub(super) fn in_json(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

pub(super) fn unless_finite(value: f64) -> Option<String> {
    (!value.is_finite()).then(|| value.to_string())
}

/// Formats a value with six significant digits, which is enough for a column of `kubectl get`.
pub(super) fn short(value: f64) -> String {
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
    use super::short;

    #[test]
    fn columns_show_six_digits() {
        assert_eq!(short(0.031_250_01), "0.03125");
        assert_eq!(short(123_456.7), "123457");
        assert_eq!(short(1200.0), "1200");
        assert_eq!(short(-1.234_567e-9), "-1.23457e-9");
    }
}
