//! Logic, shifts and bit fields (PTX ISA §9.7.1, §9.7.8), bit by bit.

use super::{Model, Outcome};
use crate::kind::{Class, Kind, mask};

const U32: Kind = Kind {
    class: Class::Unsigned,
    bits: 32,
    lanes: 1,
};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn model(opcode: &str, words: &[&str], kind: Option<Kind>) -> Option<Model> {
    let Some(kind) = kind else {
        return permute_with_mode(opcode, words);
    };
    let flags = &words[..words.len() - 1];
    let untyped = kind.class == Class::Bits && kind.bits > 8 || kind.class == Class::Predicate;
    let width = kind.bits;
    Some(match (opcode, flags) {
        ("and", []) if untyped => Model::plain(kind, &[kind; 2], |i| i[0] & i[1]),
        ("or", []) if untyped => Model::plain(kind, &[kind; 2], |i| i[0] | i[1]),
        ("xor", []) if untyped => Model::plain(kind, &[kind; 2], |i| i[0] ^ i[1]),
        ("not", []) if untyped => Model::plain(kind, &[kind], move |i| !i[0] & kind.mask()),
        ("cnot", []) if untyped && width > 1 => Model::plain(kind, &[kind], |i| u64::from(i[0] == 0)),
        ("shl", []) if untyped && width > 1 => Model::plain(kind, &[kind, U32], move |i| {
            if i[1] >= u64::from(width) { 0 } else { i[0] << i[1] & kind.mask() }
        }),
        ("shr", []) if width > 8 => Model::plain(kind, &[kind, U32], move |i| kind.wrap(kind.integer(i[0]) >> i[1].min(64))),
        ("shf", [direction, mode]) if kind == Kind::B32 => {
            let (left, clamp) = (*direction == "l", *mode == "clamp");
            Model::plain(kind, &[kind, kind, U32], move |i| {
                let n = if clamp { i[2].min(32) } else { i[2] & 31 };
                let both = i[1] << 32 | i[0];
                if left {
                    (u128::from(both) << n >> 32) as u64 & mask(32)
                } else {
                    both >> n & mask(32)
                }
            })
        }
        ("popc", []) if untyped && width >= 32 => Model::plain(U32, &[kind], move |i| (0..width).map(|bit| i[0] >> bit & 1).sum()),
        ("clz", []) if untyped && width >= 32 => Model::plain(U32, &[kind], move |i| {
            (0..width).rev().take_while(|bit| i[0] >> bit & 1 == 0).count() as u64
        }),
        ("brev", []) if untyped && width >= 32 => Model::plain(kind, &[kind], move |i| {
            (0..width).fold(0, |reversed, bit| reversed | (i[0] >> bit & 1) << (width - 1 - bit))
        }),
        ("bfe", []) if width >= 32 && matches!(kind.class, Class::Unsigned | Class::Signed) => {
            Model::plain(kind, &[kind, U32, U32], move |i| extract(kind, i))
        }
        ("bfi", []) if untyped && width >= 32 => Model::plain(kind, &[kind, kind, U32, U32], move |i| insert(width, i)),
        ("bfind", []) if width >= 32 && !untyped => Model::plain(U32, &[kind], move |i| find(kind, i[0]).map_or(mask(32), u64::from)),
        ("bfind", ["shiftamt"]) if width >= 32 && !untyped => Model::plain(U32, &[kind], move |i| {
            find(kind, i[0]).map_or(mask(32), |place| u64::from(width - 1 - place))
        }),
        ("prmt", []) if kind == Kind::B32 => Model::plain(kind, &[kind; 3], |i| permute(i, |lane| (i[2] >> (4 * lane)) & 0xf)),
        ("lop3", []) if kind == Kind::B32 => {
            let mut model = Model::plain(kind, &[kind, kind, kind, U32], lookup);
            model.immediates = vec![(3, 255)];
            model
        }
        ("lop3", [combine @ ("or" | "and")]) if kind == Kind::B32 => {
            let and = *combine == "and";
            let mut model = Model::new(&[kind, Kind::PREDICATE], &[kind, kind, kind, U32, Kind::PREDICATE], move |i, _| {
                let d = lookup(i);
                let (found, q) = (d != 0, i[4] & 1 == 1);
                Outcome {
                    values: [d, u64::from(if and { found && q } else { found || q })],
                    carry: None,
                }
            });
            model.immediates = vec![(3, 255)];
            model
        }
        ("fns", []) if kind == Kind::B32 => {
            let mut model = Model::plain(
                kind,
                &[
                    kind,
                    kind,
                    Kind {
                        class: Class::Signed,
                        ..kind
                    },
                ],
                nth_set,
            );
            model.immediates = vec![(1, 31)];
            model
        }
        ("bmsk", [mode]) if kind == Kind::B32 => {
            let clamp = *mode == "clamp";
            Model::plain(kind, &[kind; 2], move |i| {
                let (a, b) = (i[0], i[1]);
                if clamp && a >= 32 {
                    return 0;
                }
                let start = a & 31;
                let length = if clamp && b >= 32 { 32 } else { b & 31 };
                // `length` ones from `start` on, as far as they fit.
                (0..32)
                    .filter(|bit| *bit >= start && *bit < start + length)
                    .fold(0, |found, bit| found | 1 << bit)
            })
        }
        ("szext", [mode]) if width == 32 && matches!(kind.class, Class::Unsigned | Class::Signed) => {
            let clamp = *mode == "clamp";
            Model::plain(kind, &[kind, U32], move |i| {
                let n = if clamp { i[1].min(32) } else { i[1] & 31 } as u32;
                if n == 0 {
                    return 0;
                }
                let narrow = Kind { bits: n, ..kind };
                kind.wrap(narrow.integer(i[0]))
            })
        }
        _ => return None,
    })
}

