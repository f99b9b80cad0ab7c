//! Processes that use the device: unknown, so the lists are empty.

use std::ffi::c_uint;

use crate::boundary::{Handle, Out, exports};
use crate::state;
use crate::status::Status;

fn none(device: Handle, count: Out<c_uint>) -> Result<(), Status> {
    state::description(device)?;
    count.set(0)
}

/// Declares lists of processes.
macro_rules! lists {
    ($(fn $name:ident(device);)*) => {
        exports! {
            $(fn $name(device: Handle, count: Out<c_uint>, _processes: Out<u64>) {
                none(device, count)
            })*
        }
    };
}

lists! {
    fn nvmlDeviceGetComputeRunningProcesses(device);
    fn nvmlDeviceGetComputeRunningProcesses_v2(device);
    fn nvmlDeviceGetComputeRunningProcesses_v3(device);
    fn nvmlDeviceGetGraphicsRunningProcesses(device);
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device);
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device);
    fn nvmlDeviceGetMPSComputeRunningProcesses(device);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device);
}
