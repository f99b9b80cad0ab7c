//! Texture and surface objects. Handles are device addresses of descriptors.

use std::ffi::{c_int, c_uint};

use super::array::ChannelDescription;
use crate::boundary::{In, Out};
use crate::driver::structures::{DriverResource, DriverSampling, DriverView, View};
use crate::{Error, context, exports};

/// `cudaResourceDesc`, as far as both versions have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Resource {
    /// `cudaResourceType`, whose numbers are those of `CUresourcetype`.
    kind: c_uint,
    /// An array, or the address of memory.
    first: u64,
    texel: ChannelDescription,
    /// Bytes; or width in texels, rows and their distance in bytes.
    sizes: [usize; 3],
}

/// `cudaTextureDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sampling {
    address_modes: [c_uint; 3],
    filter: c_uint,
    /// `cudaTextureReadMode`.
    read_mode: c_uint,
    is_srgb: c_int,
    border: [u32; 4],
    has_normalized_coordinates: c_int,
    most_anisotropy: c_uint,
    level_filter: c_uint,
    levels: [f32; 3],
    is_trilinear_optimization_disabled: c_int,
    is_cubemap_seamless: c_int,
}

const _: () = {
    assert!(size_of::<Resource>() == 64);
    assert!(size_of::<Sampling>() == 72);
};

/// `cudaResourceTypeLinear` and `cudaResourceTypePitch2D`, which describe their texels.
const LINEAR: c_uint = 2;
const PLANE: c_uint = 3;

/// Flags of `CUDA_TEXTURE_DESC`: integers as such, normalized coordinates, sRGB, no optimization of levels, seamless cubes.
const FLAGS: [c_uint; 5] = [1, 2, 0x10, 0x20, 0x40];

impl Resource {
    fn for_driver(&self, flags: c_uint) -> Result<DriverResource, Error> {
        let mut parts = [0; 16];
        parts[0] = self.first;
        if matches!(self.kind, LINEAR | PLANE) {
            let (format, channels) = self.texel.format()?;
            parts[1] = u64::from(format) | u64::from(channels) << 32;
            for (part, size) in parts[2..].iter_mut().zip(self.sizes) {
                *part = size as u64;
            }
        }
        Ok(DriverResource {
            kind: self.kind,
            parts,
            flags,
        })
    }

    /// The resource that the driver library describes.
    fn of(found: &DriverResource) -> Result<Self, Error> {
        let [first, format, sizes @ ..] = found.parts;
        Ok(Self {
            kind: found.kind,
            first,
            texel: match found.kind {
                LINEAR | PLANE => ChannelDescription::of(format as c_uint, (format >> 32) as c_uint)?,
                _ => ChannelDescription::NONE,
            },
            sizes: [sizes[0], sizes[1], sizes[2]].map(|size| size as usize),
        })
    }
}

impl Sampling {
    fn for_driver(&self) -> Result<DriverSampling, Error> {
        if self.read_mode > 1 {
            return Err(Error::INVALID_VALUE);
        }
        // `cudaReadModeElementType` is 0.
        let is_set = [
            self.read_mode == 0,
            self.has_normalized_coordinates != 0,
            self.is_srgb != 0,
            self.is_trilinear_optimization_disabled != 0,
            self.is_cubemap_seamless != 0,
        ];
        let flags = FLAGS.iter().zip(is_set).filter(|(_, is_set)| *is_set);
        Ok(DriverSampling {
            address_modes: self.address_modes,
            filter: self.filter,
            flags: flags.fold(0, |flags, (flag, _)| flags | flag),
            most_anisotropy: self.most_anisotropy,
            level_filter: self.level_filter,
            levels: self.levels,
            border: self.border,
            reserved: [0; 12],
        })
    }

    /// The sampling that the driver library describes.
    fn of(found: &DriverSampling) -> Self {
        let [is_integer, is_normalized, is_srgb, is_disabled, is_seamless] = FLAGS.map(|flag| c_int::from(found.flags & flag != 0));
        Self {
            address_modes: found.address_modes,
            filter: found.filter,
            read_mode: 1 - is_integer.unsigned_abs(),
            is_srgb,
            border: found.border,
            has_normalized_coordinates: is_normalized,
            most_anisotropy: found.most_anisotropy,
            level_filter: found.level_filter,
            levels: found.levels,
            is_trilinear_optimization_disabled: is_disabled,
            is_cubemap_seamless: is_seamless,
        }
    }
}

/// Creates a texture object of a resource with these flags.
pub fn create_texture(
    object: Out<u64>,
    resource: &Resource,
    flags: c_uint,
    sampling: In<Sampling>,
    view: Option<DriverView>,
) -> Result<(), Error> {
    object.require()?;
    let driver = context::ready()?;
    let (resource, sampling) = (resource.for_driver(flags)?, sampling.get()?.for_driver()?);
    let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    driver.cuTexObjectCreate(object, In::new(&raw const resource), In::new(&raw const sampling), In::new(view))
}

/// Creates a surface object of a resource with these flags.
pub fn create_surface(object: Out<u64>, resource: &Resource, flags: c_uint) -> Result<(), Error> {
    object.require()?;
    let driver = context::ready()?;
    let resource = resource.for_driver(flags)?;
    driver.cuSurfObjectCreate(object, In::new(&raw const resource))
}

/// Resource of a texture object.
pub fn resource_of_texture(object: u64) -> Result<Resource, Error> {
    let mut found = EMPTY;
    context::ready()?.cuTexObjectGetResourceDesc(Out::new(&raw mut found), object)?;
    Resource::of(&found)
}

/// Resource of a surface object.
pub fn resource_of_surface(object: u64) -> Result<Resource, Error> {
    let mut found = EMPTY;
    context::ready()?.cuSurfObjectGetResourceDesc(Out::new(&raw mut found), object)?;
    Resource::of(&found)
}

/// View of a texture object.
pub fn view_of_texture(object: u64) -> Result<DriverView, Error> {
    let mut found = DriverView::new(View {
        format: 0,
        size: [0; 3],
        levels: [0; 2],
        layers: [0; 2],
    });
    context::ready()?.cuTexObjectGetResourceViewDesc(Out::new(&raw mut found), object)?;
    Ok(found)
}

/// Place for a description.
const EMPTY: DriverResource = DriverResource {
    kind: 0,
    parts: [0; 16],
    flags: 0,
};

exports! {
    fn cudaDestroyTextureObject(object: u64) {
        context::ready()?.cuTexObjectDestroy(object)
    }

    fn cudaDestroySurfaceObject(object: u64) {
        context::ready()?.cuSurfObjectDestroy(object)
    }

    fn cudaGetTextureObjectTextureDesc(sampling: Out<Sampling>, object: u64) {
        sampling.require()?;
        let mut found = DriverSampling {
            address_modes: [0; 3],
            filter: 0,
            flags: 0,
            most_anisotropy: 0,
            level_filter: 0,
            levels: [0.0; 3],
            border: [0; 4],
            reserved: [0; 12],
        };
        context::ready()?.cuTexObjectGetTextureDesc(Out::new(&raw mut found), object)?;
        sampling.set(Sampling::of(&found))
    }
}
