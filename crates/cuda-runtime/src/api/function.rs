//! Attributes of kernels, and how many of them fit on the device.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, Out, Text};
use crate::registry;
use crate::{Error, context, exports};

/// `cudaFuncAttributes`, with what later versions added in the place of what was reserved.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Attributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    max_threads: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    max_dynamic_shared_bytes: c_int,
    shared_carveout: c_int,
    clusters: [c_int; 6],
    reserved: [c_int; 16],
}

/// Number of `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET`, the first of those about clusters.
const CLUSTERS: c_uint = 10;

/// Writes the driver's function for a registered kernel.
pub(crate) fn handle(function: Out<Handle>, symbol: usize) -> Result<(), Error> {
    function.require()?;
    let found = registry::function(context::ready()?, symbol)?;
    registry::add_kernel(found);
    function.set(found)
}

/// Writes the number of a kernel's parameters.
pub fn parameter_count(function: usize, count: Out<usize>) -> Result<(), Error> {
    let driver = context::ready()?;
    driver.cuFuncGetParamCount(registry::function(driver, function)?, count)
}

fn blocks(out: Out<c_int>, function: usize, threads: c_int, shared_bytes: usize, flags: c_uint) -> Result<(), Error> {
    let driver = context::ready()?;
    let function = registry::function(driver, function)?;
    driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, threads, shared_bytes, flags)
}

exports! {
    fn cudaFuncGetAttributes(out: Out<Attributes>, function: usize) {
        out.require()?;
        let driver = context::ready()?;
        let function = registry::function(driver, function)?;
        let attribute = |number: c_uint| {
            let mut value = 0;
            driver.cuFuncGetAttribute(Out::new(&raw mut value), number, function).map(|()| value)
        };
        let bytes = |number| attribute(number).map(|value| usize::try_from(value).unwrap_or(0));
        let mut clusters = [0; 6];
        for (value, number) in clusters.iter_mut().zip(CLUSTERS..) {
            // Drivers before clusters do not know these.
            *value = attribute(number).unwrap_or(0);
        }
        out.set(Attributes {
            shared_bytes: bytes(1)?,
            constant_bytes: bytes(2)?,
            local_bytes: bytes(3)?,
            max_threads: attribute(0)?,
            registers: attribute(4)?,
            ptx_version: attribute(5)?,
            binary_version: attribute(6)?,
            cache_mode: attribute(7)?,
            max_dynamic_shared_bytes: attribute(8)?,
            shared_carveout: attribute(9)?,
            clusters,
            reserved: [0; 16],
        })
    }

    /// Attributes that can be set have the driver's numbers.
    fn cudaFuncSetAttribute(function: usize, attribute: c_uint, value: c_int) {
        let driver = context::ready()?;
        driver.cuFuncSetAttribute(registry::function(driver, function)?, attribute, value)
    }

    fn cudaFuncSetCacheConfig(function: usize, preference: c_uint) {
        let driver = context::ready()?;
        driver.cuFuncSetCacheConfig(registry::function(driver, function)?, preference)
    }

    fn cudaFuncSetSharedMemConfig(function: usize, size: c_uint) {
        let driver = context::ready()?;
        driver.cuFuncSetSharedMemConfig(registry::function(driver, function)?, size)
    }

    fn cudaFuncGetName(name: Out<Text>, function: usize) {
        let driver = context::ready()?;
        driver.cuFuncGetName(name, registry::function(driver, function)?)
    }

    fn cudaFuncGetParamInfo(function: usize, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        let driver = context::ready()?;
        driver.cuFuncGetParamInfo(registry::function(driver, function)?, index, offset, bytes)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<c_int>, function: usize, threads: c_int, shared_bytes: usize) {
        blocks(out, function, threads, shared_bytes, 0)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<c_int>,
        function: usize,
        threads: c_int,
        shared_bytes: usize,
        flags: c_uint,
    ) {
        blocks(out, function, threads, shared_bytes, flags)
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: usize, blocks: c_int, threads: c_int) {
        let driver = context::ready()?;
        driver.cuOccupancyAvailableDynamicSMemPerBlock(bytes, registry::function(driver, function)?, blocks, threads)
    }
}
