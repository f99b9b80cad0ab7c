//! Comparison and selection (PTX ISA §9.7.6, §9.7.7), `testp` and `copysign` (§9.7.3).

use super::{Model, Outcome};
use crate::exact::{F32, F64, Format};
use crate::kind::{Class, Kind};

/// Outcome of a comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Less,
    Equal,
    Greater,
    Unordered,
}

fn integers(kind: Kind, a: u64, b: u64) -> Order {
    match kind.integer(a).cmp(&kind.integer(b)) {
        std::cmp::Ordering::Less => Order::Less,
        std::cmp::Ordering::Equal => Order::Equal,
        std::cmp::Ordering::Greater => Order::Greater,
    }
}

fn floats(format: Format, a: u64, b: u64) -> Order {
    if format.is_nan(a) || format.is_nan(b) {
        return Order::Unordered;
    }
    let number = |bits: u64| {
        let magnitude = i128::from(bits & !format.sign());
        if bits & format.sign() != 0 { -magnitude } else { magnitude }
    };
    match number(a).cmp(&number(b)) {
        std::cmp::Ordering::Less => Order::Less,
        std::cmp::Ordering::Equal => Order::Equal,
        std::cmp::Ordering::Greater => Order::Greater,
    }
}

fn holds(comparison: &str, order: Order) -> bool {
    use Order::{Equal, Greater, Less, Unordered};
    match comparison {
        "eq" => order == Equal,
        "ne" => matches!(order, Less | Greater),
        "lt" | "lo" => order == Less,
        "le" | "ls" => matches!(order, Less | Equal),
        "gt" | "hi" => order == Greater,
        "ge" | "hs" => matches!(order, Greater | Equal),
        "equ" => matches!(order, Equal | Unordered),
        "neu" => order != Equal,
        "ltu" => matches!(order, Less | Unordered),
        "leu" => order != Greater,
        "gtu" => matches!(order, Greater | Unordered),
        "geu" => order != Less,
        "num" => order != Unordered,
        _ => order == Unordered,
    }
}

