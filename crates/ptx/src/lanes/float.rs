//! Floating point arithmetic (PTX ISA §9.7.3): correctly rounded to nearest even, subnormals kept unless `.ftz` is written.

#![allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    clippy::if_same_then_else,
    reason = "NaN and signed zeros decide: the order of comparisons follows the ISA"
)]

use std::marker::PhantomData;

use super::{Binary, Relation, Ternary, Unary};

/// Floating point type: the operations that instructions are composed of.
pub(crate) trait Float: Copy + PartialOrd + 'static {
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn fma(self, b: Self, c: Self) -> Self;
    fn sqrt(self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// Flushes subnormals to zero of the same sign.
    fn flush(self) -> Self;
    /// Clamps to [0, 1]. NaN becomes +0 (PTX ISA §9.7.3: `.sat`).
    fn saturate(self) -> Self;
    fn is_nan(self) -> bool;
    fn quiet_nan() -> Self;
    fn copysign(self, sign: Self) -> Self;
    fn is_negative(self) -> bool;
}

macro_rules! float {
    ($type:ty, $bits:ty, $canonical:expr) => {
        impl Float for $type {
            const ONE: Self = 1.0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                self.mul_add(b, c)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$type>::sqrt(self)
            }
            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$type>::abs(self)
            }
            #[inline(always)]
            fn flush(self) -> Self {
                if <$type>::abs(self) < <$type>::MIN_POSITIVE {
                    (0.0 as $type).copysign(self)
                } else {
                    self
                }
            }
            #[inline(always)]
            fn saturate(self) -> Self {
                // Comparisons with NaN are false, so NaN falls through to zero.
                if self > 0.0 {
                    if self < 1.0 { self } else { 1.0 }
                } else {
                    0.0
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$type>::is_nan(self)
            }
            #[inline(always)]
            fn quiet_nan() -> Self {
                <$type>::from_bits($canonical)
            }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                <$type>::copysign(self, sign)
            }
            #[inline(always)]
            fn is_negative(self) -> bool {
                self.to_bits() >> (<$bits>::BITS - 1) != 0
            }
        }
    };
}
float!(f32, u32, 0x7fff_ffff);
float!(f64, u64, 0x7ff8_0000_0000_0000);

macro_rules! unary {
    ($($name:ident = |$a:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Float> Unary for $name<T> {
            type A = T;
            type D = T;
            #[inline(always)]
            fn apply($a: T) -> T { $body }
        }
    )*};
}

unary! {
    Negate = |a| a.neg();
    Absolute = |a| a.abs();
    SquareRoot = |a| a.sqrt();
    Reciprocal = |a| T::ONE.div(a);
}

macro_rules! binary {
    ($($name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Float> Binary for $name<T> {
            type A = T;
            type B = T;
            type D = T;
            #[inline(always)]
            fn apply($a: T, $b: T) -> T { $body }
        }
    )*};
}

binary! {
    Add = |a, b| a.add(b);
    Subtract = |a, b| a.sub(b);
    Multiply = |a, b| a.mul(b);
    Divide = |a, b| a.div(b);
    Minimum = |a, b| minimum(a, b);
    Maximum = |a, b| maximum(a, b);
    MinimumNan = |a, b| if a.is_nan() || b.is_nan() { T::quiet_nan() } else { minimum(a, b) };
    MaximumNan = |a, b| if a.is_nan() || b.is_nan() { T::quiet_nan() } else { maximum(a, b) };
    CopySign = |a, b| b.copysign(a);
    MinimumXorSign = |a, b| xor_sign(a, b, minimum(a.abs(), b.abs()));
    MaximumXorSign = |a, b| xor_sign(a, b, maximum(a.abs(), b.abs()));
    MinimumNanXorSign = |a, b| if a.is_nan() || b.is_nan() { T::quiet_nan() } else { xor_sign(a, b, minimum(a.abs(), b.abs())) };
    MaximumNanXorSign = |a, b| if a.is_nan() || b.is_nan() { T::quiet_nan() } else { xor_sign(a, b, maximum(a.abs(), b.abs())) };
}

/// Applies `.xorsign.abs`: the sign is the exclusive or of the operands' signs, and a NaN stays canonical.
#[inline(always)]
fn xor_sign<T: Float>(a: T, b: T, magnitude: T) -> T {
    if magnitude.is_nan() {
        magnitude
    } else if a.is_negative() != b.is_negative() {
        magnitude.abs().neg()
    } else {
        magnitude.abs()
    }
}

/// Returns the smaller operand, or the number if the other is NaN. −0 is below +0 (PTX ISA §9.7.3.11).
#[inline(always)]
fn minimum<T: Float>(a: T, b: T) -> T {
    if a.is_nan() {
        if b.is_nan() { T::quiet_nan() } else { b }
    } else if b.is_nan() || a < b {
        a
    } else if b < a {
        b
    } else if a.is_negative() {
        a
    } else {
        b
    }
}

/// Returns the larger operand, or the number if the other is NaN. +0 is above −0.
#[inline(always)]
fn maximum<T: Float>(a: T, b: T) -> T {
    if a.is_nan() {
        if b.is_nan() { T::quiet_nan() } else { b }
    } else if b.is_nan() || a > b {
        a
    } else if b > a {
        b
    } else if a.is_negative() {
        b
    } else {
        a
    }
}

