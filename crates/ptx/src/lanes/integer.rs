//! Integer arithmetic, logic and shifts (PTX ISA §9.7.1, §9.7.2, §9.7.8). Each operation is a marker type, implemented for every integer
//! type by one line below. Dot products and operations on pairs of 16 bits follow.

use std::marker::PhantomData;

use super::{Binary, Relation, Ternary, Unary};

macro_rules! markers {
    ($($name:ident)*) => {$(pub(crate) struct $name<T>(PhantomData<T>);)*};
}
markers! {
    Negate Absolute Not BooleanNot PopulationCount LeadingZeros Reverse Find FindShift
    Add Subtract AddSaturating SubtractSaturating Multiply MultiplyHigh MultiplyWide Divide Remainder
    Minimum Maximum MinimumRelu MaximumRelu And Or Xor ShiftLeft ShiftRight
    MultiplyAdd MultiplyAddHigh MultiplyAddWide MultiplyAddHighSaturating AbsoluteDifferenceAdd Extract
    AddCarry CarryOut SubtractBorrow BorrowOut
    Equal NotEqual Less LessOrEqual Greater GreaterOrEqual
}

macro_rules! unary {
    ($t:ident: $($name:ident -> $d:ty = |$a:ident| $body:expr;)*) => {$(
        impl Unary for $name<$t> {
            type A = $t;
            type D = $d;
            #[inline(always)]
            fn apply($a: $t) -> $d { $body }
        }
    )*};
}

macro_rules! binary {
    ($t:ident: $($name:ident($b_type:ty) -> $d:ty = |$a:ident, $b:ident| $body:expr;)*) => {$(
        impl Binary for $name<$t> {
            type A = $t;
            type B = $b_type;
            type D = $d;
            #[inline(always)]
            fn apply($a: $t, $b: $b_type) -> $d { $body }
        }
    )*};
}

macro_rules! ternary {
    ($t:ident: $($name:ident($b_type:ty, $c_type:ty) -> $d:ty = |$a:ident, $b:ident, $c:ident| $body:expr;)*) => {$(
        impl Ternary for $name<$t> {
            type A = $t;
            type B = $b_type;
            type C = $c_type;
            type D = $d;
            #[inline(always)]
            fn apply($a: $t, $b: $b_type, $c: $c_type) -> $d { $body }
        }
    )*};
}

/// Integer comparisons (PTX ISA §9.3.1).
macro_rules! relations {
    ($t:ident: $($name:ident $operator:tt;)*) => {$(
        impl Relation for $name<$t> {
            type A = $t;
            #[inline(always)]
            fn apply(a: $t, b: $t) -> bool { a $operator b }
        }
    )*};
}

/// Index of the highest bit that differs from the sign bit; all ones if there is none.
macro_rules! find {
    ($t:ident, $a:expr) => {{
        let bits = if $a < 0 { !$a } else { $a };
        if bits == 0 { u32::MAX } else { $t::BITS - 1 - bits.leading_zeros() }
    }};
}

