//! CUDA arrays: texels in memory of the device, in rows of one pitch. Slices, or layers, follow each other.

use std::ffi::c_uint;

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::{Channel, Region};

use crate::attributes;
use crate::status::Status;

/// `CUDA_ARRAY3D_LAYERED`.
pub(crate) const LAYERED: c_uint = 1;
/// `CUDA_ARRAY3D_SURFACE_LDST`.
pub(crate) const SURFACE: c_uint = 2;
/// All flags of arrays that the header of the API has, by their names.
const FLAGS: [(c_uint, &str); 9] = [
    (LAYERED, "CUDA_ARRAY3D_LAYERED"),
    (SURFACE, "CUDA_ARRAY3D_SURFACE_LDST"),
    (4, "CUDA_ARRAY3D_CUBEMAP"),
    (8, "CUDA_ARRAY3D_TEXTURE_GATHER"),
    (0x10, "CUDA_ARRAY3D_DEPTH_TEXTURE"),
    (0x20, "CUDA_ARRAY3D_COLOR_ATTACHMENT"),
    (0x40, "CUDA_ARRAY3D_SPARSE"),
    (0x80, "CUDA_ARRAY3D_DEFERRED_MAPPING"),
    (0x100, "CUDA_ARRAY3D_VIDEO_ENCODE_DECODE"),
];

/// Types of channels by their numbers (`CUarray_format`).
const CHANNELS: [(c_uint, Channel); 8] = [
    (1, Channel::U8),
    (2, Channel::U16),
    (3, Channel::U32),
    (8, Channel::S8),
    (9, Channel::S16),
    (10, Channel::S32),
    (16, Channel::F16),
    (32, Channel::F32),
];

/// `CUDA_ARRAY3D_DESCRIPTOR`. Dimensions that an array lacks are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Description {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PlaneDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

const _: () = {
    assert!(size_of::<Description>() == 40);
    assert!(size_of::<PlaneDescription>() == 24);
};

/// Format and number of the channels of a texel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) channel: Channel,
    /// 1, 2 or 4.
    pub(crate) channels: u8,
}

impl Format {
    /// The format of these numbers (`CUarray_format` and channels).
    pub(crate) fn of(format: c_uint, channels: c_uint) -> Result<Self, Status> {
        let Some((_, channel)) = CHANNELS.iter().find(|(number, _)| *number == format) else {
            return match format {
                0x50..=0x5e | 0x91..=0xb5 | 0xc0..=0xcb => refuse(&format!("texels of format {format:#x} (CUarray_format)")),
                _ => Err(Status::INVALID_VALUE),
            };
        };
        match channels {
            1 | 2 | 4 => Ok(Self {
                channel: *channel,
                channels: channels as u8,
            }),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Size of a texel in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.channel.bytes() * u64::from(self.channels)
    }
}

/// How the texels of an array are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) format: Format,
    /// Width in texels, rows, and slices or layers; 1 for dimensions that the array lacks.
    pub(crate) extent: [u32; 3],
    /// Distance of rows in bytes.
    pub(crate) pitch: u64,
}

impl Layout {
    /// Checks a description as `cuArray3DCreate` documents it.
    pub(crate) fn of(description: &Description) -> Result<Self, Status> {
        let Description {
            width,
            height,
            depth,
            flags,
            ..
        } = *description;
        if flags & !FLAGS.iter().fold(0, |all, (flag, _)| all | flag) != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let format = Format::of(description.format, description.channels)?;
        if let Some((_, name)) = FLAGS.iter().find(|(flag, _)| flags & flag & !(LAYERED | SURFACE) != 0) {
            return refuse(&format!("an array with {name}"));
        }
        let is_layered = flags & LAYERED != 0;
        // A volume has rows, a layered array has layers.
        if width == 0 || (is_layered && depth == 0) || (!is_layered && depth > 0 && height == 0) {
            return Err(Status::INVALID_VALUE);
        }
        let limits = match (is_layered, height > 0, depth > 0) {
            (true, false, _) => attributes::LAYERED_ROWS,
            (true, true, _) => attributes::LAYERED_PLANES,
            (false, false, _) => attributes::ROWS,
            (false, true, false) => attributes::PLANES,
            (false, true, true) => attributes::VOLUMES,
        };
        let mut extent = limits.of(flags & SURFACE != 0);
        for (most, size) in extent.iter_mut().zip([width, height, depth]) {
            let size = u32::try_from(size.max(1)).map_err(|_| Status::INVALID_VALUE)?;
            if size > *most {
                return Err(Status::INVALID_VALUE);
            }
            *most = size;
        }
        let pitch = (u64::from(extent[0]) * format.bytes()).next_multiple_of(attributes::ARRAY_PITCH);
        Ok(Self { format, extent, pitch })
    }

    /// Size of all rows in bytes, with their padding.
    pub(crate) fn bytes(&self) -> u64 {
        self.pitch * self.rows()
    }

    /// Rows of all slices or layers.
    pub(crate) fn rows(&self) -> u64 {
        u64::from(self.extent[1]) * u64::from(self.extent[2])
    }

