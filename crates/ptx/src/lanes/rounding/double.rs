//! Directed rounding of f64 arithmetic (`.rz`, `.rm`, `.rp`; PTX ISA §9.7.3). The exact result is computed in 128-bit integers and rounded
//! once. Programs rarely use these operations, so the code favours correctness and size over speed.

use std::marker::PhantomData;

use super::super::{Binary, Ternary, Unary};
use super::Direction;

/// Number of bits in the fraction field.
const FRACTION: u32 = 52;
/// Exponent of a subnormal's last bit.
const LOWEST: i32 = -1074;

/// Finite nonzero number: `± magnitude · 2^exponent`, plus less than one unit if `sticky`.
#[derive(Clone, Copy)]
struct Exact {
    negative: bool,
    magnitude: u128,
    exponent: i32,
    sticky: bool,
}

/// Decodes a finite nonzero number. The magnitude has 53 bits.
fn decode(value: f64) -> Exact {
    let bits = value.to_bits();
    let field = (bits >> FRACTION & 0x7ff) as i32;
    let fraction = bits & ((1 << FRACTION) - 1);
    let (magnitude, exponent) = if field == 0 {
        (fraction, LOWEST)
    } else {
        (fraction | 1 << FRACTION, LOWEST + field - 1)
    };
    let shift = magnitude.leading_zeros() - (63 - FRACTION);
    Exact {
        negative: bits >> 63 != 0,
        magnitude: u128::from(magnitude << shift),
        exponent: exponent - shift as i32,
        sticky: false,
    }
}

impl Exact {
    /// Shifts the highest bit of the magnitude up to bit 126.
    fn raised(self) -> Self {
        let shift = self.magnitude.leading_zeros() - 1;
        Self {
            magnitude: self.magnitude << shift,
            exponent: self.exponent - shift as i32,
            ..self
        }
    }

    /// Expresses the number in units of a larger `2^exponent`.
    fn lowered(self, exponent: i32) -> Self {
        let shift = (exponent - self.exponent) as u32;
        let (kept, rest) = match shift {
            0 => (self.magnitude, false),
            1..=127 => (self.magnitude >> shift, self.magnitude << (128 - shift) != 0),
            _ => (0, true),
        };
        Self {
            magnitude: kept,
            exponent,
            sticky: self.sticky || rest,
            ..self
        }
    }

    /// Adds two exact numbers. Returns `None` if the sum is zero. Bits are lost only if the operands are far apart; more bits than those of
    /// an f64 then remain.
    fn add(self, other: Self) -> Option<Self> {
        let (left, right) = (self.raised(), other.raised());
        let (large, small) = if (left.exponent, left.magnitude) >= (right.exponent, right.magnitude) {
            (left, right)
        } else {
            (right, left)
        };
        let small = small.lowered(large.exponent);
        let magnitude = if large.negative == small.negative {
            large.magnitude + small.magnitude
        } else {
            // The bits cut off from the smaller operand are missing from the difference.
            large.magnitude - small.magnitude - u128::from(small.sticky)
        };
        (magnitude != 0 || small.sticky).then_some(Self {
            magnitude,
            sticky: small.sticky,
            ..large
        })
    }

    /// Rounds once to f64, in the direction `M`.
    fn round<M: Direction>(self) -> f64 {
        let sign = u64::from(self.negative) << 63;
        let top = self.exponent + (127 - self.magnitude.leading_zeros() as i32);
        // Exponent of the last bit to keep: a normal number keeps 53 bits, a subnormal one fewer.
        let quantum = (top - FRACTION as i32).max(LOWEST);
        let kept = if quantum >= self.exponent {
            self.lowered(quantum)
        } else {
            // The number has few bits, all exact: quotients, roots and sums with a sticky bit have more bits than are kept.
            Self {
                magnitude: self.magnitude << (self.exponent - quantum),
                ..self
            }
        };
        let outwards = M::outwards(self.negative);
        let magnitude = kept.magnitude as u64 + u64::from(kept.sticky && outwards);
        // The leading bit adds one to the exponent field, and a carry propagates into the field.
        let bits = (((quantum - LOWEST) as u64) << FRACTION) + magnitude;
        let infinite = f64::INFINITY.to_bits();
        f64::from_bits(
            sign | match (bits < infinite, outwards) {
                (true, _) => bits,
                (false, true) => infinite,
                (false, false) => infinite - 1,
            },
        )
    }
}

/// Whether all values are finite and nonzero, as the integer arithmetic of this module requires. All other results are exact or NaN.
fn ordinary(values: &[f64]) -> bool {
    values.iter().all(|value| value.is_finite() && *value != 0.0)
}

/// Returns the sum of opposite numbers, which is −0 only when rounding down (IEEE 754 §6.3).
fn zero_sum<M: Direction>() -> f64 {
    if M::NEGATIVE_ZERO_SUM { -0.0 } else { 0.0 }
}

fn sum<M: Direction>(a: f64, b: f64) -> f64 {
    if ordinary(&[a, b]) {
        decode(a).add(decode(b)).map_or_else(zero_sum::<M>, Exact::round::<M>)
    } else if a == 0.0 && b == 0.0 && a.is_sign_negative() != b.is_sign_negative() {
        zero_sum::<M>()
    } else {
        a + b
    }
}

