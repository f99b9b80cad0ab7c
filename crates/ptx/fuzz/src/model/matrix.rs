//! `mma` (PTX ISA §9.7.14.5): the element of the matrix that each register of a thread holds, as the figures of §9.7.14.5.1 to §9.7.14.5.13
//! define it for each shape, and the product without rounding.

use super::convert::{Small, decode_small};
use super::float::{product, sum};
use crate::exact::{BF16, Exact, F16, F32, F64, Format, Rounding, TF32, Value};

/// Element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S32,
    E4m3,
    E5m2,
    S4,
    U4,
    B1,
}

impl Element {
    /// Returns the type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s32" => Self::S32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "s4" => Self::S4,
            "u4" => Self::U4,
            "b1" => Self::B1,
            _ => return None,
        })
    }

    /// Returns the number of bits of one element in a register; a tf32 uses the bits of an f32.
    pub fn bits(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::Tf32 | Self::F32 | Self::S32 => 32,
            Self::F64 => 64,
            Self::S8 | Self::U8 | Self::E4m3 | Self::E5m2 => 8,
            Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }

    /// Returns the format of the floating point types of at least 16 bits.
    pub fn format(self) -> Option<Format> {
        Some(match self {
            Self::F16 => F16,
            Self::Bf16 => BF16,
            Self::Tf32 | Self::F32 => F32,
            Self::F64 => F64,
            _ => return None,
        })
    }

    pub fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8 | Self::S32 | Self::S4 | Self::U4 | Self::B1)
    }

    pub fn decode(self, bits: u64) -> Value {
        match self {
            Self::Tf32 => TF32.decode(bits >> 13 & 0x7_ffff),
            Self::S8 => Value::Finite(Exact::integer(i128::from(bits as u8 as i8))),
            Self::U8 => Value::Finite(Exact::integer(i128::from(bits as u8))),
            Self::S4 if bits & 8 != 0 => Value::Finite(Exact::integer(i128::from(bits & 7) - 8)),
            Self::S4 => Value::Finite(Exact::integer(i128::from(bits & 7))),
            Self::U4 => Value::Finite(Exact::integer(i128::from(bits & 15))),
            Self::B1 => Value::Finite(Exact::integer(i128::from(bits & 1))),
            Self::S32 => Value::Finite(Exact::integer(i128::from(bits as u32 as i32))),
            Self::E4m3 => decode_small(Small::E4m3, bits & 0xff),
            Self::E5m2 => decode_small(Small::E5m2, bits & 0xff),
            Self::F16 => F16.decode(bits & 0xffff),
            Self::Bf16 => BF16.decode(bits & 0xffff),
            Self::F32 => F32.decode(bits & 0xffff_ffff),
            Self::F64 => F64.decode(bits),
        }
    }
}

/// Matrix in row-major order.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub columns: usize,
    /// Bits of the elements.
    pub elements: Vec<u64>,
}

/// One form of `mma`, or of `wmma.mma`, whose fragments are opaque to programs.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of a and d, columns of b and d, columns of a.
    pub shape: [usize; 3],
    /// Types of d, a, b, c.
    pub elements: [Element; 4],
    /// Whether integers are clamped instead of wrapped (`.satfinite`).
    pub saturates: bool,
    /// Whether products of single bits are their exclusive or (`.xor.popc`), and not their conjunction (`.and.popc`).
    pub is_xor: bool,
}

/// The four operands of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    D,
    A,
    B,
    C,
}

/// Exact value of one element of a product.
pub struct Sum {
    /// Sum without rounding.
    pub value: Value,
    /// Sum of the magnitudes of all products and the addend.
    pub magnitude: f64,
}

impl Product {
    /// Parses a form of `mma`.
    pub fn parse(form: &str) -> Option<Self> {
        let words: Vec<&str> = form.split('.').collect();
        let ["mma", "sync", "aligned", shape, "row", "col", rest @ ..] = words.as_slice() else {
            return None;
        };
        let (saturates, types) = match rest {
            ["satfinite", types @ ..] => (true, types),
            types => (false, types),
        };
        let (is_xor, types) = match types {
            [types @ .., "xor", "popc"] => (true, types),
            [types @ .., "and", "popc"] => (false, types),
            types => (false, types),
        };
        let [d, a, b, c] = types else { return None };
        Some(Self {
            shape: parse_shape(shape)?,
            elements: [
                Element::from_name(d)?,
                Element::from_name(a)?,
                Element::from_name(b)?,
                Element::from_name(c)?,
            ],
            saturates,
            is_xor,
        })
    }

    /// Returns the element type of an operand.
    pub fn element(&self, operand: Operand) -> Element {
        self.elements[match operand {
            Operand::D => 0,
            Operand::A => 1,
            Operand::B => 2,
            Operand::C => 3,
        }]
    }

    /// Returns the numbers of rows and columns of an operand.
    pub fn extent(&self, operand: Operand) -> (usize, usize) {
        let [m, n, k] = self.shape;
        match operand {
            Operand::A => (m, k),
            Operand::B => (k, n),
            Operand::C | Operand::D => (m, n),
        }
    }

    /// Returns the number of elements of an operand that each of the 32 threads holds.
    pub fn held(&self, operand: Operand) -> usize {
        let (rows, columns) = self.extent(operand);
        rows * columns / 32
    }

