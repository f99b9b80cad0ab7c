//! Copies.

use std::ffi::{c_int, c_uint};

use super::array;
use super::memory::Pitched;
use crate::boundary::{Handle, In, Pointer};
use crate::driver::Driver;
use crate::driver::structures::{DriverPlane, DriverPlanes, DriverVolume, DriverVolumes, Extent};
use crate::{Error, context, exports};

/// `CU_MEMORYTYPE_HOST` and the others.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
const ARRAY: c_uint = 3;
const UNIFIED: c_uint = 4;

/// `cudaMemcpyKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Direction(c_uint);

impl Direction {
    const HOST_TO_HOST: Self = Self(0);
    const HOST_TO_DEVICE: Self = Self(1);
    const DEVICE_TO_HOST: Self = Self(2);
    const DEVICE_TO_DEVICE: Self = Self(3);
    const DEFAULT: Self = Self(4);

    /// Refuses memory of the host.
    pub(crate) fn check_on_device(self) -> Result<(), Error> {
        match self {
            Self::DEVICE_TO_DEVICE | Self::DEFAULT => Ok(()),
            _ => Err(Error::INVALID_MEMCPY_DIRECTION),
        }
    }

    /// Kinds of memory from and to which it copies.
    fn kinds(self) -> Result<[c_uint; 2], Error> {
        match self {
            Self::HOST_TO_HOST => Ok([HOST, HOST]),
            Self::HOST_TO_DEVICE => Ok([HOST, DEVICE]),
            Self::DEVICE_TO_HOST => Ok([DEVICE, HOST]),
            Self::DEVICE_TO_DEVICE => Ok([DEVICE, DEVICE]),
            Self::DEFAULT => Ok([UNIFIED, UNIFIED]),
            _ => Err(Error::INVALID_MEMCPY_DIRECTION),
        }
    }
}

/// One side of `cudaMemcpy3DParms`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Volume {
    array: Handle,
    /// Position in bytes, rows and slices.
    position: [usize; 3],
    pointer: Pitched,
}

/// `cudaMemcpy3DParms`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Volumes {
    from: Volume,
    to: Volume,
    extent: Extent,
    direction: Direction,
}

/// `cudaMemcpy3DPeerParms`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeerVolumes {
    from: Volume,
    from_device: c_int,
    to: Volume,
    to_device: c_int,
    extent: Extent,
}

impl PeerVolumes {
    /// The same copy on the only device.
    fn on_one_device(&self) -> Result<Volumes, Error> {
        context::of_device(self.from_device)?;
        context::of_device(self.to_device)?;
        Ok(Volumes {
            from: self.from,
            to: self.to,
            extent: self.extent,
            direction: Direction::DEVICE_TO_DEVICE,
        })
    }
}

impl Volumes {
    /// The same copy for the driver library.
    pub(crate) fn for_driver(&self) -> Result<DriverVolumes, Error> {
        let [from, to] = self.direction.kinds()?;
        let (from, from_texel) = DriverVolume::new(from, &self.from)?;
        let (to, to_texel) = DriverVolume::new(to, &self.to)?;
        if from_texel.zip(to_texel).is_some_and(|(from, to)| from != to) {
            return Err(Error::INVALID_VALUE);
        }
        // Widths of copies with arrays are in texels.
        let unit = from_texel.or(to_texel).unwrap_or(1);
        Ok(DriverVolumes {
            from,
            to,
            width: self.extent.width.checked_mul(unit).ok_or(Error::INVALID_VALUE)?,
            height: self.extent.height,
            depth: self.extent.depth,
        })
    }

    /// A copy of bytes.
    pub(crate) fn linear(to: u64, from: u64, bytes: usize, direction: Direction) -> Self {
        let side = |address| Volume {
            array: Handle::NULL,
            position: [0; 3],
            pointer: Pitched {
                address,
                pitch: bytes,
                width: bytes,
                height: 1,
            },
        };
        Self {
            from: side(from),
            to: side(to),
            extent: Extent {
                width: bytes,
                height: 1,
                depth: 1,
            },
            direction,
        }
    }
}

