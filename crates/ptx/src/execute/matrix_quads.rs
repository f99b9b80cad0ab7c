//! `mma.m8n8k4` of f16 (PTX ISA §9.7.14.5.1): four independent products, each of a quad of the lower half of the warp and a quad of the upper
//! half. The sums are those of the other shapes.

use super::matrix::{decode, encode};
use super::worker::Worker;
use crate::compile::code::WarpDetail;
use crate::compile::ir::{MatrixElement as E, MatrixOperation};

/// The eight lanes that compute the product of a pair of quads. For each: its number in the warp, its number in its quad, and its half of the warp.
fn lanes(quad: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..2).flat_map(move |half| (0..4).map(move |within| (16 * half + 4 * quad + within, within, half)))
}

/// Row and column of element `index` of a fragment of c or d.
fn place(element: E, lane: usize, half: usize, index: usize) -> (usize, usize) {
    if element == E::F16 {
        (lane % 4 + 4 * half, index)
    } else {
        ((lane & 1) + (index & 2) + 4 * half, (index & 4) + (lane & 2) + (index & 1))
    }
}

impl Worker<'_> {
    pub(super) fn multiply_quads(&mut self, detail: &WarpDetail, operation: MatrixOperation, warp: usize) {
        let MatrixOperation::MultiplyQuads {
            a_by_rows,
            b_by_rows,
            elements: [d_element, c_element],
        } = operation
        else {
            return;
        };
        let (a_registers, rest) = detail.sources[1..].split_at(2);
        let (b_registers, c_registers) = rest.split_at(2);
        for quad in 0..4 {
            let (mut a, mut b, mut c) = ([[0.0f64; 4]; 8], [[0.0f64; 8]; 4], [[0.0f64; 8]; 8]);
            for (lane, within, half) in lanes(quad) {
                let value = |registers, index| decode(E::F16, self.fragment_bits(registers, E::F16, warp + lane, index));
                for index in 0..4 {
                    let (row, column) = if a_by_rows {
                        (within + 4 * half, index)
                    } else {
                        (index + 4 * half, within)
                    };
                    a[row][column] = value(a_registers, index);
                    let (row, column) = if b_by_rows {
                        (within, index + 4 * half)
                    } else {
                        (index, within + 4 * half)
                    };
                    b[row][column] = value(b_registers, index);
                }
                for index in 0..8 {
                    let (row, column) = place(c_element, lane, half, index);
                    c[row][column] = decode(c_element, self.fragment_bits(c_registers, c_element, warp + lane, index));
                }
            }
            for (lane, _, half) in lanes(quad) {
                for index in 0..8 {
                    let (row, column) = place(d_element, lane, half, index);
                    let products: f64 = a[row].iter().zip(&b).map(|(factor, row)| factor * row[column]).sum();
                    let bits = encode(d_element, products + c[row][column], false);
                    self.set_fragment_bits(&detail.targets, d_element, warp + lane, index, bits);
                }
            }
        }
    }
}
