//! Structures in which programs describe copies and nodes of graphs, as the header of the API lays them out.

use std::ffi::{c_int, c_uint, c_ushort};

use sahasra_cuda_device::{Extent, Region};

use crate::boundary::{Handle, HostPointer, In};
use crate::status::Status;

/// `CU_MEMORYTYPE_HOST` and the others.
pub(crate) const HOST: c_uint = 1;
pub(crate) const DEVICE: c_uint = 2;
pub(crate) const ARRAY: c_uint = 3;
pub(crate) const UNIFIED: c_uint = 4;

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Plane {
    x_bytes: usize,
    y: usize,
    kind: c_uint,
    host: HostPointer,
    device: u64,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2d {
    from: Plane,
    to: Plane,
    width: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Volume {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) level: usize,
    pub(crate) kind: c_uint,
    pub(crate) host: HostPointer,
    pub(crate) device: u64,
    pub(crate) array: Handle,
    pub(crate) reserved: u64,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3d {
    pub(crate) from: Volume,
    pub(crate) to: Volume,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

impl From<Plane> for Volume {
    fn from(plane: Plane) -> Self {
        Self {
            x_bytes: plane.x_bytes,
            y: plane.y,
            z: 0,
            level: 0,
            kind: plane.kind,
            host: plane.host,
            device: plane.device,
            array: plane.array,
            reserved: 0,
            pitch: plane.pitch,
            height: 0,
        }
    }
}

impl From<Copy2d> for Copy3d {
    fn from(copy: Copy2d) -> Self {
        Self {
            from: copy.from.into(),
            to: copy.to.into(),
            width: copy.width,
            height: copy.height,
            depth: 1,
        }
    }
}

impl FillParameters {
    /// The rows, and the size of an element in bytes.
    pub(crate) fn rows(&self) -> Result<(Region, Extent, u8), Status> {
        if !matches!(self.element_bytes, 1 | 2 | 4) {
            return Err(Status::INVALID_VALUE);
        }
        let region = Region {
            address: self.to,
            row_pitch: if self.height > 1 { self.pitch as u64 } else { 0 },
            slice_pitch: 0,
        };
        let width = (self.width as u64).checked_mul(u64::from(self.element_bytes));
        let extent = Extent {
            width: width.ok_or(Status::INVALID_VALUE)?,
            height: self.height as u64,
            depth: 1,
        };
        if self.height > 1 && region.row_pitch < extent.width {
            return Err(Status::INVALID_VALUE);
        }
        Ok((region, extent, self.element_bytes as u8))
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelParametersV1 {
    pub(crate) function: Handle,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) parameters: In<In<u8>>,
    pub(crate) extra: In<usize>,
}

/// `CUDA_KERNEL_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelParameters {
    pub(crate) launch: KernelParametersV1,
    /// A kernel of a library, if there is no function.
    pub(crate) kernel: Handle,
    pub(crate) context: Handle,
}

impl From<KernelParametersV1> for KernelParameters {
    fn from(launch: KernelParametersV1) -> Self {
        Self {
            launch,
            kernel: Handle::NULL,
            context: Handle::NULL,
        }
    }
}

impl KernelParameters {
    /// The function, or the kernel if there is none.
    pub(crate) fn handle(&self) -> Handle {
        match self.launch.function {
            Handle::NULL => self.kernel,
            function => function,
        }
    }
}

/// `CUDA_MEMSET_NODE_PARAMS`, of which the second form has a context behind it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FillParameters {
    pub(crate) to: u64,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element_bytes: c_uint,
    /// Elements of a row.
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HostParameters {
    /// Address of the function.
    pub(crate) function: usize,
    pub(crate) data: HostPointer,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const DEVICE_LOCATION: c_uint = 1;

/// `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProperties {
    pub(crate) allocation_type: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location_type: c_uint,
    pub(crate) location: c_int,
    pub(crate) security: u64,
    pub(crate) most_bytes: usize,
    pub(crate) usage: c_ushort,
    pub(crate) reserved: [u8; 54],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocationParameters {
    pub(crate) pool: PoolProperties,
    /// Address of a list of other devices that access the memory.
    pub(crate) access: u64,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

impl AllocationParameters {
    /// Memory of the device in the place of a pool's.
    pub(crate) fn of_device(bytes: usize, address: u64) -> Self {
        Self {
            pool: PoolProperties {
                allocation_type: PINNED,
                handle_types: 0,
                location_type: DEVICE_LOCATION,
                location: 0,
                security: 0,
                most_bytes: 0,
                usage: 0,
                reserved: [0; 54],
            },
            access: 0,
            access_count: 0,
            bytes,
            address,
        }
    }
}

/// `CUgraphNodeParams`: the type of a node, and at [`NODE_PARAMETERS`] its parameters.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NodeParameters {
    pub(crate) kind: c_uint,
    pub(crate) reserved: [c_uint; 3],
    pub(crate) parameters: [u64; 30],
}

/// Offset of the parameters in [`NodeParameters`], in bytes.
pub(crate) const NODE_PARAMETERS: usize = 16;

/// `CUgraphEdgeData`, of which programs pass only zeros here: the order of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct EdgeData(pub(crate) [u8; 8]);

const _: () = {
    assert!(size_of::<Copy2d>() == 128);
    assert!(size_of::<Copy3d>() == 200);
    assert!(size_of::<KernelParametersV1>() == 56);
    assert!(size_of::<KernelParameters>() == 72);
    assert!(size_of::<FillParameters>() == 40);
    assert!(size_of::<PoolProperties>() == 88);
    assert!(size_of::<AllocationParameters>() == 120);
    assert!(size_of::<NodeParameters>() == 256);
};
