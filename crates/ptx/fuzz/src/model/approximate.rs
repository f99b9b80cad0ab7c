//! Approximate functions (PTX ISA §9.7.3). A result is correct within a bound around the true value, which double precision gives far more
//! exactly than any of these bounds.

use super::{Judge, Model};
use crate::exact::{BF16, F16, F32, F64, Format, Rounding};
use crate::kind::Kind;

/// Converts a number to f64, exactly for every format in this module.
fn double(format: Format, bits: u64) -> f64 {
    f64::from_bits(F64.encode(&format.decode(bits), Rounding::NearestEven))
}

fn encode(format: Format, value: f64) -> u64 {
    format.encode(&F64.decode(value.to_bits()), Rounding::NearestEven)
}

/// Maximum distance of a result from the true value.
#[derive(Clone, Copy)]
enum Bound {
    Absolute(f64),
    Relative(f64),
    /// Bound in units of the last place of the true value.
    Ulp(f64),
}

fn ulp(format: Format, value: f64) -> f64 {
    let smallest = 2f64.powi(2 - (1 << (format.exponent - 1)) - format.fraction as i32);
    if value == 0.0 || !value.is_finite() {
        return smallest;
    }
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32) - 1023;
    2f64.powi(exponent - format.fraction as i32).max(smallest)
}

/// Returns the bound that the ISA states for a form at an input.
fn bound(opcode: &str, kind: &str, input: f64, truth: f64) -> Bound {
    match (opcode, kind) {
        ("ex2", "f32") => Bound::Ulp(2.0),
        ("lg2", "f32") if input > 0.5 && input < 2.0 => Bound::Absolute(2f64.powi(-22)),
        ("lg2", "f32") => Bound::Relative(2f64.powi(-22)),
        ("sin" | "cos", "f32") if input.abs() <= 6.3 => Bound::Absolute(2f64.powf(-20.5)),
        ("sin" | "cos", "f32") if input.abs() <= 315.0 => Bound::Absolute(2f64.powf(-14.7)),
        // Outside these ranges, the ISA states only the range of the function.
        ("sin" | "cos", "f32") => Bound::Absolute(1.0 + truth.abs()),
        ("tanh", "f32") => Bound::Relative(2f64.powi(-11)),
        ("ex2", "f16") => Bound::Relative(2f64.powf(-9.9)),
        ("ex2", _) => Bound::Relative(2f64.powi(-7)),
        ("tanh", "f16") => Bound::Absolute(2f64.powf(-10.987)),
        ("tanh", _) => Bound::Absolute(2f64.powi(-8)),
        ("rsqrt", "f32") => Bound::Relative(2f64.powf(-22.9)),
        ("sqrt", _) => Bound::Relative(2f64.powi(-23)),
        ("rcp", "f32") => Bound::Ulp(1.0),
        // For .f64, only the upper 20 bits of the fraction count.
        ("rcp" | "rsqrt", _) => Bound::Relative(2f64.powi(-19)),
        _ => Bound::Ulp(2.0),
    }
}

fn truth(opcode: &str, inputs: [f64; 2]) -> f64 {
    let [a, b] = inputs;
    match opcode {
        "sin" => a.sin(),
        "cos" => a.cos(),
        "ex2" => a.exp2(),
        "lg2" => a.log2(),
        "tanh" => a.tanh(),
        "rsqrt" => 1.0 / a.sqrt(),
        "sqrt" => a.sqrt(),
        "rcp" => 1.0 / a,
        _ => a / b,
    }
}

