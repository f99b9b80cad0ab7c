//! Integer arithmetic (PTX ISA §9.7.1) and arithmetic with carry (§9.7.2), computed in 128 bits.

use super::{Model, Outcome};
use crate::kind::{Class, Kind};

/// Returns the type of twice the width.
fn double(kind: Kind) -> Kind {
    Kind {
        bits: kind.bits * 2,
        ..kind
    }
}

pub(super) fn model(opcode: &str, words: &[&str], kind: Kind) -> Option<Model> {
    if kind.bits == 8 {
        return None;
    }
    if words.contains(&"cc") || opcode.ends_with('c') && !words.contains(&"sat") && opcode != "sad" {
        return carrying(opcode, words, kind);
    }
    let read = move |bits: u64| kind.integer(bits);
    if kind.lanes == 2 {
        return packed(opcode, words, kind);
    }
    match (opcode, words) {
        ("add", []) => Some(Model::plain(kind, &[kind; 2], move |i| kind.wrap(read(i[0]) + read(i[1])))),
        ("sub", []) => Some(Model::plain(kind, &[kind; 2], move |i| kind.wrap(read(i[0]) - read(i[1])))),
        ("add" | "sub", ["sat"]) if kind.is_signed() && kind.bits == 32 => {
            let sign = if opcode == "add" { 1 } else { -1 };
            let (low, high) = kind.range();
            Some(Model::plain(kind, &[kind; 2], move |i| {
                kind.wrap((read(i[0]) + sign * read(i[1])).clamp(low, high))
            }))
        }
        ("mul", ["lo"]) => Some(Model::plain(kind, &[kind; 2], move |i| kind.wrap(product(kind, i[0], i[1]).0))),
        ("mul", ["hi"]) => Some(Model::plain(kind, &[kind; 2], move |i| kind.wrap(product(kind, i[0], i[1]).1))),
        ("mul", ["wide"]) if kind.bits < 64 => {
            let wide = double(kind);
            Some(Model::plain(wide, &[kind; 2], move |i| wide.wrap(read(i[0]) * read(i[1]))))
        }
        ("mad", ["lo"]) => Some(Model::plain(kind, &[kind; 3], move |i| {
            kind.wrap(product(kind, i[0], i[1]).0.wrapping_add(read(i[2])))
        })),
        ("mad", ["hi"]) => Some(Model::plain(kind, &[kind; 3], move |i| {
            kind.wrap(product(kind, i[0], i[1]).1 + read(i[2]))
        })),
        ("mad", ["hi", "sat"]) if kind.is_signed() && kind.bits == 32 => Some(Model::plain(kind, &[kind; 3], move |i| {
            let (low, high) = kind.range();
            kind.wrap((product(kind, i[0], i[1]).1 + read(i[2])).clamp(low, high))
        })),
        ("mad", ["wide"]) if kind.bits < 64 => {
            let wide = double(kind);
            Some(Model::plain(wide, &[kind, kind, wide], move |i| {
                wide.wrap(read(i[0]) * read(i[1]) + wide.integer(i[2]))
            }))
        }
        ("mul24" | "mad24", [part, saturating @ ..]) if kind.bits == 32 => {
            let shift = match *part {
                "lo" => 0,
                "hi" => 16,
                _ => return None,
            };
            let saturate = saturating == ["sat"];
            if !(saturating.is_empty() || saturate && opcode == "mad24" && kind.is_signed() && shift == 16) {
                return None;
            }
            let narrow = Kind { bits: 24, ..kind };
            let add = opcode == "mad24";
            Some(Model::plain(kind, &[kind; 3][..if add { 3 } else { 2 }], move |i| {
                let product = (narrow.integer(i[0]) * narrow.integer(i[1])) >> shift;
                // Bits 47 to 16, or 31 to 0, of the 48-bit product.
                let part = kind.integer(kind.wrap(product));
                let sum = part + if add { read(i[2]) } else { 0 };
                let (low, high) = kind.range();
                kind.wrap(if saturate { sum.clamp(low, high) } else { sum })
            }))
        }
        ("sad", []) => Some(Model::plain(kind, &[kind; 3], move |i| {
            kind.wrap((read(i[0]) - read(i[1])).abs() + read(i[2]))
        })),
        ("div" | "rem", []) => {
            let remainder = opcode == "rem";
            let mut model = Model::plain(kind, &[kind; 2], move |i| {
                let (a, b) = (read(i[0]), read(i[1]));
                // The result of a division by zero depends on the machine.
                kind.wrap(if b == 0 {
                    0
                } else if remainder {
                    a % b
                } else {
                    a / b
                })
            });
            model.nonzero = Some(1);
            Some(model)
        }
        ("abs", []) if kind.is_signed() => Some(Model::plain(kind, &[kind], move |i| kind.wrap(read(i[0]).abs()))),
        ("neg", []) if kind.is_signed() => Some(Model::plain(kind, &[kind], move |i| kind.wrap(-read(i[0])))),
        ("min", []) => Some(Model::plain(kind, &[kind; 2], move |i| kind.wrap(read(i[0]).min(read(i[1]))))),
        ("max", []) => Some(Model::plain(kind, &[kind; 2], move |i| kind.wrap(read(i[0]).max(read(i[1]))))),
        ("min" | "max", ["relu"]) if kind.is_signed() && kind.bits == 32 => {
            let smaller = opcode == "min";
            Some(Model::plain(kind, &[kind; 2], move |i| {
                let (a, b) = (read(i[0]), read(i[1]));
                kind.wrap(if smaller { a.min(b) } else { a.max(b) }.max(0))
            }))
        }
        _ => None,
    }
}

