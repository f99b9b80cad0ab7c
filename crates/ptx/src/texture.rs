//! Textures and surfaces (PTX ISA §9.7.10, §9.7.11): their descriptors in device memory, and the texels that a fetch reads.

use crate::lanes::half::{Half, Sixteen};
use crate::memory::DevicePointer;

/// First word of a descriptor.
const MAGIC: u64 = 0x7465_7874_7572_6531;

/// Type of one channel of a texel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    F16,
    F32,
}

const CHANNELS: [Channel; 8] = [
    Channel::U8,
    Channel::U16,
    Channel::U32,
    Channel::S8,
    Channel::S16,
    Channel::S32,
    Channel::F16,
    Channel::F32,
];

impl Channel {
    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
        }
    }
}

/// Treatment of coordinates outside a texture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    /// The nearest texel. Also what `Wrap` and `Mirror` do with coordinates that are not normalised.
    Clamp,
    Wrap,
    Mirror,
    /// Texels outside have the [border's colour](Texture::border).
    Border,
}

const MODES: [AddressMode; 4] = [AddressMode::Clamp, AddressMode::Wrap, AddressMode::Mirror, AddressMode::Border];

/// A texture or surface: texels in memory, and how a fetch reads them.
///
/// Kernels take the address of its [descriptor](Self::descriptor) in device memory as the handle: as an argument, or in a `.texref`, `.surfref` or
/// `.samplerref` variable, whose 8 bytes the host sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texture {
    /// Address of the first texel.
    pub address: DevicePointer,
    /// Width in texels, height in rows, and depth, or number of layers. Dimensions that a texture lacks are 1.
    pub extent: [u32; 3],
    /// Distance of rows in bytes.
    pub row_bytes: u64,
    pub channel: Channel,
    /// Channels of a texel: 1, 2 or 4.
    pub channels: u8,
    /// For each dimension.
    pub address_modes: [AddressMode; 3],
    /// What each channel is read as outside, where that is [`AddressMode::Border`]: bits of a float if texels are read as floats.
    pub border: [u32; 4],
    /// Whether fetches interpolate between texels. Requires floats, or `normalized_values`.
    pub is_linear: bool,
    /// Whether coordinates are from 0 to 1, rather than in texels.
    pub normalized_coordinates: bool,
    /// Whether integers of 8 or 16 bits are read as floats from 0 to 1, or from -1 to 1.
    pub normalized_values: bool,
}

impl Texture {
    /// Size of a descriptor in bytes.
    pub const DESCRIPTOR_BYTES: u64 = 64;

