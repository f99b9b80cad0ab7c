//! Memory of the device and of the host.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, In, Out, Pointer};
use crate::driver::structures::Extent;
use crate::{Error, context, exports};

/// `cudaPitchedPtr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pitched {
    pub(crate) address: u64,
    /// Distance of rows in bytes.
    pub(crate) pitch: usize,
    pub(crate) width: usize,
    /// Rows of a slice.
    pub(crate) height: usize,
}

/// `cudaPointerAttributes`, as far as both versions have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PointerAttributes {
    kind: c_uint,
    device: c_int,
    device_address: u64,
    host_address: u64,
}

/// Alignment that rows have in elements of this size.
const ELEMENT_BYTES: c_uint = 4;
/// `cudaInvalidDeviceId`.
const NO_DEVICE: c_int = -2;
/// Attributes of pointers: kind of memory, addresses in device and host, whether it is managed, device.
const ATTRIBUTES: [c_uint; 5] = [2, 3, 4, 8, 9];

/// Attributes of a pointer. A pointer of which the driver knows nothing is one of the host.
pub fn pointer_attributes(address: u64) -> Result<PointerAttributes, Error> {
    let (mut kind, mut device_address, mut host_address, mut is_managed, mut device) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let places = [&mut kind, &mut device_address, &mut host_address, &mut is_managed, &mut device];
    let places = places.map(|place| Out::new(std::ptr::from_mut(place)));
    let count = ATTRIBUTES.len() as c_uint;
    context::ready()?.cuPointerGetAttributes(count, In::new(ATTRIBUTES.as_ptr()), In::new(places.as_ptr()), address)?;
    // The driver writes as many bytes of each as its type has.
    let kind = match (kind as u32, is_managed as u8) {
        (_, 1) => 3,
        (1 | 2, _) => kind as u32,
        _ => 0,
    };
    Ok(match kind {
        0 => PointerAttributes {
            kind,
            device: NO_DEVICE,
            device_address: 0,
            host_address: address,
        },
        _ => PointerAttributes {
            kind,
            device: device as u32 as c_int,
            device_address,
            host_address,
        },
    })
}

fn allocate_host(pointer: Out<Pointer>, bytes: usize, flags: c_uint) -> Result<(), Error> {
    pointer.require()?;
    let driver = context::ready()?;
    if bytes == 0 {
        return pointer.set(Pointer::of_address(0));
    }
    driver.cuMemHostAlloc(pointer, bytes, flags)
}

fn allocate_rows(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize) -> Result<(), Error> {
    address.require()?;
    pitch.require()?;
    let driver = context::ready()?;
    if width == 0 || height == 0 {
        address.set(0)?;
        return pitch.set(0);
    }
    driver.cuMemAllocPitch_v2(address, pitch, width, height, ELEMENT_BYTES)
}

exports! {
    /// No bytes are no memory, and no error.
    fn cudaMalloc(address: Out<u64>, bytes: usize) {
        address.require()?;
        let driver = context::ready()?;
        if bytes == 0 {
            return address.set(0);
        }
        driver.cuMemAlloc_v2(address, bytes)
    }

    fn cudaMallocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        address.require()?;
        if bytes == 0 {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemAllocManaged(address, bytes, flags)
    }

    fn cudaMallocPitch(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        allocate_rows(address, pitch, width, height)
    }

    fn cudaMalloc3D(pitched: Out<Pitched>, extent: Extent) {
        pitched.require()?;
        let (mut address, mut pitch) = (0, 0);
        let rows = extent.height.checked_mul(extent.depth).ok_or(Error::MEMORY_ALLOCATION)?;
        allocate_rows(Out::new(&raw mut address), Out::new(&raw mut pitch), extent.width, rows)?;
        pitched.set(Pitched {
            address,
            pitch,
            width: extent.width,
            height: extent.height,
        })
    }

    /// Null is no memory, and no error.
    fn cudaFree(address: u64) {
        let driver = context::ready()?;
        if address == 0 {
            return Ok(());
        }
        driver.cuMemFree_v2(address)
    }

    fn cudaMallocHost(pointer: Out<Pointer>, bytes: usize) {
        allocate_host(pointer, bytes, 0)
    }

    fn cudaHostAlloc(pointer: Out<Pointer>, bytes: usize, flags: c_uint) {
        allocate_host(pointer, bytes, flags)
    }

    fn cudaFreeHost(pointer: Pointer) {
        let driver = context::ready()?;
        if pointer.is_null() {
            return Ok(());
        }
        driver.cuMemFreeHost(pointer)
    }

    fn cudaHostRegister(pointer: Pointer, bytes: usize, flags: c_uint) {
        context::ready()?.cuMemHostRegister_v2(pointer, bytes, flags)
    }

    fn cudaHostUnregister(pointer: Pointer) {
        context::ready()?.cuMemHostUnregister(pointer)
    }

    fn cudaHostGetDevicePointer(address: Out<u64>, pointer: Pointer, flags: c_uint) {
        context::ready()?.cuMemHostGetDevicePointer_v2(address, pointer, flags)
    }

    fn cudaHostGetFlags(flags: Out<c_uint>, pointer: Pointer) {
        context::ready()?.cuMemHostGetFlags(flags, pointer)
    }

    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        context::ready()?.cuMemGetInfo_v2(free, total)
    }

    fn cudaMallocAsync(address: Out<u64>, bytes: usize, stream: Handle) {
        address.require()?;
        let driver = context::ready()?;
        if bytes == 0 {
            return address.set(0);
        }
        driver.cuMemAllocAsync(address, bytes, stream)
    }

    fn cudaMallocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        address.require()?;
        let driver = context::ready()?;
        if bytes == 0 {
            return address.set(0);
        }
        driver.cuMemAllocFromPoolAsync(address, bytes, pool, stream)
    }

    fn cudaFreeAsync(address: u64, stream: Handle) {
        let driver = context::ready()?;
        if address == 0 {
            return Ok(());
        }
        driver.cuMemFreeAsync(address, stream)
    }
}
