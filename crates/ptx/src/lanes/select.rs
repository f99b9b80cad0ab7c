//! Selection, copies and blending under a mask (PTX ISA §9.7.6 selp, slct; §9.7.9 mov).

use std::marker::PhantomData;

use super::{Binary, LANES, Level, Logic, Ternary, Unary, level};

/// `selp`: the first source where the predicate holds, else the second.
pub(crate) trait Choice {
    type A: Copy;
}

pub(crate) struct Select<T>(PhantomData<T>);

impl<T: Copy> Choice for Select<T> {
    type A = T;
}

pub(crate) struct Copy1<T>(PhantomData<T>);

impl<T: Copy> Unary for Copy1<T> {
    type A = T;
    type D = T;
    #[inline(always)]
    fn apply(a: T) -> T {
        a
    }
}

/// `slct`: a where c ≥ 0, else b. A negative zero counts as zero, NaN selects b (PTX ISA §9.7.6.4).
pub(crate) struct SelectBySign<T, C>(PhantomData<(T, C)>);

impl<T: Copy> Ternary for SelectBySign<T, i32> {
    type A = T;
    type B = T;
    type C = i32;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: T, c: i32) -> T {
        if c >= 0 { a } else { b }
    }
}

impl<T: Copy> Ternary for SelectBySign<T, f32> {
    type A = T;
    type B = T;
    type C = f32;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: T, c: f32) -> T {
        if c >= 0.0 { a } else { b }
    }
}

macro_rules! logic {
    ($($name:ident = |$a:ident, $b:ident, $c:ident| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl Logic for $name {
            #[inline(always)]
            fn apply($a: u64, $b: u64, $c: u64) -> u64 { let _ = ($b, $c); $body }
        }
    )*};
}

logic! {
    PredicateCopy = |a, b, c| a;
    PredicateNot = |a, b, c| !a;
    PredicateAnd = |a, b, c| a & b;
    PredicateOr = |a, b, c| a | b;
    PredicateXor = |a, b, c| a ^ b;
}

/// `mov.b64 d, {a, b}` and similar forms: the first element is the lowest (PTX ISA §9.7.9.4).
pub(crate) struct Pack<H, W>(PhantomData<(H, W)>);

macro_rules! pack {
    ($half:ty, $whole:ty) => {
        impl Binary for Pack<$half, $whole> {
            type A = $half;
            type B = $half;
            type D = $whole;
            #[inline(always)]
            fn apply(a: $half, b: $half) -> $whole {
                <$whole>::from(a) | <$whole>::from(b) << <$half>::BITS
            }
        }
    };
}
pack!(u16, u32);
pack!(u32, u64);

/// Upper half of a value.
pub(crate) struct Upper<H, W>(PhantomData<(H, W)>);

macro_rules! upper {
    ($half:ty, $whole:ty) => {
        impl Unary for Upper<$half, $whole> {
            type A = $whole;
            type D = $half;
            #[inline(always)]
            fn apply(a: $whole) -> $half {
                (a >> <$half>::BITS) as $half
            }
        }
    };
}
upper!(u16, u32);
upper!(u32, u64);

/// Copies the elements of a register for the lanes whose mask word is all ones.
pub(crate) type BlendFunction = unsafe fn(*mut u8, *const u8, *const [i32; LANES]);

#[inline(always)]
unsafe fn blend_body<T: Word>(d: *mut u8, s: *const u8, mask: *const [i32; LANES]) {
    #[inline(always)]
    fn run<T: Word>(d: &mut [T; LANES], s: &[T; LANES], mask: &[i32; LANES]) {
        for lane in 0..LANES {
            d[lane] = T::blend(d[lane], s[lane], mask[lane]);
        }
    }
    // SAFETY: the caller passes registers of 64 aligned elements that do not overlap.
    unsafe { run::<T>(&mut *d.cast(), &*s.cast(), &*mask) }
}

pub(crate) trait Word: Copy {
    fn blend(old: Self, new: Self, mask: i32) -> Self;
}

macro_rules! word {
    ($($type:ty),*) => {$(
        impl Word for $type {
            #[inline(always)]
            fn blend(old: Self, new: Self, mask: i32) -> Self {
                let mask = i64::from(mask) as $type;
                (new & mask) | (old & !mask)
            }
        }
    )*};
}
word!(u16, u32, u64);

/// Returns the blend function for registers of elements `T` on this CPU.
pub(crate) fn blend<T: Word>() -> BlendFunction {
    unsafe fn baseline<T: Word>(d: *mut u8, s: *const u8, mask: *const [i32; LANES]) {
        // SAFETY: guaranteed by the caller, see `blend_body`.
        unsafe { blend_body::<T>(d, s, mask) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn v3<T: Word>(d: *mut u8, s: *const u8, mask: *const [i32; LANES]) {
        // SAFETY: guaranteed by the caller, see `blend_body`.
        unsafe { blend_body::<T>(d, s, mask) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn avx512<T: Word>(d: *mut u8, s: *const u8, mask: *const [i32; LANES]) {
        // SAFETY: guaranteed by the caller, see `blend_body`.
        unsafe { blend_body::<T>(d, s, mask) }
    }
    match level() {
        Level::Baseline => baseline::<T>,
        #[cfg(target_arch = "x86_64")]
        Level::V3 => v3::<T>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::<T>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline::<T>,
    }
}

/// Expands the bits of a mask to words of all ones or zeros.
pub(crate) fn expand(bits: u64, words: &mut [i32; LANES]) {
    for half in 0..2 {
        let bits = (bits >> (32 * half)) as u32;
        for lane in 0..32 {
            words[half * 32 + lane] = -(((bits >> lane) & 1) as i32);
        }
    }
}
