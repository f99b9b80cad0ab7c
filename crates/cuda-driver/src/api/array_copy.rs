//! Copies of bytes to and from CUDA arrays, in the order of their rows.

use crate::boundary::{Handle, HostPointer};
use crate::copy::{Bytes, Completion, Side, copy_bytes};
use crate::lane::Lane;
use crate::status::Status;

fn host(pointer: HostPointer) -> Bytes {
    Bytes::Memory(Side::host(pointer))
}

fn device(address: u64) -> Bytes {
    Bytes::Memory(Side::device(address))
}

fn now(to: &Bytes, from: &Bytes, bytes: usize) -> Result<(), Status> {
    copy_bytes(&Lane::of(Handle::NULL)?, to, from, bytes, Completion::Now)
}

exports! {
    fn cuMemcpyAtoH_v2(to: HostPointer, from: Handle, offset: usize, bytes: usize) {
        now(&host(to), &Bytes::of_array(from, offset)?, bytes)
    }

    fn cuMemcpyHtoA_v2(to: Handle, offset: usize, from: HostPointer, bytes: usize) {
        now(&Bytes::of_array(to, offset)?, &host(from), bytes)
    }

    fn cuMemcpyAtoD_v2(to: u64, from: Handle, offset: usize, bytes: usize) {
        now(&device(to), &Bytes::of_array(from, offset)?, bytes)
    }

    fn cuMemcpyDtoA_v2(to: Handle, offset: usize, from: u64, bytes: usize) {
        now(&Bytes::of_array(to, offset)?, &device(from), bytes)
    }

    fn cuMemcpyAtoA_v2(to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize) {
        now(&Bytes::of_array(to, to_offset)?, &Bytes::of_array(from, from_offset)?, bytes)
    }

    /// Data to pageable memory is there when the call returns.
    fn cuMemcpyAtoHAsync_v2(to: HostPointer, from: Handle, offset: usize, bytes: usize, stream: Handle) {
        copy_bytes(&Lane::of(stream)?, &host(to), &Bytes::of_array(from, offset)?, bytes, Completion::Later)
    }

    fn cuMemcpyHtoAAsync_v2(to: Handle, offset: usize, from: HostPointer, bytes: usize, stream: Handle) {
        copy_bytes(&Lane::of(stream)?, &Bytes::of_array(to, offset)?, &host(from), bytes, Completion::Later)
    }
}
