//! Exact numbers, and a single rounding to a format, as IEEE 754 defines it. Implemented with wide integers.

mod natural;

pub use natural::Natural;

/// Binary interchange format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Number of bits in the exponent field.
    pub exponent: u32,
    /// Number of bits in the fraction field.
    pub fraction: u32,
}

/// IEEE binary16.
pub const F16: Format = Format { exponent: 5, fraction: 10 };
/// bf16: the upper half of a binary32.
pub const BF16: Format = Format { exponent: 8, fraction: 7 };
/// IEEE binary32.
pub const F32: Format = Format { exponent: 8, fraction: 23 };
/// IEEE binary64.
pub const F64: Format = Format {
    exponent: 11,
    fraction: 52,
};
/// tf32: a binary32 with 10 bits of fraction.
pub const TF32: Format = Format { exponent: 8, fraction: 10 };

/// Direction in which an inexact result is rounded (PTX ISA §6.5.2, and `.rna` of §9.7.9.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// `.rn`: to nearest, ties to even.
    NearestEven,
    /// `.rna`: to nearest, ties away from zero.
    NearestAway,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: towards negative infinity.
    Down,
    /// `.rp`: towards positive infinity.
    Up,
}

impl Rounding {
    /// Parses a name such as `rn` or `rni`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "rn" | "rni" => Self::NearestEven,
            "rna" => Self::NearestAway,
            "rz" | "rzi" => Self::Zero,
            "rm" | "rmi" => Self::Down,
            "rp" | "rpi" => Self::Up,
            _ => return None,
        })
    }

    /// Whether rounding increments the magnitude. `odd` is its last bit, and `rest` compares the part cut off with half a unit.
    fn increments(self, negative: bool, odd: bool, rest: Rest) -> bool {
        match self {
            Self::NearestEven => rest == Rest::More || (rest == Rest::Half && odd),
            Self::NearestAway => matches!(rest, Rest::More | Rest::Half),
            Self::Zero => false,
            Self::Down => negative && rest != Rest::Nothing,
            Self::Up => !negative && rest != Rest::Nothing,
        }
    }
}

/// The part that is cut off, compared with half a unit of the part that is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    Less,
    Half,
    More,
}

/// Number `± magnitude · 2^exponent`, plus less than one unit if `sticky`.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Whether the number is negative; zero has a sign, too.
    pub negative: bool,
    /// Magnitude in units of `2^exponent`.
    pub magnitude: Natural,
    pub exponent: i64,
    /// Whether the number is farther from zero than the magnitude, by less than one unit.
    pub sticky: bool,
}

/// Floating point datum.
#[derive(Clone, Debug)]
pub enum Value {
    Nan,
    /// Infinity, negative if `true`.
    Infinite(bool),
    Finite(Exact),
}

impl Exact {
    /// Returns a number of this sign.
    pub fn new(negative: bool, magnitude: Natural, exponent: i64) -> Self {
        Self {
            negative,
            magnitude,
            exponent,
            sticky: false,
        }
    }

    /// Returns an integer as an exact number.
    pub fn integer(value: i128) -> Self {
        Self::new(value < 0, value.unsigned_abs().into(), 0)
    }

    pub fn is_zero(&self) -> bool {
        !self.sticky && self.magnitude.is_zero()
    }

    pub fn multiply(&self, other: &Self) -> Self {
        Self::new(
            self.negative != other.negative,
            self.magnitude.multiply(&other.magnitude),
            self.exponent + other.exponent,
        )
    }

    /// Returns the sum. A sum of zeros or of opposite numbers is -0 only if both are negative or `rounding` is downwards.
    pub fn add(&self, other: &Self, rounding: Rounding) -> Self {
        let exponent = self.exponent.min(other.exponent);
        let left = self.magnitude.shift_up((self.exponent - exponent) as u64);
        let right = other.magnitude.shift_up((other.exponent - exponent) as u64);
        if self.negative == other.negative {
            return Self::new(self.negative, left.add(&right), exponent);
        }
        match left.compare(&right) {
            std::cmp::Ordering::Greater => Self::new(self.negative, left.subtract(&right), exponent),
            std::cmp::Ordering::Less => Self::new(other.negative, right.subtract(&left), exponent),
            std::cmp::Ordering::Equal => Self::new(rounding == Rounding::Down, Natural::ZERO, 0),
        }
    }