macro_rules! integer {
    ($t:ident, bits $u:ident, twice $wide:ident, signed $signed:literal) => {
        unary! { $t:
            Negate -> $t = |a| a.wrapping_neg();
            Absolute -> $t = |a| if a < 0 { a.wrapping_neg() } else { a };
            Not -> $t = |a| !a;
            BooleanNot -> $t = |a| $t::from(a == 0);
            PopulationCount -> u32 = |a| a.count_ones();
            LeadingZeros -> u32 = |a| a.leading_zeros();
            Reverse -> $t = |a| a.reverse_bits();
            Find -> u32 = |a| find!($t, a);
            FindShift -> u32 = |a| { let bit = find!($t, a); if bit == u32::MAX { bit } else { $t::BITS - 1 - bit } };
        }
        binary! { $t:
            Add($t) -> $t = |a, b| a.wrapping_add(b);
            Subtract($t) -> $t = |a, b| a.wrapping_sub(b);
            AddSaturating($t) -> $t = |a, b| a.saturating_add(b);
            SubtractSaturating($t) -> $t = |a, b| a.saturating_sub(b);
            Multiply($t) -> $t = |a, b| a.wrapping_mul(b);
            MultiplyHigh($t) -> $t = |a, b| ((a as $wide * b as $wide) >> $t::BITS) as $t;
            MultiplyWide($t) -> $wide = |a, b| (a as $wide).wrapping_mul(b as $wide);
            // The ISA leaves division by zero unspecified. GPUs return all ones.
            Divide($t) -> $t = |a, b| if b == 0 { !0 } else { a.wrapping_div(b) };
            Remainder($t) -> $t = |a, b| if b == 0 { a } else { a.wrapping_rem(b) };
            Minimum($t) -> $t = |a, b| if b < a { b } else { a };
            Maximum($t) -> $t = |a, b| if b > a { b } else { a };
            MinimumRelu($t) -> $t = |a, b| { let least = if b < a { b } else { a }; if least < 0 { 0 } else { least } };
            MaximumRelu($t) -> $t = |a, b| { let most = if b > a { b } else { a }; if most < 0 { 0 } else { most } };
            And($t) -> $t = |a, b| a & b;
            Or($t) -> $t = |a, b| a | b;
            Xor($t) -> $t = |a, b| a ^ b;
            // Shift amounts have 32 bits and clamp: an amount of at least the width gives zero, or the sign (§9.7.8.8, §9.7.8.9).
            ShiftLeft(u32) -> $t = |a, b| if b < $t::BITS { a << b } else { 0 };
            ShiftRight(u32) -> $t = |a, b| if $signed || b < $t::BITS { a >> b.min($t::BITS - 1) } else { 0 };
        }
        ternary! { $t:
            MultiplyAdd($t, $t) -> $t = |a, b, c| a.wrapping_mul(b).wrapping_add(c);
            MultiplyAddHigh($t, $t) -> $t = |a, b, c| (((a as $wide * b as $wide) >> $t::BITS) as $t).wrapping_add(c);
            MultiplyAddHighSaturating($t, $t) -> $t = |a, b, c| (((a as $wide * b as $wide) >> $t::BITS) as $t).saturating_add(c);
            MultiplyAddWide($t, $wide) -> $wide = |a, b, c| (a as $wide).wrapping_mul(b as $wide).wrapping_add(c);
            AbsoluteDifferenceAdd($t, $t) -> $t = |a, b, c| c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) });
            Extract(u32, u32) -> $t = |a, b, c| extract!($t, $u, $signed, a, b, c);
        }
        relations! { $t: Equal ==; NotEqual !=; Less <; LessOrEqual <=; Greater >; GreaterOrEqual >=; }
    };
}

/// `bfe` (PTX ISA §9.7.1.20). Position and length are bytes, and the field may extend beyond the value.
macro_rules! extract {
    ($t:ident, $u:ident, $signed:literal, $a:expr, $position:expr, $length:expr) => {{
        let (position, length) = ($position & 0xff, $length & 0xff);
        let bits = $a as $u;
        let shifted = if position < $t::BITS { bits >> position } else { 0 };
        let kept = if length < $t::BITS {
            shifted & (((1 as $u) << length) - 1)
        } else {
            shifted
        };
        // The sign bit is the top bit of the field, or of the value if the field extends beyond it.
        let top = (position + length).wrapping_sub(1).min($t::BITS - 1);
        let negative = $signed && length > 0 && (bits >> top) & 1 != 0;
        // The sign fills the bits from this index up.
        let fill = length.min($t::BITS.saturating_sub(position));
        if negative && fill < $t::BITS {
            (kept | ((!0 as $u) << fill)) as $t
        } else {
            kept as $t
        }
    }};
}

