//! Devices: there is one.

use std::ffi::{c_char, c_int, c_uint};

use sahasra_cuda_boundary::missing::refuse;

use crate::attributes;
use crate::boundary::{Handle, Out, Text};
use crate::driver::{self, Driver};
use crate::status::Status;

/// Position of the device, on bus [`PCI_BUS`](sahasra_cuda_environment::PCI_BUS).
const PCI: &str = "0000:01:00.0";

/// `CUdevprop`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DeviceProperties {
    max_threads: c_int,
    max_block: [c_int; 3],
    max_grid: [c_int; 3],
    shared_bytes: c_int,
    constant_bytes: c_int,
    warp: c_int,
    pitch: c_int,
    registers: c_int,
    clock_rate: c_int,
    texture_alignment: c_int,
}

/// The driver, if the device exists.
fn of(device: c_int) -> Result<&'static Driver, Status> {
    let driver = driver::get()?;
    driver.check_device(device)?;
    Ok(driver)
}

/// Writes a text with a zero byte at its end, cut to the length of its place.
fn write_text(text: &str, place: Out<c_char>, length: c_int) -> Result<(), Status> {
    place.require()?;
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length > 0)
        .ok_or(Status::INVALID_VALUE)?;
    let cut = text.as_bytes().iter().take(length - 1);
    for (index, byte) in cut.chain(&[0]).enumerate() {
        place.set_at(index, *byte as c_char)?;
    }
    Ok(())
}

exports! {
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        of(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(1)
    }

    fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: c_int) {
        write_text(&of(device)?.device.properties().name, name, length)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.set(of(device)?.device.properties().uuid)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.set(of(device)?.device.properties().uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        bytes.set(of(device)?.total() as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) {
        let properties = of(device)?.device.properties();
        value.set(attributes::device(attribute, properties).ok_or(Status::INVALID_VALUE)?)
    }

    fn cuDeviceGetProperties(properties: Out<DeviceProperties>, device: c_int) {
        let known = of(device)?.device.properties();
        let attribute = |number| attributes::device(number, known).unwrap_or(0);
        properties.set(DeviceProperties {
            max_threads: attribute(1),
            max_block: [attribute(2), attribute(3), attribute(4)],
            max_grid: [attribute(5), attribute(6), attribute(7)],
            shared_bytes: attribute(8),
            constant_bytes: attribute(9),
            warp: attribute(10),
            pitch: attribute(11),
            registers: attribute(12),
            clock_rate: attribute(13),
            texture_alignment: attribute(14),
        })
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        let capability = attributes::capability(of(device)?.device.properties());
        major.set(capability.0)?;
        minor.set(capability.1)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, length: c_int, device: c_int) {
        of(device)?;
        write_text(PCI, text, length)
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        driver::get()?;
        match text.get()?.as_str() {
            PCI | "01:00.0" => device.set(0),
            _ => Err(Status::INVALID_DEVICE),
        }
    }

    fn cuDeviceCanAccessPeer(can_access: Out<c_int>, device: c_int, peer: c_int) {
        of(device)?;
        of(peer)?;
        can_access.set(0)
    }

    fn cuDeviceGetP2PAttribute(_value: Out<c_int>, _attribute: c_uint, device: c_int, peer: c_int) {
        of(device)?;
        of(peer)?;
        // The devices must differ.
        Err(Status::INVALID_DEVICE)
    }

    fn cuDeviceGetExecAffinitySupport(is_supported: Out<c_int>, _kind: c_uint, device: c_int) {
        of(device)?;
        is_supported.set(0)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) {
        pool.set(of(device)?.default_pool)
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) {
        pool.set(*of(device)?.current_pool.lock())
    }

    fn cuDeviceSetMemPool(device: c_int, pool: Handle) {
        let driver = of(device)?;
        driver.pools.get(pool)?;
        *driver.current_pool.lock() = pool;
        Ok(())
    }

    /// Windows has these.
    fn cuDeviceGetLuid(_luid: Out<[u8; 8]>, _mask: Out<c_uint>, device: c_int) {
        of(device)?;
        refuse("cuDeviceGetLuid")
    }
}
