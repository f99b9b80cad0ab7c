//! Operand types (PTX ISA §5.2), as far as semantics depend on them.

use crate::exact::{BF16, F16, F32, F64, Format};

/// Interpretation of a type's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Unsigned,
    /// Two's complement integer.
    Signed,
    /// Untyped bits.
    Bits,
    Float(Format),
    /// Truth value.
    Predicate,
}

/// Type: class, bits of one element, and number of elements in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Interpretation of the bits.
    pub class: Class,
    /// Number of bits of one element; 1 for a predicate.
    pub bits: u32,
    /// Number of elements in a register: 2 for packed types such as `f16x2`.
    pub lanes: u32,
}

impl Kind {
    /// Returns the type with this name, which is given without its dot.
    pub fn from_name(name: &str) -> Option<Self> {
        let float = |format, bits, lanes| Self {
            class: Class::Float(format),
            bits,
            lanes,
        };
        match name {
            "f16" => return Some(float(F16, 16, 1)),
            "f16x2" => return Some(float(F16, 16, 2)),
            "bf16" => return Some(float(BF16, 16, 1)),
            "bf16x2" => return Some(float(BF16, 16, 2)),
            "f32" => return Some(float(F32, 32, 1)),
            "f64" => return Some(float(F64, 64, 1)),
            "pred" => return Some(Self::PREDICATE),
            _ => {}
        }
        let class = match name.chars().next()? {
            'u' => Class::Unsigned,
            's' => Class::Signed,
            'b' => Class::Bits,
            _ => return None,
        };
        let (bits, lanes) = match &name[1..] {
            "8" => (8, 1),
            "16" => (16, 1),
            "32" => (32, 1),
            "64" => (64, 1),
            "16x2" if class != Class::Bits => (16, 2),
            _ => return None,
        };
        Some(Self { class, bits, lanes })
    }

    pub const PREDICATE: Self = Self {
        class: Class::Predicate,
        bits: 1,
        lanes: 1,
    };

    /// Type of 32 untyped bits.
    pub const B32: Self = Self {
        class: Class::Bits,
        bits: 32,
        lanes: 1,
    };

    /// Returns the number of bits of a register of this type.
    pub fn width(self) -> u32 {
        self.bits * self.lanes
    }

    /// Returns the mask of all bits of one element.
    pub fn mask(self) -> u64 {
        mask(self.bits)
    }

    /// Whether the type is a two's complement integer.
    pub fn is_signed(self) -> bool {
        self.class == Class::Signed
    }

    /// Returns the format of a floating point type.
    pub fn format(self) -> Option<Format> {
        match self.class {
            Class::Float(format) => Some(format),
            _ => None,
        }
    }

    /// Returns the integer that the lowest bits represent.
    pub fn integer(self, bits: u64) -> i128 {
        let low = bits & self.mask();
        if self.is_signed() && low >> (self.bits - 1) & 1 == 1 {
            i128::from(low) - (1i128 << self.bits)
        } else {
            i128::from(low)
        }
    }

    /// Returns the smallest and the largest integer of the type.
    pub fn range(self) -> (i128, i128) {
        if self.is_signed() {
            (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1)
        } else {
            (0, (1i128 << self.bits) - 1)
        }
    }

    /// Returns the integer as bits, truncated to the type's width.
    pub fn wrap(self, value: i128) -> u64 {
        (value as u64) & self.mask()
    }
}

/// Returns a mask of the lowest `bits` bits.
pub fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1u64 << bits) - 1 }
}
