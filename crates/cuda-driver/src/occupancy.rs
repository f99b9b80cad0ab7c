//! Occupancy: how many blocks of a function are on the device at the same time.

use sahasra_cuda_device::Properties;

use crate::attributes;
use crate::module::Entry;

/// Registers that warps are given at a time (CUDA's occupancy calculator).
const REGISTER_UNIT: u32 = 256;

/// Blocks of a multiprocessor.
pub(crate) fn blocks(entry: &Entry, threads: u32, shared_bytes: usize, device: &Properties) -> u32 {
    let most = entry.description.max_threads.next_multiple_of(attributes::WARP);
    if threads == 0 || threads > most {
        return 0;
    }
    let threads = threads.next_multiple_of(attributes::WARP);
    let shared = u64::from(entry.description.shared_bytes) + u64::from(attributes::size(111, device));
    let shared = shared.saturating_add(shared_bytes as u64).max(1);
    let by_shared = u64::from(attributes::size(81, device)) / shared;
    let of_warp = (entry.registers() * attributes::WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = attributes::size(82, device) / (of_warp * (threads / attributes::WARP)).max(1);
    let by_threads = (attributes::size(39, device) / threads).min(attributes::size(106, device));
    by_threads.min(by_shared as u32).min(by_registers)
}