/// `fma`, and `mad` of floats, which round once.
pub(crate) struct FusedMultiplyAdd<T>(PhantomData<T>);
impl<T: Float> Ternary for FusedMultiplyAdd<T> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: T, c: T) -> T {
        a.fma(b, c)
    }
}

/// Applies `.ftz` to an operation: subnormal inputs and results become zeros of their sign.
pub(crate) struct Flushing<O>(PhantomData<O>);

impl<T: Float, O: Unary<A = T, D = T>> Unary for Flushing<O> {
    type A = T;
    type D = T;
    #[inline(always)]
    fn apply(a: T) -> T {
        O::apply(a.flush()).flush()
    }
}

impl<T: Float, O: Binary<A = T, B = T, D = T>> Binary for Flushing<O> {
    type A = T;
    type B = T;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: T) -> T {
        O::apply(a.flush(), b.flush()).flush()
    }
}

impl<T: Float, O: Ternary<A = T, B = T, C = T, D = T>> Ternary for Flushing<O> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: T, c: T) -> T {
        O::apply(a.flush(), b.flush(), c.flush()).flush()
    }
}

impl<T: Float, O: Relation<A = T>> Relation for Flushing<O> {
    type A = T;
    #[inline(always)]
    fn apply(a: T, b: T) -> bool {
        O::apply(a.flush(), b.flush())
    }
}

/// Applies `.sat` to the result of another operation.
pub(crate) struct Saturating<O>(PhantomData<O>);

impl<T: Float, O: Unary<D = T>> Unary for Saturating<O> {
    type A = O::A;
    type D = T;
    #[inline(always)]
    fn apply(a: O::A) -> T {
        O::apply(a).saturate()
    }
}

impl<T: Float, O: Binary<D = T>> Binary for Saturating<O> {
    type A = O::A;
    type B = O::B;
    type D = T;
    #[inline(always)]
    fn apply(a: O::A, b: O::B) -> T {
        O::apply(a, b).saturate()
    }
}

impl<T: Float, O: Ternary<D = T>> Ternary for Saturating<O> {
    type A = O::A;
    type B = O::B;
    type C = O::C;
    type D = T;
    #[inline(always)]
    fn apply(a: O::A, b: O::B, c: O::C) -> T {
        O::apply(a, b, c).saturate()
    }
}

/// Ordered and unordered comparisons of PTX ISA §9.3.1.1. `testp` uses them too.
macro_rules! relations {
    ($($name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Float> Relation for $name<T> {
            type A = T;
            #[inline(always)]
            fn apply($a: T, $b: T) -> bool { $body }
        }
    )*};
}

relations! {
    Equal = |a, b| a == b;
    Less = |a, b| a < b;
    LessOrEqual = |a, b| a <= b;
    Greater = |a, b| a > b;
    GreaterOrEqual = |a, b| a >= b;
    NotEqual = |a, b| a < b || a > b;
    EqualUnordered = |a, b| !(a < b || a > b);
    NotEqualUnordered = |a, b| a != b;
    LessUnordered = |a, b| !(a >= b);
    LessOrEqualUnordered = |a, b| !(a > b);
    GreaterUnordered = |a, b| !(a <= b);
    GreaterOrEqualUnordered = |a, b| !(a < b);
    Numbers = |a, b| !a.is_nan() && !b.is_nan();
    AnyNan = |a, b| a.is_nan() || b.is_nan();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_and_maximum_prefer_numbers_and_order_zeros() {
        assert_eq!(minimum(f32::NAN, 2.0), 2.0);
        assert_eq!(maximum(2.0, f32::NAN), 2.0);
        assert!(minimum(0.0f32, -0.0).is_sign_negative());
        assert!(minimum(-0.0f32, 0.0).is_sign_negative());
        assert!(maximum(-0.0f32, 0.0).is_sign_positive());
        assert_eq!(maximum(f32::NAN, f32::NAN).to_bits(), 0x7fff_ffff);
    }

    #[test]
    fn flushing_keeps_the_sign() {
        let small = f32::from_bits(1);
        assert_eq!((-small).flush().to_bits(), (-0.0f32).to_bits());
        assert_eq!(<Flushing<Multiply<f32>> as Binary>::apply(1e-30, 1e-10), 0.0);
        assert!(Multiply::<f32>::apply(1e-30, 1e-10) > 0.0);
    }

    #[test]
    fn saturation_sends_nan_to_zero() {
        assert_eq!(f32::NAN.saturate(), 0.0);
        assert_eq!(f32::INFINITY.saturate(), 1.0);
        assert_eq!((-3.0f32).saturate(), 0.0);
        assert_eq!(0.25f32.saturate(), 0.25);
    }

    #[test]
    fn unordered_comparisons_hold_for_nan() {
        assert!(LessUnordered::apply(f32::NAN, 1.0));
        assert!(!Less::apply(f32::NAN, 1.0));
        assert!(!NotEqual::apply(f32::NAN, 1.0));
        assert!(NotEqualUnordered::apply(f32::NAN, 1.0));
        assert!(EqualUnordered::apply(1.0, f32::NAN));
    }
}
