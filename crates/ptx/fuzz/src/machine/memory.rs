//! Global memory, as regions at addresses that the caller selects, and the windows of the generic address space.

use super::program::Program;

/// Start of shared memory in the generic address space.
pub(super) const SHARED: u64 = 5 << 60;
/// Start of local memory in the generic address space.
pub(super) const LOCAL: u64 = 6 << 60;
/// Address of the first module-scope variable.
const VARIABLES: u64 = 4 << 60;

/// Regions of bytes at addresses.
#[derive(Clone, Debug, Default)]
pub struct GlobalMemory {
    regions: Vec<(u64, Vec<u8>)>,
}

impl GlobalMemory {
    pub fn add(&mut self, address: u64, bytes: Vec<u8>) {
        self.regions.push((address, bytes));
    }

    /// Returns the bytes of the region that begins at this address.
    pub fn region(&self, address: u64) -> Option<&[u8]> {
        self.regions
            .iter()
            .find(|(start, _)| *start == address)
            .map(|(_, bytes)| bytes.as_slice())
    }

    /// Adds the program's `.global` and `.const` variables with their initial values. Returns their addresses.
    pub(super) fn place(&mut self, program: &Program) -> Result<Vec<u64>, String> {
        let mut next = VARIABLES;
        let addresses: Vec<u64> = program
            .variables
            .iter()
            .map(|variable| {
                let address = next;
                next += (variable.bytes.len() as u64).next_multiple_of(256) + 256;
                address
            })
            .collect();
        for (variable, address) in program.variables.iter().zip(&addresses) {
            let mut bytes = variable.bytes.clone();
            for (offset, target, addend) in &variable.addresses {
                let value = addresses[*target].wrapping_add(*addend);
                bytes[*offset..*offset + 8].copy_from_slice(&value.to_le_bytes());
            }
            for (offset, name) in &variable.functions {
                let function = program.function(name).ok_or_else(|| format!("no function {name}"))?;
                bytes[*offset..*offset + 8].copy_from_slice(&Program::address(function).to_le_bytes());
            }
            self.add(*address, bytes);
        }
        Ok(addresses)
    }

    pub(super) fn at(&mut self, address: u64, length: usize) -> Result<&mut [u8], String> {
        self.regions
            .iter_mut()
            .find_map(|(start, bytes)| {
                let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get_mut(offset..offset.checked_add(length)?)
            })
            .ok_or_else(|| format!("{length} bytes at {address:#x} are outside global memory"))
    }
}

/// Returns `length` bytes at an offset in a space.
pub(super) fn within(space: &mut [u8], offset: u64, length: usize) -> Result<&mut [u8], String> {
    let size = space.len();
    usize::try_from(offset)
        .ok()
        .and_then(|offset| space.get_mut(offset..offset.checked_add(length)?))
        .ok_or_else(|| format!("{length} bytes at offset {offset:#x} of a space of {size}"))
}

/// Reads a little-endian value.
pub(super) fn value(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
