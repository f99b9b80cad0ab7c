//! Operand values that test an instruction well: edge cases of each type, and random values.

use std::cell::RefCell;
use std::rc::Rc;

use crate::exact::Format;
use crate::kind::{Class, Kind, mask};
use crate::model::Model;

/// Returns zeros, extremes, powers of two and their neighbours, halves, subnormals, infinities and NaN with payloads.
pub fn edges(kind: Kind) -> Rc<[u64]> {
    thread_local! {
        static FOUND: RefCell<Vec<(Kind, Rc<[u64]>)>> = RefCell::default();
    }
    FOUND.with_borrow_mut(|found| match found.iter().find(|(of, _)| *of == kind) {
        Some((_, edges)) => Rc::clone(edges),
        None => {
            let edges: Rc<[u64]> = all_edges(kind).into();
            found.push((kind, Rc::clone(&edges)));
            edges
        }
    })
}

fn all_edges(kind: Kind) -> Vec<u64> {
    let elements = match kind.class {
        Class::Predicate => vec![0, 1],
        Class::Float(format) => float_edges(format),
        _ => integer_edges(kind.bits),
    };
    if kind.lanes == 1 {
        return elements;
    }
    let count = elements.len();
    (0..count * 2)
        .map(|at| elements[at % count] | elements[(at * 7 + 3) % count] << kind.bits)
        .collect()
}

fn integer_edges(bits: u32) -> Vec<u64> {
    let top = 1u64 << (bits - 1);
    let mut found = vec![0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 65, 127, 128, 200, 255, 256];
    found.extend([top, top - 1, top + 1, mask(bits), mask(bits) - 1, top | 1 << (bits / 2)]);
    found.extend([
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
        0x0123_4567_89ab_cdef,
        0x8000_ff7f_8080_7fff,
    ]);
    found.extend([
        0x7fff,
        0x8000,
        0xffff,
        0x1_0000,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x00ff_ffff,
        0x0080_0000,
    ]);
    for value in &mut found {
        *value &= mask(bits);
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn float_edges(format: Format) -> Vec<u64> {
    let one = format.one();
    let unit = 1u64 << format.fraction;
    let normal = unit;
    let mut found = vec![0, 1, 2, normal - 1, normal - 2, normal, normal + 1, normal * 2, unit / 2];
    found.extend([
        one,
        one - 1,
        one + 1,
        one + unit,
        one + unit / 2,
        one + unit + unit / 4,
        one - unit,
        one - unit - 1,
        one - unit + 1,
    ]);
    found.extend([
        format.largest(),
        format.largest() - 1,
        format.infinity(),
        format.infinity() + 1,
        format.canonical_nan(),
    ]);
    found.push(format.infinity() | (unit / 2));
    // Values around the limits of integer types.
    for power in [7u64, 8, 15, 16, 23, 24, 31, 32, 52, 53, 63, 64] {
        let at = one + power * unit;
        if at < format.infinity() {
            found.extend([at, at - 1, at + 1]);
        }
    }
    // Bits of 2.5, 3.5, 126.5 and 0.49999, which rounding directions treat differently.
    found.extend([one + unit + unit / 4, one + unit + unit / 4 * 3, one - unit - 1]);
    let mut signed: Vec<u64> = found.iter().flat_map(|bits| [*bits, bits | format.sign()]).collect();
    signed.sort_unstable();
    signed.dedup();
    signed
}

/// Returns a random value, of any bits or of moderate size.
pub fn random(kind: Kind, random: &mut fastrand::Rng) -> u64 {
    if kind.lanes == 2 {
        let element = Kind { lanes: 1, ..kind };
        return self::random(element, random) | self::random(element, random) << kind.bits;
    }
    let any = random.u64(..);
    let value = match kind.class {
        Class::Float(format) if random.u8(..4) > 0 => {
            // The value is within a few powers of two of one, so that sums cancel and products stay in range.
            let spread = [2, 12, 60][random.usize(..3)].min((1i64 << (format.exponent - 1)) - 2);
            let field = (format.one() >> format.fraction) as i64 + random.i64(-spread..=spread);
            let fraction = match random.u8(..3) {
                0 => any & ((1 << format.fraction) - 1) & any.rotate_left(17),
                _ => any & ((1 << format.fraction) - 1),
            };
            (field.max(0) as u64) << format.fraction | fraction | if any >> 63 == 1 { format.sign() } else { 0 }
        }
        Class::Float(_) => any,
        // Values with few bits are as frequent as values with many.
        _ => any >> random.u32(..64) ^ if random.bool() { 0 } else { u64::MAX },
    };
    value & kind.mask()
}

/// Returns operand lists for a form: all combinations of edge cases, then random values.
pub fn lists(model: &Model, count: usize, source: &mut fastrand::Rng) -> Vec<Vec<u64>> {
    let edges: Vec<Rc<[u64]>> = model.sources.iter().map(|kind| self::edges(*kind)).collect();
    let mut found = Vec::new();
    match edges.as_slice() {
        [only] => found.extend(only.iter().map(|value| vec![*value])),
        [first, second] if first.len() * second.len() <= count * 2 => {
            found.extend(first.iter().flat_map(|a| second.iter().map(|b| vec![*a, *b])));
        }
        _ => found.extend((0..count).map(|_| edges.iter().map(|values| values[source.usize(..values.len())]).collect())),
    }
    for _ in 0..count {
        let mut list: Vec<u64> = model.sources.iter().map(|kind| random(*kind, source)).collect();
        // Neighbours, whose difference nearly cancels or whose sum nearly ties.
        if list.len() > 1 && model.sources[0] == model.sources[1] && source.u8(..6) == 0 {
            list[1] = list[0] ^ source.u64(..4);
            if let Some(format) = model.sources[0].format() {
                list[1] ^= format.sign();
            }
            list[1] &= mask(model.sources[1].width());
        }
        found.push(list);
    }
    for list in &mut found {
        for (index, most) in &model.immediates {
            list[*index] %= most + 1;
        }
        if let Some(index) = model.nonzero
            && list[index] & mask(model.sources[index].width()) == 0
        {
            list[index] = 1;
        }
    }
    found
}
