//! Matrix instructions: `mma` (PTX ISA §9.7.14.5), `wmma` (§9.7.14.4), `ldmatrix`, `stmatrix`, `movmatrix` (§9.7.14.5.15-17).
//!
//! All are operations of a whole warp. The layout of `wmma` fragments is opaque to programs: element e of lane l is element `l * elements +
//! e` of the matrix in row-major order, modulo the size of the matrix if a fragment holds each element more than once.

use super::{At, Lowering};
use crate::compile::ir::{Action, MatrixElement as E, MatrixOperation, MatrixPart, RegisterId, Width, WordProduct};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

fn element(name: &str) -> Option<E> {
    Some(match name {
        "f16" => E::F16,
        "bf16" => E::Bf16,
        "tf32" => E::Tf32,
        "f32" => E::F32,
        "f64" => E::F64,
        "s8" => E::S8,
        "u8" => E::U8,
        "s32" => E::S32,
        "e4m3" => E::E4m3,
        "e5m2" => E::E5m2,
        "s4" => E::S4,
        "u4" => E::U4,
        "b1" => E::B1,
        _ => return None,
    })
}

/// Parses a shape such as `m16n8k16` into its three numbers.
fn shape(word: &str) -> Option<[u16; 3]> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// Whether `mma` supports these types and shape: all of sm_80 to sm_90 except for m8n8k4 of f16, which consists of four products.
fn is_mma(shape: [u16; 3], a: E, b: E, c: E, d: E) -> bool {
    let float = |element: E| matches!(element, E::F16 | E::F32);
    match (shape, a, b) {
        ([16, 8, 8 | 16], E::F16, E::F16) => float(c) && float(d),
        ([16, 8, 8 | 16], E::Bf16, E::Bf16) | ([16, 8, 4 | 8], E::Tf32, E::Tf32) => c == E::F32 && d == E::F32,
        ([16, 8, 16 | 32], E::E4m3 | E::E5m2, E::E4m3 | E::E5m2) => float(c) && c == d,
        ([16, 8, 16 | 32] | [8, 8, 16], E::S8 | E::U8, E::S8 | E::U8) => c == E::S32 && d == E::S32,
        ([8, 8, 4] | [16, 8, 4 | 8 | 16], E::F64, E::F64) => c == E::F64 && d == E::F64,
        ([8, 8, 32] | [16, 8, 32 | 64], E::S4 | E::U4, E::S4 | E::U4) => c == E::S32 && d == E::S32,
        ([8, 8, 128] | [16, 8, 128 | 256], E::B1, E::B1) => c == E::S32 && d == E::S32,
        _ => false,
    }
}

/// Whether `wmma` supports these types and shape.
fn is_wmma(shape: [u16; 3], a: E, c: E, d: E) -> bool {
    let float = |element: E| matches!(element, E::F16 | E::F32);
    match (shape, a) {
        ([16, 16, 16] | [32, 8, 16] | [8, 32, 16], E::F16) => float(c) && float(d),
        ([16, 16, 16] | [32, 8, 16] | [8, 32, 16], E::Bf16) | ([16, 16, 8], E::Tf32) => c == E::F32 && d == E::F32,
        ([16, 16, 16] | [32, 8, 16] | [8, 32, 16], E::S8 | E::U8) => c == E::S32 && d == E::S32,
        ([8, 8, 4], E::F64) => c == E::F64 && d == E::F64,
        ([8, 8, 32], E::S4 | E::U4) | ([8, 8, 128], E::B1) => c == E::S32 && d == E::S32,
        _ => false,
    }
}

/// Returns the product of two elements. `bits` is the operation on single bits.
fn multiply([m, n, k]: [u16; 3], elements: [E; 4], bits: Option<&str>, saturate: bool, opaque: bool) -> Option<MatrixOperation> {
    let [_, a, b, _] = elements;
    let product = match (a, bits) {
        (E::S4 | E::U4, None) => WordProduct::Nibbles {
            a_signed: a == E::S4,
            b_signed: b == E::S4,
        },
        (E::B1, Some("xor")) => WordProduct::Xor,
        (E::B1, Some("and")) => WordProduct::And,
        (E::B1, _) | (_, Some(_)) => return None,
        _ => {
            return Some(MatrixOperation::Multiply {
                shape: [m as u8, n as u8, k as u8],
                elements,
                saturate,
                opaque,
            });
        }
    };
    Some(MatrixOperation::MultiplyWords {
        rows: m as u8,
        words: (u32::from(k) / a.in_register()) as u8,
        product,
        saturate,
        opaque,
    })
}

impl<'a> Lowering<'a> {
    pub(super) fn matrix(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.instruction.opcode {
            "mma" => self.mma(at),
            "wmma" => self.wmma(at),
            _ => self.move_matrix(at),
        }
    }

