//! 16-bit floats, f16 and bf16, single and in pairs (PTX ISA §9.7.4). The exact result is rounded once.
//!
//! In f32, sums of f16 are exact or far from a tie (24 bits ≥ 2·11 + 2), and products are exact. Results that may be inexact in f32 are
//! computed in f64 and first rounded to f32 *to odd*, which keeps a later rounding to fewer bits correct.

mod convert;

use std::cmp::Ordering;
use std::marker::PhantomData;

pub(crate) use convert::{From32, From32Directed, From64, From64Directed, FromInteger, FromIntegerDirected, PairFrom32, Through, Value};

use super::float::Float;
use super::rounding::two_sum;
use super::{Binary, Ternary, Unary};

/// f16, represented by its bits.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Half(pub(crate) u16);

/// bf16, represented by its bits.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Brain(pub(crate) u16);

/// 16-bit floating point type: bits, value, and roundings.
pub(crate) trait Sixteen: Copy + 'static {
    fn from_bits(bits: u16) -> Self;
    fn bits(self) -> u16;
    fn value(self) -> f32;
    /// Rounds to nearest even.
    fn nearest(value: f32) -> Self;
    fn toward_zero(value: f32) -> Self;
    /// Bits of the largest finite value.
    const LARGEST: u16;
    /// Bits of infinity.
    const INFINITY: u16;
    /// Number of fraction bits.
    const FRACTION: u32;
}

/// Bits of the canonical NaN of both types.
pub(crate) const NAN: u16 = 0x7fff;

/// Rounds the exact `high + low` to f32: the exact value if it is an f32, else the neighbour with an odd last bit.
#[inline(always)]
pub(crate) fn to_odd(high: f64, low: f64) -> f32 {
    let near = high as f32;
    let wide = f64::from(near);
    let exact = wide == high && low == 0.0;
    // Whether the nearest f32 has the larger magnitude. Truncation then gives the value below it.
    let beyond = (wide.abs() > high.abs()) || (wide == high && ((low < 0.0) == (high > 0.0)));
    let truncated = near.to_bits().wrapping_sub(u32::from(beyond));
    if exact || !high.is_finite() {
        near
    } else {
        f32::from_bits(truncated | 1)
    }
}

#[inline(always)]
fn fused<H: Sixteen>(a: H, b: H, c: H) -> H {
    let product = f64::from(a.value()) * f64::from(b.value());
    let (high, low) = two_sum(product, f64::from(c.value()));
    H::nearest(if high == 0.0 && low == 0.0 {
        high as f32
    } else {
        to_odd(high, low)
    })
}

/// The functions of [`Sixteen`] that are the same for both types.
macro_rules! by_bits {
    () => {
        #[inline(always)]
        fn from_bits(bits: u16) -> Self {
            Self(bits)
        }
        #[inline(always)]
        fn bits(self) -> u16 {
            self.0
        }
    };
}

impl Sixteen for Half {
    const LARGEST: u16 = 0x7bff;
    const INFINITY: u16 = 0x7c00;
    const FRACTION: u32 = 10;

    by_bits!();

    #[inline(always)]
    fn value(self) -> f32 {
        let bits = u32::from(self.0);
        let magnitude = (bits & 0x7fff) << 13;
        // The factor 2^112 adjusts the exponent, and is exact for subnormals too.
        let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
        let value = if magnitude >= 0x0f80_0000 {
            magnitude | 0x7f80_0000
        } else {
            scaled
        };
        f32::from_bits(value | (bits & 0x8000) << 16)
    }
    #[inline(always)]
    fn nearest(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = bits & 0x8000_0000;
        let magnitude = bits ^ sign;
        // Below 2^-14, adding 0.5 moves the last bit of the f16 to that of the f32, so the addition rounds correctly.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add((magnitude >> 13) & 1) >> 13;
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let limited = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
        if magnitude > 0x7f80_0000 {
            Self(NAN)
        } else {
            Self((limited | sign >> 16) as u16)
        }
    }
    #[inline(always)]
    fn toward_zero(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = bits & 0x8000_0000;
        let magnitude = bits ^ sign;
        // Below 2^-14, the result is the multiple of 2^-24, truncated.
        let subnormal = (f32::from_bits(magnitude) * 16_777_216.0) as u32;
        let normal = magnitude.wrapping_sub(0x3800_0000) >> 13;
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let limited = if magnitude >= 0x4780_0000 { 0x7bff } else { finite };
        if magnitude > 0x7f80_0000 {
            Self(NAN)
        } else if magnitude == 0x7f80_0000 {
            Self((0x7c00 | sign >> 16) as u16)
        } else {
            Self((limited | sign >> 16) as u16)
        }
    }
}

