//! Functions whose parameters or structures changed with version 13, and those that ended with version 12.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_runtime::api::error;
use sahasra_cuda_runtime::api::memory::{PointerAttributes, pointer_attributes};
use sahasra_cuda_runtime::boundary::{Handle, Out, Text};
use sahasra_cuda_runtime::properties::{self, BYTES_11, BYTES_12};
use sahasra_cuda_runtime::{context, exports};

/// Version of the runtime: 1000 × major + 10 × minor.
const VERSION: c_int = 12_080;

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

    /// Callers that were compiled before version 12 have a shorter structure, whose fields are the first of today's.
    fn cudaGetDeviceProperties(out: Out<u8>, device: c_int) {
        properties::write(out, 12, device, BYTES_11)
    }

    fn cudaGetDeviceProperties_v2(out: Out<u8>, device: c_int) {
        properties::write(out, 12, device, BYTES_12)
    }

    fn cudaPointerGetAttributes(out: Out<PointerAttributes>, address: u64) {
        out.require()?;
        out.set(pointer_attributes(address)?)
    }

    fn cudaMemAdvise(address: u64, bytes: usize, advice: c_uint, device: c_int) {
        context::ready()?.cuMemAdvise(address, bytes, advice, device)
    }

    fn cudaMemAdvise_v2(address: u64, bytes: usize, advice: c_uint, location: u64) {
        context::ready()?.cuMemAdvise_v2(address, bytes, advice, location)
    }

    fn cudaMemPrefetchAsync(address: u64, bytes: usize, device: c_int, stream: Handle) {
        context::ready()?.cuMemPrefetchAsync(address, bytes, device, stream)
    }

    fn cudaMemPrefetchAsync_v2(address: u64, bytes: usize, location: u64, flags: c_uint, stream: Handle) {
        context::ready()?.cuMemPrefetchAsync_v2(address, bytes, location, flags, stream)
    }

    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        milliseconds.require()?;
        context::ready()?.cuEventElapsedTime(milliseconds, start, end)
    }

    fn cudaThreadSynchronize() {
        context::ready()?.cuCtxSynchronize()
    }

    fn cudaThreadExit() {
        context::reset()
    }

    fn cudaThreadGetLimit(value: Out<usize>, limit: c_uint) {
        context::ready()?.cuCtxGetLimit(value, limit)
    }

    fn cudaThreadSetLimit(limit: c_uint, value: usize) {
        context::ready()?.cuCtxSetLimit(limit, value)
    }

    fn cudaThreadGetCacheConfig(preference: Out<c_uint>) {
        context::ready()?.cuCtxGetCacheConfig(preference)
    }

    fn cudaThreadSetCacheConfig(preference: c_uint) {
        context::ready()?.cuCtxSetCacheConfig(preference)
    }
}
