//! Kind and modes of the device.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, Out, exports};
use crate::state;
use crate::status::Status;

/// `NVML_DEVICE_ARCH_UNKNOWN`.
const UNKNOWN_ARCHITECTURE: c_uint = u32::MAX;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const NO_PEERS: c_uint = 5;

/// `nvmlFieldValue_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    status: Status,
    value: u64,
}

/// Architecture (`nvmlDeviceArchitecture_t`) of a compute capability, from Kepler to Blackwell.
fn architecture(capability: (c_int, c_int)) -> c_uint {
    match capability {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0..=4) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10..=12, _) => 10,
        _ => UNKNOWN_ARCHITECTURE,
    }
}

/// Writes a number that says the same of every device.
fn constant(device: Handle, out: Out<c_uint>, value: c_uint) -> Result<(), Status> {
    state::description(device)?;
    out.set(value)
}

exports! {
    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<c_int>, minor: Out<c_int>) {
        let capability = state::description(device)?.capability;
        major.set(capability.0)?;
        minor.set(capability.1)
    }

    fn nvmlDeviceGetArchitecture(device: Handle, number: Out<c_uint>) {
        number.set(architecture(state::description(device)?.capability))
    }

    /// `NVML_BRAND_UNKNOWN`.
    fn nvmlDeviceGetBrand(device: Handle, brand: Out<c_uint>) {
        constant(device, brand, 0)
    }

    /// No display, no persistence, and any number of processes: 0 in each of these.
    fn nvmlDeviceGetDisplayMode(device: Handle, mode: Out<c_uint>) {
        constant(device, mode, 0)
    }

    fn nvmlDeviceGetDisplayActive(device: Handle, is_active: Out<c_uint>) {
        constant(device, is_active, 0)
    }

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<c_uint>) {
        constant(device, mode, 0)
    }

    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<c_uint>) {
        constant(device, mode, 0)
    }

    fn nvmlDeviceGetVirtualizationMode(device: Handle, mode: Out<c_uint>) {
        constant(device, mode, 0)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_instance: Out<c_uint>) {
        constant(device, is_instance, 0)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) {
        constant(device, count, 0)
    }

    fn nvmlDeviceGetTopologyNearestGpus(device: Handle, _level: c_uint, count: Out<c_uint>, _devices: Out<Handle>) {
        constant(device, count, 0)
    }

    fn nvmlDeviceGetP2PStatus(device: Handle, peer: Handle, _kind: c_uint, status: Out<c_uint>) {
        state::description(peer)?;
        constant(device, status, NO_PEERS)
    }

    /// Each field says of itself that it is not supported.
    fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: Out<FieldValue>) {
        state::description(device)?;
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        for index in 0..count {
            values.require()?;
            let place = values.element(index);
            let field = place.get()?;
            place.set(FieldValue {
                status: Status::NOT_SUPPORTED,
                ..field
            })?;
        }
        Ok(())
    }
}
