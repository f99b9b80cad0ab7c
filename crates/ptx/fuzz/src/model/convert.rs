//! `cvt` (PTX ISA §9.7.9.21).

use super::float::saturate;
use super::{Judge, Model};
use crate::exact::{BF16, Exact, F16, F32, F64, Format, Rounding, TF32, Value};
use crate::kind::{Class, Kind};

/// 8-bit floating point format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Small {
    E4m3,
    E5m2,
}

/// Modifiers of a `cvt`.
#[derive(Clone, Copy, Default)]
struct Modifiers {
    rounding: Option<Rounding>,
    /// Rounding to an integer.
    integral: Option<Rounding>,
    flush: bool,
    sat: bool,
    satfinite: bool,
    relu: bool,
}

impl Modifiers {
    fn parse(words: &[&str]) -> Option<Self> {
        let mut found = Self::default();
        for word in words {
            match *word {
                "rn" | "rz" | "rm" | "rp" | "rna" => found.rounding = Rounding::from_name(word),
                "rni" | "rzi" | "rmi" | "rpi" => found.integral = Rounding::from_name(word),
                "ftz" => found.flush = true,
                "sat" => found.sat = true,
                "satfinite" => found.satfinite = true,
                "relu" => found.relu = true,
                _ => return None,
            }
        }
        Some(found)
    }
}

pub(super) fn model(words: &[&str]) -> Option<Model> {
    let [flags @ .., to, from] = words else { return None };
    let modifiers = Modifiers::parse(flags)?;
    let Modifiers {
        rounding,
        integral,
        flush,
        sat,
        satfinite,
        relu,
    } = modifiers;
    if let Some(small) = small(to) {
        return to_small(small, from, rounding, satfinite, relu);
    }
    if let Some(small) = small(from) {
        return (*to == "f16x2" && rounding == Some(Rounding::NearestEven)).then(|| from_small(small, relu));
    }
    if *to == "tf32" {
        return to_tf32(from, rounding?, relu, satfinite);
    }
    let (to, from) = (Kind::from_name(to)?, Kind::from_name(from)?);
    if to.lanes == 2 {
        return packed(to, from, rounding?, relu, satfinite);
    }
    if satfinite
        || from.lanes == 2
        || matches!(to.class, Class::Bits | Class::Predicate)
        || matches!(from.class, Class::Bits | Class::Predicate)
    {
        return None;
    }
    let brain = [to, from].iter().any(|kind| kind.format() == Some(BF16));
    if brain && (sat || to.bits == 8 || from.bits == 8) {
        return None;
    }
    let single = |kind: Kind| kind.format() == Some(F32);
    if flush && !(single(to) || single(from)) {
        return None;
    }
    match (from.format(), to.format()) {
        // `.sat` does not exist if every source value fits in the target type.
        (None, None) if sat && to.range().0 <= from.range().0 && to.range().1 >= from.range().1 => None,
        (None, None) if rounding.is_none() && integral.is_none() && !relu => Some(Model::plain(to, &[from], move |i| {
            let value = from.integer(i[0]);
            let (low, high) = to.range();
            to.wrap(if sat { value.clamp(low, high) } else { value })
        })),
        (None, Some(format)) if integral.is_none() && !relu => {
            let rounding = rounding?;
            Some(Model::plain(to, &[from], move |i| {
                let bits = format.encode(&Value::Finite(Exact::integer(from.integer(i[0]))), rounding);
                let bits = if flush { format.flush(bits) } else { bits };
                if sat { saturate(format, bits) } else { bits }
            }))
        }
        (Some(format), None) if rounding.is_none() && !relu => {
            let rounding = integral?;
            Some(Model::plain(to, &[from], move |i| {
                let bits = if flush { format.flush(i[0]) } else { i[0] };
                to_integer(format, bits, to, rounding)
            }))
        }
        (Some(source), Some(target)) => between(&modifiers, (from, source), (to, target)),
        _ => None,
    }
}

