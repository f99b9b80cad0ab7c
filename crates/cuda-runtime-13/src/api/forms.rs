//! Functions whose parameters or structures changed with version 13.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_runtime::api::error;
use sahasra_cuda_runtime::api::memory::{PointerAttributes, pointer_attributes};
use sahasra_cuda_runtime::boundary::{Handle, Out, Text};
use sahasra_cuda_runtime::properties::{self, BYTES_13};
use sahasra_cuda_runtime::{context, exports};

/// Version of the runtime: 1000 × major + 10 × minor.
const VERSION: c_int = 13_000;
/// Words that `cudaPointerAttributes` has for later versions.
const RESERVED_WORDS: usize = 8;

/// `cudaPointerAttributes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Attributes {
    known: PointerAttributes,
    reserved: [u64; RESERVED_WORDS],
}

exports! {
    fn cudaRuntimeGetVersion(version: Out<c_int>) {
        version.set(VERSION)
    }

    fn cudaDriverGetVersion(version: Out<c_int>) {
        error::driver_version(version, VERSION)
    }

    fn cudaGetDriverEntryPoint(name: Text, function: Out<usize>, flags: u64, status: Out<c_uint>) {
        error::entry_point(name, function, VERSION, flags, status)
    }

    fn cudaGetDeviceProperties(out: Out<u8>, device: c_int) {
        properties::write(out, 13, device, BYTES_13)
    }

    fn cudaPointerGetAttributes(out: Out<Attributes>, address: u64) {
        out.require()?;
        out.set(Attributes {
            known: pointer_attributes(address)?,
            reserved: [0; RESERVED_WORDS],
        })
    }

    fn cudaMemAdvise(address: u64, bytes: usize, advice: c_uint, location: u64) {
        context::ready()?.cuMemAdvise_v2(address, bytes, advice, location)
    }

    fn cudaMemPrefetchAsync(address: u64, bytes: usize, location: u64, flags: c_uint, stream: Handle) {
        context::ready()?.cuMemPrefetchAsync_v2(address, bytes, location, flags, stream)
    }

    fn cudaFuncGetParamCount(function: usize, count: Out<usize>) {
        sahasra_cuda_runtime::api::function::parameter_count(function, count)
    }
}
