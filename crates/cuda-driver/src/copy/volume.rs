//! Copies as `CUDA_MEMCPY3D` describes them.

use sahasra_cuda_device::{Extent, Region};

use crate::boundary::{Handle, HostPointer};
use crate::driver;
use crate::parameters::{ARRAY, Copy3d, DEVICE, HOST, UNIFIED, Volume};
use crate::status::Status;

use super::Side;

/// Target, source and size of a copy.
pub(crate) fn sides(copy: &Copy3d) -> Result<(Side, Side, Extent), Status> {
    let Copy3d {
        from,
        to,
        width,
        height,
        depth,
    } = copy;
    // Arrays of a copy have texels of one size.
    if [from.kind, to.kind] == [ARRAY; 2] && texel_bytes(from)? != texel_bytes(to)? {
        return Err(Status::INVALID_VALUE);
    }
    let mut extent = Extent {
        width: *width as u64,
        height: *height as u64,
        depth: *depth as u64,
    };
    let (from, to) = (side(from, [*width, *height, *depth])?, side(to, [*width, *height, *depth])?);
    // Rows without gaps on both sides are one row.
    let is_packed = |side: Side| match side {
        Side::Host(region) | Side::Device(region) => region.row_pitch == extent.width,
    };
    if *depth == 1 && is_packed(from) && is_packed(to) {
        extent = Extent::linear(extent.bytes().ok_or(Status::INVALID_VALUE)?);
    }
    Ok((to, from, extent))
}

/// Size of a texel of a side that is an array, in bytes.
fn texel_bytes(volume: &Volume) -> Result<u64, Status> {
    Ok(driver::get()?.arrays.get(volume.array)?.layout.format.bytes())
}

/// The rows of a side.
fn side(volume: &Volume, [width, height, depth]: [usize; 3]) -> Result<Side, Status> {
    let side = match volume.kind {
        HOST => Side::host(volume.host),
        DEVICE => Side::device(volume.device),
        UNIFIED => Side::anywhere(volume.device)?,
        // A level of detail is one of mipmapped arrays.
        ARRAY if volume.level != 0 => return Err(Status::INVALID_VALUE),
        ARRAY => {
            let array = driver::get()?.arrays.get(volume.array)?;
            let part = array.part([volume.x_bytes, volume.y, volume.z], [width, height, depth])?;
            return Ok(Side::Device(part));
        }
        _ => return Err(Status::INVALID_VALUE),
    };
    // A distance of 0 is that of rows without gaps; one row has no distance.
    let end = volume.x_bytes.checked_add(width).ok_or(Status::INVALID_VALUE)?;
    let pitch = if volume.pitch == 0 { end } else { volume.pitch };
    if height > 1 && pitch < end {
        return Err(Status::INVALID_VALUE);
    }
    let rows = match volume.height {
        0 => volume.y.checked_add(height).ok_or(Status::INVALID_VALUE)?,
        rows => rows,
    };
    let slice = if depth > 1 || volume.z > 0 {
        pitch.checked_mul(rows).ok_or(Status::INVALID_VALUE)?
    } else {
        0
    };
    let region = |start: Region| -> Option<Region> {
        let region = Region {
            address: start.address,
            row_pitch: pitch as u64,
            slice_pitch: slice as u64,
        };
        let address = region.row(volume.y as u64, volume.z as u64)?.checked_add(volume.x_bytes as u64)?;
        Some(Region { address, ..region })
    };
    match side {
        Side::Host(start) => region(start).map(Side::Host),
        Side::Device(start) => region(start).map(Side::Device),
    }
    .ok_or(Status::INVALID_VALUE)
}

/// The description of a copy.
pub(super) fn parameters(to: Side, from: Side, extent: &Extent) -> Result<Copy3d, Status> {
    let size = |value: u64| usize::try_from(value).map_err(|_| Status::INVALID_VALUE);
    Ok(Copy3d {
        from: volume(from, extent)?,
        to: volume(to, extent)?,
        width: size(extent.width)?,
        height: size(extent.height)?,
        depth: size(extent.depth)?,
    })
}

fn volume(side: Side, extent: &Extent) -> Result<Volume, Status> {
    let size = |value: u64| usize::try_from(value).map_err(|_| Status::INVALID_VALUE);
    let (kind, region, host, device) = match side {
        Side::Host(region) => (HOST, region, region.address, 0),
        Side::Device(region) => (DEVICE, region, 0, region.address),
    };
    let pitch = if region.row_pitch == 0 { extent.width } else { region.row_pitch };
    Ok(Volume {
        x_bytes: 0,
        y: 0,
        z: 0,
        level: 0,
        kind,
        host: HostPointer::of_address(size(host)?),
        device,
        array: Handle::NULL,
        reserved: 0,
        pitch: size(pitch)?,
        height: size(region.slice_pitch.checked_div(pitch).unwrap_or(0))?,
    })
}