/// Converts between floating point formats.
fn between(modifiers: &Modifiers, (from, source): (Kind, Format), (to, target): (Kind, Format)) -> Option<Model> {
    let Modifiers {
        rounding,
        integral,
        flush,
        sat,
        relu,
        ..
    } = *modifiers;
    let brain = source == BF16 || target == BF16;
    let widens = target.bits() > source.bits();
    let mode = if source == target {
        if rounding.is_some() {
            return None;
        }
        None
    } else if widens {
        if rounding.is_some() || integral.is_some() {
            return None;
        }
        None
    } else {
        if integral.is_some() {
            return None;
        }
        Some(rounding?)
    };
    if relu && !(matches!(to.bits, 16) && source == F32) || brain && flush {
        return None;
    }
    if source.bits() == target.bits() && source != target {
        // Conversions between f16 and bf16 require a newer version of the ISA than the engine supports.
        return None;
    }
    let mut model = Model::plain(to, &[from], move |i| {
        let bits = if flush && source == F32 { source.flush(i[0]) } else { i[0] };
        if integral.is_none() && source == target && !sat {
            return bits;
        }
        let value = match (source.decode(bits), integral) {
            (Value::Finite(exact), Some(rounding)) => Value::Finite(exact.to_integral(rounding)),
            (value, _) => value,
        };
        let bits = target.encode(&value, mode.unwrap_or(Rounding::NearestEven));
        let bits = if flush && target == F32 { target.flush(bits) } else { bits };
        if sat {
            saturate(target, bits)
        } else if relu {
            rectified(target, bits)
        } else {
            bits
        }
    });
    model.judge = Judge::AnyNan(target);
    Some(model)
}

/// Negative numbers become +0, and NaN becomes the canonical one.
fn rectified(format: Format, bits: u64) -> u64 {
    if format.is_nan(bits) {
        format.canonical_nan()
    } else if bits & format.sign() != 0 {
        0
    } else {
        bits
    }
}

/// Converts to an integer. Numbers out of range become the nearest one in range. NaN becomes 0, or the highest bit alone if the source is
/// `.f64` or the target has 64 bits.
fn to_integer(format: Format, bits: u64, to: Kind, rounding: Rounding) -> u64 {
    let (low, high) = to.range();
    match format.decode(bits) {
        Value::Nan if format == F64 || to.bits == 64 => 1 << (to.bits - 1),
        Value::Nan => 0,
        Value::Infinite(negative) => to.wrap(if negative { low } else { high }),
        Value::Finite(exact) => to.wrap(exact.to_integral(rounding).clamp((low, high))),
    }
}

/// `cvt.rn.f16x2.f32 d, a, b`, with a in the upper half.
fn packed(to: Kind, from: Kind, rounding: Rounding, relu: bool, satfinite: bool) -> Option<Model> {
    let format = to.format()?;
    if from.format() != Some(F32) || satfinite || !matches!(rounding, Rounding::NearestEven | Rounding::Zero) {
        return None;
    }
    Some(Model::plain(to, &[from; 2], move |i| {
        let half = |bits: u64| {
            let bits = format.encode(&F32.decode(bits), rounding);
            if relu { rectified(format, bits) } else { bits }
        };
        half(i[0]) << 16 | half(i[1])
    }))
}

fn to_tf32(from: &str, rounding: Rounding, relu: bool, satfinite: bool) -> Option<Model> {
    let kind = Kind::from_name(from)?;
    if kind.format() != Some(F32) || satfinite || rounding == Rounding::NearestAway && relu {
        return None;
    }
    if !matches!(rounding, Rounding::NearestAway | Rounding::NearestEven | Rounding::Zero) {
        return None;
    }
    // The ISA does not specify the 13 lowest bits of the register. Hardware leaves them zero, and so must the engine.
    let mut model = Model::plain(Kind::B32, &[kind], move |i| {
        let bits = TF32.encode(&F32.decode(i[0]), rounding);
        (if relu { rectified(TF32, bits) } else { bits }) << 13
    });
    model.judge = Judge::Within(Box::new(move |i, found| {
        let value = F32.decode(i[0]);
        let bits = TF32.encode(&value, rounding);
        match value {
            Value::Nan => F32.is_nan(found),
            _ => found == (if relu { rectified(TF32, bits) } else { bits }) << 13,
        }
    }));
    Some(model)
}