impl Sixteen for Brain {
    const LARGEST: u16 = 0x7f7f;
    const INFINITY: u16 = 0x7f80;
    const FRACTION: u32 = 7;

    by_bits!();

    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    #[inline(always)]
    fn nearest(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1);
        Self(if value.is_nan() { NAN } else { (rounded >> 16) as u16 })
    }
    #[inline(always)]
    fn toward_zero(value: f32) -> Self {
        Self(if value.is_nan() { NAN } else { (value.to_bits() >> 16) as u16 })
    }
}

macro_rules! sixteen {
    ($type:ident, one $one:literal, multiply |$a:ident, $b:ident| $product:expr) => {
        impl PartialEq for $type {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                self.value() == other.value()
            }
        }

        impl PartialOrd for $type {
            #[inline(always)]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.value().partial_cmp(&other.value())
            }
            #[inline(always)]
            fn lt(&self, other: &Self) -> bool {
                self.value() < other.value()
            }
            #[inline(always)]
            fn le(&self, other: &Self) -> bool {
                self.value() <= other.value()
            }
            #[inline(always)]
            fn gt(&self, other: &Self) -> bool {
                self.value() > other.value()
            }
            #[inline(always)]
            fn ge(&self, other: &Self) -> bool {
                self.value() >= other.value()
            }
        }

        impl Float for $type {
            const ONE: Self = Self($one);
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self::nearest(self.value() + other.value())
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                Self::nearest(self.value() - other.value())
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                let ($a, $b) = (self.value(), other.value());
                Self::nearest($product)
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                Self::nearest(self.value() / other.value())
            }
            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                fused(self, b, c)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                Self::nearest(self.value().sqrt())
            }
            #[inline(always)]
            fn neg(self) -> Self {
                Self(self.0 ^ 0x8000)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                Self(self.0 & 0x7fff)
            }
            #[inline(always)]
            fn flush(self) -> Self {
                if self.0 & 0x7fff < 1 << Self::FRACTION {
                    Self(self.0 & 0x8000)
                } else {
                    self
                }
            }
            #[inline(always)]
            fn saturate(self) -> Self {
                // Comparisons with NaN are false, so NaN falls through to zero.
                if self > Self(0) {
                    if self < Self::ONE { self } else { Self::ONE }
                } else {
                    Self(0)
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.0 & 0x7fff > Self::INFINITY
            }
            #[inline(always)]
            fn quiet_nan() -> Self {
                Self(NAN)
            }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                Self(self.0 & 0x7fff | sign.0 & 0x8000)
            }
            #[inline(always)]
            fn is_negative(self) -> bool {
                self.0 & 0x8000 != 0
            }
        }
    };
}
sixteen!(Half, one 0x3c00, multiply |a, b| a * b);
// A product of bf16 may be too small for an exact f32.
sixteen!(Brain, one 0x3f80, multiply |a, b| to_odd(f64::from(a) * f64::from(b), 0.0));

/// Operation on both halves of a pair (`.f16x2`, `.bf16x2`).
pub(crate) struct Both<O>(PhantomData<O>);

#[inline(always)]
fn pair<H: Sixteen>(low: H, high: H) -> u32 {
    u32::from(high.bits()) << 16 | u32::from(low.bits())
}

#[inline(always)]
fn halves<H: Sixteen>(pair: u32) -> (H, H) {
    (H::from_bits(pair as u16), H::from_bits((pair >> 16) as u16))
}

impl<H: Sixteen, O: Unary<A = H, D = H>> Unary for Both<O> {
    type A = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32) -> u32 {
        let (low, high) = halves(a);
        pair(O::apply(low), O::apply(high))
    }
}

impl<H: Sixteen, O: Binary<A = H, B = H, D = H>> Binary for Both<O> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32) -> u32 {
        let ((a, p), (b, q)) = (halves(a), halves(b));
        pair(O::apply(a, b), O::apply(p, q))
    }
}

impl<H: Sixteen, O: Ternary<A = H, B = H, C = H, D = H>> Ternary for Both<O> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        let ((a, p), (b, q), (c, r)) = (halves(a), halves(b), halves(c));
        pair(O::apply(a, b, c), O::apply(p, q, r))
    }
}

/// Applies `.relu`: negative results become +0, and NaN stays canonical.
pub(crate) struct Relu<O>(PhantomData<O>);

impl<H: Sixteen + Float, O: Ternary<A = H, B = H, C = H, D = H>> Ternary for Relu<O> {
    type A = H;
    type B = H;
    type C = H;
    type D = H;
    #[inline(always)]
    fn apply(a: H, b: H, c: H) -> H {
        relu(O::apply(a, b, c))
    }
}

