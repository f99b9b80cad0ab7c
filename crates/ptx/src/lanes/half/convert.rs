//! `cvt` to and from f16 and bf16 (PTX ISA §9.7.9.21), and f32 functions on them.

use std::marker::PhantomData;

use super::{Sixteen, pair, relu, to_odd};
use crate::lanes::float::Float;
use crate::lanes::rounding::{Direction, two_sum};
use crate::lanes::{Binary, Unary};

/// f32 function, such as `ex2` or `tanh`, applied to a 16-bit float.
pub(crate) struct Through<H, O>(PhantomData<(H, O)>);
impl<H: Sixteen, O: Unary<A = f32, D = f32>> Unary for Through<H, O> {
    type A = H;
    type D = H;
    #[inline(always)]
    fn apply(a: H) -> H {
        H::nearest(O::apply(a.value()))
    }
}

/// `cvt` to f32.
pub(crate) struct Value<H>(PhantomData<H>);
impl<H: Sixteen> Unary for Value<H> {
    type A = H;
    type D = f32;
    #[inline(always)]
    fn apply(a: H) -> f32 {
        a.value()
    }
}

/// `cvt.{rn,rz}` from f32, with `.relu` and `.satfinite`.
pub(crate) struct From32<H, const ZERO: bool, const RELU: bool, const FINITE: bool>(PhantomData<H>);
impl<H: Sixteen + Float, const ZERO: bool, const RELU: bool, const FINITE: bool> Unary for From32<H, ZERO, RELU, FINITE> {
    type A = f32;
    type D = H;
    #[inline(always)]
    fn apply(a: f32) -> H {
        let rounded = if ZERO { H::toward_zero(a) } else { H::nearest(a) };
        // Infinity becomes the largest finite value of its sign.
        let limited = if FINITE && rounded.bits() & 0x7fff == H::INFINITY {
            H::from_bits(H::LARGEST | rounded.bits() & 0x8000)
        } else {
            rounded
        };
        if RELU { relu(limited) } else { limited }
    }
}

/// `cvt.rn.{f16x2,bf16x2}.f32 d, a, b`, with a in the high half.
pub(crate) struct PairFrom32<O>(PhantomData<O>);
impl<H: Sixteen, O: Unary<A = f32, D = H>> Binary for PairFrom32<O> {
    type A = f32;
    type B = f32;
    type D = u32;
    #[inline(always)]
    fn apply(a: f32, b: f32) -> u32 {
        pair(O::apply(b), O::apply(a))
    }
}

/// `cvt.rn` from f64, which is first rounded to odd.
pub(crate) struct From64<H>(PhantomData<H>);
impl<H: Sixteen> Unary for From64<H> {
    type A = f64;
    type D = H;
    #[inline(always)]
    fn apply(a: f64) -> H {
        H::nearest(to_odd(a, 0.0))
    }
}

/// Rounds an inexact value in the direction `M`.
#[inline(always)]
fn directed<H: Sixteen, M: Direction>(value: f32) -> H {
    let cut = H::toward_zero(value);
    let outwards = cut.value() != value && !value.is_nan() && M::outwards(value.is_sign_negative());
    // Infinity has the bits after those of the largest finite value.
    H::from_bits(cut.bits() + u16::from(outwards))
}

/// `cvt.{rm,rp}` from f32.
pub(crate) struct From32Directed<H, M>(PhantomData<(H, M)>);
impl<H: Sixteen, M: Direction> Unary for From32Directed<H, M> {
    type A = f32;
    type D = H;
    #[inline(always)]
    fn apply(a: f32) -> H {
        directed::<H, M>(a)
    }
}

/// `cvt.{rz,rm,rp}` from f64, which is first rounded to odd.
pub(crate) struct From64Directed<H, M>(PhantomData<(H, M)>);
impl<H: Sixteen, M: Direction> Unary for From64Directed<H, M> {
    type A = f64;
    type D = H;
    #[inline(always)]
    fn apply(a: f64) -> H {
        directed::<H, M>(to_odd(a, 0.0))
    }
}

/// `cvt.{rz,rm,rp}` of an integer.
pub(crate) struct FromIntegerDirected<S, H, M>(PhantomData<(S, H, M)>);

/// `cvt.rn` of an integer. The integer is split into two f64, because f32 would round it.
pub(crate) struct FromInteger<S, H>(PhantomData<(S, H)>);

macro_rules! from_integer {
    ($($source:ty),*) => {$(
        impl<H: Sixteen> Unary for FromInteger<$source, H> {
            type A = $source;
            type D = H;
            #[inline(always)]
            fn apply(a: $source) -> H { H::nearest(integer_to_odd(i128::from(a))) }
        }
        impl<H: Sixteen, M: Direction> Unary for FromIntegerDirected<$source, H, M> {
            type A = $source;
            type D = H;
            #[inline(always)]
            fn apply(a: $source) -> H { directed::<H, M>(integer_to_odd(i128::from(a))) }
        }
    )*};
}

#[inline(always)]
fn integer_to_odd(value: i128) -> f32 {
    let low = value & 0xffff_ffff;
    let (high, low) = two_sum((value - low) as f64, low as f64);
    to_odd(high, low)
}
from_integer!(u16, i16, u32, i32, u64, i64);
