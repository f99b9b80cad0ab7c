//! Conversions (PTX ISA §9.7.9.21 cvt).

use std::marker::PhantomData;

use super::float::Float;
use super::rounding::{Direction, Down, TowardZero, Up};
use super::{Ternary, Unary};

/// Integer conversion between register widths: truncates, or extends according to the sign of the source.
pub(crate) struct Resize<S, D>(PhantomData<(S, D)>);

macro_rules! resize {
    ($($source:ty => $($target:ty),*;)*) => {$($(
        impl Unary for Resize<$source, $target> {
            type A = $source;
            type D = $target;
            #[inline(always)]
            fn apply(a: $source) -> $target { a as $target }
        }
    )*)*};
}
resize! {
    u16 => u32, u64;
    i16 => u32, u64;
    u32 => u16, u64;
    i32 => u64;
    u64 => u16, u32;
}

/// Truncation of a register of type `W` to the narrow type `N`, extended again according to the sign of `N`.
pub(crate) struct Narrow<N, W>(PhantomData<(N, W)>);

macro_rules! narrow {
    ($($narrow:ty => $($wide:ty),*;)*) => {$($(
        impl Unary for Narrow<$narrow, $wide> {
            type A = $wide;
            type D = $wide;
            #[inline(always)]
            fn apply(a: $wide) -> $wide { a as $narrow as $wide }
        }
    )*)*};
}
narrow! {
    u8 => u16, u32, u64;
    i8 => u16, u32, u64;
    u16 => u32, u64;
    i16 => u32, u64;
    u32 => u64;
    i32 => u64;
}

/// Integer of type `S` clamped to the range of `D` (`cvt.sat`), in a register of type `W`.
pub(crate) struct Clamp<S, D, W>(PhantomData<(S, D, W)>);

macro_rules! clamp {
    ($($source:ty => $($target:ty as $register:ty),*;)*) => {$($(
        impl Unary for Clamp<$source, $target, $register> {
            type A = $source;
            type D = $register;
            #[inline(always)]
            fn apply(a: $source) -> $register {
                let value = i128::from(a);
                value.clamp(i128::from(<$target>::MIN), i128::from(<$target>::MAX)) as $target as $register
            }
        }
    )*)*};
}
clamp! {
    i16 => u8 as u16, i8 as u16, u16 as u16, u32 as u32, u64 as u64;
    u16 => u8 as u16, i8 as u16, i16 as u16;
    i32 => u8 as u16, i8 as u16, u16 as u16, i16 as u16, u32 as u32, u64 as u64, u8 as u32, i8 as u32, u16 as u32, i16 as u32;
    u32 => u8 as u16, i8 as u16, u16 as u16, i16 as u16, i32 as u32, u8 as u32, i8 as u32, u16 as u32, i16 as u32;
    i64 => u8 as u16, i8 as u16, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64;
    u64 => u8 as u16, i8 as u16, u16 as u16, i16 as u16, u32 as u32, i32 as u32, i64 as u64;
}

/// `cvt.pack` (PTX ISA §9.7.9.22): two integers clamped to `BITS` bits, b below a. The lower bits of c fill what is left above them.
pub(crate) struct PackSaturated<const BITS: u32, const SIGNED: bool>;
on_words!(Ternary [const BITS: u32, const SIGNED: bool] PackSaturated<BITS, SIGNED> = |a, b, c| {
    let clamp = |value: u32| {
        let (low, high) = if SIGNED {
            (-(1 << (BITS - 1)), (1 << (BITS - 1)) - 1)
        } else {
            (0, (1 << BITS) - 1)
        };
        (value as i32).clamp(low, high) as u32 & ((1 << BITS) - 1)
    };
    c.checked_shl(2 * BITS).unwrap_or(0) | clamp(a) << BITS | clamp(b)
});

/// Conversion of an integer to a float, rounded to nearest.
pub(crate) struct FromInteger<S, F>(PhantomData<(S, F)>);
/// Conversion of an integer to f32 with directed rounding.
pub(crate) struct FromIntegerDirected<S, M>(PhantomData<(S, M)>);
/// Conversion of a 64-bit integer to f64 with directed rounding.
pub(crate) struct FromIntegerDirected64<S, M>(PhantomData<(S, M)>);
/// Saturating conversion of a float to an integer, with rounding `R`, in a register of type `W`.
pub(crate) struct ToInteger<F, D, W, R>(PhantomData<(F, D, W, R)>);