fn small(name: &str) -> Option<Small> {
    match name {
        "e4m3x2" => Some(Small::E4m3),
        "e5m2x2" => Some(Small::E5m2),
        _ => None,
    }
}

const B16: Kind = Kind {
    class: Class::Bits,
    bits: 16,
    lanes: 1,
};

pub(super) fn decode_small(small: Small, bits: u64) -> Value {
    let (exponent_bits, fraction_bits, bias) = match small {
        Small::E4m3 => (4, 3, 7i64),
        Small::E5m2 => (5, 2, 15),
    };
    let negative = bits & 0x80 != 0;
    let field = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    let fraction = bits & ((1 << fraction_bits) - 1);
    match small {
        Small::E4m3 if bits & 0x7f == 0x7f => return Value::Nan,
        Small::E5m2 if field == 31 => return if fraction == 0 { Value::Infinite(negative) } else { Value::Nan },
        _ => {}
    }
    let (magnitude, field) = if field == 0 {
        (fraction, 1)
    } else {
        (fraction | 1 << fraction_bits, field)
    };
    Value::Finite(Exact::new(negative, magnitude.into(), field as i64 - bias - fraction_bits as i64))
}

/// Returns the nearest 8-bit number, saturating, with ties to even. Tries all of them.
fn encode_small(small: Small, value: &Value, relu: bool) -> u64 {
    let (negative, exact) = match value {
        Value::Nan => return 0x7f,
        Value::Infinite(negative) => (*negative, None),
        Value::Finite(exact) => (exact.negative, Some(exact)),
    };
    if relu && negative {
        return 0;
    }
    let largest = if small == Small::E4m3 { 0x7e } else { 0x7b };
    let sign = if negative { 0x80 } else { 0 };
    let Some(exact) = exact else { return sign | largest };
    // Every input is a binary32 or binary16, and so is every candidate: double precision compares them exactly.
    let target = f64::from_bits(F64.encode(
        &Value::Finite(Exact {
            negative: false,
            ..exact.clone()
        }),
        Rounding::NearestEven,
    ));
    let number = |bits: u64| f64::from_bits(F64.encode(&decode_small(small, bits), Rounding::NearestEven));
    if target >= number(largest) {
        return sign | largest;
    }
    let mut best = 0;
    for candidate in 0..=largest {
        let (distance, record) = ((number(candidate) - target).abs(), (number(best) - target).abs());
        if distance < record || distance == record && candidate % 2 == 0 {
            best = candidate;
        }
    }
    sign | best
}

fn to_small(small: Small, from: &str, rounding: Option<Rounding>, satfinite: bool, relu: bool) -> Option<Model> {
    if rounding != Some(Rounding::NearestEven) || !satfinite {
        return None;
    }
    let source = Kind::from_name(from)?;
    match from {
        "f32" => Some(Model::plain(B16, &[source; 2], move |i| {
            encode_small(small, &F32.decode(i[0]), relu) << 8 | encode_small(small, &F32.decode(i[1]), relu)
        })),
        "f16x2" => Some(Model::plain(B16, &[source], move |i| {
            encode_small(small, &F16.decode(i[0] >> 16), relu) << 8 | encode_small(small, &F16.decode(i[0] & 0xffff), relu)
        })),
        _ => None,
    }
}

fn from_small(small: Small, relu: bool) -> Model {
    let kind = Kind {
        class: Class::Float(F16),
        bits: 16,
        lanes: 2,
    };
    Model::plain(kind, &[B16], move |i| {
        let half = |bits: u64| {
            let bits = F16.encode(&decode_small(small, bits), Rounding::NearestEven);
            if relu { rectified(F16, bits) } else { bits }
        };
        half(i[0] >> 8 & 0xff) << 16 | half(i[0] & 0xff)
    })
}
