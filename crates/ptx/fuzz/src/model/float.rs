//! Correctly rounded floating point arithmetic (PTX ISA §9.7.3 to §9.7.5).

use super::{Judge, Model};
use crate::exact::{BF16, Exact, F16, F32, F64, Format, Natural, Rounding, Value};
use crate::kind::Kind;

/// Modifiers of an instruction.
#[derive(Clone, Copy, Default)]
struct Flags {
    rounding: Option<Rounding>,
    flush: bool,
    saturate: bool,
    relu: bool,
    nan: bool,
    xorsign: bool,
}

impl Flags {
    fn parse(words: &[&str]) -> Option<Self> {
        let mut flags = Self::default();
        for word in words {
            match *word {
                "rn" | "rz" | "rm" | "rp" if flags.rounding.is_none() => flags.rounding = Rounding::from_name(word),
                "ftz" => flags.flush = true,
                "sat" => flags.saturate = true,
                "relu" => flags.relu = true,
                "NaN" => flags.nan = true,
                "xorsign" => {}
                "abs" => flags.xorsign = true,
                _ => return None,
            }
        }
        Some(flags)
    }

    /// Flushes and clamps as the modifiers require.
    fn finish(self, format: Format, bits: u64) -> u64 {
        let bits = if self.flush { format.flush(bits) } else { bits };
        if self.saturate {
            saturate(format, bits)
        } else if self.relu && !format.is_nan(bits) && bits & format.sign() != 0 {
            0
        } else {
            bits
        }
    }
}

/// Clamps to [0, 1]. NaN becomes +0.
pub(super) fn saturate(format: Format, bits: u64) -> u64 {
    if format.is_nan(bits) || bits & format.sign() != 0 {
        0
    } else {
        bits.min(format.one())
    }
}

pub(super) fn model(opcode: &str, words: &[&str], kind: Kind, format: Format) -> Option<Model> {
    let flags = Flags::parse(words)?;
    let half = format == F16 || format == BF16;
    let allowed = match opcode {
        _ if format == F64 && (flags.flush || flags.saturate) => false,
        _ if format == BF16 && (flags.flush || flags.saturate) => false,
        "abs" | "neg" | "min" | "max" => flags.rounding.is_none(),
        _ if half => flags.rounding.is_none_or(|rounding| rounding == Rounding::NearestEven),
        _ => true,
    };
    let needs_rounding = matches!(opcode, "fma" | "div" | "rcp" | "sqrt") || opcode == "mad";
    let plain = !flags.nan && !flags.xorsign;
    if !allowed || needs_rounding && flags.rounding.is_none() || flags.relu && !half {
        return None;
    }
    let rounding = flags.rounding.unwrap_or(Rounding::NearestEven);
    let get = move |bits: u64| format.decode(if flags.flush { format.flush(bits) } else { bits });
    let put = move |value: Value| flags.finish(format, format.encode(&value, rounding));
    Some(match opcode {
        "add" if plain && !flags.relu => Model::elementwise(kind, 2, move |i| put(sum(&get(i[0]), &get(i[1]), rounding))),
        "sub" if plain && !flags.relu => Model::elementwise(kind, 2, move |i| put(sum(&get(i[0]), &negate(get(i[1])), rounding))),
        "mul" if plain && !flags.relu => Model::elementwise(kind, 2, move |i| put(product(&get(i[0]), &get(i[1])))),
        "fma" | "mad" if plain && (opcode == "fma" || !half) && !(flags.relu && flags.saturate) => {
            Model::elementwise(kind, 3, move |i| put(sum(&product(&get(i[0]), &get(i[1])), &get(i[2]), rounding)))
        }
        "div" if plain && !half && !flags.saturate => Model::elementwise(kind, 2, move |i| put(quotient(&get(i[0]), &get(i[1])))),
        "rcp" if plain && !half && !flags.saturate => {
            Model::elementwise(kind, 1, move |i| put(quotient(&Value::Finite(Exact::integer(1)), &get(i[0]))))
        }
        "sqrt" if plain && !half && !flags.saturate => Model::elementwise(kind, 1, move |i| put(square_root(&get(i[0])))),
        "abs" if plain && !flags.saturate && !flags.relu => {
            Model::elementwise(kind, 1, move |i| flags.finish(format, i[0]) & !format.sign())
        }
        "neg" if plain && !flags.saturate && !flags.relu => {
            Model::elementwise(kind, 1, move |i| flags.finish(format, i[0]) ^ format.sign())
        }
        "min" | "max" if !flags.saturate && !flags.relu && (format != F64 || plain) => extremum(opcode == "min", flags, kind, format),
        _ => return None,
    })
}

