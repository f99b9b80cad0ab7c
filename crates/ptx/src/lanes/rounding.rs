//! Directed rounding of f32 arithmetic (`.rz`, `.rm`, `.rp`; PTX ISA §9.7.3 rounding modifiers).
//!
//! Sums and products of f32 are represented exactly in f64 by a value and its error. Rounding to nearest, and then stepping by one value if
//! that went in the wrong direction, gives the directed result.

pub(crate) mod double;

use std::marker::PhantomData;

use super::{Binary, Ternary, Unary};

/// Rounding direction.
pub(crate) trait Direction {
    /// Whether the sum of opposite values is −0 (IEEE 754 §6.3: only when rounding down).
    const NEGATIVE_ZERO_SUM: bool = false;
    /// Rounds the exact `high + low` to f32, where `low` is below half an ulp of `high`.
    fn round(high: f64, low: f64) -> f32;
    /// Whether an inexact result of this sign moves away from zero.
    fn outwards(negative: bool) -> bool;
}

pub(crate) struct TowardZero;
pub(crate) struct Down;
pub(crate) struct Up;

/// Returns the nearest f32, and whether it is above (+1) or below (−1) the exact value.
#[inline(always)]
fn nearest(high: f64, low: f64) -> (f32, i32) {
    let near = high as f32;
    let wide = f64::from(near);
    let side = if wide > high {
        1
    } else if wide < high {
        -1
    } else if low < 0.0 {
        1
    } else if low > 0.0 {
        -1
    } else {
        0
    };
    (near, side)
}

impl Direction for Down {
    const NEGATIVE_ZERO_SUM: bool = true;

    #[inline(always)]
    fn round(high: f64, low: f64) -> f32 {
        let (near, side) = nearest(high, low);
        if side > 0 { near.next_down() } else { near }
    }
    #[inline(always)]
    fn outwards(negative: bool) -> bool {
        negative
    }
}

impl Direction for Up {
    #[inline(always)]
    fn round(high: f64, low: f64) -> f32 {
        let (near, side) = nearest(high, low);
        if side < 0 { near.next_up() } else { near }
    }
    #[inline(always)]
    fn outwards(negative: bool) -> bool {
        !negative
    }
}

impl Direction for TowardZero {
    #[inline(always)]
    fn round(high: f64, low: f64) -> f32 {
        let (near, side) = nearest(high, low);
        // The exact value has the sign of `high`, or of `low` if `high` is zero.
        let positive = high > 0.0 || (high == 0.0 && low > 0.0);
        if positive && side > 0 {
            near.next_down()
        } else if !positive && side < 0 {
            near.next_up()
        } else {
            near
        }
    }
    #[inline(always)]
    fn outwards(_: bool) -> bool {
        false
    }
}

/// Returns the exact sum of two f64 as a value and its error (Knuth's two-sum).
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

#[inline(always)]
fn sum<M: Direction>(a: f64, b: f64) -> f32 {
    let (high, low) = two_sum(a, b);
    if high == 0.0 && low == 0.0 {
        if a.is_sign_negative() == b.is_sign_negative() {
            return high as f32;
        }
        return if M::NEGATIVE_ZERO_SUM { -0.0 } else { 0.0 };
    }
    if !high.is_finite() {
        return high as f32;
    }
    M::round(high, low)
}

macro_rules! directed {
    ($name:ident, $bound:ident, ($($argument:ident: $slot:ident),*), $body:expr) => {
        pub(crate) struct $name<M>(PhantomData<M>);
        impl<M: Direction> $bound for $name<M> {
            $(type $slot = f32;)*
            type D = f32;
            #[inline(always)]
            fn apply($($argument: f32),*) -> f32 { $body }
        }
    };
}

