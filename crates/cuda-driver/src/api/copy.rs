//! Copies.

use std::ffi::c_uint;

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::{Extent, Region};

use crate::boundary::{Handle, HostPointer, In};
use crate::copy::{Completion, Side, copy};
use crate::driver;
use crate::lane::Lane;
use crate::status::Status;

/// `CU_MEMORYTYPE_HOST` and the others.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
const ARRAY: c_uint = 3;
const UNIFIED: c_uint = 4;

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Plane {
    x_bytes: usize,
    y: usize,
    kind: c_uint,
    host: HostPointer,
    device: u64,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2d {
    from: Plane,
    to: Plane,
    width: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Volume {
    x_bytes: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: HostPointer,
    device: u64,
    array: Handle,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3d {
    from: Volume,
    to: Volume,
    width: usize,
    height: usize,
    depth: usize,
}

impl Volume {
    fn of_plane(plane: Plane) -> Self {
        Self {
            x_bytes: plane.x_bytes,
            y: plane.y,
            z: 0,
            level: 0,
            kind: plane.kind,
            host: plane.host,
            device: plane.device,
            array: plane.array,
            reserved: 0,
            pitch: plane.pitch,
            height: 0,
        }
    }

    /// The rows of this side.
    fn side(&self, width: usize, height: usize, depth: usize) -> Result<Side, Status> {
        let side = match self.kind {
            HOST => Side::host(self.host),
            DEVICE => Side::device(self.device),
            UNIFIED => Side::anywhere(self.device)?,
            ARRAY => return refuse("copies from and to CUDA arrays"),
            _ => return Err(Status::INVALID_VALUE),
        };
        // A distance of 0 is that of rows without gaps; one row has no distance.
        let end = self.x_bytes.checked_add(width).ok_or(Status::INVALID_VALUE)?;
        let pitch = if self.pitch == 0 { end } else { self.pitch };
        if height > 1 && pitch < end {
            return Err(Status::INVALID_VALUE);
        }
        let rows = match self.height {
            0 => self.y.checked_add(height).ok_or(Status::INVALID_VALUE)?,
            rows => rows,
        };
        let slice = if depth > 1 || self.z > 0 {
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
            let address = region.row(self.y as u64, self.z as u64)?.checked_add(self.x_bytes as u64)?;
            Some(Region { address, ..region })
        };
        match side {
            Side::Host(start) => region(start).map(Side::Host),
            Side::Device(start) => region(start).map(Side::Device),
        }
        .ok_or(Status::INVALID_VALUE)
    }
}

fn copy_2d(parameters: In<Copy2d>, stream: Handle, completion: Completion) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    let Copy2d { from, to, width, height } = parameters.get()?;
    copy_box(&lane, Volume::of_plane(from), Volume::of_plane(to), [width, height, 1], completion)
}

fn copy_3d(parameters: In<Copy3d>, stream: Handle, completion: Completion) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    let Copy3d {
        from,
        to,
        width,
        height,
        depth,
    } = parameters.get()?;
    copy_box(&lane, from, to, [width, height, depth], completion)
}

fn copy_box(lane: &Lane, from: Volume, to: Volume, [width, height, depth]: [usize; 3], completion: Completion) -> Result<(), Status> {
    let mut extent = Extent {
        width: width as u64,
        height: height as u64,
        depth: depth as u64,
    };
    let (from, to) = (from.side(width, height, depth)?, to.side(width, height, depth)?);
    // Rows without gaps on both sides are one row.
    let is_packed = |side: Side| match side {
        Side::Host(region) | Side::Device(region) => region.row_pitch == width as u64,
    };
    if depth == 1 && is_packed(from) && is_packed(to) {
        extent = Extent::linear(extent.bytes().ok_or(Status::INVALID_VALUE)?);
    }
    copy(lane, to, from, extent, completion)
}

fn linear(to: Side, from: Side, bytes: usize) -> Result<(), Status> {
    copy(&Lane::of(Handle::NULL)?, to, from, Extent::linear(bytes as u64), Completion::Now)
}

fn linear_async(to: Side, from: Side, bytes: usize, stream: Handle) -> Result<(), Status> {
    copy(&Lane::of(stream)?, to, from, Extent::linear(bytes as u64), Completion::Later)
}

exports! {
    fn cuMemcpyHtoD_v2(to: u64, from: HostPointer, bytes: usize) {
        linear(Side::device(to), Side::host(from), bytes)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: HostPointer, bytes: usize, stream: Handle) {
        linear_async(Side::device(to), Side::host(from), bytes, stream)
    }

    fn cuMemcpyDtoH_v2(to: HostPointer, from: u64, bytes: usize) {
        linear(Side::host(to), Side::device(from), bytes)
    }

    /// Data to pageable memory is there when the call returns.
    fn cuMemcpyDtoHAsync_v2(to: HostPointer, from: u64, bytes: usize, stream: Handle) {
        linear_async(Side::host(to), Side::device(from), bytes, stream)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        linear(Side::device(to), Side::device(from), bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        linear_async(Side::device(to), Side::device(from), bytes, stream)
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        driver::get()?;
        linear(Side::anywhere(to)?, Side::anywhere(from)?, bytes)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        driver::get()?;
        linear_async(Side::anywhere(to)?, Side::anywhere(from)?, bytes, stream)
    }

    fn cuMemcpyPeer(to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize) {
        linear(Side::device(to), Side::device(from), bytes)
    }

    fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize, stream: Handle) {
        linear_async(Side::device(to), Side::device(from), bytes, stream)
    }

    fn cuMemcpy2D_v2(parameters: In<Copy2d>) {
        copy_2d(parameters, Handle::NULL, Completion::Now)
    }

    fn cuMemcpy2DUnaligned_v2(parameters: In<Copy2d>) {
        copy_2d(parameters, Handle::NULL, Completion::Now)
    }

    fn cuMemcpy2DAsync_v2(parameters: In<Copy2d>, stream: Handle) {
        copy_2d(parameters, stream, Completion::Later)
    }

    fn cuMemcpy3D_v2(parameters: In<Copy3d>) {
        copy_3d(parameters, Handle::NULL, Completion::Now)
    }

    fn cuMemcpy3DAsync_v2(parameters: In<Copy3d>, stream: Handle) {
        copy_3d(parameters, stream, Completion::Later)
    }
}
