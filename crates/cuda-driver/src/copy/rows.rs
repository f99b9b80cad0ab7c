//! Copies of bytes to and from CUDA arrays, whose rows follow each other.

use std::sync::Arc;

use sahasra_cuda_device::{Extent, Region};

use crate::array::Array;
use crate::boundary::Handle;
use crate::driver;
use crate::lane::Lane;
use crate::status::Status;

use super::{Completion, Side, copy};

/// Bytes in memory, or those of an array from an offset on.
pub(crate) enum Bytes {
    Memory(Side),
    Array { array: Arc<Array>, offset: u64 },
}

impl Bytes {
    /// Bytes of an array from an offset on.
    pub(crate) fn of_array(array: Handle, offset: usize) -> Result<Self, Status> {
        let array = driver::get()?.arrays.get(array)?;
        let offset = offset as u64;
        Ok(Self::Array { array, offset })
    }

    /// Refuses bytes beyond an array, and parts of texels.
    fn check(&self, bytes: u64) -> Result<(), Status> {
        let Self::Array { array, offset } = self else {
            return Ok(());
        };
        let texel = array.layout.format.bytes();
        let end = offset.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
        let is_inside = end <= array.layout.row_bytes() * array.layout.rows();
        if is_inside && offset.is_multiple_of(texel) && bytes.is_multiple_of(texel) {
            return Ok(());
        }
        Err(Status::INVALID_VALUE)
    }

    /// Size of a texel, of arrays.
    fn texel(&self) -> Option<u64> {
        match self {
            Self::Memory(_) => None,
            Self::Array { array, .. } => Some(array.layout.format.bytes()),
        }
    }

    /// Position in its row of the byte behind `done` bytes, and size of the row, of arrays.
    fn row(&self, done: u64) -> Option<(u64, u64)> {
        match self {
            Self::Memory(_) => None,
            Self::Array { array, offset } => {
                let row = array.layout.row_bytes();
                Some(((offset + done) % row, row))
            }
        }
    }

    /// Rows of `width` bytes behind `done` bytes.
    fn rows(&self, done: u64, width: u64) -> Result<Side, Status> {
        match self {
            Self::Memory(side) => {
                let within = |region: &Region| -> Result<Region, Status> {
                    let address = region.address.checked_add(done).ok_or(Status::INVALID_VALUE)?;
                    Ok(Region {
                        address,
                        row_pitch: width,
                        slice_pitch: 0,
                    })
                };
                Ok(match side {
                    Side::Host(region) => Side::Host(within(region)?),
                    Side::Device(region) => Side::Device(within(region)?),
                })
            }
            Self::Array { array, offset } => {
                let (row, place) = (array.layout.row_bytes(), offset + done);
                Ok(Side::Device(Region {
                    address: array.address + place / row * array.layout.pitch + place % row,
                    row_pitch: array.layout.pitch,
                    slice_pitch: 0,
                }))
            }
        }
    }
}

/// Copies bytes as the next work of a lane, as [`copy`].
pub(crate) fn copy_bytes(lane: &Lane, to: &Bytes, from: &Bytes, bytes: usize, completion: Completion) -> Result<(), Status> {
    let bytes = bytes as u64;
    to.check(bytes)?;
    from.check(bytes)?;
    if to.texel().zip(from.texel()).is_some_and(|(to, from)| to != from) {
        return Err(Status::INVALID_VALUE);
    }
    let mut done = 0;
    while done < bytes {
        let left = bytes - done;
        let rows = || [to.row(done), from.row(done)].into_iter().flatten();
        let width = rows().map(|(column, row)| row - column).fold(left, u64::min);
        let is_whole = rows().all(|place| place == (0, width));
        let height = if is_whole { left / width } else { 1 };
        let extent = Extent { width, height, depth: 1 };
        copy(lane, to.rows(done, width)?, from.rows(done, width)?, extent, completion)?;
        done += width * height;
    }
    lane.context.check()
}
