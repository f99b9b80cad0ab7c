//! Exact sums and values derived from them, independent of the order of the terms. They are rounded once, at the end.
//!
//! A running sum is a wide fixed-point number in lanes of 32 bits. Each lane is stored in a 64-bit integer, so that carries can be deferred
//! (a small superaccumulator: Neal, "Fast exact summation using small and large superaccumulators", 2015). Every finite `f64`, every 64-bit
//! integer and the square of each is added without an error, so neither cancellation nor an intermediate overflow affects the result. Only
//! lanes for the magnitudes that occurred are allocated.

use num_bigint::{BigInt, BigUint, Sign};
use num_rational::BigRational;
use num_traits::{ToPrimitive, float::FloatCore};
use serde::{Deserialize, Serialize};

const LANE: i32 = 32;
const MASK: i64 = 0xffff_ffff;
/// Number of terms after which carries are propagated. Each term adds less than 2^33 to a lane, whose 63 bits must not overflow.
const CARRY_AFTER: u32 = 1 << 29;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(crate) struct ExactSum {
    /// Index of the first lane, whose unit is 2 to the power of 32 × `first`.
    first: i32,
    lanes: Vec<i64>,
    /// Number of terms since carries were last propagated.
    waiting: u32,
    /// Sum of the terms that are infinite or NaN, as bits; `None` while all terms were finite.
    special: Option<u64>,
}

/// Form of a sum in checkpoints. Equal sums have equal forms.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// The sum in units of 2 to the power of `exponent`, as a hexadecimal integer.
    sum: String,
    exponent: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    special: Option<u64>,
}

/// Error for text that is not a valid sum. A sum beyond what terms can add up to would take any amount of memory.
#[derive(Debug, thiserror::Error)]
#[error("invalid sum: expected a sum of numbers or of their squares")]
struct NoSum;

/// Range of the exponents of the squares of finite numbers, with some room for the number of terms.
const EXPONENTS: std::ops::RangeInclusive<i32> = -2176..=2176;
/// Maximum number of bits of a sum: from the least of these exponents to the greatest.
const MAX_BITS: u64 = 4352;

impl TryFrom<Stored> for ExactSum {
    type Error = NoSum;

    fn try_from(stored: Stored) -> Result<Self, NoSum> {
        let mut sum = Self {
            special: stored.special,
            ..Self::default()
        };
        let whole = BigInt::parse_bytes(stored.sum.as_bytes(), 16).ok_or(NoSum)?;
        if whole.bits() > MAX_BITS || !EXPONENTS.contains(&stored.exponent) {
            return Err(NoSum);
        }
        for (place, digit) in (0..).zip(whole.magnitude().iter_u32_digits()) {
            sum.add_scaled(whole.sign() == Sign::Minus, digit.into(), stored.exponent + LANE * place);
        }
        Ok(sum)
    }
}

impl From<ExactSum> for Stored {
    fn from(sum: ExactSum) -> Self {
        let (whole, exponent) = sum.exact();
        Self {
            sum: whole.to_str_radix(16),
            exponent,
            special: sum.special,
        }
    }
}

impl PartialEq for ExactSum {
    fn eq(&self, other: &Self) -> bool {
        self.special == other.special && self.exact() == other.exact()
    }
}

impl ExactSum {
    pub(crate) fn add(&mut self, term: f64) {
        match parts(term) {
            Some((magnitude, exponent)) => self.add_scaled(term.is_sign_negative(), magnitude.into(), exponent),
            None => self.add_special(term),
        }
    }

    pub(crate) fn add_square(&mut self, term: f64) {
        match parts(term) {
            Some((magnitude, exponent)) => self.add_scaled(false, u128::from(magnitude) * u128::from(magnitude), 2 * exponent),
            None => self.add_special(term * term),
        }
    }

    pub(crate) fn add_whole(&mut self, negative: bool, magnitude: u64) {
        self.add_scaled(negative, magnitude.into(), 0);
    }

    pub(crate) fn add_whole_square(&mut self, magnitude: u64) {
        self.add_scaled(false, u128::from(magnitude) * u128::from(magnitude), 0);
    }

    fn add_special(&mut self, term: f64) {
        let special = self.special.map_or(0.0, f64::from_bits) + term;
        // All NaNs are stored as the same one, so that equal states compare and serialize equally.
        let special = if special.is_nan() { f64::NAN } else { special };
        self.special = Some(special.to_bits());
    }

    /// Adds ± `magnitude` × 2 to the power of `exponent`.
    fn add_scaled(&mut self, negative: bool, magnitude: u128, exponent: i32) {
        if magnitude == 0 {
            return;
        }
        let (lane, shift) = (exponent.div_euclid(LANE), exponent.rem_euclid(LANE));
        let words = (128 - magnitude.leading_zeros() as i32 + LANE - 1) / LANE;
        let from = self.cover(lane, words + 1);
        for word in 0..words as usize {
            let shifted = u64::from((magnitude >> (LANE as usize * word)) as u32) << shift;
            let (low, high) = ((shifted as i64) & MASK, (shifted >> LANE) as i64);
            let lanes = &mut self.lanes[from + word..];
            if negative {
                lanes[0] -= low;
                lanes[1] -= high;
            } else {
                lanes[0] += low;
                lanes[1] += high;
            }
        }
        self.waiting += 1;
        if self.waiting >= CARRY_AFTER {
            self.carry();
        }
    }

