//! Devices by index, position and identifier: there is one.

use std::ffi::{c_char, c_uint};

use sahasra_cuda_environment::PCI_BUS;

use crate::boundary::{Handle, Out, Text, exports, write_text};
use crate::state::{self, DEVICE};
use crate::status::Status;

/// Length of a position on the bus as a text, with its zero byte.
const POSITION_BYTES: usize = 32;
/// Length of a position as earlier versions had it.
const SHORT_POSITION_BYTES: usize = 16;
/// `nvmlPciInfoExt_v1`: version 1 and the size of the structure.
const POSITION_VERSION: c_uint = 1 << 24 | size_of::<ExtendedPosition>() as c_uint;

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Position {
    short_text: [u8; SHORT_POSITION_BYTES],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    text: [u8; POSITION_BYTES],
}

/// `nvmlPciInfoExt_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ExtendedPosition {
    version: c_uint,
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    class: c_uint,
    subclass: c_uint,
    text: [u8; POSITION_BYTES],
}

/// Text with zero bytes behind it.
fn padded<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (byte, character) in bytes[..LENGTH - 1].iter_mut().zip(text.bytes()) {
        *byte = character;
    }
    bytes
}

/// Position with this many digits of the domain.
fn position_text(digits: usize) -> String {
    format!("{:0digits$x}:{PCI_BUS:02x}:00.0", 0)
}

fn position(handle: Handle, out: Out<Position>) -> Result<(), Status> {
    state::description(handle)?;
    out.set(Position {
        short_text: padded(&position_text(4)),
        domain: 0,
        bus: PCI_BUS.into(),
        device: 0,
        device_id: 0,
        subsystem_id: 0,
        text: padded(&position_text(8)),
    })
}

fn by_index(index: c_uint, device: Out<Handle>) -> Result<(), Status> {
    let exists = state::with_device(|known| Ok(known.is_some() && index == 0))?;
    if !exists {
        return Err(Status::INVALID_ARGUMENT);
    }
    device.set(DEVICE)
}

fn by_position(text: Text, device: Out<Handle>) -> Result<(), Status> {
    let text = text.get()?.to_lowercase();
    let is_position = [4, 8].iter().any(|digits| text == position_text(*digits)) || text == format!("{PCI_BUS:02x}:00.0");
    let exists = state::with_device(|known| Ok(known.is_some() && is_position))?;
    if !exists {
        return Err(Status::NOT_FOUND);
    }
    device.set(DEVICE)
}

/// Identifier as programs write it.
fn identifier(uuid: &[u8; 16]) -> String {
    let digits: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let group = |from: usize, to: usize| digits[from..to].concat();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        group(0, 4),
        group(4, 6),
        group(6, 8),
        group(8, 10),
        group(10, 16)
    )
}

fn count(count: Out<c_uint>) -> Result<(), Status> {
    count.set(state::with_device(|known| Ok(c_uint::from(known.is_some())))?)
}

exports! {
    fn nvmlDeviceGetCount(number: Out<c_uint>) {
        count(number)
    }

    fn nvmlDeviceGetCount_v2(number: Out<c_uint>) {
        count(number)
    }

    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Handle>) {
        by_index(index, device)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) {
        by_index(index, device)
    }

    fn nvmlDeviceGetHandleByPciBusId(text: Text, device: Out<Handle>) {
        by_position(text, device)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: Text, device: Out<Handle>) {
        by_position(text, device)
    }

    fn nvmlDeviceGetHandleByUUID(text: Text, device: Out<Handle>) {
        let text = text.get()?;
        let is_known = state::with_device(|known| Ok(known.is_some()))?;
        if !is_known || identifier(&state::description(DEVICE)?.uuid) != text {
            return Err(Status::NOT_FOUND);
        }
        device.set(DEVICE)
    }

    /// The device has no serial number.
    fn nvmlDeviceGetHandleBySerial(text: Text, _device: Out<Handle>) {
        state::check()?;
        text.get()?;
        Err(Status::NOT_FOUND)
    }

    fn nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) {
        state::description(device)?;
        index.set(0)
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, number: Out<c_uint>) {
        state::description(device)?;
        number.set(0)
    }

    fn nvmlDeviceGetModuleId(device: Handle, number: Out<c_uint>) {
        state::description(device)?;
        number.set(0)
    }

    fn nvmlDeviceGetBoardId(device: Handle, number: Out<c_uint>) {
        state::description(device)?;
        number.set(c_uint::from(PCI_BUS) << 8)
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Handle, is_shared: Out<c_uint>) {
        state::description(device)?;
        is_shared.set(0)
    }

    fn nvmlDeviceOnSameBoard(device: Handle, other: Handle, is_shared: Out<c_uint>) {
        state::description(device)?;
        state::description(other)?;
        is_shared.set(1)
    }

    fn nvmlDeviceGetName(device: Handle, text: Out<c_char>, length: c_uint) {
        write_text(&state::description(device)?.name, text, length)
    }

    fn nvmlDeviceGetUUID(device: Handle, text: Out<c_char>, length: c_uint) {
        write_text(&identifier(&state::description(device)?.uuid), text, length)
    }

    fn nvmlDeviceGetPciInfo(device: Handle, out: Out<Position>) {
        position(device, out)
    }

    fn nvmlDeviceGetPciInfo_v2(device: Handle, out: Out<Position>) {
        position(device, out)
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, out: Out<Position>) {
        position(device, out)
    }

    fn nvmlDeviceGetPciInfoExt(device: Handle, out: Out<ExtendedPosition>) {
        state::description(device)?;
        if out.cast::<c_uint>().get()? != POSITION_VERSION {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        out.set(ExtendedPosition {
            version: POSITION_VERSION,
            domain: 0,
            bus: PCI_BUS.into(),
            device: 0,
            device_id: 0,
            subsystem_id: 0,
            // A display controller for 3D.
            class: 3,
            subclass: 2,
            text: padded(&position_text(8)),
        })
    }
}