macro_rules! from_integer {
    ($($source:ty),*) => {$(
        impl Unary for FromInteger<$source, f32> {
            type A = $source;
            type D = f32;
            #[inline(always)]
            fn apply(a: $source) -> f32 { a as f32 }
        }
        impl Unary for FromInteger<$source, f64> {
            type A = $source;
            type D = f64;
            #[inline(always)]
            fn apply(a: $source) -> f64 { a as f64 }
        }
        impl<M: Direction> Unary for FromIntegerDirected<$source, M> {
            type A = $source;
            type D = f32;
            #[inline(always)]
            fn apply(a: $source) -> f32 {
                // Split into two parts that are both exact in f64.
                let value = i128::from(a);
                let low = value & 0xffff_ffff;
                M::round(((value - low) as f64) + low as f64, {
                    let high = (value - low) as f64;
                    let sum = high + low as f64;
                    (high - sum) + low as f64
                })
            }
        }
    )*};
}
from_integer!(u16, i16, u32, i32, u64, i64);

macro_rules! from_integer_directed {
    ($($source:ty),*) => {$(
        impl<M: Direction> Unary for FromIntegerDirected64<$source, M> {
            type A = $source;
            type D = f64;
            #[inline(always)]
            fn apply(a: $source) -> f64 {
                let (exact, near) = (i128::from(a), a as f64);
                // Whether the nearest f64 is farther from zero (1) or closer to zero (-1) than the exact value.
                let side = ((near as i128).abs() - exact.abs()).signum();
                let step = match (side, M::outwards(exact < 0)) {
                    (1, false) => -1,
                    (-1, true) => 1,
                    _ => 0,
                };
                f64::from_bits(near.to_bits().wrapping_add_signed(step))
            }
        }
    )*};
}
from_integer_directed!(u64, i64);

/// Rounding of a float to an integral value.
pub(crate) trait Integral {
    fn single(a: f32) -> f32;
    fn double(a: f64) -> f64;
}

pub(crate) struct NearestEven;

macro_rules! integral {
    ($($name:ident: $function:ident;)*) => {$(
        impl Integral for $name {
            #[inline(always)]
            fn single(a: f32) -> f32 { a.$function() }
            #[inline(always)]
            fn double(a: f64) -> f64 { a.$function() }
        }
    )*};
}
integral! {
    NearestEven: round_ties_even;
    TowardZero: trunc;
    Down: floor;
    Up: ceil;
}

/// NaN becomes 0 for f32 sources and targets up to 32 bits, else the top bit alone (PTX ISA §9.7.9.21).
macro_rules! to_integer {
    ($($target:ty as $register:ty, $nan:expr, $nan_double:expr;)*) => {$(
        impl<R: Integral> Unary for ToInteger<f32, $target, $register, R> {
            type A = f32;
            type D = $register;
            #[inline(always)]
            fn apply(a: f32) -> $register {
                let value = R::single(a) as $target as $register;
                if a.is_nan() { $nan } else { value }
            }
        }
        impl<R: Integral> Unary for ToInteger<f64, $target, $register, R> {
            type A = f64;
            type D = $register;
            #[inline(always)]
            fn apply(a: f64) -> $register {
                let value = R::double(a) as $target as $register;
                if a.is_nan() { $nan_double } else { value }
            }
        }
    )*};
}
to_integer! {
    u8 as u16, 0, 1 << 7;
    i8 as u16, 0, (1i8 << 7) as u16;
    u16 as u16, 0, 1 << 15;
    i16 as u16, 0, 1 << 15;
    u32 as u32, 0, 1 << 31;
    i32 as u32, 0, 1 << 31;
    u64 as u64, 1 << 63, 1 << 63;
    i64 as u64, 1 << 63, 1 << 63;
}

/// Float to an integral value of the same type (`cvt.rni.f32.f32`).
pub(crate) struct RoundToIntegral<F, R>(PhantomData<(F, R)>);

impl<R: Integral> Unary for RoundToIntegral<f32, R> {
    type A = f32;
    type D = f32;
    #[inline(always)]
    fn apply(a: f32) -> f32 {
        R::single(a)
    }
}

impl<R: Integral> Unary for RoundToIntegral<f64, R> {
    type A = f64;
    type D = f64;
    #[inline(always)]
    fn apply(a: f64) -> f64 {
        R::double(a)
    }
}

