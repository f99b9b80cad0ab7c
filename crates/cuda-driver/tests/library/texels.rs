//! Arrays, textures and surfaces as the tests describe them, and kernels that access them.

use crate::driver::{NOT_SUPPORTED, Program, cu, has_textures, ok, parameter};

/// `CUarray_format`s.
pub(crate) const U8: u32 = 1;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 3;
pub(crate) const S8: u32 = 8;
pub(crate) const S16: u32 = 9;
pub(crate) const S32: u32 = 10;
pub(crate) const F16: u32 = 16;
pub(crate) const F32: u32 = 32;

/// Flags of arrays.
pub(crate) const LAYERED: u32 = 1;
pub(crate) const SURFACE: u32 = 2;

/// Flags of textures.
pub(crate) const AS_INTEGER: u32 = 1;
pub(crate) const NORMALIZED: u32 = 2;

/// Kinds of memory of copies.
pub(crate) const HOST: u32 = 1;
pub(crate) const DEVICE: u32 = 2;
pub(crate) const ARRAY: u32 = 3;

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Description {
    pub size: [usize; 3],
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Plane {
    pub size: [usize; 2],
    pub format: u32,
    pub channels: u32,
}

/// One side of a [`Copy3d`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Volume {
    pub position: [usize; 3],
    pub level: usize,
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub reserved: u64,
    pub pitch: usize,
    pub height: usize,
}

impl Volume {
    pub(crate) fn array(array: u64, position: [usize; 3]) -> Self {
        Self {
            kind: ARRAY,
            array,
            position,
            ..Self::default()
        }
    }

    /// Rows of these bytes in memory of the host, and rows of a slice.
    pub(crate) fn host<T>(memory: *const T, pitch: usize, height: usize) -> Self {
        Self {
            kind: HOST,
            host: memory as u64,
            pitch,
            height,
            ..Self::default()
        }
    }

    pub(crate) fn device(address: u64, pitch: usize, height: usize) -> Self {
        Self {
            kind: DEVICE,
            device: address,
            pitch,
            height,
            ..Self::default()
        }
    }
}

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Copy3d {
    pub from: Volume,
    pub to: Volume,
    /// Bytes of a row, rows, and slices.
    pub size: [usize; 3],
}

/// `CUDA_RESOURCE_DESC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Resource {
    pub kind: u32,
    pub parts: [u64; 16],
    pub flags: u32,
}

impl Resource {
    fn new(kind: u32, parts: &[u64]) -> Self {
        let mut resource = Self { kind, ..Self::default() };
        resource.parts[..parts.len()].copy_from_slice(parts);
        resource
    }

    pub(crate) fn array(array: u64) -> Self {
        Self::new(0, &[array])
    }

    pub(crate) fn linear(address: u64, format: u32, channels: u32, bytes: usize) -> Self {
        let format = u64::from(format) | u64::from(channels) << 32;
        Self::new(2, &[address, format, bytes as u64])
    }

    pub(crate) fn plane(address: u64, format: u32, channels: u32, size: [usize; 2], pitch: usize) -> Self {
        let format = u64::from(format) | u64::from(channels) << 32;
        Self::new(3, &[address, format, size[0] as u64, size[1] as u64, pitch as u64])
    }
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Sampling {
    pub address_modes: [u32; 3],
    pub filter: u32,
    pub flags: u32,
    pub most_anisotropy: u32,
    pub level_filter: u32,
    pub levels: [f32; 3],
    pub border: [u32; 4],
    pub reserved: [i32; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct View {
    pub format: u32,
    pub size: [usize; 3],
    pub levels: [u32; 2],
    pub layers: [u32; 2],
    pub reserved: [u32; 16],
}

/// Fetches a texel for each thread: its coordinates are four words (x, y, z and the layer), the result are four words.
fn fetch(geometry: &str, coordinate: &str) -> String {
    let letter = if coordinate == "f32" { 'f' } else { 'r' };
    let axis = |index: usize| format!("%{letter}{index}");
    let place = match geometry {
        "1d" => axis(10),
        "2d" => format!("{}, {}", axis(10), axis(11)),
        "3d" => format!("{}, {}, {}, {}", axis(10), axis(11), axis(12), axis(12)),
        "a1d" => format!("%r13, {}", axis(10)),
        _ => format!("%r13, {}, {}, {}", axis(10), axis(11), axis(11)),
    };
    format!(
        ".visible .entry fetch_{geometry}_{coordinate}(.param .u64 handle, .param .u64 places, .param .u64 out, .param .u32 count) {{
         .reg .pred %p1; .reg .b32 %r<16>; .reg .f32 %f<16>; .reg .b64 %rd<6>;
         ld.param.u64 %rd1, [handle]; ld.param.u64 %rd2, [places]; ld.param.u64 %rd3, [out]; ld.param.u32 %r1, [count];
         mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r2, %r2, %r3, %r4;
         setp.ge.u32 %p1, %r2, %r1; @%p1 ret;
         mad.wide.u32 %rd2, %r2, 16, %rd2; mad.wide.u32 %rd3, %r2, 16, %rd3;
         ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd2];
         mov.b32 %f10, %r10; mov.b32 %f11, %r11; mov.b32 %f12, %r12;
         tex.{geometry}.v4.u32.{coordinate} {{%r5, %r6, %r7, %r8}}, [%rd1, {{{place}}}];
         st.global.v4.u32 [%rd3], {{%r5, %r6, %r7, %r8}}; ret; }}\n"
    )
}

