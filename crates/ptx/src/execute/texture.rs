//! Fetches from textures, and loads and stores of surfaces, for one lane.

use super::worker::Worker;
use crate::compile::code::SystemDetail;
use crate::compile::ir::{Geometry, Outside, SystemCall, Width};
use crate::fault::FaultKind;
use crate::texture::{Coordinate, Texture, fetch};
use sahasra_ptx_syntax::types::Space;

type Failure = (FaultKind, Option<u64>);

impl Worker<'_> {
    fn read(&mut self, lane: usize, address: u64, bytes: u64) -> Result<u64, Failure> {
        let pointer = self
            .host_address(Space::Generic, lane, address, bytes)
            .map_err(|kind| (kind, Some(address)))?;
        let mut value = 0;
        for index in 0..bytes {
            // SAFETY: reads bytes at a checked address, which is valid until the launch ends.
            value |= u64::from(unsafe { pointer.add(index as usize).read() }) << (8 * index);
        }
        Ok(value)
    }

    fn write(&mut self, lane: usize, address: u64, bytes: u64, value: u64) -> Result<(), Failure> {
        let pointer = self
            .host_address(Space::Generic, lane, address, bytes)
            .map_err(|kind| (kind, Some(address)))?;
        for index in 0..bytes {
            // SAFETY: writes bytes at a checked address, which is valid until the launch ends.
            unsafe { pointer.add(index as usize).write((value >> (8 * index)) as u8) };
        }
        Ok(())
    }

    /// Reads the descriptor at a handle. A handle may also be the address of a variable that holds it.
    pub(super) fn texture(&mut self, lane: usize, handle: u64) -> Result<Texture, Failure> {
        let invalid = |_| (FaultKind::InvalidTexture { handle }, None);
        let first = self.read(lane, handle, 8).map_err(invalid)?;
        let start = if Texture::is_descriptor(first) { handle } else { first };
        if !start.is_multiple_of(8) {
            return Err((FaultKind::InvalidTexture { handle }, None));
        }
        let mut words = [0; 8];
        for (word, offset) in words.iter_mut().zip((0..).step_by(8)) {
            *word = self.read(lane, start.wrapping_add(offset), 8).map_err(invalid)?;
        }
        Texture::of_words(words).ok_or((FaultKind::InvalidTexture { handle }, None))
    }

    /// Returns the word of a source of the instruction.
    fn argument(&self, detail: &SystemDetail, index: usize, lane: usize) -> u32 {
        detail
            .sources
            .get(index)
            .map_or(0, |place| self.element(*place, Width::W32, lane) as u32)
    }

    pub(super) fn fetch(&mut self, detail: &SystemDetail, geometry: Geometry, lane: usize) -> Result<(), Failure> {
        let handles = [0, 1].map(|index| detail.sources.get(index).map_or(0, |place| self.element(*place, Width::W64, lane)));
        let texture = self.texture(lane, handles[0])?;
        let sampler = if handles[0] == handles[1] {
            texture
        } else {
            self.texture(lane, handles[1])?
        };
        let layer = geometry.is_layered.then(|| self.argument(detail, 2, lane));
        let first = 2 + usize::from(geometry.is_layered);
        let mut coordinates = [Coordinate::Texel(0); 3];
        let coordinates = &mut coordinates[..usize::from(geometry.dimensions)];
        for (index, coordinate) in coordinates.iter_mut().enumerate() {
            let word = self.argument(detail, first + index, lane);
            *coordinate = if geometry.is_integer {
                Coordinate::Texel(word as i32)
            } else {
                Coordinate::Position(f32::from_bits(word))
            };
        }
        let texel = fetch(&texture, &sampler, coordinates, layer, |address, bytes| {
            self.read(lane, address, bytes).map(|value| value as u32)
        })?;
        for (target, value) in detail.targets.iter().zip(texel) {
            self.set_element(*target, Width::W32, lane, u64::from(value));
        }
        Ok(())
    }

    /// `suld.b` and `sust.b`, whose first coordinate is in bytes.
    pub(super) fn surface(&mut self, detail: &SystemDetail, lane: usize) -> Result<(), Failure> {
        let SystemCall::Surface {
            geometry,
            element,
            count,
            store,
            outside,
        } = detail.call
        else {
            return Ok(());
        };
        let handle = detail.sources.first().map_or(0, |place| self.element(*place, Width::W64, lane));
        let surface = self.texture(lane, handle)?;
        let (element, layered) = (u64::from(element), usize::from(geometry.is_layered));
        let bytes = element * u64::from(count);
        let row = u64::from(surface.extent[0]) * surface.texel_bytes();
        // Byte in the row, row, and plane or layer, each with the range that it must be in.
        let mut place = [
            (0, row.saturating_sub(bytes) + 1),
            (0, u64::from(surface.extent[1])),
            (0, u64::from(surface.extent[2])),
        ];
        for (axis, (at, _)) in place.iter_mut().enumerate().take(usize::from(geometry.dimensions)) {
            *at = i64::from(self.argument(detail, 1 + layered + axis, lane) as i32);
        }
        if geometry.is_layered {
            place[2].0 = i64::from(self.argument(detail, 1, lane));
        }
        let is_outside = place.iter().any(|(at, end)| u64::try_from(*at).map_or(true, |at| at >= *end)) || bytes > row;
        let values = &detail.sources[(1 + layered + usize::from(geometry.dimensions)).min(detail.sources.len())..];
        let width = Width::of_bytes(element as usize).unwrap_or(Width::W32);
        if is_outside && outside != Outside::Clamp || bytes > row {
            if outside == Outside::Trap {
                return Err((FaultKind::OutOfBounds { bytes: bytes as u32 }, None));
            }
            for target in &detail.targets {
                self.set_element(*target, width, lane, 0);
            }
            return Ok(());
        }
        let [byte, row, plane] = place.map(|(at, end)| at.clamp(0, end.max(1) as i64 - 1) as u64);
        // Clamped accesses stay aligned.
        let address = surface.at(byte / element * element, row, plane);
        for index in 0..u64::from(count) {
            let address = address.wrapping_add(index * element);
            if store {
                let value = values.get(index as usize).map_or(0, |place| self.element(*place, width, lane));
                self.write(lane, address, element, value)?;
            } else if let Some(target) = detail.targets.get(index as usize) {
                let value = self.read(lane, address, element)?;
                self.set_element(*target, width, lane, value);
            }
        }
        Ok(())
    }
}