    /// Ensures that there are `count` lanes from `lane` on. Returns the position of `lane` in the vector.
    fn cover(&mut self, lane: i32, count: i32) -> usize {
        if self.lanes.is_empty() {
            self.first = lane;
        }
        if lane < self.first {
            let missing = (self.first - lane) as usize;
            self.lanes.splice(..0, std::iter::repeat_n(0, missing));
            self.first = lane;
        }
        let from = (lane - self.first) as usize;
        let end = from + count as usize;
        if self.lanes.len() < end {
            self.lanes.resize(end, 0);
        }
        from
    }

    /// Propagates carries. Afterwards all lanes but the last are non-negative and below 2^32.
    fn carry(&mut self) {
        self.waiting = 0;
        let mut carry = 0;
        for lane in &mut self.lanes {
            *lane += carry;
            carry = *lane >> LANE;
            *lane &= MASK;
        }
        if carry != 0 {
            self.lanes.push(carry);
        }
    }

    /// The finite part as an integer, in units of 2 to the power of the returned exponent, which is as large as the lanes allow.
    fn exact(&self) -> (BigInt, i32) {
        let mut sum = self.clone();
        sum.carry();
        let empty = sum.lanes.iter().take_while(|lane| **lane == 0).count();
        let Some((last, digits)) = sum.lanes[empty..].split_last() else {
            return (BigInt::ZERO, 0);
        };
        let weight = digits.len() * LANE as usize;
        let digits = BigUint::new(digits.iter().map(|digit| *digit as u32).collect());
        let whole = (BigInt::from(*last) << weight) + BigInt::from(digits);
        (whole, LANE * (sum.first + empty as i32))
    }

    /// The sum, rounded to nearest, ties to even.
    pub(crate) fn value(&self) -> f64 {
        self.over(1)
    }

    /// The sum divided by `count`, rounded once.
    pub(crate) fn over(&self, count: u64) -> f64 {
        if let Some(special) = self.special {
            return f64::from_bits(special);
        }
        let (whole, exponent) = self.exact();
        rounded_ratio(whole, count.into(), exponent)
    }

    /// The exact sum if it is an integer, which is always the case if only integers were added.
    pub(crate) fn whole(&self) -> Option<BigInt> {
        let (whole, exponent) = self.exact();
        let finite = self.special.is_none();
        // Lanes of integers begin at 2^0.
        (finite && exponent >= 0).then(|| whole << exponent as usize)
    }
}

/// Estimated standard error of the mean of `count` terms, at least two, from their sum and the sum of their squares. Both sums are exact,
/// so terms that are close together do not cause cancellation. NaN if a term was not finite.
pub(crate) fn standard_error(sum: &ExactSum, squares: &ExactSum, count: u64) -> f64 {
    if sum.special.is_some() || squares.special.is_some() {
        return f64::NAN;
    }
    let ((sum, of_sum), (squares, of_squares)) = (sum.exact(), squares.exact());
    // count × Σx² − (Σx)², in units of 2 to the power of the smaller exponent.
    let exponent = of_squares.min(2 * of_sum);
    let left = (squares * count) << (of_squares - exponent) as usize;
    let right = (&sum * &sum) << (2 * of_sum - exponent) as usize;
    let numerator = left - right;
    let denominator = BigInt::from(count) * count * (count - 1);
    if numerator.sign() != Sign::Plus {
        return 0.0;
    }
    // The square may exceed the range of `f64` even if its root does not, so the root is taken of a number near one.
    let scale = numerator.bits() as i32 - denominator.bits() as i32 + exponent;
    let scale = scale - scale.rem_euclid(2);
    let root = rounded_ratio(numerator, denominator, exponent - scale).sqrt();
    // Scaled in two steps, so that neither factor exceeds the range.
    let half = scale / 4;
    root * 2_f64.powi(half) * 2_f64.powi(scale / 2 - half)
}

/// Magnitude and exponent of a finite number, which is ± magnitude × 2 to the power of the exponent. `None` for other numbers.
fn parts(value: f64) -> Option<(u64, i32)> {
    let (magnitude, exponent, _) = value.integer_decode();
    value.is_finite().then_some((magnitude, exponent.into()))
}

/// numerator ÷ denominator × 2 to the power of `exponent`, rounded once: to nearest, ties to even.
fn rounded_ratio(mut numerator: BigInt, mut denominator: BigInt, exponent: i32) -> f64 {
    match exponent {
        0.. => numerator <<= exponent,
        ..0 => denominator <<= -exponent,
    }
    BigRational::new_raw(numerator, denominator)
        .to_f64()
        .expect("numbers beyond the range are infinite")
}

#[cfg(test)]
mod tests;