/// For each thread, moves a word of a surface to another one. The place is four words: byte in the row, row, slice, and layer.
const MOVE: &str = ".visible .entry move_words(.param .u64 to, .param .u64 from, .param .u64 places, .param .u32 geometry) {
    .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.param.u64 %rd3, [places]; ld.param.u32 %r1, [geometry];
    mov.u32 %r2, %tid.x; mad.wide.u32 %rd3, %r2, 16, %rd3; ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd3];
    setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r1, 2; setp.eq.u32 %p3, %r1, 3;
    @%p1 bra one; @%p2 bra two; @%p3 bra three;
    suld.b.a2d.b32.zero %r5, [%rd2, {%r13, %r10, %r11, %r11}]; sust.b.a2d.b32.zero [%rd1, {%r13, %r10, %r11, %r11}], %r5; ret;
    one: suld.b.1d.b32.zero %r5, [%rd2, {%r10}]; sust.b.1d.b32.zero [%rd1, {%r10}], %r5; ret;
    two: suld.b.2d.b32.zero %r5, [%rd2, {%r10, %r11}]; sust.b.2d.b32.zero [%rd1, {%r10, %r11}], %r5; ret;
    three: suld.b.3d.b32.zero %r5, [%rd2, {%r10, %r11, %r12, %r12}]; sust.b.3d.b32.zero [%rd1, {%r10, %r11, %r12, %r12}], %r5; ret;
}\n";

fn kernels() -> String {
    let mut text = String::from(".version 8.0\n.target sm_80\n.address_size 64\n");
    for geometry in ["1d", "2d", "3d", "a1d", "a2d"] {
        for coordinate in ["s32", "f32"] {
            text += &fetch(geometry, coordinate);
        }
    }
    text + MOVE + "\0"
}

pub(crate) fn bytes<T: Copy, const N: usize>(values: impl IntoIterator<Item = T>, convert: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.into_iter().flat_map(convert).collect()
}

/// Texels that differ in all bytes of an image of up to 64 KiB.
pub(crate) fn image(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index ^ ((index >> 8) * 31)) as u8).collect()
}

/// Free memory of the device in bytes.
pub(crate) fn free(program: &Program) -> usize {
    let (mut free, mut total) = (0usize, 0usize);
    ok!(program.library, cuMemGetInfo_v2(&raw mut free, &raw mut total));
    free
}

/// A program whose module has the kernels. If the device has no textures, checks that they are refused, and returns `None`.
pub(crate) fn textured() -> Option<Program> {
    let mut program = Program::new();
    if has_textures() {
        let text = kernels();
        ok!(program.library, cuModuleLoadData(&raw mut program.module, text.as_ptr()));
        return Some(program);
    }
    let array = Resource::array(program.array([4, 4, 0], F32, 1, SURFACE));
    let linear = Resource::linear(program.allocate(1024), F32, 1, 1024);
    let before = free(&program);
    for resource in [array, linear] {
        let refused = program.try_texture(&resource, &Sampling::default(), None);
        assert_eq!(refused, Err(NOT_SUPPORTED), "{resource:?}");
    }
    assert_eq!(program.try_surface(&array), Err(NOT_SUPPORTED));
    let mut width = -1i32;
    ok!(program.library, cuDeviceGetAttribute(&raw mut width, 22u32, 0i32));
    assert_eq!((width, free(&program)), (0, before));
    None
}

