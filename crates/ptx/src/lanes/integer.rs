//! Integer arithmetic, logic, shifts and bit operations (PTX ISA §9.7.1, §9.7.2, §9.7.8): each is a marker type, made an
//! operation for every integer type by one line below.

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

/// The bit that differs from the sign, highest first; all ones where there is none.
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
            // The ISA leaves division by zero unspecified; GPUs give all ones.
            Divide($t) -> $t = |a, b| if b == 0 { !0 } else { a.wrapping_div(b) };
            Remainder($t) -> $t = |a, b| if b == 0 { a } else { a.wrapping_rem(b) };
            Minimum($t) -> $t = |a, b| if b < a { b } else { a };
            Maximum($t) -> $t = |a, b| if b > a { b } else { a };
            MinimumRelu($t) -> $t = |a, b| { let least = if b < a { b } else { a }; if least < 0 { 0 } else { least } };
            MaximumRelu($t) -> $t = |a, b| { let most = if b > a { b } else { a }; if most < 0 { 0 } else { most } };
            And($t) -> $t = |a, b| a & b;
            Or($t) -> $t = |a, b| a | b;
            Xor($t) -> $t = |a, b| a ^ b;
            // Amounts have 32 bits and clamp: the width or more gives zero, or the sign (§9.7.8.8, §9.7.8.9).
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

/// `bfe` (PTX ISA §9.7.1.20): position and length are bytes, the field may stick out of the value.
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
        // The sign bit is the field's top bit, or the value's own top bit where the field sticks out.
        let top = (position + length).wrapping_sub(1).min($t::BITS - 1);
        let negative = $signed && length > 0 && (bits >> top) & 1 != 0;
        // From here up the sign fills.
        let fill = length.min($t::BITS.saturating_sub(position));
        if negative && fill < $t::BITS {
            (kept | ((!0 as $u) << fill)) as $t
        } else {
            kept as $t
        }
    }};
}

/// Extended precision (PTX ISA §9.7.2): the carry, held as 0 or 1 in 32 bits, in and out.
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

/// The same text serves signed and unsigned types: some comparisons are always false for the latter.
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
impl<const SIGNED: bool, const HIGH: bool> Binary for Multiply24<SIGNED, HIGH> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32) -> u32 {
        let low = |value: u32| {
            if SIGNED {
                i64::from((value << 8) as i32 >> 8)
            } else {
                i64::from(value & 0x00ff_ffff)
            }
        };
        ((low(a) * low(b)) >> if HIGH { 16 } else { 0 }) as u32
    }
}

/// `dp4a` (PTX ISA §9.7.1.23): four byte products and a sum; which operands' bytes are signed.
pub(crate) struct DotProduct4<const A: bool, const B: bool>;
impl<const A: bool, const B: bool> Ternary for DotProduct4<A, B> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        let mut sum = c;
        for byte in 0..4 {
            sum = sum.wrapping_add(byte_of::<A>(a, byte).wrapping_mul(byte_of::<B>(b, byte)) as u32);
        }
        sum
    }
}

/// `dp2a` (PTX ISA §9.7.1.24): two 16-bit values of a with the low or high two bytes of b.
pub(crate) struct DotProduct2<const A: bool, const B: bool, const HIGH: bool>;
impl<const A: bool, const B: bool, const HIGH: bool> Ternary for DotProduct2<A, B, HIGH> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        let mut sum = c;
        for part in 0..2 {
            let half = (a >> (16 * part)) as u16;
            let half = if A { i32::from(half as i16) } else { i32::from(half) };
            sum = sum.wrapping_add(half.wrapping_mul(byte_of::<B>(b, part + if HIGH { 2 } else { 0 })) as u32);
        }
        sum
    }
}

#[inline(always)]
fn byte_of<const SIGNED: bool>(word: u32, byte: u32) -> i32 {
    let value = (word >> (8 * byte)) as u8;
    if SIGNED { i32::from(value as i8) } else { i32::from(value) }
}

/// A 16-bit operation on both halves of 32 bits (`.u16x2`, `.s16x2`).
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

/// How an operation on a 16-bit type applies to both halves.
pub(crate) trait HalvesOf<T> {
    fn both(a: u32, b: u32) -> u32;
}
halves!(u16 i16);

impl<O: Binary + HalvesOf<O::A>> Binary for Halves<O> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32) -> u32 {
        O::both(a, b)
    }
}

/// `shf.{l,r}.{wrap,clamp}` (PTX ISA §9.7.8.7): c bits of the pair {b, a}, b above a.
pub(crate) struct Funnel<const LEFT: bool, const CLAMP: bool>;
impl<const LEFT: bool, const CLAMP: bool> Ternary for Funnel<LEFT, CLAMP> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        let amount = if CLAMP { c.min(32) } else { c & 31 };
        let pair = u64::from(b) << 32 | u64::from(a);
        if LEFT {
            ((pair << amount) >> 32) as u32
        } else {
            (pair >> amount) as u32
        }
    }
}

/// How `prmt` (PTX ISA §9.7.9.7) chooses the four bytes of its result.
pub(crate) trait Pick {
    /// The selector of result byte `byte` from the third operand: three bits of place, one of sign replication.
    fn pick(control: u32, byte: u32) -> u32;
}