/// Extended precision (PTX ISA §9.7.2): carry in and carry out, held as 0 or 1 in 32 bits.
macro_rules! carries {
    ($t:ident) => {
        ternary! { $t:
            AddCarry($t, u32) -> $t = |a, b, c| a.wrapping_add(b).wrapping_add($t::from(c));
            CarryOut($t, u32) -> u32 = |a, b, c| {
                let sum = a.wrapping_add(b);
                u32::from(sum < a) | u32::from(sum.wrapping_add($t::from(c)) < sum)
            };
            SubtractBorrow($t, u32) -> $t = |a, b, c| a.wrapping_add(!b).wrapping_add($t::from(c));
            BorrowOut($t, u32) -> u32 = |a, b, c| {
                let sum = a.wrapping_add(!b);
                u32::from(sum < a) | u32::from(sum.wrapping_add($t::from(c)) < sum)
            };
        }
    };
}

/// The same macros serve signed and unsigned types, so some comparisons are always false for unsigned ones.
#[allow(
    unused_comparisons,
    clippy::absurd_extreme_comparisons,
    clippy::cast_lossless,
    reason = "shared with unsigned types"
)]
mod operations {
    use super::*;

    integer!(u16, bits u16, twice u32, signed false);
    integer!(i16, bits u16, twice i32, signed true);
    integer!(u32, bits u32, twice u64, signed false);
    integer!(i32, bits u32, twice i64, signed true);
    integer!(u64, bits u64, twice u128, signed false);
    integer!(i64, bits u64, twice i128, signed true);
}
carries!(u32);
carries!(u64);

/// `mul24` and the product of `mad24` (PTX ISA §9.7.1.5, §9.7.1.6): bits 31..0, or 47..16 where `HIGH`.
pub(crate) struct Multiply24<const SIGNED: bool, const HIGH: bool>;
on_words!(Binary [const SIGNED: bool, const HIGH: bool] Multiply24<SIGNED, HIGH> = |a, b| {
    let low = |value: u32| {
        if SIGNED {
            i64::from((value << 8) as i32 >> 8)
        } else {
            i64::from(value & 0x00ff_ffff)
        }
    };
    ((low(a) * low(b)) >> if HIGH { 16 } else { 0 }) as u32
});

/// `dp4a` (PTX ISA §9.7.1.23): the sum of four byte products. `A` and `B` tell whether the bytes of an operand are signed.
pub(crate) struct DotProduct4<const A: bool, const B: bool>;
on_words!(Ternary [const A: bool, const B: bool] DotProduct4<A, B> = |a, b, c| {
    let mut sum = c;
    for byte in 0..4 {
        sum = sum.wrapping_add(byte_of::<A>(a, byte).wrapping_mul(byte_of::<B>(b, byte)) as u32);
    }
    sum
});

/// `dp2a` (PTX ISA §9.7.1.24): the sum of two 16-bit values of a times the low or high two bytes of b.
pub(crate) struct DotProduct2<const A: bool, const B: bool, const HIGH: bool>;
on_words!(Ternary [const A: bool, const B: bool, const HIGH: bool] DotProduct2<A, B, HIGH> = |a, b, c| {
    let mut sum = c;
    for part in 0..2 {
        let half = (a >> (16 * part)) as u16;
        let half = if A { i32::from(half as i16) } else { i32::from(half) };
        sum = sum.wrapping_add(half.wrapping_mul(byte_of::<B>(b, part + if HIGH { 2 } else { 0 })) as u32);
    }
    sum
});

#[inline(always)]
fn byte_of<const SIGNED: bool>(word: u32, byte: u32) -> i32 {
    let value = (word >> (8 * byte)) as u8;
    if SIGNED { i32::from(value as i8) } else { i32::from(value) }
}

/// 16-bit operation on both halves of 32 bits (`.u16x2`, `.s16x2`).
pub(crate) struct Halves<O>(PhantomData<O>);

macro_rules! halves {
    ($($half:ident)*) => {$(
        impl<O: Binary<A = $half, B = $half, D = $half>> HalvesOf<$half> for O {
            #[inline(always)]
            fn both(a: u32, b: u32) -> u32 {
                let low = O::apply(a as $half, b as $half) as u16;
                let high = O::apply((a >> 16) as $half, (b >> 16) as $half) as u16;
                u32::from(high) << 16 | u32::from(low)
            }
        }
    )*};
}

