//! Integer arithmetic, logic, shifts and bit operations (PTX ISA §9.7.1, §9.7.8).

use std::marker::PhantomData;

use super::{Binary, Relation, Ternary, Unary};

/// What the integer operations need of `u16`, `i16`, `u32`, `i32`, `u64` and `i64`.
pub(crate) trait Integer: Copy + Ord {
    type Wide: Copy;
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn mul_high(self, other: Self) -> Self;
    fn mul_wide(self, other: Self) -> Self::Wide;
    fn add_wide(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn add_saturating(self, other: Self) -> Self;
    fn sub_saturating(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    /// Shifts clamp: an amount of the width or more gives zero, or the sign (PTX ISA §9.7.8.8, §9.7.8.9).
    fn shl(self, amount: u32) -> Self;
    fn shr(self, amount: u32) -> Self;
    fn count_ones(self) -> u32;
    fn leading_zeros(self) -> u32;
    fn reverse(self) -> Self;
    /// Bit number of the most significant bit that differs from the sign (0 for unsigned), all ones if none.
    fn find(self) -> u32;
    fn extract(self, position: u32, length: u32) -> Self;
}

macro_rules! integer {
    ($type:ty, $unsigned:ty, $wide:ty, $product:ty, $signed:expr) => {
        impl Integer for $type {
            type Wide = $wide;
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn mul_high(self, other: Self) -> Self {
                ((self as $product * other as $product) >> <$type>::BITS) as Self
            }
            #[inline(always)]
            fn mul_wide(self, other: Self) -> $wide {
                (self as $wide).wrapping_mul(other as $wide)
            }
            #[inline(always)]
            fn add_wide(a: $wide, b: $wide) -> $wide {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn add_saturating(self, other: Self) -> Self {
                self.saturating_add(other)
            }
            #[inline(always)]
            fn sub_saturating(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // The ISA leaves division by zero unspecified; GPUs give all ones.
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "shared with the unsigned types")]
            fn abs(self) -> Self {
                if self < 0 { self.wrapping_neg() } else { self }
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn not(self) -> Self {
                !self
            }
            #[inline(always)]
            fn shl(self, amount: u32) -> Self {
                if amount < <$type>::BITS { self << amount } else { 0 }
            }
            #[inline(always)]
            fn shr(self, amount: u32) -> Self {
                let clamped = amount.min(<$type>::BITS - 1);
                if $signed || amount < <$type>::BITS {
                    self >> clamped
                } else {
                    0
                }
            }
            #[inline(always)]
            fn count_ones(self) -> u32 {
                self.count_ones()
            }
            #[inline(always)]
            fn leading_zeros(self) -> u32 {
                self.leading_zeros()
            }
            #[inline(always)]
            fn reverse(self) -> Self {
                self.reverse_bits()
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "shared with the unsigned types")]
            fn find(self) -> u32 {
                let bits = if self < 0 { !self } else { self };
                if bits == 0 {
                    u32::MAX
                } else {
                    <$type>::BITS - 1 - bits.leading_zeros()
                }
            }
            #[inline(always)]
            fn extract(self, position: u32, length: u32) -> Self {
                let (position, length) = (position & 0xff, length & 0xff);
                let bits = self as $unsigned;
                let shifted = if position < <$type>::BITS { bits >> position } else { 0 };
                let kept = if length < <$type>::BITS {
                    shifted & (((1 as $unsigned) << length) - 1)
                } else {
                    shifted
                };
                // The sign bit is the field's top bit, or the value's own top bit where the field sticks out.
                let top = (position + length).wrapping_sub(1).min(<$type>::BITS - 1);
                let negative = $signed && length > 0 && (bits >> top) & 1 != 0;
                // From here up the sign fills.
                let fill = length.min((<$type>::BITS).saturating_sub(position));
                if negative && fill < <$type>::BITS {
                    (kept | ((!0 as $unsigned) << fill)) as Self
                } else {
                    kept as Self
                }
            }
        }
    };
}

integer!(u16, u16, u32, u32, false);
integer!(i16, u16, i32, i32, true);
integer!(u32, u32, u64, u64, false);
integer!(i32, u32, i64, i64, true);
integer!(u64, u64, u128, u128, false);
integer!(i64, u64, i128, i128, true);

macro_rules! unary {
    ($($name:ident: $out:ty = |$a:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Integer> Unary for $name<T> {
            type A = T;
            type D = $out;
            #[inline(always)]
            fn apply($a: T) -> $out { $body }
        }
    )*};
}

unary! {
    Negate: T = |a| a.neg();
    Absolute: T = |a| a.abs();
    Not: T = |a| a.not();
    BooleanNot: T = |a| if a == T::ZERO { T::ZERO.add(T::ZERO.not().neg()) } else { T::ZERO };
    PopulationCount: u32 = |a| a.count_ones();
    LeadingZeros: u32 = |a| a.leading_zeros();
    Reverse: T = |a| a.reverse();
    Find: u32 = |a| a.find();
    FindShift: u32 = |a| { let bit = a.find(); if bit == u32::MAX { bit } else { (8 * size_of::<T>()) as u32 - 1 - bit } };
}

macro_rules! binary {
    ($($name:ident: $out:ty = |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Integer> Binary for $name<T> {
            type A = T;
            type B = T;
            type D = $out;
            #[inline(always)]
            fn apply($a: T, $b: T) -> $out { $body }
        }
    )*};
}

binary! {
    Add: T = |a, b| a.add(b);
    Subtract: T = |a, b| a.sub(b);
    AddSaturating: T = |a, b| a.add_saturating(b);
    SubtractSaturating: T = |a, b| a.sub_saturating(b);
    Multiply: T = |a, b| a.mul(b);
    MultiplyHigh: T = |a, b| a.mul_high(b);
    MultiplyWide: T::Wide = |a, b| a.mul_wide(b);
    Divide: T = |a, b| a.div(b);
    Remainder: T = |a, b| a.rem(b);
    Minimum: T = |a, b| if b < a { b } else { a };
    Maximum: T = |a, b| if b > a { b } else { a };
    And: T = |a, b| a.and(b);
    Or: T = |a, b| a.or(b);
    Xor: T = |a, b| a.xor(b);
}

macro_rules! ternary {
    ($($name:ident: $third:ty => $out:ty = |$a:ident, $b:ident, $c:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Integer> Ternary for $name<T> {
            type A = T;
            type B = T;
            type C = $third;
            type D = $out;
            #[inline(always)]
            fn apply($a: T, $b: T, $c: $third) -> $out { $body }
        }
    )*};
}

ternary! {
    MultiplyAdd: T => T = |a, b, c| a.mul(b).add(c);
    MultiplyAddHigh: T => T = |a, b, c| a.mul_high(b).add(c);
    MultiplyAddWide: T::Wide => T::Wide = |a, b, c| T::add_wide(a.mul_wide(b), c);
    AbsoluteDifferenceAdd: T => T = |a, b, c| c.add(if a < b { b.sub(a) } else { a.sub(b) });
}

/// `shl`, `shr`: the amount is always 32 bits.
pub(crate) struct ShiftLeft<T>(PhantomData<T>);
impl<T: Integer> Binary for ShiftLeft<T> {
    type A = T;
    type B = u32;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: u32) -> T {
        a.shl(b)
    }
}

pub(crate) struct ShiftRight<T>(PhantomData<T>);
impl<T: Integer> Binary for ShiftRight<T> {
    type A = T;
    type B = u32;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: u32) -> T {
        a.shr(b)
    }
}

