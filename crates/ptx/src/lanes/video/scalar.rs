//! Scalar video instructions (PTX ISA §9.7.18.1): operations on words, or on a byte or half word of each operand, in more than 32 bits.

use std::marker::PhantomData;

use crate::lanes::Ternary;

/// Part of a register: all of it, a byte, or a half word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part(u32);

impl Part {
    pub(crate) const WHOLE: Self = Self(0);

    /// Returns the part of this name, such as `b0` or `h1`.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let names = ["", "b0", "b1", "b2", "b3", "h0", "h1"];
        names
            .iter()
            .skip(1)
            .position(|known| *known == name)
            .map(|index| Self(index as u32 + 1))
    }

    /// Returns the part's position and size in bits.
    #[inline(always)]
    fn bits(self) -> (u32, u32) {
        match self.0 {
            0 => (0, 32),
            byte @ 1..=4 => (8 * (byte - 1), 8),
            half => (16 * (half - 5), 16),
        }
    }
}

/// How an instruction reads and writes its operands, as the third operand of [`Scalar`] and [`Merge`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Parts of d, a and b, and whether they are signed.
    pub(crate) parts: [(Part, bool); 3],
    pub(crate) saturates: bool,
    /// Whether a shift takes its amount modulo 32.
    pub(crate) wraps: bool,
}

impl How {
    pub(crate) fn word(self) -> u32 {
        let parts = self.parts.iter().enumerate();
        let packed = parts.fold(0, |word, (index, (part, signed))| {
            word | (part.0 | u32::from(*signed) << 3) << (4 * index)
        });
        packed | u32::from(self.saturates) << 12 | u32::from(self.wraps) << 13
    }

    #[inline(always)]
    fn of(word: u32) -> Self {
        let part = |index: u32| (Part(word >> (4 * index) & 7), word >> (4 * index) & 8 != 0);
        Self {
            parts: [part(0), part(1), part(2)],
            saturates: word >> 12 & 1 != 0,
            wraps: word >> 13 & 1 != 0,
        }
    }
}

/// Reads a part of a register, extended according to its sign.
#[inline(always)]
pub(crate) fn read(register: u32, (part, signed): (Part, bool)) -> i64 {
    let (position, size) = part.bits();
    let top = register >> position << (32 - size);
    if signed {
        i64::from(top as i32 >> (32 - size))
    } else {
        i64::from(top >> (32 - size))
    }
}

/// Operation on extended operands. `wraps` tells how a shift takes its amount.
pub(crate) trait Operation {
    fn apply(a: i64, b: i64, wraps: bool) -> i128;
}

macro_rules! operations {
    ($($name:ident = |$a:ident, $b:ident, $wraps:ident| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl Operation for $name {
            #[inline(always)]
            fn apply($a: i64, $b: i64, $wraps: bool) -> i128 { $body }
        }
    )*};
}

fn amount(b: i64, wraps: bool) -> u32 {
    let b = b as u32;
    if wraps { b & 31 } else { b.min(32) }
}

operations! {
    Add = |a, b, _wraps| i128::from(a + b);
    Subtract = |a, b, _wraps| i128::from(a - b);
    Difference = |a, b, _wraps| i128::from((a - b).abs());
    Minimum = |a, b, _wraps| i128::from(a.min(b));
    Maximum = |a, b, _wraps| i128::from(a.max(b));
    ShiftLeft = |a, b, wraps| i128::from(a) << amount(b, wraps);
    ShiftRight = |a, b, wraps| i128::from(a) >> amount(b, wraps);
    Equal = |a, b, _wraps| i128::from(a == b);
    NotEqual = |a, b, _wraps| i128::from(a != b);
    Less = |a, b, _wraps| i128::from(a < b);
    LessOrEqual = |a, b, _wraps| i128::from(a <= b);
    Greater = |a, b, _wraps| i128::from(a > b);
    GreaterOrEqual = |a, b, _wraps| i128::from(a >= b);
}

/// Range of a part of the destination.
#[inline(always)]
fn clamp(value: i128, (part, signed): (Part, bool)) -> i128 {
    let (_, size) = part.bits();
    if signed {
        value.clamp(-(1 << (size - 1)), (1 << (size - 1)) - 1)
    } else {
        value.clamp(0, (1 << size) - 1)
    }
}

