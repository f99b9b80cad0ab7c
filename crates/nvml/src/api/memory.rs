//! Memory of the device.

use std::ffi::{c_uint, c_ulonglong};

use crate::boundary::{Handle, Out, exports};
use crate::status::Status;
use crate::{driver, state};

/// `nvmlMemory_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryWithReserve {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2`: version 2 and the size of the structure.
const VERSION: c_uint = 2 << 24 | size_of::<MemoryWithReserve>() as c_uint;

fn memory(device: Handle) -> Result<Memory, Status> {
    let total = state::description(device)?.memory_bytes;
    let used = driver::used_bytes().unwrap_or_else(state::used_bytes).min(total);
    Ok(Memory {
        total,
        free: total - used,
        used,
    })
}

exports! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, out: Out<Memory>) {
        out.set(memory(device)?)
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, out: Out<MemoryWithReserve>) {
        let Memory { total, free, used } = memory(device)?;
        if out.cast::<c_uint>().get()? != VERSION {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        out.set(MemoryWithReserve {
            version: VERSION,
            total,
            reserved: 0,
            free,
            used,
        })
    }
}