/// `bfe` (PTX ISA §9.7.1.20).
pub(crate) struct Extract<T>(PhantomData<T>);
impl<T: Integer> Ternary for Extract<T> {
    type A = T;
    type B = u32;
    type C = u32;
    type D = T;
    #[inline(always)]
    fn apply(a: T, b: u32, c: u32) -> T {
        a.extract(b, c)
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

/// `prmt` default mode (PTX ISA §9.7.9.7): four nibbles of c pick bytes of {b, a}; bit 3 replicates the sign.
pub(crate) struct Permute;
impl Ternary for Permute {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, c: u32) -> u32 {
        let pair = u64::from(b) << 32 | u64::from(a);
        let mut result = 0;
        for byte in 0..4 {
            let pick = c >> (4 * byte);
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

/// Integer comparisons (PTX ISA §9.3.1).
macro_rules! relations {
    ($($name:ident $operator:tt;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Integer> Relation for $name<T> {
            type A = T;
            #[inline(always)]
            fn apply(a: T, b: T) -> bool { a $operator b }
        }
    )*};
}

relations! {
    Equal ==;
    NotEqual !=;
    Less <;
    LessOrEqual <=;
    Greater >;
    GreaterOrEqual >=;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_clamp_at_the_width() {
        assert_eq!(1u32.shl(31), 1 << 31);
        assert_eq!(Integer::shl(1u32, 32), 0);
        assert_eq!(Integer::shr(u32::MAX, 40), 0);
        assert_eq!(Integer::shr(-5i32, 40), -1);
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
                    assert_eq!(
                        a.extract(position, length),
                        reference(a, position, length, false),
                        "u {a:x} {position} {length}"
                    );
                    assert_eq!(
                        (a as i32).extract(position, length) as u32,
                        reference(a, position, length, true),
                        "s {a:x} {position} {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn funnel_shift_and_permute() {
        assert_eq!(Funnel::<true, false>::apply(0x1122_3344, 0xaabb_ccdd, 8), 0xbbcc_dd11);
        assert_eq!(Funnel::<false, true>::apply(0x1122_3344, 0xaabb_ccdd, 32), 0xaabb_ccdd);
        assert_eq!(Funnel::<false, false>::apply(0x1122_3344, 0xaabb_ccdd, 32), 0x1122_3344);
        assert_eq!(Permute::apply(0x8322_1100, 0x7766_5544, 0x7b30), 0x77ff_8300);
    }

    #[test]
    fn find_reports_no_bit_as_all_ones() {
        assert_eq!(0u32.find(), u32::MAX);
        assert_eq!((-1i32).find(), u32::MAX);
        assert_eq!(0x10u32.find(), 4);
        assert_eq!(FindShift::<u32>::apply(0x10), 27);
    }
}