impl Program {
    pub(crate) fn array(&self, size: [usize; 3], format: u32, channels: u32, flags: u32) -> u64 {
        let description = Description {
            size,
            format,
            channels,
            flags,
        };
        let mut array = 0u64;
        ok!(self.library, cuArray3DCreate_v2(&raw mut array, &raw const description));
        array
    }

    /// An array with these texels.
    pub(crate) fn array_of(&self, size: [usize; 3], format: u32, channels: u32, flags: u32, texels: &[u8]) -> u64 {
        let array = self.array(size, format, channels, flags);
        let rows = size.map(|size| size.max(1));
        let width = texels.len() / rows[1] / rows[2];
        let copy = Copy3d {
            from: Volume::host(texels.as_ptr(), width, rows[1]),
            to: Volume::array(array, [0; 3]),
            size: [width, rows[1], rows[2]],
        };
        ok!(self.library, cuMemcpy3D_v2(&raw const copy));
        array
    }

    /// All texels of an array whose rows have this width in bytes.
    pub(crate) fn texels(&self, array: u64, size: [usize; 3]) -> Vec<u8> {
        let mut texels = vec![0u8; size.iter().product()];
        let copy = Copy3d {
            from: Volume::array(array, [0; 3]),
            to: Volume::host(texels.as_mut_ptr(), size[0], size[1]),
            size,
        };
        ok!(self.library, cuMemcpy3D_v2(&raw const copy));
        texels
    }

    pub(crate) fn try_texture(&self, resource: &Resource, sampling: &Sampling, view: Option<&View>) -> Result<u64, u32> {
        let mut texture = 0u64;
        let view = view.map_or(std::ptr::null(), std::ptr::from_ref);
        match cu!(
            self.library,
            cuTexObjectCreate(&raw mut texture, std::ptr::from_ref(resource), std::ptr::from_ref(sampling), view)
        ) {
            0 => Ok(texture),
            code => Err(code),
        }
    }

    pub(crate) fn texture(&self, resource: &Resource, sampling: &Sampling) -> u64 {
        self.try_texture(resource, sampling, None).expect("a texture")
    }

    pub(crate) fn try_surface(&self, resource: &Resource) -> Result<u64, u32> {
        let mut surface = 0u64;
        match cu!(self.library, cuSurfObjectCreate(&raw mut surface, std::ptr::from_ref(resource))) {
            0 => Ok(surface),
            code => Err(code),
        }
    }

    /// Memory of the device with these bytes.
    pub(crate) fn memory(&self, bytes: &[u8]) -> u64 {
        let address = self.allocate(bytes.len());
        ok!(self.library, cuMemcpyHtoD_v2(address, bytes.as_ptr(), bytes.len()));
        address
    }

    /// Fetches at places by a kernel `fetch_…`.
    pub(crate) fn fetch(&self, kernel: &str, mut texture: u64, places: &[[u32; 4]]) -> Vec<[u32; 4]> {
        let mut given = self.memory(
            places
                .as_flattened()
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<_>>()
                .as_slice(),
        );
        let mut out = self.allocate(16 * places.len());
        let mut count = places.len() as u32;
        let mut parameters = [
            parameter(&mut texture),
            parameter(&mut given),
            parameter(&mut out),
            parameter(&mut count),
        ];
        let function = self.function(&format!("fetch_{kernel}"));
        assert_eq!(self.launch(function, count.div_ceil(64), 0, &mut parameters), 0);
        let mut found = vec![[0u32; 4]; places.len()];
        ok!(self.library, cuMemcpyDtoH_v2(found.as_mut_ptr(), out, 16 * places.len()));
        ok!(self.library, cuMemFree_v2(given));
        ok!(self.library, cuMemFree_v2(out));
        found
    }

    /// Fetches as floats.
    pub(crate) fn sample(&self, kernel: &str, texture: u64, places: &[[f32; 4]]) -> Vec<[f32; 4]> {
        let places: Vec<_> = places
            .iter()
            .map(|[x, y, z, layer]| [x.to_bits(), y.to_bits(), z.to_bits(), *layer as u32])
            .collect();
        let found = self.fetch(&format!("{kernel}_f32"), texture, &places);
        found.iter().map(|texel| texel.map(f32::from_bits)).collect()
    }
}
