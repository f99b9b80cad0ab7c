//! Loads, stores and atomic operations.

use super::Block;
use super::memory::{GlobalMemory, LOCAL, SHARED, value, within};
use super::program::{Access, Argument, Space, Update};
use super::thread::{Thread, U64};
use crate::kind::{Class, Kind};

/// Address operand: its base, and an offset in bytes.
type Address<'a> = (&'a Argument, u64);

/// Maximum number of bytes that one instruction moves.
const WIDEST: usize = 32;

impl Block<'_> {
    /// Returns the bytes at an address operand.
    fn bytes<'b>(
        &'b mut self,
        thread: &'b mut Thread,
        access: Access,
        (base, offset): Address<'_>,
        length: usize,
        memory: &'b mut GlobalMemory,
    ) -> Result<&'b mut [u8], String> {
        let (space, address) = match base {
            Argument::Parameter(start, _) => (Space::Parameter, start.wrapping_add(offset)),
            Argument::Symbol(..) => (Space::Global, self.get(thread, base, U64)?.wrapping_add(offset)),
            Argument::Variable(space, _) => (*space, self.get(thread, base, U64)?.wrapping_add(offset)),
            _ => (access.space, self.get(thread, base, U64)?.wrapping_add(offset)),
        };
        if !address.is_multiple_of(length as u64) {
            return Err(format!("{length} bytes at {address:#x} are not aligned"));
        }
        match space {
            Space::Generic if address >= LOCAL => within(&mut thread.local, address - LOCAL, length),
            Space::Generic if address >= SHARED => within(&mut self.shared, address - SHARED, length),
            Space::Shared => within(&mut self.shared, address, length),
            Space::Local => within(&mut thread.local, address, length),
            Space::Parameter => within(&mut thread.frame().parameters, address, length),
            Space::Global | Space::Generic => memory.at(address, length),
        }
    }

    pub(super) fn load(
        &mut self,
        thread: &mut Thread,
        access: Access,
        target: &Argument,
        address: Address<'_>,
        memory: &mut GlobalMemory,
    ) -> Result<(), String> {
        let (size, targets) = (access.size(), target.elements());
        let length = size * targets.len();
        let mut loaded = [0; WIDEST];
        let loaded = loaded.get_mut(..length).ok_or("a load of too many bytes")?;
        loaded.copy_from_slice(self.bytes(thread, access, address, length, memory)?);
        for (target, bytes) in targets.iter().zip(loaded.chunks_exact(size)) {
            let bits = value(bytes);
            let wide = if access.kind.class == Class::Signed {
                access.kind.integer(bits) as u64
            } else {
                bits
            };
            thread.set(self.program, target, wide)?;
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        thread: &mut Thread,
        access: Access,
        address: Address<'_>,
        source: &Argument,
        memory: &mut GlobalMemory,
    ) -> Result<(), String> {
        let (size, sources) = (access.size(), source.elements());
        let mut stored = [0; WIDEST];
        let stored = stored.get_mut(..size * sources.len()).ok_or("a store of too many bytes")?;
        for (source, bytes) in sources.iter().zip(stored.chunks_exact_mut(size)) {
            bytes.copy_from_slice(&self.get(thread, source, access.kind)?.to_le_bytes()[..size]);
        }
        self.bytes(thread, access, address, stored.len(), memory)?.copy_from_slice(stored);
        Ok(())
    }

    /// `atom` and `red` (PTX ISA §9.7.13.5, §9.7.13.6). Each element of a vector is a separate operation.
    pub(super) fn atomic(
        &mut self,
        thread: &mut Thread,
        (access, update): (Access, &Update),
        target: &Argument,
        (base, offset): Address<'_>,
        operands: &[Argument],
        memory: &mut GlobalMemory,
    ) -> Result<(), String> {
        let kind = access.kind;
        let (first, second) = match operands {
            [first] => (first.elements(), &[][..]),
            [first, second, ..] => (first.elements(), second.elements()),
            [] => return Err("an atomic operation without operands".to_owned()),
        };
        for (index, operand) in first.iter().enumerate() {
            let b = self.get(thread, operand, kind)?;
            let c = match second.get(index) {
                Some(argument) => self.get(thread, argument, kind)?,
                None => 0,
            };
            let at = offset.wrapping_add((index * access.size()) as u64);
            let place = self.bytes(thread, access, (base, at), access.size(), memory)?;
            let old = value(place);
            let new = updated(update, kind, old, b, c);
            place.copy_from_slice(&new.to_le_bytes()[..access.size()]);
            if let Some(target) = target.elements().get(index) {
                thread.set(self.program, target, old)?;
            }
        }
        Ok(())
    }
}

/// Returns the value that an atomic operation writes to memory.
fn updated(update: &Update, kind: Kind, old: u64, b: u64, c: u64) -> u64 {
    let number = |bits: u64| kind.integer(bits);
    match update {
        Update::AddFloat(addition) => addition.apply(&[old, b], false).values[0],
        Update::Add => kind.wrap(number(old) + number(b)),
        Update::And => old & b,
        Update::Or => old | b,
        Update::Xor => old ^ b,
        Update::Exchange => b,
        Update::CompareExchange if old == b => c,
        Update::CompareExchange => old,
        Update::Minimum => kind.wrap(number(old).min(number(b))),
        Update::Maximum => kind.wrap(number(old).max(number(b))),
        Update::Increment if old >= b => 0,
        Update::Increment => old + 1,
        Update::Decrement if old == 0 || old > b => b,
        Update::Decrement => old - 1,
    }
}