    /// Returns row and column of element `i` of a thread's fragment of an `mma`.
    pub fn place(&self, operand: Operand, lane: usize, i: usize) -> (usize, usize) {
        let (group, thread) = (lane / 4, lane % 4);
        let element = self.element(operand);
        match operand {
            Operand::C | Operand::D => (if i < 2 { group } else { group + 8 }, thread * 2 + i % 2),
            Operand::A => match (self.shape, element.bits()) {
                ([8, 8, 4], 64) => (group, thread),
                ([16, 8, 4], 64 | 32) => (if i == 0 { group } else { group + 8 }, thread),
                ([16, 8, 8], 64 | 32) => (
                    if i == 0 || i == 2 { group } else { group + 8 },
                    if i < 2 { thread } else { thread + 4 },
                ),
                ([16, 8, 16], 64) => (
                    if i.is_multiple_of(2) { group } else { group + 8 },
                    if i.is_multiple_of(2) { i * 2 + thread } else { i * 2 - 2 + thread },
                ),
                ([16, 8, 8], 16) => (if i < 2 { group } else { group + 8 }, thread * 2 + (i & 1)),
                ([16, 8, 16], 16) => (
                    if i < 2 || (4..6).contains(&i) { group } else { group + 8 },
                    if i < 4 { thread * 2 + (i & 1) } else { thread * 2 + (i & 1) + 8 },
                ),
                ([8, 8, 16], 8) => (group, thread * 4 + i),
                ([16, 8, 16], 8) => (if i < 4 { group } else { group + 8 }, thread * 4 + (i & 3)),
                ([16, 8, 32], 8) => (
                    if i < 4 || (8..12).contains(&i) { group } else { group + 8 },
                    if i < 8 { thread * 4 + (i & 3) } else { thread * 4 + (i & 3) + 16 },
                ),
                ([8, 8, 32], 4) => (group, thread * 8 + i),
                ([16, 8, 32], 4) => (if i < 8 { group } else { group + 8 }, thread * 8 + (i & 7)),
                ([16, 8, 64], 4) => (
                    if i < 8 || (16..24).contains(&i) { group } else { group + 8 },
                    if i < 16 { thread * 8 + (i & 7) } else { thread * 8 + (i & 7) + 32 },
                ),
                ([8, 8, 128], 1) => (group, thread * 32 + i),
                ([16, 8, 128], 1) => (if i < 32 { group } else { group + 8 }, thread * 32 + (i & 31)),
                ([16, 8, 256], 1) => (
                    if i < 32 || (64..96).contains(&i) { group } else { group + 8 },
                    if i < 64 {
                        thread * 32 + (i & 31)
                    } else {
                        thread * 32 + (i & 31) + 128
                    },
                ),
                other => unreachable!("no figure for {other:?}"),
            },
            Operand::B => match (self.shape, element.bits()) {
                ([8 | 16, 8, 4], 64 | 32) => (thread, group),
                ([16, 8, 8], 32) => (if i == 0 { thread } else { thread + 4 }, group),
                ([16, 8, 8 | 16], 64) => (thread + i * 4, group),
                ([16, 8, 8], 16) => (thread * 2 + i, group),
                ([16, 8, 16], 16) => (if i < 2 { thread * 2 + (i & 1) } else { thread * 2 + (i & 1) + 8 }, group),
                ([8 | 16, 8, 16], 8) => (thread * 4 + i, group),
                ([16, 8, 32], 8) => (if i < 4 { thread * 4 + (i & 3) } else { thread * 4 + (i & 3) + 16 }, group),
                ([8 | 16, 8, 32], 4) => (thread * 8 + i, group),
                ([16, 8, 64], 4) => (if i < 8 { thread * 8 + i } else { thread * 8 + (i & 7) + 32 }, group),
                ([8 | 16, 8, 128], 1) => (thread * 32 + i, group),
                ([16, 8, 256], 1) => (if i < 32 { thread * 32 + i } else { thread * 32 + (i & 31) + 128 }, group),
                other => unreachable!("no figure for {other:?}"),
            },
        }
    }

    /// Computes one element of a · b + c.
    pub fn sum(&self, a: &Matrix, b: &Matrix, c: &Matrix, row: usize, column: usize) -> Sum {
        let mut value = self.element(Operand::C).decode(c.elements[row * c.columns + column]);
        let mut magnitude = approximate(&value).abs();
        for step in 0..self.shape[2] {
            let (left, right) = (a.elements[row * a.columns + step], b.elements[step * b.columns + column]);
            let term = if self.is_xor {
                Value::Finite(Exact::integer(i128::from(left != right)))
            } else {
                let left = self.element(Operand::A).decode(left);
                product(&left, &self.element(Operand::B).decode(right))
            };
            magnitude += approximate(&term).abs();
            value = sum(&value, &term, Rounding::NearestEven);
        }
        Sum { value, magnitude }
    }

    /// Returns the bits of a result, rounded once.
    pub fn encode(&self, value: &Value) -> u64 {
        let element = self.element(Operand::D);
        match (element.format(), value) {
            (Some(format), value) => format.encode(value, Rounding::NearestEven),
            (None, Value::Finite(exact)) => {
                let whole = exact.clamp((i128::from(i64::MIN), i128::from(i64::MAX)));
                let kept = if self.saturates {
                    whole.clamp(i128::from(i32::MIN), i128::from(i32::MAX))
                } else {
                    whole
                };
                u64::from(kept as u32)
            }
            (None, other) => unreachable!("{other:?} is no integer"),
        }
    }
}

/// Parses a shape such as `m16n8k16` into its numbers.
pub fn parse_shape(word: &str) -> Option<[usize; 3]> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// Converts to f64, which may be inexact.
pub fn approximate(value: &Value) -> f64 {
    f64::from_bits(F64.encode(value, Rounding::NearestEven))
}
