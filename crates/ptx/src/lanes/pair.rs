//! Operations on two f32 in 64 bits (`.f32x2`, PTX ISA §9.7.3).

use std::marker::PhantomData;

use super::{Binary, Ternary};

/// Operation on f32, applied to both halves.
pub(crate) struct Pair<O>(PhantomData<O>);

#[inline(always)]
fn halves(pair: u64) -> [f32; 2] {
    [f32::from_bits(pair as u32), f32::from_bits((pair >> 32) as u32)]
}

#[inline(always)]
fn joined(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

impl<O: Binary<A = f32, B = f32, D = f32>> Binary for Pair<O> {
    type A = u64;
    type B = u64;
    type D = u64;
    #[inline(always)]
    fn apply(a: u64, b: u64) -> u64 {
        let ([a, c], [b, d]) = (halves(a), halves(b));
        joined(O::apply(a, b), O::apply(c, d))
    }
}

impl<O: Ternary<A = f32, B = f32, C = f32, D = f32>> Ternary for Pair<O> {
    type A = u64;
    type B = u64;
    type C = u64;
    type D = u64;
    #[inline(always)]
    fn apply(a: u64, b: u64, c: u64) -> u64 {
        let ([a, d], [b, e], [c, f]) = (halves(a), halves(b), halves(c));
        joined(O::apply(a, b, c), O::apply(d, e, f))
    }
}