impl DriverVolumes {
    /// The same copy for programs.
    pub(crate) fn for_program(&self) -> Result<Volumes, Error> {
        let texel = |side: &DriverVolume| match side.kind {
            ARRAY => array::texel_bytes(side.array).map(Some),
            _ => Ok(None),
        };
        let (from_texel, to_texel) = (texel(&self.from)?, texel(&self.to)?);
        let side = |side: &DriverVolume, texel: Option<usize>| Volume {
            array: if side.kind == ARRAY { side.array } else { Handle::NULL },
            position: [side.x_bytes / texel.unwrap_or(1), side.y, side.z],
            pointer: Pitched {
                address: match side.kind {
                    ARRAY => 0,
                    HOST => side.host,
                    _ => side.device,
                },
                pitch: side.pitch,
                width: side.pitch,
                height: side.height,
            },
        };
        // Arrays are memory of the device.
        let kinds = [self.from.kind, self.to.kind].map(|kind| if kind == ARRAY { DEVICE } else { kind });
        Ok(Volumes {
            from: side(&self.from, from_texel),
            to: side(&self.to, to_texel),
            extent: Extent {
                width: self.width / from_texel.or(to_texel).unwrap_or(1),
                height: self.height,
                depth: self.depth,
            },
            direction: match kinds {
                [HOST, HOST] => Direction::HOST_TO_HOST,
                [HOST, DEVICE] => Direction::HOST_TO_DEVICE,
                [DEVICE, HOST] => Direction::DEVICE_TO_HOST,
                [DEVICE, DEVICE] => Direction::DEVICE_TO_DEVICE,
                _ => Direction::DEFAULT,
            },
        })
    }
}

const _: () = assert!(size_of::<Volumes>() == 160);

/// Kind of memory of an array in a copy of rows, whose direction gives this side `kind`.
fn of_array(kind: c_uint) -> Result<c_uint, Error> {
    match kind {
        HOST => Err(Error::INVALID_MEMCPY_DIRECTION),
        _ => Ok(ARRAY),
    }
}

impl DriverPlane {
    /// Rows of an array, from a byte of a row on.
    fn of_array(kind: c_uint, array: Handle, x_bytes: usize, y: usize) -> Result<Self, Error> {
        Ok(Self {
            x_bytes,
            y,
            array,
            ..Self::new(of_array(kind)?, 0, 0)
        })
    }

    fn new(kind: c_uint, address: u64, pitch: usize) -> Self {
        Self {
            x_bytes: 0,
            y: 0,
            kind,
            host: if kind == HOST { address } else { 0 },
            device: if kind == HOST { 0 } else { address },
            array: Handle::NULL,
            pitch,
        }
    }
}

impl DriverVolume {
    /// A side, and the size of its texels in bytes if it is an array.
    fn new(kind: c_uint, side: &Volume) -> Result<(Self, Option<usize>), Error> {
        let [x, y, z] = side.position;
        let address = side.pointer.address;
        let texel = match side.array {
            Handle::NULL => None,
            array if address == 0 => Some(array::texel_bytes(array)?),
            _ => return Err(Error::INVALID_VALUE),
        };
        // Arrays are memory of the device, whatever the kind of the copy says.
        let kind = if texel.is_some() { ARRAY } else { kind };
        let side = Self {
            x_bytes: x.checked_mul(texel.unwrap_or(1)).ok_or(Error::INVALID_VALUE)?,
            y,
            z,
            level: 0,
            kind,
            host: if kind == HOST { address } else { 0 },
            device: if kind == HOST { 0 } else { address },
            array: side.array,
            reserved: 0,
            pitch: side.pointer.pitch,
            height: side.pointer.height,
        };
        Ok((side, texel))
    }
}

/// One side of a copy of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows {
    Memory {
        address: u64,
        pitch: usize,
    },
    /// Rows of an array, from a byte of a row on.
    Array {
        array: Handle,
        x_bytes: usize,
        y: usize,
    },
}

impl Rows {
    pub(crate) fn memory(address: u64, pitch: usize) -> Self {
        Self::Memory { address, pitch }
    }

    pub(crate) fn array(array: Handle, x_bytes: usize, y: usize) -> Self {
        Self::Array { array, x_bytes, y }
    }
}

/// Copies rows, now or as the next work of a stream.
pub(crate) fn copy_rows(
    to: Rows,
    from: Rows,
    [width, height]: [usize; 2],
    direction: Direction,
    stream: Option<Handle>,
) -> Result<(), Error> {
    let driver = context::ready()?;
    let [from_kind, to_kind] = direction.kinds()?;
    let side = |side: Rows, kind| match side {
        Rows::Memory { pitch, .. } if width > pitch => Err(Error::INVALID_PITCH_VALUE),
        Rows::Memory { address, pitch } => Ok(DriverPlane::new(kind, address, pitch)),
        Rows::Array { array, x_bytes, y } => DriverPlane::of_array(kind, array, x_bytes, y),
    };
    let planes = DriverPlanes {
        from: side(from, from_kind)?,
        to: side(to, to_kind)?,
        width,
        height,
    };
    match stream {
        _ if width == 0 || height == 0 => Ok(()),
        None => driver.cuMemcpy2DUnaligned_v2(In::new(&raw const planes)),
        Some(stream) => driver.cuMemcpy2DAsync_v2(In::new(&raw const planes), stream),
    }
}

