//! Functions over the 64 lanes of a group. Each applies one operation to all lanes, without a mask and without branches.
//!
//! Every operation is a type that implements [`Unary`], [`Binary`], [`Ternary`] or [`Relation`]. The loops in this module are compiled for
//! the baseline CPU, for x86-64-v3 and for AVX-512; the level is selected once, when a module is loaded. The caller discards the results of
//! lanes that are not active. An operation must therefore be total (no fault for any bits).

#![allow(clippy::needless_range_loop, reason = "several arrays are walked lane by lane")]

/// Implements an operation on 32-bit words, given the trait, generic parameters, the type and the computation.
macro_rules! on_words {
    (Binary [$($generics:tt)*] $type:ty = |$a:ident, $b:ident| $body:expr) => {
        impl<$($generics)*> Binary for $type {
            type A = u32;
            type B = u32;
            type D = u32;
            #[inline(always)]
            fn apply($a: u32, $b: u32) -> u32 { $body }
        }
    };
    (Ternary [$($generics:tt)*] $type:ty = |$a:ident, $b:ident, $c:ident| $body:expr) => {
        impl<$($generics)*> Ternary for $type {
            type A = u32;
            type B = u32;
            type C = u32;
            type D = u32;
            #[inline(always)]
            fn apply($a: u32, $b: u32, $c: u32) -> u32 { $body }
        }
    };
}

pub(crate) mod bits;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod memory;
pub(crate) mod narrow;
pub(crate) mod pair;
pub(crate) mod rounding;
pub(crate) mod select;
pub(crate) mod transcendental;
pub(crate) mod video;

use std::sync::OnceLock;

use select::Choice;

/// Lanes in a group: two warps of 32.
pub(crate) const LANES: usize = 64;

/// Applies an operation to all lanes. The pointers are the destination and up to three sources.
///
/// Safety: every pointer that the operation uses must be aligned to 64 bytes (8 for predicates) and cover 64 elements of its type (one
/// `u64` for predicates); the destination must not overlap a source.
pub(crate) type LaneFunction = unsafe fn(*mut u8, *const u8, *const u8, *const u8);

/// Operation with one operand and one result.
pub(crate) trait Unary {
    type A: Copy;
    type D: Copy;
    fn apply(a: Self::A) -> Self::D;
}

/// Operation with two operands and one result.
pub(crate) trait Binary {
    type A: Copy;
    type B: Copy;
    type D: Copy;
    fn apply(a: Self::A, b: Self::B) -> Self::D;
}