pub(super) fn model(opcode: &str, words: &[&str], kind: Kind) -> Option<Model> {
    let format = kind.format()?;
    let (mode, flush) = match words {
        [mode @ ("approx" | "full"), _] => (*mode, false),
        [mode @ ("approx" | "full"), "ftz", _] => (*mode, true),
        _ => return None,
    };
    let known = match opcode {
        "sin" | "cos" | "lg2" | "sqrt" | "div" => format == F32,
        "ex2" => format == F32 || format == F16 && !flush || format == BF16 && flush,
        "tanh" => !flush && format != F64,
        "rsqrt" => format == F32 || format == F64,
        _ => format == F32 || format == F64 && flush,
    };
    if !known || mode == "full" && opcode != "div" {
        return None;
    }
    let two = opcode == "div";
    let approximate_division = two && mode == "approx";
    let name = opcode.to_owned();
    // Bounds depend on the names of types; packed types have the bounds of their elements.
    let element = match format {
        F32 => "f32",
        F64 => "f64",
        F16 => "f16",
        _ => "bf16",
    };
    let read = move |bits: u64| double(format, if flush { format.flush(bits) } else { bits });
    let typical = {
        let name = name.clone();
        Model::elementwise(kind, if two { 2 } else { 1 }, move |i| {
            let value = encode(format, truth(&name, [read(i[0]), i.get(1).map_or(0.0, |b| read(*b))]));
            if flush { format.flush(value) } else { value }
        })
    };
    let accept = move |inputs: &[u64], found: u64| {
        (0..kind.lanes).all(|lane| {
            let part = |bits: u64| bits >> (lane * kind.bits) & kind.mask();
            let a = read(part(inputs[0]));
            let b = inputs.get(1).map_or(0.0, |b| read(part(*b)));
            let found = part(found);
            let truth = truth(&name, [a, b]);
            // A divisor above 2^126 gives 0, or NaN if the dividend is infinite.
            if approximate_division && b.abs() > 2f64.powi(126) && b.is_finite() {
                return if a.is_infinite() {
                    format.is_nan(found)
                } else {
                    a.is_nan() && format.is_nan(found) || found & !format.sign() == 0
                };
            }
            // The ISA states no bound of .approx for subnormal divisors and quotients.
            if approximate_division && b != 0.0 && b.abs() < 2f64.powi(-126) {
                return true;
            }
            near(format, flush, truth, bound(&name, element, a, truth), found)
        })
    };
    Some(Model {
        judge: Judge::Within(Box::new(accept)),
        ..typical
    })
}

fn near(format: Format, flush: bool, truth: f64, bound: Bound, found: u64) -> bool {
    if truth.is_nan() {
        return format.is_nan(found);
    }
    if format.is_nan(found) {
        return false;
    }
    let value = double(format, found);
    let allowed = match bound {
        Bound::Absolute(error) => error,
        Bound::Relative(error) => error * truth.abs(),
        Bound::Ulp(count) => count * ulp(format, truth),
    };
    // The bound applies to the value before it is rounded to the format.
    let allowed = allowed
        + if matches!(bound, Bound::Ulp(_)) {
            0.0
        } else {
            ulp(format, truth) * 0.5
        };
    if truth.is_infinite() {
        return value == truth;
    }
    if truth == 0.0 {
        return value == 0.0 && value.is_sign_negative() == truth.is_sign_negative() || value.abs() <= allowed && value != 0.0;
    }
    if flush && truth.abs() < double(format, 1 << format.fraction) * (1.0 + 1e-6) && value == 0.0 {
        return true;
    }
    if value.is_infinite() {
        // An infinite result is correct if the true value is beyond the largest number, or within the bound of it.
        return value.is_sign_negative() == truth.is_sign_negative() && truth.abs() + allowed >= double(format, format.largest());
    }
    if truth.abs() > double(format, format.largest()) {
        return value.abs() == double(format, format.largest()) && truth.abs() - allowed <= value.abs();
    }
    (value - truth).abs() <= allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_reject_results_outside_them() {
        let model = Model::of("ex2.approx.f32").unwrap();
        let one = u64::from(1f32.to_bits());
        assert!(model.accepts(&[one], 0, u64::from(2f32.to_bits()) + 2));
        assert!(!model.accepts(&[one], 0, u64::from(2f32.to_bits()) + 3));
        assert!(!model.accepts(&[one], 0, F32.canonical_nan()));
        let model = Model::of("rcp.approx.f32").unwrap();
        assert!(model.accepts(&[0x8000_0000], 0, 0xff80_0000));
        assert!(!model.accepts(&[0x8000_0000], 0, 0x7f80_0000));
    }
}
