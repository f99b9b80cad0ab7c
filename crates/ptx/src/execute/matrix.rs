//! Matrix operations of a warp (PTX ISA §9.7.14). Products of floats are exact in f64. They are summed in f64, in ascending order of k and
//! the addend last, and the sum is rounded once. The ISA does not specify order and intermediate precision.

use super::worker::{Stop, Worker};
use crate::compile::code::{Place, WarpDetail};
use crate::compile::ir::{MatrixElement as E, MatrixOperation, Width};
use crate::lanes::half::{Brain, Half, Sixteen};
use crate::lanes::narrow::{E4m3, E5m2, Eight};
use sahasra_ptx_syntax::types::Space;

/// Elements of a matrix. The largest matrices are 32 by 16 elements.
type Matrix = [f64; 512];

/// Row and column of an element in an `mma` fragment of `a` (§9.7.14.5.1-13), whose registers hold `packed` elements each.
fn place_a(lane: usize, index: usize, packed: usize) -> (usize, usize) {
    let (register, within) = (index / packed, index % packed);
    (
        lane / 4 + 8 * (register & 1),
        lane % 4 * packed + within + (register >> 1) * 4 * packed,
    )
}

fn place_b(lane: usize, index: usize, packed: usize) -> (usize, usize) {
    let (register, within) = (index / packed, index % packed);
    (lane % 4 * packed + within + register * 4 * packed, lane / 4)
}

pub(super) fn place_c(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + 8 * (index >> 1), lane % 4 * 2 + (index & 1))
}

pub(super) fn decode(element: E, bits: u64) -> f64 {
    match element {
        E::F16 => f64::from(Half(bits as u16).value()),
        E::Bf16 => f64::from(Brain(bits as u16).value()),
        E::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        E::F32 => f64::from(f32::from_bits(bits as u32)),
        E::F64 => f64::from_bits(bits),
        E::S8 => f64::from(bits as i8),
        E::U8 => f64::from(bits as u8),
        E::S32 => f64::from(bits as i32),
        E::E4m3 => f64::from(E4m3::widen(bits as u8).value()),
        E::E5m2 => f64::from(E5m2::widen(bits as u8).value()),
        // Elements of less than a byte are multiplied by the register.
        E::S4 | E::U4 | E::B1 => 0.0,
    }
}

pub(super) fn encode(element: E, value: f64, saturate: bool) -> u64 {
    match element {
        E::F16 => u64::from(Half::nearest(crate::lanes::half::to_odd(value, 0.0)).0),
        E::F64 => value.to_bits(),
        // Sums of at most 32 products of bytes and an i32 are exact in f64.
        E::S32 if saturate => u64::from((value as i32) as u32),
        E::S32 => u64::from(value as i64 as u32),
        _ => u64::from((value as f32).to_bits()),
    }
}

