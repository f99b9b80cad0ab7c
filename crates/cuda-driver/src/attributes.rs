//! What the device says of itself. A GPU says what its driver does. The limits of the PTX engine are those of compute capability 8.0, within
//! which compilers emit what it runs.

use sahasra_cuda_device::Properties;
use sahasra_cuda_environment::{CAPABILITY, PCI_BUS};

/// Shared memory of a block in bytes.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
/// Shared memory of a block in bytes, for kernels that opt in.
pub(crate) const SHARED_BYTES_OPT_IN: u32 = 163 << 10;
/// Shared memory of a multiprocessor in bytes.
pub(crate) const SHARED_BYTES_OF_MULTIPROCESSOR: u32 = 164 << 10;
/// Shared memory of each block that the system keeps, in bytes.
pub(crate) const SHARED_BYTES_RESERVED: u32 = 1 << 10;
/// Registers of a multiprocessor.
pub(crate) const REGISTERS: u32 = 65_536;
/// Threads of a block.
pub(crate) const BLOCK_THREADS: u32 = 1024;
/// Threads of a multiprocessor.
pub(crate) const THREADS: u32 = 2048;
/// Blocks of a multiprocessor.
pub(crate) const BLOCKS: u32 = 32;
/// Threads of a warp.
pub(crate) const WARP: u32 = 32;
/// Blocks of a grid along x.
pub(crate) const GRID_X: u32 = i32::MAX as u32;
/// Blocks of a grid along y and z.
pub(crate) const GRID_YZ: u32 = 65_535;
/// Threads of a block along z.
pub(crate) const BLOCK_Z: u32 = 64;
/// Alignment of rows in bytes.
pub(crate) const PITCH: u64 = 512;
/// Constant memory of a module in bytes.
pub(crate) const CONSTANT_BYTES: i32 = 64 << 10;
/// Clock rate in kHz; programs divide by it.
pub(crate) const CLOCK_RATE: i32 = 1_000_000;
/// Maximum distance of rows in bytes.
pub(crate) const MAX_PITCH: i32 = i32::MAX;

/// Sizes that arrays have at most: width in texels, rows, and slices or layers.
pub(crate) struct Limits {
    texture: [u32; 3],
    /// For arrays of which kernels make surfaces.
    surface: [u32; 3],
}

impl Limits {
    pub(crate) fn of(&self, is_surface: bool) -> [u32; 3] {
        if is_surface { self.surface } else { self.texture }
    }
}

/// Arrays of one dimension.
pub(crate) const ROWS: Limits = Limits {
    texture: [131_072, 1, 1],
    surface: [32_768, 1, 1],
};
/// Arrays of two dimensions.
pub(crate) const PLANES: Limits = Limits {
    texture: [131_072, 65_536, 1],
    surface: [131_072, 65_536, 1],
};
/// Arrays of three dimensions.
pub(crate) const VOLUMES: Limits = Limits {
    texture: [16_384; 3],
    surface: [16_384; 3],
};
/// Arrays of layers of one dimension.
pub(crate) const LAYERED_ROWS: Limits = Limits {
    texture: [32_768, 1, 2048],
    surface: [32_768, 1, 2048],
};
/// Arrays of layers of two dimensions.
pub(crate) const LAYERED_PLANES: Limits = Limits {
    texture: [32_768, 32_768, 2048],
    surface: [32_768, 32_768, 2048],
};
/// Alignment of rows of arrays, and of rows of which programs make textures, in bytes.
pub(crate) const ARRAY_PITCH: u64 = 32;
/// Alignment of memory of which programs make textures, in bytes.
pub(crate) const TEXTURE_ALIGNMENT: u64 = 512;
/// Texels of a texture of memory without rows.
pub(crate) const LINEAR_TEXELS: u32 = 1 << 28;
/// Width in texels, and rows, of a texture of rows in memory.
pub(crate) const LINEAR_PLANE: [u32; 2] = [131_072, 65_000];
/// Distance of such rows in bytes.
pub(crate) const LINEAR_PITCH: u32 = 2_097_120;

/// Sizes of textures and surfaces (`CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE…`, `…_SURFACE…`), as of compute capability 8.0. There are no cubes, mipmaps
/// and gathers, and no alternate limits for 3D textures.
fn texture_limit(attribute: u32) -> Option<u32> {
    Some(match attribute {
        21 => ROWS.texture[0],
        22 | 23 => PLANES.texture[attribute as usize - 22],
        24..=26 => VOLUMES.texture[attribute as usize - 24],
        27..=29 => LAYERED_PLANES.texture[attribute as usize - 27],
        42 => LAYERED_ROWS.texture[0],
        43 => LAYERED_ROWS.texture[2],
        55 => ROWS.surface[0],
        56 | 57 => PLANES.surface[attribute as usize - 56],
        58..=60 => VOLUMES.surface[attribute as usize - 58],
        61 => LAYERED_ROWS.surface[0],
        62 => LAYERED_ROWS.surface[2],
        63..=65 => LAYERED_PLANES.surface[attribute as usize - 63],
        69 => LINEAR_TEXELS,
        70 | 71 => LINEAR_PLANE[attribute as usize - 70],
        72 => LINEAR_PITCH,
        44..=49 | 52..=54 | 66..=68 | 73 | 74 | 77 => 0,
        _ => return None,
    })
}