/// Copies what programs describe, now or as the next work of a stream.
fn copy_volumes(copy: &Volumes, stream: Option<Handle>) -> Result<(), Error> {
    let driver = context::ready()?;
    let volumes = copy.for_driver()?;
    match stream {
        _ if [volumes.width, volumes.height, volumes.depth].contains(&0) => Ok(()),
        None => driver.cuMemcpy3D_v2(In::new(&raw const volumes)),
        Some(stream) => driver.cuMemcpy3DAsync_v2(In::new(&raw const volumes), stream),
    }
}

/// Copies bytes, and waits as the direction asks for it.
pub(crate) fn linear(driver: &Driver, to: u64, from: u64, bytes: usize, direction: Direction) -> Result<(), Error> {
    direction.kinds()?;
    let host = |address: u64| Pointer::of_address(address as usize);
    match direction {
        _ if bytes == 0 => Ok(()),
        Direction::HOST_TO_DEVICE => driver.cuMemcpyHtoD_v2(to, host(from), bytes),
        Direction::DEVICE_TO_HOST => driver.cuMemcpyDtoH_v2(host(to), from, bytes),
        Direction::DEVICE_TO_DEVICE => driver.cuMemcpyDtoD_v2(to, from, bytes),
        _ => driver.cuMemcpy(to, from, bytes),
    }
}

/// Submits a copy of bytes to a stream.
pub(crate) fn linear_async(driver: &Driver, to: u64, from: u64, bytes: usize, direction: Direction, stream: Handle) -> Result<(), Error> {
    direction.kinds()?;
    let host = |address: u64| Pointer::of_address(address as usize);
    match direction {
        _ if bytes == 0 => Ok(()),
        Direction::HOST_TO_DEVICE => driver.cuMemcpyHtoDAsync_v2(to, host(from), bytes, stream),
        Direction::DEVICE_TO_HOST => driver.cuMemcpyDtoHAsync_v2(host(to), from, bytes, stream),
        Direction::DEVICE_TO_DEVICE => driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
        _ => driver.cuMemcpyAsync(to, from, bytes, stream),
    }
}

exports! {
    fn cudaMemcpy(to: u64, from: u64, bytes: usize, direction: Direction) {
        linear(context::ready()?, to, from, bytes, direction)
    }

    fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, direction: Direction, stream: Handle) {
        linear_async(context::ready()?, to, from, bytes, direction, stream)
    }

    /// Addresses say of which device they are.
    fn cudaMemcpyPeer(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize) {
        context::of_device(to_device)?;
        context::of_device(from_device)?;
        linear(context::ready()?, to, from, bytes, Direction::DEVICE_TO_DEVICE)
    }

    fn cudaMemcpyPeerAsync(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize, stream: Handle) {
        context::of_device(to_device)?;
        context::of_device(from_device)?;
        linear_async(context::ready()?, to, from, bytes, Direction::DEVICE_TO_DEVICE, stream)
    }

    fn cudaMemcpy2D(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, direction: Direction) {
        copy_rows(Rows::memory(to, to_pitch), Rows::memory(from, from_pitch), [width, height], direction, None)
    }

    fn cudaMemcpy2DAsync(
        to: u64,
        to_pitch: usize,
        from: u64,
        from_pitch: usize,
        width: usize,
        height: usize,
        direction: Direction,
        stream: Handle,
    ) {
        copy_rows(Rows::memory(to, to_pitch), Rows::memory(from, from_pitch), [width, height], direction, Some(stream))
    }

    fn cudaMemcpy3D(parameters: In<Volumes>) {
        copy_volumes(&parameters.get()?, None)
    }

    fn cudaMemcpy3DAsync(parameters: In<Volumes>, stream: Handle) {
        copy_volumes(&parameters.get()?, Some(stream))
    }

    fn cudaMemcpy3DPeer(parameters: In<PeerVolumes>) {
        copy_volumes(&parameters.get()?.on_one_device()?, None)
    }

    fn cudaMemcpy3DPeerAsync(parameters: In<PeerVolumes>, stream: Handle) {
        copy_volumes(&parameters.get()?.on_one_device()?, Some(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_in_memory_have_no_array_and_the_address_of_their_kind() {
        let side = |kind| DriverVolume {
            x_bytes: 3,
            y: 2,
            z: 1,
            level: 0,
            kind,
            host: 0x1000,
            device: 0x2000,
            array: Handle(0x3000),
            reserved: 0,
            pitch: 64,
            height: 4,
        };
        let copy = DriverVolumes {
            from: side(HOST),
            to: side(DEVICE),
            width: 8,
            height: 2,
            depth: 1,
        };
        let found = copy.for_program().unwrap();
        assert_eq!((found.from.array, found.to.array), (Handle::NULL, Handle::NULL));
        assert_eq!((found.from.pointer.address, found.to.pointer.address), (0x1000, 0x2000));
        assert_eq!((found.from.position, found.direction), ([3, 2, 1], Direction::HOST_TO_DEVICE));
    }
}