/// The operation, saturated to the part of the destination if [`How`] says so. The third operand is a [`How`].
pub(crate) struct Scalar<O>(PhantomData<O>);
on_words!(Ternary [O: Operation] Scalar<O> = |a, b, how| {
    let how = How::of(how);
    let value = O::apply(read(a, how.parts[1]), read(b, how.parts[2]), how.wraps);
    (if how.saturates { clamp(value, how.parts[0]) } else { value }) as u32
});

/// Writes the first operand to a part of the second one. The third operand is a [`How`].
pub(crate) struct Merge;
on_words!(Ternary [] Merge = |value, into, how| {
    let (position, size) = How::of(how).parts[0].0.bits();
    let mask = (u32::MAX >> (32 - size)) << position;
    (into & !mask) | (value << position & mask)
});

/// Flags of the third operand of [`Finish`].
pub(crate) const NEGATE_PRODUCT: u32 = 1;
pub(crate) const NEGATE_ADDEND: u32 = 2;
pub(crate) const PLUS_ONE: u32 = 4;
pub(crate) const SATURATE: u32 = 8;
/// The sum is signed.
pub(crate) const SIGNED: u32 = 16;
/// The product is signed.
pub(crate) const SIGNED_PRODUCT: u32 = 32;
/// Position of the shift amount in the third operand of [`Finish`].
pub(crate) const SHIFT: u32 = 8;

/// Product of two parts in 64 bits, for `vmad`. The third operand is a [`How`].
pub(crate) struct Product;
impl Ternary for Product {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u64;
    #[inline(always)]
    fn apply(a: u32, b: u32, how: u32) -> u64 {
        let how = How::of(how);
        (read(a, how.parts[1]) as u64).wrapping_mul(read(b, how.parts[2]) as u64)
    }
}

/// Adds to a product, shifts and saturates the sum, for `vmad`. The third operand has the flags above.
pub(crate) struct Finish;
impl Ternary for Finish {
    type A = u64;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn apply(product: u64, addend: u32, how: u32) -> u32 {
        let has = |flag: u32| how & flag != 0;
        let is_signed = has(SIGNED);
        let mut product = if has(SIGNED_PRODUCT) {
            i128::from(product as i64)
        } else {
            i128::from(product)
        };
        let mut addend = addend;
        let negates = !has(PLUS_ONE) && (has(NEGATE_PRODUCT) || has(NEGATE_ADDEND));
        // The complement and one more is the negative.
        if negates && has(NEGATE_PRODUCT) {
            product = !product;
        } else if negates {
            addend = !addend;
        }
        let addend = if is_signed { i128::from(addend as i32) } else { i128::from(addend) };
        let sum = product + addend + i128::from(has(PLUS_ONE) || negates);
        let result = sum >> (how >> SHIFT & 31);
        let result = if has(SATURATE) {
            clamp(result, (Part::WHOLE, is_signed))
        } else {
            result
        };
        result as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_extended_and_merged() {
        let byte = Part::of("b2").expect("a part");
        assert_eq!((read(0x0080_0000, (byte, true)), read(0x0080_0000, (byte, false))), (-128, 128));
        assert_eq!(read(u32::MAX, (Part::WHOLE, false)), 0xffff_ffff);
        assert!(Part::of("").is_none() && Part::of("b4").is_none());
        let how = How {
            parts: [(byte, true), (Part::WHOLE, true), (Part::WHOLE, false)],
            saturates: true,
            wraps: false,
        };
        assert_eq!(Scalar::<Add>::apply(200, 1, how.word()), 127);
        assert_eq!(Merge::apply(0x127, 0xaabb_ccdd, how.word()), 0xaa27_ccdd);
        assert_eq!(Scalar::<ShiftLeft>::apply(u32::MAX, 40, How { saturates: false, ..how }.word()), 0);
    }

    #[test]
    fn products_are_finished_in_the_order_of_the_isa() {
        assert_eq!(Finish::apply(10, 3, NEGATE_PRODUCT | SIGNED), (-7i32) as u32);
        assert_eq!(Finish::apply(10, 3, NEGATE_ADDEND | SIGNED), 7);
        assert_eq!(Finish::apply(1 << 40, 0, 7 << SHIFT | SATURATE), u32::MAX);
        assert_eq!(Finish::apply(127, 0, PLUS_ONE | 7 << SHIFT), 1);
    }
}