/// Attributes that a GPU's driver knows, by their numbers: limits, sizes and rates. Others say what this library can do.
const OF_HARDWARE: &[u32] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 36, 37, 38, 39, 51, 75, 76, 81, 82, 87, 97, 106, 111,
];

/// Compute capability: major and minor.
pub(crate) fn capability(properties: &Properties) -> (i32, i32) {
    let of = |attribute| device(attribute, properties).unwrap_or(0);
    (of(75), of(76))
}

/// Value of an attribute that is a size.
pub(crate) fn size(attribute: u32, properties: &Properties) -> u32 {
    device(attribute, properties)
        .and_then(|value| u32::try_from(value).ok())
        .unwrap_or(0)
}

/// Value of an attribute (`CUdevice_attribute`), or `None` for a number that is no attribute.
pub(crate) fn device(attribute: u32, properties: &Properties) -> Option<i32> {
    let signed = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    if let Some(value) = properties.attributes.get(&attribute).filter(|_| OF_HARDWARE.contains(&attribute)) {
        return Some(*value);
    }
    if let Some(limit) = texture_limit(attribute) {
        return Some(if properties.reads_descriptors { signed(limit) } else { 0 });
    }
    Some(match attribute {
        // Blocks and grids.
        1..=3 => signed(BLOCK_THREADS),
        4 => signed(BLOCK_Z),
        5 => signed(GRID_X),
        6 | 7 => signed(GRID_YZ),
        39 => signed(THREADS),
        106 => signed(BLOCKS),
        10 => signed(WARP),
        16 => signed(properties.multiprocessors),
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        // Memory of blocks.
        8 => signed(SHARED_BYTES),
        81 => signed(SHARED_BYTES_OF_MULTIPROCESSOR),
        97 => signed(SHARED_BYTES_OPT_IN),
        111 => signed(SHARED_BYTES_RESERVED),
        12 | 82 => signed(REGISTERS),
        9 => CONSTANT_BYTES,
        // Memory of the device.
        11 => MAX_PITCH,
        14 | 30 => TEXTURE_ALIGNMENT as i32,
        51 => ARRAY_PITCH as i32,
        36 => CLOCK_RATE,
        37 => 64,
        38 => 4 << 20,
        13 => CLOCK_RATE,
        87 => 2,
        // Overlap of copies and kernels, stream priorities, caches.
        15 | 78 | 79 | 80 => 1,
        40 => 1,
        // Unified addresses, virtual memory management, cooperative launches, memory pools, registration of host memory, preemption.
        41 | 90 | 95 | 99 | 102 | 115 => 1,
        // Position: domain, bus and device.
        33 => i32::from(PCI_BUS),
        34 | 50 => 0,
        // Numbers of nodes and groups that there are none of.
        85 => 0,
        131 | 134 => -1,
        // Mapped host memory, and managed memory.
        19 | 83 => 1,
        // Access to managed memory while kernels run, and registered memory at its own address.
        89 | 91 => i32::from(properties.shares_host_memory),
        // Everything else that there is by that number is absent: peers, IPC, clusters, interoperation.
        // Kernels of one context run one after another.
        31 => 0,
        17 | 18 | 20 | 32 | 35 | 84 | 86 | 88 | 92..=94 | 96 | 98 | 100 | 101 | 103..=105 | 107..=110 | 112..=114 | 116..=130 => 0,
        132 | 133 | 135..=162 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_attribute_has_a_value() {
        let mut properties = Properties {
            name: String::new(),
            uuid: [0; 16],
            memory_bytes: 1,
            addresses: 0..1,
            placed_from: 1,
            multiprocessors: 4,
            shares_host_memory: true,
            attributes: BTreeMap::new(),
            takes_machine_code: false,
            reads_descriptors: true,
            page_bytes: 512,
            stack_bytes: 8192,
        };
        for attribute in 1..=150 {
            assert!(device(attribute, &properties).is_some(), "{attribute}");
        }
        assert_eq!((device(75, &properties), device(76, &properties)), (Some(8), Some(0)));
        assert_eq!(
            [22, 52, 57, 71].map(|attribute| device(attribute, &properties)),
            [131_072, 0, 65_536, 65_000].map(Some)
        );
        assert_eq!(device(0, &properties), None);
        assert_eq!(device(1000, &properties), None);
        properties.reads_descriptors = false;
        assert_eq!(device(22, &properties), Some(0));
        properties.attributes = BTreeMap::from([(75, 9), (39, 1536), (120, 1)]);
        assert_eq!(
            (capability(&properties), size(39, &properties)),
            ((9, 0), 1536),
            "as the driver has it"
        );
        assert_eq!(
            device(120, &properties),
            Some(0),
            "launches in clusters, which this library refuses"
        );
    }
}
