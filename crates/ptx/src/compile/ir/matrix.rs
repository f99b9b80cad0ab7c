//! Matrix operations of a warp (PTX ISA §9.7.14).

use sahasra_ptx_syntax::types::Space;

/// Element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixElement {
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

impl MatrixElement {
    /// Number of elements in a register of 32 bits, or of 64 bits for f64.
    pub(crate) fn in_register(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::S8 | Self::U8 | Self::E4m3 | Self::E5m2 => 4,
            Self::S4 | Self::U4 => 8,
            Self::B1 => 32,
            _ => 1,
        }
    }

    /// Whether an element takes less than a byte.
    pub(crate) fn is_narrow(self) -> bool {
        self.in_register() > 4
    }

    /// Size of an element in memory in bytes; that of a register for elements of less than a byte.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::F64 => 8,
            _ if self.is_narrow() => 4,
            _ => u64::from(4 / self.in_register()),
        }
    }
}

/// Matrix of a `wmma` operation that a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixPart {
    A,
    B,
    C,
    D,
}

/// Product of two registers of narrow elements, summed over the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordProduct {
    /// Number of bits that are set in one register only, and in both.
    Xor,
    And,
    /// Products of 4-bit integers, signed or not.
    Nibbles {
        a_signed: bool,
        b_signed: bool,
    },
}

/// Matrix operations of a warp (PTX ISA §9.7.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixOperation {
    /// sources: registers of a, b and c. `elements` are the types of d, a, b and c.
    Multiply {
        shape: [u8; 3],
        elements: [MatrixElement; 4],
        saturate: bool,
        /// Whether the operands are fragments of `wmma`, whose layout is opaque.
        opaque: bool,
    },
    /// Products of elements of less than a byte, which are as long as a row of registers of 32 bits. sources: registers of a, b and c.
    MultiplyWords {
        /// Rows of a and d, and registers in each row of a and column of b.
        rows: u8,
        words: u8,
        product: WordProduct,
        saturate: bool,
        /// Whether c and d are fragments of `wmma`.
        opaque: bool,
    },
    /// Four products of 8 by 4 and 4 by 8 f16, each of the eight lanes 4q to 4q+3 and 4q+16 to 4q+19 (§9.7.14.5.1). sources: registers of a, b and c.
    MultiplyQuads {
        a_by_rows: bool,
        b_by_rows: bool,
        /// Types of d and c.
        elements: [MatrixElement; 2],
    },
    /// sources: address, stride, and for stores the registers.
    Move {
        rows: u8,
        columns: u8,
        by_rows: bool,
        element: MatrixElement,
        store: bool,
        space: Space,
        offset: i64,
    },
    /// sources: address of a row, and for stores the registers.
    Rows {
        transposed: bool,
        store: bool,
        space: Space,
        offset: i64,
    },
    /// `movmatrix`. sources: the register.
    Transpose,
}
