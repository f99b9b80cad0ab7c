//! Packing of kernel arguments.

use crate::memory::DevicePointer;

/// Arguments in the order of the parameters, packed as the kernel expects them.
///
/// Each value is written at its parameter's offset; [`bytes`](Self::bytes) is what
/// [`Kernel::launch`](super::Kernel::launch) takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArgumentList {
    bytes: Vec<u8>,
}

impl ArgumentList {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the bytes of a value, aligned to its own size (up to 16).
    fn push(mut self, value: &[u8]) -> Self {
        let aligned = self.bytes.len().next_multiple_of(value.len().max(1));
        self.bytes.resize(aligned, 0);
        self.bytes.extend_from_slice(value);
        self
    }

    /// Appends a pointer.
    pub fn pointer(self, value: DevicePointer) -> Self {
        self.push(&value.0.to_le_bytes())
    }

    /// Appends a 32-bit unsigned integer.
    pub fn u32(self, value: u32) -> Self {
        self.push(&value.to_le_bytes())
    }

    /// Appends a 32-bit signed integer.
    pub fn i32(self, value: i32) -> Self {
        self.push(&value.to_le_bytes())
    }

    /// Appends a 64-bit unsigned integer.
    pub fn u64(self, value: u64) -> Self {
        self.push(&value.to_le_bytes())
    }

    /// Appends a 64-bit signed integer.
    pub fn i64(self, value: i64) -> Self {
        self.push(&value.to_le_bytes())
    }

    /// Appends a 32-bit float.
    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_le_bytes())
    }

    /// Appends a 64-bit float.
    pub fn f64(self, value: f64) -> Self {
        self.push(&value.to_le_bytes())
    }

    /// Returns the packed buffer.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
