//! Values of kernel parameters.

use std::fmt;

use crate::spec::ScalarType;

/// Defines [`Scalar`] with a variant for each [`ScalarType`], and what is the same for all of them.
macro_rules! scalars {
    ($($(#[$attribute:meta])* $Type:ident($type:ty) = $name:literal,)+) => {
        /// Value of one of the kernel's scalar types.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Scalar {
            $($(#[$attribute])* $Type($type),)+
        }

        impl Scalar {
            pub const fn type_(self) -> ScalarType {
                match self {
                    $(Self::$Type(_) => ScalarType::$Type,)+
                }
            }

            /// Returns the nearest binary64. It is exact for all values except 64-bit integers beyond 2^53.
            pub fn as_f64(self) -> f64 {
                match self {
                    $(Self::$Type(value) => value as f64,)+
                }
            }

            /// Appends the value's [`ScalarType::bytes`] bytes in little-endian order, as in a kernel's parameter space.
            pub fn write_le(self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$Type(value) => bytes.extend_from_slice(&value.to_le_bytes()),)+
                }
            }

            /// Reads a value that [`Scalar::write_le`] wrote. Returns `None` if the length of `bytes` is not [`ScalarType::bytes`].
            pub fn read_le(type_: ScalarType, bytes: &[u8]) -> Option<Self> {
                Some(match type_ {
                    $(ScalarType::$Type => Self::$Type(<$type>::from_le_bytes(bytes.try_into().ok()?)),)+
                })
            }
        }

        /// Returns the name of the type in manifests.
        pub(crate) const fn type_name(type_: ScalarType) -> &'static str {
            match type_ {
                $(ScalarType::$Type => $name,)+
            }
        }
    };
}

scalars! {
    U8(u8) = "u8",
    S32(i32) = "s32",
    U32(u32) = "u32",
    S64(i64) = "s64",
    U64(u64) = "u64",
    /// IEEE 754 binary32. Values from a program are finite.
    F32(f32) = "f32",
    /// IEEE 754 binary64. Values from a program are finite.
    F64(f64) = "f64",
}

impl Scalar {
    /// Converts `value` to `type_`. Returns `None` if the type cannot represent it: integers must be whole and in range, floats finite. An
    /// `f32` is rounded to the nearest value; a value that rounds to infinity is rejected.
    pub fn from_f64(type_: ScalarType, value: f64) -> Option<Self> {
        if !value.is_finite() {
            return None;
        }
        match type_ {
            ScalarType::F64 => Some(Self::F64(value)),
            ScalarType::F32 => Some(value as f32).filter(|value| value.is_finite()).map(Self::F32),
            _ if value.trunc() != value => None,
            // The value is whole and within ±2^64, so the conversion is exact. The range of the type decides.
            _ if value.abs() <= TWO_TO_64 => Self::from_integer(type_, value as i128),
            _ => None,
        }
    }

    /// Converts `value` to `type_`. Returns `None` if an integer type cannot represent it; float types round to the nearest value.
    pub fn from_i64(type_: ScalarType, value: i64) -> Option<Self> {
        match type_ {
            ScalarType::F32 => Some(Self::F32(value as f32)),
            ScalarType::F64 => Some(Self::F64(value as f64)),
            _ => Self::from_integer(type_, value.into()),
        }
    }

    pub(crate) fn from_integer(type_: ScalarType, value: i128) -> Option<Self> {
        match type_ {
            ScalarType::U8 => value.try_into().ok().map(Self::U8),
            ScalarType::S32 => value.try_into().ok().map(Self::S32),
            ScalarType::U32 => value.try_into().ok().map(Self::U32),
            ScalarType::S64 => value.try_into().ok().map(Self::S64),
            ScalarType::U64 => value.try_into().ok().map(Self::U64),
            ScalarType::F32 | ScalarType::F64 => None,
        }
    }
}

const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// Magnitudes from `EXPONENT_FROM` on and below `EXPONENT_BELOW` are written with an exponent, such as `1e38` instead of 39 digits.
const EXPONENT_FROM: f64 = 1e16;
const EXPONENT_BELOW: f64 = 1e-5;