/// `cvt.f64.f32`.
pub(crate) struct Widen;
impl Unary for Widen {
    type A = f32;
    type D = f64;
    #[inline(always)]
    fn apply(a: f32) -> f64 {
        f64::from(a)
    }
}

/// `cvt.rn.f32.f64`.
pub(crate) struct NarrowFloat;
impl Unary for NarrowFloat {
    type A = f64;
    type D = f32;
    #[inline(always)]
    fn apply(a: f64) -> f32 {
        a as f32
    }
}

/// `cvt.{rz,rm,rp}.f32.f64`.
pub(crate) struct NarrowFloatDirected<M>(PhantomData<M>);
impl<M: Direction> Unary for NarrowFloatDirected<M> {
    type A = f64;
    type D = f32;
    #[inline(always)]
    fn apply(a: f64) -> f32 {
        if a.is_finite() { M::round(a, 0.0) } else { a as f32 }
    }
}

/// Conversion whose source and result are flushed if they are f32.
pub(crate) struct FlushedConversion<O>(PhantomData<O>);
impl<O: Unary<A: Flush, D: Flush>> Unary for FlushedConversion<O> {
    type A = O::A;
    type D = O::D;
    #[inline(always)]
    fn apply(a: O::A) -> O::D {
        O::apply(a.flushed()).flushed()
    }
}

/// Flushing of subnormals to zero for f32. Other types are unchanged.
pub(crate) trait Flush: Copy {
    fn flushed(self) -> Self;
}

impl Flush for f32 {
    #[inline(always)]
    fn flushed(self) -> Self {
        self.flush()
    }
}

macro_rules! unflushed {
    ($($type:ty),*) => {$(
        impl Flush for $type {
            #[inline(always)]
            fn flushed(self) -> Self { self }
        }
    )*};
}
unflushed!(u16, i16, u32, i32, u64, i64, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_to_integer_saturates_and_converts_nan_as_specified() {
        assert_eq!(ToInteger::<f32, i32, u32, TowardZero>::apply(1e20), i32::MAX as u32);
        assert_eq!(ToInteger::<f32, u8, u16, NearestEven>::apply(300.0), 255);
        assert_eq!(ToInteger::<f32, i32, u32, NearestEven>::apply(f32::NAN), 0);
        assert_eq!(ToInteger::<f64, i32, u32, NearestEven>::apply(f64::NAN), 1 << 31);
        assert_eq!(ToInteger::<f32, i64, u64, NearestEven>::apply(f32::NAN), 1 << 63);
        assert_eq!(ToInteger::<f32, i32, u32, NearestEven>::apply(2.5), 2);
        assert_eq!(ToInteger::<f32, i32, u32, Up>::apply(-2.5) as i32, -2);
        assert_eq!(ToInteger::<f32, i32, u32, Down>::apply(-2.5) as i32, -3);
    }

    #[test]
    fn integers_round_to_floats_in_the_asked_direction() {
        let value = (1u64 << 60) + 1;
        assert_eq!(FromIntegerDirected::<u64, Down>::apply(value), 2f32.powi(60));
        assert_eq!(FromIntegerDirected::<u64, Up>::apply(value), 2f32.powi(60).next_up());
        assert_eq!(FromIntegerDirected::<i32, TowardZero>::apply(-16_777_217), -16_777_216.0);
        assert_eq!(FromInteger::<u32, f32>::apply(16_777_217), 16_777_216.0);
        assert_eq!(FromIntegerDirected64::<u64, Down>::apply(u64::MAX), 2f64.powi(64).next_down());
        assert_eq!(FromIntegerDirected64::<u64, Up>::apply(u64::MAX - 1023), 2f64.powi(64));
        assert_eq!(FromIntegerDirected64::<i64, Up>::apply(i64::MIN + 1), -(2f64.powi(63).next_down()));
    }

    #[test]
    fn narrow_values_extend_by_their_own_sign() {
        assert_eq!(Narrow::<i8, u32>::apply(0x80), 0xffff_ff80);
        assert_eq!(Narrow::<u8, u32>::apply(0x1ff), 0xff);
        assert_eq!(Resize::<i32, u64>::apply(-1), u64::MAX);
        assert_eq!(Clamp::<i32, u8, u16>::apply(-4), 0);
    }
}
