//! tf32 and 8-bit floats (PTX ISA §5.2.3 alternate floating-point formats; §9.7.9.21 cvt).

use std::marker::PhantomData;

use super::half::{Half, NAN, Sixteen};
use super::{Binary, Unary};

/// Rounding of `cvt` to the nearest tf32, ties away from zero (`.rna`). [`Even`] is `.rn`, [`Zero`] is `.rz`.
#[derive(Clone, Copy)]
pub(crate) struct AwayFromZero;
pub(crate) struct Even;
pub(crate) struct Zero;

/// Rounding to tf32, as the addend to the magnitude before its low 13 bits are truncated.
pub(crate) trait Tf32Rounding {
    fn addend(magnitude: u32) -> u32;
}

impl Tf32Rounding for AwayFromZero {
    #[inline(always)]
    fn addend(_: u32) -> u32 {
        0x1000
    }
}
impl Tf32Rounding for Even {
    #[inline(always)]
    fn addend(magnitude: u32) -> u32 {
        0x0fff + (magnitude >> 13 & 1)
    }
}
impl Tf32Rounding for Zero {
    #[inline(always)]
    fn addend(_: u32) -> u32 {
        0
    }
}

/// `cvt.{rna,rn,rz}{.relu}{.satfinite}.tf32.f32`: an f32 with only 10 fraction bits.
pub(crate) struct ToTf32<R, const RELU: bool, const FINITE: bool>(PhantomData<R>);
impl<R: Tf32Rounding, const RELU: bool, const FINITE: bool> Unary for ToTf32<R, RELU, FINITE> {
    type A = u32;
    type D = u32;
    #[inline(always)]
    fn apply(a: u32) -> u32 {
        let (sign, magnitude) = (a & 0x8000_0000, a & 0x7fff_ffff);
        let rounded = magnitude.wrapping_add(R::addend(magnitude)) & !0x1fff;
        let finite = if magnitude >= 0x7f80_0000 { magnitude } else { rounded };
        let limited = if FINITE && finite >= 0x7f80_0000 { 0x7f7f_e000 } else { finite };
        if magnitude > 0x7f80_0000 {
            0x7fff_ffff
        } else if RELU && sign != 0 {
            0
        } else {
            sign | limited
        }
    }
}

/// 8-bit floating point type.
pub(crate) trait Eight {
    const FRACTION: u32;
    const BIAS: i32;
    /// Bits of the largest finite value.
    const LARGEST: u32;
    fn widen(bits: u8) -> Half;
}

pub(crate) struct E4m3;
pub(crate) struct E5m2;

impl Eight for E4m3 {
    const FRACTION: u32 = 3;
    const BIAS: i32 = 7;
    const LARGEST: u32 = 0x7e;
    #[inline(always)]
    fn widen(bits: u8) -> Half {
        let magnitude = u16::from(bits & 0x7f);
        let sign = u16::from(bits & 0x80) << 8;
        // The value times 2^-8 has the same bits in f16. Multiplying by 2^8 gives the value, subnormals included.
        let value = Half(magnitude << 7).value() * 256.0;
        if magnitude == 0x7f {
            Half(NAN)
        } else {
            Half(Half::nearest(value).0 | sign)
        }
    }
}

impl Eight for E5m2 {
    const FRACTION: u32 = 2;
    const BIAS: i32 = 15;
    const LARGEST: u32 = 0x7b;
    #[inline(always)]
    fn widen(bits: u8) -> Half {
        let wide = u16::from(bits) << 8;
        if wide & 0x7fff > 0x7c00 { Half(NAN) } else { Half(wide) }
    }
}

/// Rounds to nearest even. Values beyond the largest finite value become the largest (`.satfinite`), and NaN becomes 0x7f.
#[inline(always)]
fn round<E: Eight, const RELU: bool>(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    let exponent = ((magnitude >> 23) as i32 - 127).max(1 - E::BIAS);
    // The distance between neighbouring values is a power of two, so dividing by it is exact.
    let quantum = f32::from_bits(((127 - exponent + E::FRACTION as i32) as u32) << 23);
    let steps = (f32::from_bits(magnitude) * quantum).round_ties_even() as u32;
    let encoded = (((exponent + E::BIAS - 1) as u32) << E::FRACTION).wrapping_add(steps);
    let large = magnitude >= 0x4f80_0000 || encoded > E::LARGEST;
    let limited = if large { E::LARGEST as u8 } else { encoded as u8 };
    if magnitude > 0x7f80_0000 {
        0x7f
    } else if RELU && sign != 0 {
        0
    } else {
        limited | sign
    }
}

