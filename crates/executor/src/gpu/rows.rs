//! Copies and fills of rows on a stream.

use std::ffi::c_void;

use cudarc::driver::sys;
use sahasra_cuda_device::{Extent, Failure, FailureKind, Region};

use super::outcome::check;

/// Maximum distance of rows that the driver is given, in bytes. Rows that are farther apart are copied one by one.
const MAX_PITCH: u64 = 1 << 30;
/// Size of the pieces in which rows that overlap are copied, and in which misaligned elements are written, in bytes.
const PIECE: usize = 64 << 10;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Address of rows of this process without gaps.
    Host(u64),
    Device(Region),
}

impl Side {
    fn region(self, extent: &Extent) -> Region {
        match self {
            Self::Device(region) => region,
            Self::Host(address) => Region {
                address,
                row_pitch: extent.width,
                slice_pitch: extent.width.saturating_mul(extent.height),
            },
        }
    }
}

/// Rows that the driver takes in one call: an address, their distance and their number.
fn blocks(region: Region, extent: &Extent) -> impl Iterator<Item = Option<u64>> + use<> {
    let is_block = is_block(&region, extent);
    let extent = *extent;
    let rows = if is_block { 1 } else { extent.height };
    (0..extent.depth).flat_map(move |slice| (0..rows).map(move |row| region.row(row, slice)))
}

fn is_block(region: &Region, extent: &Extent) -> bool {
    extent.height == 1 || (extent.width..=MAX_PITCH).contains(&region.row_pitch)
}

fn beyond() -> Failure {
    Failure::new(FailureKind::IllegalAddress, "a row is beyond the address space")
}

/// Copies rows that the caller has checked. Memory of this process must stay until the stream has passed.
pub(super) fn copy(stream: sys::CUstream, from: Side, to: Side, extent: Extent) -> Result<(), Failure> {
    if extent.bytes().is_none_or(|bytes| bytes == 0) {
        return Ok(());
    }
    let (source, target) = (from.region(&extent), to.region(&extent));
    // Rows one by one, unless both ends are blocks.
    let single = Extent { height: 1, ..extent };
    if !is_block(&source, &extent) || !is_block(&target, &extent) {
        for row in 0..extent.height {
            let at = |region: Region| region.row(row, 0).map(|address| Region { address, ..region }).ok_or_else(beyond);
            copy_blocks(stream, (from, at(source)?), (to, at(target)?), single)?;
        }
        return Ok(());
    }
    copy_blocks(stream, (from, source), (to, target), extent)
}

fn copy_blocks(stream: sys::CUstream, from: (Side, Region), to: (Side, Region), extent: Extent) -> Result<(), Failure> {
    let targets = blocks(to.1, &extent);
    for (source, target) in blocks(from.1, &extent).zip(targets) {
        let (source, target) = (source.ok_or_else(beyond)?, target.ok_or_else(beyond)?);
        let (pitches, is_on_device) = (
            (from.1.row_pitch, to.1.row_pitch),
            matches!((from.0, to.0), (Side::Device(_), Side::Device(_))),
        );
        if extent.height == 1 || (is_on_device && overlap((source, pitches.0), (target, pitches.1), &extent)) {
            for row in 0..extent.height {
                let (source, target) = (source + row * pitches.0, target + row * pitches.1);
                copy_row(stream, (from.0, source), (to.0, target), extent.width)?;
            }
        } else {
            copy_block(stream, (from, source), (to, target), &extent)?;
        }
    }
    Ok(())
}

/// Whether a row of one block may overlap one of another, each given by its start and the distance of its rows. The driver leaves the
/// outcome of copies of such blocks open.
fn overlap((source, source_pitch): (u64, u64), (target, target_pitch): (u64, u64), extent: &Extent) -> bool {
    let span = |pitch: u64| pitch.saturating_mul(extent.height - 1).saturating_add(extent.width);
    let distance = source.abs_diff(target);
    if distance >= if source < target { span(source_pitch) } else { span(target_pitch) } {
        return false;
    }
    // Columns of the same rows.
    let offset = distance.checked_rem(source_pitch).unwrap_or(0);
    source_pitch != target_pitch || offset < extent.width || source_pitch - offset < extent.width
}

fn copy_row(stream: sys::CUstream, from: (Side, u64), to: (Side, u64), width: u64) -> Result<(), Failure> {
    let bytes = width as usize;
    let ((from, source), (to, target)) = (from, to);
    // SAFETY: the caller has checked the ranges of the device, and owns those of this process until the stream has passed.
    unsafe {
        match (from, to) {
            (Side::Host(_), _) => check(
                "cuMemcpyHtoDAsync",
                sys::cuMemcpyHtoDAsync_v2(target, source as *const c_void, bytes, stream),
            ),
            (_, Side::Host(_)) => check(
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(target as *mut c_void, source, bytes, stream),
            ),
            _ if source.abs_diff(target) < width && source != target => move_row(stream, source, target, width),
            _ => check("cuMemcpyDtoDAsync", sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream)),
        }
    }
}

