//! Structures of the driver API whose layout differs from those of the runtime API, and those that both share.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Dimensions, Handle, Pointer};

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverPlane {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) kind: c_uint,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: Handle,
    pub(crate) pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverPlanes {
    pub(crate) from: DriverPlane,
    pub(crate) to: DriverPlane,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverVolume {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) level: usize,
    pub(crate) kind: c_uint,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: Handle,
    pub(crate) reserved: u64,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverVolumes {
    pub(crate) from: DriverVolume,
    pub(crate) to: DriverVolume,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `cudaExtent`, with which `CUDA_ARRAY3D_DESCRIPTOR` begins.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Extent {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverDescription {
    pub(crate) extent: Extent,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// `CUDA_RESOURCE_DESC`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverResource {
    pub(crate) kind: c_uint,
    pub(crate) parts: [u64; 16],
    pub(crate) flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverSampling {
    pub(crate) address_modes: [c_uint; 3],
    pub(crate) filter: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) most_anisotropy: c_uint,
    pub(crate) level_filter: c_uint,
    pub(crate) levels: [f32; 3],
    pub(crate) border: [u32; 4],
    pub(crate) reserved: [c_int; 12],
}

/// `cudaResourceViewDesc`, as far as both versions have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct View {
    pub(crate) format: c_uint,
    pub(crate) size: [usize; 3],
    pub(crate) levels: [c_uint; 2],
    pub(crate) layers: [c_uint; 2],
}

/// `CUDA_RESOURCE_VIEW_DESC`, and `cudaResourceViewDesc` of version 13.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverView {
    view: View,
    reserved: [c_uint; 16],
}

impl DriverView {
    /// Description of a view for the driver library.
    pub fn new(view: View) -> Self {
        Self { view, reserved: [0; 16] }
    }

    /// The view that the driver library describes.
    pub fn view(self) -> View {
        self.view
    }
}

/// `CUlaunchConfig`. Its attributes are those of `cudaLaunchConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverConfiguration {
    pub(crate) grid: Dimensions,
    pub(crate) block: Dimensions,
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: usize,
    pub(crate) attribute_count: c_uint,
}

/// `cudaKernelNodeParams`, with which `CUDA_KERNEL_NODE_PARAMS` begins.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProgramLaunch {
    /// Address of the kernel in the program, or a kernel of a library; in a [`DriverLaunch`], the driver's function.
    pub(crate) function: u64,
    pub(crate) grid: Dimensions,
    pub(crate) block: Dimensions,
    pub(crate) shared_bytes: c_uint,
    pub(crate) parameters: Pointer,
    pub(crate) extra: Pointer,
}

/// `CUDA_KERNEL_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DriverLaunch {
    pub(crate) launch: ProgramLaunch,
    pub(crate) kernel: Handle,
    pub(crate) context: Handle,
}

/// `cudaGraphNodeParams`, and `CUgraphNodeParams`: a type, and the parameters of that type.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NodeParameters {
    pub(crate) kind: c_uint,
    pub(crate) reserved: [c_uint; 3],
    pub(crate) parameters: [u64; 30],
}

const _: () = {
    assert!(size_of::<DriverDescription>() == 40);
    assert!(size_of::<DriverResource>() == 144);
    assert!(size_of::<DriverSampling>() == 104);
    assert!(size_of::<View>() == 48);
    assert!(size_of::<DriverView>() == 112);
};