/// Application of an operation on a 16-bit type to both halves.
pub(crate) trait HalvesOf<T> {
    fn both(a: u32, b: u32) -> u32;
}
halves!(u16 i16);

on_words!(Binary [O: Binary + HalvesOf<O::A>] Halves<O> = |a, b| O::both(a, b));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_clamp_at_the_width() {
        assert_eq!(ShiftLeft::<u32>::apply(1, 31), 1 << 31);
        assert_eq!(ShiftLeft::<u32>::apply(1, 32), 0);
        assert_eq!(ShiftRight::<u32>::apply(u32::MAX, 40), 0);
        assert_eq!(ShiftRight::<i32>::apply(-5, 40), -1);
    }

    #[test]
    fn bit_fields_follow_the_isa() {
        let reference = |a: u32, position: u32, length: u32, signed: bool| -> u32 {
            // Literal transcription of PTX ISA 9.7.1.20.
            let (position, length) = (position & 0xff, length & 0xff);
            let sign = if !signed || length == 0 {
                0
            } else {
                (a >> (position + length - 1).min(31)) & 1
            };
            let mut d = if sign == 1 { u32::MAX } else { 0 };
            for bit in 0..32 {
                let value = if bit < length && position + bit <= 31 {
                    (a >> (position + bit)) & 1
                } else {
                    sign
                };
                d = (d & !(1 << bit)) | value << bit;
            }
            d
        };
        for a in [0, 1, 0x8000_0000, 0xdead_beef, 0x7fff_ffff, u32::MAX] {
            for position in [0, 1, 7, 31, 32, 200, 255] {
                for length in [0, 1, 8, 31, 32, 33, 255] {
                    let unsigned = Extract::<u32>::apply(a, position, length);
                    assert_eq!(unsigned, reference(a, position, length, false), "u {a:x} {position} {length}");
                    let signed = Extract::<i32>::apply(a as i32, position, length) as u32;
                    assert_eq!(signed, reference(a, position, length, true), "s {a:x} {position} {length}");
                }
            }
        }
    }

    #[test]
    fn find_reports_no_bit_as_all_ones() {
        assert_eq!(Find::<u32>::apply(0), u32::MAX);
        assert_eq!(Find::<i32>::apply(-1), u32::MAX);
        assert_eq!(Find::<u32>::apply(0x10), 4);
        assert_eq!(FindShift::<u32>::apply(0x10), 27);
    }

    #[test]
    fn carries_follow_wide_arithmetic() {
        for a in [0, 1, u32::MAX, 0x8000_0000, 7] {
            for b in [0, 1, u32::MAX, 0x8000_0000, 9] {
                for c in [0, 1] {
                    let wide = u64::from(a) + u64::from(b) + u64::from(c);
                    assert_eq!(AddCarry::<u32>::apply(a, b, c), wide as u32);
                    assert_eq!(CarryOut::<u32>::apply(a, b, c), (wide >> 32) as u32);
                    let wide = i64::from(a) - i64::from(b) - i64::from(1 - c);
                    assert_eq!(SubtractBorrow::<u32>::apply(a, b, c), wide as u32);
                    assert_eq!(BorrowOut::<u32>::apply(a, b, c), u32::from(wide >= 0));
                }
            }
        }
    }

    #[test]
    fn dot_products_extend_as_written() {
        assert_eq!(DotProduct4::<true, true>::apply(0xff02_0304, 0x0101_0101, 10), 10 - 1 + 2 + 3 + 4);
        assert_eq!(DotProduct4::<false, true>::apply(0xff00_0000, 0xff00_0000, 0), (-255i32) as u32);
        assert_eq!(
            DotProduct2::<true, false, true>::apply(0xffff_0002, 0x0503_0000, 1),
            2u32.wrapping_mul(3).wrapping_sub(5) + 1
        );
        assert_eq!(Multiply24::<true, false>::apply(0x00ff_ffff, 5), (-5i32) as u32);
        assert_eq!(
            Multiply24::<false, true>::apply(0x00ff_ffff, 0x00ff_ffff),
            ((0xff_ffffu64 * 0xff_ffff) >> 16) as u32
        );
    }
}
