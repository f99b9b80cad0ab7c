//! SIMD video instructions (PTX ISA §9.7.18.2): two or four narrow integers in 32 bits.

pub(crate) mod scalar;

use std::marker::PhantomData;

use super::Ternary;

/// Flags in the third operand of [`Video`]: whether the parts of a, b and d are signed, and whether d saturates.
pub(crate) const A_SIGNED: u32 = 1;
pub(crate) const B_SIGNED: u32 = 2;
pub(crate) const D_SIGNED: u32 = 4;
pub(crate) const SATURATES: u32 = 8;
/// Flag in the third operand of [`Video`]: the results of the parts are added up.
pub(crate) const SUMS: u32 = 16;
/// Bit in the third operand of [`Video`] that has the first of the flags which tell whether a part of the result is written or added.
pub(crate) const MASK_AT: u32 = 8;

/// Operation on one pair of parts.
pub(crate) trait Part {
    fn apply(a: i32, b: i32) -> i32;
}

macro_rules! parts {
    ($($name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl Part for $name {
            #[inline(always)]
            fn apply($a: i32, $b: i32) -> i32 { $body }
        }
    )*};
}

parts! {
    Add = |a, b| a + b;
    Subtract = |a, b| a - b;
    // Ties are rounded up, except for negative sums.
    Average = |a, b| (a + b + i32::from(a + b >= 0)) >> 1;
    Difference = |a, b| (a - b).abs();
    Minimum = |a, b| a.min(b);
    Maximum = |a, b| a.max(b);
    Equal = |a, b| i32::from(a == b);
    NotEqual = |a, b| i32::from(a != b);
    Less = |a, b| i32::from(a < b);
    LessOrEqual = |a, b| i32::from(a <= b);
    Greater = |a, b| i32::from(a > b);
    GreaterOrEqual = |a, b| i32::from(a >= b);
}

/// Operation on parts of `BITS` bits. The third operand holds flags.
pub(crate) struct Video<O, const BITS: u32>(PhantomData<O>);

impl<O: Part, const BITS: u32> Ternary for Video<O, BITS> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32, b: u32, how: u32) -> u32 {
        let mask = u32::MAX >> (32 - BITS);
        let (low, high) = if how & D_SIGNED != 0 {
            (-(1 << (BITS - 1)), (1 << (BITS - 1)) - 1)
        } else {
            (0, mask as i32)
        };
        let (mut packed, mut sum) = (0, 0u32);
        for part in 0..32 / BITS {
            if how >> (MASK_AT + part) & 1 == 0 {
                continue;
            }
            let shift = part * BITS;
            let read = |value: u32, signed: bool| {
                let top = (value >> shift & mask) << (32 - BITS);
                if signed {
                    top as i32 >> (32 - BITS)
                } else {
                    (top >> (32 - BITS)) as i32
                }
            };
            let result = O::apply(read(a, how & A_SIGNED != 0), read(b, how & B_SIGNED != 0));
            let result = if how & SATURATES != 0 { result.clamp(low, high) } else { result };
            packed |= (result as u32 & mask) << shift;
            sum = sum.wrapping_add(result as u32);
        }
        if how & SUMS != 0 { sum } else { packed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_written_as_their_types_say() {
        const ALL: u32 = 15 << MASK_AT;
        assert_eq!(Video::<Add, 8>::apply(0xff01_7f80, 0x0101_0180, ALL), 0x0002_8000);
        assert_eq!(Video::<Add, 8>::apply(0xff01_7f80, 0x0101_0180, ALL | SATURATES), 0xff02_80ff);
        assert_eq!(
            Video::<Difference, 8>::apply(0x00ff_0a05, 0xff00_050a, ALL | SUMS),
            255 + 255 + 5 + 5
        );
        let signed = A_SIGNED | B_SIGNED | D_SIGNED;
        assert_eq!(
            Video::<Subtract, 16>::apply(0x8000_0001, 0x0001_0002, ALL | signed | SATURATES),
            0x8000_ffff
        );
        assert_eq!(Video::<Average, 16>::apply(0xffff_0003, 0xfffe_0004, ALL | signed), 0xfffe_0004);
        let lowest = 1 << MASK_AT;
        assert_eq!(Video::<Add, 8>::apply(0x0102_0304, 0x0102_0304, lowest), 8);
        assert_eq!(
            Video::<Add, 8>::apply(0x0102_0304, 0x0102_0304, lowest | 4 << MASK_AT | SUMS),
            8 + 4
        );
        assert_eq!(Video::<Less, 8>::apply(0x80ff_0001, 0x0000_0000, ALL | A_SIGNED), 0x0101_0000);
    }
}
