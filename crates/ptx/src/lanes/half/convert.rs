//! `cvt` to and from f16 and bf16 (PTX ISA §9.7.9.21), and f32 functions on them.

use std::marker::PhantomData;

use super::{Sixteen, pair, relu, to_odd};
use crate::lanes::float::Float;
use crate::lanes::rounding::{Direction, TowardZero, two_sum};
use crate::lanes::{Binary, Unary};

/// An f32 function on a 16-bit float: `ex2`, `tanh`.
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

/// `cvt.{rn,rz}` from f32, with `.relu`, `.satfinite` and `.sat`.
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

/// `cvt.rn.{f16x2,bf16x2}.f32 d, a, b`: a above b.
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

/// `cvt.rn` from f64: to odd first.
pub(crate) struct From64<H>(PhantomData<H>);
impl<H: Sixteen> Unary for From64<H> {
    type A = f64;
    type D = H;
    #[inline(always)]
    fn apply(a: f64) -> H {
        H::nearest(to_odd(a, 0.0))
    }
}

/// An integer to a 16-bit float; f64 holds what f32 would round, rounded to odd above 2^53.
pub(crate) struct FromInteger<S, H, const ZERO: bool>(PhantomData<(S, H)>);
macro_rules! from_integer {
    ($($source:ty),*) => {$(
        impl<H: Sixteen, const ZERO: bool> Unary for FromInteger<$source, H, ZERO> {
            type A = $source;
            type D = H;
            #[inline(always)]
            fn apply(a: $source) -> H {
                let value = i128::from(a);
                let low = value & 0xffff_ffff;
                let (high, low) = two_sum((value - low) as f64, low as f64);
                if ZERO { H::toward_zero(TowardZero::round(high, low)) } else { H::nearest(to_odd(high, low)) }
            }
        }
    )*};
}
from_integer!(u16, i16, u32, i32, u64, i64);