    /// Returns the quotient to at least 65 bits, more than any format holds. The divisor must not be zero.
    pub fn divide(&self, other: &Self) -> Self {
        let shift = (66 + other.magnitude.bits()).saturating_sub(self.magnitude.bits());
        let (numerator, divisor) = (self.magnitude.shift_up(shift), &other.magnitude);
        let quotient = numerator.divide(divisor);
        let sticky = quotient.multiply(divisor).compare(&numerator).is_ne();
        Self {
            negative: self.negative != other.negative,
            magnitude: quotient,
            exponent: self.exponent - other.exponent - shift as i64,
            sticky,
        }
    }

    /// Returns the square root to at least 60 bits, more than any format holds. The number must not be negative.
    pub fn square_root(&self) -> Self {
        let mut shift = 121u64.saturating_sub(self.magnitude.bits()) as i64;
        if (self.exponent - shift) % 2 != 0 {
            shift += 1;
        }
        let radicand = self.magnitude.shift_up(shift as u64);
        let root = radicand.square_root();
        let sticky = root.multiply(&root).compare(&radicand).is_ne();
        Self {
            negative: false,
            magnitude: root,
            exponent: (self.exponent - shift) / 2,
            sticky,
        }
    }

    /// Rounds to a multiple of `2^quantum`. Returns the magnitude in units of `2^quantum`.
    fn rounded(&self, quantum: i64, rounding: Rounding) -> Natural {
        let shift = quantum - self.exponent;
        if shift <= 0 {
            // Quotients and roots have more bits than any format holds.
            assert!(!self.sticky, "a number with a tail is cut");
            return self.magnitude.shift_up((-shift) as u64);
        }
        let kept = self.magnitude.shift_down(shift as u64);
        let cut = self.magnitude.subtract(&kept.shift_up(shift as u64));
        let half = Natural::from(1u64).shift_up((shift - 1) as u64);
        let rest = match cut.compare(&half) {
            std::cmp::Ordering::Greater => Rest::More,
            std::cmp::Ordering::Equal if self.sticky => Rest::More,
            std::cmp::Ordering::Equal => Rest::Half,
            std::cmp::Ordering::Less if cut.is_zero() && !self.sticky => Rest::Nothing,
            std::cmp::Ordering::Less => Rest::Less,
        };
        if rounding.increments(self.negative, kept.is_odd(), rest) {
            kept.add(&1u64.into())
        } else {
            kept
        }
    }

    /// Rounds to an integer, keeping the sign.
    pub fn to_integral(&self, rounding: Rounding) -> Self {
        if self.exponent >= 0 && !self.sticky {
            return self.clone();
        }
        Self::new(self.negative, self.rounded(0, rounding), 0)
    }

    /// Clamps an integral number to a range.
    pub fn clamp(&self, (low, high): (i128, i128)) -> i128 {
        if self.magnitude.bits() as i64 + self.exponent > 100 {
            return if self.negative { low } else { high };
        }
        let magnitude = if self.exponent >= 0 {
            self.magnitude.shift_up(self.exponent as u64)
        } else {
            self.magnitude.shift_down((-self.exponent) as u64)
        };
        let value = magnitude.to_u128().expect("fewer than 101 bits") as i128;
        (if self.negative { -value } else { value }).clamp(low, high)
    }
}

impl Format {
    /// Total number of bits.
    pub fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    fn bias(self) -> i64 {
        (1 << (self.exponent - 1)) - 1
    }

    fn exponent_ones(self) -> u64 {
        (1 << self.exponent) - 1
    }

    /// Bits of the sign alone.
    pub fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// Bits of positive infinity.
    pub fn infinity(self) -> u64 {
        self.exponent_ones() << self.fraction
    }

    /// Bits of the largest finite number.
    pub fn largest(self) -> u64 {
        self.infinity() - 1
    }

    /// Bits of the number one.
    pub fn one(self) -> u64 {
        (self.bias() as u64) << self.fraction
    }

    /// Bits of the NaN that NVIDIA calls canonical: all bits except the sign.
    pub fn canonical_nan(self) -> u64 {
        self.sign() - 1
    }