/// Writes the shortest text that reads back as the same value; `NaN`, `inf` or `-inf` for values that are not finite.
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::S32(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::S64(value) => value.fmt(f),
            Self::U64(value) => value.fmt(f),
            Self::F32(value) if is_long(f64::from(*value)) => write!(f, "{value:e}"),
            Self::F64(value) if is_long(*value) => write!(f, "{value:e}"),
            Self::F32(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
        }
    }
}

fn is_long(value: f64) -> bool {
    value.is_finite() && value != 0.0 && !(EXPONENT_BELOW..EXPONENT_FROM).contains(&value.abs())
}

pub const fn is_integer(type_: ScalarType) -> bool {
    !matches!(type_, ScalarType::F32 | ScalarType::F64)
}

/// Describes the values of the type for error messages: "u32 takes whole numbers from 0 to 4294967295".
pub(crate) fn takes(type_: ScalarType) -> String {
    let name = type_name(type_);
    match type_ {
        ScalarType::U8 => format!("{name} takes whole numbers from 0 to {}", u8::MAX),
        ScalarType::S32 => format!("{name} takes whole numbers from {} to {}", i32::MIN, i32::MAX),
        ScalarType::U32 => format!("{name} takes whole numbers from 0 to {}", u32::MAX),
        ScalarType::S64 => format!("{name} takes whole numbers from {} to {}", i64::MIN, i64::MAX),
        ScalarType::U64 => format!("{name} takes whole numbers from 0 to {}", u64::MAX),
        ScalarType::F32 => format!("{name} takes finite numbers up to {:e} in size", f32::MAX),
        ScalarType::F64 => format!("{name} takes finite numbers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_whole_and_in_range() {
        use ScalarType::{S32, S64, U8, U32, U64};
        for (type_, value, expected) in [
            (U8, 255.0, Some(Scalar::U8(255))),
            (U8, 256.0, None),
            (U8, -1.0, None),
            (U32, 1.5, None),
            (U32, -0.0, Some(Scalar::U32(0))),
            (U32, 4_294_967_295.0, Some(Scalar::U32(u32::MAX))),
            (U32, 4_294_967_296.0, None),
            (S32, -2_147_483_648.0, Some(Scalar::S32(i32::MIN))),
            (S32, 2_147_483_648.0, None),
            (S64, 9_223_372_036_854_775_808.0, None),
            (S64, -9_223_372_036_854_775_808.0, Some(Scalar::S64(i64::MIN))),
            (U64, 9_223_372_036_854_775_808.0, Some(Scalar::U64(1 << 63))),
            (U64, TWO_TO_64, None),
            (U64, 1e300, None),
            (U64, f64::NAN, None),
        ] {
            assert_eq!(Scalar::from_f64(type_, value), expected, "{type_:?} {value}");
        }
    }

    #[test]
    fn floats_are_finite_and_nearest() {
        assert_eq!(Scalar::from_f64(ScalarType::F32, 0.1), Some(Scalar::F32(0.1)));
        for (type_, value) in [
            (ScalarType::F32, 1e39),
            (ScalarType::F32, f64::NAN),
            (ScalarType::F32, f64::NEG_INFINITY),
            (ScalarType::F64, f64::INFINITY),
        ] {
            assert_eq!(Scalar::from_f64(type_, value), None);
        }
    }

    #[test]
    fn sixty_four_bit_integers_stay_exact() {
        assert_eq!(Scalar::from_i64(ScalarType::U64, i64::MAX), Some(Scalar::U64(i64::MAX as u64)));
        assert_eq!(Scalar::from_i64(ScalarType::U64, -1), None);
    }

    #[test]
    fn bytes_are_little_endian_and_as_many_as_the_type_has() {
        let mut bytes = Vec::new();
        Scalar::U32(0x0102_0304).write_le(&mut bytes);
        Scalar::F64(1.0).write_le(&mut bytes);
        Scalar::U8(7).write_le(&mut bytes);
        assert_eq!(bytes, [4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 7]);
    }
}
