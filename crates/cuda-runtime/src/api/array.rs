//! CUDA arrays.

use std::ffi::{c_int, c_uint};

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, In, Out, Pointer};
use crate::driver::structures::{DriverDescription, Extent};
use crate::{Error, context, exports};

/// `cudaChannelFormatDesc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ChannelDescription {
    bits: [c_int; 4],
    kind: c_uint,
}

/// Types of channels: `cudaChannelFormatKind`, bits, and `CUarray_format`.
const FORMATS: [(c_uint, c_int, c_uint); 8] = [
    (0, 8, 8),
    (0, 16, 9),
    (0, 32, 10),
    (1, 8, 1),
    (1, 16, 2),
    (1, 32, 3),
    (2, 16, 16),
    (2, 32, 32),
];
/// Largest of `cudaChannelFormatKind`s of integers and floats.
const LAST_PLAIN: c_uint = 3;
/// Largest of all `cudaChannelFormatKind`s.
const LAST: c_uint = 45;

impl ChannelDescription {
    /// Of what has no texels.
    pub(crate) const NONE: Self = Self { bits: [0; 4], kind: 3 };

    /// Format (`CUarray_format`) and number of channels.
    pub(crate) fn format(&self) -> Result<(c_uint, c_uint), Error> {
        if (LAST_PLAIN + 1..=LAST).contains(&self.kind) {
            return refuse(&format!("texels of cudaChannelFormatKind {}", self.kind));
        }
        let channels = self.bits.iter().take_while(|bits| **bits != 0).count();
        let is_even = self.bits[..channels].iter().all(|bits| *bits == self.bits[0]) && self.bits[channels..].iter().all(|bits| *bits == 0);
        let known = FORMATS
            .iter()
            .find(|(kind, bits, _)| (*kind, *bits) == (self.kind, self.bits[0]) && is_even);
        match (known, channels) {
            (Some((.., format)), 1 | 2 | 4) => Ok((*format, channels as c_uint)),
            _ => Err(Error::INVALID_CHANNEL_DESCRIPTOR),
        }
    }

    /// Description of a format that the driver library has.
    pub(crate) fn of(format: c_uint, channels: c_uint) -> Result<Self, Error> {
        let known = FORMATS.iter().find(|(.., number)| *number == format);
        let (kind, bits, _) = known.ok_or(Error::INVALID_CHANNEL_DESCRIPTOR)?;
        let mut all = [0; 4];
        all.iter_mut().take(channels as usize).for_each(|channel| *channel = *bits);
        Ok(Self { bits: all, kind: *kind })
    }

    /// Size of a texel in bytes.
    fn bytes(&self) -> usize {
        self.bits.iter().map(|bits| bits.unsigned_abs() as usize).sum::<usize>() / 8
    }
}

/// Description of the texels of an array, its size and its flags.
fn describe(array: Handle) -> Result<(ChannelDescription, Extent, c_uint), Error> {
    let mut found = DriverDescription {
        extent: Extent {
            width: 0,
            height: 0,
            depth: 0,
        },
        format: 0,
        channels: 0,
        flags: 0,
    };
    context::ready()?.cuArray3DGetDescriptor_v2(Out::new(&raw mut found), array)?;
    Ok((ChannelDescription::of(found.format, found.channels)?, found.extent, found.flags))
}

/// Size of the texels of an array in bytes.
pub(crate) fn texel_bytes(array: Handle) -> Result<usize, Error> {
    Ok(describe(array)?.0.bytes())
}

/// Rows of an array.
pub(crate) struct Rows {
    pub(crate) texel_bytes: usize,
    /// Bytes of a row.
    pub(crate) bytes: usize,
    pub(crate) count: usize,
}

/// Rows of an array; of the first slice or layer, if it has several.
pub(crate) fn rows(array: Handle) -> Result<Rows, Error> {
    let (texel, extent, _) = describe(array)?;
    Ok(Rows {
        texel_bytes: texel.bytes(),
        bytes: extent.width * texel.bytes(),
        count: extent.height.max(1),
    })
}

