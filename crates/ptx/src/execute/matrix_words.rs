//! Matrix products of 4-bit integers and of single bits (PTX ISA §9.7.14.4, §9.7.14.5), by the register: each holds 8 or 32 elements that
//! follow each other along a row of a or a column of b.

use super::matrix::{divide, place_c};
use super::worker::{Stop, Worker};
use crate::compile::code::WarpDetail;
use crate::compile::ir::{MatrixOperation, Width, WordProduct};

/// Columns of b and d in every shape.
const COLUMNS: usize = 8;
/// Registers in the longest row of a.
const WORDS: usize = 8;

impl WordProduct {
    fn of(self, a: u32, b: u32) -> i64 {
        match self {
            Self::Xor => i64::from((a ^ b).count_ones()),
            Self::And => i64::from((a & b).count_ones()),
            Self::Nibbles { a_signed, b_signed } => {
                let read = |word: u32, index: u32, signed: bool| {
                    let top = word << (28 - 4 * index);
                    i64::from(if signed { top as i32 >> 28 } else { (top >> 28) as i32 })
                };
                (0..8).map(|index| read(a, index, a_signed) * read(b, index, b_signed)).sum()
            }
        }
    }
}

impl Worker<'_> {
    pub(super) fn multiply_words(&mut self, detail: &WarpDetail, operation: MatrixOperation, warp: usize) {
        let MatrixOperation::MultiplyWords {
            rows,
            words,
            product,
            saturate,
            opaque,
        } = operation
        else {
            return;
        };
        let (rows, words) = (usize::from(rows), usize::from(words));
        let registers = &detail.sources[1..];
        let (a_registers, rest) = registers.split_at(rows * words / 32);
        let (b_registers, c_registers) = rest.split_at(COLUMNS * words / 32);
        let (mut a, mut b) = ([[0u32; WORDS]; 16], [[0u32; WORDS]; COLUMNS]);
        for lane in 0..32 {
            // The fragments of `wmma` have the same layout, which is up to the engine.
            for (index, register) in a_registers.iter().enumerate() {
                let (row, word) = (lane / 4 + 8 * (index % 2), lane % 4 + 4 * (index / 2));
                a[row][word] = self.element(*register, Width::W32, warp + lane) as u32;
            }
            for (index, register) in b_registers.iter().enumerate() {
                b[lane / 4][lane % 4 + 4 * index] = self.element(*register, Width::W32, warp + lane) as u32;
            }
        }
        let count = c_registers.len();
        for lane in 0..32 {
            for (index, register) in c_registers.iter().enumerate() {
                let (row, column) = if opaque {
                    divide(lane * count + index, rows * COLUMNS, COLUMNS)
                } else {
                    place_c(lane, index)
                };
                let addend = i64::from(self.element(*register, Width::W32, warp + lane) as i32);
                let products = a[row][..words].iter().zip(&b[column][..words]).map(|(a, b)| product.of(*a, *b));
                let sum = addend + products.sum::<i64>();
                let limited = sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                let value = if saturate { limited } else { sum } as u32;
                self.set_element(detail.targets[index], Width::W32, warp + lane, u64::from(value));
            }
        }
    }

    /// `wmma.load` of a by rows, or of b by columns: each lane loads one register.
    pub(super) fn load_words(&mut self, detail: &WarpDetail, operation: MatrixOperation, warp: usize, pc: u32) -> Result<(), Stop> {
        let MatrixOperation::Move {
            element, space, offset, ..
        } = operation
        else {
            return Ok(());
        };
        let (Some(target), packed) = (detail.targets.first(), u64::from(element.in_register())) else {
            return Ok(());
        };
        for lane in 0..32 {
            let base = self.element(detail.sources[1], Width::W64, warp + lane).wrapping_add(offset as u64);
            // The stride counts elements.
            let stride = self.element(detail.sources[2], Width::W32, warp + lane) / packed;
            let at = (lane as u64 / 4).wrapping_mul(stride).wrapping_add(lane as u64 % 4);
            let pointer = self.matrix_pointer(space, warp + lane, base.wrapping_add(4 * at), 4, pc)?;
            // SAFETY: the four bytes are checked and aligned.
            let word = unsafe { pointer.cast::<u32>().read() };
            self.set_element(*target, Width::W32, warp + lane, u64::from(word));
        }
        Ok(())
    }
}
