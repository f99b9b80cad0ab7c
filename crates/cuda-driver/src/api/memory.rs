//! Device and host memory.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_boundary::missing::refuse;

use crate::attributes;
use crate::boundary::{Handle, HostPointer, Out};
use crate::current;
use crate::driver::{self, DEVICE_MAP, READ_ONLY};
use crate::graph::Work;
use crate::lane::Lane;
use crate::parameters::{AllocationParameters, DEVICE_LOCATION};
use crate::ranges::Kind;
use crate::status::Status;

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
const WRITE_COMBINED: c_uint = 4;
/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const IO_MEMORY: c_uint = 4;
/// `CU_DEVICE_CPU`.
const CPU: c_int = -1;
/// `CU_MEM_LOCATION_TYPE_HOST` and `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`, between which is the other one of the host.
const HOST_LOCATION: c_uint = 2;
const HOST_PART_OF_THREAD: c_uint = 4;
/// `CU_MEM_ADVISE_…`.
const SET_READ_MOSTLY: c_uint = 1;
const UNSET_READ_MOSTLY: c_uint = 2;
const SET_PREFERRED_LOCATION: c_uint = 3;
const UNSET_PREFERRED_LOCATION: c_uint = 4;
const SET_ACCESSED_BY: c_uint = 5;
const UNSET_ACCESSED_BY: c_uint = 6;

exports! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let driver = driver::get()?;
        current::context()?.check()?;
        free.set(driver.free() as usize)?;
        total.set(driver.total() as usize)
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        driver::get()?.captures.check_call()?;
        address.require()?;
        let driver = driver::get()?;
        address.set(driver.allocate(&current::context()?, bytes as u64, Kind::Allocated)?)
    }

    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint) {
        driver::get()?.captures.check_call()?;
        address.require()?;
        pitch.require()?;
        if !matches!(element_bytes, 4 | 8 | 16) {
            return Err(Status::INVALID_VALUE);
        }
        let driver = driver::get()?;
        let row = (width as u64).checked_next_multiple_of(attributes::PITCH).ok_or(Status::OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height as u64).ok_or(Status::OUT_OF_MEMORY)?;
        address.set(driver.allocate(&current::context()?, bytes, Kind::Allocated)?)?;
        pitch.set(row as usize)
    }

    fn cuMemFree_v2(address: u64) {
        driver::get()?.captures.check_call()?;
        let driver = driver::get()?;
        if address == 0 {
            return Ok(());
        }
        current::context()?.check()?;
        driver.free_memory(address)
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) {
        let found = driver::get()?.ranges.find(address).filter(|range| range.kind.has_pointers());
        let range = found.ok_or(Status::NOT_FOUND)?;
        start.set_if_wanted(range.start);
        bytes.set_if_wanted(range.bytes as usize);
        Ok(())
    }

    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        driver::get()?.captures.check_call()?;
        address.require()?;
        let driver = driver::get()?;
        if !matches!(flags, 1 | 2) {
            return Err(Status::INVALID_VALUE);
        }
        address.set(driver.allocate_managed(&current::context()?, bytes, flags)?)
    }

    /// Managed memory is where it is: advice and prefetching change nothing.
    fn cuMemAdvise(address: u64, bytes: usize, advice: c_uint, device: c_int) {
        check_advice(advice, || check_place(device))?;
        managed(address, bytes)
    }

    fn cuMemAdvise_v2(address: u64, bytes: usize, advice: c_uint, location: u64) {
        check_advice(advice, || check_location(location))?;
        managed(address, bytes)
    }

    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: c_int, stream: Handle) {
        Lane::of(stream)?.refuse_capture()?;
        check_place(device)?;
        managed(address, bytes)
    }

    fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, location: u64, flags: c_uint, stream: Handle) {
        Lane::of(stream)?.refuse_capture()?;
        check_location(location)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        managed(address, bytes)
    }

    fn cuMemAllocHost_v2(pointer: Out<HostPointer>, bytes: usize) {
        driver::get()?.captures.check_call()?;
        pointer.require()?;
        pointer.set(driver::get()?.allocate_host(&current::context()?, bytes, 0)?)
    }

    fn cuMemHostAlloc(pointer: Out<HostPointer>, bytes: usize, flags: c_uint) {
        driver::get()?.captures.check_call()?;
        pointer.require()?;
        if flags & !(PORTABLE | DEVICE_MAP | WRITE_COMBINED) != 0 {
            return Err(Status::INVALID_VALUE);
        }
        pointer.set(driver::get()?.allocate_host(&current::context()?, bytes, flags)?)
    }

    fn cuMemFreeHost(pointer: HostPointer) {
        driver::get()?.captures.check_call()?;
        driver::get()?.free_host(pointer)
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: HostPointer, flags: c_uint) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let driver = driver::get()?;
        driver.host_range(pointer.address()).ok_or(Status::INVALID_VALUE)?;
        driver.share_later(pointer.address())?;
        address.set(pointer.address() as u64)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: HostPointer) {
        let (_, _, known, _) = driver::get()?.host_range(pointer.address()).ok_or(Status::INVALID_VALUE)?;
        flags.set(known | DEVICE_MAP)
    }

    fn cuMemHostRegister(pointer: HostPointer, bytes: usize, flags: c_uint) {
        register(pointer, bytes, flags)
    }

    fn cuMemHostRegister_v2(pointer: HostPointer, bytes: usize, flags: c_uint) {
        register(pointer, bytes, flags)
    }

    fn cuMemHostUnregister(pointer: HostPointer) {
        driver::get()?.captures.check_call()?;
        driver::get()?.unregister_host(pointer)
    }

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) {
        let driver = driver::get()?;
        let pool = *driver.current_pool.lock();
        allocate_from(address, bytes, pool, stream)
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        allocate_from(address, bytes, pool, stream)
    }

    /// In a capture, memory that the graph allocates is freed by a node.
    fn cuMemFreeAsync(address: u64, stream: Handle) {
        let lane = Lane::of(stream)?;
        if lane.add(|| driver::get()?.check_graph_memory(address).map(|()| Work::Free(address)))? {
            return Ok(());
        }
        lane.begin()?;
        driver::get()?.free_memory(address)?;
        lane.note(lane.context.queue.last());
        Ok(())
    }

    fn cuDeviceTotalMem(bytes: Out<c_uint>, device: c_int) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        bytes.set(c_uint::try_from(driver.total()).unwrap_or(c_uint::MAX))
    }
}

