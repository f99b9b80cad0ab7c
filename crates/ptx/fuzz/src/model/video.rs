//! SIMD video instructions (PTX ISA §9.7.18.2) without selections of parts.

use super::Model;
use crate::kind::{Class, Kind};

fn kind(name: &str) -> Option<Kind> {
    matches!(name, "u32" | "s32").then(|| Kind::from_name(name)).flatten()
}

/// Returns the type of one part of a 32-bit type.
fn part(whole: Kind, bits: u32) -> Kind {
    Kind { bits, ..whole }
}

pub(super) fn model(opcode: &str, words: &[&str]) -> Option<Model> {
    let (operation, bits) = match opcode.split_at_checked(opcode.len() - 1)? {
        (operation, "2") => (operation.to_owned(), 16),
        (operation, "4") => (operation.to_owned(), 8),
        _ => return None,
    };
    let unsigned = Kind::from_name("u32")?;
    let ([d, a, b], comparison, rest) = match (operation.as_str(), words) {
        ("vset", [a, b, comparison, rest @ ..]) => ([unsigned, kind(a)?, kind(b)?], *comparison, rest),
        ("vset", _) => return None,
        (_, [d, a, b, rest @ ..]) => ([kind(d)?, kind(a)?, kind(b)?], "", rest),
        _ => return None,
    };
    let (saturates, sums) = match rest {
        [] => (false, false),
        ["sat"] if operation != "vset" => (true, false),
        ["add"] => (false, true),
        _ => return None,
    };
    let one: fn(i128, i128) -> i128 = match (operation.as_str(), comparison) {
        ("vadd", _) => |a, b| a + b,
        ("vsub", _) => |a, b| a - b,
        ("vavrg", _) => |a, b| {
            if a + b >= 0 {
                (a + b + 1).div_euclid(2)
            } else {
                (a + b).div_euclid(2)
            }
        },
        ("vabsdiff", _) => |a, b| (a - b).abs(),
        ("vmin", _) => i128::min,
        ("vmax", _) => i128::max,
        ("vset", "eq") => |a, b| i128::from(a == b),
        ("vset", "ne") => |a, b| i128::from(a != b),
        ("vset", "lt") => |a, b| i128::from(a < b),
        ("vset", "le") => |a, b| i128::from(a <= b),
        ("vset", "gt") => |a, b| i128::from(a > b),
        ("vset", "ge") => |a, b| i128::from(a >= b),
        _ => return None,
    };
    let target = if d.class == Class::Signed { d } else { unsigned };
    Some(Model::plain(Kind::B32, &[a, b, Kind::B32], move |inputs| {
        let (mut merged, mut sum) = (0, i128::from(inputs[2]));
        for place in (0..32).step_by(bits as usize) {
            let result = one(part(a, bits).integer(inputs[0] >> place), part(b, bits).integer(inputs[1] >> place));
            let (low, high) = part(target, bits).range();
            let result = if saturates { result.clamp(low, high) } else { result };
            merged |= part(target, bits).wrap(result) << place;
            sum += result;
        }
        if sums { Kind::B32.wrap(sum) } else { merged }
    }))
}