/// `add`, `sub` and `fma` of f32 whose other operands have 16 bits (PTX ISA §9.7.5).
pub(super) fn mixed(opcode: &str, words: &[&str], narrow: Kind) -> Option<Model> {
    let flags = Flags::parse(words)?;
    let (wide, format) = (Kind::from_name("f32")?, narrow.format()?);
    if flags.flush || flags.relu || flags.nan || flags.xorsign || narrow.lanes != 1 || opcode == "fma" && flags.rounding.is_none() {
        return None;
    }
    let rounding = flags.rounding.unwrap_or(Rounding::NearestEven);
    let get = move |bits: u64| format.decode(bits);
    let put = move |value: Value| flags.finish(F32, F32.encode(&value, rounding));
    Some(match opcode {
        "add" => Model::plain(wide, &[narrow, wide], move |i| put(sum(&get(i[0]), &F32.decode(i[1]), rounding))),
        "sub" => Model::plain(wide, &[narrow, wide], move |i| {
            put(sum(&get(i[0]), &negate(F32.decode(i[1])), rounding))
        }),
        "fma" => Model::plain(wide, &[narrow, narrow, wide], move |i| {
            put(sum(&product(&get(i[0]), &get(i[1])), &F32.decode(i[2]), rounding))
        }),
        _ => return None,
    })
}

fn extremum(smaller: bool, flags: Flags, kind: Kind, format: Format) -> Model {
    let mut model = Model::elementwise(kind, 2, move |i| {
        let flush = |bits: u64| if flags.flush { format.flush(bits) } else { bits };
        let (mut a, mut b) = (flush(i[0]), flush(i[1]));
        let sign = (a ^ b) & format.sign();
        if flags.xorsign {
            (a, b) = (a & !format.sign(), b & !format.sign());
        }
        let chosen = match (format.is_nan(a), format.is_nan(b)) {
            (true, true) => return format.canonical_nan(),
            (true, false) | (false, true) if flags.nan => return format.canonical_nan(),
            (true, false) => b,
            (false, true) => a,
            (false, false) => {
                // Order of sign and magnitude, in which -0 precedes +0.
                let order = |bits: u64| {
                    let magnitude = (bits & !format.sign()) as i128;
                    if bits & format.sign() != 0 { -magnitude - 1 } else { magnitude }
                };
                if (order(a) <= order(b)) == smaller { a } else { b }
            }
        };
        if flags.xorsign { chosen | sign } else { chosen }
    });
    // The ISA says "Result is canonical NaN" for .NaN and for two NaN operands.
    if format == F32 || flags.nan {
        model.judge = Judge::AnyNan(format);
    }
    model
}

fn negate(value: Value) -> Value {
    match value {
        Value::Nan => Value::Nan,
        Value::Infinite(negative) => Value::Infinite(!negative),
        Value::Finite(exact) => Value::Finite(Exact {
            negative: !exact.negative,
            ..exact
        }),
    }
}

pub(super) fn sum(a: &Value, b: &Value, rounding: Rounding) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite(left), Value::Infinite(right)) if left != right => Value::Nan,
        (Value::Infinite(negative), _) | (_, Value::Infinite(negative)) => Value::Infinite(*negative),
        (Value::Finite(a), Value::Finite(b)) if a.is_zero() && b.is_zero() && a.negative == b.negative => Value::Finite(a.clone()),
        (Value::Finite(a), Value::Finite(b)) => Value::Finite(a.add(b, rounding)),
    }
}

fn is_negative(value: &Value) -> bool {
    match value {
        Value::Nan => false,
        Value::Infinite(negative) => *negative,
        Value::Finite(exact) => exact.negative,
    }
}

pub(super) fn product(a: &Value, b: &Value) -> Value {
    let negative = is_negative(a) != is_negative(b);
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite(_), Value::Finite(other)) | (Value::Finite(other), Value::Infinite(_)) if other.is_zero() => Value::Nan,
        (Value::Infinite(_), _) | (_, Value::Infinite(_)) => Value::Infinite(negative),
        (Value::Finite(a), Value::Finite(b)) => Value::Finite(a.multiply(b)),
    }
}

pub(super) fn quotient(a: &Value, b: &Value) -> Value {
    let negative = is_negative(a) != is_negative(b);
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) | (Value::Infinite(_), Value::Infinite(_)) => Value::Nan,
        (Value::Infinite(_), _) => Value::Infinite(negative),
        (_, Value::Infinite(_)) => Value::Finite(Exact::new(negative, Natural::ZERO, 0)),
        (Value::Finite(a), Value::Finite(b)) => match (a.is_zero(), b.is_zero()) {
            (true, true) => Value::Nan,
            (false, true) => Value::Infinite(negative),
            (true, false) => Value::Finite(Exact::new(negative, Natural::ZERO, 0)),
            (false, false) => Value::Finite(a.divide(b)),
        },
    }
}

pub(super) fn square_root(value: &Value) -> Value {
    match value {
        Value::Finite(exact) if exact.is_zero() => Value::Finite(exact.clone()),
        Value::Nan | Value::Infinite(true) => Value::Nan,
        Value::Infinite(false) => Value::Infinite(false),
        Value::Finite(exact) if exact.negative => Value::Nan,
        Value::Finite(exact) => Value::Finite(exact.square_root()),
    }
}
