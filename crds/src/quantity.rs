//! Amounts of VRAM as users write them: `512Mi`, `8Gi`.

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// An amount of VRAM: a whole number with a binary suffix `Ki`, `Mi`, `Gi` or `Ti`, as in Kubernetes quantities.
///
/// Deserialisation does not validate the text, which the API server has checked; [`VramQuantity::bytes`] parses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VramQuantity(String);

/// Reason why a text is not a [`VramQuantity`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("invalid quantity {0:?}: expected a whole number with Ki, Mi, Gi or Ti, such as 512Mi")]
    Syntax(String),
    #[error("{0:?} is too large: the maximum is {MAXIMUM}")]
    TooLarge(String),
}

/// Maximum amount: the largest one below 2^64 bytes that can be written with `Ti`.
const MAXIMUM: &str = "16777215Ti";

/// Suffixes, with the binary logarithms of their units.
const UNITS: [(&str, u32); 4] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];

impl VramQuantity {
    /// Returns the amount in bytes.
    ///
    /// # Errors
    /// The text is not an amount, or exceeds 2^64 bytes.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        let digits = |(suffix, shift): &(&str, u32)| Some((self.0.strip_suffix(suffix)?, 1_u64 << shift));
        let split = UNITS.iter().find_map(digits);
        let is_whole = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let (digits, unit) = split
            .filter(|(digits, _)| is_whole(digits))
            .ok_or_else(|| QuantityError::Syntax(self.0.clone()))?;
        let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
        bytes.ok_or_else(|| QuantityError::TooLarge(self.0.clone()))
    }
}

impl FromStr for VramQuantity {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let quantity = Self(text.to_owned());
        quantity.bytes().map(|_| quantity)
    }
}

impl fmt::Display for VramQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for VramQuantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VramQuantity".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 12,
            "description": "An amount of VRAM: a whole number with Ki, Mi, Gi or Ti, such as 512Mi.",
            "x-kubernetes-validations": [{
                "rule": "self.matches('^[1-9][0-9]{0,8}(Ki|Mi|Gi)$|^[1-9][0-9]{0,5}Ti$')",
                "message": "write a whole number with Ki, Mi, Gi or Ti, such as 512Mi",
            }],
        })
    }
}

/// Parses a command-line value such as `512Mi` or `8Gi` to bytes.
///
/// # Errors
/// A description of the problem when `text` is not a quantity or is below 1Mi.
pub fn at_least_one_mebibyte(text: &str) -> Result<u64, String> {
    let quantity: VramQuantity = text.parse().map_err(|error| format!("{error}"))?;
    match quantity.bytes().map_err(|error| error.to_string())? {
        0..1_048_576 => Err("must be at least 1Mi".to_owned()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_suffixes_give_bytes() {
        assert_eq!("512Mi".parse::<VramQuantity>().unwrap().bytes(), Ok(512 << 20));
        assert_eq!("8Gi".parse::<VramQuantity>().unwrap().bytes(), Ok(8 << 30));
        assert_eq!("2Gi".parse::<VramQuantity>().unwrap().to_string(), "2Gi");
    }

    #[test]
    fn wrong_amounts_are_refused_with_the_text_and_a_remedy() {
        for text in ["", "8", "8G", "-1Gi", "1.5Gi", "Gi", "8é", "+1Gi"] {
            let error = text.parse::<VramQuantity>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("512Mi"), "{error}");
        }
    }

    #[test]
    fn an_amount_that_is_too_large_is_told_with_the_maximum() {
        for text in ["99999999Ti", "99999999999999999999Ti", "16777216Ti", "18446744073709551615Gi"] {
            let error = text.parse::<VramQuantity>().unwrap_err().to_string();
            assert_eq!(error, format!("{text:?} is too large: the maximum is {MAXIMUM}"));
        }
        assert!(MAXIMUM.parse::<VramQuantity>().is_ok());
    }
}