fn is_comparison(word: &str, kind: Kind) -> bool {
    match kind.class {
        Class::Bits => matches!(word, "eq" | "ne"),
        Class::Signed => matches!(word, "eq" | "ne" | "lt" | "le" | "gt" | "ge"),
        Class::Unsigned => matches!(word, "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "lo" | "ls" | "hi" | "hs"),
        Class::Float(_) => matches!(
            word,
            "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "equ" | "neu" | "ltu" | "leu" | "gtu" | "geu" | "num" | "nan"
        ),
        Class::Predicate => false,
    }
}

pub(super) fn model(opcode: &str, words: &[&str], kind: Kind) -> Option<Model> {
    if kind.bits == 8 {
        return None;
    }
    match opcode {
        "selp"
            if words.len() == 1
                && kind.lanes == 1
                && kind.class != Class::Predicate
                && !matches!(kind.class, Class::Float(f) if f != F32 && f != F64) =>
        {
            let mut model = Model::plain(kind, &[kind, kind, Kind::PREDICATE], |i| if i[2] & 1 == 1 { i[0] } else { i[1] });
            model.judge = super::Judge::Bits;
            Some(model)
        }
        "slct" => {
            let [flush @ .., to, _] = words else { return None };
            let to = Kind::from_name(to)?;
            let flush = match flush {
                [] => false,
                ["ftz"] => true,
                _ => return None,
            };
            let float = kind.format();
            let by_float = float == Some(F32);
            let by_integer = kind.is_signed() && kind.bits == 32;
            if to.bits == 8 || !(by_float || by_integer && !flush) || matches!(to.class, Class::Float(f) if f != F32 && f != F64) {
                return None;
            }
            let mut model = Model::plain(to, &[to, to, kind], move |i| {
                let first = if by_float {
                    let c = if flush { F32.flush(i[2]) } else { i[2] };
                    matches!(floats(F32, c, 0), Order::Equal | Order::Greater)
                } else {
                    kind.integer(i[2]) >= 0
                };
                if first { i[0] } else { i[1] }
            });
            model.judge = super::Judge::Bits;
            Some(model)
        }
        "testp" => {
            let [property, _] = words else { return None };
            let format = kind.format().filter(|format| *format == F32 || *format == F64)?;
            let property = match *property {
                known @ ("finite" | "infinite" | "number" | "notanumber" | "normal" | "subnormal") => known.to_owned(),
                _ => return None,
            };
            Some(Model::plain(Kind::PREDICATE, &[kind], move |i| {
                let magnitude = i[0] & !format.sign();
                u64::from(match property.as_str() {
                    "finite" => magnitude < format.infinity(),
                    "infinite" => magnitude == format.infinity(),
                    "number" => !format.is_nan(i[0]),
                    "notanumber" => format.is_nan(i[0]),
                    "normal" => magnitude < format.infinity() && magnitude >> format.fraction != 0,
                    // The ISA says "tests whether the input is subnormal": zero is neither normal nor subnormal.
                    _ => format.is_subnormal(i[0]),
                })
            }))
        }
        "copysign" => {
            let format = kind
                .format()
                .filter(|format| (*format == F32 || *format == F64) && words.len() == 1)?;
            let mut model = Model::plain(kind, &[kind; 2], move |i| i[1] & !format.sign() | i[0] & format.sign());
            model.judge = super::Judge::Bits;
            Some(model)
        }
        "setp" | "set" => comparison(opcode, words, kind),
        _ => None,
    }
}

fn comparison(opcode: &str, words: &[&str], kind: Kind) -> Option<Model> {
    let to = if opcode == "set" {
        Some(Kind::from_name(words[words.len().checked_sub(2)?])?)
    } else {
        None
    };
    let middle = &words[1..words.len() - 1 - usize::from(to.is_some())];
    let comparison = words[0].to_owned();
    if !is_comparison(&comparison, kind) {
        return None;
    }
    let combine = match middle {
        [] | ["ftz"] => None,
        [word @ ("and" | "or" | "xor"), rest @ ..] if rest.is_empty() || rest == ["ftz"] => Some((*word).to_owned()),
        _ => return None,
    };
    let flush = middle.contains(&"ftz");
    let format = kind.format();
    if flush && !matches!(format, Some(format) if format.bits() <= 32 && format.fraction != 7) {
        return None;
    }
    let mut sources = vec![kind, kind];
    if combine.is_some() {
        sources.push(Kind::PREDICATE);
    }
    let truth = move |i: &[u64], lane: u32| -> [bool; 2] {
        let element = |bits: u64| {
            let bits = bits >> (lane * kind.bits) & kind.mask();
            match format {
                Some(format) if flush => format.flush(bits),
                _ => bits,
            }
        };
        let (a, b) = (element(i[0]), element(i[1]));
        let order = match format {
            Some(format) => floats(format, a, b),
            None => integers(kind, a, b),
        };
        let t = holds(&comparison, order);
        let c = i.get(2).is_some_and(|bits| bits & 1 == 1);
        let combined = |t: bool| match combine.as_deref() {
            Some("and") => t && c,
            Some("or") => t || c,
            Some(_) => t != c,
            None => t,
        };
        [combined(t), combined(!t)]
    };
    let Some(to) = to else {
        // With two elements, p is the result of the lower one, and q that of the upper one.
        let two = kind.lanes == 2;
        // A single half-precision comparison has no second result.
        let results = if format.is_some_and(|format| format.bits() == 16) && !two {
            1
        } else {
            2
        };
        return Some(Model::new(&[Kind::PREDICATE; 2][..results], &sources, move |i, _| {
            let [p, complement] = truth(i, 0);
            let q = if two { truth(i, 1)[0] } else { complement };
            Outcome {
                values: [u64::from(p), u64::from(q)],
                carry: None,
            }
        }));
    };
    let ones = match to.class {
        Class::Float(target) if target == F32 && kind.lanes == 1 && format.is_none_or(|format| format.bits() > 16) => F32.one(),
        Class::Signed | Class::Unsigned if to.bits == 32 && kind.lanes == 1 => to.mask(),
        Class::Signed | Class::Unsigned if to.bits == 16 && format.is_some_and(|format| format.bits() == 16) && kind.lanes == 1 => {
            to.mask()
        }
        Class::Float(format) if to.lanes == kind.lanes && Some(to) == Some(kind) && format.bits() == 16 => format.one(),
        _ => return None,
    };
    let mut model = Model::plain(to, &sources, move |i| {
        (0..kind.lanes).fold(0, |found, lane| {
            found | if truth(i, lane)[0] { ones << (lane * kind.bits) } else { 0 }
        })
    });
    model.judge = super::Judge::Bits;
    Some(model)
}
