//! Bulk copies, reductions (PTX ISA §9.7.9.25.4) and stores (§9.7.9.13) of one lane.

use super::atomic::reduce;
use super::worker::Worker;
use super::{LOCAL_WINDOW, SHARED_WINDOW};
use crate::compile::code::SystemDetail;
use crate::compile::ir::{BulkCopy, Width};
use crate::fault::FaultKind;
use sahasra_ptx_syntax::types::Space;

/// Addresses and sizes of copies are multiples of this many bytes.
const UNIT: u64 = 16;
/// Addresses and sizes of stores are multiples of this many bytes.
const STORE_UNIT: u64 = 8;

impl Worker<'_> {
    /// `st.bulk`: the value stored is always zero.
    pub(super) fn clear(&mut self, detail: &SystemDetail, space: Space, lane: usize) -> Result<(), (FaultKind, Option<u64>)> {
        let [address, bytes] = [0, 1].map(|index| self.element(detail.sources[index], Width::W64, lane));
        if bytes == 0 {
            return Ok(());
        }
        if !bytes.is_multiple_of(STORE_UNIT) || !address.is_multiple_of(STORE_UNIT) {
            return Err((
                FaultKind::Misaligned {
                    alignment: STORE_UNIT as u32,
                },
                Some(address),
            ));
        }
        let shared = space == Space::Shared || (SHARED_WINDOW..LOCAL_WINDOW).contains(&address);
        let target = if shared {
            self.host_address(space, lane, address, bytes)
        } else {
            Err(FaultKind::OutOfBounds {
                bytes: bytes.min(u64::from(u32::MAX)) as u32,
            })
        };
        let target = target.map_err(|kind| (kind, Some(address)))?;
        // SAFETY: the range of `bytes` bytes is checked.
        unsafe { target.write_bytes(0, bytes as usize) }
        Ok(())
    }

    pub(super) fn bulk(&mut self, detail: &SystemDetail, copy: BulkCopy, lane: usize) -> Result<(), (FaultKind, Option<u64>)> {
        let [to, from] = [0, 1].map(|index| self.element(detail.sources[index], Width::W64, lane));
        let bytes = self.element(detail.sources[2], Width::W32, lane);
        if bytes == 0 {
            return Ok(());
        }
        let misaligned = FaultKind::Misaligned { alignment: UNIT as u32 };
        if !bytes.is_multiple_of(UNIT) {
            return Err((misaligned, None));
        }
        let mut pointer = |space: Space, address: u64| {
            let found = self.host_address(space, lane, address, bytes).and_then(|pointer| {
                if address.is_multiple_of(UNIT) {
                    Ok(pointer)
                } else {
                    Err(misaligned.clone())
                }
            });
            found.map_err(|kind| (kind, Some(address)))
        };
        let source = pointer(copy.from, from)?;
        let target = pointer(copy.to, to)?;
        let bytes = bytes as usize;
        if let Some((operation, size)) = copy.reduction {
            for at in (0..bytes).step_by(usize::from(size)) {
                // SAFETY: both ranges of `bytes` bytes are checked, and aligned to 16 bytes.
                unsafe { reduce(operation, size, target.add(at), source.add(at)) }
            }
            return Ok(());
        }
        match detail.sources.get(3) {
            Some(mask) => {
                let mask = self.element(*mask, Width::W16, lane);
                for at in (0..bytes).filter(|at| mask >> (at % UNIT as usize) & 1 != 0) {
                    // SAFETY: both ranges of `bytes` bytes are checked.
                    unsafe { target.add(at).write(source.add(at).read()) }
                }
            }
            // SAFETY: both ranges of `bytes` bytes are checked.
            None => unsafe { std::ptr::copy(source, target, bytes) },
        }
        Ok(())
    }
}
