//! `ex2`, `lg2`, `sin`, `cos`, `tanh`, `rsqrt` (PTX ISA §9.7.3.13-21), computed in f64 without branches so that they vectorise and give the
//! same bits on every CPU. The error of each is well within the error that the ISA allows for its `.approx` form.

use super::{Binary, Unary};

macro_rules! single {
    ($($name:ident = $function:expr;)*) => {$(
        pub(crate) struct $name;
        impl Unary for $name {
            type A = f32;
            type D = f32;
            #[inline(always)]
            fn apply(a: f32) -> f32 { $function(a) }
        }
    )*};
}

single! {
    Exponential2 = exponential2;
    Logarithm2 = logarithm2;
    Sine = |a| sine(f64::from(a));
    Cosine = |a| cosine(f64::from(a));
    HyperbolicTangent = hyperbolic_tangent;
    ReciprocalSquareRoot = |a: f32| (1.0 / f64::from(a).sqrt()) as f32;
}

/// `rsqrt.approx.f64`.
pub(crate) struct ReciprocalSquareRoot64;
impl Unary for ReciprocalSquareRoot64 {
    type A = f64;
    type D = f64;
    #[inline(always)]
    fn apply(a: f64) -> f64 {
        1.0 / a.sqrt()
    }
}

/// `rcp.approx.ftz.f64`: subnormal operands and results become zeros.
pub(crate) struct FlushedReciprocal64;
impl Unary for FlushedReciprocal64 {
    type A = f64;
    type D = f64;
    #[inline(always)]
    fn apply(a: f64) -> f64 {
        flush(1.0 / flush(a))
    }
}

/// `rsqrt.approx.ftz.f64`.
pub(crate) struct FlushedReciprocalSquareRoot64;
impl Unary for FlushedReciprocalSquareRoot64 {
    type A = f64;
    type D = f64;
    #[inline(always)]
    fn apply(a: f64) -> f64 {
        1.0 / flush(a).sqrt()
    }
}

#[inline(always)]
fn flush(a: f64) -> f64 {
    if a.abs() < f64::MIN_POSITIVE { a * 0.0 } else { a }
}

/// `div.approx.f32`: for a finite divisor above 2^126 in magnitude, the quotient is 0, or NaN if the dividend is infinite.
pub(crate) struct ApproximateDivide;
impl Binary for ApproximateDivide {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn apply(a: f32, b: f32) -> f32 {
        const LARGE: f32 = f32::from_bits(253 << 23);
        let b = if b.abs() > LARGE && b.abs() < f32::INFINITY {
            b * f32::INFINITY
        } else {
            b
        };
        a / b
    }
}

/// Returns 2 to the power of `fraction` in [−0.5, 0.5]: the Taylor series of e^(x ln 2), with a remainder below 1e-11.
#[inline(always)]
fn power_of_fraction(fraction: f64) -> f64 {
    const C: [f64; 10] = [
        1.0,
        std::f64::consts::LN_2,
        0.240_226_506_959_100_7,
        0.055_504_108_664_821_58,
        0.009_618_129_107_628_477,
        0.001_333_355_814_642_844_3,
        0.000_154_035_303_933_816_1,
        0.000_015_252_733_804_059_84,
        1.321_548_679_014_431e-6,
        1.017_808_600_923_97e-7,
    ];
    let mut sum = C[9];
    let mut index = 9;
    while index > 0 {
        index -= 1;
        sum = sum * fraction + C[index];
    }
    sum
}

/// Adding and subtracting this constant rounds an f64 below 2^51 to the nearest integer.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

#[inline(always)]
fn power_of_two(x: f64) -> f64 {
    // Beyond these limits the result is zero or infinite in f32. NaN passes the comparisons unchanged.
    let x = if x > 1020.0 { 1020.0 } else { x };
    let x = if x < -1020.0 { -1020.0 } else { x };
    let shifted = x + ROUNDER;
    let whole = shifted - ROUNDER;
    let exponent = shifted.to_bits().wrapping_shl(52);
    let fraction = power_of_fraction(x - whole);
    f64::from_bits(fraction.to_bits().wrapping_add(exponent))
}

#[inline(always)]
fn exponential2(a: f32) -> f32 {
    let value = power_of_two(f64::from(a)) as f32;
    if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

#[inline(always)]
fn logarithm2(a: f32) -> f32 {
    let wide = f64::from(a);
    let bits = wide.to_bits();
    // The mantissa is in [√½, √2), because the exponent is relative to √½.
    let offset = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let exponent = (offset as i64 >> 52) as f64;
    let mantissa = f64::from_bits(bits.wrapping_sub(offset & 0xfff0_0000_0000_0000));
    // log(m) = 2 artanh(s), s = (m−1)/(m+1), |s| < 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let q = s * s;
    let series = 1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0)))));
    let value = (exponent + 2.0 * s * series * std::f64::consts::LOG2_E) as f32;
    if a == 0.0 {
        f32::NEG_INFINITY
    } else if a == f32::INFINITY {
        a
    } else if a > 0.0 {
        value
    } else {
        f32::from_bits(0x7fff_ffff)
    }
}