    /// Returns the registers of a fragment, which are as wide as the element type requires.
    fn fragment(&mut self, at: At<'a, '_>, operand: &Operand<'a>, element: E, writes: bool) -> Result<Vec<RegisterId>, LoadError> {
        let scalar = if element == E::F64 { T::B64 } else { T::B32 };
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        parts
            .iter()
            .map(|part| {
                if writes {
                    let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
                    self.target(at, part, width)
                } else {
                    self.source(at, part, scalar)
                }
            })
            .collect()
    }

    /// Lowers an `mma` or `wmma.mma`. Its fragments are d, a, b, c; `counts` are the numbers of elements that they must hold.
    fn product(&mut self, at: At<'a, '_>, operation: MatrixOperation, elements: [E; 4], counts: [u32; 4]) -> Result<(), LoadError> {
        let operands: &[Operand<'a>; 4] = at.operands()?;
        let mut fragments = Vec::new();
        for (index, operand) in operands.iter().enumerate() {
            let found = self.fragment(at, operand, elements[index], index == 0)?;
            let held = found.len() as u32 * elements[index].in_register();
            if held != counts[index] {
                return Err(at.invalid(format!("a fragment holds {held} elements instead of {}", counts[index])));
            }
            fragments.push(found);
        }
        let all = self.constant(Width::W32, u64::from(u32::MAX));
        let targets = fragments.remove(0);
        let sources: Vec<RegisterId> = std::iter::once(all).chain(fragments.into_iter().flatten()).collect();
        self.emit_skippable(Action::Matrix(operation), targets, sources);
        Ok(())
    }

    fn mma(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let words = at.modifiers();
        let saturate = words.contains(&"satfinite");
        let words: Vec<&str> = words.iter().copied().filter(|word| *word != "satfinite").collect();
        let ["sync", "aligned", shape_word, a_major, b_major, d, a, b, c, ref bits @ ..] = words[..] else {
            return Err(at.form());
        };
        let (Some(shape), Some(d), Some(a), Some(b), Some(c)) = (shape(shape_word), element(d), element(a), element(b), element(c)) else {
            return Err(at.form());
        };
        if shape == [8, 8, 4] && a == E::F16 {
            let operation = MatrixOperation::MultiplyQuads {
                a_by_rows: a_major == "row",
                b_by_rows: b_major == "row",
                elements: [d, c],
            };
            return self.product(at, operation, [d, a, b, c], [8, 4, 4, 8]);
        }
        if !is_mma(shape, a, b, c, d) || [a_major, b_major] != ["row", "col"] || (saturate && d != E::S32) {
            return Err(at.form());
        }
        let operation = multiply(shape, [d, a, b, c], bits.first().copied(), saturate, false).ok_or_else(|| at.form())?;
        let [m, n, k] = shape.map(u32::from);
        self.product(at, operation, [d, a, b, c], [m * n / 32, m * k / 32, k * n / 32, m * n / 32])
    }

    fn wmma(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let mut words = at.modifiers().to_vec();
        // The operation on single bits precedes `.sync`.
        let bits = match words.as_slice() {
            ["mma", bits @ ("xor" | "and"), "popc", ..] => Some(*bits),
            _ => None,
        };
        words.drain(1..1 + 2 * usize::from(bits.is_some()));
        let layout = |word: &str| matches!(word, "row" | "col");
        match words.as_slice() {
            ["load", part, "sync", "aligned", major, shape_word, rest @ ..] if layout(major) => {
                let part = match *part {
                    "a" => MatrixPart::A,
                    "b" => MatrixPart::B,
                    "c" => MatrixPart::C,
                    _ => return Err(at.form()),
                };
                self.wmma_move(at, part, *major == "row", shape_word, rest)
            }
            ["store", "d", "sync", "aligned", major, shape_word, rest @ ..] if layout(major) => {
                self.wmma_move(at, MatrixPart::D, *major == "row", shape_word, rest)
            }
            ["mma", "sync", "aligned", first, second, shape_word, types @ ..] if layout(first) && layout(second) => {
                let saturate = types.last() == Some(&"satfinite");
                let types = if saturate { &types[..types.len() - 1] } else { types };
                // f64 allows `.rn`, which is its only rounding.
                let types = types.strip_prefix(&["rn"]).filter(|rest| rest.ends_with(&["f64"])).unwrap_or(types);
                let types = types
                    .iter()
                    .map(|word| element(word))
                    .collect::<Option<Vec<_>>>()
                    .ok_or_else(|| at.form())?;
                // Two types are those of d and c, while a and b are f16.
                let (d, a, b, c) = match types[..] {
                    [d, c] => (d, E::F16, E::F16, c),
                    [d, a, b, c] if a == b => (d, a, b, c),
                    _ => return Err(at.form()),
                };
                let shape = shape(shape_word)
                    .filter(|shape| is_wmma(*shape, a, c, d))
                    .ok_or_else(|| at.form())?;
                if saturate && d != E::S32 {
                    return Err(at.form());
                }
                let operation = multiply(shape, [d, a, b, c], bits, saturate, true).ok_or_else(|| at.form())?;
                let [m, n, k] = shape.map(u32::from);
                // f16 fragments of a and b hold every element twice (§9.7.14.4.1).
                let inputs = |size: u32| if a == E::F16 { size / 16 } else { size / 32 };
                let (a_count, b_count) = if a == E::F16 { (16, 16) } else { (inputs(m * k), inputs(k * n)) };
                self.product(at, operation, [d, a, b, c], [m * n / 32, a_count, b_count, m * n / 32])
            }
            _ => Err(at.form()),
        }
    }

    /// `wmma.load` and `wmma.store`.
    fn wmma_move(&mut self, at: At<'a, '_>, part: MatrixPart, by_rows: bool, shape_word: &str, rest: &[&str]) -> Result<(), LoadError> {
        let (space, name) = match rest {
            [name] => (Space::Generic, *name),
            ["global", name] => (Space::Global, *name),
            ["shared" | "shared::cta", name] => (Space::Shared, *name),
            _ => return Err(at.form()),
        };
        let (Some([m, n, k]), Some(element)) = (shape(shape_word), element(name)) else {
            return Err(at.form());
        };
        let (rows, columns) = match part {
            MatrixPart::A => (m, k),
            MatrixPart::B => (k, n),
            MatrixPart::C | MatrixPart::D => (m, n),
        };
        let store = part == MatrixPart::D;
        let operands = at.all_operands();
        let (fragment, address, stride) = match (operands, store) {
            ([fragment, address], false) | ([address, fragment], true) => (fragment, address, None),
            ([fragment, address, stride], false) | ([address, fragment, stride], true) => (fragment, address, Some(stride)),
            _ => return Err(at.invalid("wrong number of operands")),
        };
        let registers = self.fragment(at, fragment, element, !store)?;
        let held = registers.len() * element.in_register() as usize * 32;
        let size = usize::from(rows) * usize::from(columns);
        if held != size && (store || held != 2 * size && held != 4 * size) {
            return Err(at.invalid("the fragment does not hold the matrix"));
        }
        let place = self.address(at, address)?;
        if self.width(place.register) != Width::W64 {
            return Err(at.unsupported("a matrix at a 32-bit address"));
        }
        let stride = match stride {
            Some(stride) => self.source(at, stride, T::U32)?,
            None => self.constant(Width::W32, u64::from(if by_rows { columns } else { rows })),
        };
        let operation = MatrixOperation::Move {
            rows: rows as u8,
            columns: columns as u8,
            by_rows,
            element,
            store,
            space: place.space.filter(|_| space == Space::Generic).unwrap_or(space),
            offset: place.offset,
        };
        let all = self.constant(Width::W32, u64::from(u32::MAX));
        let mut sources = vec![all, place.register, stride];
        let targets = if store {
            sources.extend(registers);
            Vec::new()
        } else {
            registers
        };
        self.emit_skippable(Action::Matrix(operation), targets, sources);
        Ok(())
    }

    /// `ldmatrix`, `stmatrix` and `movmatrix` of 8 by 8 elements of 16 bits.
    fn move_matrix(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let opcode = at.instruction.opcode;
        let all = self.constant(Width::W32, u64::from(u32::MAX));
        if opcode == "movmatrix" {
            if at.modifiers() != ["sync", "aligned", "m8n8", "trans", "b16"] {
                return Err(at.form());
            }
            let [target, source] = at.operands()?;
            let source = self.source(at, source, T::B32)?;
            let target = self.target(at, target, Width::W32)?;
            self.emit_skippable(Action::Matrix(MatrixOperation::Transpose), vec![target], vec![all, source]);
            return Ok(());
        }
        let store = opcode == "stmatrix";
        let ["sync", "aligned", "m8n8", count, rest @ ..] = at.modifiers() else {
            return Err(at.form());
        };
        let count = match *count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return Err(at.form()),
        };
        let (transposed, rest) = match rest {
            ["trans", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let space = match rest {
            ["shared" | "shared::cta", "b16"] => Space::Shared,
            ["b16"] => Space::Generic,
            _ => return Err(at.form()),
        };
        let operands: &[Operand<'a>; 2] = at.operands()?;
        let (fragment, address) = if store {
            (&operands[1], &operands[0])
        } else {
            (&operands[0], &operands[1])
        };
        let registers = self.fragment(at, fragment, E::F16, !store)?;
        if registers.len() != count {
            return Err(at.invalid("the vector does not have the instruction's width"));
        }
        let place = self.address(at, address)?;
        let mut address = place.register;
        if self.width(address) == Width::W32 {
            let wide = self.new_register(Width::W64);
            let guard = self.guard.take();
            self.lane(crate::lanes::unary::<crate::lanes::convert::Resize<u32, u64>>(), wide, &[address]);
            self.guard = guard;
            address = wide;
        }
        let operation = MatrixOperation::Rows {
            transposed,
            store,
            space: place.space.filter(|_| space == Space::Generic).unwrap_or(space),
            offset: place.offset,
        };
        let mut sources = vec![all, address];
        let targets = if store {
            sources.extend(registers);
            Vec::new()
        } else {
            registers
        };
        self.emit_skippable(Action::Matrix(operation), targets, sources);
        Ok(())
    }
}
