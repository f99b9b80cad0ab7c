//! The CPU as a device of this process.

mod queue;
#[cfg(test)]
mod tests;

use std::num::NonZero;
use std::sync::Arc;

use sahasra_ptx::{DevicePointer, Memory};

use crate::{Device, Engine, Failure, Properties, Queue};
use queue::CpuQueue;

/// Addresses of mapped memory: above those of this process, so that no address is one of the host too (x86-64 and AArch64 give programs
/// at most 2^47 and 2^48), and within the 48 bits that programs expect.
const CLIENT_ADDRESSES: std::ops::Range<u64> = 1 << 47..(1 << 48) - (1 << 32);
/// First address of variables and of what kernels allocate.
const FIRST_ADDRESS: u64 = 1 << 48;
/// Maximum bytes that kernels may have allocated, beside the device's memory.
pub(crate) const HEAP_ROOM: u64 = 64 << 20;

/// The PTX engine of this process as a device.
#[derive(Debug)]
pub struct CpuDevice {
    properties: Properties,
    threads: NonZero<usize>,
}

impl CpuDevice {
    /// Device with this memory in bytes, whose launches use up to `threads` host threads.
    pub fn new(memory_bytes: u64, threads: NonZero<usize>) -> Self {
        Self {
            properties: Properties {
                name: "Sahasra CPU".to_owned(),
                uuid: *b"sahasra-cpu-0000",
                memory_bytes,
                addresses: CLIENT_ADDRESSES,
                shares_host_memory: true,
                multiprocessors: u32::try_from(threads.get()).unwrap_or(u32::MAX),
            },
            threads,
        }
    }
}

impl Device for CpuDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn open(&self) -> Result<Arc<dyn Queue>, Failure> {
        let capacity = self.properties.memory_bytes.saturating_add(HEAP_ROOM);
        let memory = Memory::with_first_address(capacity, DevicePointer(FIRST_ADDRESS));
        Ok(Arc::new(CpuQueue::new(Engine::new(memory, self.threads))?))
    }
}