fn extract(kind: Kind, i: &[u64]) -> u64 {
    let msb = u64::from(kind.bits) - 1;
    let (position, length) = (i[1] & 0xff, i[2] & 0xff);
    let bit = |place: u64| i[0] >> place & 1;
    let sign = if !kind.is_signed() || length == 0 {
        0
    } else {
        bit((position + length - 1).min(msb))
    };
    (0..=msb).fold(0, |found, k| {
        let inside = k < length && position + k <= msb;
        found | if inside { bit(position + k) } else { sign } << k
    })
}

fn insert(width: u32, i: &[u64]) -> u64 {
    let (position, length) = (i[2] & 0xff, i[3] & 0xff);
    let mut found = i[1];
    for k in 0..length {
        let place = position + k;
        if place < u64::from(width) {
            found = found & !(1 << place) | (i[0] >> k & 1) << place;
        }
    }
    found
}

/// Returns the index of the highest bit that differs from the sign.
fn find(kind: Kind, bits: u64) -> Option<u32> {
    let negative = kind.is_signed() && bits >> (kind.bits - 1) & 1 == 1;
    let looked_at = if negative { !bits } else { bits };
    (0..kind.bits).rev().find(|bit| looked_at >> bit & 1 == 1)
}

fn permute(i: &[u64], control: impl Fn(u32) -> u64) -> u64 {
    let bytes = i[1] << 32 | i[0];
    (0..4).fold(0, |found, lane| {
        let control = control(lane);
        let byte = bytes >> (8 * (control & 7)) & 0xff;
        let byte = match (control & 8 != 0, byte & 0x80 != 0) {
            (false, _) => byte,
            (true, true) => 0xff,
            (true, false) => 0,
        };
        found | byte << (8 * lane)
    })
}

/// `prmt.b32.f4e` and the other modes, by the table of PTX ISA §9.7.9.7.
fn permute_with_mode(opcode: &str, words: &[&str]) -> Option<Model> {
    let ("prmt", ["b32", mode]) = (opcode, words) else { return None };
    let table: [[u64; 4]; 4] = match *mode {
        "f4e" => [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e" => [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8" => [[0; 4], [1; 4], [2; 4], [3; 4]],
        "ecl" => [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr" => [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16" => [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
        _ => return None,
    };
    Some(Model::plain(Kind::B32, &[Kind::B32; 3], move |i| {
        permute(i, |lane| table[(i[2] & 3) as usize][lane as usize])
    }))
}

/// Bit k of the result is the bit of the table whose index consists of the bits k of the three inputs, the first input highest.
fn lookup(i: &[u64]) -> u64 {
    (0..32).fold(0, |found, bit| {
        let index = (i[0] >> bit & 1) << 2 | (i[1] >> bit & 1) << 1 | (i[2] >> bit & 1);
        found | (i[3] >> index & 1) << bit
    })
}

fn nth_set(i: &[u64]) -> u64 {
    let (mask, base, offset) = (i[0], i[1] as i64, i[2] as u32 as i32);
    let is_set = |place: i64| mask >> place & 1 == 1;
    if offset == 0 {
        return if is_set(base) { base as u64 } else { 0xffff_ffff };
    }
    let step = i64::from(offset.signum());
    let mut left = i64::from(offset).abs();
    let mut place = base;
    while (0..32).contains(&place) {
        if is_set(place) {
            left -= 1;
            if left == 0 {
                return place as u64;
            }
        }
        place += step;
    }
    0xffff_ffff
}