directed!(Add, Binary, (a: A, b: B), sum::<M>(f64::from(a), f64::from(b)));
directed!(Subtract, Binary, (a: A, b: B), sum::<M>(f64::from(a), -f64::from(b)));
directed!(Multiply, Binary, (a: A, b: B), {
    let product = f64::from(a) * f64::from(b);
    if product.is_finite() { M::round(product, 0.0) } else { product as f32 }
});
directed!(FusedMultiplyAdd, Ternary, (a: A, b: B, c: C), sum::<M>(f64::from(a) * f64::from(b), f64::from(c)));
directed!(Divide, Binary, (a: A, b: B), {
    let quotient = f64::from(a) / f64::from(b);
    if quotient.is_finite() && quotient != 0.0 {
        // The remainder has the sign of the error; it is exact in f64 for f32 operands.
        let rest = (-quotient).mul_add(f64::from(b), f64::from(a));
        M::round(quotient, if b < 0.0 { -rest } else { rest })
    } else {
        quotient as f32
    }
});
directed!(SquareRoot, Unary, (a: A), {
    let root = f64::from(a).sqrt();
    if root.is_finite() && root > 0.0 { M::round(root, (-root).mul_add(root, f64::from(a))) } else { root as f32 }
});
directed!(Reciprocal, Unary, (a: A), <Divide<M> as Binary>::apply(1.0, a));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_sums_bracket_the_exact_value() {
        let tiny = f32::from_bits(1);
        assert_eq!(Add::<Down>::apply(1.0, tiny), 1.0);
        assert_eq!(Add::<Up>::apply(1.0, tiny), 1.0f32.next_up());
        assert_eq!(Add::<TowardZero>::apply(1.0, tiny), 1.0);
        assert_eq!(Add::<TowardZero>::apply(-1.0, -tiny), -1.0);
        assert_eq!(Add::<Down>::apply(-1.0, -tiny), (-1.0f32).next_down());
        assert_eq!(Add::<TowardZero>::apply(1.0, -tiny), 1.0f32.next_down());
    }

    #[test]
    fn directed_overflow_stops_at_the_largest_value() {
        assert_eq!(Multiply::<Down>::apply(f32::MAX, 2.0), f32::MAX);
        assert_eq!(Multiply::<Up>::apply(f32::MAX, 2.0), f32::INFINITY);
        assert_eq!(Multiply::<TowardZero>::apply(f32::MAX, -2.0), -f32::MAX);
    }

    #[test]
    fn exact_zero_sums_are_negative_only_when_rounding_down() {
        assert!(Add::<Down>::apply(1.0, -1.0).is_sign_negative());
        assert!(Add::<Up>::apply(1.0, -1.0).is_sign_positive());
        assert!(Add::<TowardZero>::apply(1.0, -1.0).is_sign_positive());
    }

    #[test]
    fn fused_multiply_add_keeps_the_bits_below_f64() {
        // The exact difference of the product and the smallest subnormal needs more than 53 bits.
        let a = 1.0 + f32::EPSILON;
        let c = f32::from_bits(1);
        assert_eq!(
            FusedMultiplyAdd::<Down>::apply(a, a, -c),
            FusedMultiplyAdd::<Down>::apply(a, a, 0.0)
        );
        let exact = 1.0f32;
        assert_eq!(FusedMultiplyAdd::<Down>::apply(exact, exact, -c), 1.0f32.next_down());
        assert_eq!(FusedMultiplyAdd::<Up>::apply(exact, exact, c), 1.0f32.next_up());
    }

    #[test]
    fn division_and_root_round_as_asked() {
        assert!(Divide::<Down>::apply(1.0, 3.0) < Divide::<Up>::apply(1.0, 3.0));
        assert_eq!(Divide::<Down>::apply(1.0, 3.0).next_up(), Divide::<Up>::apply(1.0, 3.0));
        assert_eq!(Divide::<Up>::apply(6.0, 3.0), 2.0);
        assert_eq!(SquareRoot::<Down>::apply(2.0).next_up(), SquareRoot::<Up>::apply(2.0));
        assert_eq!(SquareRoot::<Up>::apply(4.0), 2.0);
    }
}