    /// Returns the descriptor to write to device memory, aligned to 8 bytes.
    pub fn descriptor(&self) -> [u8; Self::DESCRIPTOR_BYTES as usize] {
        let [width, height, depth] = self.extent.map(u64::from);
        let position = |found: Option<usize>| found.unwrap_or(0) as u64;
        let modes = self
            .address_modes
            .map(|mode| position(MODES.iter().position(|known| *known == mode)));
        let format = position(CHANNELS.iter().position(|channel| *channel == self.channel))
            | u64::from(self.channels) << 8
            | modes[0] << 16
            | modes[1] << 18
            | modes[2] << 20
            | u64::from(self.is_linear) << 24
            | u64::from(self.normalized_coordinates) << 25
            | u64::from(self.normalized_values) << 26;
        let border = self.border.map(u64::from);
        let words = [
            MAGIC,
            self.address.0,
            width | height << 32,
            depth,
            self.row_bytes,
            format,
            border[0] | border[1] << 32,
            border[2] | border[3] << 32,
        ];
        let mut bytes = [0; Self::DESCRIPTOR_BYTES as usize];
        for (target, word) in bytes.chunks_exact_mut(8).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Whether the first word is that of a descriptor.
    pub(crate) fn is_descriptor(first: u64) -> bool {
        first == MAGIC
    }

    /// Reads the words of a descriptor, or `None` if they are not one.
    pub(crate) fn of_words(words: [u64; 8]) -> Option<Self> {
        let [magic, address, plane, depth, row_bytes, format, border @ ..] = words;
        let channels = (format >> 8) as u8;
        if magic != MAGIC || !matches!(channels, 1 | 2 | 4) {
            return None;
        }
        Some(Self {
            address: DevicePointer(address),
            extent: [plane as u32, (plane >> 32) as u32, depth as u32],
            row_bytes,
            channel: *CHANNELS.get(format as usize & 0xff)?,
            channels,
            address_modes: [16, 18, 20].map(|shift| MODES[(format >> shift) as usize & 3]),
            border: [0, 1, 2, 3].map(|channel| (border[channel / 2] >> (32 * (channel % 2))) as u32),
            is_linear: format >> 24 & 1 != 0,
            normalized_coordinates: format >> 25 & 1 != 0,
            normalized_values: format >> 26 & 1 != 0,
        })
    }

    pub(crate) fn texel_bytes(&self) -> u64 {
        self.channel.bytes() * u64::from(self.channels)
    }

    /// Returns the device address of a byte of a row, given the row and the layer or plane.
    pub(crate) fn at(&self, byte: u64, row: u64, plane: u64) -> u64 {
        let row = plane.wrapping_mul(u64::from(self.extent[1])).wrapping_add(row);
        self.address.0.wrapping_add(row.wrapping_mul(self.row_bytes)).wrapping_add(byte)
    }

    fn gives_floats(&self) -> bool {
        matches!(self.channel, Channel::F16 | Channel::F32) || self.normalized_values
    }

    /// Returns the 32 bits that a channel is read as.
    fn value(&self, bits: u32) -> u32 {
        let size = 8 * self.channel.bytes() as u32;
        let signed = ((bits << (32 - size)) as i32) >> (32 - size);
        match self.channel {
            Channel::F32 => bits,
            Channel::F16 => Half(bits as u16).value().to_bits(),
            Channel::U8 | Channel::U16 if self.normalized_values => (bits as f32 / ((1u32 << size) - 1) as f32).to_bits(),
            Channel::S8 | Channel::S16 if self.normalized_values => (signed as f32 / ((1 << (size - 1)) - 1) as f32).max(-1.0).to_bits(),
            Channel::U8 | Channel::U16 | Channel::U32 => bits,
            Channel::S8 | Channel::S16 | Channel::S32 => signed as u32,
        }
    }

    /// Returns the index of a texel along an axis of this extent, or `None` for the border.
    fn index(&self, mode: AddressMode, at: i64, extent: u32) -> Option<u64> {
        let extent = i64::from(extent.max(1));
        let found = match mode {
            AddressMode::Wrap => at.rem_euclid(extent),
            AddressMode::Mirror => {
                let place = at.rem_euclid(2 * extent);
                if place < extent { place } else { 2 * extent - 1 - place }
            }
            AddressMode::Border if at < 0 || at >= extent => return None,
            _ => at.clamp(0, extent - 1),
        };
        Some(found as u64)
    }
}

/// Coordinate of a fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Coordinate {
    Texel(i32),
    Position(f32),
}

