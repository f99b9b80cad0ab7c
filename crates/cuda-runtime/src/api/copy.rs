//! Copies.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_boundary::missing::refuse;

use super::memory::{Extent, Pitched};
use crate::boundary::{Handle, In, Pointer};
use crate::driver::Driver;
use crate::{Error, context, exports};

/// `CU_MEMORYTYPE_HOST` and the others.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
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

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverPlane {
    x_bytes: usize,
    y: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverPlanes {
    from: DriverPlane,
    to: DriverPlane,
    width: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverVolume {
    x_bytes: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: Handle,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverVolumes {
    from: DriverVolume,
    to: DriverVolume,
    width: usize,
    height: usize,
    depth: usize,
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

impl Volumes {
    /// The same copy for the driver library.
    pub(crate) fn for_driver(&self) -> Result<DriverVolumes, Error> {
        let [from, to] = self.direction.kinds()?;
        Ok(DriverVolumes {
            from: DriverVolume::new(from, &self.from)?,
            to: DriverVolume::new(to, &self.to)?,
            width: self.extent.width,
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
    pub(crate) fn for_program(&self) -> Volumes {
        let side = |side: &DriverVolume| Volume {
            array: side.array,
            position: [side.x_bytes, side.y, side.z],
            pointer: Pitched {
                address: if side.kind == HOST { side.host } else { side.device },
                pitch: side.pitch,
                width: side.pitch,
                height: side.height,
            },
        };
        Volumes {
            from: side(&self.from),
            to: side(&self.to),
            extent: Extent {
                width: self.width,
                height: self.height,
                depth: self.depth,
            },
            direction: match [self.from.kind, self.to.kind] {
                [HOST, HOST] => Direction::HOST_TO_HOST,
                [HOST, DEVICE] => Direction::HOST_TO_DEVICE,
                [DEVICE, HOST] => Direction::DEVICE_TO_HOST,
                [DEVICE, DEVICE] => Direction::DEVICE_TO_DEVICE,
                _ => Direction::DEFAULT,
            },
        }
    }
}

const _: () = assert!(size_of::<Volumes>() == 160);

impl DriverPlane {
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
    fn new(kind: c_uint, side: &Volume) -> Result<Self, Error> {
        if side.array != Handle::NULL {
            return refuse("a copy from or to a CUDA array");
        }
        let [x_bytes, y, z] = side.position;
        let address = side.pointer.address;
        Ok(Self {
            x_bytes,
            y,
            z,
            level: 0,
            kind,
            host: if kind == HOST { address } else { 0 },
            device: if kind == HOST { 0 } else { address },
            array: Handle::NULL,
            reserved: 0,
            pitch: side.pointer.pitch,
            height: side.pointer.height,
        })
    }
}

fn planes(to: Pitched, from: Pitched, width: usize, height: usize, direction: Direction) -> Result<Option<DriverPlanes>, Error> {
    let [from_kind, to_kind] = direction.kinds()?;
    if width > from.pitch || width > to.pitch {
        return Err(Error::INVALID_PITCH_VALUE);
    }
    Ok((width > 0 && height > 0).then(|| DriverPlanes {
        from: DriverPlane::new(from_kind, from.address, from.pitch),
        to: DriverPlane::new(to_kind, to.address, to.pitch),
        width,
        height,
    }))
}

fn rows(address: u64, pitch: usize) -> Pitched {
    Pitched {
        address,
        pitch,
        width: 0,
        height: 0,
    }
}

fn volumes([from, to]: [&Volume; 2], extent: Extent, direction: Direction) -> Result<Option<DriverVolumes>, Error> {
    let [from_kind, to_kind] = direction.kinds()?;
    let (from, to) = (DriverVolume::new(from_kind, from)?, DriverVolume::new(to_kind, to)?);
    let is_empty = [extent.width, extent.height, extent.depth].contains(&0);
    Ok((!is_empty).then_some(DriverVolumes {
        from,
        to,
        width: extent.width,
        height: extent.height,
        depth: extent.depth,
    }))
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
        let driver = context::ready()?;
        match planes(rows(to, to_pitch), rows(from, from_pitch), width, height, direction)? {
            Some(planes) => driver.cuMemcpy2DUnaligned_v2(In::new(&raw const planes)),
            None => Ok(()),
        }
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
        let driver = context::ready()?;
        match planes(rows(to, to_pitch), rows(from, from_pitch), width, height, direction)? {
            Some(planes) => driver.cuMemcpy2DAsync_v2(In::new(&raw const planes), stream),
            None => Ok(()),
        }
    }

    fn cudaMemcpy3D(parameters: In<Volumes>) {
        let driver = context::ready()?;
        let Volumes { from, to, extent, direction } = parameters.get()?;
        match volumes([&from, &to], extent, direction)? {
            Some(volumes) => driver.cuMemcpy3D_v2(In::new(&raw const volumes)),
            None => Ok(()),
        }
    }

    fn cudaMemcpy3DAsync(parameters: In<Volumes>, stream: Handle) {
        let driver = context::ready()?;
        let Volumes { from, to, extent, direction } = parameters.get()?;
        match volumes([&from, &to], extent, direction)? {
            Some(volumes) => driver.cuMemcpy3DAsync_v2(In::new(&raw const volumes), stream),
            None => Ok(()),
        }
    }

    fn cudaMemcpy3DPeer(parameters: In<PeerVolumes>) {
        let driver = context::ready()?;
        let PeerVolumes { from, from_device, to, to_device, extent } = parameters.get()?;
        context::of_device(from_device)?;
        context::of_device(to_device)?;
        match volumes([&from, &to], extent, Direction::DEVICE_TO_DEVICE)? {
            Some(volumes) => driver.cuMemcpy3D_v2(In::new(&raw const volumes)),
            None => Ok(()),
        }
    }

    fn cudaMemcpy3DPeerAsync(parameters: In<PeerVolumes>, stream: Handle) {
        let driver = context::ready()?;
        let PeerVolumes { from, from_device, to, to_device, extent } = parameters.get()?;
        context::of_device(from_device)?;
        context::of_device(to_device)?;
        match volumes([&from, &to], extent, Direction::DEVICE_TO_DEVICE)? {
            Some(volumes) => driver.cuMemcpy3DAsync_v2(In::new(&raw const volumes), stream),
            None => Ok(()),
        }
    }
}