/// `cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32 d, a, b`, with a in the high byte.
pub(crate) struct EightsFrom32<E, const RELU: bool>(PhantomData<E>);
impl<E: Eight, const RELU: bool> Binary for EightsFrom32<E, RELU> {
    type A = f32;
    type B = f32;
    type D = u16;
    #[inline(always)]
    fn apply(a: f32, b: f32) -> u16 {
        u16::from(round::<E, RELU>(a)) << 8 | u16::from(round::<E, RELU>(b))
    }
}

/// `cvt.rn.satfinite.{e4m3x2,e5m2x2}.f16x2`.
pub(crate) struct EightsFromHalves<E, const RELU: bool>(PhantomData<E>);
impl<E: Eight, const RELU: bool> Unary for EightsFromHalves<E, RELU> {
    type A = u32;
    type D = u16;
    #[inline(always)]
    fn apply(a: u32) -> u16 {
        let (low, high) = (Half(a as u16).value(), Half((a >> 16) as u16).value());
        u16::from(round::<E, RELU>(high)) << 8 | u16::from(round::<E, RELU>(low))
    }
}

/// `cvt.rn.f16x2.{e4m3x2,e5m2x2}`, which is exact.
pub(crate) struct HalvesFromEights<E, const RELU: bool>(PhantomData<E>);
impl<E: Eight, const RELU: bool> Unary for HalvesFromEights<E, RELU> {
    type A = u16;
    type D = u32;
    #[inline(always)]
    fn apply(a: u16) -> u32 {
        let half = |bits: u8| {
            let value = E::widen(bits);
            if RELU { super::half::relu(value) } else { value }
        };
        u32::from(half((a >> 8) as u8).0) << 16 | u32::from(half(a as u8).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bits: u8, exponent_bits: i32, bias: i32) -> f64 {
        let fraction_bits = 7 - exponent_bits;
        let exponent = i32::from(bits & 0x7f) >> fraction_bits;
        let fraction = f64::from(i32::from(bits) & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let magnitude = if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        };
        if bits & 0x80 != 0 { -magnitude } else { magnitude }
    }

    fn round_trips<E: Eight>(exponent_bits: i32) {
        let finite = E::LARGEST as u8;
        for bits in 0..=255u8 {
            if bits & 0x7f > finite {
                continue;
            }
            let expected = value(bits, exponent_bits, E::BIAS);
            assert_eq!(f64::from(E::widen(bits).value()), expected, "{bits:x}");
            assert_eq!(round::<E, false>(expected as f32), bits, "{bits:x}");
        }
        for bits in 0..finite {
            let (low, high) = (value(bits, exponent_bits, E::BIAS), value(bits + 1, exponent_bits, E::BIAS));
            let middle = ((low + high) / 2.0) as f32;
            assert_eq!(round::<E, false>(middle), bits + (bits & 1));
            assert_eq!(round::<E, false>(middle.next_up()), bits + 1);
            assert_eq!(round::<E, false>(middle.next_down()), bits);
        }
        assert_eq!(round::<E, false>(f32::INFINITY), finite);
        assert_eq!(round::<E, false>(-1e38), finite | 0x80);
        assert_eq!(round::<E, false>(f32::NAN), 0x7f);
        assert_eq!(round::<E, true>(-3.0), 0);
    }

    #[test]
    fn eight_bit_floats_round_to_nearest_even() {
        round_trips::<E4m3>(4);
        round_trips::<E5m2>(5);
    }

    #[test]
    fn tf32_keeps_ten_bits() {
        let tie = 1.0f32.to_bits() | 0x1000;
        assert_eq!(ToTf32::<AwayFromZero, false, false>::apply(tie), 1.0f32.to_bits() + 0x2000);
        assert_eq!(ToTf32::<Even, false, false>::apply(tie), 1.0f32.to_bits());
        assert_eq!(ToTf32::<Zero, false, false>::apply(tie | 0xfff), 1.0f32.to_bits());
        assert_eq!(ToTf32::<Even, true, false>::apply((-1f32).to_bits()), 0);
        assert_eq!(ToTf32::<Even, false, true>::apply(f32::MAX.to_bits()), 0x7f7f_e000);
    }
}
