//! Functions of CUDA's device runtime: `vprintf`, `__assertfail`, `malloc`, `free` (CUDA C++ Programming Guide §10.32-34).

use super::print;
use super::worker::{Stop, Worker};
use crate::compile::code::SystemDetail;
use crate::compile::ir::{SystemCall, Width};
use crate::fault::FaultKind;
use crate::lanes::memory::for_each_lane;
use crate::memory::{DevicePointer, Heap};
use sahasra_ptx_syntax::types::Space;

/// Longest text read from a kernel's memory, in bytes.
const TEXT_LIMIT: usize = 64 << 10;

impl Worker<'_> {
    pub(super) fn system(&mut self, detail: &SystemDetail, mask: u64, pc: u32) -> Result<(), Stop> {
        let mut failed = None;
        for_each_lane(mask, |lane| {
            if failed.is_none()
                && let Err((kind, address)) = self.system_lane(detail, lane)
            {
                failed = Some((lane, kind, address));
            }
        });
        match failed {
            None => Ok(()),
            Some((lane, kind, address)) => Err(Stop {
                address,
                ..self.stop(kind, pc, 1 << lane)
            }),
        }
    }

    fn system_lane(&mut self, detail: &SystemDetail, lane: usize) -> Result<(), (FaultKind, Option<u64>)> {
        let word =
            |worker: &Self, index: usize, width: Width| detail.sources.get(index).map_or(0, |place| worker.element(*place, width, lane));
        match detail.call {
            SystemCall::Print => {
                let format = self.text(lane, word(self, 0, Width::W64))?;
                let arguments = word(self, 1, Width::W64);
                let mut reader = Reader {
                    worker: self,
                    lane,
                    next: arguments,
                };
                let (text, conversions) = print::format(&format, &mut reader)?;
                if let Some(output) = &self.session.launch.output {
                    output.append(&text);
                }
                if let Some(target) = detail.targets.first() {
                    self.set_element(*target, Width::W32, lane, u64::from(conversions));
                }
                Ok(())
            }
            SystemCall::AssertFail => {
                let message = self.text(lane, word(self, 0, Width::W64))?;
                let file = self.text(lane, word(self, 1, Width::W64))?;
                let line = word(self, 2, Width::W32) as u32;
                let function = self.text(lane, word(self, 3, Width::W64))?;
                let [message, file, function] = [message, file, function].map(|text| String::from_utf8_lossy(&text).into_owned());
                let text = format!("`{message}` at {file}:{line} in {function}");
                Err((FaultKind::AssertFailed(text), None))
            }
            SystemCall::Allocate => {
                let bytes = word(self, 0, Width::W64);
                let address = self.heap().allocate(self.session.memory, bytes).map_or(0, |pointer| pointer.0);
                if let Some(target) = detail.targets.first() {
                    self.set_element(*target, Width::W64, lane, address);
                }
                Ok(())
            }
            SystemCall::Fetch(geometry) => self.fetch(detail, geometry, lane),
            SystemCall::Surface { .. } => self.surface(detail, lane),
            SystemCall::Extent(axis) => {
                let texture = self.texture(lane, word(self, 0, Width::W64))?;
                if let Some(target) = detail.targets.first() {
                    self.set_element(*target, Width::W32, lane, u64::from(texture.extent[usize::from(axis)]));
                }
                Ok(())
            }
            SystemCall::AllocateStack { alignment } => {
                let (bytes, pointer) = (word(self, 0, Width::W64), word(self, 1, Width::W64));
                let limit = u64::from(self.session.launch.stack_bytes);
                let start = pointer.next_multiple_of(alignment);
                // Frames that follow begin at a multiple of 16 bytes.
                let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(16));
                let end = end.filter(|end| *end <= self.code.local_bytes + limit);
                let end = end.ok_or((FaultKind::StackOverflow { limit }, None))?;
                for (target, value) in detail.targets.iter().zip([start, end]) {
                    self.set_element(*target, Width::W64, lane, value);
                }
                Ok(())
            }
            SystemCall::Clear(space) => self.clear(detail, space, lane),
            SystemCall::Bulk(copy) => self.bulk(detail, copy, lane),
            SystemCall::CheckRank => match word(self, 0, Width::W32) {
                0 => Ok(()),
                rank => Err((FaultKind::InvalidRank { rank: rank as u32 }, None)),
            },
            SystemCall::Free => {
                let address = word(self, 0, Width::W64);
                if address == 0 || self.heap().free(self.session.memory, DevicePointer(address)).is_ok() {
                    Ok(())
                } else {
                    Err((FaultKind::InvalidFree, Some(address)))
                }
            }
        }
    }

    fn heap(&self) -> &Heap {
        self.session.launch.heap.as_ref().unwrap_or(self.session.memory.heap())
    }

    /// Reads the bytes up to a zero.
    fn text(&mut self, lane: usize, address: u64) -> Result<Vec<u8>, (FaultKind, Option<u64>)> {
        let mut text = Vec::new();
        while text.len() < TEXT_LIMIT {
            match self.byte(lane, address.wrapping_add(text.len() as u64))? {
                0 => break,
                byte => text.push(byte),
            }
        }
        Ok(text)
    }

    pub(super) fn byte(&mut self, lane: usize, address: u64) -> Result<u8, (FaultKind, Option<u64>)> {
        let pointer = self
            .host_address(Space::Generic, lane, address, 1)
            .map_err(|kind| (kind, Some(address)))?;
        // SAFETY: reads one byte at a checked address, which is valid until the launch ends.
        Ok(unsafe { pointer.read() })
    }
}

/// The arguments of one `vprintf`, each at its own alignment.
struct Reader<'a, 'b> {
    worker: &'a mut Worker<'b>,
    lane: usize,
    next: u64,
}

impl print::Arguments for Reader<'_, '_> {
    type Error = (FaultKind, Option<u64>);

    fn value(&mut self, bytes: u64) -> Result<u64, Self::Error> {
        let at = self.next.next_multiple_of(bytes);
        self.next = at.wrapping_add(bytes);
        let mut value = 0;
        for index in 0..bytes {
            value |= u64::from(self.worker.byte(self.lane, at.wrapping_add(index))?) << (8 * index);
        }
        Ok(value)
    }

    fn text(&mut self, address: u64) -> Result<Vec<u8>, Self::Error> {
        self.worker.text(self.lane, address)
    }
}