    /// Whether the bits are a NaN.
    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    /// Whether the bits are a subnormal number, and not zero.
    pub fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign() - 1);
        magnitude != 0 && magnitude >> self.fraction == 0
    }

    /// Flushes a subnormal number to a zero of its sign.
    pub fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// Decodes the bits of a datum.
    pub fn decode(self, bits: u64) -> Value {
        let negative = bits & self.sign() != 0;
        let field = bits >> self.fraction & self.exponent_ones();
        let fraction = bits & ((1 << self.fraction) - 1);
        if field == self.exponent_ones() {
            return if fraction != 0 { Value::Nan } else { Value::Infinite(negative) };
        }
        let (magnitude, field) = if field == 0 {
            (fraction, 1)
        } else {
            (fraction | 1 << self.fraction, field)
        };
        let exponent = field as i64 - self.bias() - i64::from(self.fraction);
        Value::Finite(Exact::new(negative, magnitude.into(), exponent))
    }

    /// Returns the bits of a datum, rounded once.
    pub fn encode(self, value: &Value, rounding: Rounding) -> u64 {
        let exact = match value {
            Value::Nan => return self.canonical_nan(),
            Value::Infinite(negative) => return self.infinity() | if *negative { self.sign() } else { 0 },
            Value::Finite(exact) => exact,
        };
        let sign = if exact.negative { self.sign() } else { 0 };
        if exact.is_zero() {
            return sign;
        }
        let fraction = i64::from(self.fraction);
        let top = exact.exponent + exact.magnitude.bits() as i64 - 1;
        let mut quantum = top.max(1 - self.bias()) - fraction;
        let mut kept = exact.rounded(quantum, rounding);
        if kept.bits() > self.fraction as u64 + 1 {
            kept = kept.shift_down(1);
            quantum += 1;
        }
        let kept = kept.to_u128().expect("at most 53 bits") as u64;
        if kept >> self.fraction == 0 {
            return sign | kept;
        }
        let field = quantum + fraction + self.bias();
        if field >= self.exponent_ones() as i64 {
            let outwards = match rounding {
                Rounding::NearestEven | Rounding::NearestAway => true,
                Rounding::Zero => false,
                Rounding::Down => exact.negative,
                Rounding::Up => !exact.negative,
            };
            return sign | if outwards { self.infinity() } else { self.largest() };
        }
        sign | (field as u64) << self.fraction | (kept & ((1 << self.fraction) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finite(bits: u64, format: Format) -> Exact {
        match format.decode(bits) {
            Value::Finite(exact) => exact,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn agrees_with_the_processor_where_it_rounds_to_nearest() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let (a, b, c) = (random.u32(..), random.u32(..), random.u32(..));
            let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            if !(x.is_finite() && y.is_finite() && z.is_finite()) {
                continue;
            }
            let [ea, eb, ec] = [a, b, c].map(|bits| finite(u64::from(bits), F32));
            let near = |exact: Exact| F32.encode(&Value::Finite(exact), Rounding::NearestEven) as u32;
            assert_eq!(near(ea.add(&eb, Rounding::NearestEven)), (x + y).to_bits());
            assert_eq!(near(ea.multiply(&eb)), (x * y).to_bits());
            assert_eq!(near(ea.multiply(&eb).add(&ec, Rounding::NearestEven)), x.mul_add(y, z).to_bits());
            if y != 0.0 {
                assert_eq!(near(ea.divide(&eb)), (x / y).to_bits());
            }
            if x >= 0.0 {
                assert_eq!(near(ea.square_root()), x.sqrt().to_bits());
            }
            let narrowed = finite((f64::from(x) * 1.000_000_000_1).to_bits(), F64);
            assert_eq!(near(narrowed), ((f64::from(x) * 1.000_000_000_1) as f32).to_bits());
        }
    }

    #[test]
    fn directed_roundings_enclose_the_exact_value() {
        let third = Exact::integer(1).divide(&Exact::integer(3));
        let bits = |rounding| F32.encode(&Value::Finite(third.clone()), rounding);
        assert_eq!(bits(Rounding::Up), bits(Rounding::Zero) + 1);
        assert_eq!(bits(Rounding::Down), bits(Rounding::Zero));
        assert_eq!(bits(Rounding::NearestEven), u64::from((1.0f32 / 3.0).to_bits()));
        let huge = Value::Finite(Exact::integer(1 << 20));
        assert_eq!(F16.encode(&huge, Rounding::Zero), 0x7bff);
        assert_eq!(F16.encode(&huge, Rounding::NearestEven), 0x7c00);
    }
}