/// Operation with three operands and one result.
pub(crate) trait Ternary {
    type A: Copy;
    type B: Copy;
    type C: Copy;
    type D: Copy;
    fn apply(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// Operation with two operands whose result is a predicate.
pub(crate) trait Relation {
    type A: Copy;
    fn apply(a: Self::A, b: Self::A) -> bool;
}

/// Operation on predicates, 64 lanes at a time.
pub(crate) trait Logic {
    fn apply(a: u64, b: u64, c: u64) -> u64;
}

/// Instruction set that the loops over lanes are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// Instructions that every CPU of the architecture has.
    Baseline,
    /// x86-64-v3: AVX2, FMA, BMI.
    V3,
    /// AVX-512 F, BW, DQ, CD and VL.
    Avx512,
}

pub(crate) use InstructionSet as Level;

static LIMIT: OnceLock<Level> = OnceLock::new();
static LEVEL: OnceLock<Level> = OnceLock::new();

/// Returns the instruction set that modules are compiled for: the best one of this CPU, unless it was limited.
pub fn instruction_set() -> InstructionSet {
    *LEVEL.get_or_init(|| detect(LIMIT.get().copied().unwrap_or(Level::Avx512)))
}

/// Limits the instruction set of this process, for measurements and tests. Only the first call has an effect, and only before the first
/// module is loaded. Returns whether the limit took effect.
pub fn limit_instruction_set(limit: InstructionSet) -> bool {
    LIMIT.set(limit).is_ok() && instruction_set() <= limit
}

pub(crate) use instruction_set as level;

#[cfg(target_arch = "x86_64")]
fn detect(limit: Level) -> Level {
    let v3 = std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("popcnt");
    let avx512 = v3
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512cd")
        && std::arch::is_x86_feature_detected!("avx512vl");
    match limit {
        Level::Avx512 if avx512 => Level::Avx512,
        Level::Avx512 | Level::V3 if v3 => Level::V3,
        _ => Level::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect(_: Level) -> Level {
    Level::Baseline
}

/// Defines `$name::<O>() -> LaneFunction`, which returns `$body` compiled for the CPU's level.
macro_rules! leveled {
    ($name:ident, $bound:ident, $body:ident) => {
        /// The lane function of one operation for this CPU.
        pub(crate) fn $name<O: $bound>() -> LaneFunction {
            unsafe fn baseline<O: $bound>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
                // SAFETY: guaranteed by the contract of `LaneFunction`.
                unsafe { $body::<O, 0>(d, a, b, c) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            unsafe fn v3<O: $bound>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
                // SAFETY: guaranteed by the contract of `LaneFunction`.
                unsafe { $body::<O, 1>(d, a, b, c) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512cd,avx512vl")]
            unsafe fn avx512<O: $bound>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
                // SAFETY: guaranteed by the contract of `LaneFunction`.
                unsafe { $body::<O, 2>(d, a, b, c) }
            }
            match level() {
                Level::Baseline => baseline::<O>,
                #[cfg(target_arch = "x86_64")]
                Level::V3 => v3::<O>,
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::<O>,
                #[cfg(not(target_arch = "x86_64"))]
                _ => baseline::<O>,
            }
        }
    };
}

leveled!(unary, Unary, unary_body);
leveled!(binary, Binary, binary_body);
leveled!(ternary, Ternary, ternary_body);
leveled!(relation, Relation, relation_body);
leveled!(logic, Logic, logic_body);
leveled!(select, Choice, select_body);

#[inline(always)]
unsafe fn unary_body<O: Unary, const LEVEL: u8>(d: *mut u8, a: *const u8, _: *const u8, _: *const u8) {
    #[inline(always)]
    fn run<O: Unary>(d: &mut [O::D; LANES], a: &[O::A; LANES]) {
        for lane in 0..LANES {
            d[lane] = O::apply(a[lane]);
        }
    }
    // SAFETY: guaranteed by the contract of `LaneFunction`: aligned, long enough, destination apart from the sources.
    unsafe { run::<O>(&mut *d.cast(), &*a.cast()) }
}

#[inline(always)]
unsafe fn binary_body<O: Binary, const LEVEL: u8>(d: *mut u8, a: *const u8, b: *const u8, _: *const u8) {
    #[inline(always)]
    fn run<O: Binary>(d: &mut [O::D; LANES], a: &[O::A; LANES], b: &[O::B; LANES]) {
        for lane in 0..LANES {
            d[lane] = O::apply(a[lane], b[lane]);
        }
    }
    // SAFETY: guaranteed by the contract of `LaneFunction`.
    unsafe { run::<O>(&mut *d.cast(), &*a.cast(), &*b.cast()) }
}

#[inline(always)]
unsafe fn ternary_body<O: Ternary, const LEVEL: u8>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
    #[inline(always)]
    fn run<O: Ternary>(d: &mut [O::D; LANES], a: &[O::A; LANES], b: &[O::B; LANES], c: &[O::C; LANES]) {
        for lane in 0..LANES {
            d[lane] = O::apply(a[lane], b[lane], c[lane]);
        }
    }
    // SAFETY: guaranteed by the contract of `LaneFunction`.
    unsafe { run::<O>(&mut *d.cast(), &*a.cast(), &*b.cast(), &*c.cast()) }
}

#[inline(always)]
unsafe fn relation_body<O: Relation, const LEVEL: u8>(d: *mut u8, a: *const u8, b: *const u8, _: *const u8) {
    #[inline(always)]
    fn run<O: Relation, const LEVEL: u8>(a: &[O::A; LANES], b: &[O::A; LANES]) -> u64 {
        let mut bits = 0u64;
        for chunk in 0..LANES / 16 {
            let mut lanes = [0i32; 16];
            for lane in 0..16 {
                lanes[lane] = -i32::from(O::apply(a[chunk * 16 + lane], b[chunk * 16 + lane]));
            }
            bits |= u64::from(sign_bits::<LEVEL>(&lanes)) << (chunk * 16);
        }
        bits
    }
    // SAFETY: guaranteed by the contract of `LaneFunction`; a predicate is one u64.
    unsafe { *d.cast::<u64>() = run::<O, LEVEL>(&*a.cast(), &*b.cast()) }
}

/// Returns the sign bits of 16 words; that of the first word is the lowest bit.
#[inline(always)]
pub(crate) fn sign_bits<const LEVEL: u8>(lanes: &[i32; 16]) -> u16 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, __m256i, _mm_castsi128_ps, _mm_loadu_si128, _mm_movemask_ps};
        use std::arch::x86_64::{_mm256_castsi256_ps, _mm256_loadu_si256, _mm256_movemask_ps, _mm512_loadu_si512, _mm512_movepi32_mask};
        match LEVEL {
            // SAFETY: only instantiated inside functions that enable the features; 64 bytes are readable.
            2 => unsafe { _mm512_movepi32_mask(_mm512_loadu_si512(lanes.as_ptr().cast())) },
            // SAFETY: only instantiated inside functions that enable the features; 64 bytes are readable.
            1 => unsafe {
                let low = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_loadu_si256(lanes.as_ptr().cast::<__m256i>())));
                let high = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_loadu_si256(lanes.as_ptr().add(8).cast::<__m256i>())));
                (low | high << 8) as u16
            },
            // SAFETY: SSE2 is part of x86-64; 64 bytes are readable.
            _ => unsafe {
                let mut bits = 0;
                for quarter in 0..4 {
                    let part = _mm_loadu_si128(lanes.as_ptr().add(4 * quarter).cast::<__m128i>());
                    bits |= _mm_movemask_ps(_mm_castsi128_ps(part)) << (4 * quarter);
                }
                bits as u16
            },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        lanes
            .iter()
            .enumerate()
            .fold(0, |bits, (lane, word)| bits | ((*word < 0) as u16) << lane)
    }
}

#[inline(always)]
unsafe fn logic_body<O: Logic, const LEVEL: u8>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
    // SAFETY: guaranteed by the contract of `LaneFunction`; predicates are one u64 each, unused sources are readable all the same.
    unsafe { *d.cast::<u64>() = O::apply(*a.cast(), *b.cast(), *c.cast()) }
}

#[inline(always)]
unsafe fn select_body<O: Choice, const LEVEL: u8>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8) {
    #[inline(always)]
    fn run<O: Choice>(d: &mut [O::A; LANES], a: &[O::A; LANES], b: &[O::A; LANES], bits: u64) {
        for half in 0..2 {
            let bits = (bits >> (32 * half)) as u32;
            for lane in 0..32 {
                let at = half * 32 + lane;
                d[at] = if (bits >> lane) & 1 != 0 { a[at] } else { b[at] };
            }
        }
    }
    // SAFETY: guaranteed by the contract of `LaneFunction`; the third source is a predicate.
    unsafe { run::<O>(&mut *d.cast(), &*a.cast(), &*b.cast(), *c.cast::<u64>()) }
}
