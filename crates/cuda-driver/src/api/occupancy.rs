//! Occupancy: how many blocks of a function a multiprocessor takes.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_boundary::missing::refuse;

use crate::attributes;
use crate::boundary::{Handle, In, Out};
use crate::driver;
use crate::occupancy::blocks;
use crate::status::Status;

/// Function that gives the dynamic shared memory of a block for its number of threads.
type SharedBytesOfBlock = Option<unsafe extern "C" fn(c_int) -> usize>;

fn active_blocks(count: Out<c_int>, function: Handle, threads: c_int, shared_bytes: usize) -> Result<(), Status> {
    let driver = driver::get()?;
    let entry = driver.entry(function)?;
    let threads = u32::try_from(threads)
        .ok()
        .filter(|threads| *threads > 0)
        .ok_or(Status::INVALID_VALUE)?;
    count.set(blocks(&entry, threads, shared_bytes, driver.device.properties()) as c_int)
}

fn best_block(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: Handle,
    shared_bytes_of: SharedBytesOfBlock,
    shared_bytes: usize,
    limit: c_int,
) -> Result<(), Status> {
    let driver = driver::get()?;
    let entry = driver.entry(function)?;
    let most = match u32::try_from(limit) {
        Ok(limit) if limit > 0 => limit.min(entry.description.max_threads),
        _ => entry.description.max_threads,
    };
    let (mut best, mut best_threads, mut best_blocks) = (0, 0, 0);
    let mut threads = most;
    while threads > 0 {
        let shared_bytes = match shared_bytes_of {
            // SAFETY: the caller passed the function to be called with a number of threads.
            Some(of) => unsafe { of(threads as c_int) },
            None => shared_bytes,
        };
        let blocks = blocks(&entry, threads, shared_bytes, driver.device.properties());
        if blocks * threads > best {
            (best, best_threads, best_blocks) = (blocks * threads, threads, blocks);
        }
        threads = (threads - 1) / attributes::WARP * attributes::WARP;
    }
    let all_blocks = best_blocks.saturating_mul(driver.device.properties().multiprocessors);
    grid.set(c_int::try_from(all_blocks).unwrap_or(c_int::MAX))?;
    block.set(best_threads as c_int)
}

/// Refuses a question about clusters.
fn clusters(function: Handle) -> Result<(), Status> {
    driver::get()?.entry(function)?;
    refuse("a launch in clusters")
}

exports! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<c_int>, function: Handle, threads: c_int, shared_bytes: usize) {
        active_blocks(count, function, threads, shared_bytes)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<c_int>,
        function: Handle,
        threads: c_int,
        shared_bytes: usize,
        _flags: c_uint,
    ) {
        active_blocks(count, function, threads, shared_bytes)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: Handle,
        shared_bytes_of: SharedBytesOfBlock,
        shared_bytes: usize,
        limit: c_int,
    ) {
        best_block(grid, block, function, shared_bytes_of, shared_bytes, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: Handle,
        shared_bytes_of: SharedBytesOfBlock,
        shared_bytes: usize,
        limit: c_int,
        _flags: c_uint,
    ) {
        best_block(grid, block, function, shared_bytes_of, shared_bytes, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Handle, blocks: c_int, threads: c_int) {
        let driver = driver::get()?;
        let device = driver.device.properties();
        let entry = driver.entry(function)?;
        let blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0).ok_or(Status::INVALID_VALUE)?;
        if threads <= 0 {
            return Err(Status::INVALID_VALUE);
        }
        let share = (attributes::size(81, device) / blocks).saturating_sub(attributes::size(111, device));
        let most = share.min(attributes::size(97, device));
        bytes.set(most.saturating_sub(entry.description.shared_bytes) as usize)
    }

    fn cuOccupancyMaxActiveClusters(_count: Out<c_int>, function: Handle, _configuration: In<u64>) {
        clusters(function)
    }

    fn cuOccupancyMaxPotentialClusterSize(_size: Out<c_int>, function: Handle, _configuration: In<u64>) {
        clusters(function)
    }
}