    /// Bytes of a row that texels take.
    pub(crate) fn row_bytes(&self) -> u64 {
        u64::from(self.extent[0]) * self.format.bytes()
    }
}

/// An array, whose memory is a range of its context.
pub(crate) struct Array {
    pub(crate) description: Description,
    pub(crate) layout: Layout,
    /// Address of the first texel.
    pub(crate) address: u64,
    pub(crate) context_id: u64,
}

impl Array {
    /// A box of texels: its position and size in bytes, rows, and slices or layers.
    pub(crate) fn part(&self, position: [usize; 3], size: [usize; 3]) -> Result<Region, Status> {
        let texel = self.layout.format.bytes();
        let most = [self.layout.row_bytes(), self.layout.extent[1].into(), self.layout.extent[2].into()];
        for ((start, size), most) in position.iter().zip(size).zip(most) {
            let end = (*start as u64).checked_add(size as u64);
            if end.is_none_or(|end| end > most) {
                return Err(Status::INVALID_VALUE);
            }
        }
        let [x, y, z] = position.map(|start| start as u64);
        if !x.is_multiple_of(texel) || !(size[0] as u64).is_multiple_of(texel) {
            return Err(Status::INVALID_VALUE);
        }
        let slice_pitch = self.layout.pitch * u64::from(self.layout.extent[1]);
        Ok(Region {
            address: self.address + z * slice_pitch + y * self.layout.pitch + x,
            row_pitch: self.layout.pitch,
            slice_pitch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(size: [usize; 3], flags: c_uint) -> Description {
        let [width, height, depth] = size;
        Description {
            width,
            height,
            depth,
            format: 9,
            channels: 2,
            flags,
        }
    }

    #[test]
    fn arrays_have_one_to_three_dimensions_within_the_limits_of_the_device() {
        for (size, flags, extent) in [
            ([131_072, 0, 0], 0, Some([131_072, 1, 1])),
            ([131_073, 0, 0], 0, None),
            ([32_768, 0, 0], SURFACE, Some([32_768, 1, 1])),
            ([32_769, 0, 0], SURFACE, None),
            ([131_072, 65_536, 0], SURFACE, Some([131_072, 65_536, 1])),
            ([1, 65_537, 0], 0, None),
            ([16_384, 16_384, 16_384], 0, Some([16_384; 3])),
            ([1, 1, 16_385], 0, None),
            ([7, 0, 3], LAYERED, Some([7, 1, 3])),
            ([7, 5, 3], LAYERED, Some([7, 5, 3])),
            ([7, 5, 2049], LAYERED, None),
            ([7, 5, 0], LAYERED, None),
            ([7, 0, 3], 0, None),
            ([0, 0, 0], 0, None),
        ] {
            let layout = Layout::of(&description(size, flags));
            assert_eq!(
                layout.map(|layout| layout.extent),
                extent.ok_or(Status::INVALID_VALUE),
                "{size:?} {flags}"
            );
        }
        let layout = Layout::of(&description([9, 5, 3], 0)).unwrap();
        assert_eq!((layout.row_bytes(), layout.pitch, layout.bytes()), (36, 64, 64 * 15));
    }

    #[test]
    fn invalid_and_unsupported_arrays_have_different_errors() {
        let of = |format, channels, flags| {
            Layout::of(&Description {
                format,
                channels,
                ..description([4, 4, 0], flags)
            })
            .err()
        };
        assert_eq!(of(32, 4, SURFACE), None);
        for wrong in [(0, 1, 0), (4, 1, 0), (32, 3, 0), (32, 0, 0), (32, 1, 0x200)] {
            assert_eq!(of(wrong.0, wrong.1, wrong.2), Some(Status::INVALID_VALUE), "{wrong:?}");
        }
        for missing in [(0xb0, 3, 0), (0xc0, 1, 0), (32, 1, 4), (32, 1, 8), (32, 1, 0x40)] {
            assert_eq!(of(missing.0, missing.1, missing.2), Some(Status::NOT_SUPPORTED), "{missing:?}");
        }
    }

    #[test]
    fn parts_are_whole_texels_within_the_array() {
        let description = description([9, 5, 3], 0);
        let array = Array {
            description,
            layout: Layout::of(&description).unwrap(),
            address: 1 << 20,
            context_id: 1,
        };
        let region = array.part([8, 1, 2], [28, 4, 1]).unwrap();
        assert_eq!(
            (region.address, region.row_pitch, region.slice_pitch),
            ((1 << 20) + 2 * 320 + 64 + 8, 64, 320)
        );
        for (position, size) in [
            ([2, 0, 0], [4, 1, 1]),
            ([4, 0, 0], [6, 1, 1]),
            ([8, 0, 0], [32, 1, 1]),
            ([0, 2, 0], [4, 4, 1]),
            ([0, 0, 1], [4, 1, 3]),
            ([usize::MAX - 3, 0, 0], [8, 1, 1]),
        ] {
            assert_eq!(array.part(position, size), Err(Status::INVALID_VALUE), "{position:?} {size:?}");
        }
    }
}
