//! Fills.

use std::ffi::{c_uchar, c_uint, c_ushort};

use sahasra_cuda_device::{Extent, Region};

use crate::boundary::Handle;
use crate::copy::fill;
use crate::lane::Lane;
use crate::status::Status;

fn linear(to: u64, value: u32, element_bytes: u8, count: usize, stream: Handle) -> Result<(), Status> {
    let bytes = (count as u64).checked_mul(u64::from(element_bytes)).ok_or(Status::INVALID_VALUE)?;
    fill(&Lane::of(stream)?, Region::linear(to), Extent::linear(bytes), value, element_bytes)
}

/// Fills `[width, height]` elements in rows at a distance of `pitch` bytes.
fn plane(to: u64, pitch: usize, value: u32, element_bytes: u8, [width, height]: [usize; 2], stream: Handle) -> Result<(), Status> {
    let region = Region {
        address: to,
        row_pitch: pitch as u64,
        slice_pitch: 0,
    };
    let extent = Extent {
        width: (width as u64).checked_mul(u64::from(element_bytes)).ok_or(Status::INVALID_VALUE)?,
        height: height as u64,
        depth: 1,
    };
    if height > 1 && region.row_pitch < extent.width {
        return Err(Status::INVALID_VALUE);
    }
    fill(&Lane::of(stream)?, region, extent, value, element_bytes)
}

exports! {
    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) {
        linear(to, u32::from(value), 1, count, Handle::NULL)
    }

    fn cuMemsetD16_v2(to: u64, value: c_ushort, count: usize) {
        linear(to, u32::from(value), 2, count, Handle::NULL)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        linear(to, value, 4, count, Handle::NULL)
    }

    fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: Handle) {
        linear(to, u32::from(value), 1, count, stream)
    }

    fn cuMemsetD16Async(to: u64, value: c_ushort, count: usize, stream: Handle) {
        linear(to, u32::from(value), 2, count, stream)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) {
        linear(to, value, 4, count, stream)
    }

    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize) {
        plane(to, pitch, u32::from(value), 1, [width, height], Handle::NULL)
    }

    fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize) {
        plane(to, pitch, u32::from(value), 2, [width, height], Handle::NULL)
    }

    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: c_uint, width: usize, height: usize) {
        plane(to, pitch, value, 4, [width, height], Handle::NULL)
    }

    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize, stream: Handle) {
        plane(to, pitch, u32::from(value), 1, [width, height], stream)
    }

    fn cuMemsetD2D16Async(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize, stream: Handle) {
        plane(to, pitch, u32::from(value), 2, [width, height], stream)
    }

    fn cuMemsetD2D32Async(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: Handle) {
        plane(to, pitch, value, 4, [width, height], stream)
    }
}
