//! Bits of 32-bit words: funnel shifts, byte permutations, masks, fields and tables (PTX ISA §9.7.1, §9.7.8, §9.7.9.7).

use std::marker::PhantomData;

use super::{Binary, Ternary};

/// `shf.{l,r}.{wrap,clamp}` (PTX ISA §9.7.8.7): shifts the pair {b, a}, in which b is the high half, by c bits.
pub(crate) struct Funnel<const LEFT: bool, const CLAMP: bool>;
on_words!(Ternary [const LEFT: bool, const CLAMP: bool] Funnel<LEFT, CLAMP> = |a, b, c| {
    let amount = if CLAMP { c.min(32) } else { c & 31 };
    let pair = u64::from(b) << 32 | u64::from(a);
    if LEFT {
        ((pair << amount) >> 32) as u32
    } else {
        (pair >> amount) as u32
    }
});

/// Mode of `prmt` (PTX ISA §9.7.9.7), which selects the four bytes of the result.
pub(crate) trait Pick {
    /// Returns the selector of result byte `byte` from the third operand: three bits of byte index, one bit of sign replication.
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
    /// Default mode: each of four nibbles of the control selects a byte.
    Nibbles = |control, byte| (control >> (4 * byte)) & 15;
    Forward4 = |control, byte| ((control & 3) + byte) & 7;
    Backward4 = |control, byte| (control & 3).wrapping_sub(byte) & 7;
    Replicate8 = |control, byte| { let _ = byte; control & 3 };
    EdgeLeft = |control, byte| byte.max(control & 3);
    EdgeRight = |control, byte| byte.min(control & 3);
    Replicate16 = |control, byte| 2 * (control & 1) + (byte & 1);
}

pub(crate) struct Permute<P>(PhantomData<P>);
on_words!(Ternary [P: Pick] Permute<P> = |a, b, c| {
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
});

/// Logic function of two inputs; bit 2a + b of `TABLE` is its value. Two of them make a `lop3` (PTX ISA §9.7.8.6).
pub(crate) struct Boolean<const TABLE: u8>;
on_words!(Binary [const TABLE: u8] Boolean<TABLE> = |a, b| {
    let term = |bit: u8, value: u32| if TABLE >> bit & 1 != 0 { value } else { 0 };
    term(0, !a & !b) | term(1, !a & b) | term(2, a & !b) | term(3, a & b)
});

/// Bits of the second source where the first is set, and of the third elsewhere.
pub(crate) struct BitSelect;
on_words!(Ternary [] BitSelect = |a, b, c| (a & b) | (!a & c));

/// `bmsk` (PTX ISA §9.7.1.25): a mask of b bits from bit a.
pub(crate) struct BitMask<const CLAMP: bool>;
on_words!(Binary [const CLAMP: bool] BitMask<CLAMP> = |a, b| {
    let (position, width) = if CLAMP { (a.min(32), b.min(32)) } else { (a & 31, b & 31) };
    let ones = (1u64 << width) - 1;
    (ones << position) as u32
});

/// `szext` (PTX ISA §9.7.1.22): the low b bits of a, extended by sign or zero.
pub(crate) struct Extend<const SIGNED: bool, const CLAMP: bool>;
on_words!(Binary [const SIGNED: bool, const CLAMP: bool] Extend<SIGNED, CLAMP> = |a, b| {
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
});

/// `fns` (PTX ISA §9.7.1.17): the index of the c-th set bit of `a`, counted from bit b, upwards if c is positive; all ones if there is
/// none.
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
}