/// Reduces `x` to [−π/4, π/4], and returns the quadrant. π/2 is split into three parts, which is exact enough for every f32 below 2^31 in
/// magnitude.
#[inline(always)]
fn reduce(x: f64) -> (f64, u64) {
    const HALF_PI_HIGH: f64 = f64::from_bits(0x3ff9_21fb_5440_0000);
    const HALF_PI_MIDDLE: f64 = f64::from_bits(0x3dd0_b461_1a60_0000);
    const HALF_PI_LOW: f64 = f64::from_bits(0x3ba3_198a_2e03_7073);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let turns = shifted - ROUNDER;
    (
        ((x - turns * HALF_PI_HIGH) - turns * HALF_PI_MIDDLE) - turns * HALF_PI_LOW,
        shifted.to_bits(),
    )
}

#[inline(always)]
fn sine_series(r: f64) -> f64 {
    let q = r * r;
    r * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * (1.0 / 362_880.0 - q / 39_916_800.0)))))
}

#[inline(always)]
fn cosine_series(r: f64) -> f64 {
    let q = r * r;
    1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * (-1.0 / 720.0 + q * (1.0 / 40_320.0 + q * (-1.0 / 3_628_800.0 + q / 479_001_600.0)))))
}

#[inline(always)]
fn quadrant(x: f64, ahead: u64) -> f32 {
    let (r, turns) = reduce(x);
    let turns = turns.wrapping_add(ahead);
    // Arguments too large to be reduced give some value in the range of the sine. NaN stays NaN.
    let r = r.clamp(-0.8, 0.8);
    let value = if turns & 1 == 0 { sine_series(r) } else { cosine_series(r) };
    let signed = if turns & 2 == 0 { value } else { -value };
    if x.abs() < f64::INFINITY {
        signed as f32
    } else {
        f32::from_bits(0x7fff_ffff)
    }
}

#[inline(always)]
fn sine(x: f64) -> f32 {
    if x == 0.0 { x as f32 } else { quadrant(x, 0) }
}

#[inline(always)]
fn cosine(x: f64) -> f32 {
    quadrant(x, 1)
}

#[inline(always)]
fn hyperbolic_tangent(a: f32) -> f32 {
    // tanh x = 1 − 2 / (e^2x + 1). Small arguments use a series, because the difference would cancel.
    let x = f64::from(a);
    let e = power_of_two(2.0 * x * std::f64::consts::LOG2_E);
    let far = 1.0 - 2.0 / (e + 1.0);
    let q = x * x;
    let near = x * (1.0 + q * (-1.0 / 3.0 + q * (2.0 / 15.0 - q * (17.0 / 315.0))));
    let value = if q < 1e-3 { near } else { far };
    if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { value as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> impl Iterator<Item = f32> {
        // Every 640,448th bit pattern: all exponents, both signs.
        (0..=u32::MAX)
            .step_by(10_007 * 64)
            .map(f32::from_bits)
            .filter(|value| value.is_finite())
    }

    fn worst(values: impl Iterator<Item = f32>, ours: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        values
            .filter(|value| {
                let expected = exact(f64::from(*value)) as f32;
                expected.is_finite() && expected.abs() > f32::MIN_POSITIVE
            })
            .map(|value| {
                let expected = exact(f64::from(value));
                (f64::from(ours(value)) - expected).abs() / expected.abs()
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn relative_errors_stay_within_one_rounding() {
        // 2^-24 is half an ulp. The ISA allows 2^-22 and more.
        let bound = 2f64.powi(-23);
        assert!(worst(samples(), exponential2, f64::exp2) < bound);
        assert!(worst(samples().filter(|a| *a > 0.0), logarithm2, f64::log2) < bound);
        assert!(worst(samples(), hyperbolic_tangent, f64::tanh) < bound);
        assert!(worst(samples().filter(|a| a.abs() < 1e5), |a| sine(f64::from(a)), f64::sin) < bound);
        assert!(worst(samples().filter(|a| a.abs() < 1e5), |a| cosine(f64::from(a)), f64::cos) < bound);
    }

    #[test]
    fn special_values() {
        assert_eq!(exponential2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exponential2(f32::INFINITY), f32::INFINITY);
        assert!(exponential2(f32::NAN).is_nan());
        assert_eq!(exponential2(-140.0), 2f32.powi(-140));
        assert_eq!(exponential2(10.0), 1024.0);
        assert_eq!(logarithm2(0.0), f32::NEG_INFINITY);
        assert!(logarithm2(-1.0).is_nan());
        assert!(logarithm2(f32::NAN).is_nan());
        assert_eq!(logarithm2(f32::INFINITY), f32::INFINITY);
        assert_eq!(logarithm2(f32::from_bits(1)), -149.0);
        assert_eq!(logarithm2(8.0), 3.0);
        assert!(sine(f64::INFINITY).is_nan());
        assert!(sine(-0.0).is_sign_negative());
        assert_eq!(cosine(0.0), 1.0);
        assert_eq!(hyperbolic_tangent(100.0), 1.0);
        assert_eq!(hyperbolic_tangent(-100.0), -1.0);
        assert!(hyperbolic_tangent(f32::NAN).is_nan());
    }
}