fn create(array: Out<Handle>, texel: In<ChannelDescription>, extent: Extent, flags: c_uint) -> Result<(), Error> {
    array.require()?;
    let (format, channels) = texel.get()?.format()?;
    let description = DriverDescription {
        extent,
        format,
        channels,
        flags,
    };
    context::ready()?.cuArray3DCreate_v2(array, In::new(&raw const description))
}

/// Describes the texels of an array.
#[unsafe(no_mangle)]
pub extern "C" fn cudaCreateChannelDesc(x: c_int, y: c_int, z: c_int, w: c_int, kind: c_uint) -> ChannelDescription {
    ChannelDescription { bits: [x, y, z, w], kind }
}

exports! {
    fn cudaMallocArray(array: Out<Handle>, texel: In<ChannelDescription>, width: usize, height: usize, flags: c_uint) {
        create(array, texel, Extent { width, height, depth: 0 }, flags)
    }

    fn cudaMalloc3DArray(array: Out<Handle>, texel: In<ChannelDescription>, extent: Extent, flags: c_uint) {
        create(array, texel, extent, flags)
    }

    fn cudaFreeArray(array: Handle) {
        let driver = context::ready()?;
        match array {
            Handle::NULL => Ok(()),
            array => driver.cuArrayDestroy(array),
        }
    }

    fn cudaArrayGetInfo(texel: Out<ChannelDescription>, extent: Out<Extent>, flags: Out<c_uint>, array: Handle) {
        let (known_texel, known_extent, known_flags) = describe(array)?;
        texel.set_if_wanted(known_texel);
        extent.set_if_wanted(known_extent);
        flags.set_if_wanted(known_flags);
        Ok(())
    }

    fn cudaGetChannelDesc(texel: Out<ChannelDescription>, array: Handle) {
        texel.require()?;
        texel.set(describe(array)?.0)
    }

    fn cudaArrayGetPlane(plane: Out<Handle>, array: Handle, index: c_uint) {
        context::ready()?.cuArrayGetPlane(plane, array, index)
    }

    fn cudaArrayGetSparseProperties(properties: Pointer, array: Handle) {
        context::ready()?.cuArrayGetSparseProperties(properties, array)
    }

    fn cudaArrayGetMemoryRequirements(requirements: Pointer, array: Handle, device: c_int) {
        context::ready()?.cuArrayGetMemoryRequirements(requirements, array, device)
    }

    fn cudaDeviceGetTexture1DLinearMaxWidth(texels: Out<usize>, texel: In<ChannelDescription>, device: c_int) {
        texels.require()?;
        let (format, channels) = texel.get()?.format()?;
        context::of_device(device)?.cuDeviceGetTexture1DLinearMaxWidth(texels, format, channels, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_one_size_and_are_one_two_or_four() {
        let texel = |bits, kind| ChannelDescription { bits, kind };
        for (bits, kind, format) in [
            ([8, 0, 0, 0], 1, Ok((1, 1))),
            ([16, 16, 0, 0], 2, Ok((16, 2))),
            ([32; 4], 2, Ok((32, 4))),
            ([8; 4], 0, Ok((8, 4))),
            ([8, 8, 8, 0], 1, Err(Error::INVALID_CHANNEL_DESCRIPTOR)),
            ([8, 16, 0, 0], 1, Err(Error::INVALID_CHANNEL_DESCRIPTOR)),
            ([8, 0, 8, 0], 1, Err(Error::INVALID_CHANNEL_DESCRIPTOR)),
            ([8, 0, 0, 0], 2, Err(Error::INVALID_CHANNEL_DESCRIPTOR)),
            ([0; 4], 3, Err(Error::INVALID_CHANNEL_DESCRIPTOR)),
            ([8, 0, 0, 0], 5, Err(Error::NOT_SUPPORTED)),
            ([8, 8, 8, 0], 45, Err(Error::NOT_SUPPORTED)),
            ([8, 0, 0, 0], 46, Err(Error::INVALID_CHANNEL_DESCRIPTOR)),
        ] {
            assert_eq!(texel(bits, kind).format(), format, "{bits:?} {kind}");
            if let Ok((format, channels)) = format {
                assert_eq!(ChannelDescription::of(format, channels), Ok(texel(bits, kind)));
            }
        }
    }
}