/// Copies a row onto one that it overlaps, through memory of this process: the driver leaves the outcome open.
fn move_row(stream: sys::CUstream, source: u64, target: u64, width: u64) -> Result<(), Failure> {
    let mut piece = vec![0u8; PIECE.min(width as usize)];
    let mut done = 0;
    while done < width {
        let length = (width - done).min(piece.len() as u64);
        // From the end if the target is behind the source.
        let offset = if target > source { width - done - length } else { done };
        // SAFETY: the caller has checked both ranges; the piece is not used before the stream has passed.
        unsafe {
            let pointer = piece.as_mut_ptr().cast();
            check(
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(pointer, source + offset, length as usize, stream),
            )?;
            check("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
            check(
                "cuMemcpyHtoDAsync",
                sys::cuMemcpyHtoDAsync_v2(target + offset, pointer, length as usize, stream),
            )?;
            check("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        done += length;
    }
    Ok(())
}

/// Copies rows at one distance each.
fn copy_block(
    stream: sys::CUstream,
    ((from, source), source_start): ((Side, Region), u64),
    ((to, target), target_start): ((Side, Region), u64),
    extent: &Extent,
) -> Result<(), Failure> {
    const HOST: sys::CUmemorytype = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
    const DEVICE: sys::CUmemorytype = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    // Kind, address in this process, and address on the device.
    let place = |side: Side, start: u64| match side {
        Side::Host(_) => (HOST, start as usize as *mut c_void, 0),
        Side::Device(_) => (DEVICE, std::ptr::null_mut(), start),
    };
    let (source_kind, source_host, source_device) = place(from, source_start);
    let (target_kind, target_host, target_device) = place(to, target_start);
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: source_kind,
        srcHost: source_host,
        srcDevice: source_device,
        srcArray: std::ptr::null_mut(),
        srcPitch: source.row_pitch as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: target_kind,
        dstHost: target_host,
        dstDevice: target_device,
        dstArray: std::ptr::null_mut(),
        dstPitch: target.row_pitch as usize,
        WidthInBytes: extent.width as usize,
        Height: extent.height as usize,
    };
    // SAFETY: the caller has checked the ranges of the device, and owns those of this process until the stream has passed.
    unsafe { check("cuMemcpy2DAsync", sys::cuMemcpy2DAsync_v2(&copy, stream)) }
}

/// Fills rows that the caller has checked with an element of 1, 2 or 4 bytes.
pub(super) fn fill(stream: sys::CUstream, to: Region, extent: Extent, value: u32, element_bytes: u8) -> Result<(), Failure> {
    let size = u64::from(element_bytes);
    if !matches!(element_bytes, 1 | 2 | 4) || !extent.width.is_multiple_of(size) {
        let message = format!("rows of {} bytes filled with elements of {element_bytes}", extent.width);
        return Err(Failure::new(FailureKind::Protocol, message));
    }
    if extent.bytes().is_none_or(|bytes| bytes == 0) {
        return Ok(());
    }
    let count = (extent.width / size) as usize;
    let rows = if is_block(&to, &extent) { extent.height as usize } else { 1 };
    let pitch = if rows == 1 { extent.width as usize } else { to.row_pitch as usize };
    for start in blocks(to, &extent) {
        let start = start.ok_or_else(beyond)?;
        if !start.is_multiple_of(size) || !(pitch as u64).is_multiple_of(size) {
            for row in 0..rows {
                write_elements(stream, start + (row * pitch) as u64, extent.width, value, element_bytes)?;
            }
            continue;
        }
        // SAFETY: the caller has checked the rows; starts and distances are multiples of the element's size.
        unsafe {
            match (element_bytes, rows) {
                (1, 1) => check("cuMemsetD8Async", sys::cuMemsetD8Async(start, value as u8, count, stream)),
                (2, 1) => check("cuMemsetD16Async", sys::cuMemsetD16Async(start, value as u16, count, stream)),
                (_, 1) => check("cuMemsetD32Async", sys::cuMemsetD32Async(start, value, count, stream)),
                (1, _) => check(
                    "cuMemsetD2D8Async",
                    sys::cuMemsetD2D8Async(start, pitch, value as u8, count, rows, stream),
                ),
                (2, _) => check(
                    "cuMemsetD2D16Async",
                    sys::cuMemsetD2D16Async(start, pitch, value as u16, count, rows, stream),
                ),
                _ => check(
                    "cuMemsetD2D32Async",
                    sys::cuMemsetD2D32Async(start, pitch, value, count, rows, stream),
                ),
            }
        }?;
    }
    Ok(())
}

/// Writes elements where the driver's fills do not: at an address that is no multiple of their size.
fn write_elements(stream: sys::CUstream, start: u64, width: u64, value: u32, element_bytes: u8) -> Result<(), Failure> {
    let piece = value.to_le_bytes()[..usize::from(element_bytes)].repeat(PIECE / usize::from(element_bytes));
    let mut done = 0;
    while done < width {
        let length = (width - done).min(piece.len() as u64);
        copy_row(
            stream,
            (Side::Host(0), piece.as_ptr() as u64),
            (Side::Device(Region::linear(0)), start + done),
            length,
        )?;
        done += length;
    }
    // SAFETY: the stream is of the current context. The piece is not used after this.
    unsafe { check("cuStreamSynchronize", sys::cuStreamSynchronize(stream)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_overlap_where_their_rows_do() {
        let extent = Extent {
            width: 100,
            height: 10,
            depth: 1,
        };
        let start = 1 << 40;
        for (source, target, expected) in [
            ((start, 512), (start + 50, 512), true),
            ((start + 50, 512), (start, 512), true),
            ((start, 512), (start, 512), true),
            ((start, 512), (start + 512, 512), true),
            // The last columns of a row and the first of the next.
            ((start, 512), (start + 450, 512), true),
            ((start, 512), (start + 100, 512), false),
            ((start + 412, 512), (start, 512), false),
            ((start, 512), (start + 9 * 512 + 99, 512), true),
            ((start, 512), (start + 9 * 512 + 100, 512), false),
            ((start, 100), (start + 900, 100), true),
            ((start, 100), (start + 1000, 100), false),
            // Blocks whose rows have different distances.
            ((start, 512), (start + 100, 1024), true),
            ((start, 512), (start + 8192, 1024), false),
            ((start + 8192, 512), (start, 1024), true),
        ] {
            assert_eq!(overlap(source, target, &extent), expected, "{source:?} {target:?}");
        }
    }
}
