//! Bulk copies and reductions: `cp.async.bulk` (PTX ISA §9.7.9.25.4.1), `cp.reduce.async.bulk` (§9.7.9.25.4.2). They are complete when they are
//! issued: their bytes are counted at the `mbarrier` at once, and waits for bulk groups have nothing to wait for.

use super::{At, Lowering};
use crate::compile::ir::{Action, AtomicOperation, BulkCopy, RegisterId, SystemCall, Width};
use crate::lanes::convert::Resize;
use crate::lanes::{binary, integer as int, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::{Constant, Operand};
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

/// Bulk copies take addresses and sizes that are multiples of this many bytes.
pub(crate) const BULK_BYTES: u64 = 16;

fn space(word: &str) -> Option<Space> {
    match word {
        "shared::cta" => Some(Space::Shared),
        "global" => Some(Space::Global),
        _ => None,
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn bulk(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.modifiers() {
            ["async", "bulk", "commit_group"] => {
                at.operands::<0>()?;
                return Ok(());
            }
            ["async", "bulk", "wait_group", ..] => {
                at.operands::<1>()?;
                return Ok(());
            }
            ["async", "bulk", "prefetch", ..] => {
                let [source, bytes] = at.operands_before_policy()?;
                self.address(at, source)?;
                self.source(at, bytes, T::U32)?;
                return Ok(());
            }
            _ => {}
        }
        let words = at.modifiers();
        let reduces = words.first() == Some(&"reduce");
        let ends: Vec<Space> = words.iter().filter_map(|word| space(word)).collect();
        let [to_space, from_space] = ends[..] else { return Err(at.form()) };
        let (policy, counts) = (words.contains(&"L2::cache_hint"), words.contains(&"mbarrier::complete_tx::bytes"));
        let (multicast, masked) = (words.contains(&"multicast::cluster"), words.contains(&"cp_mask"));
        let expected = 3 + [policy, counts, multicast, masked].into_iter().map(usize::from).sum::<usize>();
        let operands = at.all_operands();
        let [to, from, bytes, rest @ ..] = operands else {
            return Err(at.invalid(format!("expected {expected} operands, found {}", operands.len())));
        };
        if operands.len() != expected {
            return Err(at.invalid(format!("expected {expected} operands, found {}", operands.len())));
        }
        if let Operand::Constant(Constant::Integer(bytes)) = bytes
            && !bytes.is_multiple_of(BULK_BYTES)
        {
            return Err(at.invalid("the size of a bulk copy is not a multiple of 16 bytes"));
        }
        let reduction = if reduces { Some(reduction(at)?) } else { None };
        let mut sources = vec![
            self.whole_address(at, to)?,
            self.whole_address(at, from)?,
            self.source(at, bytes, T::U32)?,
        ];
        if multicast {
            // Every valid mask of blocks has the only one.
            self.source(at, &rest[usize::from(counts)], T::U16)?;
        }
        if masked {
            // The policy precedes the mask of bytes.
            sources.push(self.source(at, &rest[usize::from(policy)], T::U16)?);
        }
        let copy = BulkCopy {
            to: to_space,
            from: from_space,
            reduction,
        };
        self.emit(Action::System(SystemCall::Bulk(copy)), vec![], sources);
        match rest.first() {
            Some(barrier) if counts => self.complete_bytes(at, barrier, bytes),
            _ => Ok(()),
        }
    }

    /// `st.bulk [address], bytes, 0`, of shared memory.
    pub(super) fn store_bulk(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let [address, bytes, value] = at.operands()?;
        if !matches!(value, Operand::Constant(Constant::Integer(0))) {
            return Err(at.invalid("the value of a bulk store is not 0"));
        }
        let mut space = if at.modifiers().contains(&"shared::cta") {
            Space::Shared
        } else {
            Space::Generic
        };
        if let Operand::Address { base: Some(name), .. } = address
            && self.register(name).is_none()
        {
            space = self.address(at, address)?.space.unwrap_or(space);
        }
        let (address, bytes) = (self.whole_address(at, address)?, self.any_source(at, bytes, T::U64)?);
        let guard = self.guard.take();
        let bytes = match self.width(bytes) {
            Width::W64 => bytes,
            Width::W32 => {
                let wide = self.new_register(Width::W64);
                self.lane(unary::<Resize<u32, u64>>(), wide, &[bytes]);
                wide
            }
            _ => return Err(at.invalid("the size of a bulk store has 32 or 64 bits")),
        };
        self.guard = guard;
        self.emit(Action::System(SystemCall::Clear(space)), vec![], vec![address, bytes]);
        Ok(())
    }

    /// Returns the address of an operand in one register of 64 bits.
    fn whole_address(&mut self, at: At<'a, '_>, operand: &Operand<'a>) -> Result<RegisterId, LoadError> {
        let place = self.address(at, operand)?;
        let guard = self.guard.take();
        let mut address = place.register;
        if self.width(address) == Width::W32 {
            let wide = self.new_register(Width::W64);
            self.lane(unary::<Resize<u32, u64>>(), wide, &[address]);
            address = wide;
        }
        if place.offset != 0 {
            let (sum, offset) = (self.new_register(Width::W64), self.constant(Width::W64, place.offset as u64));
            self.lane(binary::<int::Add<u64>>(), sum, &[address, offset]);
            address = sum;
        }
        self.guard = guard;
        Ok(address)
    }
}

/// Returns the operation on each element, and the size of an element in bytes.
fn reduction(at: At<'_, '_>) -> Result<(AtomicOperation, u8), LoadError> {
    let scalar = at.modifiers().last().and_then(|word| T::from_name(word)).ok_or_else(|| at.form())?;
    let known = ["add", "min", "max", "inc", "dec", "and", "or", "xor"];
    let operation = at.modifiers().iter().find(|word| known.contains(word));
    let operation = operation.and_then(|word| super::atomic::operation(word, scalar));
    Ok((operation.ok_or_else(|| at.form())?, scalar.bytes() as u8))
}