impl Worker<'_> {
    /// Returns the bits of element `index` of a fragment in a lane.
    pub(super) fn fragment_bits(&self, registers: &[Place], element: E, lane: usize, index: usize) -> u64 {
        if element == E::F64 {
            return self.element(registers[index], Width::W64, lane);
        }
        let packed = element.in_register() as usize;
        let word = self.element(registers[index / packed], Width::W32, lane);
        word >> (index % packed * (32 / packed)) & (u64::MAX >> (64 - 32 / packed))
    }

    pub(super) fn set_fragment_bits(&mut self, registers: &[Place], element: E, lane: usize, index: usize, bits: u64) {
        if element == E::F64 {
            return self.set_element(registers[index], Width::W64, lane, bits);
        }
        let packed = element.in_register() as usize;
        let shift = index % packed * (32 / packed);
        let field = (u64::MAX >> (64 - 32 / packed)) << shift;
        let place = registers[index / packed];
        let word = self.element(place, Width::W32, lane);
        self.set_element(place, Width::W32, lane, word & !field | bits << shift & field);
    }

    pub(super) fn matrix(&mut self, detail: &WarpDetail, operation: MatrixOperation, warp: usize, pc: u32) -> Result<(), Stop> {
        match operation {
            MatrixOperation::Multiply {
                shape,
                elements,
                saturate,
                opaque,
            } => {
                self.multiply(detail, shape, elements, saturate, opaque, warp);
                Ok(())
            }
            MatrixOperation::MultiplyWords { .. } => {
                self.multiply_words(detail, operation, warp);
                Ok(())
            }
            MatrixOperation::MultiplyQuads { .. } => {
                self.multiply_quads(detail, operation, warp);
                Ok(())
            }
            MatrixOperation::Transpose => {
                self.transpose(detail, warp);
                Ok(())
            }
            MatrixOperation::Rows { .. } => self.move_rows(detail, operation, warp, pc),
            MatrixOperation::Move { .. } => self.move_matrix(detail, operation, warp, pc),
        }
    }

    fn multiply(&mut self, detail: &WarpDetail, shape: [u8; 3], elements: [E; 4], saturate: bool, opaque: bool, warp: usize) {
        let [m, n, k] = shape.map(usize::from);
        let [d_element, a_element, b_element, c_element] = elements;
        let registers = &detail.sources[1..];
        let held = |element: E, elements: usize| elements / element.in_register() as usize;
        let inputs = |size: usize| if opaque && a_element == E::F16 { 16 } else { size / 32 };
        let (a_count, b_count, c_count) = (inputs(m * k), inputs(k * n), m * n / 32);
        let (a_registers, rest) = registers.split_at(held(a_element, a_count));
        let (b_registers, c_registers) = rest.split_at(held(b_element, b_count));
        let (mut a, mut b, mut c): (Matrix, Matrix, Matrix) = ([0.0; 512], [0.0; 512], [0.0; 512]);
        for lane in 0..32 {
            for index in 0..a_count {
                let packed = a_element.in_register() as usize;
                let (row, column) = if opaque {
                    divide(lane * a_count + index, m * k, k)
                } else {
                    place_a(lane, index, packed)
                };
                a[row * k + column] = decode(a_element, self.fragment_bits(a_registers, a_element, warp + lane, index));
            }
            for index in 0..b_count {
                let packed = b_element.in_register() as usize;
                let (row, column) = if opaque {
                    divide(lane * b_count + index, k * n, n)
                } else {
                    place_b(lane, index, packed)
                };
                b[row * n + column] = decode(b_element, self.fragment_bits(b_registers, b_element, warp + lane, index));
            }
            for index in 0..c_count {
                let (row, column) = if opaque {
                    divide(lane * c_count + index, m * n, n)
                } else {
                    place_c(lane, index)
                };
                c[row * n + column] = decode(c_element, self.fragment_bits(c_registers, c_element, warp + lane, index));
            }
        }
        let fused = a_element == E::F64;
        for row in 0..m {
            let mut sums = [0.0f64; 32];
            let sums = &mut sums[..n];
            if fused {
                sums.copy_from_slice(&c[row * n..][..n]);
            }
            for step in 0..k {
                let factor = a[row * k + step];
                for (sum, value) in sums.iter_mut().zip(&b[step * n..][..n]) {
                    *sum = if fused {
                        factor.mul_add(*value, *sum)
                    } else {
                        *sum + factor * value
                    };
                }
            }
            for (place, sum) in c[row * n..][..n].iter_mut().zip(sums) {
                *place = if fused { *sum } else { *sum + *place };
            }
        }
        for lane in 0..32 {
            for index in 0..c_count {
                let (row, column) = if opaque {
                    divide(lane * c_count + index, m * n, n)
                } else {
                    place_c(lane, index)
                };
                let bits = encode(d_element, c[row * n + column], saturate);
                self.set_fragment_bits(&detail.targets, d_element, warp + lane, index, bits);
            }
        }
    }

    fn transpose(&mut self, detail: &WarpDetail, warp: usize) {
        let mut matrix = [[0u64; 8]; 8];
        for lane in 0..32 {
            for index in 0..2 {
                matrix[lane / 4][lane % 4 * 2 + index] = self.fragment_bits(&detail.sources[1..], E::F16, warp + lane, index);
            }
        }
        for lane in 0..32 {
            for index in 0..2 {
                let bits = matrix[lane % 4 * 2 + index][lane / 4];
                self.set_fragment_bits(&detail.targets, E::F16, warp + lane, index, bits);
            }
        }
    }

    /// Returns the host address of one lane's access in a matrix operation, checked for bounds and alignment.
    pub(super) fn matrix_pointer(&mut self, space: Space, lane: usize, address: u64, bytes: u64, pc: u32) -> Result<*mut u8, Stop> {
        let found = self.host_address(space, lane, address, bytes).and_then(|pointer| {
            if address.is_multiple_of(bytes) {
                Ok(pointer)
            } else {
                Err(crate::fault::FaultKind::Misaligned { alignment: bytes as u32 })
            }
        });
        found.map_err(|kind| Stop {
            address: Some(address),
            ..self.stop(kind, pc, 1 << lane)
        })
    }

    /// `ldmatrix`, `stmatrix`: lane 8i + r has the address of row r of matrix i.
    fn move_rows(&mut self, detail: &WarpDetail, operation: MatrixOperation, warp: usize, pc: u32) -> Result<(), Stop> {
        let MatrixOperation::Rows {
            transposed,
            store,
            space,
            offset,
        } = operation
        else {
            return Ok(());
        };
        let registers = if store { &detail.sources[2..] } else { &detail.targets[..] };
        for (number, register) in registers.iter().enumerate() {
            let mut rows = [std::ptr::null_mut::<u8>(); 8];
            for (row, pointer) in rows.iter_mut().enumerate() {
                let lane = warp + 8 * number + row;
                let address = self.element(detail.sources[1], Width::W64, lane).wrapping_add(offset as u64);
                *pointer = self.matrix_pointer(space, lane, address, 16, pc)?;
            }
            for lane in 0..32 {
                for index in 0..2 {
                    let (row, column) = (lane / 4, lane % 4 * 2 + index);
                    let (row, column) = if transposed { (column, row) } else { (row, column) };
                    let pointer = rows[row].wrapping_add(2 * column).cast::<u16>();
                    let register = std::slice::from_ref(register);
                    if store {
                        let bits = self.fragment_bits(register, E::F16, warp + lane, index) as u16;
                        // SAFETY: the 16 bytes of the row are checked.
                        unsafe { pointer.write_unaligned(bits) }
                    } else {
                        // SAFETY: the 16 bytes of the row are checked.
                        let bits = unsafe { pointer.read_unaligned() };
                        self.set_fragment_bits(register, E::F16, warp + lane, index, u64::from(bits));
                    }
                }
            }
        }
        Ok(())
    }

    /// `wmma.load`, `wmma.store`.
    fn move_matrix(&mut self, detail: &WarpDetail, operation: MatrixOperation, warp: usize, pc: u32) -> Result<(), Stop> {
        let MatrixOperation::Move {
            rows,
            columns,
            by_rows,
            element,
            store,
            space,
            offset,
        } = operation
        else {
            return Ok(());
        };
        if element.is_narrow() {
            return self.load_words(detail, operation, warp, pc);
        }
        let registers = if store { &detail.sources[3..] } else { &detail.targets[..] };
        let (rows, columns) = (usize::from(rows), usize::from(columns));
        let count = registers.len() * element.in_register() as usize;
        let bytes = element.bytes();
        for lane in 0..32 {
            let base = self.element(detail.sources[1], Width::W64, warp + lane).wrapping_add(offset as u64);
            let stride = self.element(detail.sources[2], Width::W32, warp + lane);
            for index in 0..count {
                let (row, column) = divide(lane * count + index, rows * columns, columns);
                let (major, minor) = if by_rows { (row, column) } else { (column, row) };
                let at = (major as u64).wrapping_mul(stride).wrapping_add(minor as u64);
                let address = base.wrapping_add(at.wrapping_mul(bytes));
                let pointer = self.matrix_pointer(space, warp + lane, address, bytes, pc)?;
                let mut raw = [0u8; 8];
                if store {
                    raw = self.fragment_bits(registers, element, warp + lane, index).to_le_bytes();
                    // SAFETY: the bytes of the element are checked.
                    unsafe { std::ptr::copy_nonoverlapping(raw.as_ptr(), pointer, bytes as usize) }
                } else {
                    // SAFETY: the bytes of the element are checked.
                    unsafe { std::ptr::copy_nonoverlapping(pointer, raw.as_mut_ptr(), bytes as usize) }
                    self.set_fragment_bits(registers, element, warp + lane, index, u64::from_le_bytes(raw));
                }
            }
        }
        Ok(())
    }
}

/// Row and column of an element of an opaque fragment.
pub(super) fn divide(linear: usize, size: usize, columns: usize) -> (usize, usize) {
    let linear = linear % size;
    (linear / columns, linear % columns)
}