fn register(pointer: HostPointer, bytes: usize, flags: c_uint) -> Result<(), Status> {
    driver::get()?.captures.check_call()?;
    if flags & !(PORTABLE | DEVICE_MAP | IO_MEMORY | READ_ONLY) != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if flags & IO_MEMORY != 0 {
        return refuse("memory of an I/O device (CU_MEMHOSTREGISTER_IOMEMORY)");
    }
    driver::get()?.register_host(&current::context()?, pointer, bytes, flags)
}

/// Refuses a device that does not exist; [`CPU`] is the host.
fn check_place(device: c_int) -> Result<(), Status> {
    match device {
        CPU => Ok(()),
        device => driver::get()?.check_device(device),
    }
}

/// Refuses a `CUmemLocation` that does not exist: a type, and the number of a device or of a part of the host.
fn check_location(location: u64) -> Result<(), Status> {
    match location as c_uint {
        DEVICE_LOCATION => driver::get()?.check_device((location >> 32) as c_int),
        HOST_LOCATION..=HOST_PART_OF_THREAD => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Refuses an advice (`CUmem_advise`) that does not exist, and a place that does not exist if the advice has one.
fn check_advice(advice: c_uint, check_place: impl FnOnce() -> Result<(), Status>) -> Result<(), Status> {
    match advice {
        SET_READ_MOSTLY | UNSET_READ_MOSTLY | UNSET_PREFERRED_LOCATION => Ok(()),
        SET_PREFERRED_LOCATION | SET_ACCESSED_BY | UNSET_ACCESSED_BY => check_place(),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Refuses what is not within managed memory.
fn managed(address: u64, bytes: usize) -> Result<(), Status> {
    let range = driver::get()?.ranges.find(address).filter(|range| range.kind == Kind::Managed);
    match range {
        Some(range) if bytes as u64 <= range.bytes - (address - range.start) => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn allocate_from(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Result<(), Status> {
    address.require()?;
    let driver = driver::get()?;
    driver.pools.get(pool)?;
    let lane = Lane::of(stream)?;
    let mut reserved = 0;
    let captured = || {
        reserved = driver.reserve_graph_memory(&lane.context, bytes as u64)?;
        Ok(Work::Allocate(Box::new(AllocationParameters::of_device(bytes, reserved))))
    };
    if lane.add(captured)? {
        return address.set(reserved);
    }
    lane.begin()?;
    let start = driver.allocate(&lane.context, bytes as u64, Kind::Pooled(pool))?;
    lane.note(lane.context.queue.last());
    address.set(start)
}
