//! Discovers GPUs through the CUDA driver. Runs in a short-lived child process, so that the agent never loads the driver.

use cudarc::driver::sys::{self, CUresult};
use sahasra_executor_protocol::probe::{Gpu, Probe};

use super::driver::{check, description, is_present};
use crate::device::DeviceError;

/// Discovers the GPUs. Creates a context on each GPU and keeps it until the end of the process.
pub(crate) fn probe() -> Probe {
    if !is_present() {
        return Probe::failed("the CUDA driver (libcuda) is not installed");
    }
    let mut count = 0;
    // SAFETY: the driver is present; `cuInit` is called first; the driver writes a number.
    let counted = unsafe {
        match sys::cuInit(0) {
            CUresult::CUDA_SUCCESS => sys::cuDeviceGetCount(&mut count),
            failed => failed,
        }
    };
    if counted != CUresult::CUDA_SUCCESS {
        return Probe::failed(format!("the CUDA driver finds no GPU: {}", description(counted)));
    }
    let mut found = Probe {
        gpus: Vec::new(),
        reason: (count == 0).then(|| "the CUDA driver finds no GPU".to_owned()),
    };
    for ordinal in 0..count {
        match gpu(ordinal) {
            Ok(gpu) => found.gpus.push(gpu),
            Err(error) => found.reason = Some(format!("GPU {ordinal}: {error}")),
        }
    }
    found
}

fn gpu(ordinal: i32) -> Result<Gpu, DeviceError> {
    let mut device = 0;
    let mut name = [0; 256];
    let (mut total, mut free, mut ignored) = (0usize, 0usize, 0usize);
    let mut context = std::ptr::null_mut();
    // SAFETY: `cuInit` was called; every pointer is to a local of the type that the driver writes.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
        check(
            "cuDeviceGetName",
            sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device),
        )?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut total, device))?;
        check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        check("cuMemGetInfo", sys::cuMemGetInfo_v2(&mut free, &mut ignored))?;
    }
    let model: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    Ok(Gpu {
        ordinal: ordinal as u32,
        model: String::from_utf8_lossy(&model).into_owned(),
        total_bytes: total as u64,
        free_bytes: free as u64,
        // Memory in use by other processes is included, so this is an upper bound of the context's memory.
        context_bytes: total.saturating_sub(free) as u64,
    })
}