/// Model of operations on two 16-bit elements in 32 bits.
fn packed(opcode: &str, words: &[&str], kind: Kind) -> Option<Model> {
    let read = move |bits: u64| kind.integer(bits);
    match (opcode, words) {
        ("add", []) => Some(Model::elementwise(kind, 2, move |i| kind.wrap(read(i[0]) + read(i[1])))),
        ("min", []) => Some(Model::elementwise(kind, 2, move |i| kind.wrap(read(i[0]).min(read(i[1]))))),
        ("max", []) => Some(Model::elementwise(kind, 2, move |i| kind.wrap(read(i[0]).max(read(i[1]))))),
        ("min", ["relu"]) if kind.is_signed() => Some(Model::elementwise(kind, 2, move |i| kind.wrap(read(i[0]).min(read(i[1])).max(0)))),
        ("max", ["relu"]) if kind.is_signed() => Some(Model::elementwise(kind, 2, move |i| kind.wrap(read(i[0]).max(read(i[1])).max(0)))),
        _ => None,
    }
}

/// Returns the lower and the upper half of the product, each as a number of the type.
fn product(kind: Kind, a: u64, b: u64) -> (i128, i128) {
    if kind.bits == 64 && !kind.is_signed() {
        let product = u128::from(a) * u128::from(b);
        return ((product as u64).into(), ((product >> 64) as u64).into());
    }
    let product = kind.integer(a) * kind.integer(b);
    (kind.integer(kind.wrap(product)), product >> kind.bits)
}

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
fn carrying(opcode: &str, words: &[&str], kind: Kind) -> Option<Model> {
    if kind.bits < 32 {
        return None;
    }
    let writes = words.contains(&"cc");
    let rest: Vec<&str> = words.iter().copied().filter(|word| *word != "cc").collect();
    let reads = opcode.ends_with('c');
    // The bits are added as unsigned numbers, and the carry is the overflow of the register.
    let modulus = 1u128 << kind.bits;
    let outcome = move |total: u128| Outcome {
        values: [(total % modulus) as u64, 0],
        carry: writes.then_some(total >= modulus),
    };
    match (opcode, rest.as_slice()) {
        ("add" | "addc", []) => Some(Model::new(&[kind], &[kind; 2], move |i, carry| {
            outcome(u128::from(i[0]) + u128::from(i[1]) + u128::from(carry && reads))
        })),
        // a + !b + 1: compilers rely on a carry that is set if nothing is borrowed.
        ("sub" | "subc", []) => Some(Model::new(&[kind], &[kind; 2], move |i, carry| {
            outcome(u128::from(i[0]) + (modulus - 1 - u128::from(i[1])) + u128::from(carry || !reads))
        })),
        ("mad" | "madc", [part @ ("lo" | "hi")]) => {
            let high = *part == "hi";
            Some(Model::new(&[kind], &[kind; 3], move |i, carry| {
                let (low_half, high_half) = product(kind, i[0], i[1]);
                let part = kind.wrap(if high { high_half } else { low_half });
                outcome(u128::from(part) + u128::from(i[2]) + u128::from(carry && reads))
            }))
        }
        _ => None,
    }
}

/// `dp4a`, `dp2a.lo`, `dp2a.hi` (PTX ISA §9.7.1.23, §9.7.1.24).
pub(super) fn dot(opcode: &str, words: &[&str]) -> Option<Model> {
    let (half, types) = match (opcode, words) {
        ("dp4a", types) => (0, types),
        ("dp2a", ["lo", types @ ..]) => (0, types),
        ("dp2a", ["hi", types @ ..]) => (1, types),
        _ => return None,
    };
    let [a, b] = types else { return None };
    let (a, b) = (Kind::from_name(a)?, Kind::from_name(b)?);
    if a.bits != 32 || b.bits != 32 {
        return None;
    }
    let class = if a.is_signed() || b.is_signed() {
        Class::Signed
    } else {
        Class::Unsigned
    };
    let sum = Kind { class, ..a };
    let four = opcode == "dp4a";
    Some(Model::plain(sum, &[a, b, sum], move |i| {
        let byte = Kind { bits: 8, ..b };
        let total = if four {
            let left = Kind { bits: 8, ..a };
            (0..4)
                .map(|k| left.integer(i[0] >> (8 * k)) * byte.integer(i[1] >> (8 * k)))
                .sum::<i128>()
        } else {
            let left = Kind { bits: 16, ..a };
            (0..2)
                .map(|k| left.integer(i[0] >> (16 * k)) * byte.integer(i[1] >> (8 * (k + 2 * half))))
                .sum()
        };
        sum.wrap(total + sum.integer(i[2]))
    }))
}