fn fused<M: Direction>(a: f64, b: f64, c: f64) -> f64 {
    if !ordinary(&[a, b]) || !c.is_finite() {
        // The product is zero, infinite or NaN, or the sum is not finite.
        let product = if ordinary(&[a, b]) { 0.0 } else { a * b };
        return sum::<M>(product, c);
    }
    let (left, right) = (decode(a), decode(b));
    let product = Exact {
        negative: left.negative != right.negative,
        magnitude: left.magnitude * right.magnitude,
        exponent: left.exponent + right.exponent,
        sticky: false,
    };
    if c == 0.0 {
        return product.round::<M>();
    }
    product.add(decode(c)).map_or_else(zero_sum::<M>, Exact::round::<M>)
}

fn quotient<M: Direction>(a: f64, b: f64) -> f64 {
    if !ordinary(&[a, b]) {
        return a / b;
    }
    let (left, right) = (decode(a), decode(b));
    let numerator = left.magnitude << 74;
    Exact {
        negative: left.negative != right.negative,
        magnitude: numerator / right.magnitude,
        exponent: left.exponent - 74 - right.exponent,
        sticky: numerator % right.magnitude != 0,
    }
    .round::<M>()
}

fn root<M: Direction>(a: f64) -> f64 {
    if !ordinary(&[a]) || a < 0.0 {
        return a.sqrt();
    }
    let number = decode(a);
    // The radicand has 53 bits plus 72 or 73 bits, so that its exponent is even.
    let shift = 72 + (number.exponent & 1);
    let radicand = number.magnitude << shift;
    let magnitude = radicand.isqrt();
    Exact {
        negative: false,
        magnitude,
        exponent: (number.exponent - shift) / 2,
        sticky: magnitude * magnitude != radicand,
    }
    .round::<M>()
}

macro_rules! directed {
    ($name:ident, $bound:ident, ($($argument:ident: $slot:ident),*), $body:expr) => {
        pub(crate) struct $name<M>(PhantomData<M>);
        impl<M: Direction> $bound for $name<M> {
            $(type $slot = f64;)*
            type D = f64;
            #[inline(always)]
            fn apply($($argument: f64),*) -> f64 { $body }
        }
    };
}

directed!(Add, Binary, (a: A, b: B), sum::<M>(a, b));
directed!(Subtract, Binary, (a: A, b: B), sum::<M>(a, -b));
directed!(Multiply, Binary, (a: A, b: B), if ordinary(&[a, b]) { fused::<M>(a, b, 0.0) } else { a * b });
directed!(FusedMultiplyAdd, Ternary, (a: A, b: B, c: C), fused::<M>(a, b, c));
directed!(Divide, Binary, (a: A, b: B), quotient::<M>(a, b));
directed!(SquareRoot, Unary, (a: A), root::<M>(a));
directed!(Reciprocal, Unary, (a: A), quotient::<M>(1.0, a));

#[cfg(test)]
mod tests {
    use super::super::{Down, TowardZero, Up};
    use super::*;

    #[test]
    fn directed_results_enclose_the_exact_one() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            f64::from_bits(state ^ state >> 29)
        };
        for _ in 0..20_000 {
            let (a, b, c) = (next(), next(), next());
            let nearest = a.mul_add(b, c);
            if !nearest.is_finite() || a.is_nan() || b.is_nan() || c.is_nan() {
                continue;
            }
            let (low, high) = (fused::<Down>(a, b, c), fused::<Up>(a, b, c));
            assert!(low == nearest && (high == low || high == low.next_up()) || high == nearest && low == high.next_down());
            let zero = fused::<TowardZero>(a, b, c);
            assert_eq!(zero, if nearest < 0.0 { high } else { low });
        }
    }

    #[test]
    fn exact_results_are_the_same_in_every_direction() {
        assert_eq!(sum::<Down>(1.5, 2.25), 3.75);
        assert_eq!(quotient::<Up>(6.0, 3.0), 2.0);
        assert_eq!(root::<Up>(4.0), 2.0);
        // The square root of 4 · 2^-1074.
        assert_eq!(root::<Up>(f64::from_bits(4)), 2f64.powi(-536));
        assert!(sum::<Down>(1.0, -1.0).is_sign_negative());
        assert!(sum::<Up>(1.0, -1.0).is_sign_positive());
    }

    #[test]
    fn overflow_and_underflow_round_in_the_direction() {
        assert_eq!(sum::<Down>(f64::MAX, f64::MAX), f64::MAX);
        assert_eq!(sum::<Up>(f64::MAX, 1.0), f64::INFINITY);
        assert_eq!(sum::<TowardZero>(-f64::MAX, -f64::MAX), -f64::MAX);
        let least = f64::from_bits(1);
        assert_eq!(fused::<Up>(least, least, 0.0), least);
        assert_eq!(fused::<TowardZero>(least, least, 0.0), 0.0);
        assert_eq!(fused::<Down>(least, -least, 1.0), 1.0f64.next_down());
        let third = quotient::<Down>(f64::MIN_POSITIVE, 3.0);
        assert_eq!(quotient::<Up>(f64::MIN_POSITIVE, 3.0), third.next_up());
    }
}
