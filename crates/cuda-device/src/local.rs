//! The CPU as a device of this process.

mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sahasra_ptx::{DevicePointer, Memory};

use crate::{Device, Ended, Engine, Failure, FailureKind, HostBlock, Properties, Queue, WatchedDevice};
use queue::CpuQueue;

/// Addresses of mapped memory: above those of this process, so that no address is one of the host too (x86-64 and AArch64 give programs
/// at most 2^47 and 2^48), and within the 48 bits that programs expect.
const CLIENT_ADDRESSES: std::ops::Range<u64> = 1 << 47..(1 << 48) - (1 << 32);
/// First address of variables and of what kernels allocate.
const FIRST_ADDRESS: u64 = 1 << 48;
/// Addresses of each queue from there on, in bytes: a client that has several queues knows from an address whose it is.
const QUEUE_ADDRESSES: u64 = 1 << 44;
/// Maximum number of queues that a device opens in its life: the engine's addresses end at 2^62.
const MAX_QUEUES: u64 = ((1 << 62) - FIRST_ADDRESS) / QUEUE_ADDRESSES;
/// Maximum bytes that kernels may have allocated, beside the device's memory.
pub(crate) const HEAP_ROOM: u64 = 64 << 20;

/// Unit in which memory is mapped, in bytes: that of allocations.
pub(crate) const PAGE_BYTES: u64 = 512;
/// Call stack of a thread in bytes.
pub(crate) const STACK_BYTES: u64 = 8192;

/// Display name of the device.
pub const CPU_NAME: &str = "Sahasra CPU";
/// Identifier of the device. A program sees one device only.
pub const CPU_UUID: [u8; 16] = *b"sahasra-cpu-0000";

/// The PTX engine of this process as a device.
#[derive(Debug)]
pub struct CpuDevice {
    properties: Properties,
    threads: NonZero<usize>,
    opened: AtomicU64,
    /// Empty memory beside which those of all queues are.
    memory: Memory,
}

impl CpuDevice {
    /// Device with this memory in bytes, whose launches use up to `threads` host threads.
    pub fn new(memory_bytes: u64, threads: NonZero<usize>) -> Self {
        Self {
            properties: Properties {
                name: CPU_NAME.to_owned(),
                uuid: CPU_UUID,
                memory_bytes,
                addresses: CLIENT_ADDRESSES,
                placed_from: FIRST_ADDRESS,
                shares_host_memory: true,
                multiprocessors: u32::try_from(threads.get()).unwrap_or(u32::MAX),
                attributes: BTreeMap::new(),
                takes_machine_code: false,
                reads_descriptors: true,
                page_bytes: PAGE_BYTES,
                stack_bytes: STACK_BYTES,
            },
            threads,
            opened: AtomicU64::new(0),
            memory: Memory::new(memory_bytes.saturating_add(HEAP_ROOM)),
        }
    }

    fn open_with(&self, ended: Option<Ended>) -> Result<Arc<dyn Queue>, Failure> {
        let number = self.opened.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |opened| {
            Some(opened + 1).filter(|opened| *opened <= MAX_QUEUES)
        });
        let number = number.map_err(|_| {
            let message = format!("all addresses were given to contexts, of which a process can make {MAX_QUEUES} in its life");
            Failure::new(FailureKind::OutOfMemory, message)
        })?;
        let first = FIRST_ADDRESS + number * QUEUE_ADDRESSES;
        let memory = self.memory.beside(DevicePointer(first)..DevicePointer(first + QUEUE_ADDRESSES));
        Ok(Arc::new(CpuQueue::new(Engine::new(memory, self.threads), ended)?))
    }
}

impl Device for CpuDevice {
    fn allocate_host(&self, bytes: usize, alignment: usize) -> Option<HostBlock> {
        HostBlock::new(bytes, alignment)
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn open(&self) -> Result<Arc<dyn Queue>, Failure> {
        self.open_with(None)
    }
}

impl WatchedDevice for CpuDevice {
    fn used_bytes(&self) -> u64 {
        self.memory.used()
    }

    fn open_watched(&self, ended: Ended) -> Result<Arc<dyn Queue>, Failure> {
        self.open_with(Some(ended))
    }
}
