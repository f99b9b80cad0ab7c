//! Texture and surface objects: what programs say of them, as the [descriptors](Texture) that kernels read.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::{AddressMode, Channel, DevicePointer, Texture};

use crate::array::{Array, Format, LAYERED, SURFACE};
use crate::attributes;
use crate::boundary::Handle;
use crate::status::Status;

/// `CUDA_RESOURCE_DESC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ResourceDescription {
    /// `CUresourcetype`.
    pub(crate) kind: c_uint,
    /// An array; or address, format with channels, and size.
    pub(crate) parts: [u64; 16],
    pub(crate) flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct SamplingDescription {
    /// `CUaddress_mode` of each dimension.
    pub(crate) address_modes: [c_uint; 3],
    /// `CUfilter_mode`.
    pub(crate) filter: c_uint,
    /// `CU_TRSF_…`.
    pub(crate) flags: c_uint,
    pub(crate) most_anisotropy: c_uint,
    pub(crate) level_filter: c_uint,
    /// Offset, and first and last level of detail.
    pub(crate) levels: [f32; 3],
    /// Bits of floats, or of integers for textures of those.
    pub(crate) border: [u32; 4],
    pub(crate) reserved: [c_int; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ViewDescription {
    /// `CUresourceViewFormat`.
    pub(crate) format: c_uint,
    pub(crate) size: [usize; 3],
    /// First and last level of detail.
    pub(crate) levels: [c_uint; 2],
    /// First and last layer.
    pub(crate) layers: [c_uint; 2],
    pub(crate) reserved: [c_uint; 16],
}

const _: () = {
    assert!(size_of::<ResourceDescription>() == 144);
    assert!(size_of::<SamplingDescription>() == 104);
    assert!(size_of::<ViewDescription>() == 112);
};

pub(crate) struct TextureObject {
    pub(crate) resource: ResourceDescription,
    pub(crate) sampling: SamplingDescription,
    pub(crate) view: Option<ViewDescription>,
    pub(crate) context_id: u64,
}

pub(crate) struct SurfaceObject {
    pub(crate) resource: ResourceDescription,
    pub(crate) context_id: u64,
}

/// What textures and surfaces are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Array(Handle),
    /// Memory without rows.
    Linear {
        address: u64,
        format: Format,
        texels: u32,
    },
    /// Rows in memory.
    Plane {
        address: u64,
        format: Format,
        extent: [u32; 2],
        pitch: u64,
    },
}

impl ResourceDescription {
    /// The resource, if it is one of which `cuTexObjectCreate` makes textures.
    pub(crate) fn resource(&self) -> Result<Resource, Status> {
        if self.flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let [first, format, sizes @ ..] = self.parts;
        let format = || Format::of(format as c_uint, (format >> 32) as c_uint);
        match self.kind {
            0 => Ok(Resource::Array(Handle(first))),
            1 => refuse("a texture of a mipmapped array"),
            2 => Resource::linear(first, format()?, sizes[0]),
            3 => Resource::plane(first, format()?, [sizes[0], sizes[1]], sizes[2]),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

impl Resource {
    /// Memory without rows. Bytes behind the last texel are no part of it.
    pub(crate) fn linear(address: u64, format: Format, bytes: u64) -> Result<Self, Status> {
        let texels = u32::try_from(bytes / format.bytes()).map_err(|_| Status::INVALID_VALUE)?;
        if !(1..=attributes::LINEAR_TEXELS).contains(&texels) || !address.is_multiple_of(attributes::TEXTURE_ALIGNMENT) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Self::Linear { address, format, texels })
    }

    /// Rows of this width in texels and distance in bytes.
    pub(crate) fn plane(address: u64, format: Format, size: [u64; 2], pitch: u64) -> Result<Self, Status> {
        let mut extent = attributes::LINEAR_PLANE;
        for (most, size) in extent.iter_mut().zip(size) {
            if size == 0 || size > u64::from(*most) {
                return Err(Status::INVALID_VALUE);
            }
            *most = size as u32;
        }
        let is_aligned = address.is_multiple_of(attributes::TEXTURE_ALIGNMENT) && pitch.is_multiple_of(attributes::ARRAY_PITCH);
        if !is_aligned || pitch < size[0] * format.bytes() || pitch > attributes::LINEAR_PITCH.into() {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Self::Plane {
            address,
            format,
            extent,
            pitch,
        })
    }

    /// Address and size in bytes of the memory of the program that it is made of.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Array(_) => None,
            Self::Linear { address, format, texels } => Some((address, u64::from(texels) * format.bytes())),
            Self::Plane {
                address,
                format,
                extent: [width, height],
                pitch,
            } => Some((address, pitch * u64::from(height - 1) + u64::from(width) * format.bytes())),
        }
    }
}

/// Texels with point sampling by texel, outside of which all is zero.
fn texels(address: u64, format: Format, extent: [u32; 3], row_bytes: u64) -> Texture {
    Texture {
        address: DevicePointer(address),
        extent,
        row_bytes,
        channel: format.channel,
        channels: format.channels,
        address_modes: [AddressMode::Border; 3],
        border: [0; 4],
        is_linear: false,
        normalized_coordinates: false,
        normalized_values: false,
    }
}

/// The texels of an array, or of a view of it.
fn texels_of_array(array: &Array, view: Option<&ViewDescription>) -> Result<Texture, Status> {
    let layout = array.layout;
    let whole = texels(array.address, layout.format, layout.extent, layout.pitch);
    match view {
        None => Ok(whole),
        Some(view) => view.of(array, whole),
    }
}

/// Texture of a resource, which is `array` if that is what it is made of.
pub(crate) fn texture(
    resource: &Resource,
    array: Option<&Array>,
    sampling: &SamplingDescription,
    view: Option<&ViewDescription>,
) -> Result<Texture, Status> {
    let plain = match (*resource, array) {
        (Resource::Array(_), Some(array)) => texels_of_array(array, view)?,
        // Only arrays have views.
        (Resource::Array(_), None) => return Err(Status::INVALID_HANDLE),
        _ if view.is_some() => return Err(Status::INVALID_VALUE),
        (Resource::Linear { address, format, texels }, _) => self::texels(address, format, [texels, 1, 1], 0),
        (
            Resource::Plane {
                address,
                format,
                extent: [width, height],
                pitch,
            },
            _,
        ) => texels(address, format, [width, height, 1], pitch),
    };
    sampling.sample(plain, matches!(resource, Resource::Linear { .. }))
}

/// Surface of an array.
pub(crate) fn surface(array: &Array) -> Result<Texture, Status> {
    if array.description.flags & SURFACE == 0 {
        return Err(Status::INVALID_VALUE);
    }
    texels_of_array(array, None)
}

/// `CU_TRSF_READ_AS_INTEGER`.
pub(crate) const READ_AS_INTEGER: c_uint = 1;
/// `CU_TRSF_NORMALIZED_COORDINATES`.
pub(crate) const NORMALIZED_COORDINATES: c_uint = 2;
/// `CU_TRSF_SRGB`.
pub(crate) const SRGB: c_uint = 0x10;
/// `CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION`, which concerns levels of detail.
const WITHOUT_EFFECT: c_uint = 0x20;

/// Address modes in the order of `CUaddress_mode`.
const MODES: [AddressMode; 4] = [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border];

impl SamplingDescription {
    /// The texture with this sampling. Fetches from memory without rows are by texel, whatever the description says.
    fn sample(&self, texels: Texture, is_linear_memory: bool) -> Result<Texture, Status> {
        let known = READ_AS_INTEGER | NORMALIZED_COORDINATES | SRGB | WITHOUT_EFFECT;
        // `CU_TRSF_SEAMLESS_CUBEMAP` is for cubemaps, which arrays are not.
        if self.flags & !known != 0 || self.level_filter > 1 {
            return Err(Status::INVALID_VALUE);
        }
        if self.flags & SRGB != 0 {
            return refuse("a texture with CU_TRSF_SRGB");
        }
        let is_small = matches!(texels.channel, Channel::U8 | Channel::S8 | Channel::U16 | Channel::S16);
        let normalized_values = is_small && self.flags & READ_AS_INTEGER == 0;
        if is_linear_memory {
            return Ok(Texture {
                normalized_values,
                ..texels
            });
        }
        if self.filter > 1 {
            return Err(Status::INVALID_VALUE);
        }
        let mut address_modes = [AddressMode::Clamp; 3];
        for (mode, number) in address_modes.iter_mut().zip(self.address_modes) {
            *mode = *MODES.get(number as usize).ok_or(Status::INVALID_VALUE)?;
        }
        let is_float = normalized_values || matches!(texels.channel, Channel::F16 | Channel::F32);
        // Integers have no values between them.
        if self.filter == 1 && !is_float {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Texture {
            address_modes,
            border: self.border,
            is_linear: self.filter == 1,
            normalized_coordinates: self.flags & NORMALIZED_COORDINATES != 0,
            normalized_values,
            ..texels
        })
    }
}

/// Types of channels in the order of `CUresourceViewFormat`, each with one, two and four channels.
const VIEW_CHANNELS: [Channel; 8] = [
    Channel::U8,
    Channel::S8,
    Channel::U16,
    Channel::S16,
    Channel::U32,
    Channel::S32,
    Channel::F16,
    Channel::F32,
];

impl ViewDescription {
    /// The part of an array that is viewed.
    fn of(&self, array: &Array, whole: Texture) -> Result<Texture, Status> {
        let format = self.format(array.layout.format)?;
        let description = array.description;
        let is_layered = description.flags & LAYERED != 0;
        let [width, height, depth] = self.size;
        let is_whole = [width, height] == [description.width, description.height];
        let has_depth = depth == description.depth || is_layered && depth == 0;
        let [first, last] = self.layers;
        let has_layers = match is_layered {
            true => first <= last && last < whole.extent[2],
            false => [first, last] == [0, 0],
        };
        if !is_whole || !has_depth || !has_layers || self.levels != [0, 0] || format.bytes() != array.layout.format.bytes() {
            return Err(Status::INVALID_VALUE);
        }
        let [width, height, mut depth] = whole.extent;
        if is_layered {
            depth = last - first + 1;
        }
        let start = u64::from(first) * u64::from(height) * whole.row_bytes;
        Ok(Texture {
            address: DevicePointer(whole.address.0 + start),
            extent: [width, height, depth],
            channel: format.channel,
            channels: format.channels,
            ..whole
        })
    }

    fn format(&self, of_array: Format) -> Result<Format, Status> {
        match self.format {
            0 => Ok(of_array),
            1..=0x18 => {
                let index = self.format as usize - 1;
                Ok(Format {
                    channel: VIEW_CHANNELS[index / 3],
                    channels: [1, 2, 4][index % 3],
                })
            }
            0x19..=0x22 => refuse("a view of a compressed format"),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}