#[inline(always)]
pub(crate) fn relu<H: Sixteen + Float>(value: H) -> H {
    if value.is_negative() && !value.is_nan() {
        H::from_bits(0)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every finite f16 in order of magnitude, computed from the definition of the format.
    fn magnitudes() -> Vec<(f64, u16)> {
        (0..0x7c00u16)
            .map(|bits| {
                let (exponent, fraction) = (i32::from(bits >> 10), f64::from(bits & 0x3ff));
                let value = if exponent == 0 {
                    fraction * 2f64.powi(-24)
                } else {
                    (1024.0 + fraction) * 2f64.powi(exponent - 25)
                };
                (value, bits)
            })
            .collect()
    }

    #[test]
    fn values_are_those_of_the_definition() {
        for (value, bits) in magnitudes() {
            assert_eq!(f64::from(Half(bits).value()), value);
            assert_eq!(f64::from(Half(bits | 0x8000).value()), -value);
            assert_eq!(Half::nearest(value as f32).0, bits);
            assert_eq!(Half::toward_zero(value as f32).0, bits);
        }
        assert!(Half(0x7c01).value().is_nan());
        assert_eq!(Half(0xfc00).value(), f32::NEG_INFINITY);
        assert_eq!(Half::ONE.value(), 1.0);
        assert_eq!(Brain::ONE.value(), 1.0);
    }

    #[test]
    fn ties_go_to_even_and_anything_above_goes_up() {
        for pair in magnitudes().windows(2) {
            let middle = ((pair[0].0 + pair[1].0) / 2.0) as f32;
            let even = if pair[0].1 & 1 == 0 { pair[0].1 } else { pair[1].1 };
            assert_eq!(Half::nearest(middle).0, even);
            assert_eq!(Half::nearest(middle.next_up()).0, pair[1].1);
            assert_eq!(Half::nearest(middle.next_down()).0, pair[0].1);
            assert_eq!(Half::toward_zero(middle).0, pair[0].1);
        }
        assert_eq!(Half::nearest(65_519.0).0, 0x7bff);
        assert_eq!(Half::nearest(65_520.0).0, 0x7c00);
        assert_eq!(Half::toward_zero(1e30).0, 0x7bff);
    }

    #[test]
    fn fused_products_round_once() {
        // The product is a tie, which the much smaller addend decides.
        let a = Brain::nearest(1.0 + 2f32.powi(-4));
        let b = a;
        let product = f64::from(a.value()) * f64::from(b.value());
        assert_eq!(product, 1.0 + 2f64.powi(-3) + 2f64.powi(-8));
        let tiny = Brain::nearest(2f32.powi(-100));
        assert_eq!(a.fma(b, Brain(0)).value(), 1.125);
        assert_eq!(a.fma(b, tiny).value(), 1.125 + 2f32.powi(-7));
        assert_eq!(a.fma(b, tiny.neg()).value(), 1.125);
    }

    #[test]
    fn directed_conversions_round_away_from_zero_in_their_direction() {
        use crate::lanes::rounding::{Down, TowardZero, Up};
        let value = 1.0 + 2f32.powi(-20);
        assert_eq!(From32Directed::<Half, Up>::apply(value).0, 0x3c01);
        assert_eq!(From32Directed::<Half, Down>::apply(value).0, 0x3c00);
        assert_eq!(From32Directed::<Brain, Down>::apply(-value).0, 0xbf81);
        assert_eq!(From32Directed::<Half, Up>::apply(1e9).0, 0x7c00);
        assert_eq!(From32Directed::<Half, Down>::apply(1e9).0, 0x7bff);
        assert_eq!(From64Directed::<Half, Up>::apply(1e-300).0, 1);
        assert_eq!(From64Directed::<Brain, TowardZero>::apply(-1e300).0, 0xff7f);
        assert_eq!(FromIntegerDirected::<u64, Half, Up>::apply(2049).0, 0x6801);
        assert_eq!(From32Directed::<Half, Up>::apply(f32::NAN).0, NAN);
    }

    #[test]
    fn rounding_to_odd_marks_inexact_results() {
        assert_eq!(to_odd(1.0, 0.0), 1.0);
        assert_eq!(to_odd(1.0, 1e-30), 1f32.next_up());
        assert_eq!(to_odd(1.0, -1e-30), 1f32.next_down());
        assert_eq!(to_odd(f64::from(1f32.next_up()), 1e-30), 1f32.next_up());
        assert_eq!(to_odd(-1.0, -1e-30), -(1f32.next_up()));
        assert_eq!(to_odd(1e300, 0.0), f32::MAX);
    }
}
