//! Virtual memory management: memory at addresses that the program chooses among those that it has reserved.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, In, Out};
use crate::context::Context;
use crate::current;
use crate::driver;
use crate::status::Status;
use crate::virtual_memory::GRANULARITY;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: c_uint,
    device: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_kinds: c_uint,
    location: Location,
    windows: In<u8>,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    flags: c_uint,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: c_uint = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_uint = 1;

impl Location {
    fn check(self) -> Result<(), Status> {
        if self.kind != DEVICE {
            return refuse("memory of the host at reserved addresses");
        }
        driver::get()?.check_device(self.device)
    }
}

impl Properties {
    fn check(&self) -> Result<(), Status> {
        if self.kind != PINNED {
            return Err(Status::INVALID_VALUE);
        }
        if self.handle_kinds != 0 {
            return refuse("memory for other processes");
        }
        self.location.check()
    }
}

/// The current context, or else the primary one.
fn context() -> Result<Arc<Context>, Status> {
    let driver = driver::get()?;
    current::context().or_else(|status| {
        let primary = driver.primary.lock().handle();
        driver.contexts.find(primary).ok_or(status)
    })
}

exports! {
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, option: c_uint) {
        properties.get()?.check()?;
        if option > 1 {
            return Err(Status::INVALID_VALUE);
        }
        bytes.set(GRANULARITY as usize)
    }

    fn cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, wanted: u64, flags: u64) {
        address.require()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        address.set(driver::get()?.virtual_memory.lock().reserve(bytes as u64, alignment as u64, wanted)?)
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        driver::get()?.virtual_memory.lock().free(address, bytes as u64)
    }

    fn cuMemCreate(handle: Out<Handle>, bytes: usize, properties: In<Properties>, flags: u64) {
        handle.require()?;
        properties.get()?.check()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        handle.set(driver::get()?.create_memory(bytes as u64)?)
    }

    fn cuMemRelease(handle: Handle) {
        driver::get()?.release_memory(handle)
    }

    /// A memory is mapped as a whole, and at one address at a time.
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        if flags != 0 || offset != 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver::get()?.virtual_memory.lock().map(address, bytes as u64, handle)
    }

    fn cuMemUnmap(address: u64, bytes: usize) {
        driver::get()?.unmap(address, bytes as u64)
    }

    /// Memory belongs to the context that is current when it becomes accessible first. That kernels may only read it is not enforced.
    fn cuMemSetAccess(address: u64, bytes: usize, accesses: In<Access>, count: usize) {
        if count == 0 {
            return Err(Status::INVALID_VALUE);
        }
        for index in 0..count {
            let access = accesses.at(index)?;
            access.location.check()?;
            if !matches!(access.flags, 0 | 1 | 3) {
                return Err(Status::INVALID_VALUE);
            }
            driver::get()?.set_access(&context()?, address, bytes as u64, access.flags)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        location.get()?.check()?;
        flags.set(u64::from(driver::get()?.virtual_memory.lock().mapping_at(address)?.access))
    }

    fn cuMemRetainAllocationHandle(handle: Out<Handle>, address: u64) {
        handle.require()?;
        let mut state = driver::get()?.virtual_memory.lock();
        let found = state.mapping_at(address)?.memory;
        state.memories.get_mut(&found).ok_or(Status::INVALID_VALUE)?.references += 1;
        handle.set(found)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: Handle) {
        if !driver::get()?.virtual_memory.lock().memories.contains_key(&handle) {
            return Err(Status::INVALID_VALUE);
        }
        properties.set(Properties {
            kind: PINNED,
            handle_kinds: 0,
            location: Location { kind: DEVICE, device: 0 },
            windows: In::new(std::ptr::null()),
            flags: [0; 8],
        })
    }
}
