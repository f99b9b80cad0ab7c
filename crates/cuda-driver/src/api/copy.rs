//! Copies.

use sahasra_cuda_device::Extent;

use crate::boundary::{Handle, HostPointer, In};
use crate::copy::{Completion, Side, copy, copy_box};
use crate::driver;
use crate::lane::Lane;
use crate::parameters::{Copy2d, Copy3d};
use crate::status::Status;

fn copy_2d(parameters: In<Copy2d>, stream: Handle, completion: Completion) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    copy_box(&lane, &parameters.get()?.into(), completion)
}

fn copy_3d(parameters: In<Copy3d>, stream: Handle, completion: Completion) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    copy_box(&lane, &parameters.get()?, completion)
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