/// Fetches from a texture with the sampling of `sampler`. `read` reads a channel of this size at a device address.
///
/// Interpolation weighs with 8 bits of fraction, as GPUs do (CUDA C++ Programming Guide, texture fetching). A NaN position, which neither
/// the guide nor the PTX ISA defines, is the first texel, interpolated or not.
pub(crate) fn fetch<E>(
    texture: &Texture,
    sampler: &Texture,
    coordinates: &[Coordinate],
    layer: Option<u32>,
    mut read: impl FnMut(u64, u64) -> Result<u32, E>,
) -> Result<[u32; 4], E> {
    let is_linear = sampler.is_linear && texture.gives_floats();
    // For each axis: the lower index, the weight of the upper one, and the treatment of indices outside.
    let mut axes = [(0i64, 0f32, AddressMode::Clamp); 3];
    for (((axis, coordinate), extent), mode) in axes.iter_mut().zip(coordinates).zip(texture.extent).zip(sampler.address_modes) {
        let mode = match mode {
            AddressMode::Wrap | AddressMode::Mirror if !sampler.normalized_coordinates => AddressMode::Clamp,
            mode => mode,
        };
        *axis = match coordinate {
            Coordinate::Texel(at) => (i64::from(*at), 0.0, mode),
            Coordinate::Position(at) => {
                let at = if sampler.normalized_coordinates { at * extent as f32 } else { *at };
                let lower = if is_linear { at - 0.5 } else { at };
                // An infinite position is on one side of all texels. The cast below converts NaN to 0.
                let weight = if is_linear && lower.is_finite() {
                    ((lower - lower.floor()) * 256.0).round() / 256.0
                } else {
                    0.0
                };
                (lower.floor() as i64, weight, mode)
            }
        };
    }
    let mut sums = [0f32; 4];
    let mut single = [0u32; 4];
    for corner in 0..8u32 {
        let mut weight = 1f32;
        let mut place = [Some(0u64); 3];
        for (axis, (lower, upper, mode)) in axes.iter().enumerate() {
            let far = corner >> axis & 1 != 0;
            weight *= if far { *upper } else { 1.0 - upper };
            let index = lower.saturating_add(i64::from(far));
            place[axis] = if axis < coordinates.len() {
                texture.index(*mode, index, texture.extent[axis])
            } else {
                Some(0)
            };
        }
        if weight == 0.0 {
            continue;
        }
        if let Some(layer) = layer {
            let last = texture.extent[2].max(1) - 1;
            place[2] = Some(u64::from(layer.min(last)));
        }
        let mut texel = [0, 0, 0, if texture.gives_floats() { 1f32.to_bits() } else { 1 }];
        match place {
            [Some(x), Some(y), Some(z)] => {
                let bytes = texture.channel.bytes();
                for (channel, value) in texel.iter_mut().enumerate().take(usize::from(texture.channels)) {
                    let address = texture.at(x * texture.texel_bytes() + channel as u64 * bytes, y, z);
                    *value = texture.value(read(address, bytes)?);
                }
            }
            _ => texel = sampler.border,
        }
        single = texel;
        for (sum, value) in sums.iter_mut().zip(texel) {
            *sum += weight * f32::from_bits(value);
        }
    }
    Ok(if is_linear { sums.map(f32::to_bits) } else { single })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A texture of the texels 1, 2, 3 and 4 in the border 9.
    fn four_texels(mode: AddressMode, is_linear: bool, normalized_coordinates: bool) -> Texture {
        Texture {
            address: DevicePointer(0),
            extent: [4, 1, 1],
            row_bytes: 16,
            channel: Channel::F32,
            channels: 1,
            address_modes: [mode; 3],
            border: [9f32, 0.0, 0.0, 0.0].map(f32::to_bits),
            is_linear,
            normalized_coordinates,
            normalized_values: false,
        }
    }

    fn texel(texture: &Texture, at: f32) -> f32 {
        let read = |address, _| Ok::<_, ()>((address as f32 / 4.0 + 1.0).to_bits());
        let texel = fetch(texture, texture, &[Coordinate::Position(at)], None, read).unwrap();
        f32::from_bits(texel[0])
    }

    #[test]
    fn a_position_beyond_all_numbers_is_outside_of_a_texture_whose_texels_are_interpolated() {
        for (normalized_coordinates, far) in [(true, f32::MAX), (true, f32::INFINITY), (false, f32::INFINITY)] {
            for (mode, low, high) in [(AddressMode::Clamp, 1.0, 4.0), (AddressMode::Border, 9.0, 9.0)] {
                let texture = four_texels(mode, true, normalized_coordinates);
                assert_eq!((texel(&texture, -far), texel(&texture, far)), (low, high), "{mode:?} {far}");
            }
        }
    }

    #[test]
    fn a_position_that_is_no_number_is_the_first_texel() {
        for mode in [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border] {
            for (is_linear, normalized_coordinates) in [(false, false), (false, true), (true, false), (true, true)] {
                let texture = four_texels(mode, is_linear, normalized_coordinates);
                assert_eq!(texel(&texture, f32::NAN), 1.0, "{mode:?} {is_linear} {normalized_coordinates}");
            }
        }
    }

    #[test]
    fn descriptors_are_read_as_they_were_written() {
        let texture = Texture {
            address: DevicePointer(0x1_0000_0100),
            extent: [640, 480, 3],
            row_bytes: 2560,
            channel: Channel::F16,
            channels: 2,
            address_modes: [AddressMode::Border, AddressMode::Mirror, AddressMode::Wrap],
            border: [1, 2, 3, 1 << 31],
            is_linear: true,
            normalized_coordinates: false,
            normalized_values: true,
        };
        let bytes = texture.descriptor();
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        assert_eq!(Texture::of_words(words), Some(texture));
        assert_eq!(Texture::of_words([words[0], 0, 0, 0, 0, 3 << 8, 0, 0]), None);
        assert_eq!(Texture::of_words([0; 8]), None);
    }
}