macro_rules! picks {
    ($($(#[$attribute:meta])* $name:ident = |$control:ident, $byte:ident| $body:expr;)*) => {$(
        $(#[$attribute])*
        pub(crate) struct $name;
        impl Pick for $name {
            #[inline(always)]
            fn pick($control: u32, $byte: u32) -> u32 { $body }
        }
    )*};
}
picks! {
    /// Four nibbles of the control.
    Nibbles = |control, byte| (control >> (4 * byte)) & 15;
    Forward4 = |control, byte| ((control & 3) + byte) & 7;
    Backward4 = |control, byte| (control & 3).wrapping_sub(byte) & 7;
    Replicate8 = |control, byte| { let _ = byte; control & 3 };
    EdgeLeft = |control, byte| byte.max(control & 3);
    EdgeRight = |control, byte| byte.min(control & 3);
    Replicate16 = |control, byte| 2 * (control & 1) + (byte & 1);
}

pub(crate) struct Permute<P>(PhantomData<P>);
impl<P: Pick> Ternary for Permute<P> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        let pair = u64::from(b) << 32 | u64::from(a);
        let mut result = 0;
        for byte in 0..4 {
            let pick = P::pick(c, byte);
            let value = (pair >> (8 * (pick & 7))) as u32 & 0xff;
            let value = if pick & 8 != 0 {
                if value & 0x80 != 0 { 0xff } else { 0 }
            } else {
                value
            };
            result |= value << (8 * byte);
        }
        result
    }
}

/// A logic function of two inputs; bit 2a + b of `TABLE` is its value (halves of `lop3`, PTX ISA §9.7.8.6).
pub(crate) struct Boolean<const TABLE: u8>;
impl<const TABLE: u8> Binary for Boolean<TABLE> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32) -> u32 {
        let term = |bit: u8, value: u32| if TABLE >> bit & 1 != 0 { value } else { 0 };
        term(0, !a & !b) | term(1, !a & b) | term(2, a & !b) | term(3, a & b)
    }
}

/// The second source where a bit of the first is set, else the third.
pub(crate) struct BitSelect;
impl Ternary for BitSelect {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        (a & b) | (!a & c)
    }
}

/// `bmsk` (PTX ISA §9.7.1.25): a mask of b bits from bit a.
pub(crate) struct BitMask<const CLAMP: bool>;
impl<const CLAMP: bool> Binary for BitMask<CLAMP> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32) -> u32 {
        let (position, width) = if CLAMP { (a.min(32), b.min(32)) } else { (a & 31, b & 31) };
        let ones = (1u64 << width) - 1;
        (ones << position) as u32
    }
}

/// `szext` (PTX ISA §9.7.1.22): the low b bits of a, extended by sign or zero.
pub(crate) struct Extend<const SIGNED: bool, const CLAMP: bool>;
impl<const SIGNED: bool, const CLAMP: bool> Binary for Extend<SIGNED, CLAMP> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32) -> u32 {
        let bits = if CLAMP { b.min(32) } else { b & 31 };
        let spare = 32 - bits;
        let high = u64::from(a) << spare & 0xffff_ffff;
        if bits == 0 {
            0
        } else if SIGNED {
            (i64::from(high as u32 as i32) >> spare) as u32
        } else {
            (high >> spare) as u32
        }
    }
}

/// `fns` (PTX ISA §9.7.1.17): the c-th set bit of a counted from bit b, upwards where c is positive; all ones if none.
pub(crate) struct FindNthSet;
impl Ternary for FindNthSet {
    type A = u32;
    type B = u32;
    type C = i32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: i32) -> u32 {
        let base = b as i64;
        if c == 0 {
            return if base < 32 && a >> base & 1 != 0 { b } else { u32::MAX };
        }
        let step = if c > 0 { 1 } else { -1 };
        let mut left = c.unsigned_abs();
        let mut found = u32::MAX;
        let mut position = base;
        for _ in 0..32 {
            if (0..32).contains(&position) && a >> position & 1 != 0 && left > 0 {
                left -= 1;
                if left == 0 {
                    found = position as u32;
                }
            }
            position += step;
        }
        found
    }
}

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
            // PTX ISA 9.7.1.20, literally.
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
    fn funnel_shift_and_permute() {
        assert_eq!(Funnel::<true, false>::apply(0x1122_3344, 0xaabb_ccdd, 8), 0xbbcc_dd11);
        assert_eq!(Funnel::<false, true>::apply(0x1122_3344, 0xaabb_ccdd, 32), 0xaabb_ccdd);
        assert_eq!(Funnel::<false, false>::apply(0x1122_3344, 0xaabb_ccdd, 32), 0x1122_3344);
        let permute = Permute::<Nibbles>::apply;
        assert_eq!(permute(0x8322_1100, 0x7766_5544, 0x7b30), 0x7700_8300 | 0xff_0000);
        assert_eq!(Permute::<Forward4>::apply(0x3322_1100, 0x7766_5544, 1), 0x4433_2211);
        assert_eq!(Permute::<Backward4>::apply(0x3322_1100, 0x7766_5544, 1), 0x6677_0011);
        assert_eq!(Permute::<EdgeLeft>::apply(0x3322_1100, 0, 2), 0x3322_2222);
        assert_eq!(Permute::<EdgeRight>::apply(0x3322_1100, 0, 2), 0x2222_1100);
        assert_eq!(Permute::<Replicate16>::apply(0x3322_1100, 0, 1), 0x3322_3322);
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
